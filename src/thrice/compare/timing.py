"""Times of prediction and of training steps, measured in turns: only what ran under the same conditions compares."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from thrice.data.batching import prediction_batches
from thrice.finetune import batches_of
from thrice.tasks.base import TaskData, TaskModel
from thrice.training import TrainingConfig
from thrice.training.optim import build_optimizer, switch_checkpointing
from thrice.training.step import precision

SHORT, LONG = 16, 128
"""Tokens of the short and of the long text."""
CALLS = 5
"""Predictions of one text that count in one turn."""
BULK_TOKENS = 8192
"""Tokens predicted in bulk in one turn, in batches of up to 4096."""

Numbers = dict[str, Any]


def in_turn(
    calls: Mapping[str, Callable[[int], list[float]]], *, least: int, most: int, seconds: float
) -> dict[str, list[float]]:
    """Give what each call measured, called in turn: A B C A B C ...

    A call is given the number of its turn; turn 0 warms up and does not count. least, most: turns that count; after
    `least` of them no turn begins once so many seconds have passed.
    """
    values: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    for turn in range(most + 1):
        if turn > least and time.perf_counter() - started > seconds:
            break
        for name, call in calls.items():
            measured = call(turn)
            if turn:
                values[name] += measured
    return values


def prediction_times(
    models: Mapping[str, TaskModel], data: Mapping[str, TaskData], *, long: int = LONG, seconds: float = 10.0
) -> dict[str, Numbers]:
    """Give name -> latency_short_ms and latency_long_ms {p50, p95, tokens}, prediction_tokens_per_second.

    A latency is the time of one text alone, from its token ids to the answer. The texts are those examples whose
    number of tokens under the first model lies next to 16 and to `long`; all models answer the same ones, and `tokens`
    says how many they were for each. In bulk, the first examples are answered in batches of up to 4096 tokens.
    seconds: about how long each of the three may take.
    """
    for model in models.values():
        model.eval()
    first = next(iter(data.values())).lengths
    found: dict[str, Numbers] = {name: {} for name in models}
    for key, tokens in (("latency_short_ms", SHORT), ("latency_long_ms", long)):
        index = [int(np.abs(first - tokens).argmin())]
        calls = {name: _latency(model, data[name], index) for name, model in models.items()}
        for name, values in in_turn(calls, least=4, most=20, seconds=seconds).items():
            p50, p95 = np.percentile(values, [50, 95])
            found[name][key] = {"p50": float(p50), "p95": float(p95), "tokens": int(data[name].lengths[index[0]])}
    count = max(1, int(np.searchsorted(np.cumsum(first), BULK_TOKENS)))
    bulk = {name: _bulk(model, data[name], count) for name, model in models.items()}
    for name, values in in_turn(bulk, least=3, most=6, seconds=seconds).items():
        tokens = int(data[name].lengths[:count].sum())
        found[name]["prediction_tokens_per_second"] = tokens / statistics.median(values)
    return found


def step_times(
    models: Mapping[str, TaskModel],
    data: Mapping[str, TaskData],
    training: Mapping[str, TrainingConfig],
    *,
    rounds: int = 8,
    seconds: float = 30.0,
) -> dict[str, Numbers]:
    """Give name -> step_ms {median, values}, seconds_per_epoch and training_tokens_per_second.

    A step is forward, backward and fused AdamW on a batch of the training order; batches of one turn are the same
    examples for all models that train with one batch size. The models' weights move. Time per epoch is the median time
    per token times the tokens of all examples.
    """
    per_token: dict[str, list[float]] = {name: [] for name in models}

    def stepper(name: str, model: TaskModel) -> Callable[[int], list[float]]:
        config, own = training[name], data[name]
        switch_checkpointing(model, config)
        optimizer = build_optimizer(model, config)
        batches = batches_of(own, config)(1)
        full = [batch for batch in batches if len(batch) == len(batches[0])]

        def call(turn: int) -> list[float]:
            indices = full[turn % len(full)]
            taken = train_step(model, optimizer, own.batch(indices), config)
            if turn:
                per_token[name].append(taken / float(own.lengths[indices].sum()))
            return [1000 * taken]

        return call

    times = in_turn({n: stepper(n, m) for n, m in models.items()}, least=3, most=rounds, seconds=seconds)
    return {
        name: {
            "step_ms": {"median": statistics.median(times[name]), "values": times[name]},
            "seconds_per_epoch": statistics.median(per_token[name]) * float(data[name].lengths.sum()),
            "training_tokens_per_second": 1 / statistics.median(per_token[name]),
        }
        for name in models
    }


def train_step(model: TaskModel, optimizer: torch.optim.Optimizer, batch: Any, training: TrainingConfig) -> float:
    """Give the seconds of one training step: forward, backward, optimiser; in the precision of the config."""
    model.train()
    started = time.perf_counter()
    with precision(model, training.mixed_precision):
        loss = model.loss(batch.to(model.device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    wait_for(model.device)
    return time.perf_counter() - started


def wait_for(device: torch.device) -> None:
    """Return when the device has done what it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _latency(model: TaskModel, data: TaskData, index: list[int]) -> Callable[[int], list[float]]:
    def call(turn: int) -> list[float]:
        # The first of them finds the caches filled by another model.
        return [1000 * _answer(model, data, [index]) for _ in range(CALLS + 1)][1:]

    return call


def _bulk(model: TaskModel, data: TaskData, count: int) -> Callable[[int], list[float]]:
    batches = prediction_batches(data.lengths[:count], max_tokens=4096)
    return lambda turn: [_answer(model, data, batches)]


@torch.no_grad()
def _answer(model: TaskModel, data: TaskData, batches: Any) -> float:
    """Give the seconds in which the model answers these batches of examples."""
    started = time.perf_counter()
    for indices in batches:
        model.task.predict(model, data.batch(indices).to(model.device))
    wait_for(model.device)
    return time.perf_counter() - started
