"""Score against cost, with the arms that nobody beats in both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thrice.report import tables
from thrice.report.charts.style import (
    LIGHT,
    MOST_POINTS,
    Colours,
    by_arm,
    dressed,
    marks,
    number_tip,
    quantile,
    scaled,
    score_axis,
    score_tip,
)
from thrice.report.cost import cost_of

if TYPE_CHECKING:
    from thrice.report.charts.style import Chart

Point = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One cost of an arm as an axis."""

    axis: str
    """Title of the axis, with its unit."""
    name: str
    """The cost in a sentence."""
    divisor: float
    """What one unit of the axis is, in the unit of cost.json."""


COSTS = {
    "latency_long_ms": Cost(axis="latency of one long text (ms, median)", name="latency", divisor=1),
    "latency_short_ms": Cost(axis="latency of one short text (ms, median)", name="latency of short texts", divisor=1),
    "seconds_per_epoch": Cost(axis="training time (seconds per epoch)", name="training time", divisor=1),
    "file_bytes": Cost(axis="file size (MB)", name="file size", divisor=1e6),
    "parameters_stored": Cost(axis="stored parameters (M)", name="stored parameters", divisor=1e6),
    "peak_memory_bytes": Cost(axis="peak training memory (MB)", name="peak memory", divisor=1e6),
    "flops_per_token": Cost(axis="operations per token (MFLOPs)", name="operations per token", divisor=1e6),
}


def score_against_cost(part: tables.Part, cost: str = "seconds_per_epoch", *, colours: Colours = LIGHT) -> Chart | None:
    """Give the deciding score against one cost: means as marks, every seed as a dot, a line over their range.

    cost: a key of COSTS. A stepped line runs over the Pareto front: the arms than which no other is both cheaper and
    better. The area of a mark grows with the arm's stored parameters. The cost axis starts at 0, or is logarithmic
    where the dearest arm costs over 20 times the cheapest. Collapsed runs stay out. Of more than MOST_POINTS runs, no
    dots are drawn, and the lines hold 80% of them. Returns None where no arm has both a score and this cost.
    """
    import altair as alt

    metric, score = part["metric"], tables.deciding(part)
    names = [arm["arm"] for arm in part["arms"]]
    measured = [arm for arm in part["arms"] if _drawn(arm, cost, score)]
    if not measured:
        return None
    axis = COSTS[cost]
    many = sum(len(arm[score]["values"]) for arm in measured) > MOST_POINTS
    means: list[Point] = []
    seeds: list[Point] = []
    for arm in measured:
        at = {"arm": arm["arm"], "cost": _price(arm, cost) / axis.divisor}
        values = [scaled(value, metric) for value in arm[score]["values"]]
        ordered = sorted(values)
        stored = (arm["cost"]["parameters_stored"] or 0) / 1e6
        low, high = (quantile(ordered, share) for share in ((0.1, 0.9) if many else (0, 1)))
        spread = {"low": low, "high": high, "seeds": len(values)}
        means.append({**at, "score": scaled(arm[score]["mean"], metric), "stored": stored, **spread})
        pairs = zip(arm[score]["seeds"], values, strict=True)
        seeds += [] if many else [{**at, "seed": seed, "score": value} for seed, value in pairs]

    front = pareto_front(means)
    costs = [point["cost"] for point in means]
    logarithmic = _ratio(costs) > 20
    x = alt.X(
        "cost:Q",
        title=axis.axis + (", logarithmic" if logarithmic else ""),
        scale=alt.Scale(type="log", domain=[min(costs) / 1.5, max(costs) * 1.5], nice=False)
        if logarithmic
        else alt.Scale(domain=[0, max(costs) * 1.08], nice=False),
        axis=alt.Axis(grid=False, tickCount=8),
    )
    what = f"{tables.SCORE_NAMES[score]} {tables.metric_name(metric)}"
    scores = [point[end] for point in means for end in ("low", "high", "score")]
    y, low_end = score_axis(what, metric, scores), score_axis(what, metric, scores, field="low")
    colour, shape = by_arm(names, colours)
    tip, price = score_tip(metric), number_tip("cost", axis.axis)
    size = alt.Size(
        "stored:Q",
        title="stored parameters (M)",
        scale=alt.Scale(domain=[0, max(point["stored"] for point in means) or 1], range=[90, 520]),
        legend=alt.Legend(
            symbolFillColor=colours.muted, symbolStrokeWidth=0, values=_legend_values(means), format=".2f"
        ),
    )
    edge = marks("front").mark_line(
        interpolate="step-after", strokeWidth=1.5, strokeDash=[5, 4], color=colours.muted, opacity=0.9
    )
    reach = marks("means").mark_rule(strokeWidth=1.5, opacity=0.6).encode(x, low_end, alt.Y2("high:Q"), colour)
    dots = marks("seeds").mark_point(filled=True, size=30, opacity=0.75)
    mark = marks("means").mark_point(filled=True, opacity=0.85, stroke=colours.background, strokeWidth=1.5)
    chart = alt.layer(
        edge.encode(x, y),
        reach,
        mark.encode(x, y, colour, shape, size, tooltip=["arm:N", tip, "seeds:Q", price]),
        dots.encode(x, y, colour, shape, tooltip=["arm:N", "seed:Q", tip, price]),
        datasets={"means": means, "seeds": seeds, "front": front},
    )
    return dressed(chart, _title(part, measured, cost), colours)


def pareto_front(means: Sequence[Point]) -> list[Point]:
    """Give the points than which no other is as cheap and better or cheaper and as good, from cheap to dear."""
    front: list[Point] = []
    for point in sorted(means, key=lambda point: (point["cost"], -point["score"])):
        if not front or point["score"] > front[-1]["score"]:
            front.append({"arm": point["arm"], "cost": point["cost"], "score": point["score"]})
    return front


def not_drawn(part: tables.Part, cost: str) -> list[str]:
    """Name the arms that `score_against_cost` leaves out, for want of a score or of this cost."""
    score = tables.deciding(part)
    return [arm["arm"] for arm in part["arms"] if not _drawn(arm, cost, score)]


def _price(arm: Mapping[str, Any], cost: str) -> float:
    return cost_of(arm["cost"], cost) or 0.0


def _drawn(arm: Mapping[str, Any], cost: str, score: str) -> bool:
    return _price(arm, cost) > 0 and arm[score]["mean"] is not None


def _title(part: tables.Part, measured: Sequence[Mapping[str, Any]], cost: str) -> str:
    metric, score = part["metric"], tables.deciding(part)
    opening = f"{tables.SCORE_NAMES[score]} {tables.metric_name(metric)} against {COSTS[cost].name}"
    opening = opening[0].upper() + opening[1:]
    if len(measured) == 1:
        return opening
    means = [arm[score]["mean"] for arm in measured]
    spread = tables.format_score(max(means) - min(means), metric) + (" points" if tables.percent(metric) else "")
    ratio = _ratio(_price(arm, cost) for arm in measured)
    return f"{opening}: {tables.format_plain(ratio)} times from least to most, scores {spread} apart"


def _ratio(values: Iterable[float]) -> float:
    """Give the largest of positive values over the smallest."""
    listed = list(values)
    return max(listed) / min(listed)


def _legend_values(means: Sequence[Mapping[str, Any]]) -> list[float]:
    return sorted({round(point["stored"], 2) for point in means if point["stored"]})
