"""Recipes as files: found, read, checked as a whole, and written again.

Every problem is named at once: keys that nobody knows first, then values of the wrong kind, then contradictions.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from thrice.errors import ConfigError, DataError, ThriceError, nearest
from thrice.model.config import FAMILIES
from thrice.objectives.base import Objective
from thrice.objectives.model import check_together
from thrice.pretraining.recipe import (
    BatchRecipe,
    BudgetRecipe,
    CorpusRecipe,
    EvaluationRecipe,
    Recipe,
    RunRecipe,
    StageRecipe,
)
from thrice.pretraining.shape import ModelRecipe
from thrice.registry import plugins
from thrice.schema import misfits
from thrice.training import BudgetOptimizer

MIN_LENGTH = 8
"""Tokens; a shorter sequence has next to nothing to predict from."""

SECTIONS: dict[str, type] = {
    "model": ModelRecipe,
    "corpus": CorpusRecipe,
    "budget": BudgetRecipe,
    "batch": BatchRecipe,
    "optimizer": BudgetOptimizer,
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
    if Path(name).is_dir():
        raise ConfigError(
            f"{name} is a folder; expected a recipe's file, such as {name.rstrip('/')}/recipe.toml, or name"
        )
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
    for number, stage in enumerate(stages if isinstance(stages, list) else (), start=1):
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
    stages = content.get("stages")
    if not stages:
        yield "there is no [[stages]]; one at least says max_length and objectives"
    elif not isinstance(stages, list):
        yield f"stages is {stages!r}, it must be [[stages]], in two pairs of brackets, once for each"
    for place, wanted in (("", plain | sections), *((f"stages[{n + 1}]", stage) for n in _numbers(content))):
        value = content if not place else content["stages"][int(place[7:-1]) - 1]
        yield from _misfits(value, wanted, place)
    objectives = content.get("objectives")
    for name, options in objectives.items() if isinstance(objectives, Mapping) else ():
        if not isinstance(options, Mapping):
            continue
        hints = get_type_hints(plugins("objectives")[name])
        yield from _misfits(options, {f"{key}?": hints[key] for key in options}, f"objectives.{name}")


def _misfits(value: Any, wanted: Any, place: str) -> Iterator[str]:
    # TOML has no null: what is absent is left out.
    yield from (problem.removesuffix(" or null") for problem in misfits(value, wanted, place=place))


def _numbers(content: Mapping[str, Any]) -> range:
    stages = content.get("stages")
    return range(len(stages) if isinstance(stages, list) else 0)


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
        yield str(error).replace("evaluations is", "evaluation.times is")
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
        for name in ("tokens", "micro_tokens"):
            most = getattr(recipe.batch, name)
            if most is not None and stage.max_length > most:
                yield f"stages[{number}].max_length {stage.max_length} is more than batch.{name} {most}"
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
        if recipe.batch.micro_tokens is not None and type(objective).counts is Objective.counts:
            yield f"batch.micro_tokens: {name} weighs a batch as a whole and computes it at once; lower batch.tokens"
        if family in FAMILIES and family not in objective.families:
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
