"""What the scores of several tasks have in common: ratios of counts, correlations, and whether a run has collapsed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

COLLAPSED_SHARE = 0.99


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Give part / whole, 0 where there is no whole."""
    return np.divide(part, whole, out=np.zeros_like(whole, dtype=np.float64), where=whole > 0)


def matthews(right: np.ndarray, said: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Give Matthews' correlation of any number of classes, (...), from counts per class (..., classes).

    0 where all answers or all truths are one class. Source: Gorodkin 2004, the R_K statistic, as scikit-learn has it.
    """
    right, said, gold = (np.asarray(counts, dtype=np.float64) for counts in (right, said, gold))
    total = gold.sum(axis=-1)
    shared = right.sum(axis=-1) * total - (said * gold).sum(axis=-1)
    spreads = (total**2 - (said**2).sum(axis=-1)) * (total**2 - (gold**2).sum(axis=-1))
    return ratio(shared, np.sqrt(np.maximum(spreads, 0)))


def collapsed(answers: Sequence[Any], truths: Sequence[Any]) -> bool:
    """Say whether at least 99% of the answers are one answer, and no more is right than that answer gives."""
    if not answers:
        return False
    most, count = Counter(answers).most_common(1)[0]
    right = sum(a == t for a, t in zip(answers, truths, strict=True))
    varied = len(set(truths)) > 1
    return varied and count >= COLLAPSED_SHARE * len(answers) and right <= sum(t == most for t in truths)
