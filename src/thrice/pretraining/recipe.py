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
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from thrice.errors import ConfigError, DataError, ThriceError, nearest
from thrice.objectives.base import Objective
from thrice.objectives.model import check_together
from thrice.pretraining.shape import ModelRecipe
from thrice.registry import plugins
from thrice.schema import misfits
from thrice.training import BudgetConfig

MIN_LENGTH = 8
"""Tokens; a shorter sequence has next to nothing to predict from."""


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
    short: float = 0.1
    """Share of sequences that are cut shorter than max_length at random, in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class OptimizerRecipe:
    """AdamW and its learning rate; see `BudgetConfig`."""

    learning_rate: float = 1e-4
    """Peak learning rate."""
    warmup_steps: int = 0
    """Optimiser steps over which the rate rises from 0."""
    schedule: str = "linear"
    """What the rate does over the share of the budget that is spent: linear, cosine or constant."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices; biases and norms have none."""
    adam_beta1: float = 0.9
    """Decay rate of the mean of the gradient."""
    adam_beta2: float = 0.999
    """Decay rate of the mean of the squared gradient."""
    adam_epsilon: float = 1e-6
    """Added to Adam's denominator."""
    max_grad_norm: float = 1.0
    """Longest gradient; 0 for no limit."""
    layerwise_decay: float = 1.0
    """Factor of the learning rate from a layer to the one below."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRecipe:
    """How often the model is evaluated, and on how much."""

    times: int = 20
    """Evaluations over the budget, evenly; each stage ends with one besides. 0 for none."""
    tokens: int = 20_000
    """Tokens of the sample, the same in each evaluation of a stage."""


@dataclass(frozen=True, kw_only=True)
class RunRecipe:
    """What is written when and what is kept in memory; moves no weight, so a resumed run may change it."""

    log_every_steps: int = 50
    """Optimiser steps per line of the log."""
    save_seconds: float = 60.0
    """Seconds between two saves, stretched where saving is slow."""
    save_every_steps: int | None = None
    """Optimiser steps between two saves, besides."""
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
    """A whole pre-training run; built by `recipe_of`, which names every problem at once."""

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
    optimizer: OptimizerRecipe = field(default_factory=OptimizerRecipe)
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
        return BudgetConfig(unit=unit, amount=amount, **rest)

    def facts(self) -> dict[str, Any]:
        """Give all that moves weights, flat, as JSON values: what must be the same for a run to go on.

        The folders of the corpus and the tokenizer stand for what is in them, and are told apart by that.
        """
        content = dataclasses.asdict(self)
        for name in ("run", "corpus", "tokenizer", "name"):
            del content[name]
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


SECTIONS: dict[str, type] = {
    "model": ModelRecipe,
    "corpus": CorpusRecipe,
    "budget": BudgetRecipe,
    "batch": BatchRecipe,
    "optimizer": OptimizerRecipe,
    "evaluation": EvaluationRecipe,
    "run": RunRecipe,
}
Content = dict[str, Any]


def recipe_names() -> list[str]:
    """Give the names of the recipes that the package carries."""
    names = (entry.name for entry in resources.files("thrice.recipes").iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def find_recipe(name: str) -> Path:
    """Give the file that a path or the name of a bundled recipe means; raises ConfigError where there is none."""
    if Path(name).is_file():
        return Path(name)
    if name in recipe_names():
        return Path(str(resources.files("thrice.recipes") / f"{name}.toml"))
    raise ConfigError(f"{name}: no such file, and no recipe is called that; {nearest(name, recipe_names())}")


def read_recipe(name: str) -> Content:
    """Give the content of a recipe, by path or by name, folders beside the file made whole.

    Raises ConfigError where there is none, DataError for a file that cannot be read or is no TOML.
    """
    path = find_recipe(name)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path} is no TOML: {error}") from error
    for section, keys in (("corpus", ("train", "held_out")), ("model", ("from",)), ("", ("tokenizer",))):
        table: Any = content.get(section) if section else content
        for key in keys if isinstance(table, dict) else ():
            beside = path.parent / str(table.get(key))
            if isinstance(table.get(key), str) and not Path(table[key]).exists() and beside.exists():
                table[key] = str(beside)
    return content


def recipe_of(content: Mapping[str, Any], *, name: str) -> Recipe:
    """Give the recipe that a TOML file or a dict says. name: of the file, for messages.

    Raises ConfigError that lists everything which is unknown, of the wrong kind, or contradicts something else.
    """
    problems = list(_unknown(content)) or list(_of_wrong_kind(content))
    if not problems:
        problems = list(_contradictions(_built(content)))
    if problems:
        raise ConfigError(f"{name}: " + "; ".join(problems))
    return _built(content)


def _keys(kind: type) -> dict[str, Any]:
    """Give key of the TOML file -> what it should hold; "from" is a word of Python and so `start` in the dataclass."""
    hints = get_type_hints(kind)
    return {"from" if f.name == "start" else f.name: hints[f.name] for f in dataclasses.fields(kind)}


def _unknown(content: Mapping[str, Any]) -> Iterator[str]:
    yield from _unknown_in(content, _keys(Recipe), "")
    for section, kind in SECTIONS.items():
        if isinstance(content.get(section), Mapping):
            yield from _unknown_in(content[section], _keys(kind), f"{section}.")
    stages = content.get("stages")
    for number, stage in enumerate(stages if isinstance(stages, Sequence) else (), start=1):
        if isinstance(stage, Mapping):
            yield from _unknown_in(stage, _keys(StageRecipe), f"stages[{number}].")
    asked = content.get("objectives")
    for name, options in asked.items() if isinstance(asked, Mapping) else ():
        if name not in plugins("objectives"):
            yield f"no objective called {name!r}; {nearest(name, plugins('objectives'))}"
        elif isinstance(options, Mapping):
            known = [f.name for f in dataclasses.fields(plugins("objectives")[name])]
            yield from _unknown_in(options, known, f"objectives.{name}.")


def _unknown_in(table: Mapping[str, Any], known: Any, place: str) -> Iterator[str]:
    for key in table:
        if key not in known:
            yield f"{place}{key} is no key; {nearest(key, known)}"


def _of_wrong_kind(content: Mapping[str, Any]) -> Iterator[str]:
    plain = {"name?": str, "seed?": int, "tokenizer?": str | None, "objectives?": dict[str, dict[str, Any]]}
    stage = {f"{key}{'' if key == 'objectives' else '?'}": kind for key, kind in _keys(StageRecipe).items()}
    sections = {f"{name}?": {f"{key}?": kind for key, kind in _keys(part).items()} for name, part in SECTIONS.items()}
    if not content.get("stages"):
        yield "there is no [[stages]]; one at least says max_length and objectives"
    for place, wanted in (("", plain | sections), *((f"stages[{n + 1}]", stage) for n in _numbers(content))):
        value = content if not place else content["stages"][int(place[7:-1]) - 1]
        yield from misfits(value, wanted, place=place)
    for name, options in content.get("objectives", {}).items():
        hints = get_type_hints(plugins("objectives")[name])
        yield from misfits(options, {f"{key}?": hints[key] for key in options}, place=f"objectives.{name}")


def _numbers(content: Mapping[str, Any]) -> range:
    stages = content.get("stages")
    return range(len(stages) if isinstance(stages, Sequence) and not isinstance(stages, str) else 0)


def _built(content: Mapping[str, Any]) -> Recipe:
    parts: dict[str, Any] = {}
    for key, value in content.items():
        if key in SECTIONS:
            parts[key] = SECTIONS[key](**{("start" if k == "from" else k): v for k, v in value.items()})
        elif key == "stages":
            parts[key] = tuple(StageRecipe(**{**s, "objectives": tuple(s["objectives"])}) for s in value)
        else:
            parts[key] = value
    parts.setdefault("budget", BudgetRecipe())
    return Recipe(**parts)


def _contradictions(recipe: Recipe) -> Iterator[str]:
    yield from recipe.model.problems()
    budget = recipe.budget.given
    if len(budget) != 1:
        told = ", ".join(budget) or "none"
        yield f"budget gives {told}; expected exactly one of tokens, steps, flops, minutes"
    yield from (f"budget.{unit} is {amount}, it must be above 0" for unit, amount in budget.items() if amount <= 0)
    try:
        recipe.training(unit="tokens", amount=1)
    except ConfigError as error:
        yield str(error)
    if not 0 <= recipe.batch.short <= 1:
        yield f"batch.short is {recipe.batch.short}, it must lie in [0, 1]"
    if recipe.evaluation.tokens < 1:
        yield f"evaluation.tokens is {recipe.evaluation.tokens}, it must be at least 1"
    if not recipe.model.start and not recipe.model.preset and recipe.tokenizer is None:
        yield "tokenizer is missing: name a folder, a hub id or zoo:NAME whose vocabulary the model shall have"
    yield from _stage_problems(recipe)
    yield from _objective_problems(recipe)


def _stage_problems(recipe: Recipe) -> Iterator[str]:
    said = [stage.share for stage in recipe.stages]
    if None in said and len(said) > 1:
        yield f"stages {', '.join(str(n) for n, s in enumerate(said, 1) if s is None)} have no share of the budget"
    elif any(share <= 0 for share in recipe.shares) or abs(sum(recipe.shares) - 1) > 1e-6:
        yield f"the stages' shares are {', '.join(f'{s:g}' for s in recipe.shares)}: expected parts above 0 that make 1"
    config = recipe.model.known_config
    for number, stage in enumerate(recipe.stages, start=1):
        if stage.max_length < MIN_LENGTH:
            yield f"stages[{number}].max_length is {stage.max_length}, it must be at least {MIN_LENGTH}"
        if stage.max_length > recipe.batch.tokens:
            yield f"stages[{number}].max_length {stage.max_length} is more than batch.tokens {recipe.batch.tokens}"
        if config is not None and stage.max_length > config.max_length:
            positions = f"the model's {config.max_length} positions"
            yield f"stages[{number}].max_length {stage.max_length} is more than {positions}"
        yield from recipe.model.sharing_problems(stage.sharing, f"stages[{number}].sharing")


def _objective_problems(recipe: Recipe) -> Iterator[str]:
    known, used = plugins("objectives"), {name for stage in recipe.stages for name in stage.objectives}
    yield from (f"no objective called {name!r}; {nearest(name, known)}" for name in sorted(used) if name not in known)
    for name in recipe.objectives:
        if name not in used:
            yield f"objectives.{name} has options, but no stage uses {name}"
    if not used <= known.keys():
        return
    built: dict[str, Objective] = {}
    for name in sorted(used):
        try:
            built[name] = known[name](**recipe.objectives.get(name, {}))
        except (ThriceError, TypeError) as error:
            yield str(error)
    family = recipe.model.known_family
    for name, objective in built.items():
        if family is not None and family not in objective.families:
            yield f"{name} wants a model of the family {' or '.join(objective.families)}, this one is {family}"
    for number, stage in enumerate(recipe.stages, start=1):
        if used == built.keys():
            try:
                check_together([built[name] for name in stage.objectives])
            except ConfigError as error:
                yield f"stages[{number}]: {error}"


def to_toml(content: Mapping[str, Any]) -> str:
    """Give the content of a recipe as TOML: what a run was really asked for, options of the command line included."""
    lines: list[str] = []
    _write_table(content, "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _write_table(table: Mapping[str, Any], place: str, lines: list[str]) -> None:
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping) or _is_tables(value)}
    lines += [f"{key} = {_value(value)}" for key, value in table.items() if key not in tables and value is not None]
    for key, value in tables.items():
        name = f"{place}.{key}".lstrip(".")
        for part in value if _is_tables(value) else (value,):
            lines += ["", f"[[{name}]]" if _is_tables(value) else f"[{name}]"]
            _write_table(part, name, lines)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(part, Mapping) for part in value)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(part) for part in value)}]"
    if isinstance(value, str):
        # JSON's strings are TOML's, DEL aside.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return str(value).lower() if isinstance(value, bool) else repr(value)
