"""Documents for pre-training out of text files, jsonl, parquet and hub data sets, in memory that does not grow.

A document is a string of paragraphs, one a line, without empty lines; it is cut into sentences by `data.sentences`.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thrice.data.decoding import decoded
from thrice.data.hub_sets import edition_of, hub_set, names_a_hub_set
from thrice.data.parquet import parquet_blocks
from thrice.data.readers import FORMATS
from thrice.data.streaming import raw_lines
from thrice.errors import ConfigError, DataError, nearest

TEXT_ENDINGS = (".txt", ".text")
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
TEXT_COLUMNS = ("text", "content", "article", "document")
"""Where the text is looked for in rows, if nobody says."""
GZIP_RATIO = 3
"""Bytes of text in a byte of gzip, for the share of a source that is read; real ones lie between 2.3 and 4."""
OPEN_AT_ONCE = 64
"""Sources that are read in turn; more are read in groups, so that no limit of open files is met."""
LONGEST = 1 << 28
"""Bytes of a document from which on it is taken for a file that has no empty lines between its documents."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file or hub data set with documents."""

    name: str
    """As the caller named it; for a glob, the file it found."""
    size: int
    """Bytes of text in it, estimated for what is packed."""
    stamp: tuple[int, int] | None
    """Bytes on the disk and time of the last change in ns; None for a hub data set."""
    read: Callable[[], Iterator[str]]
    """Gives the documents, in order."""
    edition: tuple[int, str] | None = None
    """Rows and fingerprint of a hub data set, see `hub_sets.edition_of`; None for a file."""


def find_sources(sources: Sequence[str | Path] | str | Path, *, column: str | None = None) -> list[Source]:
    """Find the files and data sets that are meant, each once; globs give their files by name.

    sources: paths ending in .txt, .jsonl or .json (lines), each also .gz, or .parquet; globs of such (`**` goes
        through folders); where no such path exists, the id of a hub data set as `read_table` has it.
    column: with the text, for rows; without one: "text", "content", "article" or "document", or the only column.
    Raises DataError naming all that cannot be found, ConfigError for an ending that nobody knows.
    """
    if isinstance(sources, str | Path):
        sources = [sources]
    found: dict[str, Source] = {}
    problems = []
    for source in sources:
        name, path = str(source), Path(source).expanduser()
        if path.is_dir():
            problems.append(f"{name} is a folder; name its files: {name.rstrip('/')}/*.txt")
        elif path.exists():
            found.setdefault(name, _file(name, path, column))
        elif glob.has_magic(name):
            hits = [hit for hit in sorted(glob.glob(str(path), recursive=True)) if Path(hit).is_file()]
            for hit in hits:
                found.setdefault(hit, _file(hit, Path(hit), column))
            if not hits:
                problems.append(f"{name} matches no file")
        elif names_a_hub_set(name, FORMATS):
            found.setdefault(name, _hub(name, column))
        else:
            problems.append(f"{name}: no such file")
    if problems:
        raise DataError("; ".join(problems))
    if not found:
        raise ConfigError("no source of documents is named; expected text files, jsonl, parquet or hub data sets")
    return list(found.values())


