"""A study as people write it: one TOML file, or the same said by options, turned into a Study.

    seeds = 3

    [arms]
    shared = "zoo:albert-nano-zh+all"
    unshared = {model = "zoo:albert-nano-zh+none", grid = {learning_rate = [1e-4, 3e-4]}}

    [tasks.reviews]
    data = "reviews.csv"
    max_length = 64

    [training]
    epochs = 3

Keys of a task are those of its data (data or train, dev, test; columns, format, split_seed, shots), `task` (its kind),
`metric`, `training`, and the options of its kind. Names of files are looked up beside the TOML file first.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from thrice.compare.data import read_task
from thrice.compare.grid import TRAINING_FIELDS, Arm, Study, StudyTask
from thrice.errors import ConfigError, DataError, nearest
from thrice.finetune import check_metric
from thrice.registry import plugin
from thrice.schema import misfits
from thrice.source import DataSource
from thrice.tasks.base import options_of
from thrice.training import TrainingConfig

TRAINING = {"max_grad_norm": 0.0}
"""Where a comparison's training differs from a single run's: clipping treats a shared layer unlike its copies."""

STUDY = {
    "seeds?": int | list[int],
    "threads?": int,
    "tokenizer?": str,
    "save_models?": bool,
    "budget_minutes?": float,
    "training?": dict[str, Any],
    "arms": dict[str, str | dict[str, Any]],
    "tasks": dict[str, dict[str, Any]],
}
ARM = {"model": str, "training?": dict[str, Any], "grid?": dict[str, list[Any]]}
SOURCE = {
    "data?": str,
    "train?": str,
    "dev?": str,
    "test?": str,
    "columns?": list[str],
    "format?": str,
    "split_seed?": int,
    "shots?": int,
}
TASK = {**SOURCE, "task?": str, "metric?": str, "training?": dict[str, Any]}

Value = dict[str, Any]


def read_study_file(path: Path) -> Value:
    """Give the content of a study's TOML file, with the names of files beside it made whole.

    Raises DataError for a file that cannot be read or is no TOML.
    """
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path} is no TOML: {error}") from error
    return _named_arms(_beside(value, path.parent))


def settings(value: Value, said: Iterable[str], *, such_as: str = "training.epochs=5") -> Value:
    """Give a study's content with some of it changed. said: KEY=VALUE, both TOML, the key dotted: tasks.reviews.seed=1.
    such_as: what the message about a mistyped one shows.

    A VALUE that is no TOML is taken as text. Raises ConfigError for one without = and for a key that is none.
    """
    for setting in said:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting!r}: expected KEY=VALUE, such as {such_as}")
        try:
            changes = tomllib.loads(f"{key} = {text}")
        except tomllib.TOMLDecodeError:
            try:
                changes = tomllib.loads(f"{key} = {json.dumps(text)}")
            except tomllib.TOMLDecodeError as error:
                raise ConfigError(
                    f'--set {setting!r}: {key!r} is no key; a name with signs stands in quotes: arms."a+none".model=...'
                ) from error
        value = _merged(value, changes)
    return value


def study_of(value: Value, *, name: str) -> Study:
    """Give the study that a TOML file or options say, its data read. name: of the file, for messages.

    Raises ConfigError that lists everything which is not understood, and whatever reading the data raises.
    """
    value = _named_arms(value)
    problems = [*_unknown(value, STUDY, ""), *misfits(value, STUDY)]
    if not problems:
        problems = list(_problems(value))
    if problems:
        raise ConfigError(f"{name}: " + "; ".join(problems))
    seeds = value.get("seeds", 3)
    arms = {label: {"model": arm} if isinstance(arm, str) else arm for label, arm in value["arms"].items()}
    given = {key: value[key] for key in ("threads", "tokenizer", "save_models") if value.get(key) is not None}
    return Study(
        arms=tuple(Arm(name=label, **arm) for label, arm in arms.items()),
        tasks=tuple(_task(label, content) for label, content in value["tasks"].items()),
        seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
        training=TrainingConfig(**TRAINING | value.get("training", {})),
        **given,
    )


def _task(label: str, content: Value) -> StudyTask:
    """Give a task with the metric it will be decided by, for which its data must be read."""
    own = {field.name for field in dataclasses.fields(DataSource)}
    source = {key: entry for key, entry in content.items() if key in own}
    if "columns" in source and source["columns"] is not None:
        source["columns"] = tuple(source["columns"])
    kept = {*own, "task", "metric", "training"}
    asked = StudyTask(
        name=label,
        kind=content.get("task", "classification"),
        metric="",
        options={key: entry for key, entry in content.items() if key not in kept},
        source=DataSource(**source),
        training=content.get("training", {}),
    )
    learned, _ = read_task(asked)
    return dataclasses.replace(asked, metric=check_metric(learned, content.get("metric")))


def _problems(value: Value) -> Iterator[str]:
    if not isinstance(value.get("seeds", 3), list) and value.get("seeds", 3) < 1:
        yield f"seeds is {value['seeds']}, it must be at least 1, or a list of seeds"
    yield from _training_problems(value.get("training", {}), "training")
    for label, arm in value["arms"].items():
        if isinstance(arm, dict):
            yield from _unknown(arm, ARM, f"arms.{label}.")
            yield from misfits(arm, ARM, place=f"arms.{label}")
            yield from _training_problems(arm.get("training"), f"arms.{label}")
            yield from _training_problems(arm.get("grid"), f"arms.{label}")
    for label, task in value["tasks"].items():
        kind = plugin("tasks", str(task.get("task", "classification")))
        hints = get_type_hints(kind.learn)
        allowed = TASK | {f"{option}?": hints.get(option, Any) for option in options_of(kind)}
        yield from _unknown(task, allowed, f"tasks.{label}.")
        yield from misfits({k: v for k, v in task.items() if v is not None}, allowed, place=f"tasks.{label}")
        yield from _training_problems(task.get("training", {}), f"tasks.{label}")


def _training_problems(given: Any, place: str) -> Iterator[str]:
    for name in given if isinstance(given, Mapping) else ():
        if name not in TRAINING_FIELDS:
            yield f"{place}: no training field {name!r}; {nearest(name, TRAINING_FIELDS)}"


def _unknown(value: Mapping[str, Any], wanted: Mapping[str, Any], place: str) -> Iterator[str]:
    known = [key.removesuffix("?") for key in wanted]
    for key in value:
        if key not in known:
            yield f"{place}{key} is no key; {nearest(key, known)}"


def _named_arms(value: Value) -> Value:
    """Give arms as name -> arm where they were listed by their models alone."""
    arms = value.get("arms")
    if isinstance(arms, list) and all(isinstance(arm, str) for arm in arms):
        repeated = sorted({arm for arm in arms if arms.count(arm) > 1})
        if repeated:
            raise ConfigError(f"arms named twice: {', '.join(repeated)}")
        return {**value, "arms": {arm: arm for arm in arms}}
    return value


def _beside(value: Value, folder: Path) -> Value:
    """Give the content with every name of a file or a model that lies beside the TOML file as a path to it."""

    def found(name: Any) -> Any:
        if not isinstance(name, str) or Path(name).is_absolute():
            return name
        bare, plus, pattern = name.rpartition("+")
        for candidate, rest in ((name, ""), (bare, plus + pattern)):
            if candidate and (folder / candidate).exists():
                return str(folder / candidate) + rest
        return name

    value = dict(value)
    if isinstance(value.get("arms"), list):
        value["arms"] = [found(arm) for arm in value["arms"]]
    elif isinstance(value.get("arms"), dict):
        value["arms"] = {
            label: {**arm, "model": found(arm.get("model"))} if isinstance(arm, dict) and "model" in arm else found(arm)
            for label, arm in value["arms"].items()
        }
    if isinstance(value.get("tasks"), dict):
        files = ("data", "train", "dev", "test")
        value["tasks"] = {
            label: {key: found(entry) if key in files else entry for key, entry in task.items()}
            if isinstance(task, dict)
            else task
            for label, task in value["tasks"].items()
        }
    if "tokenizer" in value:
        value["tokenizer"] = found(value["tokenizer"])
    return value


def _merged(value: Any, changes: Any) -> Any:
    if not isinstance(value, dict) or not isinstance(changes, dict):
        return {"model": value, **changes} if isinstance(value, str) and isinstance(changes, dict) else changes
    return {**value, **{key: _merged(value.get(key, {}), change) for key, change in changes.items()}}
