"""Relation triples of a sentence: who, what, whom; both arguments stand in the text.

Two heads. "pointer" reads spans and links off matrices of token pairs in one pass (model/pointer.py). "conditional" is
the essay's: find subjects, then under each of them its objects (model/conditional.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from thrice.data.characters import Aligner, characters, encode_with_places
from thrice.data.encoding import Encoded
from thrice.data.readers import Columns, Table, guess_columns
from thrice.data.tokenizer import Tokenizer
from thrice.data.triples import Triple, triple_column, triples_in, triples_of
from thrice.errors import ConfigError, DataError, nearest
from thrice.model.conditional import ConditionalHead, draw_subjects
from thrice.model.encoder import Encoder
from thrice.model.packing import PackedBatch, pack
from thrice.model.pointer import (
    GoldPairs,
    Linked,
    PairScores,
    RelationPointers,
    Rows,
    gold_pairs,
    link,
    pointer_loss,
    rows_of,
)
from thrice.model.stock import AnyEncoder
from thrice.tasks.base import Prediction, Task, TaskModel, keep_heads

HEADS = ("pointer", "conditional")
COLLAPSED_SHARE = 0.99


@dataclass(frozen=True, kw_only=True)
class Example:
    """One sentence with its gold triples."""

    text: str
    """The sentence."""
    triples: tuple[Triple, ...] | None = None
    """Gold triples, each once; None where unknown."""


@dataclass(frozen=True)
class TriplesBatch:
    """Packed sentences, where their text tokens stand, and the gold triples as tokens."""

    packed: PackedBatch
    """B sequences."""
    rows: Rows
    """Of the tokens between the special ones."""
    gold: tuple[np.ndarray, ...]
    """Per sentence (N, 5) int64: first and last token of the subject, predicate, first and last token of the object."""
    pairs: tuple[GoldPairs, ...]
    """Gold spans (kind 0 subjects, 1 objects), heads and tails, for the pointers."""
    texts: tuple[str, ...]
    """The sentences."""
    places: tuple[np.ndarray, ...]
    """Per sentence (n, 2): characters of each text token."""

    @property
    def num_examples(self) -> int:
        """B."""
        return len(self.texts)

    def to(self, device: torch.device) -> TriplesBatch:
        """Give the same batch on a device."""
        pairs = tuple(pair.to(device) for pair in self.pairs)
        return TriplesBatch(self.packed.to(device), self.rows.to(device), self.gold, pairs, self.texts, self.places)


class TriplesData:
    """Encoded sentences and their triples, ready to be batched."""

    def __init__(
        self, examples: Sequence[Example], encoded: Encoded, places: list[np.ndarray], task: Triples, *, before: int
    ) -> None:
        self.texts = [example.text for example in examples]
        self.encoded = encoded
        self.places = places
        self.before = before
        self.lengths = encoded.lengths
        self.num_cut = encoded.num_cut
        self.num_lost = 0
        index = {name: i for i, name in enumerate(task.predicates)}
        self.gold = []
        for example, where in zip(examples, places, strict=True):
            aligner = Aligner(example.text, where)
            found = []
            for subject, predicate, object_ in example.triples or ():
                one, other = aligner.find(subject), aligner.find(object_)
                if one is None or other is None or predicate not in index:
                    self.num_lost += 1
                else:
                    found.append((*one, index[predicate], *other))
            self.gold.append(np.array(found, dtype=np.int64).reshape(-1, 5))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of the training sentences."""
        total = self.num_lost + sum(map(len, self.gold))
        lost = f"{self.num_lost} of {total} training triples are not learned from: no run of tokens kept is the subject"
        return (f"{lost} or the object",) if self.num_lost else ()

    def __len__(self) -> int:
        return len(self.texts)

    def batch(self, indices: Sequence[int] | np.ndarray) -> TriplesBatch:
        """Give these examples as one packed batch, in this order."""
        packed = pack(*self.encoded.take(indices))
        chosen = [int(i) for i in indices]
        gold = tuple(self.gold[i] for i in chosen)
        owner = np.repeat(np.arange(len(gold)), [len(triples) for triples in gold])
        s0, s1, predicate, o0, o1 = np.concatenate(gold).T
        zero, one = np.zeros_like(owner), np.ones_like(owner)
        spans = np.concatenate([np.stack([owner, zero, s0, s1], 1), np.stack([owner, one, o0, o1], 1)])
        labels = (spans, np.stack([owner, predicate, s0, o0], 1), np.stack([owner, predicate, s1, o1], 1))
        places = tuple(self.places[i] for i in chosen)
        return TriplesBatch(
            packed,
            rows_of(packed.starts + self.before, [len(where) for where in places]),
            gold,
            tuple(map(gold_pairs, labels)),
            tuple(self.texts[i] for i in chosen),
            places,
        )


