"""Statistics of a comparison against numbers worked out by hand and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thrice.compare.statistics import paired_difference, summary


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
def test_interval_equals_that_of_scipys_paired_test(pairs: list[tuple[float, float]]) -> None:
    from scipy.stats import ttest_rel

    values, baseline = np.array(pairs).T
    if np.ptp(values - baseline) < 1e-6:
        return  # scipy's interval is not a number there
    expected = ttest_rel(values, baseline).confidence_interval(0.95)
    result = paired_difference(values, baseline)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


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
    assert paired_difference([0.5, 0.5], [0.5, 0.5]).high == 0


def test_fewer_than_two_pairs_have_no_interval() -> None:
    one, none = paired_difference([0.9], [0.8]), paired_difference([], [])
    assert (one.mean, one.low, one.high, one.n) == (pytest.approx(0.1), None, None, 1)
    assert (none.mean, none.low, none.high, none.n) == (None, None, None, 0)


@pytest.mark.parametrize("values", [[float("nan"), 1.0], [float("inf"), 1.0], [1.0]])
def test_unpaired_or_infinite_values_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="wanted"):
        paired_difference(values, [0.5, 0.6])


def test_interval_covers_the_truth_as_often_as_it_promises() -> None:
    """2,000 studies of three seeds: 95% coverage has a binomial standard error of 0.5%."""
    generator = np.random.default_rng(3)
    differences = generator.normal(0.01, 0.02, size=(2000, 3))
    results = [paired_difference(row, np.zeros(3)) for row in differences]
    covered = np.mean([result.low <= 0.01 <= result.high for result in results])
    assert 0.93 < covered < 0.97
