"""The training loop: epochs of optimiser steps on Accelerate, the best epoch kept, every save resumable.

A run lives in its folder:

    folder/train.jsonl          the log: a line per log_every_steps steps and one per epoch, no step twice or left out
    folder/resume/              where it stands (see resume.py); gone once the run is finished
    folder/best.safetensors     parameters and buffers after the best epoch
    folder/fit.json             the result of the finished run
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from rich.progress import Progress
from torch import Tensor, nn

from thrice.errors import Interrupted, TrainingError
from thrice.training import resume
from thrice.training.averaging import Average
from thrice.training.config import TrainingConfig
from thrice.training.distributed import Ranks, join_accelerator, own_seed
from thrice.training.faults import disk_errors, memory_errors
from thrice.training.interrupt import Request, interruptible
from thrice.training.log import open_log, write_line
from thrice.training.optim import build_optimizer, set_learning_rates, switch_checkpointing
from thrice.training.progress import Draw, drawing
from thrice.training.result import FitResult, Record, finished_result, write_result
from thrice.training.run_state import RunState, Sums
from thrice.training.schedule import Schedule, parse_schedule
from thrice.training.step import (
    SaveClock,
    Stepper,
    asked_to_stop,
    check_accelerator,
    interrupted,
    plain,
    precision,
    precision_of,
)


def fit(
    model: nn.Module,
    config: TrainingConfig,
    *,
    num_examples: int,
    batches: Callable[[int], Sequence[Sequence[int]]],
    make_batch: Callable[[Sequence[int]], Any],
    evaluate: Callable[[], Mapping[str, Any]],
    metric: str,
    folder: Path,
    lengths: Sequence[int] | np.ndarray | None = None,
    identity: Mapping[str, Any] | None = None,
    restart: bool = False,
    accelerator: Accelerator | None = None,
    progress: Progress | bool | None = None,
    on_epoch: Callable[[Record], None] | None = None,
) -> FitResult:
    """Train the model, leave the weights of the best epoch in it (eval mode) and give the result.

    model: offers `loss(batch)`, the mean over the batch's examples, and for layer-wise decay `layer_depths()`; a mean
    over something else than examples also `loss_weight(batch)`, what it was divided by.
    batches: epoch, counted from 1 -> the index lists of its steps; the same lists whenever it is asked.
    make_batch: index list -> batch; on a GPU the batch needs `to(device)` or is a dict, list or tuple of such.
    evaluate: called after every epoch without gradients, model in eval mode; gives JSON-like values, among them the
    metric (higher is better, nan is worst) and perhaps `collapsed`, a bool. With ema_decay it is called twice: the
    record's `dev_raw` is of the weights themselves, `dev` of their average, whose best epoch is kept.
    lengths: tokens of each example, by which several processes share a batch out evenly; see training/distributed.py.
    identity: whatever else must be the same for the run to be resumed, such as the fingerprint of the data.
    restart: discard the run that the folder holds. accelerator: by default this machine's GPU, else its CPU.
    progress: a bar to draw on, or whether to draw one; by default where standard error is a terminal.
    on_epoch: called with each epoch's record once it is saved; it must not draw from the global generators.
    Of several processes each calls `fit` with the same arguments, and batches are those of all together; the first one
    writes, draws and calls `on_epoch`, and what `evaluate` gives there counts.

    Called again with the same folder, it goes on from the last save and, on one machine with one thread count, ends
    bit for bit like a run that was never stopped; a finished run gives its result at once. Seeds the global generators.
    Raises TrainingError where the folder holds another run, a loss or gradient is not finite, memory or disk do not
    suffice (the last save stays), evaluate leaves the metric out, or the epochs differ in their number of steps.
    Raises Interrupted on Ctrl-C or SIGTERM: on the first one after the step or evaluation at hand, and saved.
    """
    folder = Path(folder)
    accelerator = accelerator or join_accelerator()
    check_accelerator(accelerator)
    ranks = Ranks.connected()
    if restart and ranks.main:
        resume.forget_run(folder)
    ranks.wait()  # nobody looks before the folder is as it shall be
    facts = {**(identity or {}), **ranks.identity, **precision_of(accelerator, config.mixed_precision)}
    who = resume.run_identity(model, config, num_examples=num_examples, metric=metric, facts=facts)
    finished = finished_result(folder, who)
    ranks.wait()  # nobody changes it before all have looked
    if finished is not None:
        if ranks.main:
            resume.discard_saves(folder)
        model.to(accelerator.device)
        return _with_best(model, folder, finished, ranks)

    steps_per_epoch = len(batches(1))
    total = config.epochs * steps_per_epoch
    total = total if config.max_steps is None else min(total, config.max_steps)
    if not config.epochs:
        raise TrainingError("epochs is 0; nothing to train for")
    if not total:
        raise TrainingError(f"epoch 1 has no batches ({num_examples} examples); nothing to train on")
    schedule = parse_schedule(config.schedule, total_steps=total, warmup=config.warmup)
    resume.seed_everything(own_seed(config.seed, ranks.rank))
    switch_checkpointing(model, config)
    loss_of, prepared = accelerator.prepare(
        _Loss(model, mixed_precision=config.mixed_precision), build_optimizer(model, config)
    )
    # Accelerate's wrapper looks for an optional package at every step (0.2 ms); what else it does is refused above.
    optimizer = prepared.optimizer
    optimizer.zero_grad()  # the caller may have left gradients
    average = None if config.ema_decay is None else Average(model, decay=config.ema_decay)
    where = {"model": model, "optimizer": optimizer, "identity": who, "device": accelerator.device, "ranks": ranks}
    where["average"] = average
    state = resume.load_run(folder, kind=RunState, **where) or RunState()
    if ranks.main and state.position == 0 and 0 < state.best_epoch == len(state.epochs):
        with _averaged(average):
            _repair_best(model, folder, state)

    folder.mkdir(parents=True, exist_ok=True)
    with (
        interruptible() as request,
        open_log(folder / "train.jsonl", state.log_bytes) if ranks.main else FileIO(os.devnull, "ab") as log,
        drawing(progress if ranks.main else False, total=total, done=state.step) as draw,
    ):
        run = _Run(
            model=model,
            config=config,
            metric=metric,
            folder=folder,
            lengths=lengths,
            accelerator=accelerator,
            ranks=ranks,
            loss_of=loss_of,
            stepper=Stepper(
                model=model,
                optimizer=optimizer,
                accelerator=accelerator,
                max_grad_norm=config.max_grad_norm,
                folder=folder,
                average=average,
            ),
            clock=SaveClock(every_steps=config.save_every_steps, seconds=config.save_seconds, ranks=ranks),
            schedule=schedule,
            total=total,
            make_batch=make_batch,
            evaluate=evaluate,
            where=where,
            log=log,
            draw=draw,
            request=request,
        )
        while state.step < total or state.position:
            order = batches(len(state.epochs) + 1)
            _check_order(folder, state, order, steps_per_epoch)
            _train_epoch(run, state, order)
            record = _close_epoch(run, state)
            if on_epoch is not None and ranks.main:
                on_epoch(record)
            if asked_to_stop(request, ranks):
                raise _interrupted(run, state)

    best = state.epochs[state.best_epoch - 1]
    result = FitResult(
        epochs=state.epochs,
        best_epoch=state.best_epoch,
        best_value=best["dev"][metric],
        collapsed=best["collapsed"],
        steps=state.step,
        seconds=state.seconds,
    )
    if ranks.main:
        with disk_errors(folder, "the result"):
            write_result(folder, who, result)
        resume.discard_saves(folder)
    return _with_best(model, folder, result, ranks)


class _Loss(nn.Module):
    """The model's loss as a forward call: what Accelerate does to a model, it does to `forward`."""

    def __init__(self, model: nn.Module, *, mixed_precision: str | None) -> None:
        super().__init__()
        self.model: Any = model
        self.mixed_precision = mixed_precision

    def forward(self, batch: Any) -> Tensor:
        with precision(self.model, self.mixed_precision):
            loss: Tensor = self.model.loss(batch)
        return loss


