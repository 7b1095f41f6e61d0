"""Scores of answers that are classes, and the counts per example from which they follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from thrice.errors import ConfigError, nearest

COLLAPSED_SHARE = 0.99
METRICS = ("accuracy", "macro_f1", "micro_f1")


def class_scores(labels: Sequence[str], truths: Sequence[int], answers: Sequence[int]) -> dict[str, Any]:
    """Give accuracy, macro F1 over all labels, the confusion matrix (rows gold, columns predicted), and "collapsed".

    labels: names of the classes. truths, answers: (n,) indices into them, one class per example.
    """
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

    known = range(len(labels))
    return {
        "accuracy": float(accuracy_score(truths, answers)),
        "macro_f1": float(f1_score(truths, answers, labels=known, average="macro", zero_division=0.0)),
        "confusion": confusion_matrix(truths, answers, labels=known).tolist(),
        "collapsed": collapsed(answers, truths),
    }


def class_counts(gold: np.ndarray, said: np.ndarray) -> np.ndarray:
    """Give (n, 3 * labels + 2): per class rightly said, said, and gold; then whether all is right, and 1.

    gold, said: (n, labels) of 0 and 1.
    """
    whole = (gold == said).all(axis=1, keepdims=True)
    return np.hstack([gold * said, said, gold, whole, np.ones_like(whole)]).astype(np.float64)


def score_of_counts(metric: str, sums: np.ndarray) -> np.ndarray:
    """Give accuracy, micro_f1 or macro_f1, (...), of summed class counts (..., 3 * labels + 2); 0 of nothing."""
    size = (sums.shape[-1] - 2) // 3
    right, said, gold = (sums[..., part * size : (part + 1) * size] for part in range(3))
    if metric == "accuracy":
        return _ratio(sums[..., -2], sums[..., -1])
    if metric == "micro_f1":
        return _ratio(2 * right.sum(axis=-1), said.sum(axis=-1) + gold.sum(axis=-1))
    if metric == "macro_f1":
        return _ratio(2 * right, said + gold).mean(axis=-1)
    raise ConfigError(f"metric is {metric!r}; {nearest(metric, METRICS)}")


def collapsed(answers: Sequence[Any], truths: Sequence[Any]) -> bool:
    """Say whether at least 99% of the answers are one answer and no more is right than that answer gives."""
    if not answers:
        return False
    most, count = Counter(answers).most_common(1)[0]
    right = sum(a == t for a, t in zip(answers, truths, strict=True))
    varied = len(set(truths)) > 1
    return varied and count >= COLLAPSED_SHARE * len(answers) and right <= sum(t == most for t in truths)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Give part / whole, 0 where there is no whole."""
    return np.divide(part, whole, out=np.zeros_like(whole, dtype=np.float64), where=whole > 0)
