"""Reads a study folder, every file of it checked.

A study folder holds `study.json` (what was asked), `cells/*.json` (one finished cell each, one row) and, once all cells
are done, `items.json` (differences over test examples) and `cost.json`. Names of arms are never used as paths: rows are
found by listing `cells/`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from thrice.errors import DataError
from thrice.files import read_json
from thrice.schema import misfits, newer_format

Row = dict[str, Any]

COST_OF_ARM = (
    "parameters_stored",
    "parameters_called",
    "file_bytes",
    "file_bytes_float16",
    "file_bytes_int8",
    "flops_per_token",
    "flops_per_token_training",
    "flops_tokens",
    "latency_short_ms",
    "latency_long_ms",
    "prediction_tokens_per_second",
    "training_tokens_per_second",
    "memory",
    "peak_memory_bytes",
)
COST_OF_TASK = ("seconds_per_epoch", "step_ms")

FORMAT = 2
"""Format of these files that is written and read; a file that does not say its own has format 1."""

STUDY = {
    "arms": list[dict[str, Any]],
    "tasks": list[dict[str, Any]],
    "seeds": list[int],
    "training?": dict[str, Any],
    "data?": dict[str, Any] | None,
    "notes?": list[str] | None,
    "command?": str | list[str] | None,
}
ARM = {"name": str, "model": str, "grid?": dict[str, list[Any]], "training?": dict[str, Any]}
TASK = {"name": str, "kind": str, "metric": str}

MEASURED = {
    "method?": str | None,
    "arms?": dict[str, dict[str, Any] | None] | None,
    "tasks?": dict[str, dict[str, dict[str, Any] | None]] | None,
    "control?": dict[str, Any] | None,
}
MANY = {
    "step_ms": {"median": float, "values": list[float]},
    "latency_short_ms": {"p50": float, "p95": float},
    "latency_long_ms": {"p50": float, "p95": float},
    "memory": dict[str, float | None],
}
"""Costs that are several numbers; every other one is a number."""

MEASURE_AGAIN = "delete it, the command of the study measures again"
WRITE_AGAIN = "delete it, the command of the study writes it again"

ITEMS = {"tasks": dict[str, dict[str, Any]]}

ROW = {
    "arm": str,
    "task": str,
    "seed": int,
    "metric": str,
    "point?": dict[str, Any],
    "epochs": list[Any],
    "best_epoch": int,
    "best_dev": float,
    "epoch1_dev": float,
    "collapsed": bool,
}


def read_rows(study: Path) -> list[Row]:
    """Give the rows of all finished cells, in the order of their file names.

    Raises DataError that lists every file that is no complete row, and every cell that two files claim.
    """
    rows: list[Row] = []
    problems: list[str] = []
    owners: dict[Any, str] = {}
    for path in sorted((Path(study) / "cells").glob("*.json")):
        try:
            row = read_json(path)
        except (OSError, ValueError) as error:  # ValueError: malformed JSON, bytes that are no UTF-8
            problems.append(f"{path}: {error}")
            continue
        wrong = list(_row_problems(row))
        if wrong:
            problems.append(f"{path}: {', '.join(wrong)}")
            continue
        owner = owners.setdefault(key_of(row), path.name)
        if owner != path.name:
            cell = f"arm {row['arm']!r}, task {row['task']!r}, seed {row['seed']}"
            problems.append(f"{path}: holds {cell}, and so does {owner}")
            continue
        rows.append(row)
    if problems:
        raise DataError(
            f"{len(problems)} result file(s) cannot be read: {'; '.join(problems)} - "
            "delete them and start the study again, it computes only what is missing"
        )
    return rows


def read_study(study: Path) -> dict[str, Any]:
    """Give the content of `study.json`; raises DataError if the folder holds no study or the file is malformed."""
    path = Path(study) / "study.json"
    if not path.is_file():
        raise DataError(
            f"{study} holds no study: study.json is missing - name the folder given to `thrice compare --out`"
        )
    content = read_object(path)
    _check_format(path, content, "begin the study anew with --restart, or in another folder")
    problems = misfits(content, STUDY)
    if not problems:
        for room, wanted in (("arms", ARM), ("tasks", TASK)):
            for place, entry in enumerate(content[room]):
                problems += misfits(entry, wanted, place=f"{room}[{place}]")
    if problems:
        raise DataError(
            f"{path}: {', '.join(problems[:8])} - put back a whole copy, or begin the study anew with --restart"
        )
    return content


def read_cost(study: Path) -> dict[str, Any]:
    """Give the content of `cost.json`, or no arms and no tasks where nothing was measured yet."""
    path = Path(study) / "cost.json"
    content: dict[str, Any] = read_object(path) if path.is_file() else {"format": FORMAT}
    _check_format(path, content, MEASURE_AGAIN)
    problems = misfits(content, MEASURED)
    if not problems:
        arms: dict[str, Any] = content.get("arms") or {}
        tasks: dict[str, Any] = content.get("tasks") or {}
        held: list[tuple[str, tuple[str, ...], Any]] = [(f"arms.{a}", COST_OF_ARM, costs) for a, costs in arms.items()]
        held += [(f"tasks.{t}.{arm}", COST_OF_TASK, costs) for t, of in tasks.items() for arm, costs in of.items()]
        for place, names, costs in held:
            for name in names:
                wanted = MANY.get(name, float)
                value = (costs or {}).get(name)
                problems += [] if value is None else misfits(value, wanted, place=f"{place}.{name}")
    if problems:
        raise DataError(f"{path}: {', '.join(problems[:8])} - {MEASURE_AGAIN}")
    return {**content, "arms": content.get("arms") or {}, "tasks": content.get("tasks") or {}}


def read_compared_items(study: Path) -> dict[str, Any]:
    """Give task -> what `items.json` says of its test examples; nothing where it was not written yet."""
    path = Path(study) / "items.json"
    content: dict[str, Any] = read_object(path) if path.is_file() else {"format": FORMAT, "tasks": {}}
    _check_format(path, content, WRITE_AGAIN)
    if problems := misfits(content, ITEMS):
        raise DataError(f"{path}: {', '.join(problems[:8])} - {WRITE_AGAIN}")
    return dict(content["tasks"])


def text_of(point: Mapping[str, Any]) -> str:
    """Give a grid point as text, the same for equal points."""
    return json.dumps(point, sort_keys=True)


def key_of(row: Row) -> tuple[str, str, int, str]:
    """Give what tells a row from all others."""
    return row["arm"], row["task"], row["seed"], text_of(row.get("point") or {})


def _check_format(path: Path, content: dict[str, Any], way_out: str) -> None:
    if problems := newer_format(content, FORMAT):
        raise DataError(f"{path}: {problems[0]}")
    if content.get("format", 1) < FORMAT:
        raise DataError(f"{path}: written by an older thrice, whose studies had one task - {way_out}")


def _row_problems(row: Any) -> Iterable[str]:
    """Name what keeps a value from being a complete result row."""
    if isinstance(row, dict) and row.get("format", 1) in range(1, FORMAT):
        yield "written by an older thrice"
        return
    yield from newer_format(row, FORMAT) or misfits(row, ROW)
    if not isinstance(row, dict):
        return
    metric, epochs = row.get("metric"), row["epochs"] if isinstance(row.get("epochs"), list) else []
    if row.get("epochs") == []:
        yield "epochs is empty"
    for place, epoch in enumerate(epochs, start=1):
        if not (isinstance(epoch, dict) and _has_score(epoch.get("dev"), metric)):
            yield f"epoch entry {place} has no dev {metric}"
    if row.get("test") is not None and not _has_score(row["test"], metric):
        yield f"test has no {metric}"


def _has_score(scores: Any, metric: Any) -> bool:
    return isinstance(metric, str) and not misfits(scores, {metric: float})


def read_object(path: Path) -> dict[str, Any]:
    """Give the object in a JSON file; raises DataError where it cannot be read or is none."""
    try:
        content = read_json(path)
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: a JSON object wanted, got {type(content).__name__}")
    return content
