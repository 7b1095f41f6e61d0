"""What a study will take before it is begun: cells, time from a measured step, disk."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from thrice.compare.cell import Cell
from thrice.compare.cost import training_device
from thrice.compare.data import read_task
from thrice.compare.grid import TFIDF, Study
from thrice.compare.runner import Engine, missing_cells, steps_of
from thrice.compare.timing import step_times
from thrice.finetune import build


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much work a study is."""

    cells: int
    """Cells of the whole study."""
    missing: int
    """Cells that are still to be computed."""
    steps: int
    """Optimiser steps of those."""
    seconds: float
    """Time they will take, side by side; training and evaluation, from steps that were measured here."""
    disk_bytes: int
    """Disk that a run of them needs at most: what is kept, and the saves of the cells in work."""
    seconds_of: dict[str, dict[str, float]]
    """Task -> arm -> seconds of one of its cells, the last one."""

    def to_json(self) -> dict[str, Any]:
        """Give the plan as JSON values."""
        return asdict(self)

    def sentence(self, study: Study) -> str:
        """Give the plan in one line."""
        grid = sum(len(arm.points) for arm in study.arms)
        arms = f"{len(study.arms)} arms" + (f" at {grid} points" if grid > len(study.arms) else "")
        shape = f"{arms} x {len(study.tasks)} task{'s' * (len(study.tasks) > 1)} x {len(study.seeds)} seeds"
        left = "" if self.missing == self.cells else f", {self.missing} to do"
        time, disk = _duration(self.seconds), f"{self.disk_bytes / 1e6:,.0f} MB of disk"
        return f"plan: {self.cells} cells ({shape}){left}; about {time}, then the cost card; {disk}"


def plan_study(study: Study, folder: Path, engine: Engine, *, restart: bool = False) -> Plan:
    """Give what is left to do of a study, its time from a few measured steps of every arm on every task.

    Evaluation counts as a third of a training step per token; a grid's points are taken to cost the same per example.
    restart: whether what the folder holds will be discarded. Raises what building an arm raises.
    """
    missing = study.cells if restart else missing_cells(study, folder)
    torch.set_num_threads(study.threads)
    seconds: dict[Cell, float] = {}
    stored: dict[str, int] = {}
    for task in study.tasks:
        learned, splits = read_task(task)
        for arm in study.arms:
            own = [cell for cell in missing if (cell.arm, cell.task) == (arm.name, task.name)]
            if not own or arm.model == TFIDF:
                continue
            model, tokenizer = build(arm.model, learned, seed=own[0].seed, tokenizer=study.tokenizer)
            model.to(training_device())
            train, dev, test = (model.task.encode(part, tokenizer) for part in (splits.train, splits.dev, splits.test))
            config = study.training_of(own[0])
            stored[arm.name] = sum(p.numel() * p.element_size() for p in model.parameters())
            measured = step_times({"": model}, {"": train}, {"": config}, rounds=3, seconds=5)[""]
            for cell in own:
                config = study.training_of(cell)
                epochs = steps_of(study, [cell])[0] * config.batch_size / len(train)
                answered = dev.lengths.sum() * math.ceil(epochs) + test.lengths.sum()
                share = epochs + answered / train.lengths.sum() / 3
                seconds[cell] = float(measured["seconds_per_epoch"] * share)
    total = sum(seconds.values())
    return Plan(
        cells=len(study.cells),
        missing=len(missing),
        steps=sum(steps_of(study, missing)),
        seconds=total / max(1, min(engine.jobs, len(missing))),
        disk_bytes=_disk(study, missing, stored, engine),
        seconds_of={
            task.name: {cell.arm: of for cell, of in seconds.items() if cell.task == task.name} for task in study.tasks
        },
    )


def _disk(study: Study, missing: list[Cell], stored: dict[str, int], engine: Engine) -> int:
    """Cells in work: weights and two moments, twice while a save replaces another, and the best epoch; models kept."""
    sizes = [stored.get(cell.arm, 0) for cell in missing]
    in_work = sum(sorted(sizes, reverse=True)[: engine.jobs]) * (2 * 3 + 2)
    kept = sum(sizes) if study.save_models else 0
    return in_work + kept + 20_000 * len(missing)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{math.ceil(seconds)} seconds"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours"
