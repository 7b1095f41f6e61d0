"""What a run on a budget is asked for and where it stands: an endless stream of batches until so much is spent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thrice.errors import ConfigError, nearest
from thrice.training.config import SHARED_RULES, UNSETTLED, AdamWConfig, Rules, broken, finite, whole

UNITS = ("tokens", "steps", "flops")
"""In what a budget can be counted."""

DECAYS: dict[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "cosine": lambda share: 0.5 * (1 + math.cos(math.pi * share)),
    "linear": lambda share: 1 - share,
}
"""Name of a schedule -> factor of the learning rate at a share of the budget, before warm-up."""


@dataclass(frozen=True, kw_only=True)
class BudgetOptimizer(AdamWConfig):
    """AdamW and its learning rate over a budget."""

    warmup_steps: int = 0
    """Optimiser steps over which the rate rises from 0."""
    schedule: str = "linear"
    """What the rate does over the share of the budget that is spent: linear, cosine or constant."""


@dataclass(frozen=True, kw_only=True)
class BudgetConfig(BudgetOptimizer):
    """How a model is trained until a budget is spent."""

    unit: str
    """What the budget counts: tokens (real ones of the training batches), steps, or flops (of training)."""
    amount: float
    """How many of them, above 0; the step that reaches it is the last."""
    seed: int = 0
    """Seeds the generators of torch, numpy and Python at the start, so dropout repeats."""
    mixed_precision: str | None = None
    """bf16: products of the forward pass under torch.autocast, weights and evaluation in float32; None: as the launcher
    says, else float32."""
    micro_tokens: int | None = None
    """Tokens that a process computes at once: a batch of more is computed in parts, whose gradients are added up before
    the step. None: the whole batch."""
    evaluations: int = 20
    """Evaluations over the budget, evenly; each stage ends with one besides. 0 for none at all."""
    save_every_steps: int | None = None
    """Optimiser steps between two saves; None for none. Every evaluation is saved anyway."""
    save_seconds: float | None = 60.0
    """Seconds between two saves, stretched where saving is slow; None for none."""
    log_every_steps: int = 50
    """Optimiser steps per line of the log."""

    def __post_init__(self) -> None:
        """Check every value; raises ConfigError that lists all problems at once."""
        problems = list(_problems(self))
        if problems:
            raise ConfigError("; ".join(problems))

    def factor(self, step: int, share: float) -> float:
        """Give the factor of the learning rate for step `step`, counted from 1, before which that share was spent.

        The schedule's own factor times step / warmup_steps while the rate rises. Nothing is stored between steps, so a
        run that is resumed uses the same numbers; how many steps there will be need not be known.
        """
        return min(1.0, step / max(1, self.warmup_steps)) * DECAYS[self.schedule](min(share, 1.0))

    def settings(self) -> dict[str, Any]:
        """Give what moves weights, its precision aside."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in UNSETTLED}


_RULES: Rules = (
    *SHARED_RULES,
    (("amount",), lambda v: finite(v) and v > 0, "a number above 0"),
    (("micro_tokens",), lambda v: v is None or whole(v, low=1), "a whole number of at least 1 or None"),
    (("warmup_steps", "evaluations"), lambda v: whole(v, low=0), "a whole number of at least 0"),
)


