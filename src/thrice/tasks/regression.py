"""Regression: one number for a text or a pair of texts, such as how alike two sentences are.

The model learns standardised numbers, so that one learning rate fits prices and ratings alike. Where it is saved and
where it answers, mean and spread are folded into the last linear layer: the stock folder gives numbers as the data has
them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from thrice.data.encoding import Encoded, encode_texts
from thrice.data.readers import Columns, Table, guess_columns, raise_for_rows
from thrice.data.tokenizer import Tokenizer
from thrice.errors import ConfigError, DataError
from thrice.model.packing import PackedBatch, pack
from thrice.model.stock import AnyEncoder
from thrice.tasks.base import Prediction, Task, TaskModel, keep_heads

COLLAPSED_SPREAD = 0.01
"""Answers that spread less than this share of the truths are in effect one answer."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One text or pair of texts with its number."""

    text: str
    """First or only text."""
    text_pair: str | None = None
    """Second text of a pair."""
    number: float = math.nan
    """Gold number; nan where unknown."""


@dataclass(frozen=True)
class RegressionBatch:
    """Packed texts and their numbers."""

    packed: PackedBatch
    """B sequences."""
    targets: Tensor
    """(B,) float32, standardised; nan where unknown."""
    num_examples: int
    """B."""

    def to(self, device: torch.device) -> RegressionBatch:
        """Give the same batch on a device."""
        return RegressionBatch(self.packed.to(device), self.targets.to(device), self.num_examples)


class RegressionData:
    """Encoded texts and their numbers, ready to be batched."""

    def __init__(self, encoded: Encoded, targets: np.ndarray) -> None:
        self.encoded = encoded
        self.targets = targets
        self.lengths = encoded.lengths
        self.num_cut = encoded.num_cut

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Sequence[int] | np.ndarray) -> RegressionBatch:
        """Give these examples as one packed batch, in this order."""
        targets = torch.from_numpy(self.targets[np.asarray(indices)])
        return RegressionBatch(pack(*self.encoded.take(indices)), targets, len(indices))


