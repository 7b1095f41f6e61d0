"""corpus.json: what it holds, and how it is read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thrice.data.shards import KINDS, FileRecord, ShardRecord
from thrice.data.tokenizer import Frame
from thrice.errors import DataError
from thrice.files import read_json
from thrice.schema import misfits, newer_format

FORMAT = 1
"""Of corpus.json; raised too where the same text would give other shards."""


@dataclass(frozen=True, kw_only=True)
class SourceRecord:
    """What is written of a source, to know it again."""

    name: str
    """As the caller named it."""
    bytes: int | None
    """On the disk; None for a hub data set."""
    changed_ns: int | None
    """When it was last changed, in ns; None for a hub data set."""
    rows: int | None = None
    """Of a hub data set; absent for a file, and in older corpora."""
    fingerprint: str | None = None
    """Of a hub data set, see `hub_sets.edition_of`; absent for a file, and in older corpora."""


SKIPPED = ("duplicate", "empty", "too_short")
WANTED: dict[str, Any] = {
    "tokenizer": {
        "fingerprint": str,
        "vocab_size": int,
        "special_ids": {"cls": int, "sep": int, "unk": int, "mask": int, "pad?": int},
        "single": Frame,
        "pair": Frame,
        "second_type": int,
    },
    "settings": {"shard_characters": int, "min_tokens": int},
    "counts": {"documents": int, "sentences": int, "tokens": int, "characters": int},
    "skipped": dict.fromkeys(SKIPPED, int),
    "sources": list[SourceRecord],
    "shards": list[ShardRecord],
}


def named_counts(counts: Mapping[str, int]) -> str:
    """Give counts in words, those of 0 left away."""
    return ", ".join(f"{count:,} {_words(name, count)}" for name, count in counts.items() if count)


def _words(name: str, count: int) -> str:
    first, *rest = name.split("_")
    return " ".join([first.removesuffix("s") if count == 1 else first, *rest])


def read_facts(folder: Path) -> dict[str, Any]:
    """Read corpus.json; raises DataError where it is absent, damaged or of another format."""
    path = folder / "corpus.json"
    try:
        content = read_json(path)
    except FileNotFoundError:
        begun = any(folder.glob("shard-*.json"))
        why = "its preparation was not finished: start it again" if begun else "prepare one: thrice corpus"
        raise DataError(f"{folder} holds no corpus; {why}") from None
    except NotADirectoryError:
        raise DataError(f"{folder} is a file; make a corpus of it first: thrice corpus {folder} --out NEW") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    problems = newer_format(content, FORMAT) or misfits(content, WANTED)
    if problems:
        raise DataError(f"{path} is damaged: {'; '.join(problems[:5])}")
    return dict(content)


def record_of(content: dict[str, Any]) -> ShardRecord:
    """Give a record out of JSON that was checked."""
    if content["files"].keys() != set(KINDS):
        raise DataError(f"a shard with the files {', '.join(content['files'])}, expected {', '.join(KINDS)}")
    files = {kind: FileRecord(**record) for kind, record in content["files"].items()}
    return ShardRecord(**{**content, "files": files})


def frame_of(content: dict[str, list[int]]) -> Frame:
    """Give special tokens out of JSON that was checked."""
    return Frame(**{name: tuple(ids) for name, ids in content.items()})
