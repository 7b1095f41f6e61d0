"""One cell of a study: trained, scored, written as one row, and gone on with where it was stopped."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from thrice.compare.baseline import run_tfidf
from thrice.compare.data import check_data, facts_of, read_task
from thrice.compare.facts import machine, versions
from thrice.compare.grid import TFIDF, Cell, Study, cell_path, items_path, model_path, work_path
from thrice.compare.items import write_items
from thrice.compare.memory import forget_peak, status_bytes
from thrice.compare.results import FORMAT
from thrice.compare.store import Store
from thrice.compare.trackers import log_cell
from thrice.files import clear_partials, read_json, write_json
from thrice.finetune import build, save_model, train
from thrice.locks import locked

Row = dict[str, Any]

PATIENCE = 10.0
"""Seconds that a cell waits for a worker whose parent was killed; it looks for its parent five times a second."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copies:
    """Where else a finished cell goes."""

    store: str | None = None
    """URL of a second place for rows, answers and kept models, see `compare.store`."""
    trackers: tuple[str, ...] = ()
    """tensorboard, wandb or trackio, see `thrice.trackers`."""
    project: str = "thrice"
    """Under which W&B and trackio file the runs."""


def run_cell(study: Study, folder: Path, cell: Cell, data: Mapping[str, Any], copies: Copies | None = None) -> Row:
    """Train one arm on one task from one seed, write its row and give it; resumes a cell that was stopped.

    data: the facts of the task's data that the study began with; raises DataError where the files say otherwise now.
    """
    path, work = cell_path(folder, cell), work_path(folder, cell)
    with locked(work, patience=PATIENCE):
        clear_partials(path.parent, path.name)
        # A worker outlives a killed parent for a moment; where it finished its cell in it, there is nothing left to do.
        row: Row = read_json(path) if path.exists() else _run_cell(study, folder, cell, data)
        put_copies(folder, cell, row, copies or Copies())
        shutil.rmtree(work, ignore_errors=True)
        return row


def put_copies(folder: Path, cell: Cell, row: Row, copies: Copies) -> None:
    """Give a finished cell to the trackers, whole and at once, and put its files into the store."""
    if copies.trackers:
        log = work_path(folder, cell) / "train.jsonl"
        log_cell(row, log, trackers=copies.trackers, folder=folder, project=copies.project)
    if copies.store is not None:
        paths = (cell_path(folder, cell), items_path(folder, cell), model_path(folder, cell))
        Store(copies.store).push(folder, [path.relative_to(folder) for path in paths if path.exists()])


def _run_cell(study: Study, folder: Path, cell: Cell, data: Mapping[str, Any]) -> Row:
    started = _now()
    forget_peak()
    arm, asked, config = study.arm(cell.arm), study.task(cell.task), study.training_of(cell)
    task, splits = read_task(asked)
    check_data(splits, data)
    row: Row = {
        "format": FORMAT,
        "arm": arm.name,
        "model": arm.model,
        "task": asked.name,
        "kind": asked.kind,
        "seed": cell.seed,
        "point": dict(cell.point),
        "metric": asked.metric,
        "packed": None,
        "training": None,
    }
    if arm.model == TFIDF:
        with threadpool_limits(study.threads, user_api="blas"):
            found, answers = run_tfidf(task, splits, seed=cell.seed)
        row |= found
    else:
        torch.set_num_threads(study.threads)
        model, tokenizer = build(arm.model, task, seed=cell.seed, tokenizer=study.tokenizer)
        done = train(
            model,
            tokenizer,
            splits,
            config,
            name=arm.model,
            metric=asked.metric,
            folder=work_path(folder, cell),
            progress=False,
        )
        answers = done.test_predictions
        row |= {
            "packed": model.encoder.packed,
            "training": dataclasses.asdict(config),
            "epochs": done.fit.epochs,
            "best_epoch": done.fit.best_epoch,
            "collapsed": done.fit.collapsed,
            "steps": done.fit.steps,
            "seconds": done.fit.seconds,
            "test": done.test,
        }
        if study.save_models:
            facts = {"study": {"arm": arm.name, "task": asked.name, "seed": cell.seed}}
            save_model(model, model_path(folder, cell), tokenizer, facts=facts)
    row |= {
        "best_dev": row["epochs"][row["best_epoch"] - 1]["dev"][asked.metric],
        "epoch1_dev": row["epochs"][0]["dev"][asked.metric],
        "labels": list(getattr(task, "labels", ())),
        "data": facts_of(splits),
        "threads": study.threads,
        "process_peak_bytes": _peak_memory(),
        "machine": machine(),
        "versions": versions(),
        "started": started,
        "finished": _now(),
    }
    if answers is not None:
        write_items(items_path(folder, cell), task, answers, splits.test)
    write_json(cell_path(folder, cell), row)  # last: a row says that all of its cell is there
    return row


def _peak_memory() -> int | None:
    """Give the most memory that this process, or its GPU, held since the cell began; None where nobody can tell."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else status_bytes("VmHWM")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
