"""Pictures of a comparison as altair charts: learning curves with every seed, and score against cost.

All means are computed here, so that a chart holds no more than one point per seed and epoch. Every chart says its
finding in its title, neutrally, and starts its score axis where the scores start, which the axis says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thrice.report import tables

if TYPE_CHECKING:
    import altair as alt

    Chart = alt.LayerChart | alt.FacetChart

# Seven shapes and six colours repeat only after 42 arms, and a colour-blind reader has the shape.
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")


@dataclass(frozen=True, kw_only=True)
class Colours:
    """What a chart is drawn with; any CSS colour."""

    ink: str
    """Text and the frame of marks."""
    muted: str
    """Axis labels."""
    grid: str
    """Grid lines and axis domain."""
    background: str
    """Behind the chart."""
    arms: tuple[str, ...]
    """One per arm, in the study's order, repeated where there are more arms."""


# Chosen so that the nearest two stay CIELAB 11 apart (the first four: 21 light, 13 dark) under simulated protanopia,
# deuteranopia and tritanopia, and every one has a contrast of 3:1 or more with its background.
LIGHT = Colours(
    ink="#16181d",
    muted="#555a64",
    grid="#dfe1e5",
    background="#ffffff",
    arms=("#0b62a4", "#dd5a0c", "#5f1a4a", "#3a9d8f", "#a25ce6", "#6d6f74"),
)
DARK = Colours(
    ink="#e8eaee",
    muted="#a6acb8",
    grid="#33373f",
    background="#15171a",
    arms=("#5cb3f2", "#ff8426", "#f5cfa0", "#3aa88f", "#b07bff", "#d94a6a"),
)


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
    "seconds_per_epoch": Cost(axis="training time (seconds per epoch)", name="training time", divisor=1),
    "file_bytes": Cost(axis="file size (MB)", name="file size", divisor=1e6),
    "parameters_stored": Cost(axis="stored parameters (M)", name="stored parameters", divisor=1e6),
    "peak_memory_bytes": Cost(axis="peak training memory (MB)", name="peak memory", divisor=1e6),
}


def learning_curves(
    summary: tables.Summary, rows: Iterable[Mapping[str, Any]], *, colours: Colours = LIGHT
) -> Chart | None:
    """Give the dev metric after every epoch: each seed thin, collapsed ones dashed, the mean of the others thick.

    Epoch 1 carries a large mark. The score axis fits the runs that did not collapse; a collapsed run below it lies on
    the lower edge, with its real score in the tooltip. An arm of one epoch beside arms of several (TF-IDF) is drawn as
    a level across. Returns None where no cell of the study is finished.
    """
    import altair as alt

    metric = summary["metric"]
    names = [arm["arm"] for arm in summary["arms"]]
    seeds = _points_of_seeds(summary, rows)
    if not seeds:
        return None
    means = _mean_curves(seeds)
    last = max(point["epoch"] for point in seeds)
    first = [point for point in means if point["epoch"] == 1]
    longer = {point["arm"] for point in seeds if point["epoch"] > 1}
    levels = [point for point in first if longer and point["arm"] not in longer]
    title = _curves_title([point for point in first if point not in levels], metric)

    x = alt.X(
        "epoch:Q",
        title="epoch",
        scale=alt.Scale(domain=[1, last] if last > 1 else [0, 2], nice=False, padding=14),
        axis=alt.Axis(format="d", grid=False, values=list(range(1, last + 1, math.ceil(last / 12)))),
    )
    counted = [point["score"] for point in seeds if point["state"] == "finished"]
    y = _score_axis(f"dev {tables.metric_name(metric)}", metric, counted or [point["score"] for point in seeds])
    colour, shape = _by_arm(names, colours)
    tip = _tooltip(metric)
    thin = (
        _marks("seeds")
        .mark_line(strokeWidth=1.2, opacity=0.45)
        .encode(
            x,
            y,
            colour,
            detail="run:N",
            strokeDash=alt.StrokeDash(
                "state:N", scale=alt.Scale(domain=["finished", "collapsed"], range=[[1, 0], [2, 3]]), legend=None
            ),
        )
    )
    dots = (
        _marks("seeds")
        .mark_point(filled=True, size=26, opacity=0.6)
        .encode(x, y, colour, shape, tooltip=["arm:N", "seed:Q", "epoch:Q", tip, "state:N"])
    )
    level = _marks("levels").mark_rule(strokeWidth=2, strokeDash=[7, 4]).encode(y, colour, tooltip=["arm:N", tip])
    thick = _marks("means").mark_line(strokeWidth=3).encode(x, y, colour)
    mark = (
        _marks("first")
        .mark_point(filled=True, size=120, opacity=1, stroke=colours.background, strokeWidth=1.5)
        .encode(x, y, colour, shape, tooltip=["arm:N", "epoch:Q", tip, "seeds:Q"])
    )
    data = {"seeds": seeds, "levels": levels, "means": means, "first": first}
    return _dressed(alt.layer(thin, level, thick, dots, mark, datasets=data), title, colours)


