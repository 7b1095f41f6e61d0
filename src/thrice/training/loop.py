"""The training loop: epochs of optimiser steps on Accelerate, the best epoch kept, every save resumable.

A run lives in its folder:

    folder/train.jsonl          the log: a line per log_every_steps steps and one per epoch, no step twice or left out
    folder/resume/              where it stands (see resume.py); gone once the run is finished
    folder/best.safetensors     parameters and buffers after the best epoch
    folder/fit.json             the result of the finished run
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from rich.progress import Progress
from torch import Tensor, nn

from thrice.errors import TrainingError
from thrice.files import read_json, write_json
from thrice.training import resume
from thrice.training.config import TrainingConfig
from thrice.training.optim import build_optimizer, set_learning_rates
from thrice.training.progress import Draw, drawing
from thrice.training.resume import RunState, Sums
from thrice.training.schedule import Schedule, parse_schedule

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """What came out of a run; the model itself holds the weights of the best epoch."""

    epochs: list[Record]
    """Per epoch: epoch (from 1), step, train_loss, dev (what evaluate gave), collapsed, grad_norm, clipped_fraction,
    seconds (training) and eval_seconds."""
    best_epoch: int
    """Epoch with the highest metric, counted from 1; the earlier one of equals."""
    best_value: float
    """The metric after that epoch."""
    collapsed: bool
    """Whether the best epoch sits on the majority class."""
    steps: int
    """Optimiser steps done."""
    seconds: float
    """Training and evaluation, summed over all starts."""


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
    identity: Mapping[str, Any] | None = None,
    restart: bool = False,
    accelerator: Accelerator | None = None,
    progress: Progress | bool | None = None,
    on_epoch: Callable[[Record], None] | None = None,
) -> FitResult:
    """Train the model, leave the weights of the best epoch in it (eval mode) and give the result.

    model: offers `loss(batch)`, the mean over the batch's examples, and for layer-wise decay `layer_depths()`.
    batches: epoch, counted from 1 -> the index lists of its steps; the same lists whenever it is asked.
    make_batch: index list -> batch; on a GPU the batch needs `to(device)` or is a dict, list or tuple of such.
    evaluate: called after every epoch without gradients, model in eval mode; gives JSON-like values, among them the
    metric (higher is better, nan is worst) and perhaps `collapsed`, a bool.
    identity: whatever else must be the same for the run to be resumed, such as the fingerprint of the data.
    restart: discard the run that the folder holds. accelerator: by default this machine's GPU, else its CPU.
    progress: a bar to draw on, or whether to draw one; by default where standard error is a terminal.
    on_epoch: called with each epoch's record once it is saved; it must not draw from the global generators.

    Called again with the same folder, it goes on from the last save and, on one machine with one thread count, ends
    bit for bit like a run that was never stopped; a finished run gives its result at once. Seeds the global generators.
    Raises TrainingError where the folder holds another run, a loss or gradient is not finite (the last save stays),
    evaluate leaves the metric out, or the epochs differ in their number of steps.
    """
    folder = Path(folder)
    accelerator = accelerator or Accelerator()
    _check_accelerator(accelerator)
    if restart:
        resume.forget_run(folder)
    who = resume.run_identity(model, config, num_examples=num_examples, metric=metric, facts=identity)
    finished = _finished_result(folder, who)
    if finished is not None:
        resume.discard_saves(folder)
        model.to(accelerator.device)
        return _with_best(model, folder, finished)

    steps_per_epoch = len(batches(1))
    total = config.epochs * steps_per_epoch
    total = total if config.max_steps is None else min(total, config.max_steps)
    if not total:
        raise TrainingError(f"epoch 1 has no batches ({num_examples} examples); nothing to train on")
    schedule = parse_schedule(config.schedule, total_steps=total, warmup=config.warmup)
    resume.seed_everything(config.seed)
    loss_of, prepared = accelerator.prepare(_Loss(model), build_optimizer(model, config))
    # Accelerate's wrapper looks for an optional package at every step (0.2 ms); what else it does is refused above.
    optimizer = prepared.optimizer
    optimizer.zero_grad()  # the caller may have left gradients
    where = {"model": model, "optimizer": optimizer, "identity": who, "device": accelerator.device}
    state = resume.load_run(folder, **where) or RunState()
    if state.position == 0 and 0 < state.best_epoch == len(state.epochs):
        _repair_best(model, folder, state)

    folder.mkdir(parents=True, exist_ok=True)
    with (
        _open_log(folder / "train.jsonl", state.log_bytes) as log,
        drawing(progress, total=total, done=state.step) as draw,
    ):
        run = _Run(
            model=model,
            config=config,
            metric=metric,
            folder=folder,
            accelerator=accelerator,
            loss_of=loss_of,
            optimizer=optimizer,
            schedule=schedule,
            total=total,
            make_batch=make_batch,
            evaluate=evaluate,
            where=where,
            log=log,
            draw=draw,
        )
        while state.step < total:
            order = batches(len(state.epochs) + 1)
            _check_order(folder, state, order, steps_per_epoch)
            _train_epoch(run, state, order)
            record = _close_epoch(run, state)
            if on_epoch is not None:
                on_epoch(record)

    best = state.epochs[state.best_epoch - 1]
    result = FitResult(
        epochs=state.epochs,
        best_epoch=state.best_epoch,
        best_value=best["dev"][metric],
        collapsed=best["collapsed"],
        steps=state.step,
        seconds=state.seconds,
    )
    _with_best(model, folder, result)
    write_json(folder / "fit.json", {"format": resume.FORMAT, "identity": who, "result": dataclasses.asdict(result)})
    resume.discard_saves(folder)
    return result


class _Loss(nn.Module):
    """The model's loss as a forward call: what Accelerate does to a model, it does to `forward`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, batch: Any) -> Tensor:
        loss: Tensor = self.model.loss(batch)
        return loss


