"""Next sentence prediction."""

from __future__ import annotations

from dataclasses import dataclass

from thrice.objectives.base import PairObjective


@dataclass(frozen=True, kw_only=True)
class NextSentence(PairObjective):
    """Tell whether the second segment follows the first (0) or comes from another document (1).

    Source: Devlin et al. 2019, section 3.1, task 2. Loss: mean cross entropy over the pairs of the batch, in nats.
    The corpus makes the pairs; in the sum of a batch it reads the states that the masked text gave.
    """

    name = "nsp"
    summary = "next sentence: does the second segment follow the first, or is it of another document"
    source = "Devlin et al. 2019, BERT, arXiv 1810.04805"
    pairs = "nsp"


PLUGIN = NextSentence
