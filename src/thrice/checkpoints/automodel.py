"""Stock folder <-> StockEncoder: any text encoder that transformers has a sequence classifier of, as it is."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from thrice.checkpoints.load import SIDECAR, SIDECAR_FORMAT, load, open_checkpoint, read_object
from thrice.checkpoints.name_map import modern
from thrice.checkpoints.save import Savable, refuse_foreign_folder, written_whole
from thrice.checkpoints.source import resolve
from thrice.errors import CheckpointError, ConfigError, SharingError
from thrice.files import write_json
from thrice.model.config import FAMILIES
from thrice.model.packing import pack
from thrice.model.stock import AUTO_CLASSES, AnyEncoder, StockEncoder, build_stock, silence, stock_class_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

logger = logging.getLogger("thrice")

PADDING_MOVES = 1e-4
"""Difference of a hidden state beyond rounding, above which padding counts as heard."""
BUFFERS = (".position_ids", ".token_type_ids")
"""Names of counters that early versions of transformers stored among the weights."""
ONE_FILE = "1000GB"
"""Most that a weight file holds, as save_pretrained wants it: all of them."""


def load_any(name: str) -> AnyEncoder:
    """Give the encoder of a name in eval mode: thrice's own where it can, else the folder's transformers class.

    name: see `resolve`. A folder of our four families gives an `Encoder`, one of another family or after "stock:" a
    `StockEncoder`. Raises what `load` and `load_stock` raise, and SharingError for a pattern on a model of another
    family, which has nothing that a pattern speaks of.
    """
    source = resolve(name)
    if source.folder is None or not (source.stock or runs_as_it_is(source.folder)):
        return load(name)
    if source.pattern is not None:
        raise SharingError(
            f"{name}: {_model_type(source.folder)} runs through its own transformers class, which has no sharing "
            f"patterns; they are for {', '.join(FAMILIES)} - expected {name.rpartition('+')[0]}"
        )
    return load_stock(source.folder)


def runs_as_it_is(folder: Path) -> bool:
    """Say whether a folder is of none of our families, and transformers has a text encoder and a classifier of it."""
    try:
        stock = read_object(folder / "config.json")
    except CheckpointError:
        return False
    return stock.get("model_type") not in (None, *FAMILIES) and why_not(stock) is None


def advice(folder: Path) -> str:
    """Give what to do with a folder that is of none of our families, "" where it is of one."""
    try:
        stock = read_object(folder / "config.json")
    except CheckpointError:
        return ""
    if stock.get("model_type") in (None, *FAMILIES):
        return ""
    if (reason := why_not(stock)) is not None:
        return f"\n- it cannot run through a transformers class of its own either: {reason}"
    return "\n- `thrice finetune` and `thrice compare` take it as it is, through its own transformers class"


def why_not(stock: Mapping[str, Any]) -> str | None:
    """Give why a config.json is of no model that runs through its own transformers class; None where it is of one."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    family = stock.get("model_type")
    if "auto_map" in stock:
        return "its config.json names program code of its own (auto_map), and thrice runs no code out of a checkpoint"
    if not isinstance(family, str) or family not in CONFIG_MAPPING_NAMES:
        return f"transformers knows no model_type {family!r}"
    if family not in modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        return f"transformers has no sequence classifier of {family}"
    both_ways = family in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES  # only they read to the left and the right
    if not both_ways or stock.get("is_decoder") or stock.get("is_encoder_decoder"):
        return f"{family} reads left to right or is an encoder with a decoder, expected an encoder alone"
    return None


def load_stock(folder: Path) -> StockEncoder:
    """Give the encoder of a stock folder through its own class, float32 in memory of its own, in eval mode.

    It carries the head of a sequence or token classifier whose tensors are all there. No code of the folder is run.
    A class in which padding moves what is beside it, as a convolution or landmarks do, is told of by a WARNING of the
    logger "thrice": its scores depend on the batch.
    Raises CheckpointError where the folder is damaged, is no encoder, or has not all tensors of one; it lists all.
    """
    checkpoint = open_checkpoint(folder)
    if (reason := why_not(checkpoint.stock)) is not None:
        raise CheckpointError(f"{folder} cannot run through its own transformers class: {reason}")
    config = _config(folder)
    named = config.architectures or []
    head = next((h for h, auto in AUTO_CLASSES.items() if any(_is_a(name, auto) for name in named)), "sequence")
    tensors, broken = {}, []
    for name, entry in checkpoint.entries.items():
        tensor = entry.read()
        tensors[modern(name)] = tensor.to(torch.float32 if entry.floating else tensor.dtype, copy=True).contiguous()
        if entry.floating and not torch.isfinite(tensor).all():
            broken.append(name)
    if broken:
        raise CheckpointError(
            f"{folder}: {len(broken)} of {len(tensors)} tensors hold NaN or infinity: {_some(broken)}. - a run that "
            "diverged, or a damaged copy? use another checkpoint"
        )
    try:
        model, account = build_stock(stock_class_of(config, head), config, tensors, seed=0)
    except ConfigError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    prefix = f"{model.base_model_prefix}."
    bare = not any(name.startswith(prefix) for name in tensors)
    problems = _problems(account, prefix=prefix, bare=bare)
    if problems:
        raise CheckpointError(
            f"{checkpoint.stock['model_type']} checkpoint {folder}: {len(problems)} problems with {len(tensors)} "
            f"tensors: {_some(problems)}. - is config.json the one these weights were saved with?"
        )
    if "attention_mask" not in inspect.signature(model.base_model.forward).parameters:
        raise CheckpointError(
            f"{folder}: {type(model).__name__} takes no attention_mask: padding would move its answers"
        )
    absent = {*account["missing_keys"], *(key for key, *_ in account["mismatched_keys"])}
    given = {name for name in model.state_dict() if name not in absent}
    own = {name for name in model.state_dict() if not name.startswith(prefix)}
    whole = not own & absent and any(_is_a(name, AUTO_CLASSES[head]) for name in named)
    encoder = StockEncoder(model, given=given - own if whole else given, carries=head if whole else None).eval()
    _try_out(encoder, folder)
    return encoder