@dataclass(kw_only=True)
class _Run:
    """What stays the same while a run lasts."""

    model: nn.Module
    config: TrainingConfig
    metric: str
    folder: Path
    lengths: Sequence[int] | np.ndarray | None
    accelerator: Accelerator
    ranks: Ranks
    loss_of: nn.Module
    stepper: Stepper
    clock: SaveClock
    schedule: Schedule
    total: int
    make_batch: Callable[[Sequence[int]], Any]
    evaluate: Callable[[], Mapping[str, Any]]
    where: dict[str, Any]
    log: FileIO
    draw: Draw
    request: Request


def _train_epoch(run: _Run, state: RunState, order: Sequence[Sequence[int]]) -> None:
    run.model.train()
    for indices in order[state.position :]:
        if state.step == run.total:
            break
        _train_step(run, state, indices)
        state.position += 1
        inside = state.position < len(order) and state.step < run.total
        asked = asked_to_stop(run.request, run.ranks)
        if asked or (inside and run.clock.due(state.step)):
            _save(run, state)
        if asked:
            raise _interrupted(run, state)


def _train_step(run: _Run, state: RunState, indices: Sequence[int]) -> None:
    started = time.perf_counter()
    factor = run.schedule(state.step + 1)
    rate = run.config.learning_rate * factor
    set_learning_rates(run.stepper.optimizer, factor)
    own = run.ranks.share(indices, run.lengths)
    at_hand: list[Any] = []
    with memory_errors(run.folder, f"at step {state.step + 1}", batch=at_hand, examples=len(own)):
        # A rank without examples takes part with one that weighs nothing.
        batch = send_to_device(run.make_batch(own if len(own) else indices[:1]), run.accelerator.device)
        at_hand.append(batch)
        loss, value = run.ranks.mean(run.loss_of(batch), run.ranks.weight(own, batch, run.model))
        where = f"step {state.step + 1}, epoch {len(state.epochs) + 1}"
        norm = run.stepper.take(loss, value, step=state.step + 1, where=where, rate=rate)
    seconds = time.perf_counter() - started

    state.step += 1
    state.seconds += seconds
    clipped = run.stepper.clips(norm)
    for sums in (state.in_epoch, state.in_line):
        sums.add(examples=len(indices), loss=value, grad_norm=norm, clipped=clipped, seconds=seconds)
    epoch = len(state.epochs) + 1
    if state.step % run.config.log_every_steps == 0:
        line = state.in_line
        means = {"loss": line.loss / line.examples, "lr": rate, "grad_norm": line.grad_norm / line.steps}
        _log(run, {"event": "step", "step": state.step, "epoch": epoch, **means, "seconds": state.seconds})
        state.in_line = Sums()
    name = f"epoch {epoch}/{run.config.epochs}"
    seconds /= run.ranks.size  # the others did as much in the same time
    run.draw(epoch=name, loss=value, lr=rate, batch=batch, examples=len(own), seconds=seconds)


