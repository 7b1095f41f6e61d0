"""What an arm costs: parameters, file, memory, and the time of a training step measured beside the other arms."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thrice.compare.grid import TFIDF, Study
from thrice.errors import TrainingError
from thrice.files import read_json, write_json
from thrice.finetune import Splits, batches_of, build, save_model
from thrice.tasks.base import Task, TaskData, TaskModel
from thrice.training.optim import build_optimizer, switch_checkpointing

METHOD = (
    "s/epoch: training steps (forward, backward, fused AdamW) on the same batches, one arm after the other in turn, "
    "the median time per token times the tokens of an epoch; peak memory: the most a process of its own holds while it "
    "does three steps on the batch with most tokens (weights, gradients, optimiser, activations), less what it held "
    "before the model, by the kernel's high-water mark; file: model.safetensors of the stock folder"
)
ROUNDS = 8


def measure_cost(study: Study, folder: Path, tasks: dict[str, tuple[Task, Splits]]) -> dict[str, Any]:
    """Measure every arm that cost.json does not have yet, write cost.json, and give it.

    Arms are measured together, so one new arm means measuring all again: only interleaved times can be compared.
    """
    path = folder / "cost.json"
    arms = [arm for arm in study.arms if arm != TFIDF]
    before = _measured_before(path)
    if set(before.get("arms", {})) == set(arms):
        return before
    torch.set_num_threads(study.threads)
    models, data = {}, {}
    costs: dict[str, dict[str, Any]] = {}
    for arm in arms:
        model, tokenizer = build(arm, task, seed=study.seeds[0], tokenizer=study.tokenizer)
        with tempfile.TemporaryDirectory() as place:
            saved = save_model(model, Path(place) / "model", tokenizer)
            size = sum(p.stat().st_size for p in saved.glob("*.safetensors"))
        stored, called = model.encoder.parameter_counts()
        costs[arm] = {"parameters_stored": stored, "parameters_called": called, "file_bytes": size}
        models[arm], data[arm] = model.to(_device()), task.encode(splits.train, tokenizer)
    for arm, measured in _interleaved(models, data, study).items():
        costs[arm] |= measured
    models.clear()
    for arm in arms:
        costs[arm]["peak_memory_bytes"] = _peak_memory(study, arm)
    result = {"method": METHOD, "threads": study.threads, "arms": costs}
    write_json(path, result)
    return result


def _measured_before(path: Path) -> dict[str, Any]:
    """Give what cost.json says; a damaged one says nothing, for it can be measured again."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) and isinstance(value.get("arms"), dict) else {}


def _interleaved(models: dict[str, TaskModel], data: dict[str, TaskData], study: Study) -> dict[str, dict[str, Any]]:
    """Give arm -> step_ms and seconds_per_epoch from steps taken in turn on the same batches."""
    for model in models.values():
        switch_checkpointing(model, study.training)
    optimizers = {arm: build_optimizer(model, study.training) for arm, model in models.items()}
    batches = batches_of(next(iter(data.values())), study.training)(1)
    full = [b for b in batches if len(b) == len(batches[0])]
    times: dict[str, list[float]] = {arm: [] for arm in models}
    per_token: dict[str, list[float]] = {arm: [] for arm in models}
    for turn in range(ROUNDS + 1):
        for arm, model in models.items():
            indices = full[turn % len(full)]
            seconds = _step(model, optimizers[arm], data[arm].batch(indices))
            if turn:  # the first round warms up
                times[arm].append(1000 * seconds)
                per_token[arm].append(seconds / data[arm].lengths[indices].sum())
    return {
        arm: {
            "step_ms": {"median": statistics.median(times[arm]), "values": times[arm]},
            "seconds_per_epoch": statistics.median(per_token[arm]) * float(data[arm].lengths.sum()),
        }
        for arm in models
    }


def _device() -> torch.device:
    """Give the device that training uses."""
    from accelerate import Accelerator

    return Accelerator().device


def _step(model: TaskModel, optimizer: torch.optim.Optimizer, batch: Any) -> float:
    model.train()
    started = time.perf_counter()
    model.loss(batch.to(model.device)).backward()
    optimizer.step()
    optimizer.zero_grad()
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _peak_memory(study: Study, arm: str) -> int | None:
    """Give the bytes that three training steps need, measured in a process of its own; None where none can be told."""
    command = [sys.executable, "-m", "thrice.compare.cost"]
    question = json.dumps({"study": study.to_json(), "arm": arm})
    answer = subprocess.run(command, input=question, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise TrainingError(f"measuring the memory of {arm} failed: {answer.stderr.strip().splitlines()[-1:]}")
    measured: int | None = json.loads(answer.stdout.splitlines()[-1])
    return measured


def _measure_here(study: Study, arm: str) -> int | None:
    from thrice.finetune import read_splits

    torch.set_num_threads(study.threads)
    task, splits = read_splits(study.task, study.source, study.options)
    model, tokenizer = build(arm, task, seed=study.seeds[0], tokenizer=study.tokenizer)
    data = task.encode(splits.train, tokenizer)
    del splits
    batches = batches_of(data, study.training)(1)
    largest = max(batches, key=lambda indices: int(data.lengths[np.asarray(indices)].sum()))
    switch_checkpointing(model, study.training)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    _forget_peak()
    before = _status_bytes("VmRSS")
    optimizer = build_optimizer(model.to(_device()), study.training)
    for _ in range(3):
        _step(model, optimizer, data.batch(largest))
    if model.device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    peak = _status_bytes("VmHWM")
    return None if peak is None or before is None else peak - before + weights


def _forget_peak() -> None:
    """Reset the high-water mark: a new process inherits that of the one which started it (Linux, proc(5))."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status_bytes(key: str) -> int | None:
    """Give a size out of /proc/self/status; None on systems that have none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    print(json.dumps(_measure_here(Study.from_json(asked["study"]), asked["arm"])))
