"""Batches: the same for every arm, every example exactly once, budgets kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thrice.data import prediction_batches, training_batches
from thrice.errors import ConfigError


@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 2**32), st.integers(0, 1000))
def test_a_training_epoch_holds_every_example_once_in_steps_of_fixed_size(
    num_examples: int, batch_size: int, seed: int, epoch: int
) -> None:
    batches = training_batches(num_examples, batch_size=batch_size, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches)) == list(range(num_examples))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert 1 <= len(batches[-1]) <= batch_size


def test_the_order_of_a_training_epoch_is_the_same_on_every_machine() -> None:
    batches = training_batches(10, batch_size=4, seed=0, epoch=0)
    assert [batch.tolist() for batch in batches] == [[3, 2, 1, 8], [6, 0, 7, 4], [5, 9]]
    again = training_batches(10, batch_size=4, seed=0, epoch=0)
    assert all((a == b).all() for a, b in zip(batches, again, strict=True))


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = {
        tuple(np.concatenate(training_batches(50, batch_size=7, seed=seed, epoch=epoch)))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


def test_the_batch_size_does_not_change_the_order() -> None:
    small, large = (training_batches(50, batch_size=size, seed=3, epoch=1) for size in (4, 32))
    assert (np.concatenate(small) == np.concatenate(large)).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_examples": 0, "batch_size": 1, "seed": 0, "epoch": 0},
        {"num_examples": 1, "batch_size": 0, "seed": 0, "epoch": 0},
        {"num_examples": 1, "batch_size": 1, "seed": -1, "epoch": 0},
        {"num_examples": 1, "batch_size": 1, "seed": 0, "epoch": -1},
    ],
)
def test_impossible_training_batches_are_an_error(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        training_batches(wrong.pop("num_examples"), **wrong)


@given(st.lists(st.integers(0, 40), max_size=80), st.integers(1, 100))
def test_prediction_batches_hold_every_example_once_within_the_budget_and_full(
    lengths: list[int], max_tokens: int
) -> None:
    batches = prediction_batches(lengths, max_tokens=max_tokens)
    order = [int(index) for batch in batches for index in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert order == sorted(order, key=lambda index: (-lengths[index], index))
    sizes = [sum(lengths[index] for index in batch) for batch in batches]
    for batch, size, follower in zip(batches, sizes, [*batches[1:], None], strict=False):
        assert len(batch) == 1 or size <= max_tokens
        assert follower is None or size + lengths[follower[0]] > max_tokens


def test_an_example_longer_than_the_budget_stands_alone() -> None:
    assert [batch.tolist() for batch in prediction_batches([3, 50, 4], max_tokens=8)] == [[1], [2, 0]]


def test_no_examples_give_no_prediction_batches_and_no_budget_is_an_error() -> None:
    assert prediction_batches([], max_tokens=8) == []
    with pytest.raises(ConfigError, match="max_tokens"):
        prediction_batches([1], max_tokens=0)
