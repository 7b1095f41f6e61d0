"""Replaced token detection, the objective of ELECTRA."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from thrice.model.flops import head_flops
from thrice.model.packing import PackedBatch
from thrice.objectives.base import Outcome, Term
from thrice.objectives.generator import Replacement, ReplacingObjective
from thrice.objectives.sampling import ordered_pairs

if TYPE_CHECKING:
    from thrice.objectives.model import PretrainingModel


@dataclass(frozen=True, kw_only=True)
class ReplacedTokenDetection(ReplacingObjective):
    """Tell of every token whether a generator put it there: its loss + discriminator_weight * binary cross entropy.

    Source: Clark et al. 2020, section 2: the second mean is over all tokens, special ones included, and a sample that
    happens to be the original token counts as original. Losses in nats.
    """

    name = "rtd"
    summary = "replaced tokens: tell which tokens a small generator put into the text"
    source = "Clark et al. 2020, ELECTRA, arXiv 2003.10555"
    families: ClassVar[tuple[str, ...]] = ("electra",)

    discriminator_weight: float = 50.0
    """lambda: of the detection loss against the generator's, above 0."""

    def problems(self) -> list[str]:
        problems = super().problems()
        if not 0 < self.discriminator_weight < math.inf:
            problems.append(f"discriminator_weight is {self.discriminator_weight}, expected a number above 0")
        return problems

    def equip(self, model: PretrainingModel, generator: torch.Generator) -> None:
        super().equip(model, generator)
        model.equip_head("rtd", generator)

    def outcome(
        self, model: PretrainingModel, part: Replacement, clean: PackedBatch, first: Tensor | None, *, followed: bool
    ) -> Outcome:
        """Give the generator's terms, rtd, and rtd_auc.

        rtd_auc: how often, of a replaced and an original token of one text, the replaced one scores higher.
        """
        found = self.replace(model, part, clean)
        states = model.states(found.packed)
        logits = model.encoder.heads["rtd"](states).float()
        loss = F.binary_cross_entropy_with_logits(logits, found.replaced.float(), reduction="sum")
        scores = logits.detach()
        won, pairs = ordered_pairs(scores, found.replaced, part.owner, owners=len(clean.lengths))
        terms = {
            "rtd": Term(loss, float(clean.num_tokens), self.weight * self.discriminator_weight),
            "rtd_auc": Term(won, pairs),
        }
        first = states.index_select(0, clean.starts) if followed else None
        return Outcome(found.terms | terms, first)

    def counts(self, part: Replacement, clean: PackedBatch) -> dict[str, float]:
        return {"generator_mlm": float(part.masked.count), self.name: float(clean.num_tokens)}

    def flops(
        self, model: PretrainingModel, part: Replacement, clean: PackedBatch, *, reads: bool, followed: bool
    ) -> int:
        del reads, followed
        head = head_flops(model.config, "rtd", rows=clean.num_tokens)
        return 3 * (self.flops_of_towers(model, part, clean) + head)


PLUGIN = ReplacedTokenDetection
