"""What a comparison says in words: a winner only where one stands, what would tell, and what a reader must know."""

from __future__ import annotations

from typing import Any

import pytest
from parts import Scores, make_part, make_summary

from thrice.report.verdict import headline, notes, study_notes, verdict

HIGHER: Scores = {"a": [0.80, 0.81, 0.82], "b": [0.84, 0.86, 0.86]}
CLOSE: Scores = {"a": [0.80, 0.81, 0.82], "b": [0.82, 0.80, 0.83]}
LOWER: Scores = {"a": [0.84, 0.86, 0.86], "b": [0.80, 0.81, 0.82]}


@pytest.mark.parametrize(
    ("scores", "said", "winner"),
    [
        (HIGHER, "b to a is +4.33 points", True),
        (CLOSE, "covers zero", False),
        (LOWER, "difference of b to a is −4.33 points", True),
        ({"a": CLOSE["b"], "b": CLOSE["a"]}, "covers zero", False),
        ({**LOWER, "c": [0.70, 0.71, 0.73]}, "every other arm", True),
        ({**LOWER, "c": [0.86, 0.83, 0.86]}, "may be zero for c;", False),
        ({"a": [0.80], "b": [0.90]}, "one seed gives no interval.", False),
        ({"a": [0.80, 0.82], "b": [0.81, 0.83]}, "+1.00 in every seed, which gives no interval.", False),
        ({"a": [0.80, None], "b": [None, 0.90]}, "no seed that both finished.", False),
        ({"a": [0.80, 0.80], "b": [0.80, 0.80]}, "covers zero.", False),
    ],
)
def test_a_winner_is_called_only_where_the_interval_excludes_zero(scores: Scores, said: str, winner: bool) -> None:
    sentence = verdict(make_part(scores))
    assert said in sentence
    assert ("no winner is called" not in sentence) == winner
    assert ("excludes zero" in sentence) == winner


@pytest.mark.parametrize(("p", "winner"), [(0.049, True), (0.05, False), (0.12, False), (None, True)])
def test_a_winner_is_called_only_where_it_stands_among_all_comparisons(p: float | None, winner: bool) -> None:
    sentence = verdict(make_part(HIGHER, differences={"b": {"p_corrected": p}}))
    assert ("no winner is called" not in sentence) == winner
    if p == 0.12:
        assert "+2.90 to +5.77, that leaves out zero" in sentence
        assert "p = 0.12 after Holm's correction" in sentence
    several = verdict(make_part({**LOWER, "c": [0.70, 0.71, 0.73]}, differences={"b": {"p_corrected": p}}))
    assert ("no winner is called" not in several) == winner
    assert ("may be zero for b" in several) != winner


def test_a_summary_that_knows_of_no_correction_is_read_by_its_interval() -> None:
    part = make_part(HIGHER)
    difference = part["arms"][1]["test"]["difference"]
    for key in ("p", "p_corrected", "seeds_needed", "items"):
        del difference[key]
    assert "no winner" not in verdict(part)


def test_where_no_winner_is_called_the_seeds_that_would_tell_are_said() -> None:
    needed = make_part(CLOSE)["arms"][1]["test"]["difference"]["seeds_needed"]
    assert needed > 3
    ending = f"about {needed} seeds in all would tell, were the difference as large as it looks."
    assert verdict(make_part(CLOSE)).endswith(ending)
    assert "seeds in all" not in verdict(make_part(HIGHER))
    assert "seeds in all" not in verdict(make_part(CLOSE, differences={"b": {"seeds_needed": None}}))


def test_of_several_doubts_the_most_seeds_are_said_and_none_where_one_is_unknown() -> None:
    scores = {"a": [0.85, 0.84, 0.86], "b": [0.84, 0.85, 0.84], "c": [0.80, 0.86, 0.83]}
    for needed, said in (((20, 1100), "about 1,100 seeds"), ((20, None), None)):
        entries = {arm: {"seeds_needed": n} for arm, n in zip("bc", needed, strict=True)}
        sentence = verdict(make_part(scores, differences=entries))
        assert "may be zero for b, c" in sentence
        assert (said in sentence) if said else ("seeds in all" not in sentence)