@dataclass(kw_only=True)
class _Run:
    """What stays the same while a run lasts, and when it was last saved."""

    model: nn.Module
    config: TrainingConfig
    metric: str
    folder: Path
    accelerator: Accelerator
    loss_of: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    total: int
    make_batch: Callable[[Sequence[int]], Any]
    evaluate: Callable[[], Mapping[str, Any]]
    where: dict[str, Any]
    log: BinaryIO
    draw: Draw
    saved_at: float = field(default_factory=time.perf_counter)
    save_cost: float = 0.0


def _train_epoch(run: _Run, state: RunState, order: Sequence[Sequence[int]]) -> None:
    run.model.train()
    for indices in order[state.position :]:
        _train_step(run, state, indices)
        state.position += 1
        if state.step == run.total:
            break
        if state.position < len(order) and _save_is_due(run, state):
            _save(run, state)


def _train_step(run: _Run, state: RunState, indices: Sequence[int]) -> None:
    started = time.perf_counter()
    factor = run.schedule(state.step + 1)
    set_learning_rates(run.optimizer, factor)
    batch = send_to_device(run.make_batch(indices), run.accelerator.device)
    loss = run.loss_of(batch)
    value = loss.item()
    if not math.isfinite(value):
        raise TrainingError(_not_finite(run, state, "loss", value))
    run.accelerator.backward(loss)
    norm = _clip(run)
    if not math.isfinite(norm):
        raise TrainingError(_not_finite(run, state, "gradient norm", norm))
    run.optimizer.step()
    run.optimizer.zero_grad()
    seconds = time.perf_counter() - started

    state.step += 1
    state.seconds += seconds
    clipped = norm > (run.config.max_grad_norm or math.inf)
    for sums in (state.in_epoch, state.in_line):
        sums.add(examples=len(indices), loss=value, grad_norm=norm, clipped=clipped, seconds=seconds)
    epoch, rate = len(state.epochs) + 1, run.config.learning_rate * factor
    if state.step % run.config.log_every_steps == 0:
        line = state.in_line
        means = {"loss": line.loss / line.examples, "lr": rate, "grad_norm": line.grad_norm / line.steps}
        _write_line(run.log, {"event": "step", "step": state.step, "epoch": epoch, **means, "seconds": state.seconds})
        state.in_line = Sums()
    name = f"epoch {epoch}/{run.config.epochs}"
    run.draw(epoch=name, loss=value, lr=rate, batch=batch, examples=len(indices), seconds=seconds)


def _clip(run: _Run) -> float:
    """Scale the gradient down where it is too long; gives its 2-norm before that."""
    parameters = [p for group in run.optimizer.param_groups for p in group["params"]]
    if run.config.max_grad_norm:
        return float(run.accelerator.clip_grad_norm_(parameters, run.config.max_grad_norm))
    return float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))


