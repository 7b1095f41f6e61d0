"""Tagging: the entities of a text, learned as BIO tags of its tokens or words.

A sentence is a list of tokens with a tag each, or a text with the characters of its entities. Every token, and in a
text every word, is tagged at its first piece; the others are ignored.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from thrice.data.columns import guess_columns
from thrice.data.entities import Span, entities_in, entity_scores, spans_of, tags_of, words_in
from thrice.data.readers import Table
from thrice.data.scores import ratio
from thrice.data.tagged import (
    TaggedText,
    between_of,
    entities_of,
    of_text,
    of_tokens,
    pieces_of,
    read_texts,
    read_tokens,
    said_of_stray,
    spread,
    tagged_columns,
    tags_in,
    word_tags,
)
from thrice.data.tokenizer import Tokenizer
from thrice.data.words import Laid, lay_out
from thrice.errors import ConfigError, DataError, nearest
from thrice.model.packing import PackedBatch, pack
from thrice.model.stock import AnyEncoder
from thrice.tasks.base import Prediction, Task, TaskModel, keep_heads

LOG = logging.getLogger(__name__)

LONG_TEXTS = ("windows", "cut")


@dataclass(frozen=True)
class TaggingBatch:
    """Packed sequences, and the row of every tagged word in them."""

    packed: PackedBatch
    """Windows of all texts."""
    rows: Tensor
    """(W,) int64: packed index of the first piece of each tagged word."""
    targets: Tensor
    """(W,) int64: its tag."""
    laid: tuple[Laid, ...]
    """Where the words of each example are."""
    examples: tuple[TaggedText, ...]
    """The examples, in the caller's order."""
    num_examples: int
    """B."""

    def to(self, device: torch.device) -> TaggingBatch:
        """Give the same batch on a device."""
        packed, rows, targets = self.packed.to(device), self.rows.to(device), self.targets.to(device)
        return TaggingBatch(packed, rows, targets, self.laid, self.examples, self.num_examples)


class TaggingData:
    """Encoded texts and the tags of their words, ready to be batched."""

    def __init__(self, examples: Sequence[TaggedText], laid: list[Laid], targets: list[np.ndarray]) -> None:
        self.examples = examples
        self.laid = laid
        self.targets = targets
        self.lengths = np.array([sum(len(ids) for ids, _ in text.sequences) for text in laid], dtype=np.int64)
        self.num_cut = sum(text.reach < len(example.words) for text, example in zip(laid, examples, strict=True))

    def __len__(self) -> int:
        return len(self.laid)

    def batch(self, indices: Sequence[int] | np.ndarray) -> TaggingBatch:
        """Give these examples as one packed batch, in this order."""
        chosen = tuple(self.laid[i] for i in indices)
        packed = pack(*zip(*(sequence for text in chosen for sequence in text.sequences), strict=True))
        before = itertools.accumulate((len(text.sequences) for text in chosen), initial=0)
        window = np.concatenate([text.window + first for text, first in zip(chosen, before, strict=False)])
        place = np.concatenate([text.place for text in chosen])
        rows = packed.starts[torch.from_numpy(window)] + torch.from_numpy(place)
        targets = torch.from_numpy(np.concatenate([self.targets[i] for i in indices]))
        return TaggingBatch(packed, rows, targets, chosen, tuple(self.examples[i] for i in indices), len(chosen))


@dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    """Entities of a text; see `learn` for the options."""

    name = "tagging"
    summary = "entities of a text (NER): BIO tags of tokens or characters, or spans of a text; F1 of whole entities"

    types: tuple[str, ...]
    """Types of entities, sorted."""
    tokens_column: str | None
    """Column of the tokens; None where texts are given."""
    text_column: str | None
    """Column of the text; None where tokens are given."""
    label_column: str
    """Column of the tags, or of the entities of a text."""
    between: str = " "
    """What stands between tokens in a text made of them."""
    max_length: int = 128
    """Tokens of one sequence, special tokens included."""
    long_texts: str = "windows"
    """Longer texts: windows (overlapping, the whole text is tagged) or cut (nothing is found in the rest)."""
    stride: int = 32
    """Pieces that neighbouring windows share at most."""
    tag_names: tuple[str, ...] | None = None
    """Tags that numbers in the data stand for."""
    learned: str = ""
    """What a reader should know of the training rows."""

    @property
    def answers(self) -> tuple[str, ...]:  # type: ignore[override]  # texts have no tokens to tag
        return ("prediction", "tags") if self.tokens_column else ("prediction",)

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("f1", "precision", "recall")

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags; index = row of the classifier."""
        return ("O", *(f"{prefix}-{kind}" for kind in self.types for prefix in "BI"))

    @classmethod
    def learn(  # type: ignore[override]  # every task has options of its own
        cls,
        table: Table,
        *,
        tokens_column: str | None = None,
        text_column: str | None = None,
        label_column: str | None = None,
        between: str | None = None,
        max_length: int = 128,
        long_texts: str = "windows",
        stride: int | None = None,
        tag_names: str | Sequence[str] | None = None,
    ) -> Tagging:
        """Give the task of the training rows.

        tokens_column, text_column: one of them, guessed where obvious. label_column: the tags of tokens, or the
        entities of a text, [{"start", "end", "label"}, ...] or [[start, end, label], ...] in characters.
        between: what stands between tokens in a text; "" where tokens are characters, else a space.
        stride: pieces that windows share, a quarter of max_length unless given. tag_names: "O,B-PER,I-PER", for tags
        that are numbers.
        Raises ConfigError for an impossible option, DataError for rows that are no tagged texts.
        """
        stride = max_length // 4 if stride is None else stride
        problems = []
        if long_texts not in LONG_TEXTS:
            problems.append(f"--long-texts is {long_texts!r}; {nearest(long_texts, LONG_TEXTS)}")
        if max_length < 3:
            problems.append(f"--max-length is {max_length}, it must be at least 3 tokens")
        elif not 0 <= stride <= (max_length - 2) // 2:
            problems.append(f"stride is {stride}; expected 0 to half of --max-length, {(max_length - 2) // 2}")
        if tokens_column is not None and text_column is not None:
            problems.append("tokens_column and --text-column are both given; a row has either tokens or a text")
        if problems:
            raise ConfigError("; ".join(problems))
        tokens, text, label = tagged_columns(table, tokens_column, text_column, label_column)
        if isinstance(tag_names, str):
            tag_names = [name.strip() for name in tag_names.split(",")]
        task = cls(
            types=(),
            tokens_column=tokens,
            text_column=text,
            label_column=label,
            between=between_of(table, tokens) if between is None else between,
            max_length=max_length,
            long_texts=long_texts,
            stride=stride,
            tag_names=None if tag_names is None else tuple(tag_names),
        )
        examples, _ = task._examples(table, gold=True)
        types = tuple(sorted({kind for example in examples for _, _, kind in example.entities}))
        if not types:
            raise DataError(f"{table.source}: column {label!r} holds no entity at all - is it the right column?")
        number = sum(len(example.entities) for example in examples)
        return replace(task, types=types, learned=f"{number} entities in {len(examples)} texts")

    def describe(self) -> str:
        where = f"tokens in column {self.tokens_column!r}" if self.tokens_column else f"text in {self.text_column!r}"
        shown = ", ".join(self.types[:10]) + (", ..." if len(self.types) > 10 else "")
        return f"{where}, entities in {self.label_column!r}; {len(self.types)} types: {shown}; {self.learned}"

    def read(self, table: Table, *, gold: bool = True) -> list[TaggedText]:
        examples, stray = self._examples(table, gold=gold)
        unseen = sorted({kind for e in examples for _, _, kind in e.entities} - set(self.types))
        if unseen:
            raise DataError(
                f"{table.source}: types that never occur in the training rows: {', '.join(unseen[:5])}; training has "
                f"{', '.join(self.types[:10])}"
            )
        if stray:
            LOG.warning("%s: %s", table.source, said_of_stray(stray))
        return examples

    def _examples(self, table: Table, *, gold: bool) -> tuple[list[TaggedText], list[tuple[int, str]]]:
        """Give one example per row, and (line, tag) of each I- tag that begins an entity."""
        tokens, text, label = self.tokens_column, self.text_column, self.label_column if gold else None
        if tokens is not None and tokens not in table.columns and not gold:  # texts can be tagged too
            tokens, text = None, guess_columns(table, need_label=False).text
        missing = [c for c in (tokens or text, label) if c is not None and c not in table.columns]
        if missing:
            raise DataError(f"{table.source}: no column {', '.join(missing)}; it has {', '.join(table.columns)}")
        if tokens is None:
            return read_texts(table, text=str(text), label=label), []
        return read_tokens(table, tokens=tokens, label=label, between=self.between, tag_names=self.tag_names)

    def from_texts(self, texts: Sequence[Any]) -> list[TaggedText]:
        examples, problems = [], []
        for i, text in enumerate(texts):
            if isinstance(text, str):
                examples.append(of_text(text))
            elif isinstance(text, list | tuple) and all(isinstance(token, str) and token for token in text):
                examples.append(of_tokens(text, between=self.between))
            else:
                problems.append(i)
        if problems:
            raise DataError(
                f"a tagger answers strings or lists of tokens, none of them empty; entries {problems[:5]} are neither, "
                f"the first {texts[problems[0]]!r}"
            )
        return examples

    def split_key(self, row: dict[str, Any]) -> tuple[str, str | list[str]]:
        if self.tokens_column is None:
            text = row[str(self.text_column)]
            return text, sorted({kind for _, _, kind in entities_in(row.get(self.label_column), text)})
        tokens = words_in(row.get(self.tokens_column))
        tags = tags_in(words_in(row.get(self.label_column)), len(tokens), names=self.tag_names)
        return self.between.join(tokens), sorted({kind for _, _, kind in spans_of(tags)[0]})

    def encode(self, examples: Sequence[TaggedText], tokenizer: Tokenizer) -> TaggingData:
        room = self.max_length - len(tokenizer.single)
        if room < 1:
            raise ConfigError(f"--max-length {self.max_length} leaves no room between {len(tokenizer.single)} tokens")
        index = {tag: i for i, tag in enumerate(self.tags)}
        laid, targets, inexact = [], [], 0
        for example, own in zip(examples, pieces_of(examples, tokenizer, between=self.between), strict=True):
            text = lay_out(own, tokenizer, room=room, stride=self.stride, whole=self.long_texts == "windows")
            tags = word_tags(example)
            taught = {word: tags[word] for word in text.words.tolist()}
            if text.reach == len(tags):
                inexact += len(set(example.entities) - set(entities_of(example, spread(taught, len(tags), len(tags)))))
            laid.append(text)
            targets.append(np.array([index[tag] for tag in taught.values()], dtype=np.int64))
        if inexact:
            LOG.warning("%d entities begin or end inside a word or piece: they count, and cannot be found", inexact)
        return TaggingData(examples, laid, targets)

    def validate(self, encoder: AnyEncoder) -> None:
        positions = encoder.config.max_length
        if self.max_length > positions:
            raise ConfigError(
                f"--max-length {self.max_length} is more than the {positions} positions of this checkpoint"
            )

    def build_head(self, encoder: AnyEncoder, generator: torch.Generator) -> None:
        keep_heads(encoder, ())
        encoder.add_head("token", num_labels=len(self.tags), generator=generator)

    def logits(self, model: TaskModel, batch: TaggingBatch) -> Tensor:
        """Give (W, tags)."""
        hidden = model.encoder(batch.packed)
        logits: Tensor = model.encoder.heads["token"](hidden[batch.rows])
        return logits

    def loss(self, model: TaskModel, batch: TaggingBatch) -> Tensor:
        """Give the mean cross-entropy over the tagged words."""
        return F.cross_entropy(self.logits(model, batch), batch.targets, reduction="sum") / max(1, len(batch.targets))

    def loss_weight(self, batch: TaggingBatch) -> float:
        return float(len(batch.targets))

    def predict(self, model: TaskModel, batch: TaggingBatch) -> list[Prediction]:
        """Give "prediction", entities as {"start", "end", "label", "text", "score"}, and for tokens also "tags".

        score: the mean probability of the tags of the entity's words.
        """
        probabilities, best = self.logits(model, batch).float().softmax(-1).max(-1)
        names, tags = self.tags, best.tolist()
        scores = probabilities.tolist()
        answers: list[Prediction] = []
        start = 0
        for example, text in zip(batch.examples, batch.laid, strict=True):
            words, stop = text.words.tolist(), start + len(text.words)
            said = {word: names[tag] for word, tag in zip(words, tags[start:stop], strict=True)}
            chances = dict(zip(words, scores[start:stop], strict=True))
            answers.append(self._answer(example, spread(said, len(example.words), text.reach), chances))
            start = stop
        return answers

    def _answer(self, example: TaggedText, tags: list[str], chances: dict[int, float]) -> Prediction:
        spans, _ = spans_of(tags)
        entities = []
        for first, end, kind in spans:
            start, stop = example.words[first][0], example.words[end - 1][1]
            own = [chances[word] for word in range(first, end) if word in chances]
            score = sum(own) / len(own)
            entities.append(
                {"start": start, "end": stop, "label": kind, "text": example.text[start:stop], "score": score}
            )
        answer: Prediction = {"prediction": entities}
        if self.tokens_column is not None:
            answer["tags"] = None if example.tokens is None else tags_of(spans, len(tags))
        return answer

    def score(self, predictions: Sequence[Prediction], examples: Sequence[TaggedText]) -> dict[str, Any]:
        """Give micro F1, precision and recall over whole entities, as seqeval counts them, and the same per type.

        An entity is right where its type and both its ends are. "collapsed": none is found where there are some.
        """
        pairs = list(zip(map(said_spans, predictions), (e.entities for e in examples), strict=True))
        missed = not any(said for said, _ in pairs) and any(gold for _, gold in pairs)
        return entity_scores(pairs, self.types) | {"collapsed": missed}

    def counts(self, predictions: Sequence[Prediction], examples: Sequence[TaggedText]) -> np.ndarray:
        """Give (n, 3): entities rightly said, said, and gold."""
        rows = []
        for prediction, example in zip(predictions, examples, strict=True):
            said, gold = set(said_spans(prediction)), set(example.entities)
            rows.append([len(said & gold), len(said), len(gold)])
        return np.array(rows, dtype=np.float64).reshape(-1, 3)

    def from_counts(self, metric: str, sums: np.ndarray) -> np.ndarray:
        right, said, gold = sums[..., 0], sums[..., 1], sums[..., 2]
        parts = {"f1": (2 * right, said + gold), "precision": (right, said), "recall": (right, gold)}
        if metric not in parts:
            raise ConfigError(f"metric is {metric!r}; {nearest(metric, parts)}")
        part, whole = parts[metric]
        return ratio(part, whole)

    def shown(self, example: TaggedText) -> dict[str, str]:
        return {"text": example.text, "gold": "; ".join(f"{k}: {example.text[a:b]}" for a, b, k in example.entities)}

    def settings(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restore(cls, settings: dict[str, Any]) -> Tagging:
        names = settings.get("tag_names")
        changes = {"types": tuple(settings["types"]), "tag_names": None if names is None else tuple(names)}
        return cls(**(settings | changes))

    def stock_config(self) -> dict[str, Any]:
        return {
            "id2label": {str(i): tag for i, tag in enumerate(self.tags)},
            "label2id": {tag: i for i, tag in enumerate(self.tags)},
        }


PLUGIN = Tagging


def said_spans(prediction: Prediction) -> tuple[Span, ...]:
    """Give the entities of a prediction."""
    return tuple((entity["start"], entity["end"], entity["label"]) for entity in prediction["prediction"])
