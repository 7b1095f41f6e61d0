"""Sentence order prediction."""

from __future__ import annotations

from dataclasses import dataclass

from thrice.objectives.base import PairObjective


@dataclass(frozen=True, kw_only=True)
class SentenceOrder(PairObjective):
    """Tell whether two segments that follow each other stand in their order (0) or were swapped (1).

    Source: Lan et al. 2020, section 3.1. Loss: mean cross entropy over the pairs of the batch, in nats. Unlike `nsp`
    it cannot be solved by the topic: both segments are of one document.
    """

    name = "sop"
    summary = "sentence order: do two segments of one document stand in their order, or were they swapped"
    source = "Lan et al. 2020, ALBERT, arXiv 1909.11942"
    pairs = "sop"


PLUGIN = SentenceOrder