def documents_of(sources: Sequence[Source], progress: Callable[[int, int], None] | None = None) -> Iterator[str]:
    """Give the documents of all sources, of each in its order, and of all in turn, so that they end together.

    Whoever takes the first tenth has a tenth of every source; of more than 64 sources, the groups of 64 come one after
    the other. The order depends on the sources' texts and sizes alone. progress: called with (bytes read, bytes in
    all), both estimated, now and then.
    """
    total = sum(source.size for source in sources)
    finished = 0
    groups = -(-len(sources) // OPEN_AT_ONCE)
    for number in range(groups):
        group = sources[number::groups]
        readers = [source.read() for source in group]
        read = [0] * len(group)
        live = list(range(len(group)))
        while live:
            turn = min(live, key=lambda place: read[place] / group[place].size)
            document = next(readers[turn], None)
            if document is None:
                live.remove(turn)
                read[turn] = group[turn].size
            else:
                read[turn] += len(document.encode("utf-8", "surrogatepass")) + 1
                yield document
            if progress is not None:
                done = sum(min(bytes, source.size) for bytes, source in zip(read, group, strict=True))
                progress(finished + done, total)
        finished += sum(source.size for source in group)


# One reader a kind of source


def _file(name: str, path: Path, column: str | None) -> Source:
    packed = path.suffix.lower() == ".gz"
    ending = (Path(path.stem).suffix if packed else path.suffix).lower()
    state = path.stat()
    if ending in TEXT_ENDINGS:
        read = lambda: _text_documents(path, name)  # noqa: E731
    elif ending in JSON_ENDINGS:
        read = lambda: _row_documents(name, "line", _json_rows(path, name), column)  # noqa: E731
    elif ending == ".parquet" and not packed:
        read = lambda: _row_documents(name, "row", _parquet_rows(path), column)  # noqa: E731
    else:
        raise ConfigError(
            f"{name}: documents come from .txt, .jsonl (also .gz) and .parquet files, "
            f"not from {ending or 'no ending'!r}"
        )
    size = max(1, state.st_size * (GZIP_RATIO if packed or ending == ".parquet" else 1))
    return Source(name=name, size=size, stamp=(state.st_size, state.st_mtime_ns), read=read)


def _hub(name: str, column: str | None) -> Source:
    loaded = hub_set(name)
    size = max(1, loaded.info.dataset_size or 1000 * loaded.num_rows)
    read = lambda: _row_documents(name, "row", _hub_rows(loaded), column)  # noqa: E731
    return Source(name=name, size=size, stamp=None, read=read, edition=edition_of(loaded))


def _text_documents(path: Path, name: str) -> Iterator[str]:
    """Give the paragraphs between empty lines."""
    held: list[bytes] = []
    first, size = 1, 0
    for number, line in enumerate(raw_lines(path), start=1):
        if line.strip():
            first, size = (first, size + len(line)) if held else (number, len(line))
            held.append(line)
            if size > LONGEST:
                raise DataError(
                    f"{name}: the document that begins at line {first} has more than {LONGEST >> 20} MB; expected an "
                    "empty line between documents. - if every line is one: sed G"
                )
        elif held:
            yield _clean(decoded(b"".join(held), name, first_line=first))
            held = []
    if held:
        yield _clean(decoded(b"".join(held), name, first_line=first))


def _clean(text: str) -> str:
    """Give the lines of a text that say something, without the white space around them."""
    return "\n".join(line for line in map(str.strip, text.split("\n")) if line)


Rows = Iterator[tuple[int, dict[str, Any]]]
"""Where a row stands, and its values."""


def _json_rows(path: Path, name: str) -> Rows:
    for number, line in enumerate(raw_lines(path), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(decoded(line, name, first_line=number).strip())
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name}: line {number} is no JSON object: {error}") from error
        if not isinstance(value, dict):
            what = "begins an array; write one object a line" if isinstance(value, list) else "is no JSON object"
            raise DataError(f"{name}: line {number} {what}")
        yield number, value


def _parquet_rows(path: Path) -> Rows:
    done = 0
    for _, rows in parquet_blocks(path, size=1024):
        yield from enumerate(rows, start=done + 1)
        done += len(rows)


def _hub_rows(loaded: Any) -> Rows:
    yield from enumerate(loaded, start=1)


def _row_documents(name: str, place: str, rows: Rows, column: str | None) -> Iterator[str]:
    """Give the text of every row; "" where it is null or missing, so that whoever counts can count it."""
    for index, (number, row) in enumerate(rows):
        if column is None:
            column = _text_column(name, list(row))
        elif index == 0 and column not in row:
            raise DataError(f"{name} has no column {column!r}; {nearest(column, row)}")
        text = row.get(column)
        if text is not None and not isinstance(text, str):
            raise DataError(f"{name}: {place} {number}: {column!r} is no text but {str(text)[:40]!r}")
        if text and _SURROGATE.search(text):
            raise DataError(f"{name}: {place} {number}: half of a surrogate pair, which is no text")
        yield _clean(text or "")


def _text_column(name: str, names: list[str]) -> str:
    known = [column for column in TEXT_COLUMNS if column in names]
    if not known and len(names) != 1:
        raise DataError(f"{name}: which column has the text? say it; there are {', '.join(names)}")
    return (known or names)[0]