def test_no_more_seeds_are_asked_for_where_only_the_number_of_comparisons_stands_against_a_difference() -> None:
    sentence = verdict(make_part(HIGHER, differences={"b": {"p_corrected": 0.2, "seeds_needed": 3}}))
    assert "no winner is called" in sentence
    assert "seeds in all" not in sentence


@pytest.mark.parametrize(("low", "said"), [(-0.01, True), (0.0, True), (0.01, False)])
def test_other_test_texts_are_mentioned_where_they_leave_zero_open(low: float, said: bool) -> None:
    part = make_part(HIGHER, differences={"b": {"items": {"low": low, "high": 0.09, "n": 500}}})
    assert ("; over other test texts the difference may be zero all the same." in verdict(part)) == said
    part = make_part(
        {**LOWER, "c": [0.70, 0.71, 0.73]},
        differences={arm: {"items": {"low": -0.1, "high": low, "n": 500}} for arm in "bc"},
    )
    assert ("over other test texts the difference of b and c may be zero" in verdict(part)) == (low >= 0)


def test_verdict_of_one_arm_of_nothing_and_of_collapse_alone() -> None:
    assert "no other arm" in verdict(make_part({"a": [0.8, 0.9]}))
    assert verdict(make_part({"a": [None] * 3, "b": [None] * 3})) == "No test accuracy yet: 0 of 6 cells are done."
    lost = make_part({"a": [0.5, 0.5]}, collapsed={"a": [0, 1]})
    assert verdict(lost) == "There is no test accuracy to compare: every finished run collapsed, 2 of 2."


def test_best_dev_decides_where_the_part_says_so() -> None:
    assert "b has the highest best dev macro F1" in verdict(make_part(HIGHER, metric="macro_f1", deciding="best_dev"))


def test_verdict_of_many_doubtful_arms_counts_them() -> None:
    scores: dict[str, Any] = {f"arm {place}": [0.80 - place / 1000, 0.82 + place / 10000] for place in range(9)}
    sentence = verdict(make_part({**scores, "low": [0.5, 0.52001]}))
    assert "may be zero for 8 of the other 9 arms" in sentence


def test_a_headline_counts_tasks_and_averages_nothing() -> None:
    parts = [
        make_part(HIGHER, task="reviews"),
        make_part(HIGHER, task="pairs"),
        make_part(LOWER, task="names"),
        make_part(CLOSE, task="news"),
        make_part({"a": [None], "b": [None]}, task="later"),
        make_part({"a": [0.5], "b": [None]}, task="alone"),
    ]
    assert headline(make_summary(*parts)) == (
        "Of 6 tasks: b is above a on reviews and pairs; a is above all others on names; no winner is called on news; "
        "one arm alone has a score on alone; there is no score on later."
    )
    assert headline(make_summary(parts[0])) == verdict(parts[0])


def test_notes_say_what_is_missing_and_collapsed() -> None:
    part = make_part({"a": [0.8, 0.9, None], "b": [0.5, 0.8, 0.9]}, collapsed={"b": [0]})
    first, second = notes(part)
    assert "5 of 6" in first
    assert second.startswith("b: 1 of 3 runs collapsed to the majority class (seed 0); shown beside the others")
    assert notes(make_part(HIGHER)) == []


def test_cells_that_the_study_no_longer_names_are_said_once() -> None:
    summary = make_summary(make_part(HIGHER))
    assert study_notes(summary) == []
    outside = [{"arm": "old", "task": task, "seed": 0, "point": {}} for task in ("reviews", "pairs")]
    (said,) = study_notes({**summary, "outside": outside})
    assert said.endswith("left out: old seed 0.")
