"""Masked language modelling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from thrice.data.segments import PretrainingExample
from thrice.model.flops import head_flops, packed_flops
from thrice.model.packing import PackedBatch
from thrice.objectives.base import Objective, Outcome, Term, Vocabulary, predicted
from thrice.objectives.masking import MaskedTokens, choose_positions, mask_tokens, number_to_choose, share_problems

if TYPE_CHECKING:
    from thrice.objectives.model import PretrainingModel

PURPOSE = 1


@dataclass(frozen=True, kw_only=True)
class MaskedLM(Objective):
    """Hide some tokens and predict them from both sides.

    Source: Devlin et al. 2019, section 3.1, task 1; whole words and n-grams as in Lan et al. 2020, section 4.1. Loss:
    mean cross entropy over the chosen tokens of the batch, in nats. Logits are computed at these tokens alone.
    """

    name = "mlm"
    summary = "masked tokens: predict hidden tokens from both sides"
    source = "Devlin et al. 2019, BERT, arXiv 1810.04805"

    rate: float = 0.15
    """Tokens to choose, as a fraction of a sequence's tokens, 0 < rate < 1; at least one."""
    mask_share: float = 0.8
    """Probability that a chosen token becomes [MASK]."""
    random_share: float = 0.1
    """Probability that a chosen token becomes an ordinary token drawn at random; what is left of 1 stays as it is."""
    whole_word: bool = False
    """Whether the tokens of a word are chosen together."""
    max_ngram: int = 1
    """Longest run of words chosen together, each length n with probability proportional to 1 / n; 3 in ALBERT."""

    def problems(self) -> list[str]:
        return [*super().problems(), *share_problems(self.rate, self.mask_share, self.random_share, self.max_ngram)]

    def equip(self, model: PretrainingModel, generator: torch.Generator) -> None:
        model.equip_head("mlm", generator)

    def corrupt(
        self, examples: Sequence[PretrainingExample], clean: PackedBatch, *, seed: int, vocabulary: Vocabulary
    ) -> MaskedTokens:
        return mask_tokens(
            examples,
            clean,
            seed=seed,
            purpose=PURPOSE,
            choose=lambda example, generator: choose_positions(
                example,
                number_to_choose(example, self.rate),
                generator,
                whole_word=self.whole_word,
                max_ngram=self.max_ngram,
            ),
            vocabulary=vocabulary,
            mask_share=self.mask_share,
            random_share=self.random_share,
        )

    def outcome(
        self, model: PretrainingModel, part: MaskedTokens, clean: PackedBatch, first: Tensor | None, *, followed: bool
    ) -> Outcome:
        chosen, first = model.states_at(part.packed, part.positions, with_first=followed)
        logits = model.encoder.predict_tokens(chosen)
        losses, right = predicted(logits, part.targets)
        count = float(part.count)
        terms = {
            "mlm": Term(losses.sum(), count, self.weight),
            "mlm_accuracy": Term(right.sum().float(), count),
        }
        return Outcome(terms, first)

    def counts(self, part: MaskedTokens, clean: PackedBatch) -> dict[str, float]:
        del clean
        return {self.name: float(part.count)}

    def flops(
        self, model: PretrainingModel, part: MaskedTokens, clean: PackedBatch, *, reads: bool, followed: bool
    ) -> int:
        del reads
        head = head_flops(model.config, "mlm", rows=part.count)
        rows = part.count + followed * len(clean.lengths)
        return 3 * (packed_flops(model.config, clean.lengths, rows=rows) + head)


PLUGIN = MaskedLM
