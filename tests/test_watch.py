"""Warnings and the verdict of a run, worked out on curves written by hand."""

from __future__ import annotations

import math
from typing import Any

from thrice.pretraining.watch import at_chance, on_plateau, verdict, warnings_of

FACTS = {"unigram_entropy": 6.0, "most_frequent": 0.04}


def curve(*losses: float, stage: int = 1, begin: float = 0.0, **more: float) -> list[dict[str, Any]]:
    """Give evenly spaced evaluations of one stage with these MLM losses, and the same further values in each."""
    step = (1 - begin) / len(losses)
    return [
        {
            "stage": stage,
            "share": begin + (i + 1) * step,
            "held_out": {"mlm": loss, "mlm_accuracy": 0.3, **more},
            "counts": dict.fromkeys(("mlm_accuracy", *more), 2000.0),
        }
        for i, loss in enumerate(losses)
    ]


def test_a_loss_that_stands_near_the_unigram_entropy_is_a_plateau() -> None:
    found = warnings_of(curve(7.5, 6.1, 5.95, 5.9, 5.9), FACTS)
    assert list(found) == ["plateau of mlm"]
    assert "stands at 5.90 nats, near the unigram entropy of the text (6.00)" in found["plateau of mlm"]
    assert "max_length 40" in found["plateau of mlm"]


def test_a_loss_that_falls_or_has_fallen_is_no_plateau() -> None:
    assert not warnings_of(curve(7.5, 6.1, 5.9, 5.6, 5.2), FACTS)  # falling through it
    assert not warnings_of(curve(6.0, 5.0, 4.4, 4.3, 4.3), FACTS)  # stands far below
    assert not on_plateau(curve(6.0, 5.99, 5.98, 5.97, 5.96, 5.95, 5.94)[:1], FACTS, "mlm")  # too early to tell


def test_the_length_of_a_stage_does_not_hide_a_plateau_nor_make_one() -> None:
    first = curve(6.5, 5.95, 5.94)
    for record in first:
        record["share"] *= 0.5
    assert not on_plateau([*first, *curve(5.2, 5.0, stage=2, begin=0.5)], FACTS, "mlm")
    assert on_plateau([*first, *curve(5.93, 5.93, stage=2, begin=0.5)], FACTS, "mlm")


def test_a_generator_has_a_plateau_too_and_the_advice_names_its_objective() -> None:
    records = curve(7.5, 6.1, 5.95, 5.9, 5.9)
    for record in records:
        record["held_out"] = {"generator_mlm": record["held_out"]["mlm"], "rtd": 0.45, "rtd_auc": 0.49}
    found = warnings_of(records, FACTS)
    assert list(found) == ["plateau of generator_mlm", "chance in rtd"]
    assert "objectives.rtd.rate 0.2" in found["plateau of generator_mlm"]
    assert "curve is 0.490, a half by guessing" in found["chance in rtd"]
    for record in records:
        record["held_out"] |= {"generator_mlm": 4.0, "rtd_auc": 0.8}
    assert not warnings_of(records, FACTS)


def test_a_loss_above_the_unigram_entropy_late_in_the_run_is_a_slow_start() -> None:
    found = warnings_of(curve(9.9, 9.5, 9.0), FACTS)
    assert list(found) == ["slow start of mlm"]


def test_a_loss_that_rises_is_a_collapse_and_so_is_one_that_is_no_number() -> None:
    for last in (5.0, math.nan):
        found = warnings_of(curve(6.0, 4.5, last), FACTS)
        assert "after 4.50 at its best" in found["collapse of mlm"]
    longer = [*curve(6.0, 4.5), *curve(5.0, stage=2)]  # longer sequences are another measure
    assert not any(kind.startswith("collapse") for kind in warnings_of(longer, FACTS))


def test_sentence_order_at_chance_is_told_once_its_stage_is_well_under_way() -> None:
    chance = {"sop": 0.69, "sop_accuracy": 0.52}
    records = curve(4.0, 4.0, 4.0, 4.0, stage=2, begin=0.6, **chance)
    assert not warnings_of(records[:1], FACTS)
    assert list(warnings_of(records, FACTS)) == ["chance in sop"]
    assert not warnings_of(curve(4.0, 4.0, 4.0, stage=2, sop=0.5, sop_accuracy=0.8), FACTS)


def test_chance_allows_for_how_few_pairs_there_were() -> None:
    record = {"held_out": {"sop_accuracy": 0.6}, "counts": {"sop_accuracy": 40.0}}
    assert at_chance(record, "sop")  # two standard errors of 40 pairs are 0.16
    record["counts"]["sop_accuracy"] = 4000.0
    assert not at_chance(record, "sop")


def test_generators_too_strong_and_too_weak_are_told_apart() -> None:
    strong = curve(3.0, 3.0, rtd=0.05, rtd_auc=0.8, generator_accuracy=0.7)
    weak = curve(3.0, 3.0, rtd=0.05, rtd_auc=0.99, generator_accuracy=0.05)
    fine = curve(3.0, 3.0, rtd=0.05, rtd_auc=0.9, generator_accuracy=0.4)
    assert list(warnings_of(strong, FACTS)) == ["generator too strong"]
    assert list(warnings_of(weak, FACTS)) == ["generator too weak"]
    assert not warnings_of(fine, FACTS)


def test_a_run_near_chance_cannot_be_told_at_this_scale() -> None:
    learned = verdict(curve(4.0), FACTS)
    assert (learned["verdict"], learned["reasons"]) == ("learned", [])
    assert [said.split()[0] for said in learned["above_chance"]] == ["mlm_accuracy"]
    near = curve(5.8)
    near[-1]["held_out"]["mlm_accuracy"] = 0.06
    found = verdict(near, FACTS)
    assert found["verdict"] == "cannot tell at this scale"
    assert "mlm_accuracy is 6.0%" in found["reasons"][0]
    found = verdict(curve(4.0, sop=0.69, sop_accuracy=0.51), FACTS)
    assert found["verdict"] == "cannot tell at this scale"
    assert "sop_accuracy is 51.0%, near the half of guessing" in found["reasons"][0]
    assert [said.split()[0] for said in found["above_chance"]] == ["mlm_accuracy"], "what it did learn is said too"
    found = verdict(curve(4.0, rtd=0.2, rtd_auc=0.51, generator_accuracy=0.3), FACTS)
    assert "rtd_auc is 0.510" in found["reasons"][0]
    assert verdict([], FACTS)["verdict"] == "not evaluated"


def test_terms_of_which_chance_is_not_known_are_not_called_learned() -> None:
    own = [{"stage": 1, "share": 1.0, "held_out": {"own": 0.1}, "counts": {"own": 10.0}}]
    found = verdict(own, FACTS)
    assert found["verdict"] == "not judged"
    assert "own" in found["reasons"][0]
