"""Curves and results of finished cells for TensorBoard, W&B and trackio."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from thrice.compare.grid import slug
from thrice.errors import TrainingError, first_line
from thrice.files import clear_partials, partial_path
from thrice.trackers import Tracker, Values, check_trackers, numbers


def log_cell(row: Mapping[str, Any], log: Path, *, trackers: Sequence[str], folder: Path, project: str) -> None:
    """Write the curves, the scores and the training of a finished cell to each tracker, as a run of its own.

    row: of the cell, whole; log: its train.jsonl; where that is gone or was never there, as for tfidf, the epochs of
    the row stand for it. folder: of the study; TensorBoard's files go to its `tensorboard/`. project: what W&B and
    trackio file the run under; its name is arm/task/seed, and the fields of its grid point.
    Steps are optimiser steps. Tags: train/* from lines of steps, epoch/* and dev/* from those of epochs, result/*
    and test/* at the end.

    It is written at once and whole. Logged again, TensorBoard's folder of the cell is replaced, and W&B takes nothing
    twice, since the run has the same id and its steps have been; trackio would show the run's points twice.
    Credentials are what the clients find in their environment. Raises ConfigError as check_trackers does, and
    TrainingError, once all were tried, where one failed: the row is not touched.
    """
    check_trackers(trackers)
    name = "/".join([row["arm"], row["task"], f"seed-{row['seed']}", *_point(row)])
    points = list(_points(row, log))
    problems = []
    for tracker in dict.fromkeys(trackers):
        try:
            if tracker == "tensorboard":
                with _replaced(_place(folder, row)) as place:
                    _write(tracker, row, points, place=place, project=project, name=name)
            else:
                _write(tracker, row, points, place=folder, project=project, name=name)
        except Exception as error:  # every client has errors of its own
            said = first_line(error)
            problems.append(f"{tracker}: {type(error).__name__}: {said}")
    if problems:
        raise TrainingError(
            f"the cell {name} is finished and its row kept, but not all trackers took it: {'; '.join(problems)} - "
            "leave them out, or see to what they need and start the same command again"
        )


@contextlib.contextmanager
def _replaced(place: Path) -> Iterator[Path]:
    """Give a folder beside the place, which takes its place once it is whole."""
    place.parent.mkdir(parents=True, exist_ok=True)
    clear_partials(place.parent, place.name)
    beside = partial_path(place)
    shutil.rmtree(beside, ignore_errors=True)
    try:
        yield beside
        shutil.rmtree(place, ignore_errors=True)
        os.replace(beside, place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _write(
    tracker: str, row: Mapping[str, Any], points: list[tuple[int, Values]], *, place: Path, project: str, name: str
) -> None:
    told = json.dumps([project, name, row.get("finished")], ensure_ascii=False)
    key = hashlib.sha256(told.encode()).hexdigest()[:16]
    run = Tracker(tracker, _config(row), place=place, project=project, name=name, group=row["task"], key=key)
    try:
        for step, values in points:
            run.log(step, values)
    finally:
        run.close()


def _points(row: Mapping[str, Any], log: Path) -> Iterator[tuple[int, Values]]:
    """Give (step, values) in the order of the steps."""
    for line in _lines(row, log):
        step = line.get("step", line["epoch"])
        if line["event"] == "step":
            yield step, numbers("train", {k: line.get(k) for k in ("loss", "lr", "grad_norm")})
        else:
            own = {k: v for k, v in line.items() if k not in ("event", "epoch", "step", "dev")}
            yield step, numbers("epoch", own) | numbers("dev", line["dev"])
    last = row.get("steps") or len(row["epochs"])
    results = {k: row.get(k) for k in ("best_dev", "best_epoch", "epoch1_dev", "collapsed", "seconds")}
    yield last, numbers("result", results) | numbers("test", row.get("test") or {})


def _lines(row: Mapping[str, Any], log: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return [{"event": "epoch", **epoch} for epoch in row["epochs"]]


def _config(row: Mapping[str, Any]) -> dict[str, Any]:
    """Give what a run was made of."""
    told = {k: row.get(k) for k in ("arm", "model", "task", "kind", "seed", "metric", "threads", "packed")}
    told |= {f"training.{k}": v for k, v in (row.get("training") or {}).items()}
    told |= {f"point.{k}": v for k, v in (row.get("point") or {}).items()}
    told |= {f"versions.{k}": v for k, v in (row.get("versions") or {}).items()}
    return told


def _point(row: Mapping[str, Any]) -> list[str]:
    point = row.get("point") or {}
    return [",".join(f"{k}={v}" for k, v in sorted(point.items()))] if point else []


def _place(folder: Path, row: Mapping[str, Any]) -> Path:
    """Give TensorBoard's folder of a cell, one below the other as TensorBoard shows them."""
    parts = [row["arm"], row["task"], f"seed-{row['seed']}", *_point(row)]
    return folder.joinpath("tensorboard", *(part if _is_file_name(part) else slug(part) for part in parts))


def _is_file_name(part: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9=_+.-]{0,80}", part) is not None
