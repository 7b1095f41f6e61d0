"""Runs a study on this machine: every missing cell once, each finished one a file that is never computed again."""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import json
import os
import platform
import shutil
import threading
from collections.abc import Callable, Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from thrice.compare.baseline import run_tfidf
from thrice.compare.cost import measure_cost
from thrice.compare.grid import (
    TFIDF,
    Study,
    cell_path,
    forget_study,
    model_path,
    refuse_foreign,
    work_path,
    write_study,
)
from thrice.compare.pool import in_pool
from thrice.errors import ConfigError, DataError, ThriceError
from thrice.files import clear_partials, read_json, write_json
from thrice.finetune import DataSource, Splits, build, cut_note, read_splits, save_model, train
from thrice.launcher import refuse_several
from thrice.locks import locked
from thrice.tasks.base import Task, TaskModel

Row = dict[str, Any]

PATIENCE = 10.0
"""Seconds that a cell waits for a worker whose parent was killed; it looks for its parent five times a second."""


def run_study(
    study: Study,
    folder: Path,
    *,
    jobs: int = 1,
    restart: bool = False,
    command: str | None = None,
    on_start: Callable[[int, int], None] | None = None,
    on_steps: Callable[[int], None] | None = None,
    on_cell: Callable[[Row], None] | None = None,
    on_cost: Callable[[], None] | None = None,
) -> None:
    """Compute what is missing in the study's folder: cells first, then the cost of every arm.

    jobs: cells computed at once, each in a process of its own with `study.threads` threads; 1 computes in this one.
    restart: discard the results of the study that the folder holds. command: kept in study.json for the reader.
    on_start: told the steps of the missing cells and how many of them the folder holds already; on_steps: told the
    steps done since; on_cell: given each finished row; on_cost: told that measuring begins.
    Raises ConfigError where an arm cannot be built or the folder holds another study, and TrainingError where another
    process works in it, before anything is computed; Interrupted on Ctrl-C or SIGTERM, with the cells saved.
    """
    refuse_several("a study", "give it several cells at a time with --jobs")
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}, it must be at least 1")
    refuse_foreign(folder)
    with locked(folder):
        task, splits = _read(study)
        facts = _facts(study, splits, _check_arms(study, task, splits), command)
        if restart:
            forget_study(folder)
        write_study(folder, study, facts)
        clear_partials(folder, deep=True)
        missing = [cell for cell in study.cells if not cell_path(folder, *cell).exists()]
        for cell in set(study.cells) - set(missing):  # a kill may have come between the row and the clearing away
            shutil.rmtree(work_path(folder, *cell), ignore_errors=True)
        steps = -(-len(splits.train) // study.training.batch_size) * study.training.epochs
        trained = [cell for cell in missing if cell[0] != TFIDF]
        follow = _Follower(folder, trained, on_steps)
        if on_start is not None:
            on_start(steps * len(trained), follow.done)
        calls = [(study, folder, *cell) for cell in missing]
        computed = _in_process(calls, follow) if jobs == 1 else in_pool(run_cell, calls, jobs=jobs, look=follow.look)
        with contextlib.closing(computed) as rows:
            for row in rows:
                if on_cell is not None:
                    on_cell(row)
        if any(arm != TFIDF for arm in study.arms):
            if on_cost is not None:
                on_cost()
            measure_cost(study, folder, task, splits)


def run_cell(study: Study, folder: Path, arm: str, seed: int) -> Row:
    """Train one arm from one seed, write its row and give it; resumes a cell that was stopped."""
    path = cell_path(folder, arm, seed)
    work = work_path(folder, arm, seed)
    with locked(work, patience=PATIENCE):
        clear_partials(path.parent, path.name)
        # A worker outlives a killed parent for a moment; where it finished its cell in it, there is nothing left to do.
        row: Row = read_json(path) if path.exists() else _run_cell(study, folder, arm, seed)
        shutil.rmtree(work, ignore_errors=True)
        return row


def _run_cell(study: Study, folder: Path, arm: str, seed: int) -> Row:
    task, splits = _read(study)
    _check_data(folder, splits)
    row: Row = {"arm": arm, "seed": seed, "task": study.task, "metric": study.metric}
    work = work_path(folder, arm, seed)
    if arm == TFIDF:
        row |= run_tfidf(task, splits, seed=seed)
    else:
        torch.set_num_threads(study.threads)
        model, tokenizer = build(arm, task, seed=seed, tokenizer=study.tokenizer)
        config = study.training.replace(seed=seed)
        done = train(model, tokenizer, splits, config, name=arm, metric=study.metric, folder=work, progress=False)
        row |= {
            "epochs": done.fit.epochs,
            "best_epoch": done.fit.best_epoch,
            "collapsed": done.fit.collapsed,
            "steps": done.fit.steps,
            "test": done.test,
        }
        if study.save_models:
            save_model(model, model_path(folder, arm, seed), tokenizer, facts={"study": {"arm": arm, "seed": seed}})
    row |= {
        "best_dev": row["epochs"][row["best_epoch"] - 1]["dev"][study.metric],
        "epoch1_dev": row["epochs"][0]["dev"][study.metric],
        "labels": list(getattr(task, "labels", ())),
        "threads": study.threads,
        "versions": _versions(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    write_json(cell_path(folder, arm, seed), row)
    return row


def _in_process(calls: list[tuple[Study, Path, str, int]], follow: _Follower) -> Generator[Row, None, None]:
    with follow.in_background():
        for call in calls:
            yield run_cell(*call)


class _Follower:
    """Reads how far the cells in work are from the last line of their logs."""

    def __init__(self, folder: Path, cells: list[tuple[str, int]], on_steps: Callable[[int], None] | None) -> None:
        self.paths = {work_path(folder, *cell) / "train.jsonl": cell_path(folder, *cell) for cell in cells}
        self.on_steps = on_steps
        self.steps: dict[Path, int] = {}
        self.done = 0
        self.look(tell=False)

    def look(self, *, tell: bool = True) -> None:
        """Tell how many steps were done since the last look."""
        for log in self.paths:
            self.steps[log] = max(_last_step(log), self.steps.get(log, 0))
        done = sum(self.steps.values())
        if tell and self.on_steps is not None and done > self.done:
            self.on_steps(done - self.done)
        self.done = done

    @contextlib.contextmanager
    def in_background(self) -> Iterator[None]:
        """Look once a second from a thread while this process computes."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(1):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.look()


def _last_step(log: Path) -> int:
    """Give the optimiser step that a log ends with; 0 where there is none, or its last line is being written."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - 8192))
            lines = file.read().splitlines()
        return int(json.loads(lines[-1])["step"])
    except (OSError, ValueError, IndexError, KeyError):
        return 0


@functools.lru_cache(maxsize=1)
def _read_cached(task: str, source: DataSource, options: str) -> tuple[Task, Splits]:
    return read_splits(task, source, json.loads(options))


def _read(study: Study) -> tuple[Task, Splits]:
    """Read the data once per process."""
    return _read_cached(study.task, study.source, json.dumps(study.options, sort_keys=True))


def _check_data(folder: Path, splits: Splits) -> None:
    """Raise DataError if the rows that this process read are not those that the study began with."""
    began = read_json(folder / "study.json")["data"]
    changed = [part for part, facts in _data_facts(splits).items() if began.get(part) != facts]
    if changed:
        raise DataError(
            f"the data of {folder} changed while it was at work ({', '.join(changed)}): this cell would be of other "
            "rows than those before - put the file back, or start anew with --restart"
        )


def _data_facts(splits: Splits) -> dict[str, Any]:
    return {part: facts for part, facts in splits.facts.items() if part != "notes"}


def _check_arms(study: Study, task: Task, splits: Splits) -> dict[str, dict[str, Any]]:
    """Give arm -> what it is made of; raises ConfigError that lists every arm that cannot be built."""
    made_of, problems = {}, []
    for arm in study.arms:
        if arm == TFIDF:
            continue
        try:
            model, tokenizer = build(arm, task, seed=study.seeds[0], tokenizer=study.tokenizer)
        except ThriceError as error:
            problems.append(f"{arm}: {error}")
            continue
        config = model.encoder.config
        made_of[arm] = {
            "weights": _digest(model),
            "tokenizer": tokenizer.fingerprint,
            "family": config.family,
            "hidden_size": config.hidden_size,
            "hidden_dropout_prob": config.hidden_dropout_prob,
            "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
            "cut": cut_note(task.encode(splits.train, tokenizer)),
        }
    if problems:
        raise ConfigError(f"{len(problems)} of {len(study.arms)} arms cannot be built: {'; '.join(problems)}")
    return made_of


def _digest(model: TaskModel) -> str:
    """Give the sha256 of an encoder's weights, the fresh head aside: a name may mean other weights tomorrow."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.encoder.named_parameters()):
        if not name.startswith("heads."):
            digest.update(name.encode())
            digest.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# What arms may differ in beside their weights, and what that means for a reader.
UNEQUAL = {
    "tokenizer": "not the same tokenizer as {first}: {others}; their inputs differ, not the model alone",
    "family": "not the family of {first}: {others}; their heads are built differently",
    "hidden_size": "not as wide as {first}: {others}; the first weights of their heads are other draws",
    "hidden_dropout_prob": "trained with another dropout than {first}: {others}",
    "attention_probs_dropout_prob": "trained with another attention dropout than {first}: {others}",
}


def _facts(study: Study, splits: Splits, made_of: dict[str, dict[str, Any]], command: str | None) -> dict[str, Any]:
    notes = list(splits.facts["notes"])
    notes += dict.fromkeys(note for parts in made_of.values() for note in parts["cut"])
    for key, sentence in UNEQUAL.items():
        first = next(iter(made_of), "")
        others = [arm for arm, parts in made_of.items() if parts[key] != made_of[first][key]]
        if others:
            notes.append(sentence.format(first=first, others=", ".join(others)))
    return {
        "data": _data_facts(splits),
        "made_of": made_of,
        "notes": notes,
        "command": command,
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    packages = ("thrice", "torch", "transformers", "accelerate", "tokenizers")
    return {name: version(name) for name in packages} | {"python": platform.python_version()}


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
