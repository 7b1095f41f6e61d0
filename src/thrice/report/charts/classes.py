"""F1 of every class by arm, from the confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thrice.report import tables
from thrice.report.charts.style import LIGHT, Colours, by_arm, dressed, marks, number_tip, score_domain

if TYPE_CHECKING:
    from thrice.report.charts.style import Chart

MOST_CLASSES = 25
"""Classes of one chart; of more, those on which the arms differ most are drawn."""


def class_scores(part: tables.Part, *, colours: Colours = LIGHT) -> Chart | None:
    """Give F1 in % per class and arm, over the runs that did not collapse taken together.

    Of more than MOST_CLASSES classes, those on which the arms differ most. Returns None without confusion matrices.
    """
    import altair as alt

    labels = [str(label) for label in part["labels"]]
    arms = [arm for arm in part["arms"] if arm["confusion"] and len(arm["confusion"]) == len(labels)]
    if not arms or not labels:
        return None
    found = {arm["arm"]: _f1(arm["confusion"]) for arm in arms}
    spans = []
    for place, label in enumerate(labels):
        scores = [(f1[place][0], arm) for arm, f1 in found.items()]
        spans.append((max(scores)[0] - min(scores)[0], place, label, min(scores)[0], max(scores)[0]))
    kept = sorted(spans, key=lambda span: -span[0])[:MOST_CLASSES]
    shown = [label for _, _, label, _, _ in sorted(kept, key=lambda span: span[1])]
    points: list[dict[str, Any]] = [
        {"row": label, "arm": arm, "score": f1[place][0], "gold": f1[place][1]}
        for _, place, label, _, _ in kept
        for arm, f1 in found.items()
    ]
    reach = [{"row": label, "low": low, "high": high} for _, _, label, low, high in kept]
    scale = alt.Scale(domain=score_domain([point["score"] for point in points]), nice=False)
    y = alt.Y("row:N", sort=shown, title=None, axis=alt.Axis(labelLimit=170, domain=False, ticks=False, grid=True))
    title = "F1 of the class in %; axis does not start at 0"
    colour, shape = by_arm([arm["arm"] for arm in part["arms"]], colours)
    tips = [
        alt.Tooltip("row:N", title="class"),
        "arm:N",
        number_tip("score", "F1 %"),
        alt.Tooltip("gold:Q", title="answers"),
    ]
    span = marks("reach").mark_rule(strokeWidth=1.5, color=colours.muted, opacity=0.7)
    mark = marks("classes").mark_point(filled=True, size=110, opacity=0.95, stroke=colours.background, strokeWidth=1)
    chart = alt.layer(
        span.encode(alt.X("low:Q", title=title, scale=scale), alt.X2("high:Q"), y),
        mark.encode(alt.X("score:Q", title=title, scale=scale), y, colour, shape, tooltip=tips),
        datasets={"classes": points, "reach": reach},
    )
    return dressed(chart, _title(kept, len(arms), len(labels)), colours, height=max(90, 34 * len(shown)))


def _f1(confusion: Sequence[Sequence[int]]) -> list[tuple[float, int]]:
    """Give F1 in % and the number of gold answers of every class; rows are gold, columns predicted."""
    said = [sum(column) for column in zip(*confusion, strict=True)]
    scores = []
    for place, row in enumerate(confusion):
        gold = sum(row)
        scores.append((100 * 2 * row[place] / (gold + said[place]) if gold + said[place] else 0.0, gold))
    return scores


def _title(kept: Sequence[tuple[float, int, str, float, float]], arms: int, classes: int) -> str:
    which = (
        f"F1 by class, the {len(kept)} of {classes} on which arms differ most" if len(kept) < classes else "F1 by class"
    )
    span, _, label, *_ = max(kept)
    if arms < 2:
        return (
            f"{which}: from {min(low for _, _, _, low, _ in kept):.2f} to {max(high for *_, high in kept):.2f}\u00a0%"
        )
    return f"{which}: arms differ most on {label}, by {span:.2f} points"
