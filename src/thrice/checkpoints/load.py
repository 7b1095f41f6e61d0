"""Stock folder -> Encoder: every tensor accounted for, every problem gathered, then copied into fresh memory."""

from __future__ import annotations

import dataclasses
import json
import logging
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thrice.checkpoints.formats import Maps
from thrice.checkpoints.name_map import Entry, Plan, apart, bits_equal, find_format, make_plan
from thrice.checkpoints.source import ModelSource, resolve
from thrice.errors import CheckpointError, ConfigError, SharingError
from thrice.files import read_json
from thrice.model.config import EncoderConfig, canonical
from thrice.model.encoder import Encoder
from thrice.model.presets import PRESETS
from thrice.schema import misfits, newer_format
from thrice.sharing.patterns import describe, parse, refines
from thrice.sharing.transform import unshare

logger = logging.getLogger("thrice")

SIDECAR = "thrice.json"
SIDECAR_FORMAT = 1

# In the order in which transformers looks for them.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")

# Version 2 was trained without dropout (Lan et al. 2020, section 4.8); some published config files say 0.1, and
# fine-tuning with it gets stuck.
_ALBERT_V2 = re.compile(r"albert[-_](base|large|xlarge|xxlarge)[-_]v2", re.IGNORECASE)

_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A stock folder, opened: its config and the headers of its weight files."""

    folder: Path
    """Where it lies."""
    stock: Mapping[str, Any]
    """config.json."""
    entries: Mapping[str, Entry]
    """Name -> tensor."""


def load(name: str, *, sharing: str | None = None, generator: torch.Generator | None = None) -> Encoder:
    """Give the encoder of a folder, hub id, zoo model or preset, with the stock heads it carries, in eval mode.

    name: see `resolve`. sharing: a pattern to un-share to, the same as after "+" in the name. generator: draws a
    preset's weights and nothing else, seed 0 where absent. Weights become float32, whatever the file holds, in memory
    of their own: a tensor mapped from a file may start at any address, and kernels then give other last digits.
    A preset may be given any pattern: it has no weights that would have to stay.
    Raises CheckpointError that lists everything that does not fit; SharingError where the pattern would make calls
    share that differ now (`thrice.share` does that).

        >>> load("preset:albert-tiny-zh+none").config.num_ffn_blocks
        4
    """
    source = resolve(name)
    if source.stock:
        raise CheckpointError(f"{name}: this gives thrice's own encoder, expected a name without stock:")
    pattern = _one_pattern(source, sharing)
    if source.folder is None:
        config = PRESETS[source.name]
        if pattern is not None:
            attention_map, ffn_map = parse(pattern, config.num_calls)
            config = config.replace(attention_map=attention_map, ffn_map=ffn_map)
        return Encoder(config, generator=generator).eval()
    try:
        encoder = load_folder(source.folder)
    except CheckpointError as error:
        from thrice.checkpoints.automodel import advice  # which reads folders by this module

        raise CheckpointError(f"{error}{advice(source.folder)}") from error
    if pattern is None or parse(pattern, encoder.config.num_calls) == maps_of(encoder.config):
        return encoder
    return unshare(encoder, pattern)


def load_folder(folder: Path) -> Encoder:
    """Give the encoder of a stock folder in eval mode; raises CheckpointError that lists all that does not fit."""
    checkpoint = open_checkpoint(folder)
    plan = plan_checkpoint(checkpoint)
    if plan.problems:
        raise CheckpointError(
            f"{plan.format.name} checkpoint {folder}: {len(plan.problems)} problems with {len(checkpoint.entries)} "
            f"tensors: {_some(plan.problems)}. - is config.json the one these weights were saved with? "
            "`thrice inspect` lists every tensor"
        )
    encoder = Encoder(_pinned(plan.config, checkpoint), draw=False)
    for head, num_labels in plan.heads.items():
        encoder.add_head(head, num_labels=num_labels, tied=not plan.untied)
    targets = apart(encoder.state_dict())
    broken = []
    with torch.no_grad():
        for ours, names in plan.reads.items():
            targets[ours].copy_(checkpoint.entries[names[0]].read())
            if not torch.isfinite(targets[ours]).all():
                broken.append(names[0])
    if broken:
        raise CheckpointError(
            f"{folder}: {len(broken)} of {len(checkpoint.entries)} tensors hold NaN or infinity: {_some(broken)}. - a "
            "run that diverged, or a damaged copy? use another checkpoint"
        )
    return encoder.eval()


def _pinned(config: EncoderConfig, checkpoint: Checkpoint) -> EncoderConfig:
    """Give the config with the dropout that its published weights were trained with, where their name tells."""
    named = f"{checkpoint.folder} {checkpoint.stock.get('_name_or_path', '')}"
    dropout = (config.hidden_dropout_prob, config.attention_probs_dropout_prob)
    if config.family != "albert" or not _ALBERT_V2.search(named) or dropout == (0, 0):
        return config
    logger.warning("%s: ALBERT v2 was trained with dropout 0, config.json says %s and %s; 0 is used", named, *dropout)
    return dataclasses.replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read config.json and the headers of the weight files of a stock folder.

    Raises CheckpointError where a file is missing, damaged, or no such file.
    """
    stock = read_object(folder / "config.json")
    if problems := misfits(stock, {"architectures?": list[str] | None, "model_type?": str | None}):
        raise CheckpointError(f"{folder / 'config.json'}: {_some(problems)}")
    found = next((name for name in _WEIGHTS if (folder / name).is_file()), None)
    if found is None:
        raise CheckpointError(f"{folder}: expected one of {', '.join(_WEIGHTS)}; the folder holds {_listing(folder)}")
    files = _shards(folder / found) if found.endswith(".json") else [folder / found]
    entries: dict[str, Entry] = {}
    for file in files:
        for name, entry in (_safetensors(file) if file.suffix == ".safetensors" else _pickled(file)).items():
            if name in entries:
                raise CheckpointError(f"{file}: {name} lies in another shard too; expected every tensor once")
            entries[name] = entry
    return Checkpoint(folder=folder, stock=stock, entries=entries)


