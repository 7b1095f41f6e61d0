"""What a checkpoint is, from config.json and headers alone: family, sharing, sizes, and the fate of every tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from thrice.checkpoints.automodel import runs_as_it_is
from thrice.checkpoints.formats import NO_PARAMETER, WHEN_UNTIED, Format
from thrice.checkpoints.load import maps_of, open_checkpoint, plan_checkpoint
from thrice.checkpoints.name_map import DECODER, Fate, pairs_of, wanted_shapes
from thrice.checkpoints.source import resolve
from thrice.errors import CheckpointError, SharingError
from thrice.model.config import EncoderConfig
from thrice.model.encoder import count_parameters
from thrice.model.presets import PRESETS
from thrice.registry import plugin
from thrice.sharing.patterns import describe, parse, refines


def inspect(name: str) -> dict[str, Any]:
    """Give what a checkpoint holds, as values that JSON can say; weights are read only to compare ties.

    Keys: name, family, sharing (a pattern's name), config, heads (name -> classes, null where it has none),
    parameters_stored (distinct parameters of encoder and heads), parameters_called (each block counted once per call),
    tensors (list of {name, shape, fate}, missing ones included) and problems (what would keep `load` from loading it).
    Raises CheckpointError where the files cannot be read or fit no family.
    """
    source = resolve(name)
    if source.pattern is not None:
        raise CheckpointError(f"inspect looks at what is stored, expected a name without +{source.pattern}")
    if source.folder is None:
        config = PRESETS[source.name]
        wanted = wanted_shapes(config, {}, untied=False)
        drawn = [Fate(ours, shape, "drawn at random") for ours, shape in wanted.items()]
        return _report(name, config, heads={}, wanted=wanted, fates=drawn, problems=())
    plan = plan_checkpoint(open_checkpoint(source.folder))
    return _report(name, plan.config, heads=plan.heads, wanted=plan.wanted, fates=plan.fates, problems=plan.problems)


def config_of(name: str) -> EncoderConfig | None:
    """Give the config of the encoder that `load_any` would give for a model's name, no weights read.

    None for a model that runs through its own transformers class. Raises as `load` does, but for problems with the
    tensors.
    """
    source = resolve(name)
    if source.folder is not None and (source.stock or runs_as_it_is(source.folder)):
        return None
    config = PRESETS[source.name] if source.folder is None else plan_checkpoint(open_checkpoint(source.folder)).config
    if source.pattern is None:
        return config
    maps = parse(source.pattern, config.num_calls)
    splits = all(refines(fine, coarse) for fine, coarse in zip(maps, maps_of(config), strict=True))
    if source.folder is not None and not splits:
        now = describe(*maps_of(config))
        raise SharingError(f"{name}: {source.pattern!r} would make calls share that differ now ({now!r})")
    return config.replace(attention_map=maps[0], ffn_map=maps[1])


def stock_shapes(config: EncoderConfig, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Give name -> shape of the tensors of the stock folder that `save` would write, nothing built.

    shapes: of the encoder's parameters, query, key and value apart. Sharing that a stock config cannot say is written
    as full copies, so that the file may hold more than the encoder stores.
    """
    form: Format = plugin("checkpoints.formats", config.family)
    pairs = pairs_of(form, form.config_to_stock(config), maps_of(config), bare=False)
    tied = DECODER not in shapes
    return {
        theirs: tuple(shapes[ours])
        for ours, theirs, note in pairs
        if ours not in NO_PARAMETER and ours in shapes and not (tied and note == WHEN_UNTIED)
    }


def _report(
    name: str,
    config: EncoderConfig,
    *,
    heads: Mapping[str, int],
    wanted: Mapping[str, tuple[int, ...]],
    fates: Sequence[Fate],
    problems: tuple[str, ...],
) -> dict[str, Any]:
    stored, called = count_parameters(config, wanted)
    return {
        "name": name,
        "family": config.family,
        "sharing": describe(*maps_of(config)),
        "config": {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(config).items()},
        "heads": {head: n if f"heads.{head}.classifier.weight" in wanted else None for head, n in heads.items()},
        "parameters_stored": stored,
        "parameters_called": called,
        "tensors": [{"name": fate.name, "shape": list(fate.shape), "fate": fate.fate} for fate in fates],
        "problems": list(problems),
    }
