"""Statistics of a comparison, as pure functions on one float array per arm; the caller pairs by seed."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95

# Differences that spread by less than this fraction of the scores are equal: 0.92 - 0.90 and 0.90 - 0.88 differ by
# 2e-17 in float64.
ROUNDING = 1e-12

# Counts of resampled items held at once: 32 MB of float64.
HELD = 4_000_000


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
    p: float | None = None
    """Two-sided p-value of the paired t-test, None of fewer than two pairs and where all differences are equal."""


@dataclass(frozen=True, kw_only=True)
class ItemDifference:
    """How far an arm lies from its baseline, over test items drawn anew, the trained models held fixed."""

    mean: float
    """Arm minus baseline on the items as they are."""
    low: float
    """Lower end of the 95% percentile interval over the resamples."""
    high: float
    """Upper end of the same interval."""
    n: int
    """Test items."""


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
    """Give the mean difference to the baseline, its 95% t-interval over the pairs and the p-value of no difference.

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

    from scipy.special import stdtr, stdtrit

    error = float(differences.std(ddof=1)) / math.sqrt(n)
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean) / error))
    return Difference(mean=mean, low=mean - half, high=mean + half, n=n, p=p)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Give the p-values corrected for being several, in the caller's order; None stays None and counts for nothing.

    The smallest of m is multiplied by m, the next by m - 1 and so on, no corrected value is below the one before it
    or above 1. To call those below 5% different errs, in all of them together, in at most 5% of such families,
    however they depend on each other.
    Raises ValueError for a value outside 0 to 1. Source: Holm 1979.
    """
    tested = [place for place, p in enumerate(p_values) if p is not None]
    raw = np.array([p_values[place] for place in tested], dtype=np.float64)
    if not ((raw >= 0) & (raw <= 1)).all():
        raise ValueError(f"p-values between 0 and 1 wanted, got {raw.tolist()}")
    order = np.argsort(raw, kind="stable")
    stepped = np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1))
    corrected: list[float | None] = [None] * len(p_values)
    for rank, value in zip(order, np.minimum(stepped, 1), strict=True):
        corrected[tested[rank]] = float(value)
    return corrected


def improvement(values: Sequence[float], baseline_values: Sequence[float]) -> float | None:
    """Give the probability that a run of the arm scores above a run of the baseline; None where either has no run.

    Over all pairs of runs, of whatever seeds, a tie counting half: the Mann-Whitney U divided by the number of pairs.
    Source: Agarwal et al. 2021, section 4.3, probability of improvement.
    """
    array, baseline = _finite(values), _finite(baseline_values)
    if not array.size or not baseline.size:
        return None
    apart = array[:, None] - baseline
    return float((apart > 0).mean() + (apart == 0).mean() / 2)


def seeds_needed(
    values: Sequence[float], baseline_values: Sequence[float], *, power: float = 0.8, most: int = 1000
) -> int | None:
    """Give how many seeds, in all, a paired t-test at 5% needs to find the difference with this probability.

    values, baseline_values: (n,) as of `paired_difference`. Taken at its word: as if the true difference were the mean
    seen here and its spread between seeds the one seen here, both of which n seeds tell only roughly.
    None where fewer than two pairs, equal differences or a mean of zero say nothing, and for more than `most` seeds.
    Of n seeds the test statistic has a noncentral t distribution with n - 1 degrees of freedom and noncentrality
    sqrt(n) * mean / s; what it rejects on the wrong side is no discovery and not counted.
    """
    found = paired_difference(values, baseline_values)
    if not found.mean or found.p is None:
        return None
    from scipy.special import nctdtr, stdtrit

    spread = float((_finite(values) - _finite(baseline_values)).std(ddof=1))
    effect = abs(found.mean) / spread

    def enough(n: int) -> bool:
        bound, noncentrality = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)), math.sqrt(n) * effect
        # Far out the noncentral distribution has no numbers any more, and needs none.
        return noncentrality > 100 * bound or bool(1 - nctdtr(n - 1, noncentrality, bound) >= power)

    # More seeds never find less, and each look at the noncentral distribution is dear.
    needed = 2 + bisect.bisect_left(range(2, most + 1), True, key=enough)
    return needed if needed <= most else None


def item_interval(
    arm: np.ndarray,
    baseline: np.ndarray,
    value: Callable[[np.ndarray], np.ndarray],
    *,
    rng: np.random.Generator,
    resamples: int = 2000,
) -> ItemDifference:
    """Give the difference to the baseline and its 95% interval over other test items of the same kind.

    arm: (S_a, n, k), baseline: (S_b, n, k), what each run adds up to on each of the n test items, the same ones for
    all runs. value: gives, from sums (..., k), the metric (...), finite. The difference is the mean over the arm's
    runs minus that over the baseline's; every resample draws n items with replacement, the same ones for all runs.
    The trained models are held fixed: what another seed would change, this interval does not know.
    Items on which all runs count the same are drawn together, by a multinomial distribution, which is the same thing.
    Raises ValueError where shapes do not fit, there is no run or no item, or a metric is not finite.
    Source: Efron and Tibshirani 1993, chapter 13, the percentile interval.
    """
    if arm.ndim != 3 or baseline.ndim != 3 or arm.shape[1:] != baseline.shape[1:] or not (arm.size and baseline.size):
        raise ValueError(f"runs x items x counts of the same items wanted, got {arm.shape} and {baseline.shape}")
    runs = [*arm, *baseline]
    n, num_counts, num_arm = arm.shape[1], arm.shape[2], len(arm)

    def difference(sums: np.ndarray) -> np.ndarray:
        """Give the difference from sums (R, runs, k)."""
        values = value(sums)
        return values[:, :num_arm].mean(axis=1) - values[:, num_arm:].mean(axis=1)

    seen = float(difference(np.stack([run.sum(axis=0) for run in runs])[None])[0])
    kinds = np.stack([np.unique(run, axis=0, return_inverse=True)[1].reshape(-1) for run in runs], axis=1)
    _, first, kind, times = np.unique(kinds, axis=0, return_index=True, return_inverse=True, return_counts=True)
    rows = np.concatenate([run[first] for run in runs], axis=1).astype(np.float64)
    drawn = []
    chunk = max(1, HELD // max(len(first), rows.shape[1]))
    for start in range(0, resamples, chunk):
        weights = _draws(kind.reshape(-1), times, min(chunk, resamples - start), rng)
        drawn.append(difference((weights @ rows).reshape(len(weights), len(runs), num_counts)))
    differences = np.concatenate(drawn)
    if not (np.isfinite(differences).all() and math.isfinite(seen)):
        raise ValueError("the metric of a resample is not finite; let it be 0 where nothing was counted")
    low, high = np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return ItemDifference(mean=seen, low=float(low), high=float(high), n=n)


def _draws(kind: np.ndarray, times: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Give how often each kind of item is drawn: (resamples, kinds) float64, each row adding up to the items.

    kind: (n,) of each item; times: (kinds,) how many items are of it.
    """
    n = len(kind)
    # A binomial draw takes about 8 times as long as drawing one item.
    if 8 * len(times) < n:
        return rng.multinomial(n, times / n, size=resamples).astype(np.float64)
    counted = [np.bincount(kind[rng.integers(n, size=n)], minlength=len(times)) for _ in range(resamples)]
    return np.stack(counted).astype(np.float64)


def _finite(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ValueError(f"one row of finite numbers wanted, got shape {array.shape}: {array.tolist()}")
    return array
