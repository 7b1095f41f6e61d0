"""What a run says when it cannot go on: disk full, memory full, a number that is none; and what is kept then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from thrice.errors import TrainingError
from thrice.files import read_json
from thrice.training.progress import count_tokens, longest_sequence

# The allocators of torch's devices and of the C++ library say it in words of their own.
_NO_MEMORY = ("out of memory", "can't allocate memory", "bad_alloc", "not enough memory")


def kept(folder: Path) -> str:
    """Say what a run's folder holds to go on from."""
    room = folder / "resume"
    if (folder / "fit.json").exists():
        return f"the finished run is kept in {folder}"
    try:
        step = read_json(room / "state.json")["state"]["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return "nothing was saved before"
    return f"the last save is kept in {room} (step {step})"


@contextlib.contextmanager
def disk_errors(folder: Path, what: str) -> Iterator[None]:
    """Turn an error of the disk into a TrainingError; what: that which could not be written."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise TrainingError(
            f"{what} could not be written: {error.strerror or error}{where}; {kept(folder)} - "
            "put the disk right and start the same again"
        ) from error


ADVICE = "--gradient-checkpointing, a smaller --batch-size or a smaller --max-length"
"""What helps in fine-tuning where memory does not suffice."""


@contextlib.contextmanager
def memory_errors(
    folder: Path, doing: str, *, batch: list[Any], examples: int | None = None, advice: str = ADVICE
) -> Iterator[None]:
    """Turn an error for want of memory into a TrainingError that says what asked for it and which option helps.

    batch: holds the batch at hand once it is made. examples: in it; None while no batch of the run is at hand. advice:
    what to try; the first changes no result, the last two do.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        size = "" if examples is None else f"; the batch has {examples} examples"
        if tokens := count_tokens(batch):
            size += f" and {tokens} tokens, the longest sequence {longest_sequence(batch)}"
        raise TrainingError(
            f"out of memory {doing}{size}: try {advice} (the last two make it another run: --restart); {kept(folder)}"
        ) from error


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was not enough memory, on whatever device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _NO_MEMORY)


def not_finite(folder: Path, model: nn.Module, what: str, *, rate: float) -> str:
    """Say what became nan or infinite and where, the likely cause, and what is kept; rate: of that step."""
    broken = [name for name, p in model.named_parameters() if not torch.isfinite(p).all()]
    weights = f"{broken[0]} and {len(broken) - 1} more are not finite" if broken else "all weights are finite"
    return (
        f"{what} (learning rate {rate:.3g}; {weights}): likely a rate too high (try a third of it or a longer "
        f"warm-up), clipping switched off, or a batch with broken values; {kept(folder)}"
    )
