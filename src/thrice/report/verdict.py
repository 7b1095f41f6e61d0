"""What a comparison says in words, and what it must not say: no winner where the interval covers zero.

A part is what a summary says of one task, under `tasks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thrice.metrics import LARGEST_P, metric_name
from thrice.report import tables

Arm = Mapping[str, Any]


def verdict(part: tables.Summary) -> str:
    """Say in one sentence which arm is highest and whether that stands against the first arm.

    Never more than the statistics say: no winner is called where an interval covers zero, cannot be formed or has no
    width, nor where the p-value, corrected for all comparisons of the study, is 5% or more.
    """
    metric, score = part["metric"], part["deciding"]
    what = f"{tables.SCORE_NAMES[score]} {metric_name(metric)}"
    best, rivals = _contest(part)
    if best is None:
        done, collapsed = part["cells"]["done"], sum(len(arm["collapsed"]) for arm in part["arms"])
        if done and done == collapsed:
            return f"There is no {what} to compare: every finished run collapsed, {collapsed} of {done}."
        return f"No {what} yet: {done} of {part['cells']['planned']} cells are done."
    figure = tables.format_score(best[score]["mean"], metric) + tables.unit(metric)
    seeds = f"{best[score]['n']} seed{'s' if best[score]['n'] > 1 else ''}"
    if not rivals:
        return f"{best['arm']} reaches {figure} {what} over {seeds}; no other arm has a score to compare it with."
    opening = f"{best['arm']} has the highest {what}, {figure} over {seeds}"
    doubts = _doubts(part, best, rivals)
    if doubts:
        more = _seeds_needed([arm[score]["difference"] for arm, _ in doubts])
        if len(rivals) == 1:
            pair = f"the paired difference of {rivals[0]['arm']} to {part['baseline']}"
            return f"{opening}, but no winner is called: {pair} {doubts[0][1]}{more}."
        named = ", ".join(arm["arm"] for arm, _ in doubts)
        names = named if len(doubts) < 4 else f"{len(doubts)} of the other {len(rivals)} arms"
        return f"{opening}, but no winner is called: the paired difference to it may be zero for {names}{more}."
    if len(rivals) == 1:
        pair = f"the paired difference of {rivals[0]['arm']} to {part['baseline']}"
        difference = rivals[0][score]["difference"]
        return f"{opening}: {pair} {_stands(difference, metric)}{_other_texts(rivals, score)}{_second(part)}."
    return (
        f"{opening}: the 95% interval of every other arm's paired difference to it excludes zero"
        f"{_other_texts(rivals, score)}."
    )


def headline(summary: tables.Summary) -> str:
    """Say in one sentence, for a study of several tasks, who is above the first arm on which; of one, its verdict.

    Tasks are counted and never averaged: their metrics are different things.
    """
    parts = summary["tasks"]
    if len(parts) == 1:
        return verdict(parts[0])
    wins: dict[str, list[str]] = {}
    open_tasks, alone, without = [], [], []
    for part in parts:
        best, rivals = _contest(part)
        if best is None:
            without.append(part["task"])
        elif not rivals:
            alone.append(part["task"])
        elif _doubts(part, best, rivals):
            open_tasks.append(part["task"])
        else:
            wins.setdefault(best["arm"] + _second(part), []).append(part["task"])
    said = []
    for claim, tasks in wins.items():
        arm, semicolon, second = claim.partition("; ")
        than = "all others" if arm == summary["baseline"] else summary["baseline"]
        said.append(f"{arm} is above {than} on {_listed(tasks)}" + (f" ({second})" if semicolon else ""))
    said += [f"no winner is called on {_listed(open_tasks)}"] if open_tasks else []
    said += [f"one arm alone has a score on {_listed(alone)}"] if alone else []
    said += [f"there is no score on {_listed(without)}"] if without else []
    return f"Of {len(parts)} tasks: {'; '.join(said)}." if said else "The study has no task."


def notes(part: tables.Summary) -> list[str]:
    """Say what else a reader must know before trusting a task's table; empty where there is nothing to say."""
    said = []
    done, planned = part["cells"]["done"], part["cells"]["planned"]
    if done < planned:
        said.append(f"Preliminary: {done} of {planned} cells are done; the same command finishes the rest.")
    for arm in part["arms"]:
        if arm["collapsed"]:
            count = len(arm["runs"])
            said.append(
                f"{arm['arm']}: {len(arm['collapsed'])} of {count} run{'s' if count > 1 else ''} collapsed to the "
                f"majority class ({tables.format_seeds(arm['collapsed'])}); shown beside the others, not part of any "
                "mean or difference."
            )
    return said


