"""The result of a study at hand: in a notebook, in a data frame, as a page."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thrice.compare.results import Row, read_rows
from thrice.compare.summary import summarise
from thrice.report import cost, facts, flat, tables
from thrice.report.page import write_report
from thrice.report.verdict import headline

if TYPE_CHECKING:
    import pandas as pd

# Notebooks are light or dark by themselves: text keeps their colour, lines are a half-seen grey on either ground.
TABLE = "border-collapse:collapse;margin:.4em 0 .9em;font-variant-numeric:tabular-nums"
CELL = "padding:.3em .7em;border-bottom:1px solid rgb(128 128 128/.35);background:none;color:inherit"


class StudyResult:
    """The result of a study, finished or not, as it was when it was read.

    result = thrice.read_study("study/")
    result                      # in a notebook: headline and tables
    result.table()              # one row per task and arm, numbers as they are
    result.report("report.html")
    """

    def __init__(self, folder: Path, summary: dict[str, Any], rows: list[Row]) -> None:
        self.folder = folder
        self.summary = summary
        self._rows = rows

    def verdict(self) -> str:
        """Give in one sentence who wins, or that nobody does; of several tasks, on which."""
        return headline(self.summary)

    def notes(self) -> list[str]:
        """Give what a reader must know before trusting the numbers: what is missing, collapsed or left out."""
        return facts.all_notes(self.summary)

    def table(self) -> pd.DataFrame:
        """Give one row per task and arm: the columns of the essays' table as numbers, shares not in per cent, bytes.

        `difference`, `low`, `high`, `p_corrected` are to the first arm by the score named in `deciding`; NaN for it.
        """
        import pandas as pd

        return pd.DataFrame([_line(part, arm) for part in self.summary["tasks"] for arm in part["arms"]])

    def rows(self) -> pd.DataFrame:
        """Give one row per finished cell, as rows.csv has them; those of grid points not chosen too."""
        import pandas as pd

        return pd.DataFrame(flat.flat_rows(self._rows))

    def report(self, path: Path | str | None = None) -> Path:
        """Write the page and give its path; report.html in the study's folder where none is named."""
        return write_report(self.summary, self._rows, Path(path) if path else self.folder / "report.html")

    def __repr__(self) -> str:
        done = self.summary["cells"]
        return f"<StudyResult {self.folder}: {done['done']} of {done['planned']} cells. {self.verdict()}>"

    def _repr_html_(self) -> str:
        said = [f"<p><strong>{html.escape(self.verdict())}</strong></p>"]
        said += [f"<p>{html.escape(note)}</p>" for note in self.notes()]
        for part in self.summary["tasks"]:
            noted = [tables.arm_note(arm) for arm in part["arms"]]
            said.append(_shown(tables.result_cells(part), noted, tables.caption(part)))
        said += [f"<p>{html.escape(sentence)}</p>" for sentence in cost.cost_words(self.summary)]
        return f'<div style="overflow-x:auto">{"".join(said)}</div>'


def read_study(folder: Path | str) -> StudyResult:
    """Give the result of the study in a folder, finished or not.

    Raises DataError where the folder holds no study, or a file of it is damaged.
    """
    folder = Path(folder)
    return StudyResult(folder, summarise(folder), read_rows(folder))


def _line(part: dict[str, Any], arm: dict[str, Any]) -> dict[str, Any]:
    score = tables.deciding(part)
    difference = arm[score]["difference"] or {}
    means = {
        key: value
        for name in ("best_dev", "epoch1_dev", "test")
        for key, value in ((name, arm[name]["mean"]), (f"{name}_std", arm[name]["std"]))
    }
    costs = ("parameters_stored", "parameters_called", "file_bytes", "peak_memory_bytes")
    return {
        "task": part["task"],
        "arm": arm["arm"],
        "model": arm["model"],
        "metric": part["metric"],
        **means,
        "seconds_per_epoch": arm["cost"]["seconds_per_epoch"],
        "deciding": score,
        "seeds": arm[score]["n"],
        "collapsed": len(arm["collapsed"]),
        "difference": difference.get("mean"),
        **{name: difference.get(name) for name in ("low", "high", "p_corrected", "seeds_needed")},
        **{name: arm["cost"][name] for name in costs},
    }


def _shown(cells: tables.Cells, notes: list[str], caption: str) -> str:
    """Give a table as HTML with its style in it, since a notebook keeps no style sheet of ours."""
    headers, rows = cells
    lines = [
        "".join(
            f'<th scope="col" style="{_side(place)}">{html.escape(name)}</th>' for place, name in enumerate(headers)
        )
    ]
    for row, note in zip(rows, notes, strict=True):
        name = html.escape(row[0]) + (f"<br><small>{html.escape(note)}</small>" if note else "")
        line = f'<th scope="row" style="{_side(0)};font-weight:normal">{name}</th>'
        lines.append(
            line + "".join(f'<td style="{_side(1)};white-space:nowrap">{html.escape(cell)}</td>' for cell in row[1:])
        )
    body = "".join(f'<tr style="background:none">{line}</tr>' for line in lines)
    said = f'<caption style="text-align:left;color:inherit;opacity:.75">{html.escape(caption)}</caption>'
    return f'<table style="{TABLE}">{said}{body}</table>'


def _side(place: int) -> str:
    return f"{CELL};text-align:{'right' if place else 'left'}"
