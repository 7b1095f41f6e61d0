"""All-tokens MLM: the ablation between BERT and ELECTRA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from thrice.model.encoder import init_weights
from thrice.model.flops import head_flops
from thrice.model.packing import PackedBatch
from thrice.model.parts import Linear
from thrice.objectives.base import Outcome, Term
from thrice.objectives.generator import TOWER, Replacement, ReplacingObjective

if TYPE_CHECKING:
    from thrice.objectives.model import PretrainingModel

COPY = "copy"


class Copy(nn.Module):
    """One logit a token: is the token that stands there the right one."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.prediction = Linear(hidden_size, 1)

    def forward(self, states: Tensor) -> Tensor:
        """states: (T, H). Returns (T,)."""
        return self.prediction(states).squeeze(1)


@dataclass(frozen=True, kw_only=True)
class AllTokenMLM(ReplacingObjective):
    """Predict the original of every token of a text in which a generator replaced some.

    Source: Clark et al. 2020, analysis of efficiency, "All-Tokens MLM". With D the sigmoid of a linear map of the
    token's state, the prediction is D * (the token that stands there) + (1 - D) * softmax of the MLM head. Loss: the
    generator's mean cross entropy over the chosen tokens + the mean cross entropy over all tokens, in nats; the paper
    does not say how it weighed the two. Logits of the whole vocabulary are computed at every token: T V numbers, three
    times over.
    """

    name = "all_token_mlm"
    summary = "all tokens: predict every token, or copy it, where a small generator replaced some"
    source = "Clark et al. 2020, ELECTRA, arXiv 2003.10555"
    towers = (TOWER, COPY)

    def equip(self, model: PretrainingModel, generator: torch.Generator) -> None:
        super().equip(model, generator)
        model.equip_head("mlm", generator)
        copy = Copy(model.config.hidden_size)
        init_weights(copy, std=model.config.initializer_range, generator=generator)
        model.towers[COPY] = copy

    def outcome(
        self, model: PretrainingModel, part: Replacement, clean: PackedBatch, first: Tensor | None, *, followed: bool
    ) -> Outcome:
        """Give the generator's terms; all_token_mlm; its accuracy: the likeliest token of the MLM head at the chosen
        places; and copy_accuracy: over all tokens, whether D > 1/2 where the right token stands and only there.
        """
        found = self.replace(model, part, clean)
        states = model.states(found.packed)
        logits, copy = model.encoder.predict_tokens(states).float(), model.towers[COPY](states).float()
        spoken = F.logsigmoid(-copy) - F.cross_entropy(logits, clean.input_ids, reduction="none")
        likelihood = torch.where(found.replaced, spoken, torch.logaddexp(F.logsigmoid(copy), spoken))
        masked = part.masked
        chosen = logits.detach().index_select(0, masked.positions).argmax(1) == masked.targets
        copied = (copy.detach() > 0) != found.replaced
        tokens = float(clean.num_tokens)
        terms = {
            "all_token_mlm": Term(-likelihood.sum(), tokens, self.weight),
            "all_token_mlm_accuracy": Term(chosen.sum().float(), float(masked.count)),
            "copy_accuracy": Term(copied.sum().float(), tokens),
        }
        first = states.index_select(0, clean.starts) if followed else None
        return Outcome(found.terms | terms, first)

    def counts(self, part: Replacement, clean: PackedBatch) -> dict[str, float]:
        return {"generator_mlm": float(part.masked.count), self.name: float(clean.num_tokens)}

    def flops(
        self, model: PretrainingModel, part: Replacement, clean: PackedBatch, *, reads: bool, followed: bool
    ) -> int:
        del reads, followed
        copy = 2 * clean.num_tokens * model.config.hidden_size
        head = head_flops(model.config, "mlm", rows=clean.num_tokens)
        return 3 * (self.flops_of_towers(model, part, clean) + head + copy)


PLUGIN = AllTokenMLM
