"""The examples of a study's tasks, read once per process."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thrice.compare.grid import Study, StudyTask
from thrice.errors import DataError
from thrice.source import DataSource, Splits, read_splits
from thrice.tasks.base import Task

Facts = dict[str, Any]


@functools.lru_cache(maxsize=128)
def _read(kind: str, source: DataSource, options: str, files: tuple[Any, ...]) -> tuple[Task, Splits]:
    del files  # a file that changed is another one
    return read_splits(kind, source, json.loads(options))


def _files(source: DataSource) -> tuple[Any, ...]:
    """Give size and time of every file of a source; nothing of what is no file here, such as a hub data set."""
    found = []
    for name in (source.data, source.train, source.dev, source.test):
        with contextlib.suppress(OSError, ValueError):
            stat = Path(name or "").expanduser().stat()
            found.append((name, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def read_task(task: StudyTask) -> tuple[Task, Splits]:
    """Give what was learned from a task's training rows, and its examples."""
    return _read(task.kind, task.source, json.dumps(task.options, sort_keys=True), _files(task.source))


def data_facts(study: Study) -> dict[str, Facts]:
    """Give task -> source, fingerprint and size of each part of its data."""
    return {task.name: facts_of(read_task(task)[1]) for task in study.tasks}


def facts_of(splits: Splits) -> Facts:
    """Give source, fingerprint and size of each part."""
    return {part: facts for part, facts in splits.facts.items() if part != "notes"}


def check_data(splits: Splits, began: Mapping[str, Any]) -> None:
    """Raise DataError if the rows that this process read are not those that the study began with."""
    changed = [part for part, facts in facts_of(splits).items() if began.get(part) != facts]
    if changed:
        raise DataError(
            f"the data changed while the study was at work ({', '.join(changed)}): this cell would be of other rows "
            "than those before - put the file back, or start anew with --restart"
        )
