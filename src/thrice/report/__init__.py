"""The result of a study for people: tables, pictures and one offline page, made from its summary and rows alone.

Takes what `thrice.compare` gives (`summarise` and `read_rows`) as arguments and imports neither it nor torch. A part is
one entry of the summary's `tasks`.
"""

from __future__ import annotations

from thrice.report.charts import class_scores, differences, learning_curves, memory_split, score_against_cost
from thrice.report.facts import all_notes
from thrice.report.flat import flat_rows, write_rows
from thrice.report.folder import write_all, write_charts
from thrice.report.markdown import markdown_report, markdown_table
from thrice.report.page import write_report
from thrice.report.terminal import seed_table, terminal_report, terminal_table
from thrice.report.verdict import headline, notes, study_notes, verdict

__all__ = [
    "all_notes",
    "class_scores",
    "differences",
    "flat_rows",
    "headline",
    "learning_curves",
    "markdown_report",
    "markdown_table",
    "memory_split",
    "notes",
    "score_against_cost",
    "seed_table",
    "study_notes",
    "terminal_report",
    "terminal_table",
    "verdict",
    "write_all",
    "write_charts",
    "write_report",
    "write_rows",
]
