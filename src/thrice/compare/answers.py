"""What the test examples of a finished study say: items.json, from the answers of every cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thrice.compare.data import read_task
from thrice.compare.grid import Study, items_path
from thrice.compare.items import compare_items, read_items
from thrice.compare.results import FORMAT, read_compared_items
from thrice.compare.summary import counted, summarise
from thrice.errors import DataError
from thrice.files import write_json

SEED = 0
"""Draws the resamples of the test examples."""


def write_compared_items(study: Study, folder: Path) -> None:
    """Write items.json of a finished study, unless it is there already and of the same cells."""
    path = folder / "items.json"
    chosen = {part["task"]: counted(part["task"], part["arms"]) for part in summarise(folder)["tasks"]}
    of = {task: [str(cell) for cell in cells] for task, cells in chosen.items()}
    if path.is_file() and _made_of(folder) == of:
        return
    tasks = {}
    for name, cells in chosen.items():
        task, splits = read_task(study.task(name))
        tables: dict[str, dict[int, Any]] = {}
        for cell in cells:
            tables.setdefault(cell.arm, {})[cell.seed] = read_items(items_path(folder, cell))
        names = [arm.name for arm in study.arms]
        found = compare_items(names, tables, task, splits.test, study.task(name).metric, seed=SEED)
        tasks[name] = {**found, "of": of[name]}
    write_json(path, {"format": FORMAT, "tasks": tasks})


def _made_of(folder: Path) -> dict[str, Any]:
    try:
        return {name: found.get("of") for name, found in read_compared_items(folder).items()}
    except DataError:  # damaged: written anew
        return {}
