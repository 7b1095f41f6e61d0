"""The result of a study for people: tables, pictures and one offline page, made from its summary and rows alone.

Takes what `thrice.compare.results` gives (`summarise` and `read_rows`) as arguments and imports neither it nor torch.
"""

from __future__ import annotations

from thrice.report.charts import learning_curves, score_against_cost
from thrice.report.page import write_report
from thrice.report.tables import markdown_table, seed_table, terminal_table
from thrice.report.verdict import headline, notes, study_notes, verdict

__all__ = [
    "headline",
    "learning_curves",
    "markdown_table",
    "notes",
    "score_against_cost",
    "seed_table",
    "study_notes",
    "terminal_table",
    "verdict",
    "write_report",
]
