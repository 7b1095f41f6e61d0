"""Which examples go together: fixed numbers for a training step, token budgets for prediction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thrice.errors import ConfigError


def training_batches(num_examples: int, *, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Give the example numbers of every step of one epoch, in random order.

    Each array is (batch_size,) int64, the last one shorter where batch_size does not divide num_examples. The order
    depends on the arguments alone, so every arm of a comparison and every resumed run sees the same one.
    seed, epoch: not negative.
    Raises ConfigError for numbers outside these ranges.
    """
    if num_examples < 1 or batch_size < 1:
        raise ConfigError(f"{num_examples} examples in steps of {batch_size}: both must be at least 1")
    if seed < 0 or epoch < 0:
        raise ConfigError(f"seed {seed} and epoch {epoch} must not be negative")
    # NumPy promises the raw stream of PCG64 for all versions, but not what Generator.permutation makes of it.
    order = np.argsort(np.random.PCG64([seed, epoch]).random_raw(num_examples), kind="stable")
    return [order[start : start + batch_size] for start in range(0, num_examples, batch_size)]


def prediction_batches(lengths: Sequence[int] | np.ndarray, *, max_tokens: int) -> list[np.ndarray]:
    """Give batches of at most max_tokens tokens, longest examples first; every example stands in exactly one.

    lengths: tokens of each example. Examples of equal length keep their order. An example longer than max_tokens is a
    batch of its own.
    Raises ConfigError if max_tokens < 1.
    """
    if max_tokens < 1:
        raise ConfigError(f"max_tokens is {max_tokens} and must be at least 1")
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    ends = np.cumsum(sizes[order])
    batches: list[np.ndarray] = []
    start = 0
    while start < len(order):
        used = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, used + max_tokens, side="right")))
        batches.append(order[start:stop])
        start = stop
    return batches
