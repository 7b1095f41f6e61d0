"""Runs a study: every missing cell once, each finished one a file that is never computed again."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thrice.compare.answers import write_compared_items
from thrice.compare.cell import cell_of
from thrice.compare.cells import Copies, Row, put_copies, run_cell
from thrice.compare.cost import measure_cost
from thrice.compare.data import data_facts, read_task
from thrice.compare.facts import made_of, study_facts
from thrice.compare.grid import (
    TFIDF,
    Cell,
    Study,
    cell_path,
    forget_study,
    refuse_foreign,
    work_path,
    write_study,
)
from thrice.compare.pool import in_pool
from thrice.compare.progress import Follower
from thrice.compare.results import read_compared_items, read_cost, read_rows
from thrice.compare.store import Store
from thrice.compare.summary import summarise
from thrice.errors import ConfigError, DataError
from thrice.files import clear_partials, read_json
from thrice.launcher import refuse_several
from thrice.locks import locked
from thrice.ray_cluster import engine_problems
from thrice.trackers import check_trackers
from thrice.training.interrupt import orderly_termination


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Where the cells of a study are computed."""

    kind: str = "local"
    """local: processes of this machine; ray: a Ray cluster, started here or joined."""
    jobs: int = 1
    """Cells computed at once, each in a process of its own with the study's threads; 1 local one is this process."""
    address: str | None = None
    """Of a running Ray cluster; None starts one on this machine."""
    gpus: float = 0
    """GPUs that Ray reserves for a cell."""

    def __post_init__(self) -> None:
        """Check the values; raises ConfigError."""
        ray_only = {"--address": self.address is not None, "--gpus": bool(self.gpus)}
        problems = engine_problems(self.kind, ray_only)
        if self.jobs < 1:
            problems.append(f"--jobs is {self.jobs}, it must be at least 1")
        if self.gpus < 0:
            problems.append(f"--gpus is {self.gpus}, it must be at least 0")
        if problems:
            raise ConfigError("; ".join(problems))

    def compute(self, study: Study, calls: list[tuple[Any, ...]], follow: Follower) -> Generator[Row, None, None]:
        """Give the rows of these calls of `run_cell`, in the order in which they end."""
        if self.kind == "ray":
            from thrice.compare.ray_engine import in_ray

            where: dict[str, Any] = {"address": self.address, "cpus": study.threads, "gpus": self.gpus}
            return in_ray(run_cell, calls, jobs=self.jobs, look=follow.look, **where)
        if self.jobs > 1:
            return in_pool(run_cell, calls, jobs=self.jobs, threads=study.threads, look=follow.look)
        return _in_process(calls, follow)


