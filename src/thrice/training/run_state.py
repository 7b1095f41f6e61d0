"""Where a run of epochs stands: what its saves hold beside tensors and generators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Sums:
    """Running totals over some optimiser steps."""

    steps: int = 0
    """Optimiser steps counted."""
    examples: int = 0
    """Examples in their batches."""
    loss: float = 0.0
    """Loss summed over the examples."""
    grad_norm: float = 0.0
    """Gradient norm before clipping, summed over the steps."""
    clipped: int = 0
    """Steps whose gradient was longer than max_grad_norm."""
    seconds: float = 0.0
    """Time of the steps."""

    def add(self, *, examples: int, loss: float, grad_norm: float, clipped: bool, seconds: float) -> None:
        """Count one step; loss: mean over its examples."""
        self.steps += 1
        self.examples += examples
        self.loss += loss * examples
        self.grad_norm += grad_norm
        self.clipped += clipped
        self.seconds += seconds


@dataclass(kw_only=True)
class RunState:
    """Where a run stands, apart from tensors and generators; the learning rate follows from the step alone."""

    step: int = 0
    """Optimiser steps done."""
    position: int = 0
    """Batches done of the running epoch."""
    order: int = 0
    """Checksum of the running epoch's batches."""
    epochs: list[dict[str, Any]] = field(default_factory=list)
    """One record per finished epoch."""
    best_epoch: int = 0
    """Best epoch so far, counted from 1; 0 before the first evaluation."""
    best_value: float | None = None
    """The chosen metric after that epoch."""
    in_epoch: Sums = field(default_factory=Sums)
    """Totals of the running epoch."""
    in_line: Sums = field(default_factory=Sums)
    """Totals since the last line of the log."""
    seconds: float = 0.0
    """Training and evaluation so far, over all starts."""
    log_bytes: int = 0
    """Length of the log; lines beyond it are of steps that will be done again."""

    @classmethod
    def from_json(cls, numbers: Mapping[str, Any]) -> RunState:
        """Give the state that state.json holds."""
        return cls(**{**numbers, **{name: Sums(**numbers[name]) for name in ("in_epoch", "in_line")}})
