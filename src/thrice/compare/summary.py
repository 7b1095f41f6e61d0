"""What came out of a study as one JSON value: that of `thrice compare --json` and `thrice report --json`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thrice.compare.results import (
    COST_OF_ARM,
    COST_OF_TASK,
    Row,
    key_of,
    read_compared_items,
    read_cost,
    read_rows,
    read_study,
    text_of,
)
from thrice.compare.statistics import holm, improvement, paired_difference, seeds_needed, summary
from thrice.errors import DataError

SCORES = ("best_dev", "epoch1_dev", "test")


def summarise(study: Path) -> dict[str, Any]:
    """Give the whole result of a study as one JSON value, finished or not.

    Keys: `seeds`, `baseline` (the first arm), `cells` {done, planned}, `arms` (name, model, cost), `tasks` in the
    study's order, `cost_method`, `cost_control` (the first arm measured twice), `outside` (rows of arms, tasks, seeds
    or grid points that the study does not name, left out), `study` (study.json).
    Each task: `task`, `kind`, `metric`, `labels`, `deciding` (the score that decides: test, or best_dev where nothing
    was tested), `seeds`, `baseline`, `cells`, `disagreements` and `arms`. Each arm there: `arm`, `model`, `packed`,
    `done`, `planned`, `missing` (seeds), `collapsed` (seeds), `point` (of its grid, the one with the best mean dev
    score), `points`, `runs` (every finished seed with its scores), `confusion`, `cost` (None where not measured), and
    `best_dev`, `epoch1_dev`, `test` as {mean, std, n, values, seeds, difference}. Collapsed runs stay out of values,
    means and pairs; they stand in `collapsed` and `runs`. `difference` is to the baseline over the seeds that both
    finished without collapse, None for the baseline itself; its corrected p, the seeds that would tell and the interval
    over test items are those of the deciding score, None for others.
    Raises DataError as the readers do, and where rows chose their best epoch by another metric than the study's.
    """
    content, cost, items, rows = read_study(study), read_cost(study), read_compared_items(study), read_rows(study)
    metrics = {task["name"]: task["metric"] for task in content["tasks"]}
    strangers = sorted({row["metric"] for row in rows if row["metric"] != metrics.get(row["task"], row["metric"])})
    if strangers:
        raise DataError(
            f"{study}: study.json chooses epochs by {', '.join(metrics.values())}, rows in cells/ by "
            f"{', '.join(strangers)} - use another folder for another metric"
        )
    cells = {key_of(row): row for row in rows}
    parts = [_part(task, content, cells, cost, items.get(task["name"]) or {}) for task in content["tasks"]]
    _correct(parts)
    planned = {
        (arm["name"], task["name"], seed, point)
        for arm in content["arms"]
        for point in _points(arm)
        for task in content["tasks"]
        for seed in content["seeds"]
    }
    names = [arm["name"] for arm in content["arms"]]
    return {
        "seeds": list(content["seeds"]),
        "baseline": names[0] if names else None,
        "cells": {"done": len(planned & set(cells)), "planned": len(planned)},
        "arms": [
            {
                "arm": arm["name"],
                "model": arm["model"],
                "points": len(_points(arm)),
                "cost": dict.fromkeys(COST_OF_ARM) | (cost["arms"].get(arm["name"]) or {}),
            }
            for arm in content["arms"]
        ],
        "tasks": parts,
        "cost_method": cost.get("method"),
        "cost_control": cost.get("control"),
        "outside": [
            {name: row.get(name) for name in ("arm", "task", "seed", "point")}
            for key, row in cells.items()
            if key not in planned
        ],
        "study": content,
    }


def _points(arm: Mapping[str, Any]) -> list[str]:
    """Give the grid points of an arm of study.json, each as the text that `_key` makes of it."""
    grid = arm.get("grid") or {}
    return [text_of(dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]


def _part(
    task: Mapping[str, Any], study: Mapping[str, Any], cells: Mapping[Any, Row], cost: Mapping[str, Any], items: Any
) -> dict[str, Any]:
    """Give what came out for one task."""
    name, metric, seeds = task["name"], task["metric"], list(study["seeds"])
    arms: list[dict[str, Any]] = []
    labels: list[str] = []
    for arm in study["arms"]:
        points = []
        for point in _points(arm):
            rows = [cells[key] for seed in seeds if (key := (arm["name"], name, seed, point)) in cells]
            tried = [row["best_dev"] for row in rows]
            mean = math.fsum(tried) / len(tried) if tried else None
            points.append({"point": json.loads(point), "done": len(rows), "best_dev": mean, "rows": rows})
        # Points of which most runs are there are compared, a collapsed run counting as what it scored.
        chosen = max(points, key=lambda p: (p["done"], -math.inf if p["best_dev"] is None else p["best_dev"]))
        rows = chosen["rows"]
        labels = labels or next((row["labels"] for row in rows if row.get("labels")), [])
        runs = [_run(row, metric) for row in rows]
        done = {run["seed"] for run in runs}
        measured = (cost["arms"].get(arm["name"]) or {}) | ((cost["tasks"].get(name) or {}).get(arm["name"]) or {})
        arms.append(
            {
                "arm": arm["name"],
                "model": arm["model"],
                "packed": next((row["packed"] for row in rows if "packed" in row), None),
                "done": len(rows),
                "planned": len(seeds),
                "missing": [seed for seed in seeds if seed not in done],
                "collapsed": [run["seed"] for run in runs if run["collapsed"]],
                "point": chosen["point"],
                "points": [{key: value for key, value in point.items() if key != "rows"} for point in points],
                "runs": runs,
                "confusion": _confusion(rows),
                "cost": dict.fromkeys((*COST_OF_ARM, *COST_OF_TASK)) | measured,
            }
        )
    for place, arm in enumerate(arms):
        for score in SCORES:
            arm[score] = _score(arm["runs"], arms[0]["runs"] if place else None, score)
    tested = any(run["test"] is not None for arm in arms for run in arm["runs"])
    finished = sum(arm["done"] for arm in arms)
    deciding = "test" if tested or not finished else "best_dev"
    first = _by_seed(arms[0]["runs"], deciding) if arms else {}
    for arm in arms[1:]:
        own = _by_seed(arm["runs"], deciding)
        shared = [seed for seed in own if seed in first]
        needed = seeds_needed([own[seed] for seed in shared], [first[seed] for seed in shared])
        arm[deciding]["difference"]["seeds_needed"] = needed
        found = (items.get("arms") or {}).get(arm["arm"])
        arm["test"]["difference"]["items"] = found and {**found, "n": items.get("items")}
    return {
        "task": name,
        "kind": task["kind"],
        "metric": metric,
        "labels": labels,
        "deciding": deciding,
        "seeds": seeds,
        "baseline": arms[0]["arm"] if arms else None,
        "cells": {"done": finished, "planned": len(arms) * len(seeds)},
        "arms": arms,
        "disagreements": items.get("disagreements") or [],
    }


def _correct(parts: list[dict[str, Any]]) -> None:
    """Write Holm's correction over all deciding differences of a study beside their p-values."""
    differences = [arm[part["deciding"]]["difference"] for part in parts for arm in part["arms"][1:]]
    for difference, corrected in zip(differences, holm([d["p"] for d in differences]), strict=True):
        difference["p_corrected"] = corrected


