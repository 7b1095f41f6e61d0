"""The one config of a training run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from thrice.errors import ConfigError
from thrice.training.schedule import check_schedule

BOOKKEEPING = frozenset({"save_every_steps", "save_seconds", "log_every_steps", "gradient_checkpointing"})
"""Fields that decide what is written when, or what is kept in memory, and never move a weight; a resumed run may change
them."""
UNSETTLED = BOOKKEEPING | {"mixed_precision"}
"""Fields that are not among the settings of an identity; the precision stands with the facts of the run, whoever asked
for it."""


@dataclass(frozen=True, kw_only=True)
class AdamWConfig:
    """How AdamW moves the weights, whatever the loop; names as in transformers' TrainingArguments."""

    learning_rate: float = 1e-4
    """Peak learning rate, that of the head where layerwise_decay is below 1; above 0."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices; biases and norms have none."""
    adam_beta1: float = 0.9
    """Decay rate of Adam's running mean of the gradient, in [0, 1)."""
    adam_beta2: float = 0.999
    """Decay rate of Adam's running mean of the squared gradient, in [0, 1)."""
    adam_epsilon: float = 1e-6
    """Added to Adam's denominator; 1e-6 as in the code that trained BERT, ALBERT and ELECTRA (torch's own: 1e-8)."""
    max_grad_norm: float | None = 1.0
    """Longest gradient, as the 2-norm over all parameters; longer ones are scaled down. 0 or None switches it off."""
    layerwise_decay: float = 1.0
    """Factor of the learning rate from a layer to the one below, in (0, 1]; ELECTRA: 0.8 small and base, 0.9 large."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(AdamWConfig):
    """How a model is trained; names as in transformers' TrainingArguments where those have one."""

    epochs: int = 3
    """Passes over the training examples, the model evaluated after each; 0 scores it as it is (`finetune.train`)."""
    max_steps: int | None = None
    """Optimiser steps after which the run ends even inside an epoch; None for no such limit."""
    batch_size: int = 32
    """Examples per optimiser step, 1 or more."""
    schedule: str = "linear"
    """Factor of the learning rate over the steps: linear, cosine, constant or points like 1000:1,2000:0.1."""
    warmup: float = 0.1
    """Fraction below 1 of all steps, or whole number of steps, over which the rate rises from 0; points ignore it."""
    ema_decay: float | None = None
    """Decay of an exponential moving average of the weights, in (0, 1), warmed up; None for no average."""
    seed: int = 0
    """Seeds the generators of torch, numpy and Python at the start, so dropout repeats; 0 or more."""
    mixed_precision: str | None = None
    """bf16: products of the forward pass under torch.autocast, weights and evaluation in float32; None: as the launcher
    says, else float32."""
    gradient_checkpointing: bool = False
    """Whether a call's inner results are computed twice instead of kept: less memory, more time, the same gradients."""
    save_every_steps: int | None = None
    """Optimiser steps between two saves inside an epoch; None for none. Every epoch's end is saved anyway."""
    save_seconds: float | None = 60.0
    """Seconds between two saves inside an epoch, stretched where saving is slow; None for none."""
    log_every_steps: int = 1
    """Optimiser steps per line of the log; a line holds the means over its steps."""

    def __post_init__(self) -> None:
        """Check every value; raises ConfigError that lists all problems at once."""
        problems = list(_problems(self))
        if problems:
            raise ConfigError("training config: " + "; ".join(problems))

    def replace(self, **changes: Any) -> TrainingConfig:
        """Give the same config with some values changed, validated anew."""
        return dataclasses.replace(self, **changes)


def whole(value: object, *, low: int, high: float = math.inf) -> bool:
    """Say whether a value is a whole number of low or more and below high."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value < high


def finite(value: object) -> bool:
    """Say whether a value is a number, neither infinite nor nan."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


Rules = tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...]
"""Names of fields, what their values must satisfy, and the same in words."""

SHARED_RULES: Rules = (
    (("learning_rate", "adam_epsilon"), lambda v: finite(v) and v > 0, "a number above 0"),
    (("weight_decay",), lambda v: finite(v) and v >= 0, "a number of at least 0"),
    (
        ("max_grad_norm", "save_seconds"),
        lambda v: v is None or (finite(v) and v >= 0),
        "a number of at least 0 or None",
    ),
    (("adam_beta1", "adam_beta2"), lambda v: finite(v) and 0 <= v < 1, "a number in [0, 1)"),
    (("layerwise_decay",), lambda v: finite(v) and 0 < v <= 1, "a number in (0, 1]"),
    (("log_every_steps",), lambda v: whole(v, low=1), "a whole number of at least 1"),
    (("save_every_steps",), lambda v: v is None or whole(v, low=1), "a whole number of at least 1 or None"),
    (("mixed_precision",), lambda v: v in (None, "bf16"), "bf16 or None"),
    # numpy's generator takes 32 bits.
    (("seed",), lambda v: whole(v, low=0, high=2**32), "a whole number in [0, 2**32)"),
)
"""Of what both loops are asked for."""

_RULES: Rules = (
    *SHARED_RULES,
    (("epochs",), lambda v: whole(v, low=0), "a whole number of at least 0"),
    (("batch_size",), lambda v: whole(v, low=1), "a whole number of at least 1"),
    (("max_steps",), lambda v: v is None or whole(v, low=1), "a whole number of at least 1 or None"),
    (("warmup",), lambda v: finite(v) and v >= 0 and (v < 1 or v % 1 == 0), "a fraction in [0, 1) or a whole number"),
    (("ema_decay",), lambda v: v is None or (finite(v) and 0 < v < 1), "a number between 0 and 1 or None"),
    (("gradient_checkpointing",), lambda v: isinstance(v, bool), "True or False"),
)


def broken(config: object, rules: Rules) -> Iterator[str]:
    """Say of each value that breaks its rule what it is and what it must be."""
    for names, holds, rule in rules:
        for name in names:
            value = getattr(config, name)
            if not holds(value):
                yield f"{name} is {value!r}, it must be {rule}"


def _problems(config: TrainingConfig) -> Iterator[str]:
    yield from broken(config, _RULES)
    try:
        check_schedule(config.schedule)
    except ConfigError as error:
        yield str(error)
