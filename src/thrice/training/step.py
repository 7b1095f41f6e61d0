"""One optimiser step, and what stands around every step: what both loops do alike."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from thrice.errors import Interrupted, TrainingError
from thrice.training.averaging import Average
from thrice.training.distributed import Ranks, problems_of
from thrice.training.faults import not_finite
from thrice.training.interrupt import Request


@dataclass(kw_only=True)
class Stepper:
    """What turns a loss into new weights."""

    model: nn.Module
    """Whose weights are moved."""
    optimizer: torch.optim.Optimizer
    """Moves them; its learning rates are set before."""
    accelerator: Accelerator
    """Carries the gradients back and, of several processes, averages them."""
    max_grad_norm: float | None
    """Longest gradient, as the 2-norm over all parameters; 0 or None leaves it as long as it is."""
    folder: Path
    """Of the run, for what is said of its saves."""
    average: Average | None = None
    """Takes in the weights after each step."""

    def take(self, loss: Tensor, value: float, *, step: int, where: str, rate: float) -> float:
        """Take optimiser step `step`, counted from 1, and give the gradient's 2-norm before it was clipped.

        loss: what to call backward on; value: the number to judge it by. where, rate: said in the error.
        Raises TrainingError before anything has moved where loss or gradient are not finite.
        """
        self._check(value, "loss", where, rate)
        self.accelerator.backward(loss)
        return self.move(value, step=step, where=where, rate=rate)

    def move(self, value: float, *, step: int, where: str, rate: float) -> float:
        """Take step `step` on the gradients that are there, as `take` does."""
        self._check(value, "loss", where, rate)
        norm = self._clip()
        self._check(norm, "gradient norm", where, rate)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(step)
        self.optimizer.zero_grad()
        return norm

    def clips(self, norm: float) -> bool:
        """Whether a gradient of that norm is scaled down."""
        return norm > (self.max_grad_norm or math.inf)

    def _clip(self) -> float:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        if self.max_grad_norm:
            return float(self.accelerator.clip_grad_norm_(parameters, self.max_grad_norm))
        return float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))

    def _check(self, value: float, what: str, where: str, rate: float) -> None:
        if not math.isfinite(value):
            said = f"the {what} is {value} at {where}"
            raise TrainingError(not_finite(self.folder, self.model, said, rate=rate))


@dataclass(kw_only=True)
class SaveClock:
    """When a run is saved next."""

    every_steps: int | None
    """Optimiser steps between two saves; None for none."""
    seconds: float | None
    """Seconds between two saves, stretched where saving is slow; None for none."""
    ranks: Ranks
    """The processes, which save together."""
    saved_at: float = field(default_factory=time.perf_counter)
    cost: float = 0.0

    def due(self, step: int) -> bool:
        """Whether to save after this many optimiser steps; of several processes, where one finds so."""
        if self.every_steps is not None and step % self.every_steps == 0:
            return True
        # At most a twentieth of the time goes into saving, however large the model.
        waited = time.perf_counter() - self.saved_at
        return self.seconds is not None and self.ranks.any(waited >= max(self.seconds, 20 * self.cost))

    def saved(self, started: float) -> None:
        """Note that a save, begun at that time of `time.perf_counter`, is done."""
        self.saved_at = time.perf_counter()
        self.cost = self.saved_at - started


def asked_to_stop(request: Request, ranks: Ranks) -> bool:
    """Whether a signal has asked; of several processes, any."""
    return ranks.any(request.signum is not None)


def interrupted(request: Request, where: str, folder: Path) -> Interrupted:
    """Give the exception of a run that was asked to stop and is saved; where: what it stands behind."""
    told = {} if request.signum is None else {"signum": request.signum}
    return Interrupted(f"stopped after {where} and saved in {folder / 'resume'}", **told)


def check_accelerator(accelerator: Accelerator) -> None:
    """Raise TrainingError that lists what an accelerator does that a run here cannot save, resume or follow."""
    problems = list(problems_of(accelerator))
    if accelerator.scaler is not None:
        problems.append("float16 with loss scaling: its state is not kept for resuming, use bf16")
    if accelerator.gradient_accumulation_steps > 1:
        problems.append("gradient accumulation: a batch is one optimiser step")
    if problems:
        raise TrainingError("this accelerator cannot be used here: " + "; ".join(problems))


def precision(model: nn.Module, asked: str | None) -> AbstractContextManager[object]:
    """Give the surroundings of a forward pass; asked: the config's `mixed_precision`, None leaves them as they are."""
    return torch.autocast(next(model.parameters()).device.type, torch.bfloat16) if asked == "bf16" else nullcontext()


def precision_of(accelerator: Accelerator, asked: str | None) -> dict[str, str]:
    """Give the fact of an identity that says in what precision products are computed; float32 goes without saying.

    asked: the config's `mixed_precision`.
    """
    found = asked or accelerator.mixed_precision
    return {} if found == "no" else {"mixed_precision": found}


def plain(value: Any) -> Any:
    """Give a value as JSON has it: tensors and numpy's numbers become lists and numbers."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value
