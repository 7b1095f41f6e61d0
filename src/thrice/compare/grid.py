"""What a study asks: arms times tasks times seeds, under one training config; and where each cell's files lie."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thrice.compare.cell import Cell, Point
from thrice.compare.results import FORMAT, read_object, read_study
from thrice.errors import ConfigError, DataError, nearest
from thrice.files import write_json
from thrice.locks import LOCK
from thrice.schema import misfits
from thrice.source import DataSource
from thrice.training import TrainingConfig

TFIDF = "tfidf"
"""Model of the control arm: TF-IDF of character n-grams and logistic regression."""

TRAINING_FIELDS = tuple(f.name for f in dataclasses.fields(TrainingConfig) if f.name != "seed")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One model of a study, and what is particular to its training."""

    model: str
    """As people type it: a folder, a hub id, zoo:NAME, preset:NAME, each perhaps with +PATTERN; or "tfidf"."""
    name: str = ""
    """What tables call it; the model's own name where none is given."""
    training: dict[str, Any] = field(default_factory=dict)
    """Fields of the training config in which this arm differs from the study."""
    grid: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Field of the training config -> values that are all tried; the point with the best mean dev score counts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.model)
        object.__setattr__(self, "grid", {name: tuple(values) for name, values in self.grid.items()})

    @property
    def points(self) -> list[Point]:
        """All points of the grid, their fields in the order of the alphabet; (()) without one."""
        axes = [[(name, value) for value in values] for name, values in sorted(self.grid.items())]
        return list(itertools.product(*axes))


def arms_of(*models: str) -> tuple[Arm, ...]:
    """Give an arm for every model's name, trained as the study says."""
    return tuple(Arm(model=model) for model in models)


@dataclass(frozen=True, kw_only=True)
class StudyTask:
    """One task of a study: its data, its options and the metric that decides."""

    name: str
    """What tables call it."""
    kind: str = "classification"
    """Name of the task plug-in."""
    metric: str
    """Chooses the best epoch."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the plug-in; None values stand for its defaults."""
    source: DataSource
    """Where the examples are."""
    training: dict[str, Any] = field(default_factory=dict)
    """Fields of the training config in which this task differs from the study."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One comparison; within a task everything but the arm and the seed is the same for all cells."""

    arms: tuple[Arm, ...]
    """What is compared; the first is what the others are compared with."""
    tasks: tuple[StudyTask, ...]
    """What the arms are compared on."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Every arm is trained from each of them on every task."""
    training: TrainingConfig
    """Of every cell, but for its seed and for what its task, its arm and its grid point change, in this order."""
    tokenizer: str | None = None
    """Folder of the tokenizer for arms that have none of their own."""
    threads: int = 1
    """CPU threads of one cell; results repeat bit for bit at one thread count only."""
    save_models: bool = False
    """Whether each cell's best model is kept as a stock folder."""

    def __post_init__(self) -> None:
        """Check arms, tasks, seeds and every training config; raises ConfigError that lists all problems at once."""
        problems = list(_problems(self))
        if problems:
            raise ConfigError("study: " + "; ".join(problems))

    @property
    def cells(self) -> list[Cell]:
        """All cells, seed by seed, so that a study stopped early still compares all arms."""
        return [
            Cell(arm.name, task.name, seed, point)
            for seed in self.seeds
            for task in self.tasks
            for arm in self.arms
            for point in arm.points
        ]

    def arm(self, name: str) -> Arm:
        """Give the arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def task(self, name: str) -> StudyTask:
        """Give the task of that name."""
        return next(task for task in self.tasks if task.name == name)

    def training_of(self, cell: Cell) -> TrainingConfig:
        """Give the training config of one cell, its seed included."""
        changes = self.task(cell.task).training | self.arm(cell.arm).training | dict(cell.point)
        return self.training.replace(**changes, seed=cell.seed)

    def to_json(self) -> dict[str, Any]:
        """Give the study as JSON values."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Study:
        """Give the study that `to_json` wrote; keys beside the study's own are left alone."""
        own = {f.name: value[f.name] for f in dataclasses.fields(cls)}
        changes = {
            "arms": tuple(Arm(**arm) for arm in value["arms"]),
            "tasks": tuple(_task_from_json(task) for task in value["tasks"]),
            "seeds": tuple(value["seeds"]),
            "training": TrainingConfig(**value["training"]),
        }
        return cls(**own | changes)