@dataclass(frozen=True, kw_only=True)
class Regression(Task):
    """A number for a text; see `learn` for the options."""

    name = "regression"
    summary = "one number for a text or a pair of texts, such as a rating or the likeness of two sentences"

    columns: Columns
    """Columns of the text, its pair and the number."""
    mean: float
    """Of the training numbers."""
    spread: float
    """Standard deviation of the training numbers, above 0."""
    max_length: int = 128
    """Tokens of one sequence, special tokens included."""
    folded: bool = field(default=False, compare=False)
    """Whether the last layer gives numbers as the data has them, as in a saved folder."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("correlation", "pearson", "spearman")

    @classmethod
    def learn(  # type: ignore[override]  # every task has options of its own
        cls,
        table: Table,
        *,
        text_column: str | None = None,
        text_pair_column: str | None = None,
        label_column: str | None = None,
        max_length: int = 128,
    ) -> Regression:
        """Give the task of the training rows; column names are guessed where obvious.

        Raises DataError for columns that cannot be found, cells that are no numbers, and where all numbers are one.
        """
        columns = guess_columns(table, text=text_column, text_pair=text_pair_column, label=label_column)
        if max_length < 3:
            raise ConfigError(f"--max-length is {max_length}, it must be at least 3 tokens")
        values = _numbers(table, str(columns.label))
        mean, spread = float(np.mean(values)), float(np.std(values))
        if spread == 0 or not math.isfinite(spread):
            raise DataError(
                f"{table.source}: all numbers in {columns.label!r} are {values[0]:g}, there is nothing to learn"
                if spread == 0
                else f"{table.source}: the numbers in {columns.label!r} are too large to be averaged"
            )
        return cls(columns=columns, mean=mean, spread=spread, max_length=max_length)

    def describe(self) -> str:
        columns = self.columns
        texts = repr(columns.text) + (f" and {columns.text_pair!r}" if columns.text_pair else "")
        return f"text in column {texts}, number in {columns.label!r}: mean {self.mean:.4g}, spread {self.spread:.4g}"

    def read(self, table: Table, *, gold: bool = True) -> list[Example]:
        columns = self.columns
        wanted = [columns.text, columns.text_pair, columns.label if gold else None]
        missing = [c for c in wanted if c is not None and c not in table.columns]
        if missing:
            raise DataError(f"{table.source}: no column {', '.join(missing)}; it has {', '.join(table.columns)}")
        texts = table.texts(columns.text)
        pairs = table.texts(columns.text_pair) if columns.text_pair else [None] * len(texts)
        numbers = _numbers(table, str(columns.label)) if gold else [math.nan] * len(texts)
        return [Example(text=t, text_pair=p, number=n) for t, p, n in zip(texts, pairs, numbers, strict=True)]

    def from_texts(self, texts: Sequence[Any]) -> list[Example]:
        pairs = self.columns.text_pair is not None
        wanted = tuple if pairs else str
        wrong = [i for i, text in enumerate(texts) if not isinstance(text, wanted) or (pairs and len(text) != 2)]
        if wrong:
            kind = "pairs (text, text)" if pairs else "strings"
            raise DataError(f"this model answers {kind}; entries {wrong[:5]} are none, the first {texts[wrong[0]]!r}")
        return [Example(text=t[0], text_pair=t[1]) if pairs else Example(text=t) for t in texts]

    def split_key(self, row: dict[str, Any]) -> tuple[str, str]:
        pair = self.columns.text_pair
        return row[self.columns.text] + (f"\t{row[pair]}" if pair else ""), ""

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer) -> RegressionData:
        pairs = [e.text_pair or "" for e in examples] if self.columns.text_pair else None
        numbers = np.array([e.number for e in examples], dtype=np.float64)
        cache = bool(np.isfinite(numbers).any())  # texts to be answered are often private and seen once
        encoded = encode_texts(tokenizer, [e.text for e in examples], pairs, max_length=self.max_length, cache=cache)
        return RegressionData(encoded, ((numbers - self.mean) / self.spread).astype(np.float32))

    def validate(self, encoder: AnyEncoder) -> None:
        positions = encoder.config.max_length
        if self.max_length > positions:
            raise ConfigError(
                f"--max-length {self.max_length} is more than the {positions} positions of this checkpoint"
            )

    def build_head(self, encoder: AnyEncoder, generator: torch.Generator) -> None:
        pooler = encoder.heads["pooler"] if "pooler" in encoder.heads else None  # noqa: SIM401 - ModuleDict has no get
        keep_heads(encoder, ())
        head = encoder.add_head("sequence", num_labels=1, generator=generator)
        if _last_layer(head).bias is None:
            raise ConfigError(f"the classifier of {encoder.config.family} has no bias that could carry the mean")
        if pooler is not None and encoder.config.family in ("albert", "bert"):
            head.dense.load_state_dict(pooler.dense.state_dict())  # type: ignore[union-attr]

    def loss(self, model: TaskModel, batch: RegressionBatch) -> Tensor:
        """Give the mean squared error of standardised numbers."""
        outputs = model.encoder.classify(batch.packed).squeeze(-1)
        if self.folded:
            outputs = (outputs - self.mean) / self.spread
        return F.mse_loss(outputs, batch.targets)

    def predict(self, model: TaskModel, batch: RegressionBatch) -> list[Prediction]:
        with self.as_saved(model):
            outputs = model.encoder.classify(batch.packed).squeeze(-1).float()
        return [{"prediction": value} for value in outputs.tolist()]

    @contextlib.contextmanager
    def as_saved(self, model: TaskModel) -> Iterator[None]:
        """Fold mean and spread into the last layer, and take them out again exactly: W s x + (b s + m)."""
        if self.folded:
            yield
            return
        layer = _last_layer(model.encoder.heads["sequence"])
        weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
        with torch.no_grad():
            layer.weight.mul_(self.spread)
            layer.bias.mul_(self.spread).add_(self.mean)
        try:
            yield
        finally:
            with torch.no_grad():
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Any]:
        """Give Pearson's and Spearman's correlation, their mean (GLUE's score of STS-B), and the root mean square
        error.

        A correlation is 0 where all answers or all truths are equal.
        """
        from scipy.stats import rankdata

        gold = np.array([example.number for example in examples])
        said = np.array([prediction["prediction"] for prediction in predictions])
        pearson = _correlation(said, gold)
        spearman = _correlation(rankdata(said), rankdata(gold))
        return {
            "correlation": (pearson + spearman) / 2,
            "pearson": pearson,
            "spearman": spearman,
            "rmse": float(np.sqrt(((said - gold) ** 2).mean())),
            "collapsed": bool(said.std() < COLLAPSED_SPREAD * gold.std()),
        }

    def shown(self, example: Example) -> dict[str, str]:
        texts = [example.text] if example.text_pair is None else [example.text, example.text_pair]
        return {"text": " / ".join(texts), "gold": f"{example.number:g}"}

    def settings(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "folded"}

    @classmethod
    def restore(cls, settings: dict[str, Any]) -> Regression:
        """Give the task of a saved folder, whose last layer has mean and spread in it."""
        return cls(**{**settings, "columns": Columns(**settings["columns"]), "folded": True})

    def stock_config(self) -> dict[str, Any]:
        name = str(self.columns.label)
        return {"problem_type": "regression", "id2label": {"0": name}, "label2id": {name: 0}}


PLUGIN = Regression


def _numbers(table: Table, column: str) -> list[float]:
    values, problems = [], []
    for line, cell in zip(table.lines, table.labels(column), strict=True):
        try:
            values.append(float(str(cell)))
        except ValueError:
            values.append(math.nan)
        if not math.isfinite(values[-1]):
            problems.append((line, repr(cell)[:40]))
    raise_for_rows(f"{table.source}: column {column!r} has cells that are no numbers", problems)
    return values


def _last_layer(head: nn.Module) -> nn.Linear:
    """Give the linear layer of a sequence head that gives the number."""
    return [module for module in head.modules() if isinstance(module, nn.Linear) and module.out_features == 1][-1]


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])
