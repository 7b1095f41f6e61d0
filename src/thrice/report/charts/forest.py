"""Forest plot: every arm's difference to the first, with what seeds and what test items leave open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thrice.report import tables
from thrice.report.charts.style import LIGHT, Colours, by_arm, dressed, marks, row_names, scaled, score_tip

if TYPE_CHECKING:
    from thrice.report.charts.style import Chart

MOST_ROWS = 60
"""Differences of one chart; of more, those at the front of the study are drawn."""


def differences(parts: Sequence[tables.Part], *, colours: Colours = LIGHT) -> Chart | None:
    """Give the difference of every arm to the first on every task: mean, 95% interval over seeds, thinner over items.

    Of tasks in different units, only those in per cent share an axis; the others are left out. Returns None where no
    arm has a difference.
    """
    import altair as alt

    several = len(parts) > 1
    parts = [part for part in parts if tables.percent(part["metric"])] or parts[:1] if several else parts
    points: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    for part in parts:
        metric, score = part["metric"], tables.deciding(part)
        for arm in part["arms"][1:]:
            difference = arm[score]["difference"]
            if difference["mean"] is None or len(points) == MOST_ROWS:
                continue
            row = f"{part['task']}: {arm['arm']}" if several else arm["arm"]
            place = {"row": row, "arm": arm["arm"], "task": part["task"]}
            low, high = (difference[end] if difference["low"] is not None else difference["mean"] for end in ENDS)
            ends = {"score": difference["mean"], "low": low, "high": high}
            p = {"p": tables.format_p(difference.get("p_corrected"))}
            points.append(
                {**place, **{key: scaled(value, metric) for key, value in ends.items()}, **p, "pairs": difference["n"]}
            )
            if difference.get("items"):
                over = {key: scaled(difference["items"][key], metric) for key in ENDS}
                items.append({**place, **over, "tested": difference["items"].get("n")})
    if not points:
        return None
    metric = parts[0]["metric"]
    names = [arm["arm"] for arm in parts[0]["arms"]]
    reach = [0.0, *(point[end] for point in [*points, *items] for end in ENDS)]
    margin = 0.06 * (max(reach) - min(reach)) or 1
    unit = " in points" if tables.percent(metric) else f" in {tables.metric_name(metric)}"
    scale = alt.Scale(domain=[min(reach) - margin, max(reach) + margin], nice=False)

    def across(field: str) -> alt.X:
        title = f"difference to {parts[0]['baseline']}{unit}"
        return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(tickCount=7, titleLimit=560))

    colour, shape = by_arm(names, colours)
    y, text = row_names([point["row"] for point in points], colours, "seeds")
    tips = [*(["task:N"] if several else []), "arm:N", score_tip(metric, title="difference")]
    over_seeds = [score_tip(metric, "low", "over seeds, from"), score_tip(metric, "high", "to"), "p:N", "pairs:Q"]
    over_items = [score_tip(metric, "low", "over test items, from"), score_tip(metric, "high", "to"), "tested:Q"]
    zero = marks("zero").mark_rule(color=colours.muted, strokeDash=[4, 3]).encode(alt.X("at:Q", scale=scale))
    thick = marks("seeds").mark_rule(strokeWidth=4, opacity=0.85, strokeCap="round")
    thin = marks("items").mark_rule(strokeWidth=1.5, opacity=0.9, yOffset=9)
    mark = marks("seeds").mark_point(filled=True, size=130, opacity=1, stroke=colours.background, strokeWidth=1.5)
    chart = alt.layer(
        zero,
        thick.encode(across("low"), alt.X2("high:Q"), y, colour, tooltip=[*tips, *over_seeds]),
        thin.encode(across("low"), alt.X2("high:Q"), y, colour, tooltip=["arm:N", *over_items]),
        mark.encode(across("score"), y, colour, shape, tooltip=[*tips, *over_seeds]),
        *text,
        datasets={"seeds": points, "items": items, "zero": [{"at": 0}]},
    )
    return dressed(chart, _title(points, several), colours, height=50 * len(points))


ENDS = ("low", "high")


def _title(points: Sequence[dict[str, Any]], several: bool) -> str:
    """Count what the intervals say; nothing is called a win by it."""
    clear = sum(point["low"] > 0 or point["high"] < 0 for point in points if point["low"] != point["high"])
    over = " over all tasks" if several else ""
    return f"Differences to the first arm{over}: {clear} of {len(points)} intervals over seeds leave out zero"
