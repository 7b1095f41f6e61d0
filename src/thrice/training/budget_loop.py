"""The loop of a run on a budget: stages of an endless stream of batches, on Accelerate, every save resumable.

A run lives in its folder:

    folder/pretrain.jsonl       the log: a line per log_every_steps steps, per evaluation and per stage
    folder/resume/              where it stands (see resume.py), after the end too: it holds the last weights
    folder/fit.json             the result of the finished run
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, send_to_device
from rich.progress import Progress
from torch import Tensor, nn

from thrice.errors import Interrupted, TrainingError
from thrice.files import write_json
from thrice.training import resume
from thrice.training.budget import BudgetConfig, BudgetResult, BudgetState, Line, Stage
from thrice.training.distributed import Ranks, join_accelerator, own_seed
from thrice.training.faults import disk_errors, memory_errors
from thrice.training.feed import Feed
from thrice.training.interrupt import Request, interruptible
from thrice.training.log import open_log, write_line
from thrice.training.optim import build_optimizer, carried, set_learning_rates
from thrice.training.progress import Draw, drawing_budget
from thrice.training.step import SaveClock, Stepper, asked_to_stop, check_accelerator, interrupted, plain, precision_of
from thrice.training.terms import ModelTerms, backward_in_parts, loss_of, together, value_of

LOG = "pretrain.jsonl"

MEMORY_ADVICE = (
    "run.gradient_checkpointing = true, fewer tokens at once (batch.micro_tokens) or a shorter max_length of the stages"
)
"""What helps where memory does not suffice; keys of a recipe."""

Record = dict[str, Any]


def fit_budget(
    model: nn.Module,
    config: BudgetConfig,
    *,
    stages: Sequence[Stage],
    folder: Path,
    evaluate: Callable[[int], Mapping[str, Any]] | None = None,
    identity: Mapping[str, Any] | None = None,
    restart: bool = False,
    accelerator: Accelerator | None = None,
    progress: Progress | bool | None = None,
    on_stage: Callable[[int], None] | None = None,
    on_evaluation: Callable[[list[Record]], None] | None = None,
    on_save: Callable[[int], None] | None = None,
) -> BudgetResult:
    """Train the model stage by stage until the budget is spent, leave it in eval mode and give the result.

    model: offers `terms(batch)`, name -> an object with `total` (a tensor, the sum over this process's part), `count`
    (what the mean divides by) and `weight` (in the loss; 0 is only logged); the names are those of the stage, whatever
    is in the batch. And `flops(batch)`, what a training step on the batch costs. The loss is the sum of weight * total
    / count over the terms, totals and counts added up over the processes first.
    evaluate: number of a stage -> JSON-like values; called without gradients, model in eval mode; in all processes,
    and what it gives in the first one counts. It must not draw from the global generators.
    identity: whatever else must be the same for the run to be resumed. restart: discard the run in the folder.
    on_stage: called with the number of a stage that begins or goes on. on_evaluation: called with all records so far
    once one more of them is saved. on_save: called at the start and after every save with the length of the log in
    bytes up to which no later start will write it again. It must not draw from the global generators either, and its
    time is not counted. All three are called in the first process alone.

    Called again with the same folder, it goes on from the last save and, on one machine with one thread count, ends bit
    for bit like a run that was never stopped, changes of the model between stages included. The model is given as
    before the first stage. Seeds the global generators. Errors and signals: as `fit`.
    """
    folder = Path(folder)
    accelerator = accelerator or join_accelerator()
    check_accelerator(accelerator)
    ranks = Ranks.connected()
    if restart and ranks.main:
        resume.forget_run(folder)
    ranks.wait()  # nobody looks before the folder is as it shall be
    facts = {**(identity or {}), "stages": [[s.name, s.end] for s in stages]}
    facts |= ranks.identity | precision_of(accelerator, config.mixed_precision)
    who = resume.identity_of(model, config.settings(), facts)
    before = resume.read_state(folder, BudgetState, identity=who)
    ranks.wait()  # nobody changes it before all have looked
    if before is not None and before.stage >= len(stages):
        raise TrainingError(f"{folder} stopped in stage {before.stage + 1} of {len(stages)} - {resume.WAY_OUT}")
    resume.seed_everything(own_seed(config.seed, ranks.rank))
    for stage in stages[: 1 if before is None else before.stage + 1]:
        stage.enter()

    folder.mkdir(parents=True, exist_ok=True)
    run = _Run(model=model, config=config, stages=stages, folder=folder, accelerator=accelerator, ranks=ranks, who=who)
    run.evaluate = evaluate
    run.prepare(stages[0 if before is None else before.stage])
    state = resume.load_run(folder, kind=BudgetState, **run.where()) or BudgetState()
    with (
        interruptible() as request,
        open_log(folder / LOG, state.log_bytes) if ranks.main else FileIO(os.devnull, "ab") as log,
        drawing_budget(progress if ranks.main else False, unit=config.unit, total=config.amount) as draw,
    ):
        run.log, run.draw, run.request = log, draw, request
        if ranks.main:
            run.on_save = on_save
        run.tell_saved(state)
        done = state.share(config)
        draw(done=done * config.amount)
        while done < 1:
            if on_stage is not None and ranks.main:
                on_stage(state.stage)
            for _ in _train_stage(run, state):
                if on_evaluation is not None and ranks.main:
                    on_evaluation(list(state.evaluations))
            done = state.share(config)
    model.eval()
    result = BudgetResult(
        steps=state.step,
        examples=state.examples,
        tokens=state.tokens,
        flops=state.flops,
        seconds=state.seconds,
        wait_seconds=state.wait_seconds,
        stages=state.stages,
        evaluations=state.evaluations,
    )
    if ranks.main:
        with disk_errors(folder, "the result"):
            content = {"format": resume.FORMAT, "identity": who, "result": vars(result)}
            write_json(folder / "fit.json", content)
    ranks.wait()
    return result


@dataclass(kw_only=True)
class _Run:
    """What stays the same while a run lasts, and what a stage that changes the model makes anew."""

    model: Any
    config: BudgetConfig
    stages: Sequence[Stage]
    folder: Path
    accelerator: Accelerator
    ranks: Ranks
    who: Mapping[str, Any]
    evaluate: Callable[[int], Mapping[str, Any]] | None = None
    on_save: Callable[[int], None] | None = None
    rate: float = 0.0
    log: FileIO = None  # type: ignore[assignment]
    draw: Draw = None  # type: ignore[assignment]
    request: Request = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.clock = SaveClock(
            every_steps=self.config.save_every_steps, seconds=self.config.save_seconds, ranks=self.ranks
        )

    def prepare(self, stage: Stage, kept: Mapping[str, Mapping[str, Tensor]] | None = None) -> None:
        """Make optimiser and forward call for the model as it is; kept: parameter -> optimiser state to begin with."""
        self.accelerator.free_memory()
        ways = self.accelerator.ddp_handler or DistributedDataParallelKwargs()
        ways.find_unused_parameters = stage.leaves_unused
        self.accelerator.ddp_handler = ways
        self.terms_of, prepared = self.accelerator.prepare(
            ModelTerms(self.model, mixed_precision=self.config.mixed_precision),
            build_optimizer(self.model, self.config),
        )
        # Accelerate's wrapper looks for an optional package at every step (0.2 ms); what else it does is refused.
        optimizer = prepared.optimizer
        optimizer.zero_grad()  # the caller may have left gradients
        for name, parameter in resume.trained_by(optimizer).items():
            if kept and kept.get(name):
                state = {key: resume.fresh(value, like=parameter) for key, value in kept[name].items()}
                optimizer.state[parameter] = state
        self.stepper = Stepper(
            model=self.model,
            optimizer=optimizer,
            accelerator=self.accelerator,
            max_grad_norm=self.config.max_grad_norm,
            folder=self.folder,
        )

    def tell_saved(self, state: BudgetState) -> None:
        """Say how much of the log is saved, where somebody listens."""
        if self.on_save is not None:
            self.on_save(state.log_bytes)

    def where(self) -> dict[str, Any]:
        """Give what a save holds beside the state."""
        return {
            "model": self.model,
            "optimizer": self.stepper.optimizer,
            "identity": self.who,
            "device": self.accelerator.device,
            "ranks": self.ranks,
        }


def _train_stage(run: _Run, state: BudgetState) -> Iterator[Record]:
    """Train to the end of the running stage, then enter the next one; yields each evaluation once it is saved."""
    stage, config = run.stages[state.stage], run.config
    last = state.stage + 1 == len(run.stages)
    run.model.train()
    with Feed(stage, state.position, run.ranks, micro_tokens=config.micro_tokens) as feed:
        over = False
        while not over:
            share_before = state.share(config)
            _train_step(run, state, feed)
            share = state.share(config)
            over = share >= (1 if last else stage.end)
            record = None
            if run.evaluate is not None and config.evaluations:
                crossed = int(share * config.evaluations) > int(share_before * config.evaluations)
                if over or crossed:
                    record = _evaluate(run, state)
                    run.model.train()
            if over:
                _close_stage(run, state, last=last)
            asked = asked_to_stop(run.request, run.ranks)
            if asked or over or record is not None or run.clock.due(state.step):
                _save(run, state)
            if record is not None:
                yield record
            if asked:
                raise _interrupted(run, state)


def _train_step(run: _Run, state: BudgetState, feed: Feed) -> None:
    started = time.perf_counter()
    config, ranks = run.config, run.ranks
    step, share = state.step + 1, state.share(config)
    factor = config.factor(step, share)
    run.rate = rate = config.learning_rate * factor
    set_learning_rates(run.stepper.optimizer, factor)
    at_hand: list[Any] = []
    fed = feed.take()
    where = f"step {step}, stage {state.stage + 1} ({run.stages[state.stage].name})"
    with memory_errors(run.folder, f"at {where}", batch=at_hand, examples=fed.own, advice=MEMORY_ADVICE):
        at_hand += fed.batches
        flops, shares = float(sum(run.model.flops(batch) for batch in fed.batches)), fed.own > 0
        if config.micro_tokens is None:
            (batch,) = fed.batches
            terms = run.terms_of(send_to_device(batch, run.accelerator.device))
            sums, flops = together(ranks, terms, flops, shares=shares)
            value = value_of(terms, sums)
            loss = loss_of(terms, {name: count for name, (_, count) in sums.items()}, ranks, shares=shares)
            norm = run.stepper.take(loss, value, step=step, where=where, rate=rate)
        else:
            terms = backward_in_parts(
                run.terms_of, run.model, fed.batches, accelerator=run.accelerator, ranks=ranks, shares=shares
            )
            sums, flops = together(ranks, terms, flops, shares=shares)
            value = value_of(terms, sums)
            norm = run.stepper.move(value, step=step, where=where, rate=rate)
    state.step, state.position = step, fed.position
    state.examples += fed.examples
    state.tokens += fed.tokens
    state.flops += flops
    seconds = time.perf_counter() - started
    state.seconds += seconds
    state.wait_seconds += feed.wait

    line = state.in_line
    line.steps += 1
    line.examples += fed.examples
    line.tokens += fed.tokens
    line.loss += value
    line.grad_norm += norm
    line.clipped += run.stepper.clips(norm)
    line.seconds += seconds
    line.wait_seconds += feed.wait
    for name, (total, count) in sums.items():
        held = line.terms.setdefault(name, [0.0, 0.0])
        held[0] += total
        held[1] += count
    if step % config.log_every_steps == 0:
        _close_line(run, state)
    run.draw(
        stage=f"stage {state.stage + 1}/{len(run.stages)} {run.stages[state.stage].name}",
        done=state.share(config) * config.amount,
        terms={name: total / count for name, (total, count) in sums.items() if count},
        lr=rate,
        tokens=fed.tokens,
        spent=(state.tokens, state.flops),
        seconds=seconds,
    )


def _close_line(run: _Run, state: BudgetState) -> None:
    line = state.in_line
    _log(
        run,
        {
            "event": "step",
            "step": state.step,
            "stage": state.stage + 1,
            "share": state.share(run.config),
            "tokens": state.tokens,
            "flops": state.flops,
            "loss": line.loss / line.steps,
            **line.means(),
            "lr": run.rate,
            "grad_norm": line.grad_norm / line.steps,
            "clipped_fraction": line.clipped / line.steps,
            "tokens_per_second": line.tokens / line.seconds,
            "wait_seconds": line.wait_seconds,
            "seconds": state.seconds,
        },
    )
    state.in_line = Line()


def _evaluate(run: _Run, state: BudgetState) -> Record:
    assert run.evaluate is not None
    started = time.perf_counter()
    run.model.eval()
    doing = f"in the evaluation after step {state.step}"
    with torch.no_grad(), memory_errors(run.folder, doing, batch=[], advice=MEMORY_ADVICE):
        found = run.ranks.from_main(plain(run.evaluate(state.stage)))
    eval_seconds = time.perf_counter() - started
    state.seconds += eval_seconds
    record = {
        "evaluation": len(state.evaluations) + 1,
        "step": state.step,
        "stage": state.stage + 1,
        "share": state.share(run.config),
        "tokens": state.tokens,
        "flops": state.flops,
        **found,
        "seconds": state.seconds,
        "eval_seconds": eval_seconds,
    }
    state.evaluations.append(record)
    _log(run, {"event": "evaluation", **record})
    return record


def _close_stage(run: _Run, state: BudgetState, *, last: bool) -> None:
    """Note what the stage took; let the next one change the model, if there is one."""
    if state.in_line.steps:
        _close_line(run, state)
    record = {
        "stage": state.stage + 1,
        "name": run.stages[state.stage].name,
        "step": state.step,
        "examples": state.examples,
        "tokens": state.tokens,
        "flops": state.flops,
        "seconds": state.seconds,
        "position": state.position,
    }
    state.stages.append(record)
    _log(run, {"event": "stage", **record})
    if last or state.share(run.config) >= 1:  # nothing is left to train the model that it would change
        return
    old, stage = run.stages[state.stage : state.stage + 2]
    state.stage, state.position = state.stage + 1, None
    held = {
        name: run.stepper.optimizer.state.get(p, {}) for name, p in resume.trained_by(run.stepper.optimizer).items()
    }
    sources = stage.enter()
    if sources is not None or (run.ranks.size > 1 and stage.leaves_unused != old.leaves_unused):
        run.prepare(stage, carried(held, sources or {}))


def _save(run: _Run, state: BudgetState) -> None:
    started = time.perf_counter()
    state.log_bytes = run.log.tell()
    with disk_errors(run.folder, f"the save of step {state.step}"):
        resume.save_run(run.folder, state, **run.where())
    run.clock.saved(started)
    run.tell_saved(state)


def _interrupted(run: _Run, state: BudgetState) -> Interrupted:
    share = f"{min(state.share(run.config), 1):.1%} of the budget"
    return interrupted(run.request, f"step {state.step} ({share})", run.folder)


def _log(run: _Run, line: Record) -> None:
    with disk_errors(run.folder, f"line {line['event']} {line[line['event']]} of the log"):
        write_line(run.log, line)
