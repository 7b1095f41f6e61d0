"""Statistics of a comparison against numbers worked out by hand and against scipy."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thrice.compare.statistics import holm, improvement, item_interval, paired_difference, seeds_needed, summary


def test_summary_divides_by_one_less_than_n() -> None:
    result = summary([0.90, 0.92, 0.97])
    assert result.mean == pytest.approx(0.93)
    assert result.std == pytest.approx(((0.03**2 + 0.01**2 + 0.04**2) / 2) ** 0.5)
    assert (result.n, result.values) == (3, (0.90, 0.92, 0.97))


def test_summary_of_one_value_has_no_deviation_and_of_none_no_mean() -> None:
    assert (summary([0.5]).mean, summary([0.5]).std, summary([0.5]).n) == (0.5, None, 1)
    assert (summary([]).mean, summary([]).std, summary([]).n) == (None, None, 0)


def test_interval_worked_out_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, s = 1, t(0.975, 2) = 4.302653, so the half width is 4.302653 / sqrt(3)."""
    result = paired_difference([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    assert (result.mean, result.n) == (2.0, 3)
    assert result.low == pytest.approx(2 - 2.484138, abs=1e-6)
    assert result.high == pytest.approx(2 + 2.484138, abs=1e-6)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8))
def test_interval_and_p_equal_those_of_scipys_paired_test(pairs: list[tuple[float, float]]) -> None:
    from scipy.stats import ttest_rel

    values, baseline = np.array(pairs).T
    if np.ptp(values - baseline) < 1e-6:
        return  # scipy's interval is not a number there
    test = ttest_rel(values, baseline)
    expected = test.confidence_interval(0.95)
    result = paired_difference(values, baseline)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert result.p == pytest.approx(test.pvalue, abs=1e-9)


def test_pairing_removes_what_the_seeds_share() -> None:
    baseline = np.array([0.70, 0.80, 0.90])
    wobble = np.array([0.001, -0.001, 0.0])
    paired = paired_difference(baseline + 0.02 + wobble, baseline)
    shuffled = paired_difference((baseline + 0.02 + wobble)[[1, 2, 0]], baseline)
    assert (paired.low or 0) > 0
    assert (shuffled.low or 0) < 0


def test_equal_differences_shrink_to_a_point_although_floats_disagree_in_the_last_digit() -> None:
    values, baseline = [0.92, 0.90, 0.41], [0.90, 0.88, 0.39]
    assert len({a - b for a, b in zip(values, baseline, strict=True)}) > 1
    result = paired_difference(values, baseline)
    assert result.low == result.mean == result.high == pytest.approx(0.02)
    assert result.p is None, "a t-test divides by the spread, and there is none"
    assert paired_difference([0.5, 0.5], [0.5, 0.5]).high == 0


def test_fewer_than_two_pairs_have_no_interval() -> None:
    one, none = paired_difference([0.9], [0.8]), paired_difference([], [])
    assert (one.mean, one.low, one.high, one.p, one.n) == (pytest.approx(0.1), None, None, None, 1)
    assert (none.mean, none.low, none.high, none.p, none.n) == (None, None, None, None, 0)


@pytest.mark.parametrize("values", [[float("nan"), 1.0], [float("inf"), 1.0], [1.0]])
def test_unpaired_or_infinite_values_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="wanted"):
        paired_difference(values, [0.5, 0.6])


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_interval_covers_the_truth_as_often_as_it_promises(seeds: int) -> None:
    """2,000 studies: 95% coverage has a binomial standard error of 0.5%."""
    generator = np.random.default_rng(seeds)
    baseline = generator.normal(0.9, 0.03, size=(2000, seeds))
    arm = baseline + generator.normal(0.01, 0.02, size=(2000, seeds))
    results = [paired_difference(*pair) for pair in zip(arm, baseline, strict=True)]
    covered = np.mean([result.low <= 0.01 <= result.high for result in results])
    assert 0.93 < covered < 0.97


def test_p_values_of_no_difference_are_below_five_per_cent_in_five_per_cent() -> None:
    generator = np.random.default_rng(5)
    values, baseline = generator.normal(0.9, 0.01, size=(2, 2000, 4))
    p = [paired_difference(*pair).p for pair in zip(values, baseline, strict=True)]
    assert 0.03 < np.mean(np.array(p, dtype=float) < 0.05) < 0.07