@dataclass(frozen=True, kw_only=True)
class Triples(Task):
    """Relation triples of a sentence; see `learn` for the options."""

    name = "triples"
    summary = "relation triples (subject, predicate, object) whose arguments stand in the text"

    predicates: tuple[str, ...]
    """Names of the relations, sorted; index = kind of the pointers."""
    columns: Columns
    """Columns of the text and of the triples."""
    head: str = "pointer"
    """pointer: one pass over pairs of tokens; conditional: subjects, then the objects of each, as in the essays."""
    max_length: int = 128
    """Tokens of one sentence, special tokens included; what is beyond is cut."""
    num_triples: int = 0
    """Triples of the training rows."""
    num_absent: int = 0
    """Of these, triples whose subject or object does not stand in the text."""
    num_slots: int = 0
    """Slots of objects beside "@value", which are not read."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("f1", "precision", "recall")

    @classmethod
    def learn(  # type: ignore[override]  # every task has options of its own
        cls,
        table: Table,
        *,
        text_column: str | None = None,
        label_column: str | None = None,
        head: str = "pointer",
        max_length: int = 128,
    ) -> Triples:
        """Give the task of the training rows.

        label_column: of the triples, see `data.triples` for the shapes. Where it is not given, one called spo_list,
        triples, relations or spo is taken.
        Raises ConfigError for an impossible option, DataError for columns or triples that cannot be read, and where
        there is no triple at all.
        """
        problems = []
        if head not in HEADS:
            problems.append(f"--head is {head!r}; {nearest(head, HEADS)}")
        if max_length < 3:
            problems.append(f"--max-length is {max_length}, it must be at least 3 tokens")
        if problems:
            raise ConfigError("; ".join(problems))
        label = triple_column(table, label_column)
        columns = guess_columns(table, text=text_column, label=label)
        if columns.text_pair is not None:
            raise DataError(
                f"{table.source}: {columns.text!r} and {columns.text_pair!r} look like pairs; name one: --text-column"
            )
        triples, slots = triples_of(table, label)
        predicates = tuple(sorted({predicate for own in triples for _, predicate, _ in own}))
        if not predicates:
            raise DataError(f"{table.source}: column {label!r} holds no triple at all; is it the right column?")
        texts = table.texts(columns.text)
        return cls(
            predicates=predicates,
            columns=columns,
            head=head,
            max_length=max_length,
            num_triples=sum(map(len, triples)),
            num_absent=sum(_is_absent(t, text) for text, own in zip(texts, triples, strict=True) for t in own),
            num_slots=slots,
        )

    def describe(self) -> str:
        shown = ", ".join(map(repr, self.predicates[:10])) + (", ..." if len(self.predicates) > 10 else "")
        more = f"; {self.num_absent} of them not in their text" if self.num_absent else ""
        more += f"; {self.num_slots} slots beside @value are not read" if self.num_slots else ""
        return (
            f"text in column {self.columns.text!r}, {self.num_triples} triples in {self.columns.label!r}{more}; "
            f"{len(self.predicates)} predicates: {shown}"
        )

    def read(self, table: Table, *, gold: bool = True) -> list[Example]:
        columns = self.columns
        wanted = [columns.text, columns.label if gold else None]
        missing = [c for c in wanted if c is not None and c not in table.columns]
        if missing:
            raise DataError(f"{table.source}: no column {', '.join(missing)}; it has {', '.join(table.columns)}")
        texts = table.texts(columns.text)
        if not gold:
            return self.from_texts(texts)
        assert columns.label is not None
        triples, _ = triples_of(table, columns.label)
        return [Example(text=text, triples=own) for text, own in zip(texts, triples, strict=True)]

    def from_texts(self, texts: Sequence[Any]) -> list[Example]:
        wrong = [i for i, text in enumerate(texts) if not isinstance(text, str)]
        if wrong:
            raise DataError(f"triples are of texts; entries {wrong[:5]} are none, the first {texts[wrong[0]]!r}")
        return [Example(text=text) for text in texts]

    def split_key(self, row: dict[str, Any]) -> tuple[str, str | list[str]]:
        triples, _ = triples_in(row[str(self.columns.label)])
        return row[self.columns.text], [predicate for _, predicate, _ in triples]

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer) -> TriplesData:
        texts = [example.text for example in examples]
        encoded, places = encode_with_places(tokenizer, texts, max_length=self.max_length)
        return TriplesData(examples, encoded, places, self, before=len(tokenizer.single.before))

    def validate(self, encoder: AnyEncoder) -> None:
        positions = encoder.config.max_length
        problems = []
        if self.max_length > positions:
            problems.append(f"--max-length {self.max_length} is more than the {positions} positions of this checkpoint")
        if self.head == "conditional" and not isinstance(encoder, Encoder):
            problems.append(
                f"--head conditional reads states before the last LayerNorm, which {encoder.config.family} does not "
                "show through its own transformers class; use --head pointer, or an ALBERT, BERT, ELECTRA or RoBERTa"
            )
        if problems:
            raise ConfigError("; ".join(problems))

    def build_head(self, encoder: AnyEncoder, generator: torch.Generator) -> nn.Module:
        keep_heads(encoder, ())
        config, count = encoder.config, len(self.predicates)
        if self.head == "conditional":
            assert isinstance(encoder, Encoder)
            conditional = ConditionalHead(config.hidden_size, count, eps=encoder.config.layer_norm_eps)
            conditional.start(generator, std=config.initializer_range)
            return conditional
        pointers = RelationPointers(config.hidden_size, count)
        pointers.start(generator)
        return pointers

    def loss(self, model: TaskModel, batch: TriplesBatch) -> Tensor:
        """Give the head's loss: of "pointer" a mean over sentences, of "conditional" over tokens.

        Under the second a sentence gives one subject a step, drawn in training from torch's global generator, which
        saves of a run keep; elsewhere it is the first one.
        """
        if isinstance(model.head, ConditionalHead):
            states, before = model.encoder(batch.packed, before_last_norm=True)
            draws = torch.rand(batch.num_examples, 2) if model.training else torch.zeros(batch.num_examples, 2)
            subjects = draw_subjects(batch.gold, draws.tolist())
            return model.head.loss(states, before, batch.rows, batch.gold, subjects)
        return pointer_loss(self.scores(model, batch), batch.pairs)

    def loss_weight(self, batch: TriplesBatch) -> float:
        return float(sum(batch.rows.lengths) if self.head == "conditional" else batch.num_examples)

    def scores(self, model: TaskModel, batch: TriplesBatch) -> tuple[PairScores, PairScores, PairScores]:
        """Give scores of spans, heads and tails; for the head "pointer"."""
        assert isinstance(model.head, RelationPointers)
        scores: tuple[PairScores, PairScores, PairScores] = model.head(model.encoder(batch.packed), batch.rows)
        return scores

    def predict(self, model: TaskModel, batch: TriplesBatch) -> list[Prediction]:
        if isinstance(model.head, ConditionalHead):
            states, before = model.encoder(batch.packed, before_last_norm=True)
            return self.answers_of(model.head.link(states, before, batch.rows), batch)
        return self.answers_of(link(*self.scores(model, batch)), batch)

    def answers_of(self, linked: Linked, batch: TriplesBatch) -> list[Prediction]:
        """Give the predictions that triples of tokens mean: each once, at its best score, in the order of the text."""
        found: list[dict[Triple, dict[str, Any]]] = [{} for _ in batch.texts]
        for (b, s0, s1, predicate, o0, o1), score in zip(linked.places.tolist(), linked.scores.tolist(), strict=True):
            text, places = batch.texts[b], batch.places[b]
            subject, object_ = characters(places, s0, s1), characters(places, o0, o1)
            triple = (text[slice(*subject)], self.predicates[predicate], text[slice(*object_)])
            if triple in found[b] and found[b][triple]["score"] >= score:
                continue
            parts = dict(zip(("subject", "predicate", "object"), triple, strict=True))
            found[b][triple] = parts | {"subject_span": list(subject), "object_span": list(object_), "score": score}
        order = ("subject_span", "object_span", "predicate")
        return [{"prediction": sorted(own.values(), key=lambda t: [t[key] for key in order])} for own in found]

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Any]:
        """Give micro F1, precision and recall over exact triples, the same per predicate, and what could not be right.

        A triple is right where subject, predicate and object are gold to the letter; several mentions count once.
        "collapsed" where at least 99% of the answers are one answer, mostly no triple at all, and gold is not.
        """
        sums = self.counts(predictions, examples).sum(axis=0)
        said, gold = _said(predictions), [frozenset(example.triples or ()) for example in examples]
        tallies: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(3))
        for mine, true in zip(said, gold, strict=True):
            for column, triples in enumerate((mine & true, mine, true)):
                for _, predicate, _ in triples:
                    tallies[predicate][column] += 1
        unseen = sum(predicate not in self.predicates for true in gold for _, predicate, _ in true)
        absent = sum(_is_absent(t, example.text) for example in examples for t in example.triples or ())
        return {
            **{metric: float(self.from_counts(metric, sums)) for metric in self.metrics},
            "per_predicate": {
                name: {metric: float(self.from_counts(metric, tally)) for metric in self.metrics}
                | {"gold": int(tally[2]), "predicted": int(tally[1])}
                for name, tally in sorted(tallies.items())
            },
            "gold_not_in_text": absent,
            "gold_of_unseen_predicates": unseen,
            "collapsed": _collapsed(said, gold),
        }

    def counts(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> np.ndarray:
        """Give (n, 3): triples rightly said, said, and gold."""
        pairs = zip(_said(predictions), (frozenset(example.triples or ()) for example in examples), strict=True)
        rows = [(len(said & gold), len(said), len(gold)) for said, gold in pairs]
        return np.array(rows, dtype=np.float64).reshape(-1, 3)

    def from_counts(self, metric: str, sums: np.ndarray) -> np.ndarray:
        right, said, gold = (sums[..., column] for column in range(3))
        if metric not in self.metrics:
            raise ConfigError(f"metric is {metric!r}; {nearest(metric, self.metrics)}")
        over = {"f1": said + gold, "precision": said, "recall": gold}[metric]
        return np.divide((2 if metric == "f1" else 1) * right, over, out=np.zeros_like(right), where=over > 0)

    def shown(self, example: Example) -> dict[str, str]:
        return {"text": example.text, "gold": "; ".join(" | ".join(triple) for triple in example.triples or ())}

    def settings(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restore(cls, settings: dict[str, Any]) -> Triples:
        changes = {"predicates": tuple(settings["predicates"]), "columns": Columns(**settings["columns"])}
        return cls(**(settings | changes))

    def stock_config(self) -> dict[str, Any]:
        return {}


PLUGIN = Triples


def _said(predictions: Sequence[Prediction]) -> list[frozenset[Triple]]:
    return [
        frozenset((t["subject"], t["predicate"], t["object"]) for t in prediction["prediction"])
        for prediction in predictions
    ]


def _is_absent(triple: Triple, text: str) -> bool:
    return triple[0] not in text or triple[2] not in text


def _collapsed(said: Sequence[frozenset[Triple]], gold: Sequence[frozenset[Triple]]) -> bool:
    """Whether nearly all answers are one answer, and gold has it less often."""
    if not said:
        return False
    answer, count = Counter(said).most_common(1)[0]
    return count >= COLLAPSED_SHARE * len(said) and gold.count(answer) < count