def plan_checkpoint(checkpoint: Checkpoint) -> Plan:
    """Give what every tensor of the checkpoint becomes, sharing restored where `thrice.json` states it and it holds.

    A sidecar that does not agree with the tensors is ignored with a WARNING of the logger "thrice".
    """
    form = find_format(list(checkpoint.entries), checkpoint.stock)
    try:
        plan = make_plan(form, checkpoint.stock, checkpoint.entries)
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint.folder / 'config.json'}: {error}") from error
    if plan.problems:
        return plan
    try:
        maps = _stated_maps(checkpoint.folder, plan.config)
        if maps is None:
            return plan
        tied = make_plan(form, checkpoint.stock, checkpoint.entries, maps=maps)
        for ours, names in tied.reads.items():
            first = checkpoint.entries[names[0]]
            for other in names[1:] if not ours.startswith("heads.") else ():
                if not bits_equal(first.read(), checkpoint.entries[other].read()):
                    raise CheckpointError(f"it says {describe(*maps)!r}, but {names[0]} and {other} differ")
    except CheckpointError as stale:
        logger.warning(
            "%s is ignored: %s; sharing is read from config.json: %r",
            *(checkpoint.folder / SIDECAR, stale, describe(*maps_of(plan.config))),
        )
        return plan
    return tied


def read_sidecar(folder: Path) -> dict[str, Any] | None:
    """Give what `thrice.json` says, None where there is none.

    Raises CheckpointError where it is no JSON object, or one that a newer thrice wrote. What it says is judged by those
    who use it: the maps here, the task by `load_model`.
    """
    if not (folder / SIDECAR).is_file():
        return None
    content = read_object(folder / SIDECAR)
    problems = newer_format(content, SIDECAR_FORMAT)
    if problems:
        raise CheckpointError(f"{folder / SIDECAR}: {problems[0]}")
    return content


def carried_config(folder: Path) -> dict[str, Any]:
    """Give the entries of a folder's config.json that an Encoder does not know: labels, special tokens, problem type.

    `save(..., extra_config=carried_config(folder))` lets them travel along.
    """
    checkpoint_config = read_object(folder / "config.json")
    form = find_format(list(open_checkpoint(folder).entries), checkpoint_config)
    known = form.config_to_stock(form.config_from_stock(checkpoint_config))
    ours = {
        *known,
        "architectures",
        "dtype",
        "torch_dtype",
        "tie_word_embeddings",
        "num_labels",
        "transformers_version",
    }
    return {key: value for key, value in checkpoint_config.items() if key not in ours}


def maps_of(config: EncoderConfig) -> Maps:
    """Give attention_map and ffn_map."""
    return config.attention_map, config.ffn_map


def _one_pattern(source: ModelSource, sharing: str | None) -> str | None:
    if source.pattern is not None and sharing is not None and source.pattern != sharing:
        raise SharingError(f"{source.name}+{source.pattern} and sharing={sharing!r} name two patterns; expected one")
    return source.pattern if sharing is None else sharing