def _run(row: Row, metric: str) -> dict[str, Any]:
    """Give the scores of a row, where it was best and whether it collapsed."""
    kept = {key: row[key] for key in ("seed", "best_dev", "best_epoch", "epoch1_dev", "collapsed")}
    return {**kept, "test": (row.get("test") or {}).get(metric)}


def _confusion(rows: list[Row]) -> list[list[int]] | None:
    """Give the sum of the confusion matrices on the test examples over the runs that did not collapse."""
    found = [row["test"].get("confusion") for row in rows if not row["collapsed"] and row.get("test")]
    if not found or any(matrix is None or len(matrix) != len(found[0]) for matrix in found):
        return None
    return [[sum(counts) for counts in zip(*lines, strict=True)] for lines in zip(*found, strict=True)]


def _score(runs: list[dict[str, Any]], baseline: list[dict[str, Any]] | None, score: str) -> dict[str, Any]:
    """Give one score over the seeds that count, and its paired difference to the baseline's runs."""
    values = _by_seed(runs, score)
    scored = list(values.values())
    result = {**dataclasses.asdict(summary(scored)), "values": scored, "seeds": list(values)}
    if baseline is None:
        return {**result, "difference": None}
    others = _by_seed(baseline, score)
    shared = [seed for seed in values if seed in others]
    pair = [values[seed] for seed in shared], [others[seed] for seed in shared]
    return {
        **result,
        "difference": {
            **dataclasses.asdict(paired_difference(*pair)),
            "p_corrected": None,
            "improvement": improvement(scored, list(others.values())),
            "seeds_needed": None,
            "items": None,
        },
    }


def _by_seed(runs: list[dict[str, Any]], score: str) -> dict[int, float]:
    return {run["seed"]: run[score] for run in runs if not run["collapsed"] and run[score] is not None}
