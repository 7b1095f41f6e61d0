"""What a pre-training run is asked for: a TOML file, checked as a whole before anything is read.

name = "my-albert"
tokenizer = "zoo:albert-nano-zh"            # a folder, a hub id or zoo:NAME

[model]
family = "albert"
num_hidden_layers = 4

[corpus]
train = "corpora/train"                     # folders written by thrice corpus
held_out = "corpora/held-out"

[budget]
tokens = 30_000_000                         # or steps, flops, minutes

[[stages]]
share = 0.7
max_length = 40
objectives = ["mlm"]

[[stages]]
share = 0.3
max_length = 128
objectives = ["mlm", "sop"]

[objectives.mlm]
rate = 0.2
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thrice.objectives.base import Objective
from thrice.pretraining.shape import ModelRecipe
from thrice.registry import plugins
from thrice.training import BudgetConfig, BudgetOptimizer


@dataclass(frozen=True, kw_only=True)
class CorpusRecipe:
    """What is read; folders that `thrice corpus` has written."""

    train: str | None = None
    """The text to learn from."""
    held_out: str | None = None
    """Text that is never trained on, for evaluation; without it a sample of the training text is evaluated."""


@dataclass(frozen=True, kw_only=True)
class BudgetRecipe:
    """How much is spent; exactly one of the four."""

    tokens: int | None = None
    """Real tokens of training batches, special ones counted."""
    steps: int | None = None
    """Optimiser steps."""
    flops: float | None = None
    """Floating-point operations of training, all towers and heads counted."""
    minutes: float | None = None
    """Time of training, turned into tokens by timing a few steps on this machine before the run begins."""

    @property
    def given(self) -> dict[str, float]:
        """Give unit -> amount of those that are set."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class BatchRecipe:
    """What a batch is made of."""

    tokens: int = 4096
    """Most tokens of an optimiser step's batch, special ones counted; there is no padding."""
    micro_tokens: int | None = None
    """Most tokens that a process computes at once: a batch of more is computed in parts, their gradients added up."""
    short: float = 0.1
    """Share of sequences that are cut shorter than max_length at random, in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRecipe:
    """How often the model is evaluated, and on how much."""

    times: int = 20
    """Evaluations over the budget, evenly; each stage ends with one besides. 0 for none."""
    tokens: int = 20_000
    """Tokens of the sample, the same in each evaluation of a stage."""


@dataclass(frozen=True, kw_only=True)
class RunRecipe:
    """What is written when, kept in memory and computed how; all but the precision may change when a run goes on."""

    log_every_steps: int = 50
    """Optimiser steps per line of the log."""
    save_seconds: float = 60.0
    """Seconds between two saves, stretched where saving is slow."""
    save_every_steps: int | None = None
    """Optimiser steps between two saves, besides."""
    mixed_precision: str | None = None
    """bf16: products of the forward pass under torch.autocast; weights, sampling, losses and evaluation in float32."""
    gradient_checkpointing: bool = False
    """Whether inner results are computed twice instead of kept: less memory, more time."""


@dataclass(frozen=True, kw_only=True)
class StageRecipe:
    """A part of the budget with its own lengths and objectives."""

    objectives: tuple[str, ...]
    """Names of those whose losses are added up; see thrice list objectives."""
    max_length: int = 128
    """Longest sequence in tokens, special ones counted."""
    share: float | None = None
    """Of the budget, above 0; all stages together make 1. A single stage has all of it."""
    sharing: str | None = None
    """Pattern by which layers share from this stage on; the optimiser's state is carried. None: as before."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole pre-training run; built by `recipe_file.recipe_of`, which names every problem at once."""

    stages: tuple[StageRecipe, ...]
    """One after the other."""
    budget: BudgetRecipe
    """When the run ends."""
    name: str = "model"
    """What the run is called in its card."""
    seed: int = 0
    """Draws the weights, the order of the text, the masks and the dropout."""
    tokenizer: str | None = None
    """Folder, hub id or zoo:NAME of the vocabulary; by default that of the model which [model] begins from."""
    model: ModelRecipe = field(default_factory=ModelRecipe)
    """Shape, or a checkpoint to begin from."""
    corpus: CorpusRecipe = field(default_factory=CorpusRecipe)
    """What is read."""
    batch: BatchRecipe = field(default_factory=BatchRecipe)
    """What a batch is made of."""
    optimizer: BudgetOptimizer = field(default_factory=BudgetOptimizer)
    """How the weights are moved."""
    objectives: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name of an objective -> its options, `weight` among them."""
    evaluation: EvaluationRecipe = field(default_factory=EvaluationRecipe)
    """How often, and on how much."""
    run: RunRecipe = field(default_factory=RunRecipe)
    """What is written when."""

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the budget of each stage."""
        return tuple(1.0 if stage.share is None else stage.share for stage in self.stages)

    def built_objectives(self) -> tuple[Objective, ...]:
        """Give all objectives that a stage uses, in the order in which they come up, with their options."""
        names = dict.fromkeys(name for stage in self.stages for name in stage.objectives)
        return tuple(plugins("objectives")[name](**self.objectives.get(name, {})) for name in names)

    def training(self, *, unit: str, amount: float) -> BudgetConfig:
        """Give the config of the loop."""
        run = {k: v for k, v in vars(self.run).items() if k != "gradient_checkpointing"}
        times = self.evaluation.times
        rest: dict[str, Any] = {"seed": self.seed, "evaluations": times, **vars(self.optimizer), **run}
        rest["micro_tokens"] = self.batch.micro_tokens
        return BudgetConfig(unit=unit, amount=amount, **rest)

    def facts(self) -> dict[str, Any]:
        """Give all that moves weights, flat, as JSON values: what must be the same for a run to go on.

        The folders of the corpus and the tokenizer stand for what is in them, and are told apart by that.
        """
        content = dataclasses.asdict(self)
        for name in ("run", "corpus", "tokenizer", "name"):
            del content[name]
        content["model"]["from"] = content["model"].pop("start")
        flat: dict[str, Any] = {}
        _flatten(content, "", flat)
        return {key: value for key, value in flat.items() if value is not None}


def _flatten(value: Any, place: str, flat: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for key, part in value.items():
            _flatten(part, f"{place}.{key}".lstrip("."), flat)
    elif isinstance(value, list | tuple) and any(isinstance(part, Mapping) for part in value):
        for number, part in enumerate(value, start=1):
            _flatten(part, f"{place}[{number}]", flat)
    else:
        flat[place] = list(value) if isinstance(value, tuple) else value
