"""Classification by prompts: the text in a pattern, and the class whose word fits the gap best (PET, and for ELECTRA).

Sources: Schick and Schuetze 2021 (arXiv 2001.07676), patterns and verbalizers with a masked-language head; Xia et al.
2022 (arXiv 2205.15223), the same patterns with ELECTRA's replaced-token head. No weight is new: what is trained was
pre-trained, and an un-tuned checkpoint answers too (zero-shot, `--epochs 0`).

Score of a word w of n tokens in one pattern:
    mlm  sum of log p(token i | n masks in the gap), all masks answered at once
    rtd  mean over the word's tokens, put in the gap, of minus the logit of "replaced"
Score of a class: the mean over its words, then the mean over the patterns; probabilities: softmax over the classes;
loss: cross-entropy. For words of one token this is PET's softmax over the logits at the mask. Departures: PET trains
one model per pattern, averages their scores and distils them, here one model is trained on the mean; Xia et al. train
by binary cross-entropy per word.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from thrice.data.classes import class_counts, class_scores, score_of_counts
from thrice.data.encoding import Encoded
from thrice.data.labels import label_names, names_in
from thrice.data.prompts import PAIR, clozes, pattern_problems, tell_apart, words_in_place, words_of
from thrice.data.readers import Columns, Table, guess_columns, raise_for_rows
from thrice.data.tokenizer import Tokenizer
from thrice.errors import ConfigError, DataError, nearest
from thrice.model.packing import PackedBatch, pack
from thrice.model.stock import AnyEncoder
from thrice.tasks.base import Prediction, Task, TaskModel, keep_heads

HEADS = {"rtd": "replaced-token", "mlm": "masked-language"}
"""Method, which is the name of the head it needs, and what that head is called; in the order of `auto`."""
METHODS = ("auto", *HEADS)


@dataclass(frozen=True, kw_only=True)
class Example:
    """One text or pair of texts with its gold class."""

    text: str
    """First or only text."""
    text_pair: str | None = None
    """Second text of a pair."""
    label: int | None = None
    """Index into the task's label names; None where unknown."""


@dataclass(frozen=True)
class Words:
    """Where the words of the classes stand among the N gap tokens of an example; P patterns, W words, L tokens."""

    places: Tensor
    """(P, W, L) int64: which of the N."""
    tokens: Tensor
    """(P, W, L) int64: token ids."""
    real: Tensor
    """(P, W, L) bool: False behind a word's last token."""
    share: Tensor
    """(W, labels) float32: 1 / words of the class where the word is one of them, else 0."""

    def to(self, device: torch.device) -> Words:
        """Give the same on a device."""
        return Words(*(tensor.to(device) for tensor in (self.places, self.tokens, self.real, self.share)))


@dataclass(frozen=True)
class FewShotBatch:
    """Packed clozes, several per example."""

    packed: PackedBatch
    """Every pattern of every example, filled with masks or with each word."""
    gaps: Tensor
    """(B, N) int64: packed indices of the tokens in the gaps of an example."""
    words: Words
    """What stands in the gaps."""
    targets: Tensor
    """(B,) int64 class indices, -100 where unknown."""
    num_examples: int
    """B."""

    def to(self, device: torch.device) -> FewShotBatch:
        """Give the same batch on a device."""
        gaps, targets = self.gaps.to(device), self.targets.to(device)
        return FewShotBatch(self.packed.to(device), gaps, self.words.to(device), targets, self.num_examples)


class FewShotData:
    """Encoded clozes, ready to be batched; every example has the same number of them, one after the other."""

    def __init__(
        self, encoded: Encoded, firsts: np.ndarray, sizes: Sequence[int], words: Words, targets: np.ndarray
    ) -> None:
        self.encoded = encoded
        self.firsts = firsts  # (clozes,): place of the first gap token in its sequence
        self.sizes = sizes  # gap tokens of each cloze of an example
        self.words = words
        self.targets = targets
        self.lengths = encoded.lengths.reshape(len(targets), len(sizes)).sum(axis=1)
        self.num_cut = encoded.num_cut

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Sequence[int] | np.ndarray) -> FewShotBatch:
        """Give these examples as one packed batch, in this order."""
        chosen = np.asarray(indices)
        own = (chosen[:, None] * len(self.sizes) + np.arange(len(self.sizes))).reshape(-1)
        packed = pack(*self.encoded.take(own))
        begins = packed.starts.numpy() + self.firsts[own]
        inside = np.concatenate([np.arange(size) for size in self.sizes])
        gaps = np.repeat(begins.reshape(len(chosen), -1), self.sizes, axis=1) + inside
        targets = torch.from_numpy(self.targets[chosen])
        return FewShotBatch(packed, torch.from_numpy(gaps), self.words, targets, len(chosen))


