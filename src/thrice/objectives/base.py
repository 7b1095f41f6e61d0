"""What every pre-training objective gives: heads, a corruption of examples, named terms of a loss, and its cost.

Data flow: examples -> `corrupt`, on the CPU and without weights -> the objective's part of a batch -> `outcome`, a
function of the weights and the part alone -> terms. All chance of an example is drawn in `corrupt`, from generators of
its own, so that it depends neither on the batch nor on the number of processes.
Letters: B sequences, T real tokens of the batch, N predicted positions, H hidden, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from thrice.data.segments import PretrainingExample
from thrice.errors import ConfigError
from thrice.model.flops import head_flops, packed_flops
from thrice.model.packing import PackedBatch
from thrice.model.parts import is_plain_float_on_cpu

if TYPE_CHECKING:
    from thrice.objectives.model import PretrainingModel

NO_PAIR = -100
"""pair_label of an example that is no pair; cross entropy leaves it out."""


@dataclass(frozen=True)
class Term:
    """One named number of a batch, kept as a sum and what divides it, so that parts of a batch add up."""

    total: Tensor
    """() float32: the sum over whatever is counted."""
    count: Tensor | float
    """What the mean divides by; 0 where the batch has nothing of the kind."""
    weight: float = 0.0
    """Of the mean in the loss; 0 for what is only logged."""

    @property
    def mean(self) -> Tensor:
        """total / count; 0 where nothing was counted."""
        if isinstance(self.count, Tensor):
            return self.total / torch.where(self.count == 0, torch.ones_like(self.count), self.count)
        return self.total / (self.count or 1.0)


def loss_of(terms: Mapping[str, Term]) -> Tensor:
    """Give the loss of a batch: the sum of weight * mean over the terms with a weight, in nats."""
    parts = [term.weight * term.mean for term in terms.values() if term.weight != 0]
    return torch.stack(parts).sum()


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What hiding tokens must know of a vocabulary."""

    num_tokens: int
    """Ids run from 0 to num_tokens - 1; the word table may have more rows, of which nothing is ever drawn."""
    mask_id: int
    """Id of [MASK]."""
    special_ids: tuple[int, ...]
    """Ids that never stand in for another token: padding, [UNK], [CLS], [SEP], [MASK] and the like."""

    def __post_init__(self) -> None:
        """Raise ConfigError, all problems at once, for ids that are none and where nothing is left to draw from."""
        problems = []
        outside = [i for i in (self.mask_id, *self.special_ids) if not 0 <= i < self.num_tokens]
        if outside:
            problems.append(f"ids {outside} lie outside 0 to {self.num_tokens - 1}")
        if self.mask_id not in self.special_ids:
            problems.append(f"[MASK], id {self.mask_id}, is not among the special ids {list(self.special_ids)}")
        if len(set(self.special_ids)) >= self.num_tokens:
            problems.append(f"all of its {self.num_tokens} tokens are special")
        if problems:
            raise ConfigError("vocabulary: " + "; ".join(problems))

    @functools.cached_property
    def ordinary(self) -> np.ndarray:
        """All ids but the special ones, int64, ascending."""
        return np.setdiff1d(np.arange(self.num_tokens, dtype=np.int64), np.array(self.special_ids, dtype=np.int64))


P = TypeVar("P")


def moved(part: P, device: torch.device | str) -> P:
    """Give a dataclass of tensors and packed batches with all of them on a device."""
    fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}  # type: ignore[arg-type]
    held = {name: value.to(device) for name, value in fields.items() if isinstance(value, Tensor | PackedBatch)}
    return dataclasses.replace(part, **held)  # type: ignore[type-var]


