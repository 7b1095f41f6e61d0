"""How every chart looks: colours, shapes, axes and legends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thrice.report import tables

if TYPE_CHECKING:
    import altair as alt

    Chart = alt.LayerChart | alt.FacetChart

# Seven shapes and six colours repeat only after 42 arms, and a colour-blind reader has the shape.
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")

MOST_POINTS = 1500
"""Points of one chart up to which every run is drawn; of more, a chart shows the median and where 80% of them lie."""


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
    memory: tuple[str, ...]
    """One for each of weights, gradients, optimiser and activations."""


# Chosen so that the nearest two stay CIELAB 11 apart (the first four: 21 light, 13 dark) under simulated protanopia,
# deuteranopia and tritanopia, and every one has a contrast of 3:1 or more with its background.
LIGHT = Colours(
    ink="#16181d",
    muted="#555a64",
    grid="#dfe1e5",
    background="#ffffff",
    arms=("#0b62a4", "#dd5a0c", "#5f1a4a", "#3a9d8f", "#a25ce6", "#6d6f74"),
    memory=("#1d3557", "#4d7ea8", "#8d8fa3", "#b3791f"),
)
DARK = Colours(
    ink="#e8eaee",
    muted="#a6acb8",
    grid="#33373f",
    background="#15171a",
    arms=("#5cb3f2", "#ff8426", "#f5cfa0", "#3aa88f", "#b07bff", "#d94a6a"),
    memory=("#dbe8f7", "#84b1dc", "#7d8296", "#d69a3c"),
)


def arm_style(place: int, colours: Colours) -> tuple[str, str]:
    """Give colour and shape of the arm at that place of the study."""
    return colours.arms[place % len(colours.arms)], SHAPES[place % len(SHAPES)]


def scaled(value: float, metric: str) -> float:
    """Give a score as axes count it: in per cent where people read it so."""
    return round(100 * value, 6) if tables.percent(metric) else value


def quantile(ordered: Sequence[float], share: float) -> float:
    """Give the value below which that share of ascending values lies, straight lines between them."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def marks(data: str) -> alt.Chart:
    """Begin a layer on data of that name; the points themselves are attached once, to the layered chart."""
    import altair as alt

    return alt.Chart(alt.NamedData(name=data))


def by_arm(names: Sequence[str], colours: Colours) -> tuple[alt.Color, alt.Shape]:
    """Give the two channels that say which arm a mark belongs to, in the study's order."""
    import altair as alt

    styles = [arm_style(place, colours) for place in range(len(names))]
    legend = alt.Legend(title=None, orient="top", columns=1, labelLimit=600, symbolOpacity=1)
    colour = alt.Scale(domain=list(names), range=[style[0] for style in styles])
    shape = alt.Scale(domain=list(names), range=[style[1] for style in styles])
    return alt.Color("arm:N", scale=colour, legend=legend), alt.Shape("arm:N", scale=shape, legend=legend)


def score_domain(scores: Sequence[float]) -> list[float]:
    """Give the ends of an axis that holds these scores with a margin."""
    margin = 0.06 * (max(scores) - min(scores)) or 0.01 * abs(scores[0]) or 1
    return [min(scores) - margin, max(scores) + margin]


def score_axis(name: str, metric: str, scores: Sequence[float], *, field: str = "score") -> alt.Y:
    """Give the axis that holds these scores with a margin; a score outside it is drawn on its edge."""
    import altair as alt

    unit = " in %" if tables.percent(metric) else ""
    scale = alt.Scale(domain=score_domain(scores), nice=False, clamp=True)
    return alt.Y(f"{field}:Q", title=f"{name}{unit}; axis does not start at 0", scale=scale)


def score_tip(metric: str, field: str = "score", title: str = "") -> alt.Tooltip:
    """Give the line of a tooltip that says a score."""
    return number_tip(
        field, title or f"{tables.metric_name(metric)}{' %' if tables.percent(metric) else ''}", metric=metric
    )


def number_tip(field: str, title: str, *, metric: str | None = None) -> alt.Tooltip:
    """Give the line of a tooltip that says a number: with two decimals, a score outside per cent with four."""
    import altair as alt

    return alt.Tooltip(f"{field}:Q", title=title, format=".4f" if metric and not tables.percent(metric) else ",.2f")


def row_names(rows: Sequence[str], colours: Colours, data: str) -> tuple[alt.Y, list[alt.Chart]]:
    """Give the axis of named rows, and layers that write each name above its row, where long ones have room."""
    import altair as alt

    y = alt.Y("row:N", sort=list(rows), axis=None, scale=alt.Scale(domain=list(rows)))
    look: dict[str, Any] = {"align": "left", "baseline": "bottom", "dy": -9, "fontSize": 12}
    # Behind the name lies its own outline in the colour of the ground, so that no line crosses the letters.
    outline = marks(data).mark_text(
        **look, color=colours.background, stroke=colours.background, strokeWidth=5, strokeJoin="round", aria=False
    )
    text = marks(data).mark_text(**look, color=colours.ink)
    return y, [layer.encode(alt.XValue(2), y, alt.Text("row:N")) for layer in (outline, text)]


def dressed(chart: Chart, title: str, colours: Colours, *, height: float = 340) -> Chart:
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
    return chart.properties(
        title=alt.Title(title, anchor="start"), width=640, height=height, description=title
    ).configure(
        background=colours.background,
        font="system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif",
        axis=axis,
        title={"color": colours.ink, "fontSize": 15, "fontWeight": 600, "offset": 14},
        legend={"labelColor": colours.ink, "titleColor": colours.ink, "labelFontSize": 12},
        view={"stroke": None},
    )


def specification(chart: Chart) -> dict[str, Any]:
    """Give a chart as Vega-Lite JSON with its data."""
    # altair would check every chart against its schema, half the time of a page, and every value of a dataset too, 14
    # seconds for 10,000 points: data go round it, and the check is left to the tests.
    bare = chart.copy(deep=False)
    datasets, bare.datasets = chart.datasets, {}
    return {**bare.to_dict(validate=False), "datasets": datasets}


def ranges(values: Mapping[Any, list[float]]) -> dict[Any, tuple[float, float, float]]:
    """Give, per key, the values that 10%, half and 90% of its values lie below."""
    return {
        key: (quantile(ordered, 0.1), quantile(ordered, 0.5), quantile(ordered, 0.9))
        for key, listed in values.items()
        if (ordered := sorted(listed))
    }