def _close_epoch(run: _Run, state: RunState) -> Record:
    started = time.perf_counter()
    run.model.eval()
    with torch.no_grad():
        dev = _plain(run.evaluate())
    eval_seconds = time.perf_counter() - started
    epoch, sums = len(state.epochs) + 1, state.in_epoch
    collapsed = bool(dev.pop("collapsed", False))
    if run.metric not in dev:
        raise TrainingError(f"evaluate gave no {run.metric!r} to choose the best epoch by, only {', '.join(dev)}")
    record = {
        "epoch": epoch,
        "step": state.step,
        "train_loss": sums.loss / sums.examples,
        "dev": dev,
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
    _write_line(run.log, {"event": "epoch", **record})
    _save(run, state)
    # After the save: a kill in between leaves an older best.safetensors beside a state whose weights are the best ones,
    # from which the next start writes it; the other way round its weights might be of an epoch that was never saved.
    if state.best_epoch == epoch:
        resume.save_best(run.folder, run.model, epoch=epoch)
    return record


def _repair_best(model: nn.Module, folder: Path, state: RunState) -> None:
    if resume.best_saved_epoch(folder) != state.best_epoch:
        resume.save_best(folder, model, epoch=state.best_epoch)


def _save_is_due(run: _Run, state: RunState) -> bool:
    every, seconds = run.config.save_every_steps, run.config.save_seconds
    if every is not None and state.step % every == 0:
        return True
    # At most a twentieth of the time goes into saving, however large the model.
    waited = time.perf_counter() - run.saved_at
    return seconds is not None and waited >= max(seconds, 20 * run.save_cost)


def _save(run: _Run, state: RunState) -> None:
    started = time.perf_counter()
    state.log_bytes = run.log.tell()
    resume.save_run(run.folder, state, **run.where)
    run.saved_at = time.perf_counter()
    run.save_cost = run.saved_at - started


def _check_accelerator(accelerator: Accelerator) -> None:
    problems = []
    if accelerator.num_processes > 1:
        problems.append(f"{accelerator.num_processes} processes: a run is trained by one")
    if accelerator.scaler is not None:
        problems.append("float16 with loss scaling: its state is not kept for resuming, use bf16")
    if accelerator.gradient_accumulation_steps > 1:
        problems.append("gradient accumulation: a batch is one optimiser step")
    if problems:
        raise TrainingError("this accelerator cannot be used here: " + "; ".join(problems))


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


def _finished_result(folder: Path, identity: Mapping[str, Any]) -> FitResult | None:
    path = folder / "fit.json"
    if not path.exists():
        return None
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path} cannot be read: {error} - {resume.WAY_OUT}") from error
    resume.check_saved(path, content, {"identity": resume.IDENTITY, "result": FitResult})
    resume.check_identity(folder, content["identity"], identity)
    return FitResult(**content["result"])


def _with_best(model: nn.Module, folder: Path, result: FitResult) -> FitResult:
    resume.load_best(folder, model, epoch=result.best_epoch)
    model.eval()
    return result


def _not_finite(run: _Run, state: RunState, what: str, value: float) -> str:
    step, epoch, rate = state.step + 1, len(state.epochs) + 1, run.config.learning_rate * run.schedule(state.step + 1)
    broken = [name for name, p in run.model.named_parameters() if not torch.isfinite(p).all()]
    weights = f"{broken[0]} and {len(broken) - 1} more are not finite" if broken else "all weights are finite"
    room = run.folder / "resume"
    saved = f"the last save is kept in {room}" if (room / "state.json").exists() else "nothing was saved before"
    return (
        f"the {what} is {value} at step {step}, epoch {epoch} (learning rate {rate:.3g}; {weights}): likely a rate too "
        "high (try a third of it or a longer warm-up), clipping switched off, or a batch with broken values; " + saved
    )


def _open_log(path: Path, length: int) -> BinaryIO:
    log = open(path, "ab")  # noqa: SIM115 - closed by the caller
    log.truncate(min(length, log.tell()))
    log.seek(0, 2)
    return log


def _write_line(log: BinaryIO, line: Mapping[str, Any]) -> None:
    log.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
    log.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value
