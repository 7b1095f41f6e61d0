"""Statistics of a comparison, as pure functions on one float array per arm; the caller pairs by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95

# Differences that spread by less than this fraction of the scores are equal: 0.92 - 0.90 and 0.90 - 0.88 differ by
# 2e-17 in float64.
ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What one arm scored over its seeds."""

    mean: float | None
    """Arithmetic mean, None of no values."""
    std: float | None
    """Standard deviation with n - 1 in the denominator, None of fewer than two values."""
    n: int
    """How many values went in."""
    values: tuple[float, ...]
    """The values themselves, in the caller's order."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far an arm lies from its baseline, over pairs that share a seed."""

    mean: float | None
    """Mean of arm minus baseline, None of no pairs."""
    low: float | None
    """Lower end of the 95% t-interval of the mean, None of fewer than two pairs."""
    high: float | None
    """Upper end of the same interval."""
    n: int
    """How many pairs went in."""


def summary(values: Sequence[float]) -> Summary:
    """Give mean, standard deviation (n - 1) and the values of one arm. values: (n,) finite floats, n may be 0."""
    array = _finite(values)
    return Summary(
        mean=float(array.mean()) if array.size else None,
        std=float(array.std(ddof=1)) if array.size > 1 else None,
        n=int(array.size),
        values=tuple(array.tolist()),
    )


def paired_difference(values: Sequence[float], baseline_values: Sequence[float]) -> Difference:
    """Give the mean difference to the baseline and its 95% t-interval over the pairs.

    values, baseline_values: (n,) finite floats; entry i of both comes from the same seed.
    The interval is mean +- t(0.975, n - 1) * s / sqrt(n). Over three seeds it covers what it promises where a
    percentile bootstrap covers 76%. Where all differences are equal it shrinks to the point mean = low = high: the
    limit of the formula, no proof of certainty.
    Raises ValueError if the lengths differ or a value is not finite.
    """
    array, baseline = _finite(values), _finite(baseline_values)
    if array.size != baseline.size:
        raise ValueError(f"pairs wanted: {array.size} values against {baseline.size} of the baseline")
    differences = array - baseline
    n = int(differences.size)
    if n == 0:
        return Difference(mean=None, low=None, high=None, n=0)
    mean = float(differences.mean())
    if n == 1:
        return Difference(mean=mean, low=None, high=None, n=1)
    scale = float(max(np.abs(array).max(), np.abs(baseline).max()))
    if float(np.ptp(differences)) <= ROUNDING * scale:
        return Difference(mean=mean, low=mean, high=mean, n=n)

    from scipy.stats import t

    half = float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * float(differences.std(ddof=1)) / math.sqrt(n)
    return Difference(mean=mean, low=mean - half, high=mean + half, n=n)


def _finite(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ValueError(f"one row of finite numbers wanted, got shape {array.shape}: {array.tolist()}")
    return array
