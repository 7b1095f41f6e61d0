"""Writes small synthetic study folders for the tests of results and report; not one number in them was measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ARMS = ("zoo:albert-nano-zh+all", "zoo:albert-nano-zh+attention", "zoo:albert-nano-zh+none", "tfidf")


def make_row(
    arm: str, seed: int, dev: Sequence[float], test: float | None, *, collapsed: bool = False, metric: str = "accuracy"
) -> dict[str, Any]:
    """Give the row of a finished cell whose dev metric was `dev` after its epochs."""
    best = max(range(len(dev)), key=lambda place: dev[place])
    epochs = [
        {"epoch": place, "train_loss": 0.7 / place, "dev": {metric: score}, "clipped_fraction": 0.1, "seconds": 20.0}
        for place, score in enumerate(dev, start=1)
    ]
    return {
        "arm": arm,
        "seed": seed,
        "task": "classification",
        "metric": metric,
        "epochs": epochs,
        "best_epoch": best + 1,
        "best_dev": dev[best],
        "epoch1_dev": dev[0],
        "test": None if test is None else {metric: test, "confusion": [[40, 5], [4, 51]]},
        "labels": ["0", "1"],
        "collapsed": collapsed,
        "finished": f"2026-01-0{seed + 1}T10:00:00+00:00",
    }


def write_study(
    folder: Path,
    rows: Iterable[Mapping[str, Any]],
    *,
    arms: Sequence[Any],
    seeds: Sequence[int] = (0, 1, 2),
    cost: Mapping[str, Any] | None = None,
    metric: str = "accuracy",
    **more: Any,
) -> Path:
    """Write study.json, one file per row and, where given, cost.json; give the folder."""
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    study = {
        "task": "classification",
        "metric": metric,
        "data": {
            part: {"source": "reviews.csv", "fingerprint": "5f2b" * 16, "rows": rows_of_part}
            for part, rows_of_part in (("train", 8000), ("dev", 1000), ("test", 1000))
        },
        "arms": list(arms),
        "seeds": list(seeds),
        "notes": ["12 texts of test also stand in train"],
        "training": {"epochs": 3, "batch_size": 32, "learning_rate": 0.0001, "schedule": "linear"},
        "versions": {"thrice": "0.1.0", "python": "3.11"},
        "machine": {"cpu": "some processor", "cores": 2, "gpu": None},
        "command": "thrice compare a b --data reviews.csv --out study/",
        **more,
    }
    (folder / "study.json").write_text(json.dumps(study, ensure_ascii=False), encoding="utf-8")
    for place, row in enumerate(rows):
        (folder / "cells" / f"cell-{place:03d}.json").write_text(json.dumps(row), encoding="utf-8")
    if cost is not None:
        (folder / "cost.json").write_text(json.dumps(cost), encoding="utf-8")
    return folder


def full_study(folder: Path, *, arms: Sequence[str] = ARMS) -> Path:
    """Write a study of four arms and three seeds with one collapsed run, one missing cell and all costs."""
    rows = []
    for seed in (0, 1, 2):
        wobble = (0.0, 0.006, -0.004)[seed]
        rows.append(make_row(arms[0], seed, [0.861 + wobble, 0.879, 0.884 + wobble / 2], 0.880 + wobble / 2))
        rows.append(make_row(arms[1], seed, [0.852 + wobble * 2, 0.882, 0.889 - wobble / 3], 0.884 + wobble))
        if seed == 1:
            rows.append(make_row(arms[2], seed, [0.55, 0.55, 0.55], 0.54, collapsed=True))
        elif seed == 0:
            rows.append(make_row(arms[2], seed, [0.845, 0.884, 0.893], 0.889))
        rows.append(make_row(arms[3], seed, [0.868], 0.861))
    step = {"median": 41.3, "values": [40.2, 41.3, 44.0]}
    stored = (2_950_000, 4_180_000, 5_710_000)
    cost = {
        arm: {
            "parameters_stored": stored[place],
            "parameters_called": 5_650_000,
            "file_bytes": stored[place] * 4,
            "peak_memory_bytes": 310_000_000 + 8 * stored[place],
            "seconds_per_epoch": 19.2 + place,
            "step_ms": {**step, "median": 41.3 + 2 * place},
        }
        for place, arm in enumerate(arms[:3])
    }
    cost[arms[3]] = {
        "parameters_stored": 51_200,
        "parameters_called": None,
        "file_bytes": 1_900_000,
        "peak_memory_bytes": None,
        "seconds_per_epoch": 1.4,
        "step_ms": None,
    }
    method = "median of 30 interleaved steps; the arms take turns"
    return write_study(folder, rows, arms=arms, cost={"arms": cost, "method": method})