def _problems(config: BudgetConfig) -> Iterator[str]:
    yield from broken(config, _RULES)
    if config.unit not in UNITS:
        yield f"a budget of {config.unit!r} is none; {nearest(str(config.unit), UNITS)}"
    if config.schedule not in DECAYS:
        yield f"no schedule called {config.schedule!r}; {nearest(str(config.schedule), DECAYS)}"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a run with batches of its own."""

    name: str
    """What the log and the bar call it."""
    end: float
    """Share of the budget at which it ends; that of the last stage is 1."""
    batches: Callable[[dict[str, Any] | None], Iterator[tuple[Sequence[Any], dict[str, Any]]]]
    """Position, None for the beginning -> endless (examples, position behind them); a position is a JSON value."""
    make_batch: Callable[[Sequence[Any]], Any]
    """Examples -> batch with `to(device)`; called in a thread, with part of a batch where there are several processes,
    and draws from no global generator."""
    lengths: Callable[[Sequence[Any]], Sequence[int]]
    """Examples -> tokens of each."""
    leaves_unused: bool = True
    """Whether there may be parameters that its loss does not depend on; several processes have to look for them."""
    enter: Callable[[], Mapping[str, Sequence[str]] | None] = lambda: None
    """Changes the model when the stage begins, and gives new parameter -> parameters of before whose optimiser state
    it takes over (of several, the mean); one that is not named keeps its own. None where the model stays as it is."""


@dataclass(kw_only=True)
class Line:
    """Running totals over some optimiser steps."""

    steps: int = 0
    """Optimiser steps counted."""
    examples: int = 0
    """Examples in their batches, of all processes."""
    tokens: int = 0
    """Real tokens in their batches, of all processes."""
    loss: float = 0.0
    """Loss summed over the steps."""
    terms: dict[str, list[float]] = field(default_factory=dict)
    """Name of a term -> its total and what the mean divides by."""
    grad_norm: float = 0.0
    """Gradient norm before clipping, summed over the steps."""
    clipped: int = 0
    """Steps whose gradient was too long."""
    seconds: float = 0.0
    """Time of the steps, waiting included."""
    wait_seconds: float = 0.0
    """Time in which a step had to wait for its batch."""

    def means(self) -> dict[str, float | None]:
        """Give name of a term -> its mean; None where it had nothing to count."""
        return {name: total / count if count else None for name, (total, count) in self.terms.items()}


@dataclass(kw_only=True)
class BudgetState:
    """Where a run on a budget stands, apart from tensors and generators."""

    step: int = 0
    """Optimiser steps done."""
    stage: int = 0
    """Number of the running stage, from 0."""
    position: dict[str, Any] | None = None
    """Place in the stage's stream of batches; None at its beginning."""
    examples: int = 0
    """Examples trained on."""
    tokens: int = 0
    """Real tokens trained on."""
    flops: float = 0.0
    """Floating-point operations of training, as the model counts them; a float, since they may exceed 2**63."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """One record per evaluation."""
    stages: list[dict[str, Any]] = field(default_factory=list)
    """What each finished stage took."""
    in_line: Line = field(default_factory=Line)
    """Totals since the last line of the log."""
    seconds: float = 0.0
    """Training and evaluation so far, over all starts."""
    wait_seconds: float = 0.0
    """Of these, time in which a step had to wait for its batch."""
    log_bytes: int = 0
    """Length of the log; lines beyond it are of steps that will be done again."""

    @classmethod
    def from_json(cls, numbers: Mapping[str, Any]) -> BudgetState:
        """Give the state that state.json holds."""
        return cls(**{**numbers, "in_line": Line(**numbers["in_line"])})

    def share(self, config: BudgetConfig) -> float:
        """Give how much of the budget is spent, 1 for all of it."""
        spent = {"tokens": self.tokens, "steps": self.step, "flops": self.flops}[config.unit]
        return spent / config.amount


@dataclass(frozen=True, kw_only=True)
class BudgetResult:
    """What came out of a run on a budget; the model itself holds the last weights."""

    steps: int
    """Optimiser steps done."""
    examples: int
    """Examples trained on."""
    tokens: int
    """Real tokens trained on."""
    flops: float
    """Floating-point operations of training."""
    seconds: float
    """Training and evaluation, summed over all starts."""
    wait_seconds: float
    """Of these, time in which a step had to wait for its batch."""
    stages: list[dict[str, Any]]
    """Per stage: name, and the steps, examples, tokens, flops, seconds and position in its stream at its end."""
    evaluations: list[dict[str, Any]]
    """Per evaluation: step, stage, share, tokens, flops, seconds and what `evaluate` gave."""