def run_study(
    study: Study,
    folder: Path,
    *,
    engine: Engine | None = None,
    restart: bool = False,
    command: str | None = None,
    minutes: float | None = None,
    cost: bool = True,
    copies: Copies | None = None,
    on_plan: Callable[[], None] | None = None,
    on_start: Callable[[int, int], None] | None = None,
    on_steps: Callable[[int], None] | None = None,
    on_cell: Callable[[Row], None] | None = None,
    on_cost: Callable[[], None] | None = None,
) -> bool:
    """Compute what is missing in the study's folder: cells first, then what follows from all of them, then the cost.

    Gives whether the study is finished; it is not where the budget was spent first.

    engine: where cells are computed; one after the other in this process where none is given.
    restart: discard the results of the study that the folder holds. command: kept in study.json for the reader.
    cost: whether times and memory are measured at the end. minutes: the budget; when it is spent, cells in work are
    saved and the next start goes on with them.
    copies: where finished cells go beside the folder; what a store has and the folder lacks is fetched first.
    on_plan: called when it is known that the study can be run. on_start: told the steps of the missing cells and how
    many of them the folder holds already; on_steps: told the steps done since; on_cell: given each finished row;
    on_cost: told that measuring begins.
    Raises ConfigError where an arm cannot be built or the folder holds another study, and TrainingError where another
    process works in it, before anything is computed; Interrupted on Ctrl-C or SIGTERM, with the cells saved.
    """
    if minutes is not None and not 0 < minutes < math.inf:
        raise ConfigError(f"--minutes is {minutes}, it must be above 0")
    refuse_several("a study", "give it several cells at a time with --jobs")
    refuse_foreign(folder)
    engine, copies = engine or Engine(), copies or Copies()
    check_trackers(copies.trackers)
    store = None if copies.store is None else Store(copies.store)
    with locked(folder):
        facts = study_facts(study, made_of(study), command)
        if restart:
            forget_study(folder)
        if store is not None:
            store.forget() if restart else store.pull(folder)
        write_study(folder, study, facts)
        if store is not None:
            store.push(folder, ["study.json"])
        clear_partials(folder, deep=True)
        read_rows(folder)  # before anything is computed: a damaged row is told now
        missing = missing_cells(study, folder)
        for cell in set(study.cells) - set(missing):  # a kill may have come between the row and the clearing away
            if work_path(folder, cell).exists():
                put_copies(folder, cell, read_json(cell_path(folder, cell)), copies)
                shutil.rmtree(work_path(folder, cell), ignore_errors=True)
        if on_plan is not None:
            on_plan()
        follow = Follower(folder, missing, on_steps)
        if on_start is not None:
            on_start(sum(steps_of(study, missing)), follow.done)
        data = data_facts(study)
        (folder / "work").mkdir(exist_ok=True)  # cells come and go in it at once
        calls = [(study, folder, cell, data[cell.task], copies) for cell in missing]
        with _budget(minutes) as budget, contextlib.closing(engine.compute(study, calls, follow)) as rows:
            for row in rows:
                if store is not None and not cell_path(folder, cell_of(row)).exists():
                    store.pull(folder)  # it was computed where this folder is not
                if not cell_path(folder, cell_of(row)).exists():
                    raise ConfigError(
                        f"the workers of {engine.address} do not share the folder {folder}; give one that they do, "
                        "or --store URL"
                    )
                follow.finished(cell_of(row), row.get("steps", 0))
                if on_cell is not None:
                    on_cell(row)
        if budget.is_set():
            return False
        _drop_damaged(folder)
        write_compared_items(study, folder)
        if cost and any(arm.model != TFIDF for arm in study.arms):
            if on_cost is not None:
                on_cost()
            parts = summarise(folder)["tasks"]
            points = {part["task"]: {arm["arm"]: arm["point"] for arm in part["arms"]} for part in parts}
            measure_cost(study, folder, {task.name: read_task(task) for task in study.tasks}, points)
    return True


@contextlib.contextmanager
def _budget(minutes: float | None) -> Iterator[threading.Event]:
    """Ask this process to stop in order after so many minutes; the event says whether that was why it stopped."""
    spent = threading.Event()
    if minutes is None:
        yield spent
        return

    def stop() -> None:
        spent.set()
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(60 * minutes, stop)
    timer.daemon = True
    with orderly_termination():
        try:
            timer.start()
            yield spent
        except KeyboardInterrupt:
            if not spent.is_set():
                raise
        finally:
            timer.cancel()
            timer.join()  # one that has rung may be about to send its signal


def _drop_damaged(folder: Path) -> None:
    """Remove what was derived from the cells and cannot be read any more: it is made again."""
    for name, read in (("cost.json", read_cost), ("items.json", read_compared_items)):
        try:
            read(folder)
        except DataError:
            (folder / name).unlink()


def missing_cells(study: Study, folder: Path) -> list[Cell]:
    """Give the cells whose row the folder does not hold."""
    return [cell for cell in study.cells if not cell_path(folder, cell).exists()]


def steps_of(study: Study, cells: Iterable[Cell]) -> list[int]:
    """Give the optimiser steps of each cell; the control arm has none."""
    return [_steps(study, cell) for cell in cells]


def _steps(study: Study, cell: Cell) -> int:
    if study.arm(cell.arm).model == TFIDF:
        return 0
    config = study.training_of(cell)
    _, splits = read_task(study.task(cell.task))
    steps = -(-len(splits.train) // config.batch_size) * config.epochs
    return steps if config.max_steps is None else min(steps, config.max_steps)


def _in_process(calls: list[tuple[Any, ...]], follow: Follower) -> Generator[Row, None, None]:
    with follow.in_background():
        for call in calls:
            yield run_cell(*call)
