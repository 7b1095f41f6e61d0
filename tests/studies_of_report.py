"""Synthetic studies for the tests of the report: from scores alone, of two tasks, of many runs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from studies import ARMS, full_study, make_row, write_study

from thrice.compare import summary

EVIL = "<script>alert(1)</script>"
TASKS = {"tnews": "accuracy", "afqmc": "macro_f1"}
GRID = {"learning_rate": [0.0001, 0.0003]}
MISSING = ("afqmc", ARMS[1], 2)
COLLAPSED = ("afqmc", ARMS[2], 1)


def summary_of(folder: Path, scores: dict[str, Sequence[float | None]], **more: Any) -> dict[str, Any]:
    """Give the summary of a study whose arms have these test scores, seed by seed; None is a cell not finished."""
    rows = [
        make_row(arm, seed, [value - 0.02, value - 0.01], value)
        for arm, values in scores.items()
        for seed, value in enumerate(values)
        if value is not None
    ]
    seeds = range(max(map(len, scores.values())))
    return summary.summarise(write_study(folder, rows, arms=list(scores), seeds=list(seeds), **more))


def two_tasks(folder: Path, *, seeds: Sequence[int] = (0, 1, 2), text: str = "物流很快，就是 <b>太贵</b> 了") -> Path:
    """Write a study of two tasks and four arms, two of them with a grid, one cell missing and one collapsed.

    Costs and texts are those of `full_study`; on its second task every text of it is `text`.
    """
    chance = random.Random(3)
    points: dict[str, list[dict[str, Any]]] = {arm: [{}] for arm in ARMS}
    points |= {arm: [{"learning_rate": rate} for rate in GRID["learning_rate"]] for arm in ARMS[1:3]}
    rows = []
    for place, (task, metric) in enumerate(TASKS.items()):
        for arm, base in zip(ARMS, (0.860, 0.872, 0.884, 0.850), strict=True):
            for better, point in enumerate(points[arm]):
                for seed in seeds:
                    if (task, arm, seed) == MISSING:
                        continue
                    top = base - 0.1 * place + 0.004 * better
                    dev = [top - 0.03, top - 0.01, top]
                    dev = [score + chance.gauss(0, 0.003) for score in (dev[-1:] if arm == "tfidf" else dev)]
                    lost = (task, arm, seed) == COLLAPSED
                    row = make_row(
                        *(arm, seed, [0.55] * 3 if lost else dev, 0.54 if lost else dev[-1] - 0.005),
                        task=task,
                        point=point,
                        metric=metric,
                        collapsed=lost,
                    )
                    rows.append({**row, "seconds": 61.2, "packed": None if arm == "tfidf" else arm != ARMS[2]})
    known = full_study(folder / "known")
    cost, items = (json.loads((known / name).read_text(encoding="utf-8")) for name in ("cost.json", "items.json"))
    of, first = cost["tasks"]["classification"], items["tasks"]["classification"]
    other = {**first, "disagreements": [{**item, "text": text} for item in first["disagreements"]]}
    return write_study(
        folder / "study",
        rows,
        arms=ARMS,
        seeds=seeds,
        cost={**cost, "tasks": dict.fromkeys(TASKS, of)},
        items={"tasks": dict(zip(TASKS, (first, other), strict=True))},
        tasks=TASKS,
        grids=dict.fromkeys(ARMS[1:3], GRID),
    )


def many_runs(
    folder: Path, patch: pytest.MonkeyPatch, *, seeds: int, points: int, arms: int = 4, tasks: int = 2, epochs: int = 5
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Give summary and rows of a study of that size; its rows are never written, to save the time of small files."""
    chance = random.Random(7)
    names, kinds = [f"arm {place}" for place in range(arms)], [f"task {place}" for place in range(tasks)]
    rates = [place / 1000 for place in range(1, points + 1)]
    grids = {name: {"learning_rate": rates} for name in names} if points > 1 else {}
    rows = []
    for task in kinds:
        for place, name in enumerate(names):
            for rate in rates:
                for seed in range(seeds):
                    top = 0.7 + place / 50 + rate + chance.gauss(0, 0.01)
                    dev = [top - 0.1 / epoch for epoch in range(1, epochs + 1)]
                    point = {"learning_rate": rate} if points > 1 else {}
                    rows.append(make_row(name, seed, dev, dev[-1] - 0.01, task=task, point=point))
                    rows[-1]["finished"] = "2026-01-01T10:00:00+00:00"
    write_study(folder, [], arms=names, seeds=range(seeds), tasks=dict.fromkeys(kinds, "accuracy"), grids=grids)
    patch.setattr(summary, "read_rows", lambda study: rows)
    return summary.summarise(folder), rows