# Several comparisons


def test_holm_worked_out_by_hand() -> None:
    """Sorted 0.005, 0.01, 0.03, 0.04, times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04, the last lifted to 0.06."""
    corrected = holm([0.01, 0.04, None, 0.03, 0.005])
    assert corrected == [pytest.approx(0.03), pytest.approx(0.06), None, pytest.approx(0.06), pytest.approx(0.02)]
    assert holm([0.6, 0.9]) == [1, 1]
    assert holm([0.02]) == [0.02]
    assert holm([None]) == [None]
    assert holm([]) == []


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_not_corrected(wrong: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([0.5, wrong])


def test_holm_keeps_the_error_of_the_whole_family() -> None:
    """Of 2,000 families of six without any difference about 5% call one; uncorrected it would be 26%."""
    families = np.random.default_rng(1).uniform(size=(2000, 6))
    called = [min(p for p in holm(family.tolist()) if p is not None) < 0.05 for family in families]
    assert 0.035 < np.mean(called) < 0.065


# How probable, and how many seeds


@given(
    st.lists(st.integers(0, 9).map(lambda x: x / 10), min_size=1, max_size=6),
    st.lists(st.integers(0, 9).map(lambda x: x / 10), min_size=1, max_size=6),
)
def test_improvement_is_the_mann_whitney_u_over_all_pairs(values: list[float], baseline: list[float]) -> None:
    from scipy.stats import mannwhitneyu

    pairs = list(itertools.product(values, baseline))
    by_hand = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
    assert improvement(values, baseline) == pytest.approx(by_hand)
    if len({*values, *baseline}) > 1:  # scipy divides by the spread of the ranks, for its p-value
        expected = mannwhitneyu(values, baseline, method="asymptotic").statistic / len(pairs)
        assert improvement(values, baseline) == pytest.approx(expected)


def test_improvement_of_no_runs_is_nothing() -> None:
    assert improvement([], [0.5]) is None
    assert improvement([0.5], []) is None


@pytest.mark.parametrize(("effect", "expected"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_are_those_of_the_power_tables(effect: float, expected: int) -> None:
    """Paired t-test, two-sided 5%, power 80%: the sizes that G*Power gives for d = 0.2, 0.5, 0.8, 1."""
    baseline = np.array([0.5, 0.5, 0.5])
    for sign in (1, -1):
        assert seeds_needed(baseline + sign * (effect + np.array([-1.0, 0.0, 1.0])), baseline) == expected


def test_as_many_seeds_as_needed_find_the_difference_and_one_less_does_too_rarely() -> None:
    from scipy.stats import ttest_1samp

    differences = np.array([0.001, 0.010, 0.004, 0.013])
    needed = seeds_needed(0.9 + differences, np.full(4, 0.9))
    assert needed is not None
    generator = np.random.default_rng(2)
    found = {}
    for seeds in (needed - 1, needed):
        drawn = generator.normal(differences.mean(), differences.std(ddof=1), size=(40_000, seeds))
        found[seeds] = np.mean(ttest_1samp(drawn, 0, axis=1).pvalue < 0.05)
    assert found[needed - 1] < 0.8 < found[needed] + 0.005


def test_seeds_needed_are_not_said_where_nothing_is_known() -> None:
    assert seeds_needed([0.9], [0.8]) is None
    assert seeds_needed([], []) is None
    assert seeds_needed([0.9, 0.8], [0.8, 0.7]) is None, "no spread"
    assert seeds_needed([0.9, 0.8], [0.8, 0.9]) is None, "no difference"
    assert seeds_needed([0.90, 0.9001], [0.91, 0.8899]) is None, "more than a thousand"
    assert seeds_needed([0.9, 0.8 + 1e-9], [0.1, 0.0]) == 2, "a difference a billion times its spread"


# Other test items


def share_right(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def answers(right: np.ndarray) -> np.ndarray:
    """Give counts (runs, n, 2): right, and one for every item."""
    return np.stack([right, np.ones_like(right)], axis=-1).astype(np.float64)


def test_item_interval_covers_a_known_difference_as_often_as_it_promises() -> None:
    """1,000 test sets of 400 items on which the arm is right in 80%, the baseline in 75%; standard error 0.7%."""
    generator = np.random.default_rng(8)
    covered = []
    for _ in range(1000):
        u, v = generator.uniform(size=(2, 1, 400))
        arm, baseline = u < 0.8, np.where(v < 0.5, u, generator.uniform(size=(1, 400))) < 0.75
        result = item_interval(answers(arm), answers(baseline), share_right, rng=generator, resamples=400)
        covered.append(result.low <= 0.05 <= result.high)
    assert 0.925 < np.mean(covered) < 0.97


@pytest.mark.parametrize("kinds", ["few", "many"])
def test_item_interval_is_as_wide_as_the_normal_one_of_paired_items(kinds: str) -> None:
    generator = np.random.default_rng(9)
    if kinds == "few":
        arm, baseline = (generator.uniform(size=(runs, 3000)) < share for runs, share in ((3, 0.8), (2, 0.7)))
    else:  # every item another: drawn one by one
        arm, baseline = (generator.normal(share, 0.3, size=(runs, 3000)) for runs, share in ((3, 0.8), (2, 0.7)))
    result = item_interval(answers(arm), answers(baseline), share_right, rng=generator, resamples=4000)
    each = arm.mean(axis=0) - baseline.mean(axis=0)
    half = 1.96 * each.std() / 3000**0.5
    assert (result.mean, result.n) == (pytest.approx(each.mean()), 3000)
    assert (result.low, result.high) == pytest.approx((each.mean() - half, each.mean() + half), abs=0.08 * half)


def test_item_interval_repeats_by_its_generator_and_shrinks_where_runs_agree() -> None:
    right = np.random.default_rng(0).uniform(size=(2, 200)) < 0.7
    arm, baseline = answers(right[:1]), answers(right[1:])
    one, again, other = (item_interval(arm, baseline, share_right, rng=np.random.default_rng(s)) for s in (1, 1, 2))
    assert one == again != other
    same = item_interval(arm, arm, share_right, rng=np.random.default_rng(1))
    assert same.low == same.mean == same.high == 0


def test_item_interval_takes_the_metric_of_the_sums_and_not_the_mean_over_items() -> None:
    """F1 of ten items, worked out by hand: sums tp 6, said 8, gold 7 give 12 / 15."""
    tp, said, gold = np.zeros((3, 1, 10))
    tp[0, :6], said[0, :8], gold[0, [0, 1, 2, 3, 4, 5, 9]] = 1, 1, 1
    arm = np.stack([tp, said, gold], axis=-1)

    def f1(sums: np.ndarray) -> np.ndarray:
        return 2 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1)

    result = item_interval(arm, np.zeros_like(arm), f1, rng=np.random.default_rng(1))
    assert result.mean == pytest.approx(12 / 15)
    assert result.low < 12 / 15 < result.high


def test_item_interval_of_many_items_stays_small_in_memory() -> None:
    generator = np.random.default_rng(1)
    arm, baseline = answers(generator.uniform(size=(1, 100_000))), answers(generator.uniform(size=(1, 100_000)))
    tracemalloc.start()
    item_interval(arm, baseline, share_right, rng=generator, resamples=150)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150e6, "the weights of all resamples together would be 120 MB, and twice that while made"


def test_item_interval_refuses_what_does_not_fit() -> None:
    generator = np.random.default_rng(0)
    for arm, baseline in (
        (np.ones((1, 3, 2)), np.ones((1, 4, 2))),
        (np.ones((3, 2)), np.ones((3, 2))),
        (np.ones((0, 3, 2)), np.ones((1, 3, 2))),
        (np.ones((1, 0, 2)), np.ones((1, 0, 2))),
    ):
        with pytest.raises(ValueError, match="runs x items x counts"):
            item_interval(arm, baseline, share_right, rng=generator)
    with pytest.raises(ValueError, match="not finite"):
        item_interval(np.ones((1, 3, 1)), np.ones((1, 3, 1)), lambda sums: sums[..., 0] * np.nan, rng=generator)