def _task_from_json(value: Mapping[str, Any]) -> StudyTask:
    source = dict(value["source"])
    source["columns"] = None if source["columns"] is None else tuple(source["columns"])
    return StudyTask(**{**value, "source": DataSource(**source)})


def _problems(study: Study) -> Iterator[str]:
    """Say everything that keeps a study from being one."""
    seen: dict[str, list[Any]] = {
        "arms": [os.path.normpath(a.name) for a in study.arms],  # m1 and m1/ are one folder
        "tasks": [t.name for t in study.tasks],
        "seeds": list(study.seeds),
    }
    for name, values in seen.items():
        if not values:
            yield f"a study needs at least one of {name}"
        said = [arm.name for arm in study.arms] if name == "arms" else values
        repeated = sorted({str(v) for v, key in zip(said, values, strict=True) if values.count(key) > 1})
        if repeated:
            yield f"{name} named twice: {', '.join(repeated)}"
        if any(isinstance(v, str) and not v.strip() for v in values):
            yield f"{name} need names that are not empty"
    if not 1 <= study.threads <= 1024:
        yield f"threads is {study.threads}, it must lie between 1 and 1024"
    owners: list[tuple[str, Iterable[str]]] = [(f"arm {a.name}", [*a.training, *a.grid]) for a in study.arms]
    owners += [(f"task {t.name}", t.training) for t in study.tasks]
    unknown = [
        f"{owner}: no training field {name!r}; {nearest(name, TRAINING_FIELDS)}"
        for owner, names in owners
        for name in names
        if name not in TRAINING_FIELDS
    ]
    yield from unknown
    yield from (
        f"arm {a.name}: tfidf has no training to change"
        for a in study.arms
        if a.model == TFIDF and (a.grid or a.training)
    )
    yield from (
        f"arm {a.name}: grid {n} names a value twice: {', '.join(map(str, values))}"
        for a in study.arms
        for n, values in a.grid.items()
        if len({str(v) for v in values}) < len(values)
    )
    yield from (
        f"arm {a.name}: grid {n} has no values" for a in study.arms for n, values in a.grid.items() if not values
    )
    if not unknown:
        told = set()
        for cell in study.cells:
            try:
                study.training_of(cell)
            except ConfigError as error:
                if str(error) not in told:
                    told.add(str(error))
                    yield f"{cell}: {error}"


def slug(name: str) -> str:
    """Give a file name for the name of an arm or a task: readable, and different for different names."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9=.]+', '-', name).strip('-.')[-60:]}-{digest}"


def cell_name(cell: Cell) -> str:
    """Give the name of a cell's files, without an ending; cells of a grid say their point."""
    point = f"--{slug(','.join(f'{name}={value}' for name, value in cell.point))}" if cell.point else ""
    return f"{slug(cell.arm)}--{slug(cell.task)}{point}--seed-{cell.seed}"


def cell_path(folder: Path, cell: Cell) -> Path:
    """Give the result file of a cell."""
    return folder / "cells" / f"{cell_name(cell)}.json"


def items_path(folder: Path, cell: Cell) -> Path:
    """Give the file of a cell's answers to the test examples."""
    return folder / "items" / f"{cell_name(cell)}.parquet"


def work_path(folder: Path, cell: Cell) -> Path:
    """Give the folder in which a cell trains until it is finished."""
    return folder / "work" / cell_name(cell)


def model_path(folder: Path, cell: Cell) -> Path:
    """Give the stock folder of a cell's best model, where models are kept."""
    return folder / "models" / cell_name(cell)


MAY_CHANGE = ("arms", "tasks", "seeds", "save_models", "command", "machine", "versions", "notes", "made_of", "data")
"""Keys of study.json that a second start may change or add to; each row keeps what it was computed with."""

ROOMS = ("cells", "items", "work", "models")
FILES = ("cost.json", "items.json", "report.html", "report.md", "rows.csv", "rows.parquet", "study.json")


