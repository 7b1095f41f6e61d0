"""Drawing sets of a fixed size without replacement, each with the product of its members' weights as its weight.

q(M) = product of w_i over M / e_k(w), for every set M of k of n tokens; e_k, the elementary symmetric polynomial, is
the sum of the same product over all such sets. Known as conditional Poisson sampling (Chen, Dempster and Liu 1994).
Here it is computed by one table over the tokens, exact, and drawn from by the same table.
Letters: B sequences, n tokens of each that may be chosen (the longest, in a padded tensor), k wanted, K the largest k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

NEVER = -1e30
"""Logarithm of a weight of 0; finite, so that no gradient is infinity minus infinity."""


def subset_table(log_weights: Tensor, largest: int) -> Tensor:
    """Give (n + 1, B, K + 1) float64: entry (j, b, m) is log e_m of the first j weights of sequence b.

    log_weights: (B, n) float64, NEVER at padding. largest: K. Differentiable.
    e_m(w_1..w_j) = e_m(w_1..w_{j-1}) + w_j e_{m-1}(w_1..w_{j-1}), in logarithms.
    """
    row = log_weights.new_full((len(log_weights), largest + 1), NEVER)
    row[:, 0] = 0.0
    rows = [row]
    for column in log_weights.unbind(1):
        row = torch.logaddexp(row, F.pad(row[:, :-1] + column.unsqueeze(1), (1, 0), value=NEVER))
        rows.append(row)
    return torch.stack(rows)


def draw_subsets(log_weights: Tensor, table: Tensor, sizes: Sequence[int], uniforms: np.ndarray) -> Tensor:
    """Give (B, n) bool: a set of sizes[b] tokens for each sequence, drawn with probability q(M).

    uniforms: (B, n) in [0, 1). From the last token to the first, each is taken with the probability that it is in the
    set given what was taken before: w_j e_{m-1}(w_1..w_{j-1}) / e_m(w_1..w_j) with m still wanted.
    """
    weights, logs = log_weights.detach().numpy(), table.detach().numpy()
    left = np.array(sizes, dtype=np.int64)
    rows = np.arange(len(left))
    taken = np.zeros(weights.shape, dtype=bool)
    for j in range(weights.shape[1] - 1, -1, -1):
        before = logs[j, rows, np.maximum(left - 1, 0)] + weights[:, j]
        taken[:, j] = (left > 0) & (uniforms[:, j] < np.exp(np.minimum(before - logs[j + 1, rows, left], 0.0)))
        left -= taken[:, j]
    assert not left.any()
    return torch.from_numpy(taken)


def log_probabilities(log_weights: Tensor, table: Tensor, sizes: Sequence[int], taken: Tensor) -> Tensor:
    """Give (B,) log q(M) of the sets `taken`, (B, n) bool. Differentiable in log_weights, through the table too."""
    rows = torch.arange(len(sizes))
    chosen = torch.where(taken, log_weights, torch.zeros_like(log_weights)).sum(1)
    return chosen - table[-1, rows, torch.tensor(sizes)]


def log_uniform(counts: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Give (B,) float64 log p(M) of one set of sizes[b] of counts[b] tokens where all are equally likely."""
    return torch.tensor(
        [math.lgamma(k + 1) + math.lgamma(n - k + 1) - math.lgamma(n + 1) for n, k in zip(counts, sizes, strict=True)],
        dtype=torch.float64,
    )
