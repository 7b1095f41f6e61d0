"""Texts to ids, once: flat arrays, long texts cut as asked, kept in a cache on disk."""

from __future__ import annotations

import array
import hashlib
import importlib.metadata
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from thrice.data.tokenizer import Tokenizer, longest_first
from thrice.errors import ConfigError
from thrice.files import write_atomically

LOG = logging.getLogger(__name__)

TRUNCATIONS = ("head", "head+tail", "chunks")
BLOCK = 1024
"""Texts tokenised at once; on reviews and two cores blocks of 8192 gave 0.6 to 0.7 of the speed of blocks of 512."""
FORMAT = 1
"""Part of the cache key; raised whenever the same texts would be encoded differently."""
DTYPES = {"ids": np.int32, "type_ids": np.uint8, "offsets": np.int64, "owner": np.int64, "num_cut": np.int64}


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """Sequences of tokens, one after the other."""

    ids: np.ndarray
    """(N,) int32: input_ids of all sequences, special tokens included."""
    type_ids: np.ndarray
    """(N,) uint8: token_type_ids."""
    offsets: np.ndarray
    """(B + 1,) int64: sequence i is ids[offsets[i]:offsets[i + 1]]."""
    owner: np.ndarray
    """(B,) int64: the text of each sequence; 0, 1, 2, ... except with chunks, where a long text has several."""
    num_cut: int
    """Texts or pairs longer than max_length: cut, or spread over several chunks."""

    def __len__(self) -> int:
        return len(self.owner)

    def __getitem__(self, index: int) -> np.ndarray:
        """Give the ids of one sequence."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """(B,) int64: tokens of each sequence."""
        return np.diff(self.offsets)

    def take(self, indices: Sequence[int] | np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Give input_ids and token_type_ids of the chosen sequences, in that order, for `model.packing.pack`."""
        spans = [(self.offsets[index], self.offsets[index + 1]) for index in indices]
        return [self.ids[start:stop] for start, stop in spans], [self.type_ids[start:stop] for start, stop in spans]


