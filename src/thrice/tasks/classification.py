"""Text classification: any number of classes, one or several per text, texts and pairs of any length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from thrice.data.classes import class_counts, class_scores, score_of_counts
from thrice.data.encoding import Encoded, encode_texts
from thrice.data.labels import class_weights, label_names, names_in
from thrice.data.readers import Columns, Table, guess_columns
from thrice.data.scores import collapsed
from thrice.data.tokenizer import Tokenizer
from thrice.errors import ConfigError, DataError, nearest
from thrice.model.packing import PackedBatch, pack, parts_of
from thrice.model.stock import AnyEncoder
from thrice.tasks.base import Prediction, Task, TaskModel, keep_heads

HEADS = ("stock", "first-token")
LONG_TEXTS = ("head", "head+tail", "chunks")
MOST_TOKENS = 16_384
"""Tokens of texts in chunks computed at once; 32 texts of IFLYTEK, in 107 chunks at most, have up to 11,600."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One text or pair of texts with its gold classes."""

    text: str
    """First or only text."""
    text_pair: str | None = None
    """Second text of a pair."""
    labels: tuple[int, ...] = ()
    """Indices into the task's label names; one entry unless multi-label; empty where unknown."""


@dataclass(frozen=True)
class ClassificationBatch:
    """Packed sequences with the example each belongs to."""

    packed: PackedBatch
    """C sequences; C = B unless texts are cut into chunks."""
    owner: Tensor
    """(C,) int64: the example each sequence belongs to, in the caller's order."""
    targets: Tensor
    """(B,) int64 class indices, or (B, labels) float32 with several labels per text."""
    num_examples: int
    """B."""

    def to(self, device: torch.device) -> ClassificationBatch:
        """Give the same batch on a device."""
        packed, owner, targets = self.packed.to(device), self.owner.to(device), self.targets.to(device)
        return ClassificationBatch(packed, owner, targets, self.num_examples)


class ClassificationData:
    """Encoded texts and their targets, ready to be batched."""

    def __init__(self, encoded: Encoded, targets: np.ndarray, *, whole: bool = False) -> None:
        self.encoded = encoded
        self.targets = targets
        # Sequences of one text are neighbours: text i owns sequences borders[i] to borders[i + 1].
        self.borders = np.searchsorted(encoded.owner, np.arange(len(targets) + 1))
        self.lengths = np.diff(encoded.offsets[self.borders])
        self.num_cut = 0 if whole else encoded.num_cut

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Sequence[int] | np.ndarray) -> ClassificationBatch:
        """Give these examples as one packed batch, in this order."""
        chosen = [range(self.borders[i], self.borders[i + 1]) for i in indices]
        sequences = [s for own in chosen for s in own]
        packed = pack(*self.encoded.take(sequences))
        owner = np.repeat(np.arange(len(chosen)), [len(own) for own in chosen])
        targets = torch.from_numpy(self.targets[np.asarray(indices)])
        return ClassificationBatch(packed, torch.from_numpy(owner), targets, len(chosen))