@dataclass(frozen=True)
class Outcome:
    """What an objective says of a batch."""

    terms: dict[str, Term]
    """Name -> term; names are the objective's own."""
    first: Tensor | None
    """(B, H): states that the main encoder gave the first tokens, in the caller's order, for an objective on pairs to
    read; None where none follows."""


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """One way of pre-training; its fields are its options.

    A plug-in of the room "objectives" is the class itself, as the module's `PLUGIN`.
    """

    name: ClassVar[str]
    """What recipes call it."""
    summary: ClassVar[str]
    """One sentence for a list."""
    source: ClassVar[str]
    """The paper, for a model card."""
    pairs: ClassVar[str | None] = None
    """The kind of sentence pairs it wants, nsp or sop; None where any text will do."""
    families: ClassVar[tuple[str, ...]] = ("albert", "bert", "electra", "roberta")
    """Families whose stock classes have the heads that it trains."""
    towers: ClassVar[tuple[str, ...]] = ()
    """Names of the further networks that it adds."""

    weight: float = 1.0
    """Of its loss in the sum over objectives, above 0."""

    def __post_init__(self) -> None:
        """Check every option; raises ConfigError that lists all problems at once."""
        if problems := self.problems():
            raise ConfigError(f"objective {self.name}: " + "; ".join(problems))

    def problems(self) -> list[str]:
        """Give what is wrong with the options."""
        if not 0 < self.weight < math.inf:
            return [f"weight is {self.weight}, expected a number above 0"]
        return []

    @abstractmethod
    def equip(self, model: PretrainingModel, generator: torch.Generator) -> None:
        """Add heads and towers that are not there yet, with weights that the generator draws."""

    @abstractmethod
    def corrupt(
        self, examples: Sequence[PretrainingExample], clean: PackedBatch, *, seed: int, vocabulary: Vocabulary
    ) -> Any:
        """Give this objective's part of a batch: a pure function of its arguments.

        clean: the examples packed as they are. seed: of the run.
        """

    @abstractmethod
    def outcome(
        self, model: PretrainingModel, part: Any, clean: PackedBatch, first: Tensor | None, *, followed: bool
    ) -> Outcome:
        """Give the terms of a part.

        first: states of first tokens that an earlier objective of the same batch had from the encoder, or None.
        followed: whether an objective on pairs will read those of this one.
        Tensors are on the model's device. Avoid what waits for it (`item`, `tolist`, `cpu`): of the objectives here
        only mpn does, which draws its sets on the CPU.
        """

    def counts(self, part: Any, clean: PackedBatch) -> dict[str, float] | None:
        """Give name -> count of every term that has a weight, as `outcome` will: what the mean of a batch divides by.

        A batch that is computed in several parts needs it before the first pass. None, as here, where only the passes
        tell: such an objective has its batches computed at once.
        """
        del part, clean
        return None

    @abstractmethod
    def flops(self, model: PretrainingModel, part: Any, clean: PackedBatch, *, reads: bool, followed: bool) -> int:
        """Give floating-point operations of a training step on a part: all its towers and heads, both ways.

        reads: whether states of another objective are there to be read. followed: as in `outcome`.
        """


def corrupted(clean: PackedBatch, input_ids: Tensor) -> PackedBatch:
    """Give the same batch with other tokens in the same places."""
    return dataclasses.replace(clean, input_ids=input_ids)


def predicted(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Give (N,) cross entropies in nats, and (N,) whether the likeliest token is the right one.

    logits: (N, V). targets: (N,). In float32, whatever the logits come in.
    """
    losses = F.cross_entropy(logits.float(), targets, reduction="none")
    with torch.no_grad():
        if is_plain_float_on_cpu(logits):
            # Where no two logits are equal this is the same, at a tenth of the time of torch's arg-max on a CPU.
            return losses, logits.gather(1, targets.unsqueeze(1)).squeeze(1) >= logits.amax(1)
        return losses, logits.argmax(1) == targets


@dataclass(frozen=True)
class Labels:
    """What an objective on pairs made of a batch."""

    labels: Tensor
    """(B,) int64 in the caller's order: 0, 1, or NO_PAIR."""
    num_pairs: int
    """Sequences that are pairs."""

    def to(self, device: torch.device | str) -> Labels:
        """Give the same labels on a device."""
        return moved(self, device)


@dataclass(frozen=True, kw_only=True)
class PairObjective(Objective):
    """Tell from the pooler's output which of two kinds a pair is; two classes by the stock sentence-pair head."""

    families: ClassVar[tuple[str, ...]] = ("albert", "bert")

    def equip(self, model: PretrainingModel, generator: torch.Generator) -> None:
        for head in ("pooler", "sentence_pair"):
            model.equip_head(head, generator)

    def corrupt(
        self, examples: Sequence[PretrainingExample], clean: PackedBatch, *, seed: int, vocabulary: Vocabulary
    ) -> Labels:
        """Give the labels; nothing is hidden."""
        del clean, seed, vocabulary
        labels = [example.pair_label for example in examples]
        return Labels(torch.tensor(labels), sum(label != NO_PAIR for label in labels))

    def outcome(
        self, model: PretrainingModel, part: Labels, clean: PackedBatch, first: Tensor | None, *, followed: bool
    ) -> Outcome:
        del followed
        if first is None:
            first = model.states(clean, rows=clean.starts)
        heads = model.encoder.heads
        logits = heads["sentence_pair"](heads["pooler"](first)).float()
        total = F.cross_entropy(logits, part.labels, ignore_index=NO_PAIR, reduction="sum")
        right = (logits.detach().argmax(1) == part.labels).sum().float()
        terms = {
            self.name: Term(total, float(part.num_pairs), self.weight),
            f"{self.name}_accuracy": Term(right, float(part.num_pairs)),
        }
        return Outcome(terms, first)

    def counts(self, part: Labels, clean: PackedBatch) -> dict[str, float]:
        del clean
        return {self.name: float(part.num_pairs)}

    def flops(self, model: PretrainingModel, part: Labels, clean: PackedBatch, *, reads: bool, followed: bool) -> int:
        del followed
        config, rows = model.config, len(clean.lengths)
        heads = sum(head_flops(config, head, rows=rows) for head in ("pooler", "sentence_pair"))
        return 3 * (heads + (0 if reads else packed_flops(config, clean.lengths, rows=rows)))
