"""The progress bar of a run: what is done, loss, learning rate, speed and the time that is left."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from thrice.model.packing import PackedBatch

Draw = Callable[..., None]
"""Called after a step: by `fit` with epoch, loss, lr, batch, examples and seconds; on a budget see `drawing_budget`."""


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


def budget_progress(console: Console | None = None) -> Progress:
    """Give a progress bar with the columns of a run on a budget; by default on standard error."""
    whole = Column(no_wrap=True, overflow="fold")  # on a narrow terminal the status is cut, not what is left
    columns = (
        TextColumn("{task.description}", table_column=whole),
        BarColumn(bar_width=10),
        TaskProgressColumn(table_column=Column(no_wrap=True, min_width=4)),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=5)),
        TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True, ratio=1)),
    )
    return Progress(*columns, console=console or Console(stderr=True), expand=True)


@contextlib.contextmanager
def drawing_budget(progress: Progress | bool | None, *, unit: str, total: float) -> Iterator[Draw]:
    """Show a run on a budget; yields the function to call with what is `done` and, after a step, all the rest.

    progress: as for `drawing`. unit, total: of the budget. After a step it is told the stage, terms (name -> mean), lr,
    tokens (of the step), spent (tokens and operations so far) and seconds (of the step).
    """
    own = None if isinstance(progress, Progress) else budget_progress()
    if own and not (own.console.is_terminal if progress is None else progress):
        yield lambda **_: None
        return
    bar = progress if isinstance(progress, Progress) else own
    assert bar is not None
    recent: deque[tuple[int, float]] = deque(maxlen=50)
    means: dict[str, float] = {}

    def draw(
        *,
        done: float,
        stage: str | None = None,
        terms: Mapping[str, float] | None = None,
        lr: float = 0.0,
        tokens: int = 0,
        spent: tuple[int, float] = (0, 0.0),
        seconds: float = 0.0,
    ) -> None:
        if stage is None:
            bar.update(task, completed=done)
            return
        recent.append((tokens, seconds))
        for name, value in (terms or {}).items():
            means[name] = 0.95 * means.get(name, value) + 0.05 * value
        for name in means.keys() - (terms or {}).keys():
            del means[name]
        speed = sum(n for n, _ in recent) / sum(s for _, s in recent)
        first, *others = [f"{name} {value:.3f}" for name, value in means.items()] or [""]
        counted = f"{spent[0] / 1e6:.2f}M tokens  {spent[1]:.1e} FLOPs  {speed:,.0f} tokens/s"
        status = "  ".join([first, counted, *others, f"lr {lr:.1e}"])  # a narrow terminal cuts off the end
        bar.update(task, completed=done, description=stage, status=status)

    with own or contextlib.nullcontext():
        task = bar.add_task("pre-training", total=total, status=f"a budget of {total:,.0f} {unit}")
        yield draw
        if own is None:
            bar.remove_task(task)