@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """Classes of a text; see `learn` for the options."""

    name = "classification"
    summary = "classes of a text or a pair of texts: one of many, or several at once (--multi-label)"

    answers = ("prediction", "probabilities")

    labels: tuple[str, ...]
    """Class names, sorted; index = row of the classifier."""
    columns: Columns
    """Columns of the text, its pair and the label."""
    head: str = "stock"
    """stock: the family's sequence classifier; first-token: one linear layer on the first token, as in the essays."""
    max_length: int = 128
    """Tokens of one sequence, special tokens included."""
    long_texts: str = "head"
    """Longer texts: head (keep the beginning), head+tail, or chunks (mean logit over windows of the whole text)."""
    multi_label: bool = False
    """Whether a text may have several classes or none."""
    class_weights: tuple[float, ...] | None = None
    """Weight of each class in the loss."""
    positive_class: str | None = None
    """Of two classes the one that "f1" is about; the last of them, "1" of "0" and "1", where None."""

    @property
    def metrics(self) -> tuple[str, ...]:
        if self.multi_label:
            return ("micro_f1", "macro_f1", "accuracy")
        return ("accuracy", "macro_f1", "matthews", *(["f1"] if len(self.labels) == 2 else []))

    @property
    def positive(self) -> int:
        """Of two classes the one that "f1" is about."""
        return len(self.labels) - 1 if self.positive_class is None else self.labels.index(self.positive_class)

    @classmethod
    def learn(  # type: ignore[override]  # every task has options of its own
        cls,
        table: Table,
        *,
        text_column: str | None = None,
        text_pair_column: str | None = None,
        label_column: str | None = None,
        head: str = "stock",
        max_length: int = 128,
        long_texts: str = "head",
        multi_label: bool = False,
        class_weight: str | None = None,
        positive_class: str | None = None,
    ) -> Classification:
        """Give the task of the training rows.

        text_column, text_pair_column, label_column: names, guessed where obvious. class_weight: "balanced" (n / (k *
        count), as scikit-learn has it) or "name=weight,name=weight", 1 for classes not named. positive_class: of two
        classes the one that the metric f1 is about, the last one unless given.
        Raises ConfigError for an impossible option, DataError for columns that cannot be found, missing labels or
        fewer than two classes.
        """
        problems = []
        if head not in HEADS:
            problems.append(f"--head is {head!r}; {nearest(head, HEADS)}")
        if long_texts not in LONG_TEXTS:
            problems.append(f"--long-texts is {long_texts!r}; {nearest(long_texts, LONG_TEXTS)}")
        if max_length < 3:
            problems.append(f"--max-length is {max_length}, it must be at least 3 tokens")
        if problems:
            raise ConfigError("; ".join(problems))
        columns = guess_columns(table, text=text_column, text_pair=text_pair_column, label=label_column)
        if columns.text_pair is not None and long_texts != "head":
            raise ConfigError(f"--long-texts {long_texts} is for single texts; pairs are cut longest first")
        assert columns.label is not None
        cells = label_names(table, columns.label, multi_label=multi_label)
        counts = Counter(name for names in cells for name in names)
        if not counts:
            raise DataError(f"{table.source}: column {columns.label!r} holds no label at all")
        if len(counts) < 2 and not multi_label:
            raise DataError(
                f"{table.source}: column {columns.label!r} holds {len(counts)} class ({', '.join(counts)}), a "
                "classifier needs two - is it the right column? name it with --label-column"
            )
        labels = tuple(sorted(counts))
        if positive_class is not None and (multi_label or len(labels) != 2):
            raise ConfigError(
                f"positive_class {positive_class!r} is for two classes, one per text; here are {len(labels)}"
            )
        if positive_class is not None and positive_class not in labels:
            raise ConfigError(f"positive_class {positive_class!r} is no class; {nearest(positive_class, labels)}")
        return cls(
            labels=labels,
            columns=columns,
            head=head,
            max_length=max_length,
            long_texts=long_texts,
            multi_label=multi_label,
            class_weights=class_weights(class_weight, labels, counts),
            positive_class=positive_class,
        )

    def describe(self) -> str:
        columns = self.columns
        texts = repr(columns.text) + (f" and {columns.text_pair!r}" if columns.text_pair else "")
        shown = ", ".join(map(repr, self.labels[:10])) + (", ..." if len(self.labels) > 10 else "")
        return f"text in column {texts}, label in {columns.label!r}; {len(self.labels)} classes: {shown}"

    def read(self, table: Table, *, gold: bool = True) -> list[Example]:
        columns = self.columns
        wanted = [columns.text, columns.text_pair, columns.label if gold else None]
        missing = [c for c in wanted if c is not None and c not in table.columns]
        if missing:
            raise DataError(f"{table.source}: no column {', '.join(missing)}; it has {', '.join(table.columns)}")
        index = {name: i for i, name in enumerate(self.labels)}
        unseen: Counter[str] = Counter()
        texts = table.texts(columns.text)
        pairs = table.texts(columns.text_pair) if columns.text_pair else [None] * len(texts)
        cells: list[tuple[str, ...]] = [()] * len(texts)
        if gold and columns.label:
            cells = label_names(table, columns.label, multi_label=self.multi_label)
        examples = []
        for text, pair, names in zip(texts, pairs, cells, strict=True):
            unseen.update(name for name in names if name not in index)
            labels = tuple(index[name] for name in names if name in index)
            examples.append(Example(text=text, text_pair=pair, labels=labels))
        if unseen:
            shown = ", ".join(f"{name!r} ({n} rows)" for name, n in unseen.most_common(5))
            raise DataError(
                f"{table.source}: {len(unseen)} labels never occur in the training rows: {shown}; training has "
                f"{len(self.labels)}: {', '.join(self.labels[:10])}"
            )
        return examples

    def from_texts(self, texts: Sequence[Any]) -> list[Example]:
        pairs = self.columns.text_pair is not None
        wanted = tuple if pairs else str
        wrong = [i for i, text in enumerate(texts) if not isinstance(text, wanted) or (pairs and len(text) != 2)]
        if wrong:
            kind = "pairs (text, text)" if pairs else "strings"
            raise DataError(
                f"this classifier answers {kind}; entries {wrong[:5]} are none, the first {texts[wrong[0]]!r}"
            )
        if pairs:
            return [Example(text=first, text_pair=second) for first, second in texts]
        return [Example(text=text) for text in texts]

    def split_key(self, row: dict[str, Any]) -> tuple[str, str | list[str]]:
        text, pair, label = self.columns.text, self.columns.text_pair, self.columns.label
        names = names_in(row[label], multi_label=self.multi_label) if label else ("",)
        return row[text] + (f"\t{row[pair]}" if pair else ""), list(names) if self.multi_label else names[0]

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer) -> ClassificationData:
        pairs = [e.text_pair or "" for e in examples] if self.columns.text_pair else None
        encoded = encode_texts(
            tokenizer,
            [e.text for e in examples],
            pairs,
            max_length=self.max_length,
            truncation=self.long_texts,
            # Texts to be answered are often private and seen once; only labelled ones are kept in the cache.
            cache=any(e.labels for e in examples),
        )
        if self.multi_label:
            targets = np.zeros((len(examples), len(self.labels)), dtype=np.float32)
            for row, example in zip(targets, examples, strict=True):
                row[list(example.labels)] = 1
        else:
            targets = np.array([e.labels[0] if e.labels else -100 for e in examples], dtype=np.int64)
        return ClassificationData(encoded, targets, whole=self.long_texts == "chunks")

    def validate(self, encoder: AnyEncoder) -> None:
        positions = encoder.config.max_length
        if self.max_length > positions:
            raise ConfigError(
                f"--max-length {self.max_length} is more than the {positions} positions of this checkpoint"
            )

    def build_head(self, encoder: AnyEncoder, generator: torch.Generator) -> None:
        pooler = encoder.heads["pooler"] if "pooler" in encoder.heads else None  # noqa: SIM401 - ModuleDict has no get
        keep_heads(encoder, ())
        if self.head == "first-token":
            # The essays put nothing between the first token and the softmax.
            encoder.config = encoder.config.replace(classifier_dropout_prob=0.0)
            encoder.add_head("token", num_labels=len(self.labels), generator=generator)
            return
        head = encoder.add_head("sequence", num_labels=len(self.labels), generator=generator)
        if pooler is not None and encoder.config.family in ("albert", "bert"):
            head.dense.load_state_dict(pooler.dense.state_dict())  # type: ignore[union-attr]

    def logits(self, model: TaskModel, batch: ClassificationBatch) -> Tensor:
        """Give (B, labels), averaged over the chunks of an example."""
        packed = batch.packed
        if len(packed.lengths) == batch.num_examples:
            return self._of_sequences(model.encoder, packed)
        if packed.num_tokens <= MOST_TOKENS:
            logits = self._of_sequences(model.encoder, packed)
        else:
            # Of a batch of books one part is held at a time, and computed a second time on the way back.
            parts, ranks = parts_of(packed, MOST_TOKENS)
            run: Any = partial(checkpoint, use_reentrant=False) if torch.is_grad_enabled() else _call
            logits = torch.cat([run(self._of_sequences, model.encoder, part) for part in parts])[ranks]
        summed = logits.new_zeros(batch.num_examples, logits.shape[1]).index_add(0, batch.owner, logits)
        return summed / torch.bincount(batch.owner, minlength=batch.num_examples).unsqueeze(1)

    def _of_sequences(self, encoder: AnyEncoder, packed: PackedBatch) -> Tensor:
        if self.head == "stock":
            return encoder.classify(packed)
        logits: Tensor = encoder.heads["token"](encoder(packed)[packed.starts])
        return logits

    def loss(self, model: TaskModel, batch: ClassificationBatch) -> Tensor:
        logits = self.logits(model, batch)
        weight = None if self.class_weights is None else logits.new_tensor(self.class_weights)
        if self.multi_label:
            return F.binary_cross_entropy_with_logits(logits, batch.targets, pos_weight=weight)
        return F.cross_entropy(logits, batch.targets, weight=weight)

    def loss_weight(self, batch: ClassificationBatch) -> float:
        """Give the examples or, with class weights, the sum of the weights of their classes, by which torch divides.

        With several labels per text a class weight only weighs right answers up, and the mean stays one over examples.
        """
        if self.class_weights is None or self.multi_label:
            return float(batch.num_examples)
        return float(torch.tensor(self.class_weights)[batch.targets.cpu()].sum())

    def predict(self, model: TaskModel, batch: ClassificationBatch) -> list[Prediction]:
        logits = self.logits(model, batch).float()
        rows = (logits.sigmoid() if self.multi_label else logits.softmax(-1)).tolist()
        answers = []
        for row in rows:
            probabilities = dict(zip(self.labels, row, strict=True))
            if self.multi_label:
                answers.append(
                    {"prediction": [n for n, p in probabilities.items() if p > 0.5], "probabilities": probabilities}
                )
            else:
                answers.append({"prediction": self.labels[row.index(max(row))], "probabilities": probabilities})
        return answers

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Any]:
        """Give accuracy, macro F1 over all known classes, Matthews' correlation, of two classes F1 of the positive one,
        and the confusion matrix (rows gold, columns predicted).

        With several labels per text: micro F1, macro F1 and accuracy of the whole set; no confusion matrix.
        "collapsed" where at least 99% of the answers are one answer and no more is right than that answer gives.
        """
        if self.multi_label:
            from sklearn.metrics import f1_score

            gold, said = self._sets(predictions, examples)
            return {
                "micro_f1": float(f1_score(gold, said, average="micro", zero_division=0.0)),
                "macro_f1": float(f1_score(gold, said, average="macro", zero_division=0.0)),
                "accuracy": float((gold == said).all(axis=1).mean()),
                "collapsed": collapsed([tuple(row) for row in said], [tuple(row) for row in gold]),
            }
        index = {name: i for i, name in enumerate(self.labels)}
        answers = [index[prediction["prediction"]] for prediction in predictions]
        positive = self.positive if len(self.labels) == 2 else None
        return class_scores(self.labels, [example.labels[0] for example in examples], answers, positive=positive)

    def counts(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> np.ndarray:
        """Give (n, 3 * labels + 2): per class rightly said, said, and gold; then whether all is right, and 1."""
        return class_counts(*self._sets(predictions, examples))

    def from_counts(self, metric: str, sums: np.ndarray) -> np.ndarray:
        if metric not in self.metrics:
            raise ConfigError(f"metric is {metric!r}; {nearest(metric, self.metrics)}")
        return score_of_counts(metric, sums, positive=self.positive if len(self.labels) == 2 else None)

    def shown(self, example: Example) -> dict[str, str]:
        texts = [example.text] if example.text_pair is None else [example.text, example.text_pair]
        return {"text": " / ".join(texts), "gold": ", ".join(self.labels[i] for i in example.labels)}

    def _sets(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> tuple[np.ndarray, np.ndarray]:
        """Give gold and predicted classes, (n, labels) of 0 and 1 each."""
        index = {name: i for i, name in enumerate(self.labels)}
        gold = np.zeros((len(examples), len(self.labels)), dtype=np.int64)
        said = np.zeros_like(gold)
        for i, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
            gold[i, list(example.labels)] = 1
            names = prediction["prediction"] if self.multi_label else [prediction["prediction"]]
            said[i, [index[name] for name in names]] = 1
        return gold, said

    def settings(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restore(cls, settings: dict[str, Any]) -> Classification:
        weights = settings["class_weights"]
        changes = {
            "labels": tuple(settings["labels"]),
            "columns": Columns(**settings["columns"]),
            "class_weights": None if weights is None else tuple(weights),
        }
        return cls(**(settings | changes))

    def stock_config(self) -> dict[str, Any]:
        return {
            "id2label": {str(i): name for i, name in enumerate(self.labels)},
            "label2id": {name: i for i, name in enumerate(self.labels)},
            "problem_type": "multi_label_classification" if self.multi_label else "single_label_classification",
        }


PLUGIN = Classification


def _call(function: Callable[..., Tensor], *given: Any) -> Tensor:
    return function(*given)
