"""How long the summary and the report of a study take, by its number of cells; not one score in it was measured.

    python benchmarks/report.py --cells 2500 5000 10000 20000

Writes made-up studies (arms x tasks x seeds) into a temporary folder, then times `summarise`, and the writing of page,
Markdown and rows. What is loaded once per process, such as Vega's scripts, is loaded before.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from thrice.compare.results import read_rows
from thrice.compare.summary import summarise
from thrice.report.folder import write_all

ARMS, TASKS = 10, 2


def write_study(folder: Path, *, seeds: int) -> int:
    """Write a study of made-up scores; give its number of cells."""
    draw = random.Random(0)
    arms = [f"model-{number}" for number in range(ARMS)]
    tasks = [f"task-{number}" for number in range(TASKS)]
    (folder / "cells").mkdir(parents=True)
    study = {
        "format": 2,
        "arms": [{"name": arm, "model": arm, "training": {}, "grid": {}} for arm in arms],
        "tasks": [{"name": task, "kind": "classification", "metric": "accuracy"} for task in tasks],
        "seeds": list(range(seeds)),
    }
    (folder / "study.json").write_text(json.dumps(study), encoding="utf-8")
    number = 0
    for task in tasks:
        for place, arm in enumerate(arms):
            for seed in range(seeds):
                row = _row(arm, task, seed, [0.7 + place / 100 + draw.gauss(0, 0.02) for _ in range(4)])
                (folder / "cells" / f"{number:06d}.json").write_text(json.dumps(row), encoding="utf-8")
                number += 1
    return number


def _row(arm: str, task: str, seed: int, scores: list[float]) -> dict[str, Any]:
    *dev, test = scores
    best = max(range(len(dev)), key=lambda epoch: dev[epoch])
    epochs = [{"epoch": epoch + 1, "dev": {"accuracy": score}, "seconds": 1.0} for epoch, score in enumerate(dev)]
    return {
        "format": 2,
        "arm": arm,
        "model": arm,
        "task": task,
        "kind": "classification",
        "seed": seed,
        "point": {},
        "metric": "accuracy",
        "packed": True,
        "collapsed": False,
        "labels": ["0", "1"],
        "epochs": epochs,
        "best_epoch": best + 1,
        "best_dev": dev[best],
        "epoch1_dev": dev[0],
        "test": {"accuracy": test, "confusion": [[40, 5], [4, 51]]},
    }


def measure(cells: int) -> dict[str, Any]:
    """Give the seconds of summary and report of a study of about so many cells, and the bytes of its page."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "study"
        count = write_study(folder, seeds=max(1, cells // (ARMS * TASKS)))
        started = time.perf_counter()
        summary = summarise(folder)
        summed = time.perf_counter()
        written = write_all(summary, read_rows(folder), folder)
        done = time.perf_counter()
        page = written["page"].stat().st_size
    return {"cells": count, "summary_s": summed - started, "report_s": done - summed, "page_bytes": page}


def main() -> None:
    """Print a line per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[2500, 5000, 10000, 20000])
    parser.add_argument("--json", action="store_true", help="one JSON list instead of lines")
    asked = parser.parse_args()
    measure(ARMS * TASKS)  # loads what is loaded once
    found = [measure(cells) for cells in asked.cells]
    if asked.json:
        print(json.dumps(found))
        return
    for one in found:
        print(
            f"{one['cells']:>7,} cells: summary {one['summary_s']:.1f} s, report {one['report_s']:.1f} s, "
            f"page {one['page_bytes'] / 1e6:.2f} MB"
        )


if __name__ == "__main__":
    main()
