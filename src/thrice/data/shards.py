"""Shards of a corpus: token ids with the borders of sentences and documents, in files that are mapped into memory.

shard-00000.ids.npy         (n,) uint16, or uint32 for vocabularies above 65536: ids without special tokens
shard-00000.sentences.npy   (s + 1,) int64: sentence i is ids[sentences[i]:sentences[i + 1]]; none is empty
shard-00000.documents.npy   (d + 1,) int64: document i is the sentences documents[i] to documents[i + 1]; none is empty
shard-00000.words.npy       (ceil(n / 8),) uint8: one bit a token, the first in the highest bit; 0 where a token goes on
                            with the word of the one before
"""

from __future__ import annotations

import hashlib
import io
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thrice.errors import DataError
from thrice.files import write_atomically

KINDS = ("ids", "sentences", "documents", "words")
"""The files of a shard."""
AGAIN = ". - remove that file and prepare the corpus again from the same sources; the other shards are kept"


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """What is known of one file of a shard."""

    bytes: int
    """Its size."""
    sha256: str
    """Of its content, hex."""


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """What the table of a corpus says of one shard."""

    text: str
    """blake2b (hex, 32 digits) of the text it was made of."""
    tokens: int
    """n, special tokens aside."""
    sentences: int
    """s."""
    documents: int
    """d."""
    characters: int
    """Characters of the text that was kept, white space between sentences aside."""
    too_short: int
    """Documents left out for having too few tokens."""
    files: dict[str, FileRecord]
    """By kind, see `KINDS`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Shard:
    """The arrays of one shard, mapped from their files."""

    ids: np.ndarray
    """(n,) uint16 or uint32."""
    sentences: np.ndarray
    """(s + 1,) int64: first token of each sentence, and n."""
    documents: np.ndarray
    """(d + 1,) int64: first sentence of each document, and s."""
    words: np.ndarray
    """(ceil(n / 8),) uint8, packed."""

    def word_starts(self) -> np.ndarray:
        """Give (n,) bool: False where a token goes on with the word of the one before."""
        return np.unpackbits(self.words, count=len(self.ids)).view(np.bool_)


def dtype_for(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    """Give the type that holds the ids of a vocabulary."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def shard_path(folder: Path, number: int, kind: str) -> Path:
    """Give where a file of a shard lies; kind: one of `KINDS`."""
    return folder / f"shard-{number:05d}.{kind}.npy"


def write_shard(folder: Path, number: int, shard: Shard) -> dict[str, FileRecord]:
    """Write the files of a shard, each beside its place and renamed into it."""
    files = {}
    for kind in KINDS:
        buffer = io.BytesIO()
        np.save(buffer, getattr(shard, kind), allow_pickle=False)
        content = buffer.getvalue()
        write_atomically(shard_path(folder, number, kind), content)
        files[kind] = FileRecord(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    return files


def open_shard(folder: Path, number: int, record: ShardRecord, *, vocab_size: int) -> Shard:
    """Map the files of a shard into memory and check every size, length, offset and border.

    Raises DataError that names the file which is absent, cut or damaged.
    """
    lengths = {
        "ids": record.tokens,
        "sentences": record.sentences + 1,
        "documents": record.documents + 1,
        "words": (record.tokens + 7) // 8,
    }
    types = {"ids": dtype_for(vocab_size), "words": np.uint8}
    arrays = {}
    for kind, length in lengths.items():
        path = shard_path(folder, number, kind)
        arrays[kind] = _mapped(path, record.files[kind], length, np.dtype(types.get(kind, np.int64)))
    shard = Shard(**arrays)
    for kind, last, what in (("sentences", record.tokens, "tokens"), ("documents", record.sentences, "sentences")):
        borders = getattr(shard, kind)
        if borders[0] != 0 or borders[-1] != last or (borders[1:] <= borders[:-1]).any():
            raise DataError(
                f"{shard_path(folder, number, kind)} is damaged: its borders should rise from 0 to {last} {what}, "
                f"and go from {borders[0]} to {borders[-1]}{AGAIN}"
            )
    return shard


def verify_shard(folder: Path, number: int, record: ShardRecord) -> None:
    """Compare the checksums of a shard's files; raises DataError that names the first which differs."""
    for kind in KINDS:
        path = shard_path(folder, number, kind)
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != record.files[kind].sha256:
            raise DataError(f"{path} is damaged: its checksum is not the one in corpus.json{AGAIN}")


def is_whole(folder: Path, number: int, record: ShardRecord) -> bool:
    """Say whether the files of a shard are there with the sizes they should have."""
    for kind in KINDS:
        path = shard_path(folder, number, kind)
        if not path.is_file() or path.stat().st_size != record.files[kind].bytes:
            return False
    return True


def _mapped(path: Path, record: FileRecord, length: int, dtype: np.dtype[Any]) -> np.ndarray:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise DataError(f"{path} is not there{AGAIN}") from None
    if size != record.bytes:
        word = "cut short" if size < record.bytes else "damaged"
        raise DataError(f"{path} is {word}: it has {size} bytes, expected {record.bytes}{AGAIN}")
    try:
        # Nothing cannot be mapped.
        array = np.load(path, mmap_mode="r" if length else None, allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError, TypeError, tokenize.TokenError) as error:  # numpy's parser
        raise DataError(f"{path} is damaged: {error}{AGAIN}") from error
    if array.shape != (length,) or array.dtype != dtype:
        raise DataError(f"{path} is damaged: it holds {array.shape} {array.dtype}, expected ({length},) {dtype}{AGAIN}")
    return array
