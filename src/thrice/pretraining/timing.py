"""How many tokens a machine trains on in a second: a few steps of every stage on a copy of the model."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

from thrice.data.segments import SegmentStream
from thrice.objectives.model import PretrainingModel
from thrice.pretraining.recipe import Recipe
from thrice.pretraining.resharing import reshare
from thrice.training.feed import in_parts
from thrice.training.optim import build_optimizer
from thrice.training.step import precision

WARM_UP, TIMED = 3, 10
"""Steps before the clock starts, and under it."""


def tokens_per_second(
    model: PretrainingModel, recipe: Recipe, streams: Sequence[Callable[[], SegmentStream]], device: Any
) -> list[float]:
    """Give the speed of each stage in tokens per second on one process, evaluation and saving not counted.

    The model is left as it is; the global generators are drawn from.
    """
    trial = copy.deepcopy(model).to(device).train()
    config = recipe.training(unit="tokens", amount=1)
    speeds = []
    for stage, stream in zip(recipe.stages, streams, strict=True):
        reshare(trial, stage.sharing)
        optimizer = build_optimizer(trial, config)
        batches = stream().batches()
        tokens, started = 0, time.perf_counter()
        for step in range(WARM_UP + TIMED):
            if step == WARM_UP:
                tokens, started = 0, time.perf_counter()
            examples, _ = next(batches)
            lengths = [len(example.input_ids) for example in examples]
            for part in in_parts(examples, lengths, config.micro_tokens):
                batch = trial.make_batch(part, seed=recipe.seed, objectives=stage.objectives).to(device)
                with precision(trial, config.mixed_precision):
                    loss = trial.loss(batch)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()  # waits for the device
            tokens += sum(lengths)
        speeds.append(tokens / (time.perf_counter() - started))
    return speeds
