"""Writes small synthetic study folders for the tests of results and report; not one number in them was measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ARMS = ("zoo:albert-nano-zh+all", "zoo:albert-nano-zh+attention", "zoo:albert-nano-zh+none", "tfidf")


def make_row(
    arm: str,
    seed: int,
    dev: Sequence[float],
    test: float | None,
    *,
    task: str = "classification",
    point: Mapping[str, Any] | None = None,
    collapsed: bool = False,
    metric: str = "accuracy",
) -> dict[str, Any]:
    """Give the row of a finished cell whose dev metric was `dev` after its epochs."""
    best = max(range(len(dev)), key=lambda place: dev[place])
    epochs = [
        {"epoch": place, "train_loss": 0.7 / place, "dev": {metric: score}, "clipped_fraction": 0.1, "seconds": 20.0}
        for place, score in enumerate(dev, start=1)
    ]
    return {
        "format": 2,
        "arm": arm,
        "model": arm,
        "task": task,
        "kind": "classification",
        "seed": seed,
        "point": point or {},
        "metric": metric,
        "packed": None if arm == "tfidf" else True,
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
    arms: Sequence[str],
    seeds: Sequence[int] = (0, 1, 2),
    cost: Mapping[str, Any] | None = None,
    items: Mapping[str, Any] | None = None,
    metric: str = "accuracy",
    tasks: Mapping[str, str] | None = None,
    grids: Mapping[str, Any] | None = None,
    **more: Any,
) -> Path:
    """Write study.json, one file per row and, where given, cost.json and items.json; give the folder.

    tasks: name -> deciding metric; one called classification where none is given. grids: arm -> its grid.
    """
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    metrics = tasks or {"classification": metric}
    study = {
        "format": 2,
        "arms": [{"name": arm, "model": arm, "training": {}, "grid": (grids or {}).get(arm, {})} for arm in arms],
        "tasks": [{"name": name, "kind": "classification", "metric": decides} for name, decides in metrics.items()],
        "data": {
            name: {
                part: {"source": f"{name}.csv", "fingerprint": "5f2b" * 16, "rows": rows_of_part}
                for part, rows_of_part in (("train", 8000), ("dev", 1000), ("test", 1000))
            }
            for name in metrics
        },
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
    for name, value in (("cost.json", cost), ("items.json", items)):
        if value is not None:
            (folder / name).write_text(json.dumps({"format": 2, **value}, ensure_ascii=False), encoding="utf-8")
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
    arms_cost, steps = {}, {}
    stored = (2_950_000, 4_180_000, 5_710_000)
    for place, arm in enumerate(arms[:3]):
        weights = 4 * stored[place]
        arms_cost[arm] = {
            "parameters_stored": stored[place],
            "parameters_called": 5_650_000,
            "file_bytes": weights,
            "file_bytes_float16": weights // 2,
            "file_bytes_int8": weights // 4 + 20_000,
            "flops_per_token": 4_100_000,
            "flops_per_token_training": 12_300_000,
            "flops_tokens": 128,
            "latency_short_ms": {"p50": 1.9 + place / 100, "p95": 2.4},
            "latency_long_ms": {"p50": 6.8 - place / 50, "p95": 7.9},
            "prediction_tokens_per_second": 31_000 + 100 * place,
            "training_tokens_per_second": 9_800 - 100 * place,
            "memory": {"weights": weights, "gradients": weights, "optimizer": 2 * weights, "activations": 260_000_000},
            "peak_memory_bytes": 260_000_000 + 4 * weights,
        }
        steps[arm] = {
            "seconds_per_epoch": 19.2 + place,
            "step_ms": {"median": 41.3 + 2 * place, "values": [40.2, 41.3, 44.0]},
        }
    arms_cost[arms[3]] = {"parameters_stored": 51_200, "file_bytes": 1_900_000}
    steps[arms[3]] = {"seconds_per_epoch": 1.4, "step_ms": None}
    control = {"arm": arms[0], "ratios": {"latency_short_ms": 1.02, "latency_long_ms": 0.99, "step_ms": 1.03}}
    cost = {
        "arms": arms_cost,
        "tasks": {"classification": steps},
        "control": control,
        "method": "median of 30 interleaved steps; the arms take turns",
    }
    items = {
        "tasks": {
            "classification": {
                "items": 1000,
                "resamples": 2000,
                "of": [
                    f"{arm} on classification seed {row['seed']}"
                    for arm in arms
                    for row in rows
                    if row["arm"] == arm and not row["collapsed"]
                ],
                "arms": {arm: {"mean": 0.004, "low": -0.006, "high": 0.014} for arm in arms[1:]},
                "disagreements": [
                    {
                        "index": 17,
                        "text": "物流很快，就是 <b>太贵</b> 了",
                        "gold": "0",
                        "answers": {
                            arm: ["1", "1", "0"] if place else ["0", "0", "0"] for place, arm in enumerate(arms)
                        },
                        "right": {arm: 1 / 3 if place else 1.0 for place, arm in enumerate(arms)},
                    }
                ],
            }
        }
    }
    return write_study(folder, rows, arms=arms, cost=cost, items=items)
