"""Scores of answers that are classes, and the counts per example from which they follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thrice.data.scores import collapsed, matthews, ratio
from thrice.errors import ConfigError, nearest

METRICS = ("accuracy", "macro_f1", "micro_f1", "matthews", "f1")


def class_scores(
    labels: Sequence[str], truths: Sequence[int], answers: Sequence[int], *, positive: int | None = None
) -> dict[str, Any]:
    """Give accuracy, macro F1 over all labels, Matthews' correlation, of two classes F1 of the positive one, the
    confusion matrix (rows gold, columns predicted), and "collapsed".

    labels: names of the classes. truths, answers: (n,) indices into them, one class per example. positive: index of the
    positive one of two classes, None where there is none.
    """
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

    known = range(len(labels))
    confusion = confusion_matrix(truths, answers, labels=known)
    scores: dict[str, Any] = {
        "accuracy": float(accuracy_score(truths, answers)),
        "macro_f1": float(f1_score(truths, answers, labels=known, average="macro", zero_division=0.0)),
        "matthews": float(matthews(confusion.diagonal(), confusion.sum(axis=0), confusion.sum(axis=1))),
        "confusion": confusion.tolist(),
        "collapsed": collapsed(answers, truths),
    }
    if positive is not None:
        scores["f1"] = float(f1_score(truths, answers, labels=[positive], average="macro", zero_division=0.0))
    return scores


def class_counts(gold: np.ndarray, said: np.ndarray) -> np.ndarray:
    """Give (n, 3 * labels + 2): per class rightly said, said, and gold; then whether all is right, and 1.

    gold, said: (n, labels) of 0 and 1.
    """
    whole = (gold == said).all(axis=1, keepdims=True)
    return np.hstack([gold * said, said, gold, whole, np.ones_like(whole)]).astype(np.float64)


def score_of_counts(metric: str, sums: np.ndarray, *, positive: int | None = None) -> np.ndarray:
    """Give a metric of METRICS, (...), of summed class counts (..., 3 * labels + 2); 0 of nothing.

    positive: index of the class that "f1" is of.
    """
    size = (sums.shape[-1] - 2) // 3
    right, said, gold = (sums[..., part * size : (part + 1) * size] for part in range(3))
    if metric == "accuracy":
        return ratio(sums[..., -2], sums[..., -1])
    if metric == "micro_f1":
        return ratio(2 * right.sum(axis=-1), said.sum(axis=-1) + gold.sum(axis=-1))
    if metric == "macro_f1":
        return ratio(2 * right, said + gold).mean(axis=-1)
    if metric == "matthews":
        return matthews(right, said, gold)
    if metric == "f1" and positive is not None:
        return ratio(2 * right, said + gold)[..., positive]
    raise ConfigError(f"metric is {metric!r}; {nearest(metric, METRICS)}")
