"""The hash split: stratified, deterministic, independent of the order of the rows, duplicates on one side."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from thrice.data import Split, overlap, split
from thrice.errors import ConfigError, DataError

NAMES = ("train", "dev", "test")

ROWS = st.lists(
    st.tuples(st.text(alphabet="ab \n", max_size=5), st.sampled_from(["x", "y", "z"])), min_size=3, max_size=60
)


def parts(result: Split) -> tuple[list[int], list[int], list[int]]:
    return result.train, result.dev, result.test


def split_or_none(rows: list[tuple[str, str]], seed: int) -> Split | None:
    try:
        return split([text for text, _ in rows], [label for _, label in rows], fractions=(0.6, 0.2, 0.2), seed=seed)
    except DataError:
        return None


@given(ROWS, st.integers(0, 5))
def test_every_row_is_in_one_part_and_equal_texts_are_in_the_same(rows: list[tuple[str, str]], seed: int) -> None:
    result = split_or_none(rows, seed)
    assume(result is not None)
    assert result is not None
    assert sorted(result.train + result.dev + result.test) == list(range(len(rows)))
    side: dict[str, set[str]] = {}
    for name, part in zip(NAMES, parts(result), strict=True):
        assert part == sorted(part)
        for row in part:
            side.setdefault(" ".join(rows[row][0].split()), set()).add(name)
    assert all(len(names) == 1 for names in side.values())


@given(ROWS, st.integers(0, 5), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(rows: list[tuple[str, str]], seed: int, random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = split_or_none(rows, seed), split_or_none(shuffled, seed)
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        for one, other in zip(parts(first), parts(second), strict=True):
            assert Counter(rows[row] for row in one) == Counter(shuffled[row] for row in other)


def test_the_split_is_the_same_on_every_machine() -> None:
    texts = [f"text {number}" for number in range(20)]
    result = split(texts, ["even", "odd"] * 10, seed=7)
    assert (result.dev, result.test) == ([3, 8], [7, 14])
    assert split(texts, ["even", "odd"] * 10, seed=8) != result


def test_every_label_is_cut_at_the_fractions() -> None:
    labels = ["rare"] * 40 + ["common"] * 400
    result = split([f"text {number}" for number in range(440)], labels, fractions=(0.7, 0.2, 0.1))
    counts = [Counter(labels[row] for row in part) for part in parts(result)]
    assert counts == [
        {"rare": 28, "common": 280},
        {"rare": 8, "common": 80},
        {"rare": 4, "common": 40},
    ]


def test_rare_labels_together_get_their_share_and_train_has_every_label() -> None:
    labels = [f"label {number // 3}" for number in range(300)]
    result = split([f"text {number}" for number in range(300)], labels)
    assert [len(part) for part in parts(result)] == [240, 30, 30]
    assert {labels[row] for row in result.train} == set(labels)


def test_a_label_with_one_text_is_in_train() -> None:
    labels = [f"label {number}" for number in range(60)] + ["common"] * 60
    result = split([f"text {number}" for number in range(120)], labels, fractions=(0.5, 0.25, 0.25))
    assert {labels[row] for row in result.train} == set(labels)
    assert {labels[row] for row in result.dev + result.test} == {"common"}


def test_a_group_with_conflicting_labels_goes_by_its_most_common_one() -> None:
    texts = ["same"] * 3 + [f"a{number}" for number in range(50)] + [f"b{number}" for number in range(50)]
    for conflicting, like in ((["b", "a", "b"], "b"), (["a", "b", "a"], "a")):
        mixed = split(texts, conflicting + ["a"] * 50 + ["b"] * 50)
        clean = split(texts, [like] * 3 + ["a"] * 50 + ["b"] * 50)
        assert mixed == clean


def test_rows_with_several_labels_count_for_the_rarest() -> None:
    labels: list[str | list[str]] = [["all", "rare"] if number % 10 == 0 else ["all"] for number in range(200)]
    result = split([f"text {number}" for number in range(200)], labels, fractions=(0.5, 0.25, 0.25))
    rare = [sum("rare" in labels[row] for row in part) for part in parts(result)]
    assert rare == [10, 5, 5]
    with_none = split([f"text {number}" for number in range(200)], [[] for _ in range(200)])
    assert [len(part) for part in parts(with_none)] == [160, 20, 20]


def test_a_part_without_a_share_stays_empty() -> None:
    result = split([f"text {number}" for number in range(50)], ["a"] * 50, fractions=(0.8, 0.2, 0.0))
    assert [len(part) for part in parts(result)] == [40, 10, 0]


def test_too_few_rows_are_an_error_that_counts_distinct_texts() -> None:
    with pytest.raises(DataError, match=r"30 rows with 1 distinct texts .* dev and test would be empty"):
        split(["same  text", "same text "] * 15, ["a", "b"] * 15)


@pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.2), (0.0, 0.5, 0.5), (1.1, -0.1, 0.0)])
def test_impossible_fractions_are_an_error(fractions: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError, match="fractions"):
        split(["a", "b", "c"], ["x", "y", "z"], fractions=fractions)


def test_labels_that_do_not_fit_the_texts_are_an_error() -> None:
    with pytest.raises(ConfigError, match="2 texts and 1 labels"):
        split(["a", "b"], ["x"])


def test_overlap_counts_distinct_texts_of_the_second_list() -> None:
    assert overlap(["a b", "c", "d"], ["a  b ", "a b", "d", "e"]) == 2
    assert overlap([], ["a"]) == 0