def forget_study(folder: Path) -> None:
    """Remove what a study wrote into its folder, and nothing else.

    Raises ConfigError where the folder holds things and no study: they are somebody's own.
    """
    if not (folder / "study.json").is_file():
        refuse_foreign(folder)
        return
    for room in (*ROOMS, "charts", "tensorboard"):
        shutil.rmtree(folder / room, ignore_errors=True)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def refuse_foreign(folder: Path) -> None:
    """Raise ConfigError where a folder holds things and no study; what a start killed at once left does not count."""
    if (folder / "study.json").is_file():
        return
    ours = re.compile(rf"{re.escape(LOCK)}|\.study\.json\.\d+\.partial")
    if (folder / "cells").is_dir():
        raise ConfigError(
            f"{folder} holds cells and no study.json, without which they say nothing; put it back, or use another --out"
        )
    if folder.exists() and (not folder.is_dir() or any(not ours.fullmatch(path.name) for path in folder.iterdir())):
        raise ConfigError(f"{folder} is not empty and holds no study; use another --out")


def write_study(folder: Path, study: Study, facts: Mapping[str, Any]) -> None:
    """Write study.json, or check that the folder's study is this one, perhaps with more arms, tasks or seeds.

    facts: data, made_of, machine, versions, command and notes, for the report.
    Raises ConfigError naming what differs where the folder holds another study, or something else.
    """
    path = folder / "study.json"
    value = {**study.to_json(), **facts}
    if not path.exists():
        refuse_foreign(folder)
    else:
        before = check_study(folder, study, facts)
        made_of = dict(before.get("made_of", {}))
        for arm, parts in value["made_of"].items():
            made_of[arm] = parts | {"cut": made_of.get(arm, parts)["cut"] | parts["cut"]}
        value |= {"made_of": made_of, "data": before.get("data", {}) | value["data"]}
    write_json(path, value)


def check_study(folder: Path, study: Study, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Give the study.json of a folder; raises ConfigError naming what differs where it is of another study."""
    before = read_study(folder)
    changed = list(changes(before, _plain({**study.to_json(), **facts})))
    begun = [*folder.glob("cells/*.json"), *folder.glob("work/*")]
    if changed and begun:
        raise ConfigError(
            f"{folder} holds another study: {'; '.join(changed)} - use another --out, or start anew with --restart"
        )
    made_of = before.get("made_of", {})
    other = [arm for arm, parts in facts["made_of"].items() if _uncut(made_of.get(arm, parts)) != _uncut(parts)]
    if other:
        raise ConfigError(
            f"{folder}: the weights or the tokenizer of {', '.join(other)} are not those that the study began "
            "with - use another --out, or start anew with --restart"
        )
    return before


def _uncut(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Give what an arm is made of, whatever the tasks: how many texts it cuts depends on them."""
    return {name: part for name, part in parts.items() if name != "cut"}


def threads_of(folder: Path) -> int | None:
    """Give the threads per cell of the study that a folder holds, so that a second start need not name them again."""
    path = folder / "study.json"
    if not path.is_file():
        return None
    content = read_object(path)
    problems = misfits(content, {"threads": int})
    if problems:
        raise DataError(f"{path}: {problems[0]} - say --threads, or begin the study anew with --restart")
    return int(content["threads"])


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Say in what a study differs from the one its folder began with; arms and tasks that only one has do not count."""
    # An older study does not name the fields that training had not yet: they had what is their default now.
    defaults = dataclasses.asdict(TrainingConfig())
    held = {**before, "training": defaults | before.get("training", {})}
    for key in (key for key in now if key not in MAY_CHANGE):
        yield from _differences(key, held.get(key), now[key])
    for room, free in (("arms", ("grid",)), ("tasks", ())):
        known = {entry["name"]: entry for entry in before.get(room, ())}
        for entry in now[room]:
            old = known.get(entry["name"], entry)
            for key in entry:
                if key not in free:
                    yield from _differences(f"{room}.{entry['name']}.{key}", old.get(key), entry[key])
    for name, parts in now.get("data", {}).items():
        yield from _differences(f"data.{name}", before.get("data", {}).get(name, parts), parts)


def _differences(name: str, before: Any, now: Any) -> Iterator[str]:
    """Say in which places two JSON values differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                yield from _differences(f"{name}.{key}", before.get(key), now.get(key))
    elif before != now:
        yield f"{name} was {before!r} and is {now!r}"


def _plain(value: Any) -> Any:
    """Give a value as JSON would give it back: tuples as lists."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
