"""What the tests of faults share: something that happens at a chosen moment of a run, and what a run has left."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_loop import toy_config, toy_data

from thrice.tasks.classification import Classification

CONFIG = toy_config(epochs=3, save_every_steps=4, log_every_steps=3)
"""As in test_resume: 6 steps an epoch."""


def at_step(number: int, act: Callable[[], Any]) -> Callable[[Any], Any]:
    """Give a batch maker of the toy's shape that acts while it makes the n-th batch of its start."""
    inputs, labels = toy_data()
    made = iter(range(1, 1000))

    def make_batch(indices: Any) -> Any:
        if next(made) == number:
            act()
        return inputs[list(indices)], labels[list(indices)]

    return make_batch


def saved(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "resume" / "state.json").read_text(encoding="utf-8"))["state"]
    return state


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def dead_process() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def signalling_loss(monkeypatch: pytest.MonkeyPatch, call: int, act: Callable[[], Any]) -> None:
    """Let the task's loss act once, when it is computed for the n-th time."""
    right, calls = Classification.loss, iter(range(1, 10_000))

    def loss(task: Classification, model: Any, batch: Any) -> torch.Tensor:
        if next(calls) == call:
            act()
        return right(task, model, batch)

    monkeypatch.setattr(Classification, "loss", loss)


def send(signum: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signum)