def _close_epoch(run: _Run, state: RunState) -> Record:
    started = time.perf_counter()
    run.model.eval()
    epoch, sums = len(state.epochs) + 1, state.in_epoch
    with torch.no_grad(), memory_errors(run.folder, f"in the evaluation after epoch {epoch}", batch=[]):
        raw = None if run.stepper.average is None else run.ranks.from_main(plain(run.evaluate()))
        with _averaged(run.stepper.average):
            dev = run.ranks.from_main(plain(run.evaluate()))
    eval_seconds = time.perf_counter() - started
    collapsed = bool(dev.pop("collapsed", False))
    if run.metric not in dev:
        raise TrainingError(f"evaluate gave no {run.metric!r} to choose the best epoch by, only {', '.join(dev)}")
    record = {
        "epoch": epoch,
        "step": state.step,
        "train_loss": sums.loss / sums.examples,
        "dev": dev,
        **({} if raw is None else {"dev_raw": {k: v for k, v in raw.items() if k != "collapsed"}}),
        "collapsed": collapsed,
        "grad_norm": sums.grad_norm / sums.steps,
        "clipped_fraction": sums.clipped / sums.steps,
        "seconds": sums.seconds,
        "eval_seconds": eval_seconds,
    }
    state.seconds += eval_seconds
    state.epochs.append(record)
    state.position, state.in_epoch = 0, Sums()
    value = -math.inf if math.isnan(dev[run.metric]) else dev[run.metric]
    if state.best_value is None or value > state.best_value:
        state.best_epoch, state.best_value = epoch, value
    _log(run, {"event": "epoch", **record})
    _save(run, state)
    # After the save: a kill in between leaves an older best.safetensors beside a state whose weights are the best ones,
    # from which the next start writes it; the other way round its weights might be of an epoch that was never saved.
    if state.best_epoch == epoch and run.ranks.main:
        with disk_errors(run.folder, f"the best weights, of epoch {epoch},"), _averaged(run.stepper.average):
            resume.save_best(run.folder, run.model, epoch=epoch)
    return record


def _averaged(average: Average | None) -> AbstractContextManager[None]:
    """Let the model hold the average of its weights for a while, where there is one."""
    return nullcontext() if average is None else average.in_place()


def _interrupted(run: _Run, state: RunState) -> Interrupted:
    return interrupted(run.request, f"step {state.step} of {run.total}", run.folder)


def _repair_best(model: nn.Module, folder: Path, state: RunState) -> None:
    if resume.best_saved_epoch(folder) != state.best_epoch:
        resume.save_best(folder, model, epoch=state.best_epoch)


def _save(run: _Run, state: RunState) -> None:
    started = time.perf_counter()
    state.log_bytes = run.log.tell()
    with disk_errors(run.folder, f"the save of step {state.step}"):
        resume.save_run(run.folder, state, **run.where)
    run.clock.saved(started)


def _check_order(folder: Path, state: RunState, order: Sequence[Sequence[int]], steps_per_epoch: int) -> None:
    epoch = len(state.epochs) + 1
    if len(order) != steps_per_epoch:
        raise TrainingError(f"epoch {epoch} has {len(order)} batches, epoch 1 has {steps_per_epoch}; they must agree")
    checksum = resume.order_checksum(order)
    if state.position and checksum != state.order:
        raise TrainingError(
            f"{folder} stopped after {state.position} batches of epoch {epoch}, whose examples now come in another "
            f"order - {resume.WAY_OUT}"
        )
    state.order = checksum


def _with_best(model: nn.Module, folder: Path, result: FitResult, ranks: Ranks) -> FitResult:
    ranks.wait()  # until the first process has written them
    resume.load_best(folder, model, epoch=result.best_epoch)
    model.eval()
    ranks.wait()  # nobody clears the folder away before all have read
    return result


def _log(run: _Run, line: Record) -> None:
    with disk_errors(run.folder, f"line {line['event']} {line[line['event']]} of the log"):
        write_line(run.log, line)
