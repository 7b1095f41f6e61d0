"""What a study will take before it is begun: cells, time from a measured step, disk."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from thrice.compare.data import read_task
from thrice.compare.grid import TFIDF, Cell, Study
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
    arms: dict[str, dict[str, float]]
    """Task -> arm -> seconds of one of its cells."""

    def to_json(self) -> dict[str, Any]:
        """Give the plan as JSON values."""
        return asdict(self)

    def sentence(self, study: Study) -> str:
        """Give the plan in one line."""
        grid = sum(len(arm.points) for arm in study.arms)
        arms = f"{len(study.arms)} arms" + (f" at {grid} points" if grid > len(study.arms) else "")
        shape = f"{arms} x {len(study.tasks)} task{'s' * (len(study.tasks) > 1)} x {len(study.seeds)} seeds"
        left = "" if self.missing == self.cells else f", {self.missing} to do"
        time = _duration(self.seconds)
        return f"plan: {self.cells} cells ({shape}){left}; about {time}, {self.disk_bytes / 1e6:,.0f} MB of disk"


def plan_study(study: Study, folder: Path, engine: Engine) -> Plan:
    """Give what is left to do of a study, its time from a few measured steps of every arm on every task.

    Evaluation counts as a third of a training step per token. Raises what building an arm raises.
    """
    missing = missing_cells(study, folder)
    torch.set_num_threads(study.threads)
    per_cell: dict[tuple[str, str], float] = {}
    stored: dict[str, int] = {}
    for task in study.tasks:
        learned, splits = read_task(task)
        for arm in study.arms:
            own = [cell for cell in missing if (cell.arm, cell.task) == (arm.name, task.name)]
            if not own or arm.model == TFIDF:
                continue
            model, tokenizer = build(arm.model, learned, seed=own[0].seed, tokenizer=study.tokenizer)
            train, dev, test = (model.task.encode(part, tokenizer) for part in (splits.train, splits.dev, splits.test))
            config = study.training_of(own[0])
            stored[arm.name] = sum(p.numel() * p.element_size() for p in model.parameters())
            measured = step_times({"": model}, {"": train}, {"": config}, rounds=3, seconds=5)[""]
            epoch = measured["seconds_per_epoch"]
            share = steps_of(study, own[:1])[0] / -(-len(train) // config.batch_size)
            answered = dev.lengths.sum() * math.ceil(share) + test.lengths.sum()
            per_cell[arm.name, task.name] = float(epoch * (share + answered / train.lengths.sum() / 3))
    total = sum(per_cell.get((cell.arm, cell.task), 0.0) for cell in missing)
    return Plan(
        cells=len(study.cells),
        missing=len(missing),
        steps=sum(steps_of(study, missing)),
        seconds=total / max(1, min(engine.jobs, len(missing))),
        disk_bytes=_disk(study, missing, stored, engine),
        arms={t.name: {a.name: per_cell.get((a.name, t.name), 0.0) for a in study.arms} for t in study.tasks},
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
