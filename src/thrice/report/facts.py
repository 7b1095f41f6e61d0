"""What a study says of itself: its notes, its command, its data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from thrice.report.tables import Summary
from thrice.report.verdict import notes, study_notes


def all_notes(summary: Summary) -> list[str]:
    """Give what a reader must know before trusting the tables: of tasks, of the study, and its own."""
    several = len(summary["tasks"]) > 1
    said = [f"{part['task']}: {note}" if several else note for part in summary["tasks"] for note in notes(part)]
    return [*said, *study_notes(summary), *(summary["study"].get("notes") or ())]


def command_of(study: Summary) -> str | None:
    """Give the command that made a study as one text."""
    command = study.get("command")
    return command if command is None or isinstance(command, str) else " ".join(map(str, command))


def data_facts(study: Summary) -> dict[str, list[str]]:
    """Say in short, per task, where its examples come from and how many rows each part has.

    study: study.json, whose `data` holds {task: {"train": {"source", "rows", ...}, "dev": ..., ...}}.
    """
    said = {}
    for task, parts in (study.get("data") or {}).items():
        known = {name: part for name, part in parts.items() if isinstance(part, Mapping)} if parts else {}
        sources = dict.fromkeys(str(part["source"]) for part in known.values() if part.get("source"))
        sizes = [f"{part['rows']:,} {name}" for name, part in known.items() if isinstance(part.get("rows"), int)]
        said[task] = [*sources, *([", ".join(sizes)] if sizes else [])]
    return said


def last_finished(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Give the moment at which the last cell ended, as its row has it."""
    return max((str(row["finished"]) for row in rows if row.get("finished")), default=None)
