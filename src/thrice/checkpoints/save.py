"""Encoder -> stock folder that transformers reads without knowing thrice."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from thrice.checkpoints.formats import NO_PARAMETER, WHEN_UNTIED, Format
from thrice.checkpoints.load import SIDECAR, SIDECAR_FORMAT, maps_of
from thrice.checkpoints.name_map import DECODER, apart, bits_equal, pairs_of
from thrice.errors import CheckpointError
from thrice.files import clear_partials, partial_path, plain_os_errors, read_json, write_json
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.registry import plugin

logger = logging.getLogger("thrice")

# Left over from another model in a folder that is saved into again, these would be read beside or before the new files.
_SUPERSEDED = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model*.bin.index.json",
    SIDECAR,
)


class Savable(Protocol):
    """A tokenizer that writes its files into a folder."""

    def save(self, folder: Path) -> Any:
        """Write the tokenizer's files."""


def save(
    encoder: Encoder,
    folder: str | os.PathLike[str],
    *,
    extra_config: Mapping[str, Any] | None = None,
    tokenizer: Savable | None = None,
    sidecar: Mapping[str, Any] | None = None,
    beside: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> Path:
    """Write a folder that stock transformers loads with the same outputs; gives the folder.

    The class named in config.json is the first of the family's classes whose heads the encoder carries; heads beyond
    it are written too. Sharing that no stock config can say is written out as full copies, and `thrice.json` beside
    them states it. Weights keep their dtype.
    extra_config: further entries of config.json (id2label, problem_type, ...). tokenizer: written along. sidecar:
    further entries of thrice.json. beside: further safetensors files, file name -> tensors.
    An existing checkpoint folder is updated file by file, each renamed into place, and files of other kinds stay; a new
    one appears whole or not at all.
    Raises CheckpointError where the family cannot say the config or has no such head, and where the folder holds
    something that is no checkpoint.
    """
    folder = Path(folder)
    refuse_foreign_folder(folder)
    form: Format = plugin("checkpoints.formats", encoder.config.family)
    stock = stock_config(encoder, form, extra_config or {})
    tensors = stock_tensors(encoder, form, stock)
    said = maps_of(form.config_from_stock(stock)) == maps_of(encoder.config)
    with written_whole(folder, tokenizer=tokenizer, beside=beside, vocab_size=encoder.config.vocab_size) as partial:
        write_json(partial / "config.json", stock)
        _write_tensors(partial / "model.safetensors", tensors)
        if sidecar is not None or not said:
            maps = {"attention_map": encoder.config.attention_map, "ffn_map": encoder.config.ffn_map}
            write_json(partial / SIDECAR, {"format": SIDECAR_FORMAT, **maps, **(sidecar or {})})
    return folder


def refuse_unsavable(encoder: Encoder, *, tokenizer: Savable | None = None) -> None:
    """Raise CheckpointError where `save` would, whatever the folder: ask before the hours of a training, not after."""
    stock_config(encoder, plugin("checkpoints.formats", encoder.config.family), {})
    _refuse_more_ids(tokenizer, encoder.config.vocab_size)


def _refuse_more_ids(tokenizer: Savable | None, vocab_size: int) -> None:
    if tokenizer is not None and (ids := getattr(tokenizer, "vocab_size", 0)) > vocab_size:
        raise CheckpointError(f"the tokenizer has {ids} ids, the word table {vocab_size} rows; expected as many")


@contextlib.contextmanager
def written_whole(
    folder: Path, *, tokenizer: Savable | None, beside: Mapping[str, Mapping[str, Tensor]] | None, vocab_size: int
) -> Iterator[Path]:
    """Give an empty folder for a checkpoint's files; at the end it takes the name, or its files those of the one there.

    tokenizer, beside: written along, see `save`. vocab_size: rows of the word table.
    Raises CheckpointError where the tokenizer has more ids than that.
    """
    _refuse_more_ids(tokenizer, vocab_size)
    folder.parent.mkdir(parents=True, exist_ok=True)
    clear_partials(folder.parent, folder.name)  # what killed processes left
    partial = partial_path(folder)
    partial.mkdir()
    try:
        yield partial
        for name, held in (beside or {}).items():
            _write_tensors(partial / name, {key: tensor.detach().cpu().contiguous() for key, tensor in held.items()})
        if tokenizer is not None:
            tokenizer.save(partial)
        _move_into_place(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def stock_config(encoder: Encoder, form: Format, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Give a complete config.json; raises CheckpointError that lists all that the family's stock classes cannot say."""
    heads = set(encoder.heads)
    shape = form.config_to_stock(encoder.config)
    problems = _unsayable(encoder.config, form.config_from_stock(shape))
    known = {row.ours.split(".")[1] for row in form.rows if row.ours.startswith("heads.")}
    problems += [f"{form.name}'s stock classes have no {head} head" for head in sorted(heads - known)]
    if heads >= {"sequence", "token"}:
        problems.append("sequence and token heads both want the name classifier; expected one of them")
    class_name = next(name for name, wanted in form.classes.items() if heads >= set(wanted))
    head = next((h for h in ("sequence", "token", "sentence_pair") if h in form.classes[class_name]), None)
    num_labels = len(encoder.get_parameter(f"heads.{head}.classifier.weight")) if head is not None else 2
    stock = {
        "architectures": [class_name],
        **shape,
        "tie_word_embeddings": DECODER not in encoder.state_dict(),
        "dtype": str(encoder.embeddings.word_embeddings.weight.dtype).removeprefix("torch."),
    }
    problems += [
        f"extra_config says {key} = {extra[key]!r}, the encoder {stock[key]!r}"
        for key in stock
        if key in extra and extra[key] != stock[key]
    ]
    labels = extra.get("id2label") or {str(i): f"LABEL_{i}" for i in range(num_labels)}
    if head is not None and len(labels) != num_labels:
        problems.append(f"extra_config names {len(labels)} labels, the {head} head has {num_labels}")
    if problems:
        raise CheckpointError(f"this encoder cannot be written as {class_name}: {'; '.join(problems)}")
    if num_labels != 2 or "id2label" in extra:
        stock["id2label"] = {str(number): label for number, label in labels.items()}
        stock["label2id"] = {label: int(number) for number, label in labels.items()}
    return {**stock, **{key: value for key, value in extra.items() if key not in stock}}


def stock_tensors(encoder: Encoder, form: Format, stock: Mapping[str, Any]) -> dict[str, Tensor]:
    """Give name -> tensor of the stock folder, each in memory of its own."""
    tensors = {name: tensor.detach() for name, tensor in apart(encoder.state_dict()).items()}
    bare = not form.classes[stock["architectures"][0]]
    written: dict[str, str] = {}
    for ours, theirs, note in pairs_of(form, stock, maps_of(encoder.config), bare=bare):
        if ours in NO_PARAMETER or ours not in tensors or (note == WHEN_UNTIED and stock["tie_word_embeddings"]):
            continue
        holder = written.setdefault(theirs, ours)
        if holder != ours and not bits_equal(tensors[holder], tensors[ours]):
            logger.warning(
                "%s is not written: in a %s folder its place, %s, is that of %s", ours, form.name, theirs, holder
            )
    return {
        theirs: tensors[ours].cpu().clone(memory_format=torch.contiguous_format) for theirs, ours in written.items()
    }


def _unsayable(config: EncoderConfig, said: EncoderConfig) -> list[str]:
    sharing = ("attention_map", "ffn_map")
    fields = [field.name for field in dataclasses.fields(config) if field.name not in sharing]
    return [
        f"{name} is {getattr(config, name)!r}, its config.json says {getattr(said, name)!r}"
        for name in fields
        if getattr(config, name) != getattr(said, name)
    ]


def _write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    # transformers refuses a file that does not say what wrote it.
    with plain_os_errors(file):
        save_file(tensors, file, metadata={"format": "pt"})
    # It comes out readable by its owner alone; a server of another user must read it like the files beside it.
    file.chmod((file.parent / "config.json").stat().st_mode)


def refuse_foreign_folder(folder: Path) -> None:
    """Raise CheckpointError where a checkpoint cannot be written because the folder holds something else."""
    if folder.is_dir() and any(folder.iterdir()) and not _is_checkpoint(folder):
        raise CheckpointError(
            f"{folder} holds other things than a checkpoint; expected a new, empty or checkpoint folder"
        )
    file = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
    if file is not None:
        raise CheckpointError(f"{file} is a file, expected the name of a folder")


def _is_checkpoint(folder: Path) -> bool:
    try:
        return "model_type" in read_json(folder / "config.json")
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, TypeError):
        return False


def _move_into_place(beside: Path, folder: Path) -> None:
    """Rename a finished folder to its name, or its files over those of the checkpoint that is there."""
    if not folder.is_dir() or not any(folder.iterdir()):
        os.replace(beside, folder)
        return
    new = sorted(path.relative_to(beside) for path in beside.rglob("*") if path.is_file())
    for path in new:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(beside / path, folder / path)
    for pattern in _SUPERSEDED:
        for old in folder.glob(pattern):
            if old.relative_to(folder) not in new:
                old.unlink()
