"""What is known of metrics by their names: which are read in per cent, their words; and when a difference is one."""

from __future__ import annotations

IN_PER_CENT = frozenset({"accuracy", "exact_match", "f1", "macro_f1", "micro_f1", "precision", "recall", "score"})
"""Scores between 0 and 1 that people read in per cent; only these may be averaged over tasks."""

LARGEST_P = 0.05
"""Corrected p-value from which on a difference is not called one."""


def metric_name(metric: str) -> str:
    """Give a metric's name for a sentence or an axis: macro_f1 -> macro F1."""
    return metric.replace("_", " ").replace("f1", "F1")
