"""What a comparison says in words, and what it must not say: no winner where the interval covers zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thrice.report import tables


def verdict(summary: tables.Summary) -> str:
    """Say in one sentence which arm is highest and whether that stands against the first arm.

    Never more than the interval says: where it covers zero, cannot be formed or has no width, no winner is called.
    """
    metric, score = summary["metric"], tables.deciding(summary)
    what = f"{tables.SCORE_NAMES[score]} {tables.metric_name(metric)}"
    measured = [arm for arm in summary["arms"] if arm[score]["mean"] is not None]
    if not measured:
        done, collapsed = summary["cells"]["done"], sum(len(arm["collapsed"]) for arm in summary["arms"])
        if done and done == collapsed:
            return f"There is no {what} to compare: every finished run collapsed, {collapsed} of {done}."
        return f"No {what} yet: {done} of {summary['cells']['planned']} cells are done."
    best = max(measured, key=lambda arm: arm[score]["mean"])
    figure = tables.format_score(best[score]["mean"], metric) + tables.unit(metric)
    seeds = f"{best[score]['n']} seed{'s' if best[score]['n'] > 1 else ''}"
    if len(measured) == 1:
        return f"{best['arm']} reaches {figure} {what} over {seeds}; no other arm has a score to compare it with."
    opening = f"{best['arm']} has the highest {what}, {figure} over {seeds}"
    # Where the first arm itself is highest, the others' differences to it decide.
    rivals = [arm for arm in measured if arm is not best] if best["arm"] == summary["baseline"] else [best]
    doubts = [_doubt(arm[score]["difference"], metric) for arm in rivals]
    if len(rivals) == 1:
        pair = f"the paired difference of {rivals[0]['arm']} to {summary['baseline']}"
        if doubts[0]:
            return f"{opening}, but no winner is called: {pair} {doubts[0]}."
        return f"{opening}: {pair} {_stands(rivals[0][score]['difference'], metric)}."
    doubtful = [arm["arm"] for arm, doubt in zip(rivals, doubts, strict=True) if doubt]
    if doubtful:
        names = ", ".join(doubtful) if len(doubtful) < 4 else f"{len(doubtful)} of the other {len(rivals)} arms"
        return f"{opening}, but no winner is called: the paired difference to it may be zero for {names}."
    return f"{opening}: the 95% interval of every other arm's paired difference to it excludes zero."


def notes(summary: tables.Summary) -> list[str]:
    """Say what else a reader must know before trusting the table; empty where there is nothing to say."""
    said = []
    done, planned = summary["cells"]["done"], summary["cells"]["planned"]
    if done < planned:
        said.append(f"Preliminary: {done} of {planned} cells are done; the same command finishes the rest.")
    for arm in summary["arms"]:
        if arm["collapsed"]:
            said.append(
                f"{arm['arm']}: {tables.format_seeds(arm['collapsed'])} collapsed to the majority class; "
                "shown beside the others, not part of any mean or difference."
            )
    if summary["outside"]:
        cells = ", ".join(f"{cell['arm']} seed {cell['seed']}" for cell in summary["outside"])
        said.append(f"Finished cells that study.json no longer names are left out: {cells}.")
    return said


def _stands(difference: Mapping[str, Any], metric: str) -> str:
    """Say how far a difference lies from zero, as the end of a sentence."""
    points = " points" if tables.percent(metric) else ""
    mean, interval = tables.format_signed(difference["mean"], metric), tables.format_interval(difference, metric)
    return f"is {mean}{points}, and its 95% interval, {interval}, excludes zero"


def _doubt(difference: Mapping[str, Any], metric: str) -> str | None:
    """Say why a paired difference settles nothing, as the end of a sentence; None where its interval excludes zero."""
    low, high = difference["low"], difference["high"]
    if difference["n"] == 0:
        return "has no seed that both finished"
    if low is None:
        return f"is {tables.format_signed(difference['mean'], metric)}, and one seed gives no interval"
    if low == high and low != 0:
        return f"is {tables.format_signed(low, metric)} in every seed, which gives no interval"
    if low <= 0 <= high:
        return f"has a 95% interval, {tables.format_interval(difference, metric)}, that covers zero"
    return None
