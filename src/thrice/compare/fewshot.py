"""Few-shot studies: models times methods times examples per class times splits, and the table of what came out.

Every method on every sample is one task of a Study, so that the study runner, its resuming and its files serve here
too. Methods: `prompt`, the fewshot task; `plain`, the classification task with a new head, the control; `zero-shot`,
the fewshot task without any training.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thrice.compare.grid import TFIDF, Study, StudyTask, arms_of
from thrice.compare.statistics import paired_difference, summary
from thrice.compare.summary import summarise
from thrice.errors import ConfigError, nearest
from thrice.registry import plugin
from thrice.source import DataSource
from thrice.tasks.base import options_of
from thrice.training import TrainingConfig

KINDS = {"prompt": "fewshot", "plain": "classification", "zero-shot": "fewshot"}
"""Method -> kind of its task."""
METRICS = ("accuracy", "macro_f1")
_NAME = re.compile(r"(?P<method>[a-z-]+)(?: k=(?P<shots>\d+))? split=(?P<split>\d+)")


def fewshot_study(
    models: Sequence[str],
    source: DataSource,
    *,
    options: Mapping[str, Any],
    shots: Sequence[int],
    training: TrainingConfig,
    methods: Sequence[str] = tuple(KINDS),
    splits: int = 3,
    seeds: int = 1,
    metric: str = "accuracy",
    tokenizer: str | None = None,
    threads: int = 1,
) -> Study:
    """Give the study of these models by these methods, learning from so many examples per class.

    options: of the fewshot and classification tasks, each of which is given those that it has. shots: examples per
    class, each drawn `splits` times, the same ones for all models and methods; with one file (`data`) a split is
    another test part too. Where test rows are a file of their own, they are all that counts without training, and
    zero-shot is computed once.
    Raises ConfigError that lists everything that cannot be.
    """
    problems = [f"no method {name!r}; {nearest(name, KINDS)}" for name in methods if name not in KINDS]
    if not methods or len(set(methods)) < len(methods):
        problems.append(f"methods are {', '.join(methods) or 'none'}; expected each once of {', '.join(KINDS)}")
    if not shots or min(shots) < 1 or len(set(shots)) < len(shots):
        problems.append(f"shots are {', '.join(map(str, shots)) or 'none'}; expected different numbers of at least 1")
    if splits < 1 or seeds < 1:
        problems.append(f"splits is {splits} and seeds {seeds}, both must be at least 1")
    if metric not in METRICS:
        problems.append(f"metric is {metric!r}; {nearest(metric, METRICS)}")
    if TFIDF in models:
        problems.append("tfidf has no prompts; compare it by thrice compare --shots K")
    if source.shots is not None:
        problems.append("shots of the source are set; name the examples per class as shots of the study")
    own = {kind: options_of(plugin("tasks", kind)) for kind in set(KINDS.values())}
    known = sorted({name for names in own.values() for name in names})
    problems += [f"no option {name!r}; {nearest(name, known)}" for name in options if name not in known]
    if problems:
        raise ConfigError("few-shot study: " + "; ".join(problems))
    again = 1 if source.test is not None else splits
    samples = [
        (method, k, split)
        for split in range(splits)  # outermost, so that a study stopped early compares all methods
        for k in shots
        for method in methods
        if method != "zero-shot" or (k == min(shots) and split < again)
    ]
    tasks = [
        StudyTask(
            name=f"{method} split={split}" if method == "zero-shot" else f"{method} k={k} split={split}",
            kind=KINDS[method],
            metric=metric,
            options={name: value for name, value in options.items() if name in own[KINDS[method]]},
            source=dataclasses.replace(source, shots=k, split_seed=source.split_seed + split),
            training={"epochs": 0} if method == "zero-shot" else {},
        )
        for method, k, split in samples
    ]
    return Study(
        arms=arms_of(*models),
        tasks=tuple(tasks),
        seeds=tuple(range(seeds)),
        training=training,
        tokenizer=tokenizer,
        threads=threads,
    )


def fewshot_table(folder: Path) -> dict[str, Any]:
    """Give what came out of a few-shot study's folder, finished or not, as one JSON value.

    "rows": one per model, method and shots (None for zero-shot): {mean, std, n, values, splits, collapsed}, over splits
    and seeds, of the deciding score; collapsed runs count like any other, for with few examples they are results, and
    `collapsed` says how many there were. "differences": prompt less plain on the same samples, per model and shots:
    {mean, low, high, n, p}. "metric", "score" (test or best_dev), "cells" {done, planned}, "data", "study".
    """
    found = summarise(folder)
    score = found["tasks"][0]["deciding"]
    values: dict[tuple[str, str, int | None], dict[tuple[int, int], float]] = {}
    collapsed: dict[tuple[str, str, int | None], int] = {}
    for part in found["tasks"]:
        named = _NAME.fullmatch(part["task"])
        if named is None:
            raise ConfigError(f"{folder} is no few-shot study: it has a task {part['task']!r}; use thrice report")
        k = None if named["shots"] is None else int(named["shots"])
        for arm in part["arms"]:
            key = (arm["arm"], named["method"], k)
            own = values.setdefault(key, {})
            own |= {(int(named["split"]), run["seed"]): run[score] for run in arm["runs"] if run[score] is not None}
            collapsed[key] = collapsed.get(key, 0) + len(arm["collapsed"])
    rows = [
        {
            "model": model,
            "method": method,
            "shots": k,
            **dataclasses.asdict(summary(list(own.values()))),
            "splits": [list(place) for place in own],
            "collapsed": collapsed[model, method, k],
        }
        for (model, method, k), own in values.items()
    ]
    differences = []
    for (model, method, k), own in values.items():
        control = values.get((model, "plain", k))
        if method == "prompt" and control is not None:
            shared = [place for place in own if place in control]
            pair = paired_difference([own[place] for place in shared], [control[place] for place in shared])
            differences.append({"model": model, "shots": k, **dataclasses.asdict(pair)})
    return {
        "metric": found["tasks"][0]["metric"],
        "score": score,
        "cells": found["cells"],
        "rows": rows,
        "differences": differences,
        "data": found["study"].get("data"),
        "study": str(folder),
    }
