"""Advice from summaries made by hand: which arm, held against which, under which limits, in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from parts import Scores, make_part, make_summary

from thrice.compare.advise import advise
from thrice.errors import ConfigError

ALL, FREE, BIG = "nano", "nano+none", "base"

# The un-shared arm is 4 points higher in every seed, give or take half a point; the big one another point.
CLEAR: Scores = {ALL: [0.90, 0.91, 0.92], FREE: [0.94, 0.955, 0.955], BIG: [0.95, 0.962, 0.968]}
CLOSE: Scores = {ALL: [0.90, 0.91, 0.92], FREE: [0.91, 0.905, 0.925]}


def cost_of(stored: float, called: float | None, ms: float | None, memory: float | None, **more: Any) -> dict[str, Any]:
    return {
        "parameters_stored": stored,
        "parameters_called": called,
        "file_bytes": 4 * stored,
        "peak_memory_bytes": memory,
        "latency_long_ms": {"p50": ms, "p95": 2 * ms, "tokens": 128} if ms else None,
        **more,
    }


COST = {
    ALL: cost_of(3_275_000, 5_700_000, 5.0, 310e6),
    FREE: cost_of(5_700_000, 5_700_000, 5.1, 315e6),
    BIG: cost_of(25_000_000, 90_000_000, 60.0, 1500e6),
}


def advice(scores: Scores, cost: Any = COST, **limits: Any) -> dict[str, Any]:
    found = advise(make_summary(make_part(scores), cost=cost), **limits)
    json.dumps(found)
    assert all(reason.endswith(".") for reason in found["reasons"])
    return found


def test_of_one_shape_the_settled_higher_arm_is_unshared_in_the_essays_terms() -> None:
    found = advice({arm: CLEAR[arm] for arm in (ALL, FREE)})
    assert (found["pick"], found["runner_up"], found["task"]) == (FREE, ALL, "reviews")
    assert (found["fits"], found["fails"], found["nearest_miss"]) == ([FREE, ALL], [], None)
    assert found["reasons"] == [
        "nano+none has the highest accuracy of the 2 arms that fit, 95.00\u00a0% over 3 seeds.",
        "nano+none against nano: same shape, same speed, +4.00 ± 1.24 accuracy: un-share; "
        "the shared one saves you only the file (13.1 against 22.8 MB).",
    ]


def test_a_cheaper_arm_that_may_be_as_good_is_the_pick() -> None:
    found = advice(CLOSE)
    assert (found["pick"], found["runner_up"], found["fits"]) == (ALL, FREE, [FREE, ALL])
    assert found["reasons"] == [
        "nano+none has the highest accuracy, 91.33\u00a0%, and nano 91.00\u00a0% over 3 seeds, but the difference, "
        "+0.33 ± 1.90 accuracy, may be zero: the cheaper of the two is the pick.",
        "nano+none against nano: same shape, same speed, +0.33 ± 1.90 accuracy, not settled: keep sharing; "
        "the shared one saves you the file (13.1 against 22.8 MB).",
    ]


def test_the_costs_that_decide_are_said_where_the_cheaper_arm_has_another_shape() -> None:
    found = advice({ALL: CLOSE[ALL], BIG: CLOSE[FREE]})
    assert found["pick"] == ALL
    assert found["reasons"] == [
        "base has the highest accuracy, 91.33\u00a0%, and nano 91.00\u00a0% over 3 seeds, but the difference, "
        "+0.33 ± 1.90 accuracy, may be zero: the cheaper of the two is the pick (one text of 128 tokens 5.00 against "
        "60.0 ms, file 13.1 against 100.0 MB, training memory 310.0 against 1,500.0 MB).",
    ]


def test_an_arm_that_is_smaller_but_slower_is_not_cheaper() -> None:
    slower = {**COST, ALL: cost_of(3_275_000, 5_700_000, 8.0, 310e6)}
    found = advice(CLOSE, slower)
    assert (found["pick"], found["runner_up"]) == (FREE, ALL)
    assert "same shape, 5.10 against 8.00 ms for one text of 128 tokens" in found["reasons"][1]
    assert "not settled; the shared one saves you the file" in found["reasons"][1]


def test_times_within_what_the_control_differs_by_are_the_same() -> None:
    cost = {**COST, ALL: cost_of(3_275_000, 5_700_000, 5.6, 310e6)}
    part = make_part(CLOSE)
    for ratio, pick in ((1.01, FREE), (1.12, ALL), (0.88, ALL)):
        control = {"arm": ALL, "ratios": {"latency_long_ms": ratio}}
        assert advise(make_summary(part, cost=cost, control=control))["pick"] == pick


def test_of_several_arms_that_may_be_as_good_the_cheapest_is_the_pick() -> None:
    scores = {"a": [0.90, 0.92], "b": [0.93, 0.90], "c": [0.91, 0.93], "far": [0.50, 0.521]}
    cost = {arm: cost_of(stored, None, 5.0, None) for arm, stored in (("a", 3e6), ("b", 2e6), ("c", 4e6), ("far", 1e6))}
    assert advice(scores, cost)["pick"] == "b"
    assert advice({"far": scores["far"], **scores}, cost)["pick"] == "b", "another baseline changes nothing"


def test_a_difference_that_is_one_of_many_is_not_settled() -> None:
    part = make_part({arm: CLEAR[arm] for arm in (ALL, FREE)}, differences={FREE: {"p_corrected": 0.2}})
    found = advise(make_summary(part, cost=COST))
    assert found["pick"] == ALL
    assert "+4.00 ± 1.24 accuracy, may be chance among so many" in found["reasons"][0]


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ({ALL: [0.9], FREE: [0.95]}, "same speed, +5.00 accuracy in one seed, not settled;"),
        ({ALL: [0.9, 0.8], FREE: [0.95, 0.85]}, "same speed, +5.00 accuracy in every one of 2 seeds, not settled;"),
        ({ALL: [0.9, None], FREE: [None, 0.95]}, "same speed, no seed in common, not settled;"),
    ],
)
def test_without_an_interval_the_highest_is_the_pick_and_nothing_is_settled(scores: Scores, said: str) -> None:
    found = advice(scores)
    assert found["pick"] == FREE
    assert said in found["reasons"][1]
    assert "un-share" not in found["reasons"][1]


def test_arms_that_score_the_same_in_every_seed_are_told_apart_by_their_cost() -> None:
    found = advice({FREE: [0.9, 0.8], ALL: [0.9, 0.8]})
    assert (found["pick"], found["runner_up"]) == (ALL, FREE)
    assert "they score the same in every seed" in found["reasons"][0]


def test_limits_leave_out_arms_and_say_by_what() -> None:
    found = advice(CLEAR, max_latency_ms=10, max_size_mb=20, max_memory_mb=400)
    assert (found["pick"], found["runner_up"], found["fits"]) == (ALL, None, [ALL])
    assert found["fails"] == [
        {"arm": FREE, "because": ["its file takes 22.8 MB, at most 20.0 are asked"]},
        {
            "arm": BIG,
            "because": [
                "one text of 128 tokens takes 60.0 ms, at most 10.0 are asked",
                "its file takes 100.0 MB, at most 20.0 are asked",
                "training at its peak takes 1,500.0 MB, at most 400.0 are asked",
            ],
        },
    ]
    assert found["reasons"] == [
        "nano is the only arm that fits; its accuracy is 91.00\u00a0% over 3 seeds.",
        "nano keeps to what is asked: one text of 128 tokens takes 5.00 ms of 10.0, its file takes 13.1 MB of 20.0, "
        "training at its peak takes 310.0 MB of 400.0.",
        "nano+none against nano: same shape, same speed, +4.00 ± 1.24 accuracy: nano+none is better and does not fit "
        "what is asked; the shared one saves you the file (13.1 against 22.8 MB).",
    ]


def test_a_limit_is_kept_by_what_just_reaches_it() -> None:
    found = advice(CLEAR, max_latency_ms=5.1, max_size_mb=22.8, max_memory_mb=315, min_score=0.95)
    assert found["pick"] == FREE


@pytest.mark.parametrize("least", [0.94, 94])
def test_the_least_score_is_a_share_or_per_cent(least: float) -> None:
    found = advice(CLEAR, min_score=least)
    assert [fail["arm"] for fail in found["fails"]] == [ALL]
    assert found["fails"][0]["because"] == ["its accuracy is 91.00\u00a0%, at least 94.00\u00a0% is asked"]


def test_where_nothing_fits_the_nearest_miss_is_named() -> None:
    found = advice(CLEAR, max_latency_ms=4, min_score=0.93)
    assert (found["pick"], found["runner_up"], found["fits"]) == (None, None, [])
    assert found["nearest_miss"]["arm"] == ALL, "25% too slow and 2% too low; the next is 27.5% too slow"
    assert found["nearest_miss"]["beyond"] == pytest.approx(0.25)
    assert found["reasons"] == [
        "No arm fits. The nearest is nano, 25% beyond: one text of 128 tokens takes 5.00 ms, at most 4.00 are asked; "
        "its accuracy is 91.00\u00a0%, at least 93.00\u00a0% is asked."
    ]


def test_what_was_not_measured_keeps_to_no_limit() -> None:
    cost = {ALL: cost_of(3e6, None, None, None), FREE: {}}
    found = advice(CLOSE, cost, max_latency_ms=10)
    assert (found["pick"], found["nearest_miss"]) == (None, None)
    assert found["fails"][1]["because"] == ["what one long text takes was not measured"]
    assert found["reasons"] == ["No arm fits: what is asked was not measured of any."]
    assert advice(CLOSE, {})["pick"] == FREE, "nothing is known to be cheaper"


def test_two_shapes_are_compared_in_neutral_words() -> None:
    found = advice({ALL: CLEAR[ALL], BIG: CLEAR[BIG]})
    assert found["pick"] == BIG
    assert found["reasons"][1] == (
        "base against nano: +5.00 ± 0.50 accuracy; one text of 128 tokens 60.0 against 5.00 ms, "
        "file 100.0 against 13.1 MB, training memory 1,500.0 against 310.0 MB."
    )


def test_another_checkpoint_of_the_same_shape_is_not_called_unsharing() -> None:
    scores = {ALL: CLEAR[ALL], "other": CLEAR[FREE]}
    found = advice(scores, {ALL: COST[ALL], "other": COST[FREE]})
    assert "same shape, same speed, +4.00 ± 1.24 accuracy: take the one that does not share;" in found["reasons"][1]


def test_sharing_patterns_are_told_from_the_model_where_arms_have_names() -> None:
    names = {"plain": ALL, "free": FREE}
    scores = {name: CLEAR[model] for name, model in names.items()}
    cost = {name: {**COST[model], "parameters_called": None} for name, model in names.items()}
    found = advise(make_summary(make_part(scores), cost=cost, models=names))
    assert found["reasons"][1].startswith("free against plain: same shape, same speed")


def test_where_the_shared_arm_is_better_sharing_is_kept() -> None:
    found = advice({ALL: CLEAR[FREE], FREE: CLEAR[ALL]})
    assert found["pick"] == ALL
    assert found["reasons"][1].endswith(
        "−4.00 ± 1.24 accuracy: keep sharing; it also saves you the file (13.1 against 22.8 MB)."
    )


def test_speed_is_not_claimed_where_it_was_not_measured() -> None:
    cost = {arm: {**COST[arm], "latency_long_ms": None} for arm in (ALL, FREE)}
    found = advice({arm: CLEAR[arm] for arm in (ALL, FREE)}, cost)
    assert "same shape, speed not measured" in found["reasons"][1]
    assert "same speed" not in found["reasons"][1]


def test_training_memory_is_part_of_what_sharing_saves() -> None:
    cost = {**COST, ALL: cost_of(3_275_000, 5_700_000, 5.0, 200e6)}
    found = advice({arm: CLEAR[arm] for arm in (ALL, FREE)}, cost)
    assert found["reasons"][1].endswith(
        "saves you only the file (13.1 against 22.8 MB) and training memory (200.0 against 315.0 MB)."
    )


def test_unfinished_and_collapsed_runs_are_said() -> None:
    part = make_part({ALL: [0.90, 0.91, 0.92], FREE: [0.94, 0.5, None]}, collapsed={FREE: [1]})
    found = advise(make_summary(part, cost=COST))
    assert found["reasons"][-2:] == [
        "Preliminary: 5 of 6 cells are done.",
        "nano+none: 1 of 2 runs collapsed; no collapsed run counts here.",
    ]


def test_arms_without_a_score_fail_and_say_why() -> None:
    part = make_part({ALL: [None, None], FREE: [0.5, 0.5]}, collapsed={FREE: [0, 1]})
    found = advise(make_summary(part, cost=COST))
    assert found["pick"] is None
    assert [fail["because"] for fail in found["fails"]] == [
        ["it has no score yet"],
        ["every finished run collapsed, 2 of 2"],
    ]
    assert found["reasons"][0] == "No arm has a score to go by."


def test_scores_of_the_dev_data_are_said_to_be_that() -> None:
    found = advise(make_summary(make_part(CLEAR, deciding="best_dev"), cost=COST))
    assert found["pick"] == BIG
    assert "dev data" in found["reasons"][-1]


def test_several_tasks_in_per_cent_are_averaged_over_the_seeds_that_all_have() -> None:
    one = make_part({ALL: [0.90, 0.91], FREE: [0.80, 0.805]}, task="reviews")
    two = make_part({ALL: [0.50, 0.51], FREE: [0.70, 0.713]}, task="pairs", metric="macro_f1")
    summary = make_summary(one, two, cost=COST)
    found = advise(summary)
    assert (found["pick"], found["task"]) == (FREE, None)
    assert "+4.95 ± 0.64 score" in found["reasons"][1]
    assert "mean over 2 tasks: reviews, pairs" in found["reasons"][-1]
    assert advise(summary, task="reviews")["pick"] == ALL


def test_tasks_without_a_common_scale_are_not_averaged() -> None:
    one, two = make_part(CLOSE, task="reviews"), make_part(CLOSE, task="similar", metric="spearman")
    summary = make_summary(one, two, cost=COST)
    with pytest.raises(ConfigError, match=r"accuracy, spearman, .* --task: reviews, similar"):
        advise(summary)
    assert "+0.0033 ± 0.0190 spearman" in advise(summary, task="similar")["reasons"][1]
    with pytest.raises(ConfigError, match="no task 'similer'; did you mean similar"):
        advise(summary, task="similer")


def test_limits_that_are_no_limits_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError, match=r"max_latency_ms is -1.*min_score is nan"):
        advice(CLOSE, max_latency_ms=-1.0, min_score=float("nan"))
