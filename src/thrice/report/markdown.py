"""A study as GitHub Markdown: one table, or the whole report."""

from __future__ import annotations

from thrice.report import cost, tables
from thrice.report.facts import all_notes, command_of
from thrice.report.tables import Cells, Part, Summary
from thrice.report.verdict import headline, verdict


def markdown_table(part: Part) -> str:
    """Give the essays' table of one task as GitHub Markdown, its caption below it."""
    headers, rows = tables.result_cells(part)
    noted = ["; ".join(filter(None, (tables.arm_note(arm), tables.arm_setting(arm)))) for arm in part["arms"]]
    return f"{_table((headers, rows), noted)}\n\n{_markdown(tables.caption(part))}\n"


def markdown_report(summary: Summary) -> str:
    """Give the report of a study as GitHub Markdown: headline, notes, tables of every task, cost and command."""
    parts, study = summary["tasks"], summary["study"]
    several = len(parts) > 1
    blocks = [f"# {_markdown(headline(summary))}"]
    blocks += ["\n".join(f"- {_markdown(note)}" for note in said)] if (said := all_notes(summary)) else []
    if several:
        blocks += ["## Every task", _table(tables.overview_cells(summary))]
    for part in parts:
        blocks += [f"## {_markdown(part['task'])}", *([_markdown(verdict(part))] if several else [])]
        blocks.append(markdown_table(part).strip())
        if len(part["arms"]) > 1:
            blocks += [_table(tables.difference_cells(part)), _markdown(tables.DIFFERENCES)]
        tried = tables.grid_cells(part)
        if tried[1]:
            blocks += ["### Grid points", _table(tried)]
    blocks.append("## Cost")
    blocks += [_markdown(sentence) for sentence in cost.cost_words(summary)]
    for name, cells in (("Prediction", cost.prediction_cells), ("Training", cost.training_cells)):
        blocks += [f"### {name}", _table(cells(summary))]
    blocks.append(_table(cost.step_cells(summary)))
    blocks += [f"How it was measured: {_markdown(summary['cost_method'])}"] if summary["cost_method"] else []
    if command := command_of(study):
        blocks += ["## Command", f"    {command.replace(chr(10), ' ')}"]
    return "\n\n".join(blocks) + "\n"


def _table(cells: Cells, notes: list[str] | None = None) -> str:
    headers, rows = cells
    lines = [[_markdown(header) for header in headers], [":--", *["--:"] * (len(headers) - 1)]]
    for place, row in enumerate(rows):
        note = notes[place] if notes else ""
        lines.append([_markdown(row[0]) + (f" ({_markdown(note)})" if note else ""), *map(_markdown, row[1:])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown(text: str) -> str:
    """Escape what would end a cell or start markup."""
    for sign, safe in {"\\": "\\\\", "|": "\\|", "<": "&lt;", "\n": " ", "`": "\\`", "*": "\\*", "](": "]\\("}.items():
        text = text.replace(sign, safe)
    return text
