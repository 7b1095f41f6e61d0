"""A study in a terminal: tables that fit its width and no number cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thrice.report import cost, tables
from thrice.report.facts import all_notes
from thrice.report.tables import Cells, Part, Summary, arm_note, arm_setting, caption, result_cells, seed_cells
from thrice.report.verdict import headline, verdict

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

MOST_RUNS = 60
"""Runs up to which a terminal lists every seed, and grid points up to which it lists those not chosen."""

GRID = "Grid points, each arm's best first, by the mean best dev."


def terminal_report(summary: Summary, console: Console) -> None:
    """Print all that a terminal needs of a study: overview, results, seeds, differences, cost, verdict and notes.

    Of studies of more than MOST_RUNS runs, single seeds stand in the page and in rows.csv alone. Notes come last, where
    they are seen.
    """
    from rich.rule import Rule
    from rich.text import Text

    width, parts = console.width, summary["tasks"]
    several = len(parts) > 1
    all_runs = sum(arm["planned"] for part in parts for arm in part["arms"])
    if several:
        console.print(cells_table(tables.overview_cells(summary), "Every task, by the score that decides.", width))
    for place, part in enumerate(parts):
        if several:
            console.print(Rule(Text(part["task"]), align="left"))
        console.print(terminal_table(part, width=width))
        if all_runs <= MOST_RUNS:
            console.print(seed_table(part, width=width))
        if len(part["arms"]) > 1:
            console.print(cells_table(tables.difference_cells(part), "" if place else tables.DIFFERENCES, width))
        headers, tried = tables.grid_cells(part)
        if tried:
            kept = tried if len(tried) <= MOST_RUNS else [row for row in tried if row[-1]]
            console.print(cells_table((headers, kept), GRID, width))
        if several:
            console.print(verdict(part), markup=False, highlight=False)
            console.print()
    for cells, text in ((cost.prediction_cells(summary), "Prediction."), (cost.training_cells(summary), "Training.")):
        if any(cell != tables.NOTHING for row in cells[1] for cell in row[1:]):
            console.print(cells_table(cells, text, width))
    for line in (*cost.cost_words(summary), headline(summary), *all_notes(summary)):
        console.print(line, markup=False, highlight=False)


def cells_table(cells: Cells, text: str, width: int) -> Table:
    """Give any table for a terminal of that many columns; headers and shared names give way before numbers do."""
    headers, rows = cells
    if _natural_width([headers, *rows]) <= width:
        return _rich_table(headers, rows, text, width)
    heads = [
        header.replace(": ", ":\n").replace(" ", "\n", 1) if place else header for place, header in enumerate(headers)
    ]
    short, meaning = _short([row[0] for row in rows])
    kept = [[name, *row[1:]] for name, row in zip(short, rows, strict=True)]
    if _natural_width([heads, *kept]) > width:
        heads = [header.replace(" ", "\n") if place else header for place, header in enumerate(headers)]
        kept = [[row[0], *(_folded(cell) for cell in row[1:])] for row in kept]
    return _rich_table(heads, kept, text + meaning, width)


def _folded(cell: str) -> str:
    """Break a cell where its parts meet."""
    return cell.replace(" / ", " /\n").replace(" to ", " to\n").replace(" [", "\n[").replace(" (", "\n(")


def terminal_table(part: Part, *, width: int = 80) -> RenderableType:
    """Give the essays' table for a terminal of that many columns.

    Where one table is too wide it becomes two, scores and cost, and arms that share a model lose its name:
    zoo:albert-nano-zh+none is printed as …+none below a line that says what the dots stand for.
    """
    from rich.console import Group

    headers, rows = result_cells(part)
    names = [
        "\n".join([arm["arm"], *filter(None, [*arm_note(arm).split("; "), arm_setting(arm, grid=False)])])
        for arm in part["arms"]
    ]
    whole = [[name, *row[1:]] for name, row in zip(names, rows, strict=True)]
    if _natural_width([headers, *whole]) <= width:
        return _rich_table(headers, whole, caption(part), width)
    short, said = _short(names)
    heads = [*headers[:3], headers[3].replace(" epoch", "\nepoch"), headers[4], headers[5].replace(": ", ":\n")]
    heads[5] = heads[5].replace(" to first", "\nto first")
    scores = [
        [name, *(cell.replace(" [", "\n[").replace(" (", "\n(") for cell in row[1:6])]
        for name, row in zip(short, rows, strict=True)
    ]
    costs = [[name.split("\n")[0], *row[6:]] for name, row in zip(short, rows, strict=True)]
    return Group(
        _rich_table(heads, scores, "", width),
        _rich_table([headers[0], *headers[6:]], costs, f"{caption(part)}{said}", width),
    )


def seed_table(part: Part, *, width: int = 80) -> Table:
    """Give the table of every seed for a terminal of that many columns."""
    headers, rows = seed_cells(part)
    said = "Every seed. A collapsed run is shown and never averaged."
    if _natural_width([headers, *rows]) <= width:
        return _rich_table(headers, rows, said, width)
    headers = [header.replace(" ", "\n", 1).replace(": ", ":\n").replace(" to", "\nto") for header in headers]
    short, meaning = _short([row[0] for row in rows])
    return _rich_table(
        headers, [[name, *row[1:]] for name, row in zip(short, rows, strict=True)], said + meaning, width
    )


def _rich_table(headers: list[str], rows: list[list[str]], text: str, width: int) -> Table:
    """Build a rich table whose cells are plain text: an arm called "[bold]" stays what it is."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD,
        caption=Text(text, style="dim") if text else None,
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    # Names give way before numbers do; numbers fold only where a name would keep fewer than 8 columns.
    roomy = _natural_width([headers[1:], *(row[1:] for row in rows)]) + 10 <= width
    for place, header in enumerate(headers):
        table.add_column(
            Text(header), justify="right" if place else "left", overflow="fold", no_wrap=roomy and place > 0
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _natural_width(lines: list[list[str]]) -> int:
    """Give the columns of a terminal that a table needs where no cell is folded."""
    columns = zip(*lines, strict=True)
    return sum(2 + max(len(part) for cell in column for part in cell.split("\n")) for column in columns)


def _short(names: list[str]) -> tuple[list[str], str]:
    """Leave out the model that several arms share before their pattern; give the names and what the dots mean."""
    stems = [name.split("\n")[0].rpartition("+")[0] for name in names]
    stem = max(stems, key=lambda stem: stems.count(stem) if stem else 0, default="")
    if not stem or stems.count(stem) < 2:
        return names, ""
    return [f"…{name.removeprefix(stem)}" if name.startswith(f"{stem}+") else name for name in names], f" … is {stem}."
