"""Where the examples of a run come from: files or a hub data set, split and thinned, and the task learned from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from thrice.data.readers import Table, read_table
from thrice.data.splits import choose_shots, overlap, split
from thrice.errors import ConfigError
from thrice.registry import plugin
from thrice.tasks.base import Task, options_of


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Where the examples come from: one file to be split, or files already split."""

    data: str | None = None
    """One file or hub data set without splits: 80 / 10 / 10 by a stratified hash."""
    train: str | None = None
    """Training rows."""
    dev: str | None = None
    """Rows that choose the best epoch."""
    test: str | None = None
    """Rows scored once, at the best epoch."""
    columns: tuple[str, ...] | None = None
    """Names of the columns of files without a header row."""
    format: str | None = None
    """jsonl, csv, tsv, parquet or conll, where the file's name does not tell."""
    split_seed: int = 0
    """Seeds the hashes that split `data` and choose the shots."""
    shots: int | None = None
    """Training rows per class, and dev rows per class at most; None takes all."""

    def __post_init__(self) -> None:
        """Check that exactly one way of naming the data is used; raises ConfigError."""
        if (self.data is None) == (self.train is None):
            raise ConfigError(
                "name the data by --data FILE (split by thrice) or by --train FILE --dev FILE [--test FILE]"
            )
        if self.data is not None and (self.dev or self.test):
            raise ConfigError("--data is split into train, dev and test; give --train instead beside --dev or --test")
        if self.train is not None and self.dev is None:
            raise ConfigError("--train needs --dev to choose the best epoch by; or give one file as --data")
        if self.shots is not None and self.shots < 1:
            raise ConfigError(f"--shots is {self.shots}, it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Examples of the three parts, and where they came from."""

    train: list[Any]
    """Training examples."""
    dev: list[Any]
    """Examples that choose the best epoch."""
    test: list[Any]
    """Examples scored once; may be empty."""
    facts: dict[str, Any]
    """Source, fingerprint and size of each part, and what a reader must know of them."""


def read_splits(task_name: str, source: DataSource, options: Mapping[str, Any]) -> tuple[Task, Splits]:
    """Read the files and learn the task from the training rows.

    options: of the task, see its `learn`; None values stand for its defaults.
    Raises DataError for data that cannot be used, ConfigError for an option the task does not have.
    """
    kind = plugin("tasks", task_name)
    given = {name: value for name, value in options.items() if value is not None}
    foreign = sorted(set(given) - set(options_of(kind)))
    if foreign:
        raise ConfigError(f"task {task_name} has no option {', '.join(foreign)}; it has {', '.join(options_of(kind))}")
    read = partial(read_table, columns=source.columns, format=source.format)
    if source.data is not None:
        whole = read(source.data)
        # Learned twice: from all rows only to know the columns to split by, then from the training rows alone.
        tables = _split_table(kind.learn(whole, **given), whole, seed=source.split_seed)
    else:
        assert source.train is not None
        assert source.dev is not None
        tables = {"train": read(source.train), "dev": read(source.dev)}
        if source.test is not None:
            tables["test"] = read(source.test)
    if source.shots is not None:
        _keep_shots(kind.learn(tables["train"], **given), tables, shots=source.shots, seed=source.split_seed)
    task = kind.learn(tables["train"], **given)
    examples = {part: task.read(table) for part, table in tables.items()}
    facts: dict[str, Any] = {
        part: {"source": table.source, "fingerprint": table.fingerprint, "rows": len(table.rows)}
        for part, table in tables.items()
    }
    facts["split_seed"] = None if source.data is None and source.shots is None else source.split_seed
    facts["notes"] = _leaks(task, tables)
    return task, Splits(train=examples["train"], dev=examples["dev"], test=examples.get("test", []), facts=facts)


def _split_table(task: Task, table: Table, *, seed: int) -> dict[str, Table]:
    texts, strata = zip(*(task.split_key(row) for row in table.rows), strict=True)
    parts = split(texts, strata, seed=seed)
    indices = {"train": parts.train, "dev": parts.dev, "test": parts.test}
    return {name: _rows_of(table, chosen) for name, chosen in indices.items()}


def _rows_of(table: Table, chosen: Sequence[int]) -> Table:
    return dataclasses.replace(table, rows=[table.rows[i] for i in chosen], lines=[table.lines[i] for i in chosen])


def _keep_shots(task: Task, tables: dict[str, Table], *, shots: int, seed: int) -> None:
    """Leave so many rows per class in train and at most so many in dev: who has few to learn from has few there too."""
    for part in ("train", "dev"):
        texts, labels = zip(*(task.split_key(row) for row in tables[part].rows), strict=True)
        chosen = choose_shots(texts, labels, shots=shots, seed=seed, fewer=part == "dev")
        tables[part] = _rows_of(tables[part], chosen)


def _leaks(task: Task, tables: Mapping[str, Table]) -> list[str]:
    texts = {part: [task.split_key(row)[0] for row in table.rows] for part, table in tables.items()}
    notes = []
    for part in ("dev", "test"):
        shared = overlap(texts["train"], texts[part]) if part in texts else 0
        if shared:
            notes.append(f"{shared} of the {len(set(texts[part]))} distinct {part} texts are training texts too")
    return notes