def _stated_maps(folder: Path, config: EncoderConfig) -> Maps | None:
    """Give the sidecar's maps where they are coarser than config.json; raises CheckpointError where they cannot be."""
    sidecar = read_sidecar(folder)
    if sidecar is None or not {"attention_map", "ffn_map"} & set(sidecar):
        return None
    stated = []
    for key in ("attention_map", "ffn_map"):
        entries = sidecar.get(key)
        if not isinstance(entries, list) or not all(isinstance(e, int) for e in entries):
            raise CheckpointError(f"{key} is {entries!r}, expected a list of whole numbers")
        if len(entries) != config.num_calls or tuple(entries) != canonical(tuple(entries)):
            raise CheckpointError(f"{key} {entries} is no map of {config.num_calls} calls, numbered by first use")
        stated.append(tuple(entries))
    maps = (stated[0], stated[1])
    if maps == maps_of(config):
        return None
    if not all(refines(fine, coarse) for fine, coarse in zip(maps_of(config), maps, strict=True)):
        raise CheckpointError(f"it says {describe(*maps)!r}, which is no tie between the layers that config.json has")
    return maps


def _shards(index: Path) -> list[Path]:
    """Give the shards an index names; raises CheckpointError where one lies elsewhere or is missing."""
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f"{index}: expected an object weight_map of tensor to file name")
    names = sorted(set(weight_map.values()))
    # Only a plain name: "../x" or "/x" would read files that are no part of the checkpoint.
    strange = [
        name
        for name in names
        if Path(name).name != name or "\\" in name or Path(name).suffix not in (".safetensors", ".bin")
    ]
    if strange:
        raise CheckpointError(
            f"{index}: expected names of weight files beside it, got {', '.join(map(repr, strange[:3]))}"
        )
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{index}: {len(missing)} of {len(names)} shards are missing: {_some(missing)}. - download them?"
        )
    return [index.parent / name for name in names]


def _safetensors(file: Path) -> dict[str, Entry]:
    import safetensors

    try:
        # The handle stays open as long as an entry refers to it.
        handle: Any = safetensors.safe_open(file, framework="pt")
    except (safetensors.SafetensorError, OSError) as error:
        raise _damaged(file, error) from error
    entries = {}
    for name in handle.keys():  # noqa: SIM118 - not a dict
        header = handle.get_slice(name)
        dtype = header.get_dtype()

        def read(name: str = name) -> Tensor:
            return handle.get_tensor(name)

        entries[name] = Entry(shape=tuple(header.get_shape()), dtype=dtype, floating=dtype in _FLOATS, read=read)
    return entries


def _pickled(file: Path) -> dict[str, Entry]:
    try:
        # Files of torch before 1.6 are no zip archives and cannot be mapped.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about pickles that it then refuses
            held = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except (pickle.UnpicklingError, struct.error, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise _damaged(file, error) from error
    if not isinstance(held, dict) or not all(isinstance(value, Tensor) for value in held.values()):
        raise CheckpointError(f"{file}: expected a dict of tensors, got {type(held).__name__} with other things in it")
    return {name: _entry(tensor) for name, tensor in held.items()}


def _entry(tensor: Tensor) -> Entry:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Entry(shape=tuple(tensor.shape), dtype=dtype, floating=tensor.is_floating_point(), read=lambda: tensor)


def _damaged(file: Path, error: Exception) -> CheckpointError:
    with open(file, "rb") as opened:
        if opened.read(40).startswith(b"version https://git-lfs"):
            return CheckpointError(
                f"{file} is a git-lfs pointer, expected the weights themselves. - run `git lfs pull`"
            )
    reason = (str(error).strip() or type(error).__name__).split("\n")[0]
    if isinstance(error, pickle.UnpicklingError):  # torch's own words recommend to open it all the same
        reason = "it is no plain dict of tensors, and other pickles are not opened"
    return CheckpointError(
        f"{file} ({file.stat().st_size} bytes) cannot be read: {reason}. - download or copy it again?"
    )


def read_object(path: Path) -> dict[str, Any]:
    """Give what a JSON file of a folder says; raises CheckpointError where it is missing, damaged or no object."""
    try:
        value = read_json(path)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent}: expected {path.name}; the folder holds {_listing(path.parent)}"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _listing(folder: Path) -> str:
    return _some(sorted(entry.name for entry in folder.iterdir())) or "nothing"


def _some(items: list[str] | tuple[str, ...], most: int = 8) -> str:
    more = f", and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more
