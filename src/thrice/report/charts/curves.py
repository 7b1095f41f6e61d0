"""Learning curves: the dev metric after every epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from thrice.report import tables
from thrice.report.charts.style import (
    LIGHT,
    MOST_POINTS,
    Colours,
    by_arm,
    dressed,
    marks,
    ranges,
    scaled,
    score_axis,
    score_tip,
)

if TYPE_CHECKING:
    import altair as alt

    from thrice.report.charts.style import Chart

Point = dict[str, Any]


def learning_curves(part: tables.Part, rows: Iterable[Mapping[str, Any]], *, colours: Colours = LIGHT) -> Chart | None:
    """Give the dev metric after every epoch: each seed thin, collapsed ones dashed, the mean of the others thick.

    rows: those of any tasks and grid points; drawn are the ones that the part's `runs` stand for.
    Epoch 1 carries a large mark. The score axis fits the runs that did not collapse; a collapsed run below it lies on
    the lower edge, with its real score in the tooltip. An arm of one epoch beside arms of several (TF-IDF) is drawn as
    a level across. Beyond MOST_POINTS points, runs become a band from their 10% to their 90% quantile with the median.
    Returns None where no cell of the part is finished.
    """
    import altair as alt

    metric = part["metric"]
    names = [arm["arm"] for arm in part["arms"]]
    seeds = _points_of_seeds(part, rows)
    if not seeds:
        return None
    counted: dict[tuple[str, int], list[float]] = {}
    for point in seeds:
        if point["state"] == "finished":
            counted.setdefault((point["arm"], point["epoch"]), []).append(point["score"])
    means = [
        {"arm": arm, "epoch": epoch, "score": math.fsum(scores) / len(scores), "seeds": len(scores)}
        for (arm, epoch), scores in counted.items()
    ]
    last = max(point["epoch"] for point in seeds)
    first = [point for point in means if point["epoch"] == 1]
    longer = {point["arm"] for point in seeds if point["epoch"] > 1}
    levels = [point for point in first if longer and point["arm"] not in longer]
    title = _title([point for point in first if point not in levels], metric)

    x = alt.X(
        "epoch:Q",
        title="epoch",
        scale=alt.Scale(domain=[1, last] if last > 1 else [0, 2], nice=False, padding=14),
        axis=alt.Axis(format="d", grid=False, values=list(range(1, last + 1, math.ceil(last / 12)))),
    )
    colour, shape = by_arm(names, colours)
    name, tip = f"dev {tables.metric_name(metric)}", score_tip(metric)
    if len(seeds) > MOST_POINTS and counted:
        bands = _bands(counted, last, len(names))
        scores = [point[end] for point in bands for end in ("low", "high")]
        y = score_axis(name, metric, scores)
        layers = _band_layers(x, score_axis(name, metric, scores, field="low"), y, colour, metric)
        data = {"bands": bands}
        first = [point for point in bands if point["epoch"] == 1]
        levels = [point for point in first if longer and point["arm"] not in longer]
    else:
        alive = [point["score"] for point in seeds if point["state"] == "finished"]
        y = score_axis(name, metric, alive or [point["score"] for point in seeds])
        layers = _seed_layers(x, y, colour, shape, tip)
        # Over so many runs, all of them collapsed, the first ones say what there is to say.
        data = {"seeds": seeds[:MOST_POINTS], "means": means}
    level = marks("levels").mark_rule(strokeWidth=2, strokeDash=[7, 4]).encode(y, colour, tooltip=["arm:N", tip])
    mark = (
        marks("first")
        .mark_point(filled=True, size=120, opacity=1, stroke=colours.background, strokeWidth=1.5)
        .encode(x, y, colour, shape, tooltip=["arm:N", "epoch:Q", tip, "seeds:Q"])
    )
    chart = alt.layer(*layers, level, mark, datasets={**data, "levels": levels, "first": first})
    return dressed(chart, title, colours)


def _seed_layers(x: alt.X, y: alt.Y, colour: alt.Color, shape: alt.Shape, tip: alt.Tooltip) -> list[alt.Chart]:
    """Give every run as a thin line, its epochs as dots, and the mean as a thick line."""
    import altair as alt

    thin = (
        marks("seeds")
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
    thick = marks("means").mark_line(strokeWidth=3).encode(x, y, colour)
    dots = (
        marks("seeds")
        .mark_point(filled=True, size=26, opacity=0.6)
        .encode(x, y, colour, shape, tooltip=["arm:N", "seed:Q", "epoch:Q", tip, "state:N"])
    )
    return [thin, thick, dots]


def _band_layers(x: alt.X, low: alt.Y, y: alt.Y, colour: alt.Color, metric: str) -> list[alt.Chart]:
    """Give, per arm, the band in which 80% of its runs lie, and their median as a thick line."""
    import altair as alt

    tips = ["arm:N", "epoch:Q", score_tip(metric, title="median"), score_tip(metric, "low", "10% lie below")]
    tips += [score_tip(metric, "high", "10% lie above"), alt.Tooltip("seeds:Q", title="runs")]
    band = marks("bands").mark_area(opacity=0.22, line=False).encode(x, low, alt.Y2("high:Q"), colour)
    line = marks("bands").mark_line(strokeWidth=3).encode(x, y, colour)
    # Areas and lines are too thin to be hit with a mouse; unseen marks on the median carry the numbers.
    hit = marks("bands").mark_point(filled=True, size=90, opacity=0).encode(x, y, colour, tooltip=tips)
    return [band, line, hit]


def _bands(counted: Mapping[tuple[str, int], list[float]], last: int, arms: int) -> list[Point]:
    """Give median and 10% and 90% quantile per arm and epoch; of many epochs, evenly spaced ones and the last."""
    step = max(1, math.ceil(last * arms / MOST_POINTS))
    kept = {key: scores for key, scores in counted.items() if (key[1] - 1) % step == 0 or key[1] == last}
    return [
        {"arm": arm, "epoch": epoch, "score": middle, "low": low, "high": high, "seeds": len(kept[arm, epoch])}
        for (arm, epoch), (low, middle, high) in ranges(kept).items()
    ]


def _points_of_seeds(part: tables.Part, rows: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Give one point per epoch of every row that the part's tables are about."""
    metric = part["metric"]
    points = {arm["arm"]: arm["point"] for arm in part["arms"]}
    cells = {(arm["arm"], run["seed"]) for arm in part["arms"] for run in arm["runs"]}
    wanted = (
        row
        for row in rows
        if row["task"] == part["task"]
        and (row["arm"], row["seed"]) in cells
        and (row.get("point") or {}) == points[row["arm"]]
    )
    return [
        {
            "arm": row["arm"],
            "seed": row["seed"],
            "run": number,
            "epoch": place,
            "score": scaled(epoch["dev"][metric], metric),
            "state": "collapsed" if row["collapsed"] else "finished",
        }
        for number, row in enumerate(wanted)
        for place, epoch in enumerate(row["epochs"], start=1)
    ]


def _title(first: list[Point], metric: str) -> str:
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