def encode_texts(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    max_length: int,
    truncation: str = "head",
    cache: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Encoded:
    """Encode texts or pairs of texts, or take them from the cache.

    max_length: tokens a sequence, special tokens included.
    truncation: what becomes of longer texts. "head" keeps the beginning, as stock `truncation=True` does; pairs lose
        the end of the longer text first. "head+tail" keeps 128 parts of 510 from the beginning and the rest from the
        end (Sun et al. 2019, arXiv 1905.05583: 128 and 382 tokens of 512). "chunks" keeps everything, in
        consecutive sequences without overlap. The last two are for single texts.
    cache: look in and write to $THRICE_CACHE, else $XDG_CACHE_HOME/thrice, else ~/.cache/thrice.
    progress: called with (texts done, texts in all) after every block.
    Strings such as "[SEP]" inside a text become that token, as in stock transformers.
    Raises ConfigError for a max_length without room for text, an unknown truncation, or one that does not fit pairs.
    """
    frame = tokenizer.single if pairs is None else tokenizer.pair
    least = len(frame) + (1 if pairs is None else 2)
    if max_length < least:
        raise ConfigError(f"max_length is {max_length}; {len(frame)} special tokens and text need at least {least}")
    if truncation not in TRUNCATIONS:
        raise ConfigError(f"no truncation called {truncation!r}; known: {', '.join(TRUNCATIONS)}")
    if pairs is not None and truncation != "head":
        raise ConfigError(f"truncation {truncation!r} is for single texts; pairs are cut longest first: use 'head'")
    if pairs is not None and len(pairs) != len(texts):
        raise ConfigError(f"{len(texts)} first texts and {len(pairs)} second texts; one for each is needed")

    path = _cache_folder() / f"{_key(tokenizer, texts, pairs, max_length, truncation)}.safetensors" if cache else None
    encoded = None if path is None else _read(path)
    if encoded is None:
        encoded = _encode(tokenizer, texts, pairs, max_length, truncation, progress)
        if path is not None:
            _write(path, encoded)
    elif progress is not None:
        progress(len(texts), len(texts))
    return encoded


def _encode(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    max_length: int,
    truncation: str,
    progress: Callable[[int, int], None] | None,
) -> Encoded:
    ids, type_ids, lengths, owner = array.array("i"), bytearray(), array.array("q"), array.array("q")
    num_cut = 0
    for start in range(0, len(texts), BLOCK):
        firsts = tokenizer.content_ids(texts[start : start + BLOCK])
        seconds = tokenizer.content_ids(pairs[start : start + BLOCK]) if pairs is not None else None
        for place, first in enumerate(firsts):
            second = seconds[place] if seconds is not None else None
            frame = tokenizer.single if second is None else tokenizer.pair
            room = max_length - len(frame)
            num_cut += len(first) + len(second or ()) > room
            for sequence, types in _sequences(tokenizer, first, second, room, truncation):
                ids.extend(sequence)
                type_ids.extend(types)
                lengths.append(len(sequence))
                owner.append(start + place)
        if progress is not None:
            progress(min(start + BLOCK, len(texts)), len(texts))
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(np.array(lengths, dtype=np.int64), out=offsets[1:])
    return Encoded(
        ids=np.array(ids, dtype=np.int32),
        type_ids=np.frombuffer(bytes(type_ids), dtype=np.uint8).copy(),
        offsets=offsets,
        owner=np.array(owner, dtype=np.int64),
        num_cut=num_cut,
    )


def _sequences(
    tokenizer: Tokenizer, first: list[int], second: list[int] | None, room: int, truncation: str
) -> Iterator[tuple[list[int], list[int]]]:
    """Give (input_ids, token_type_ids) of each sequence that one text or pair becomes."""
    if second is not None:
        keep_first, keep_second = longest_first(len(first), len(second), room)
        yield tokenizer.join(first[:keep_first], second[:keep_second])
    elif len(first) <= room or truncation == "head":
        yield tokenizer.join(first[:room])
    elif truncation == "head+tail":
        head = round(room * 128 / 510)
        yield tokenizer.join(first[:head] + first[len(first) - (room - head) :])
    else:
        yield from (tokenizer.join(first[start : start + room]) for start in range(0, len(first), room))


# The cache


def _cache_folder() -> Path:
    if os.environ.get("THRICE_CACHE"):
        return Path(os.environ["THRICE_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thrice"


def _key(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int, truncation: str
) -> str:
    """Give the sha256 of everything that decides the ids."""
    version = importlib.metadata.version("tokenizers")
    settings = (FORMAT, version, tokenizer.fingerprint, tokenizer.second_type, max_length, truncation, pairs is None)
    digest = hashlib.sha256(repr(settings).encode())
    for text in itertools.chain(texts, pairs or ()):
        content = text.encode("utf-8")
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def _read(path: Path) -> Encoded | None:
    """Give what a cache file holds; None where there is no file or a damaged one."""
    import safetensors
    import safetensors.numpy

    try:
        arrays = safetensors.numpy.load(path.read_bytes())
        whole = arrays.keys() == {*DTYPES, "digest"} and bytes(arrays.pop("digest")) == _digest(arrays)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        LOG.warning("cache file %s cannot be read (%s): encoding again", path, error)
        return None
    if not whole:
        LOG.warning("cache file %s is damaged: encoding again", path)
        return None
    num_cut = int(arrays.pop("num_cut")[0])
    return Encoded(**arrays, num_cut=num_cut)


def _write(path: Path, encoded: Encoded) -> None:
    """Write a cache file; where that is impossible, warn and go on without."""
    import safetensors.numpy

    arrays = {name: np.atleast_1d(np.asarray(getattr(encoded, name), dtype=dtype)) for name, dtype in DTYPES.items()}
    digest = np.frombuffer(_digest(arrays), dtype=np.uint8)
    try:
        write_atomically(path, safetensors.numpy.save({**arrays, "digest": digest}))
    except OSError as error:
        LOG.warning("cannot write the cache file %s (%s): the texts will be encoded again next time", path, error)


def _digest(arrays: dict[str, np.ndarray]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.digest()
