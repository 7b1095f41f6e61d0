"""Which model a name means: a folder, a hub id, zoo:NAME or preset:NAME, stock: before it, a pattern after "+"."""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from thrice.errors import CheckpointError, ConfigError, SharingError, nearest
from thrice.model.presets import PRESETS

STOCK = "stock:"
"""Before a name: take the model as it is, through its own transformers class."""

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")

# Everything a text encoder's folder needs; the .bin files only where no safetensors came.
_STOCK = (
    "config.json",
    "thrice.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
)
# The towers that pre-training writes beside an encoder: a generator as a stock folder, a proposal network as one file.
_TOWERS = ("proposal.safetensors", *(f"generator/{name}" for name in _STOCK))
_WANTED = (*_STOCK, *_TOWERS)
_PICKLED = ("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """What a name on the command line means."""

    kind: str
    """folder, hub, zoo or preset."""
    name: str
    """The name without its pattern; for zoo and preset without the word before the colon too."""
    pattern: str | None
    """Sharing pattern after "+", as typed."""
    folder: Path | None
    """Where the files lie; None for a preset, which has random weights."""
    stock: bool = False
    """Whether "stock:" stood before the name: the model runs through its own transformers class."""


def resolve(name: str) -> ModelSource:
    """Give what a model's name means; files of a hub id are fetched, or found in the hub's cache.

    name: a folder, a hub id, `zoo:NAME` or `preset:NAME`, then optionally "+" and a sharing pattern, or "stock:" before
    the first three of them. A real folder whose own name contains "+" or begins with "stock:" wins.
    Raises CheckpointError where no such folder, hub id, zoo model or preset exists, SharingError for stock: and a
    pattern together.

        >>> resolve("preset:bert-tiny+all").pattern
        'all'
    """
    if not name.strip():
        raise CheckpointError("an empty name; expected a folder, a hub id, zoo:NAME or preset:NAME")
    if _folder(name) is not None:
        return ModelSource(kind="folder", name=name, pattern=None, folder=_folder(name))
    if name.startswith(STOCK):
        return _stock(name.removeprefix(STOCK))
    bare, plus, pattern = name.rpartition("+")
    # A pattern has no slash: "a+b/c" is a path.
    if not plus or "/" in pattern:
        bare, pattern = name, ""
    elif not pattern.strip() or not bare:
        raise CheckpointError(f"{name!r}: expected a model, '+' and a sharing pattern, such as {bare or 'out/'}+none")
    return _without_pattern(bare, pattern or None)


def _stock(rest: str) -> ModelSource:
    source = resolve(rest)
    if source.pattern is not None:
        raise SharingError(
            f"{STOCK}{rest}: a stock class has no patterns; expected {STOCK}{rest.rpartition('+')[0]}, or {rest}"
        )
    if source.folder is None or source.stock:
        raise CheckpointError(f"{STOCK}{rest}: expected {STOCK} and a folder, a hub id or zoo:NAME")
    return dataclasses.replace(source, stock=True)


def zoo_names() -> list[str]:
    """Give the names of the checkpoints that the package carries."""
    return sorted(entry.name for entry in _zoo().iterdir() if (entry / "config.json").is_file())


def _without_pattern(name: str, pattern: str | None) -> ModelSource:
    word, colon, rest = name.partition(":")
    if colon and word == "preset":
        if rest not in PRESETS:
            raise CheckpointError(f"no preset called {rest!r}; {nearest(rest, PRESETS)}")
        return ModelSource(kind="preset", name=rest, pattern=pattern, folder=None)
    if colon and word == "zoo":
        if rest not in zoo_names():
            raise CheckpointError(f"no model called {rest!r} in the zoo; {nearest(rest, zoo_names())}")
        return ModelSource(kind="zoo", name=rest, pattern=pattern, folder=_zoo() / rest)
    if (folder := _folder(name)) is not None:
        return ModelSource(kind="folder", name=name, pattern=pattern, folder=folder)
    path = Path(name).expanduser()
    if _folder(f"{name}.run") is not None:
        raise CheckpointError(f"{name} is not finished: {name}.run holds its run. - start the same command again")
    if os.path.isfile(path):
        raise CheckpointError(f"{name} is a file, expected the folder around it. - try {path.parent}")
    if name.startswith((".", "/", "~")) or name.endswith("/") or not _HUB_ID.fullmatch(name):
        raise CheckpointError(f"no such folder: {name}. - expected a folder, a hub id, zoo:NAME or preset:NAME")
    return ModelSource(kind="hub", name=name, pattern=pattern, folder=_fetch(name))


def _folder(name: str) -> Path | None:
    path = Path(name).expanduser()
    # os.path answers False where pathlib raises: a name that is too long, or has a NUL in it.
    return path if name and os.path.isdir(path) else None


def _zoo() -> Path:
    return Path(str(resources.files("thrice.zoo")))


def _fetch(hub_id: str) -> Path:
    """Fetch a model's files from the hub, weights as safetensors where it has them; gives the folder in the cache."""
    import huggingface_hub

    try:
        folder = Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=list(_WANTED)))
        if not any(folder.glob("model*.safetensors")):
            folder = Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=[*_WANTED, *_PICKLED]))
    except (
        Exception
    ) as error:  # its own errors and those of the HTTP client beneath, which is another in each major release
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(
            f"no folder called {hub_id!r} here, and the model hub does not give it ({type(error).__name__}: {reason})\n"
            "- expected a folder, a hub id that can be reached or was fetched before, zoo:NAME or preset:NAME"
        ) from error
    return folder


def require_folder(source: ModelSource) -> Path:
    """Give the folder of a source; raises ConfigError for a preset, which has no files."""
    if source.folder is None:
        raise ConfigError(
            f"preset:{source.name} has random weights and no files; expected a folder, hub id or zoo:NAME"
        )
    return source.folder
