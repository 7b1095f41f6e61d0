"""What a study asks: arms times seeds under one set of data, task and training; and where each cell's files lie."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thrice.compare.results import read_object, read_study
from thrice.errors import ConfigError, DataError
from thrice.files import write_json
from thrice.finetune import DataSource
from thrice.locks import LOCK
from thrice.schema import misfits
from thrice.training import TrainingConfig

TFIDF = "tfidf"
"""Name of the control arm: TF-IDF of character n-grams and logistic regression."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One comparison; everything but the arm and the seed is the same for all cells."""

    arms: tuple[str, ...]
    """Model names as people type them, or "tfidf"; the first is what the others are compared with."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each draws a head, an order of the examples and dropout, the same ones for every arm."""
    task: str = "classification"
    """Name of the task."""
    metric: str
    """Chooses the best epoch."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the task; None values stand for its defaults."""
    source: DataSource
    """Where the examples are."""
    training: TrainingConfig
    """Of every cell, but for the seed."""
    tokenizer: str | None = None
    """Folder of the tokenizer for arms that have none of their own."""
    threads: int = 1
    """CPU threads of one cell; results repeat bit for bit at one thread count only."""
    save_models: bool = False
    """Whether each cell's best model is kept as a stock folder."""

    def __post_init__(self) -> None:
        """Check arms and seeds; raises ConfigError that lists all problems at once."""
        problems = []
        for name in ("arms", "seeds"):
            values = getattr(self, name)
            if not values:
                problems.append(f"a study needs at least one of {name}")
            plain = [os.path.normpath(v) if isinstance(v, str) else v for v in values]  # m1 and m1/ are one folder
            repeated = sorted({str(v) for v, key in zip(values, plain, strict=True) if plain.count(key) > 1})
            if repeated:
                problems.append(f"{name} named twice: {', '.join(repeated)}")
        if not 1 <= self.threads <= 1024:
            problems.append(f"threads is {self.threads}, it must lie between 1 and 1024")
        if problems:
            raise ConfigError("study: " + "; ".join(problems))

    @property
    def cells(self) -> list[tuple[str, int]]:
        """All (arm, seed), seed by seed, so that a study stopped early still compares all arms."""
        return [(arm, seed) for seed in self.seeds for arm in self.arms]

    def to_json(self) -> dict[str, Any]:
        """Give the study as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Study:
        """Give the study that `to_json` wrote; keys beside the study's own are left alone."""
        own = {f.name: value[f.name] for f in dataclasses.fields(cls)}
        source = dict(value["source"])
        source["columns"] = None if source["columns"] is None else tuple(source["columns"])
        return cls(
            **own
            | {
                "arms": tuple(value["arms"]),
                "seeds": tuple(value["seeds"]),
                "source": DataSource(**source),
                "training": TrainingConfig(**value["training"]),
            }
        )


def slug(arm: str) -> str:
    """Give a file name for an arm: readable, and different for different arms."""
    digest = hashlib.sha256(arm.encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9=.]+', '-', arm).strip('-.')[-60:]}-{digest}"


def cell_path(folder: Path, arm: str, seed: int) -> Path:
    """Give the result file of a cell."""
    return folder / "cells" / f"{slug(arm)}--seed-{seed}.json"


def work_path(folder: Path, arm: str, seed: int) -> Path:
    """Give the folder in which a cell trains until it is finished."""
    return folder / "work" / f"{slug(arm)}--seed-{seed}"


def model_path(folder: Path, arm: str, seed: int) -> Path:
    """Give the stock folder of a cell's best model, where models are kept."""
    return folder / "models" / f"{slug(arm)}--seed-{seed}"


MAY_CHANGE = ("arms", "seeds", "save_models", "command", "machine", "versions", "notes", "made_of")
"""Keys of study.json that a second start may change; each row keeps the versions it was computed with."""


def forget_study(folder: Path) -> None:
    """Remove what a study wrote into its folder, and nothing else.

    Raises ConfigError where the folder holds things and no study: they are somebody's own.
    """
    if not (folder / "study.json").is_file():
        refuse_foreign(folder)
        return
    for room in ("cells", "work", "models"):
        shutil.rmtree(folder / room, ignore_errors=True)
    for name in ("cost.json", "report.html", "study.json"):
        (folder / name).unlink(missing_ok=True)


def refuse_foreign(folder: Path) -> None:
    """Raise ConfigError where a folder holds things and no study; what a start killed at once left does not count."""
    if (folder / "study.json").is_file():
        return
    ours = re.compile(rf"{re.escape(LOCK)}|\.study\.json\.\d+\.partial")
    if folder.exists() and (not folder.is_dir() or any(not ours.fullmatch(path.name) for path in folder.iterdir())):
        raise ConfigError(f"{folder} is not empty and holds no study; use another --out")


def write_study(folder: Path, study: Study, facts: Mapping[str, Any]) -> None:
    """Write study.json, or check that the folder's study is this one.

    facts: data, made_of, machine, versions, command and notes, for the report.
    Raises ConfigError naming what differs where the folder holds another study, or something else.
    """
    path = folder / "study.json"
    value = {**study.to_json(), **facts}
    if path.exists():
        before = read_study(folder)
        own = {k: v for k, v in _plain(value).items() if k not in MAY_CHANGE}
        # An older study does not name the fields that training had not yet: they had what is their default now.
        before["training"] = dataclasses.asdict(TrainingConfig()) | before.get("training", {})
        changed = [k for k, v in own.items() if before.get(k) != v]
        begun = [*folder.glob("cells/*.json"), *folder.glob("work/*")]
        if changed and begun:
            shown = "; ".join(line for k in changed for line in _differences(k, before.get(k), own[k]))
            raise ConfigError(
                f"{folder} holds another study: {shown} - use another --out, or start anew with --restart"
            )
        made_of = before.get("made_of", {})
        other = [arm for arm, parts in value["made_of"].items() if made_of.get(arm, parts) != parts]
        if other:
            raise ConfigError(
                f"{folder}: the weights or the tokenizer of {', '.join(other)} are not those that the study began "
                "with - use another --out, or start anew with --restart"
            )
        value["made_of"] = made_of | value["made_of"]
    else:
        refuse_foreign(folder)
    write_json(path, value)


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


def _differences(name: str, before: Any, now: Any) -> Iterator[str]:
    """Say in which places two JSON values differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                yield from _differences(f"{name}.{key}", before.get(key), now.get(key))
    else:
        yield f"{name} was {before!r} and is {now!r}"


def _plain(value: Any) -> Any:
    """Give a value as JSON would give it back: tuples as lists."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
