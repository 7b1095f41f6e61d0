"""Where the memory of a training step goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thrice.report import tables
from thrice.report.charts.style import LIGHT, Colours, dressed, marks, number_tip, row_names
from thrice.report.cost import MEMORY

if TYPE_CHECKING:
    from thrice.report.charts.style import Chart

MOST_ARMS = 60


def memory_split(summary: tables.Summary, *, colours: Colours = LIGHT) -> Chart | None:
    """Give, per arm, weights, gradients, optimiser and activations at the peak of a training step, stacked, in MB.

    Returns None where no arm's memory was split.
    """
    import altair as alt

    arms = [arm for arm in summary["arms"] if arm["cost"]["memory"]][:MOST_ARMS]
    if not arms:
        return None
    parts: list[dict[str, Any]] = []
    totals: list[dict[str, Any]] = []
    for arm in arms:
        split, start = arm["cost"]["memory"], 0.0
        for key, name in MEMORY.items():
            size = (split.get(key) or 0) / 1e6
            parts.append(
                {"row": arm["arm"], "arm": arm["arm"], "part": name, "mb": size, "from": start, "to": start + size}
            )
            start += size
        totals.append({"row": arm["arm"], "arm": arm["arm"], "mb": start})
    y, text = row_names([arm["arm"] for arm in arms], colours, "totals")
    colour = alt.Color(
        "part:N",
        scale=alt.Scale(domain=list(MEMORY.values()), range=list(colours.memory)),
        legend=alt.Legend(title=None, orient="top", columns=4),
    )
    x = alt.X("from:Q", title="memory at the peak of a training step (MB)", scale=alt.Scale(nice=False))
    bar = marks("parts").mark_bar(height=14, stroke=colours.background, strokeWidth=1)
    chart = alt.layer(
        bar.encode(x, alt.X2("to:Q"), y, colour, tooltip=["arm:N", "part:N", number_tip("mb", "MB")]),
        *text,
        datasets={"parts": parts, "totals": totals},
    )
    peaks = [total["mb"] for total in totals]
    said = f"from {tables.format_plain(min(peaks))} to {tables.format_plain(max(peaks))} MB"
    said = said if len(peaks) > 1 else f"{tables.format_plain(peaks[0])} MB"
    return dressed(chart, f"Memory of a training step: {said}", colours, height=50 * len(arms))