@dataclass(frozen=True, kw_only=True)
class FewShot(Task):
    """Classes of a text by prompts; see `learn` for the options."""

    name = "fewshot"
    summary = "classes of a text or a pair by prompts: patterns, a verbalizer, and the head the checkpoint came with"
    answers = ("prediction", "probabilities")
    zero_shot = True

    patterns: tuple[str, ...]
    """Texts with {text} or {text_pair}, and {mask}."""
    labels: tuple[str, ...]
    """Class names, sorted."""
    words: tuple[tuple[str, ...], ...]
    """Words of each class."""
    columns: Columns
    """Columns of the text, its pair and the label."""
    method: str = "auto"
    """mlm or rtd; auto is settled by the heads of the checkpoint."""
    max_length: int = 128
    """Tokens of one cloze, special tokens included."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("accuracy", "macro_f1")

    @classmethod
    def learn(  # type: ignore[override]  # every task has options of its own
        cls,
        table: Table,
        *,
        text_column: str | None = None,
        text_pair_column: str | None = None,
        label_column: str | None = None,
        pattern: str | Sequence[str] | None = None,
        verbalizer: Mapping[str, str | Sequence[str]] | str | None = None,
        method: str = "auto",
        max_length: int = 128,
    ) -> FewShot:
        """Give the task of the training rows.

        pattern: a text with {text} (or {text_pair}) and {mask}, such as "{text} It was {mask}."; of several, scores are
        averaged. verbalizer: class -> word or words, or "class=word|word,class=word"; the names of the classes where
        None. It may name classes that no training row has, and with it rows need no labels to be answered.
        method: mlm (masked-language head), rtd (replaced-token head of an ELECTRA discriminator), or auto: rtd where
        the checkpoint carries that head, else mlm.
        Raises ConfigError for an impossible option, DataError for columns that cannot be found or missing labels.
        """
        patterns = tuple([pattern] if isinstance(pattern, str) else pattern or ())
        problems = []
        if method not in METHODS:
            problems.append(f"method is {method!r}; {nearest(method, METHODS)}")
        if not patterns:
            problems.append("pattern is missing: a text with {text} and {mask}, such as '{text} It was {mask}.'")
        if not all(isinstance(text, str) for text in patterns) or len(set(patterns)) < len(patterns):
            raise ConfigError(f"pattern is {pattern!r}; expected a text or a list of different texts")
        given = None if verbalizer is None else words_of(verbalizer, problems)
        columns = guess_columns(
            table,
            text=text_column,
            text_pair=text_pair_column,
            label=label_column,
            need_label=given is None,
        )
        for text in patterns:
            problems += pattern_problems(text, pair=columns.text_pair is not None)
        if columns.text_pair is not None and patterns and not any(PAIR in text for text in patterns):
            problems.append(f"no pattern has {PAIR}, and texts come in pairs; {columns.text_pair!r} would go unread")
        counts: Counter[str] = Counter()
        if columns.label is not None:
            counts.update(names[0] for names in label_names(table, columns.label, multi_label=False))
        chosen = {name: (name,) for name in counts} if given is None else given
        if missing := sorted(set(counts) - set(chosen)):
            problems.append(
                f"the verbalizer has no word for {len(missing)} classes of these rows: {', '.join(missing[:8])}"
            )
        if len(chosen) < 2 and not missing:
            problems.append(f"{len(chosen)} class ({', '.join(chosen)}); a choice needs two")
        owners = Counter(word for words in chosen.values() for word in words)
        if twice := [word for word, n in owners.items() if n > 1]:
            problems.append(f"words that stand for two classes, or twice for one: {', '.join(twice[:8])}")
        if problems:
            raise ConfigError(f"fewshot: {'; '.join(problems)}")
        labels = tuple(sorted(chosen))
        words = tuple(chosen[label] for label in labels)
        return cls(patterns=patterns, labels=labels, words=words, columns=columns, method=method, max_length=max_length)

    def describe(self) -> str:
        columns = self.columns
        texts = repr(columns.text) + (f" and {columns.text_pair!r}" if columns.text_pair else "")
        pairs = list(zip(self.labels, self.words, strict=True))
        shown = ", ".join(f"{label} = {' | '.join(own)}" for label, own in pairs[:10])
        more = ", ..." if len(self.labels) > 10 else ""
        return f"text in column {texts}; {len(self.patterns)} patterns; {len(self.labels)} classes: {shown}{more}"

    def read(self, table: Table, *, gold: bool = True) -> list[Example]:
        columns = self.columns
        if gold and columns.label is None:
            raise DataError(f"{table.source}: no column of labels is known; name it: --label-column")
        wanted = [columns.text, columns.text_pair, columns.label if gold else None]
        missing = [c for c in wanted if c is not None and c not in table.columns]
        if missing:
            raise DataError(f"{table.source}: no column {', '.join(missing)}; it has {', '.join(table.columns)}")
        texts = table.texts(columns.text)
        pairs = table.texts(columns.text_pair) if columns.text_pair else [None] * len(texts)
        labels: list[int | None] = [None] * len(texts)
        if gold:
            index = {name: i for i, name in enumerate(self.labels)}
            names = [own[0] for own in label_names(table, str(columns.label), multi_label=False)]
            unseen = [(line, repr(name)) for line, name in zip(table.lines, names, strict=True) if name not in index]
            raise_for_rows(f"{table.source}: labels for which the verbalizer has no word", unseen)
            labels = [index[name] for name in names]
        return [
            Example(text=text, text_pair=pair, label=label)
            for text, pair, label in zip(texts, pairs, labels, strict=True)
        ]

    def from_texts(self, texts: Sequence[Any]) -> list[Example]:
        pairs = self.columns.text_pair is not None
        wanted = tuple if pairs else str
        wrong = [i for i, text in enumerate(texts) if not isinstance(text, wanted) or (pairs and len(text) != 2)]
        if wrong:
            kind = "pairs (text, text)" if pairs else "strings"
            raise DataError(f"these prompts take {kind}; entries {wrong[:5]} are none, the first {texts[wrong[0]]!r}")
        return [Example(text=t[0], text_pair=t[1]) if pairs else Example(text=t) for t in texts]

    def split_key(self, row: dict[str, Any]) -> tuple[str, str]:
        text, pair, label = self.columns.text, self.columns.text_pair, self.columns.label
        name = names_in(row[label], multi_label=False)[0] if label else ""
        return row[text] + (f"\t{row[pair]}" if pair else ""), name

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer) -> FewShotData:
        """Give the clozes of every example; raises ConfigError where the vocabulary lacks a word of the verbalizer."""
        if self.method not in HEADS:
            raise ConfigError("the method is still open; a TaskModel settles it: encode with model.task")
        words, fillings = self._fillings(tokenizer)
        texts = [example.text for example in examples]
        pairs = [example.text_pair or "" for example in examples] if self.columns.text_pair else None
        rows: list[list[tuple[list[int], int]]] = [[] for _ in examples]
        cut = [False] * len(examples)
        for pattern, own in zip(self.patterns, fillings, strict=True):
            gap = max(map(len, own))  # the same room for all, so that every word is judged in the same text
            filled = clozes(tokenizer, pattern, texts, pairs, max_length=self.max_length, gap=gap)
            for i, cloze in enumerate(filled):
                rows[i] += [([*cloze.before, *filling, *cloze.after], len(cloze.before)) for filling in own]
                cut[i] |= cloze.cut
        sequences = [pair for row in rows for pair in row]
        lengths = np.array([len(ids) for ids, _ in sequences], dtype=np.int64)
        flat = np.array([token for ids, _ in sequences for token in ids], dtype=np.int32)
        encoded = Encoded(
            ids=flat,
            type_ids=np.zeros(len(flat), dtype=np.uint8),
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            owner=np.repeat(np.arange(len(examples)), sum(map(len, fillings))),
            num_cut=sum(cut),
        )
        firsts = np.array([first for _, first in sequences], dtype=np.int64)
        sizes = [len(filling) for own in fillings for filling in own]
        targets = np.array([-100 if e.label is None else e.label for e in examples], dtype=np.int64)
        return FewShotData(encoded, firsts, sizes, words, targets)

    def _fillings(self, tokenizer: Tokenizer) -> tuple[Words, list[list[list[int]]]]:
        """Give where the words stand, and what each pattern's gap is filled with, in the order of the clozes."""
        flat = [(label, word) for label, own in enumerate(self.words) for word in own]
        ids = [words_in_place(tokenizer, pattern, [word for _, word in flat]) for pattern in self.patterns]
        tell_apart([(self.labels[label], word) for label, word in flat], ids[0])
        shape = (len(ids), len(flat), max(len(word) for own in ids for word in own))
        places, tokens, real = (torch.zeros(shape, dtype=kind) for kind in (torch.long, torch.long, torch.bool))
        fillings: list[list[list[int]]] = []
        begin = 0
        for p, own in enumerate(ids):
            if self.method == "mlm":
                counts = sorted({len(word) for word in own})
                filled = [[int(tokenizer.mask_token_id or 0)] * count for count in counts]
                which = [counts.index(len(word)) for word in own]
            else:
                filled, which = own, list(range(len(own)))
            starts = begin + np.cumsum([0, *map(len, filled)])
            for w, word in enumerate(own):
                places[p, w, : len(word)] = torch.arange(len(word)) + int(starts[which[w]])
                tokens[p, w, : len(word)] = torch.tensor(word)
                real[p, w, : len(word)] = True
            begin = int(starts[-1])
            fillings.append(filled)
        share = torch.zeros(len(flat), len(self.labels))
        for w, (label, _) in enumerate(flat):
            share[w, label] = 1 / len(self.words[label])
        return Words(places, tokens, real, share), fillings

    def settled(self, encoder: AnyEncoder) -> FewShot:
        if self.method != "auto":
            return self
        return dataclasses.replace(self, method=next((m for m in HEADS if m in encoder.heads), "auto"))

    def validate(self, encoder: AnyEncoder) -> None:
        config = encoder.config
        carried = [method for method in HEADS if method in encoder.heads]
        if self.method not in carried:
            wanted = " or a ".join(name for m, name in HEADS.items() if self.method in ("auto", m))
            works = f"method {carried[0]} works with it, or auto" if carried else (
                "prompts work with a checkpoint saved with one, such as BertForMaskedLM, RobertaForMaskedLM, "
                "AlbertForMaskedLM (zoo:albert-nano-zh), ElectraForMaskedLM or ElectraForPreTraining; "
                "--task classification works with this one"
            )  # fmt: skip
            raise ConfigError(
                f"fewshot wants a {wanted} head, this {config.family} checkpoint carries: "
                f"{', '.join(encoder.heads) or 'none'} - {works}"
            )
        if self.max_length > config.max_length:
            raise ConfigError(
                f"--max-length {self.max_length} is more than the {config.max_length} positions of this checkpoint"
            )

    def build_head(self, encoder: AnyEncoder, generator: torch.Generator) -> None:
        keep_heads(encoder, (self.method,))

    def scores(self, model: TaskModel, batch: FewShotBatch) -> Tensor:
        """Give (B, labels), the score of every class; see the module for the formulas."""
        encoder, words = model.encoder, batch.words
        rows = encoder(batch.packed)[batch.gaps.flatten()]
        if self.method == "mlm":
            logits = encoder.predict_tokens(rows).log_softmax(-1).view(*batch.gaps.shape, -1)  # type: ignore[operator]
            values = logits[:, words.places, words.tokens]
        else:
            values = -encoder.heads["rtd"](rows).view(batch.gaps.shape)[:, words.places]
        summed = values.masked_fill(~words.real, 0).sum(-1)  # (B, P, W)
        if self.method == "rtd":
            summed = summed / words.real.sum(-1)
        return (summed @ words.share.to(summed.dtype)).mean(1)

    def loss(self, model: TaskModel, batch: FewShotBatch) -> Tensor:
        return F.cross_entropy(self.scores(model, batch), batch.targets)

    def predict(self, model: TaskModel, batch: FewShotBatch) -> list[Prediction]:
        rows = self.scores(model, batch).float().softmax(-1).tolist()
        return [
            {"prediction": self.labels[row.index(max(row))], "probabilities": dict(zip(self.labels, row, strict=True))}
            for row in rows
        ]

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Any]:
        """Give accuracy, macro F1, the confusion matrix and "collapsed"; see `class_scores`."""
        return class_scores(self.labels, *self._indices(predictions, examples))

    def counts(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> np.ndarray:
        """Give (n, 3 * labels + 2), see `class_counts`."""
        gold, said = (np.eye(len(self.labels), dtype=np.int64)[own] for own in self._indices(predictions, examples))
        return class_counts(gold, said)

    def from_counts(self, metric: str, sums: np.ndarray) -> np.ndarray:
        return score_of_counts(metric, sums)

    def shown(self, example: Example) -> dict[str, str]:
        texts = [example.text] if example.text_pair is None else [example.text, example.text_pair]
        return {"text": " / ".join(texts), "gold": "" if example.label is None else self.labels[example.label]}

    def _indices(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> tuple[list[int], list[int]]:
        """Give gold and predicted classes."""
        index = {name: i for i, name in enumerate(self.labels)}
        gold = [-1 if example.label is None else example.label for example in examples]
        return gold, [index[prediction["prediction"]] for prediction in predictions]

    def settings(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restore(cls, settings: dict[str, Any]) -> FewShot:
        changes = {
            "patterns": tuple(settings["patterns"]),
            "labels": tuple(settings["labels"]),
            "words": tuple(map(tuple, settings["words"])),
            "columns": Columns(**settings["columns"]),
        }
        return cls(**(settings | changes))

    def stock_config(self) -> dict[str, Any]:
        return {}


PLUGIN = FewShot
