"""Pictures of a comparison as altair charts, each of one task (a part of the summary) or of a whole study.

All means and quantiles are computed here, so that no chart holds more than about MOST_POINTS points. Every chart says
its finding in its title, neutrally, and starts its score axis where the scores start, which the axis says.
"""

from __future__ import annotations

from thrice.report.charts.classes import class_scores
from thrice.report.charts.curves import learning_curves
from thrice.report.charts.forest import differences
from thrice.report.charts.memory import memory_split
from thrice.report.charts.price import COSTS, not_drawn, score_against_cost
from thrice.report.charts.style import DARK, LIGHT, MOST_POINTS, SHAPES, Colours, arm_style, specification

__all__ = [
    "COSTS",
    "DARK",
    "LIGHT",
    "MOST_POINTS",
    "SHAPES",
    "Colours",
    "arm_style",
    "class_scores",
    "differences",
    "learning_curves",
    "memory_split",
    "not_drawn",
    "score_against_cost",
    "specification",
]