def score_against_cost(
    summary: tables.Summary, cost: str = "seconds_per_epoch", *, colours: Colours = LIGHT
) -> Chart | None:
    """Give the deciding score against one cost: means as marks, every seed as a dot, a line over their range.

    cost: a key of COSTS. The area of a mark grows with the arm's stored parameters. The cost axis starts at 0, or is
    logarithmic where the dearest arm costs over 20 times the cheapest. Collapsed runs stay out.
    Returns None where no arm has both a score and this cost.
    """
    import altair as alt

    metric, score = summary["metric"], tables.deciding(summary)
    names = [arm["arm"] for arm in summary["arms"]]
    measured = [arm for arm in summary["arms"] if arm["cost"][cost] and arm[score]["mean"] is not None]
    if not measured:
        return None
    axis = COSTS[cost]
    means, seeds = [], []
    for arm in measured:
        at = {"arm": arm["arm"], "cost": arm["cost"][cost] / axis.divisor}
        values = [_scaled(value, metric) for value in arm[score]["values"]]
        stored = (arm["cost"]["parameters_stored"] or 0) / 1e6
        spread = {"low": min(values), "high": max(values), "seeds": len(values)}
        means.append({**at, "score": _scaled(arm[score]["mean"], metric), "stored": stored, **spread})
        pairs = zip(arm[score]["seeds"], values, strict=True)
        seeds += [{**at, "seed": seed, "score": value} for seed, value in pairs]

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
    what, scores = f"{tables.SCORE_NAMES[score]} {tables.metric_name(metric)}", [point["score"] for point in seeds]
    y, low = _score_axis(what, metric, scores), _score_axis(what, metric, scores, field="low")
    colour, shape = _by_arm(names, colours)
    tip = _tooltip(metric)
    size = alt.Size(
        "stored:Q",
        title="stored parameters (M)",
        scale=alt.Scale(domain=[0, max(point["stored"] for point in means) or 1], range=[90, 520]),
        legend=alt.Legend(
            symbolFillColor=colours.muted, symbolStrokeWidth=0, values=_legend_values(means), format=".2f"
        ),
    )
    reach = _marks("means").mark_rule(strokeWidth=1.5, opacity=0.6).encode(x, low, alt.Y2("high:Q"), colour)
    dots = _marks("seeds").mark_point(filled=True, size=30, opacity=0.75)
    mark = _marks("means").mark_point(filled=True, opacity=0.85, stroke=colours.background, strokeWidth=1.5)
    chart = alt.layer(
        reach,
        mark.encode(x, y, colour, shape, size, tooltip=["arm:N", tip, "seeds:Q", _number("cost", axis.axis)]),
        dots.encode(x, y, colour, shape, tooltip=["arm:N", "seed:Q", tip, _number("cost", axis.axis)]),
        datasets={"means": means, "seeds": seeds},
    )
    return _dressed(chart, _cost_title(summary, measured, cost), colours)


def not_drawn(summary: tables.Summary, cost: str) -> list[str]:
    """Name the arms that `score_against_cost` leaves out, for want of a score or of this cost."""
    score = tables.deciding(summary)
    return [arm["arm"] for arm in summary["arms"] if not arm["cost"][cost] or arm[score]["mean"] is None]


def arm_style(place: int, colours: Colours) -> tuple[str, str]:
    """Give colour and shape of the arm at that place of the study."""
    return colours.arms[place % len(colours.arms)], SHAPES[place % len(SHAPES)]


