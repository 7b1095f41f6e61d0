"""Memory of training: the most that a process holds, and what of it are weights, gradients, optimiser, activations."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from thrice.compare.timing import train_step
from thrice.errors import TrainingError
from thrice.finetune import batches_of
from thrice.tasks.base import TaskData, TaskModel
from thrice.training import TrainingConfig
from thrice.training.optim import build_optimizer, switch_checkpointing
from thrice.training.step import precision

RETURNED = 65536
"""Bytes from which on a freed block goes back to the system at once (glibc's mallopt(3); without effect elsewhere). As
a process usually runs, its heap keeps freed blocks in pieces, which made the mark of the same step 0 to 34% higher."""

# As the profiler numbers the kinds of device.
_DEVICES = {"cpu": 0, "cuda": 1}


def training_memory(model: TaskModel, data: TaskData, training: TrainingConfig) -> dict[str, Any]:
    """Give peak_memory_bytes and memory {weights, gradients, optimizer, activations} of a training step, in bytes.

    The step is on the batch of the first epoch that has most tokens. peak_memory_bytes: the most that this process
    holds over three steps, by the kernel's high-water mark, less what it held before them, the weights added; on a GPU
    what torch had allocated there. None where no such mark can be read. memory: see `memory_split`.
    Fair only in a process of its own, as `in_own_process` starts one: elsewhere the heap keeps what was freed before,
    and a step uses it again unseen.
    """
    batches = batches_of(data, training)(1)
    largest = max(batches, key=lambda indices: int(data.lengths[np.asarray(indices)].sum()))
    batch = data.batch(largest)
    switch_checkpointing(model, training)
    weights = _bytes(model.parameters())
    device = model.device
    # A first step loads code, 100 MB of it, which belongs to no model.
    two = data.batch(sorted(largest, key=lambda i: data.lengths[i])[:2])
    train_step(model, build_optimizer(model, training), two, training)
    forget_peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    before = status_bytes("VmRSS")
    optimizer = build_optimizer(model, training)
    for _ in range(3):
        train_step(model, optimizer, batch, training)
    peak: int | None
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:
        most = status_bytes("VmHWM")
        peak = None if most is None or before is None else most - before + weights
    return {"peak_memory_bytes": peak, "memory": memory_split(model, optimizer, batch, training)}


def memory_split(
    model: TaskModel, optimizer: torch.optim.Optimizer, batch: Any, training: TrainingConfig
) -> dict[str, int]:
    """Give the bytes of weights, gradients, optimizer and activations at the moment when a step holds most.

    The optimiser has taken a step before, so that its state is there, and no gradients are left. torch's profiler
    writes down every allocation of one more step. Gradients are the blocks that the parameters' gradients lie in at
    the end, counted from the moment they were allocated; activations are all other blocks alive at the peak, so
    temporary ones too. What kernels allocate past torch is not seen.
    """
    model.train()
    here = batch.to(model.device)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        with precision(model, training.mixed_precision):
            loss = model.loss(here)
        loss.backward()
        optimizer.step()
    gradients = {p.grad.untyped_storage().data_ptr() for p in model.parameters() if p.grad is not None}
    optimizer.zero_grad()
    total = peak = 0
    moment = -1
    born: dict[int, tuple[int, int]] = {}
    for place, (address, size) in enumerate(_allocations(trace, model.device)):
        total += size
        if size > 0:
            born[address] = (place, size)
        if total > peak:
            peak, moment = total, place
    held = sum(size for address, (place, size) in born.items() if address in gradients and place <= moment)
    state = (value for values in optimizer.state.values() for value in values.values())
    return {
        "weights": _bytes(model.parameters()),
        "gradients": held,
        "optimizer": _bytes(value for value in state if isinstance(value, Tensor)),
        "activations": peak - held,
    }


def _allocations(trace: profile, device: torch.device) -> list[tuple[int, int]]:
    """Give (address, bytes) of everything allocated, and with negative bytes freed, on the device, in order."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "trace.json"
        trace.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    kind = _DEVICES.get(device.type)
    found = [e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == kind]
    return [(e["args"]["Addr"], e["args"]["Bytes"]) for e in sorted(found, key=lambda e: e["ts"])]


def in_own_process(question: Mapping[str, Any], *, module: str, name: str) -> dict[str, Any]:
    """Give what `python -m module` answers to a JSON question; raises TrainingError, naming `name`, where it fails."""
    command, asked = [sys.executable, "-m", module], json.dumps(question)
    surroundings = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(RETURNED)}
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, env=surroundings)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise TrainingError(f"measuring the memory of {name} failed: {last}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def forget_peak() -> None:
    """Reset the high-water marks of this process, which a new one inherits (Linux, proc(5)), and of its GPU."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def status_bytes(key: str) -> int | None:
    """Give a size out of /proc/self/status; None on systems that have none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)