def study_notes(summary: tables.Summary) -> list[str]:
    """Say what a reader must know of the study as a whole; empty where there is nothing to say."""
    outside = [f"{cell['arm']} seed {cell['seed']}" for cell in summary["outside"]]
    if not outside:
        return []
    return [f"Finished cells that study.json no longer names are left out: {', '.join(dict.fromkeys(outside))}."]


def _contest(part: tables.Summary) -> tuple[Arm | None, list[Arm]]:
    """Give the highest arm, None where no arm has a score, and the arms whose difference to the first decides.

    Those are the highest arm itself or, where the first arm is highest, all others that have a score.
    """
    score = part["deciding"]
    measured = [arm for arm in part["arms"] if arm[score]["mean"] is not None]
    if not measured:
        return None, []
    best = max(measured, key=lambda arm: arm[score]["mean"])
    if best["arm"] == part["baseline"]:
        return best, [arm for arm in measured if arm is not best]
    return best, [best] if len(measured) > 1 else []


def _doubts(part: tables.Summary, best: Arm, rivals: list[Arm]) -> list[tuple[Arm, str]]:
    """Give the arms whose difference to the first does not say what the means say, each with the reason."""
    said = []
    for arm in rivals:
        difference = arm[part["deciding"]]["difference"]
        doubt = _doubt(difference, part["metric"])
        if doubt is None and (difference["mean"] > 0) != (arm is best):
            mean = tables.format_signed(difference["mean"], part["metric"])
            doubt = f"is {mean} over the seeds that both finished, against what the means over all seeds say"
        if doubt is not None:
            said.append((arm, doubt))
    return said


def _second(part: tables.Summary) -> str:
    """Say where the highest arm is not settled against the second, as the end of a sentence."""
    pair = part.get("best_to_second")
    if pair is None or pair["second"] == part["baseline"]:
        return ""
    low, high = pair["low"], pair["high"]
    if low is not None and low != high and low > 0:
        return ""
    return f"; whether it is above {pair['second']} too is open"


def _stands(difference: Mapping[str, Any], metric: str) -> str:
    """Say how far a difference lies from zero, as the end of a sentence."""
    points = " points" if tables.percent(metric) else ""
    mean, interval = tables.format_signed(difference["mean"], metric), tables.format_interval(difference, metric)
    return f"is {mean}{points}, and its 95% interval, {interval}, excludes zero"


def _doubt(difference: Mapping[str, Any], metric: str) -> str | None:
    """Say why a paired difference settles nothing, as the end of a sentence; None where it stands."""
    low, high = difference["low"], difference["high"]
    if difference["n"] == 0:
        return "has no seed that both finished"
    if low is None:
        return f"is {tables.format_signed(difference['mean'], metric)}, and one seed gives no interval"
    if low == high and low != 0:
        return f"is {tables.format_signed(low, metric)} in every seed, which gives no interval"
    interval = tables.format_interval(difference, metric)
    if low <= 0 <= high:
        return f"has a 95% interval, {interval}, that covers zero"
    p = difference.get("p_corrected")
    if p is not None and p >= LARGEST_P:
        return (
            f"has a 95% interval, {interval}, that leaves out zero, but among all comparisons of the study that may be "
            f"chance, p = {p:.2f} after Holm's correction"
        )
    return None


def _seeds_needed(differences: list[Mapping[str, Any]]) -> str:
    """Say how many seeds would settle all of these differences, as the end of a sentence; nothing where unknown.

    Nothing, too, where a test of one difference by itself would need no more seeds than there are: what stands against
    it is then the number of comparisons.
    """
    needed = [difference.get("seeds_needed") for difference in differences]
    if any(n is None or n <= difference["n"] for n, difference in zip(needed, differences, strict=True)):
        return ""
    look = "the difference as large as it looks" if len(needed) == 1 else "the differences as large as they look"
    return f"; about {max(n for n in needed if n is not None):,} seeds in all would tell, were {look}"


def _other_texts(rivals: list[Arm], score: str) -> str:
    """Say for which arms the interval over test items disagrees with that over seeds, as the end of a sentence."""
    found = [(arm["arm"], arm[score]["difference"].get("items")) for arm in rivals]
    names = [name for name, items in found if items and items["low"] <= 0 <= items["high"]]
    if not names:
        return ""
    of_whom = "" if len(rivals) == 1 else f" of {_listed(names)}"
    return f"; over other test texts the difference{of_whom} may be zero all the same"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
