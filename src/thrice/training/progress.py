"""The progress bar of a run: step of steps, loss, learning rate, speed and the time that is left."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from thrice.model.packing import PackedBatch

Draw = Callable[..., None]
"""Called after a step with epoch, loss, lr, batch, examples and seconds."""


def training_progress(console: Console | None = None) -> Progress:
    """Give a progress bar with the columns that `fit` fills; by default on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[status]}"))
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console or Console(stderr=True))


def count_tokens(batch: Any) -> int:
    """Give the real tokens in a batch: those of every packed batch in it, at any depth; 0 where there is none."""
    return sum(packed.num_tokens for packed in _packed_in(batch))


def longest_sequence(batch: Any) -> int:
    """Give the tokens of the longest sequence in a batch; 0 where there is no packed batch in it."""
    return max((max(packed.lengths, default=0) for packed in _packed_in(batch)), default=0)


def _packed_in(batch: Any) -> Iterator[PackedBatch]:
    if isinstance(batch, PackedBatch):
        yield batch
    elif isinstance(batch, Mapping):
        yield from _packed_in(list(batch.values()))
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from _packed_in(part)
    elif dataclasses.is_dataclass(batch):
        yield from _packed_in([getattr(batch, f.name) for f in dataclasses.fields(batch)])


@contextlib.contextmanager
def drawing(progress: Progress | bool | None, *, total: int, done: int) -> Iterator[Draw]:
    """Show a run of `total` steps, `done` of them already made; yields the function to call after each step.

    progress: a started bar to draw on, or whether to draw one; None draws where standard error is a terminal.
    """
    own = None if isinstance(progress, Progress) else training_progress()
    if own and not (own.console.is_terminal if progress is None else progress):
        yield lambda **_: None
        return
    bar = progress if isinstance(progress, Progress) else own
    assert bar is not None
    recent: deque[tuple[int, int, float]] = deque(maxlen=50)

    def draw(*, epoch: str, loss: float, lr: float, batch: Any, examples: int, seconds: float) -> None:
        recent.append((count_tokens(batch), examples, seconds))
        all_tokens, all_examples, all_seconds = (sum(column) for column in zip(*recent, strict=True))
        count, unit = (all_tokens, "tokens") if all_tokens else (all_examples, "examples")
        status = f"loss {loss:.4f}  lr {lr:.2e}  {count / all_seconds:,.0f} {unit}/s"
        bar.update(task, advance=1, description=epoch, status=status)

    with own or contextlib.nullcontext():
        task = bar.add_task("training", total=total, completed=done, status="")
        yield draw
        if own is None:
            bar.remove_task(task)