@torch.no_grad()
def _try_out(encoder: StockEncoder, folder: Path) -> None:
    """Run a text alone and beside a longer one; raises CheckpointError where the class needs more than its ids."""
    config, name = encoder.config, type(encoder.base).__name__
    words = [(config.pad_token_id + 1 + i) % config.vocab_size for i in range(min(8, config.max_length))]
    short = words[:3]
    try:
        alone, beside = encoder(pack([short])), encoder(pack([words, short]))[len(words) :]
    except Exception as error:  # whatever a class of transformers raises of inputs that it misses
        raise CheckpointError(f"{folder}: {name} does not run on ids and a mask alone: {error}") from error
    if alone.shape != (len(short), config.hidden_size) or beside.shape != alone.shape:
        raise CheckpointError(
            f"{folder}: {name} gives {tuple(alone.shape)} of {len(short)} tokens, expected one row each"
        )
    moved = float((alone - beside).abs().max())
    if moved > PADDING_MOVES:
        logger.warning(
            "%s: padding moves the hidden states of %s (by %.1g): its answers depend on what else is in a batch",
            *(folder, name, moved),
        )


def save_stock(
    encoder: StockEncoder,
    folder: str | os.PathLike[str],
    *,
    extra_config: Mapping[str, Any] | None = None,
    tokenizer: Savable | None = None,
    sidecar: Mapping[str, Any] | None = None,
    beside: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> Path:
    """Write a folder that stock transformers loads, by the class's own save_pretrained; gives the folder.

    The class is that of the head that the encoder carries, without one the bare model. Arguments, and how an existing
    folder is updated, as in `save`; thrice.json says that the model is not packed.
    Raises CheckpointError where the tokenizer has more ids than the word table, and where the folder holds something
    that is no checkpoint.
    """
    folder = Path(folder)
    refuse_foreign_folder(folder)
    model = encoder.model if encoder.heads else encoder.base
    with written_whole(folder, tokenizer=tokenizer, beside=beside, vocab_size=encoder.config.vocab_size) as partial:
        with silence():
            model.save_pretrained(partial, max_shard_size=ONE_FILE)
        stock = read_object(partial / "config.json")
        write_json(partial / "config.json", stock | dict(extra_config or {}))
        for file in partial.glob("*.safetensors"):
            file.chmod((partial / "config.json").stat().st_mode)
        write_json(partial / SIDECAR, {"format": SIDECAR_FORMAT, "packed": False, **(sidecar or {})})
    return folder


def _config(folder: Path) -> PreTrainedConfig:
    from transformers import AutoConfig

    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # its config classes raise what they like, their library's own kinds among it
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{folder / 'config.json'}: {reason or type(error).__name__}") from error
    return config


def _is_a(class_name: str, auto_class: str) -> bool:
    return class_name.endswith(auto_class.removeprefix("AutoModel"))


def _model_type(folder: Path) -> str:
    return str(read_object(folder / "config.json").get("model_type"))


def _problems(account: Mapping[str, Any], *, prefix: str, bare: bool) -> list[str]:
    """Give what keeps an encoder from being loaded, heads aside; a pooler counts as part of a head.

    bare: the folder is of a model without a head, and its names lack the prefix.
    """
    problems = [
        f"{key} is missing"
        for key in sorted(account["missing_keys"])
        if key.startswith(prefix) and not key.startswith(f"{prefix}pooler.")
    ]
    problems += [
        f"{key} is {tuple(theirs)}, the model wants {tuple(ours)}"
        for key, theirs, ours in sorted(account["mismatched_keys"])
        if key.startswith(prefix)
    ]
    for key in sorted(account["unexpected_keys"]):
        inside = bare or key.startswith(prefix)
        if key.endswith(BUFFERS):
            continue
        if inside and not key.removeprefix(prefix).startswith("pooler."):
            problems.append(f"{key} has no place in the model")
    return problems + [str(error) for error in account["error_msgs"]]


def _some(items: list[str], most: int = 8) -> str:
    more = f", and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more