def _points_of_seeds(summary: tables.Summary, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Give one point per epoch of every row that belongs to the study."""
    metric = summary["metric"]
    cells = {(arm["arm"], run["seed"]) for arm in summary["arms"] for run in arm["runs"]}
    return [
        {
            "arm": row["arm"],
            "seed": row["seed"],
            "run": number,
            "epoch": place,
            "score": _scaled(epoch["dev"][metric], metric),
            "state": "collapsed" if row["collapsed"] else "finished",
        }
        for number, row in enumerate(rows)
        if (row["arm"], row["seed"]) in cells
        for place, epoch in enumerate(row["epochs"], start=1)
    ]


def _mean_curves(seeds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average the runs that did not collapse, per arm and epoch."""
    gathered: dict[tuple[str, int], list[float]] = {}
    for point in seeds:
        if point["state"] == "finished":
            gathered.setdefault((point["arm"], point["epoch"]), []).append(point["score"])
    return [
        {"arm": arm, "epoch": epoch, "score": math.fsum(scores) / len(scores), "seeds": len(scores)}
        for (arm, epoch), scores in gathered.items()
    ]


def _curves_title(first: list[dict[str, Any]], metric: str) -> str:
    """first: the means after epoch 1, without arms that have no second."""
    name, unit = tables.metric_name(metric), tables.unit(metric)
    if not first:
        return f"Dev {name} by epoch"
    low, high = (choose(first, key=lambda point: point["score"]) for choose in (min, max))
    decimals = 2 if tables.percent(metric) else 4
    if len(first) == 1:
        return f"Dev {name} by epoch: {low['score']:.{decimals}f}{unit} after epoch 1"
    ends = [f"{point['score']:.{decimals}f}{unit} ({point['arm']})" for point in (low, high)]
    return f"Dev {name} by epoch: after epoch 1 between {ends[0]} and {ends[1]}"


def _cost_title(summary: tables.Summary, measured: Sequence[Mapping[str, Any]], cost: str) -> str:
    metric, score = summary["metric"], tables.deciding(summary)
    opening = f"{tables.SCORE_NAMES[score]} {tables.metric_name(metric)} against {COSTS[cost].name}"
    opening = opening[0].upper() + opening[1:]
    if len(measured) == 1:
        return opening
    means = [arm[score]["mean"] for arm in measured]
    spread = tables.format_score(max(means) - min(means), metric) + (" points" if tables.percent(metric) else "")
    ratio = _ratio(arm["cost"][cost] for arm in measured)
    return f"{opening}: {tables.format_plain(ratio)} times from least to most, scores {spread} apart"


def _ratio(values: Iterable[float]) -> float:
    """Give the largest of positive values over the smallest."""
    listed = list(values)
    return max(listed) / min(listed)


def _legend_values(means: Sequence[Mapping[str, Any]]) -> list[float]:
    return sorted({round(point["stored"], 2) for point in means if point["stored"]})


def _scaled(value: float, metric: str) -> float:
    return round(100 * value, 6) if tables.percent(metric) else value


def _marks(data: str) -> alt.Chart:
    """Begin a layer on data of that name; the points themselves are attached once, to the layered chart."""
    import altair as alt

    return alt.Chart(alt.NamedData(name=data))


def _by_arm(names: list[str], colours: Colours) -> tuple[alt.Color, alt.Shape]:
    """Give the two channels that say which arm a mark belongs to, in the study's order."""
    import altair as alt

    styles = [arm_style(place, colours) for place in range(len(names))]
    legend = alt.Legend(title=None, orient="top", columns=1, labelLimit=600, symbolOpacity=1)
    colour = alt.Scale(domain=names, range=[style[0] for style in styles])
    shape = alt.Scale(domain=names, range=[style[1] for style in styles])
    return alt.Color("arm:N", scale=colour, legend=legend), alt.Shape("arm:N", scale=shape, legend=legend)


def _score_axis(name: str, metric: str, scores: Sequence[float], *, field: str = "score") -> alt.Y:
    """Give the axis that holds these scores with a margin; a score outside it is drawn on its edge."""
    import altair as alt

    unit = " in %" if tables.percent(metric) else ""
    margin = 0.06 * (max(scores) - min(scores)) or 0.01 * abs(scores[0]) or 1
    scale = alt.Scale(domain=[min(scores) - margin, max(scores) + margin], nice=False, clamp=True)
    return alt.Y(f"{field}:Q", title=f"{name}{unit}; axis does not start at 0", scale=scale)


def _tooltip(metric: str) -> alt.Tooltip:
    return _number("score", f"{tables.metric_name(metric)}{' %' if tables.percent(metric) else ''}", metric=metric)


def _number(field: str, title: str, *, metric: str | None = None) -> alt.Tooltip:
    import altair as alt

    return alt.Tooltip(f"{field}:Q", title=title, format=".4f" if metric and not tables.percent(metric) else ",.2f")


def _dressed(chart: Chart, title: str, colours: Colours) -> Chart:
    """Give the chart its title, size, fonts and colours."""
    import altair as alt

    axis = {
        "labelColor": colours.muted,
        "titleColor": colours.ink,
        "titleFontWeight": "normal",
        "titlePadding": 10,
        "labelFontSize": 12,
        "titleFontSize": 13,
        "gridColor": colours.grid,
        "domainColor": colours.grid,
        "tickColor": colours.grid,
    }
    return chart.properties(title=alt.Title(title, anchor="start"), width=640, height=340, description=title).configure(
        background=colours.background,
        font="system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif",
        axis=axis,
        title={"color": colours.ink, "fontSize": 15, "fontWeight": 600, "offset": 14},
        legend={"labelColor": colours.ink, "titleColor": colours.ink, "labelFontSize": 12},
        view={"stroke": None},
    )
