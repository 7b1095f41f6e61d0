"""Schedules against values worked out by hand; steps are counted from 1."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from thrice.errors import ConfigError
from thrice.training.schedule import SCHEDULES, parse_schedule, warmup_steps


def factors(text: str, *, total_steps: int, warmup: float) -> list[float]:
    schedule = parse_schedule(text, total_steps=total_steps, warmup=warmup)
    return [schedule(step) for step in range(1, total_steps + 1)]


def test_linear_rises_to_one_at_the_last_warmup_step_and_the_last_step_still_learns() -> None:
    assert factors("linear", total_steps=6, warmup=2) == pytest.approx([1 / 2, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5])
    assert factors("linear", total_steps=4, warmup=0) == [1.0, 0.75, 0.5, 0.25]


def test_linear_without_warmup_is_the_linear_schedule_of_transformers() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    stock = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=7)
    expected = []
    for _ in range(7):
        expected.append(stock.get_last_lr()[0])
        optimizer.step()
        stock.step()
    assert factors("linear", total_steps=7, warmup=0) == pytest.approx(expected)


def test_cosine_is_half_a_wave_after_the_warmup() -> None:
    expected = [1 / 2, 1, *(0.5 * (1 + math.cos(math.pi * k / 4)) for k in (1, 2, 3))]
    assert factors("cosine", total_steps=5, warmup=2) == pytest.approx(expected)
    assert expected[3] == pytest.approx(0.5)


def test_constant_keeps_the_full_rate_after_the_warmup() -> None:
    assert factors("constant", total_steps=5, warmup=3) == pytest.approx([1 / 3, 2 / 3, 1, 1, 1])


def test_points_give_the_protocol_of_the_essays() -> None:
    schedule = parse_schedule("1000:1,2000:0.1", total_steps=5280, warmup=0.1)
    steps = (1, 500, 1000, 1500, 2000, 5280)
    assert [schedule(s) for s in steps] == pytest.approx([0.001, 0.5, 1, 0.55, 0.1, 0.1])


def test_a_point_at_step_zero_replaces_the_rise_from_zero() -> None:
    assert factors(" 0:1, 4:0 ", total_steps=5, warmup=0) == pytest.approx([0.75, 0.5, 0.25, 0, 0])


@pytest.mark.parametrize(
    ("warmup", "total", "steps"), [(0.1, 70, 7), (0.1, 71, 8), (0.0, 9, 0), (5, 9, 5), (5.0, 9, 5), (0.001, 9, 1)]
)
def test_a_warmup_fraction_is_rounded_up_from_the_decimal_that_was_written(
    warmup: float, total: int, steps: int
) -> None:
    assert warmup_steps(warmup, total) == steps


def test_every_listed_schedule_can_be_parsed_and_stays_within_zero_and_one() -> None:
    for name in SCHEDULES:
        assert all(0 < f <= 1 for f in factors(name, total_steps=30, warmup=0.1))


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="no schedule called 'linaer'; did you mean linear"):
        parse_schedule("linaer", total_steps=10, warmup=0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1000:", "'1000:' is not STEP:FACTOR"),
        ("10:1,abc", "'abc' is not STEP:FACTOR"),
        ("10:1,10:0.5", "step 10 does not come after step 10"),
        ("-1:1", "negative or endless"),
        ("10:-0.5", "negative or endless"),
        ("10:nan", "negative or endless"),
        ("1.5:1", "'1.5:1' is not STEP:FACTOR"),
    ],
)
def test_malformed_points_are_refused_with_an_example(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_schedule(text, total_steps=10, warmup=0)
    assert complaint in str(caught.value)
    assert "write points like '1000:1,2000:0.1'" in str(caught.value)


def test_all_problems_of_a_schedule_are_told_at_once() -> None:
    with pytest.raises(
        ConfigError, match=r"'x:1' is not STEP:FACTOR.*'7:-1' has a negative.*step 3 does not come after"
    ):
        parse_schedule("x:1,7:-1,3:1", total_steps=10, warmup=0)


def test_a_warmup_longer_than_the_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="a warm-up of 11 steps does not fit into a run of 10"):
        parse_schedule("linear", total_steps=10, warmup=11)
