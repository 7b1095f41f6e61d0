"""Reads a study folder and says what came out: the JSON of `thrice compare --json` and `thrice report --json`.

A study folder holds `study.json` (what was asked), `cells/*.json` (one finished cell each, one row) and, once measured,
`cost.json`. Names of arms are never used as paths: rows are found by listing `cells/`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from thrice.compare.statistics import paired_difference, summary
from thrice.errors import DataError
from thrice.files import read_json
from thrice.schema import misfits, newer_format

Row = dict[str, Any]

SCORES = ("best_dev", "epoch1_dev", "test")

COST = (
    "parameters_stored",
    "parameters_called",
    "file_bytes",
    "peak_memory_bytes",
    "seconds_per_epoch",
    "step_ms",
)

FORMAT = 1
"""Newest format of these files that is read; a file that does not say its own has format 1."""

STUDY = {
    "task": str,
    "metric": str,
    "arms": list[str | dict[str, Any]],
    "seeds": list[int],
    "training?": dict[str, Any],
    "data?": dict[str, Any] | None,
    "notes?": list[str] | None,
    "command?": str | list[str] | None,
}

MEASURED = {"method?": str | None, "arms?": dict[str, dict[str, Any] | None] | None}
STEP = {"median": float, "values": list[float]}
MEASURED_ARM = {f"{name}?": float | None for name in COST}
"""Of every arm; its step_ms is a STEP."""

ROW = {
    "arm": str,
    "seed": int,
    "metric": str,
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
    owners: dict[tuple[str, int], str] = {}
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
        owner = owners.setdefault((row["arm"], row["seed"]), path.name)
        if owner != path.name:
            problems.append(f"{path}: holds arm {row['arm']!r}, seed {row['seed']}, and so does {owner}")
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
    _check_format(path, content)
    problems = misfits(content, STUDY)
    if not problems:
        named = [(f"arms[{place}]", arm) for place, arm in enumerate(content["arms"]) if not isinstance(arm, str)]
        problems = [problem for place, arm in named for problem in misfits(arm, {"name": str}, place=place)]
    if problems:
        raise DataError(
            f"{path}: {', '.join(problems[:8])} - put back a whole copy, or begin the study anew with --restart"
        )
    return content


def read_cost(study: Path) -> dict[str, Any]:
    """Give the content of `cost.json`, or no arms where nothing was measured yet."""
    path = Path(study) / "cost.json"
    content = read_object(path) if path.is_file() else {}
    _check_format(path, content)
    problems = misfits(content, MEASURED)
    if not problems:
        arms = (content.get("arms") or {}).items()
        for arm, held in arms:
            numbers = {name: value for name, value in (held or {}).items() if name != "step_ms"}
            problems += misfits(numbers, MEASURED_ARM, place=f"arms.{arm}")
            step = (held or {}).get("step_ms")
            problems += misfits(step, STEP, place=f"arms.{arm}.step_ms") if step is not None else []
    if problems:
        raise DataError(f"{path}: {', '.join(problems[:8])} - delete it, the command of the study measures again")
    return {**content, "arms": content.get("arms") or {}}


def summarise(study: Path) -> dict[str, Any]:
    """Give the whole result of a study as one JSON value, finished or not.

    Keys: `task`, `metric`, `seeds`, `baseline` (the first arm), `cells` {done, planned}, `arms` in the study's order,
    `cost_method`, `outside` (rows of arms or seeds that the study does not name, left out), `study` (study.json).
    Each arm: `arm`, `done`, `planned`, `missing` (seeds), `collapsed` (seeds), `runs` (every finished seed with its
    scores), `cost` (None where not measured), and `best_dev`, `epoch1_dev`, `test` as
    {mean, std, n, values, seeds, difference}. Collapsed runs stay out of values, means and pairs; they stand in
    `collapsed` and `runs`. `difference` is {mean, low, high, n} to the baseline over the seeds that both finished
    without collapse, None for the baseline itself.
    Raises DataError as the readers do, and where rows chose their best epoch by another metric than the study's.
    """
    content = read_study(study)
    cost = read_cost(study)
    seeds = list(content["seeds"])
    names = [arm["name"] if isinstance(arm, Mapping) else arm for arm in content["arms"]]
    rows = read_rows(study)
    strangers = sorted({row["metric"] for row in rows} - {content["metric"]})
    if strangers:
        raise DataError(
            f"{study}: study.json chooses epochs by {content['metric']}, rows in cells/ by {', '.join(strangers)} - "
            "use another folder for another metric"
        )
    planned = {(name, seed) for name in names for seed in seeds}
    cells = {(row["arm"], row["seed"]): row for row in rows}
    runs = {name: _runs(name, seeds, cells, content["metric"]) for name in names}
    arms = []
    for name in names:
        measured = cost["arms"].get(name) or {}
        baseline = None if name == names[0] else runs[names[0]]
        arms.append(
            {
                "arm": name,
                "done": len(runs[name]),
                "planned": len(seeds),
                "missing": [seed for seed in seeds if (name, seed) not in cells],
                "collapsed": [run["seed"] for run in runs[name] if run["collapsed"]],
                "runs": runs[name],
                "cost": {**dict.fromkeys(COST), **measured},
                **{score: _score(runs[name], baseline, score) for score in SCORES},
            }
        )
    return {
        "task": content["task"],
        "metric": content["metric"],
        "seeds": seeds,
        "baseline": names[0] if names else None,
        "cells": {"done": sum(arm["done"] for arm in arms), "planned": len(planned)},
        "arms": arms,
        "cost_method": cost.get("method"),
        "outside": [{"arm": arm, "seed": seed} for arm, seed in cells if (arm, seed) not in planned],
        "study": content,
    }


def _check_format(path: Path, content: dict[str, Any]) -> None:
    if problems := newer_format(content, FORMAT):
        raise DataError(f"{path}: {problems[0]}")


def _runs(arm: str, seeds: list[int], cells: Mapping[tuple[str, int], Row], metric: str) -> list[dict[str, Any]]:
    """Give every finished seed of one arm: its scores, where it was best and whether it collapsed."""
    rows = [cells[arm, seed] for seed in seeds if (arm, seed) in cells]
    return [
        {
            "seed": row["seed"],
            "best_dev": row["best_dev"],
            "best_epoch": row["best_epoch"],
            "epoch1_dev": row["epoch1_dev"],
            "test": (row.get("test") or {}).get(metric),
            "collapsed": row["collapsed"],
        }
        for row in rows
    ]


def _score(runs: list[dict[str, Any]], baseline: list[dict[str, Any]] | None, score: str) -> dict[str, Any]:
    """Give one score over the seeds that count, and its paired difference to the baseline's runs."""
    values = _by_seed(runs, score)
    scored = list(values.values())
    result = {**dataclasses.asdict(summary(scored)), "values": scored, "seeds": list(values)}
    if baseline is None:
        return {**result, "difference": None}
    others = _by_seed(baseline, score)
    shared = [seed for seed in values if seed in others]
    difference = paired_difference([values[seed] for seed in shared], [others[seed] for seed in shared])
    return {**result, "difference": dataclasses.asdict(difference)}


def _by_seed(runs: list[dict[str, Any]], score: str) -> dict[int, float]:
    return {run["seed"]: run[score] for run in runs if not run["collapsed"] and run[score] is not None}


def _row_problems(row: Any) -> Iterable[str]:
    """Name what keeps a value from being a complete result row."""
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
