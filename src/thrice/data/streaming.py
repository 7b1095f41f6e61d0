"""Tables too big to hold: a file is checked from end to end first, and then read again in blocks of rows.

Both times in memory that does not grow with the file. A block is a piece of the file that ends where a record ends. The
parsers of `readers` read it, so a row in a block is the row that `read_table` gives.
"""

from __future__ import annotations

import dataclasses
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from thrice.data import readers
from thrice.data.decoding import cannot_be_read, decoded
from thrice.data.parquet import parquet_blocks
from thrice.data.readers import Cell, Parsed, Table, raise_for_rows, read_table
from thrice.data.squad import HEAD, begins_like_squad
from thrice.errors import ConfigError, DataError

BLOCK_ROWS = 8192
"""Rows of a block; of reviews half a million tokens, so that sorting by length inside a block is sorting enough."""
BLOCK_BYTES = 4 * 2**20
"""Bytes of the file after which a block ends, whatever the number of its rows."""
DELIMITED = ("csv", "tsv")
MOST_PROBLEMS = 10_000
"""Bad rows after which nobody needs to know how many more there are."""

Problems = list[tuple[int, str]]
Check = Callable[[Table], object]


@dataclass(frozen=True, kw_only=True)
class RowStream:
    """A checked table whose rows come in blocks."""

    source: str
    """File or data set, as the caller named it."""
    columns: tuple[str, ...]
    """Names over the whole file, in the order of `Table.columns`."""
    num_rows: int
    """Rows of the whole file."""
    read: Callable[[tuple[str, ...]], Iterator[Table]]
    """Columns -> the blocks, read anew."""

    def blocks(self) -> Iterator[Table]:
        """Give the rows in the file's order, every block with all columns; fingerprints are those of the blocks.

        Raises DataError where the file holds another number of rows, or other columns, than when it was checked.
        """
        done = 0
        changed = DataError(f"{self.source} was changed while it was read: it held {self.num_rows} rows; start again")
        for block in self.read(self.columns):
            done += len(block.rows)
            if block.columns != self.columns or done > self.num_rows:
                raise changed
            yield block
        if done < self.num_rows:
            raise changed


def stream_rows(
    source: str | Path, *, columns: Sequence[str] | None = None, format: str | None = None, check: Check | None = None
) -> RowStream:
    """Check a file or hub data set from end to end and give its rows in blocks.

    source, columns, format: as `read_table` has them. check: called with every block of the first reading; what it
    raises is raised once the file itself is known to be sound.
    Lines of json, csv, tsv and parquet need the memory of one block. A JSON array, a SQuAD-shaped file, a CoNLL file, a
    hub data set and what cannot be read twice, such as a pipe, are held whole.
    Raises DataError and ConfigError as `read_table` does, all bad rows of the file at once.
    """
    name, path = str(source), Path(source).expanduser()
    kind = readers.format_of(path, format) if path.is_file() else None
    if kind in (None, "conll") or (kind == "json" and _is_one_value(path)):
        table = read_table(source, columns=columns, format=format)
        if check is not None:
            check(table)
        return RowStream(source=name, columns=table.columns, num_rows=len(table.rows), read=lambda _: _slices(table))
    if columns is not None and kind not in DELIMITED:
        raise ConfigError(f"{name}: {kind} files name their own columns; column names are for csv and tsv files")

    def parsed() -> Iterator[tuple[int, Parsed]]:
        return _parquet(path) if kind == "parquet" else _text(path, name, kind, columns)

    names, count = _checked(name, parsed(), check)
    return RowStream(source=name, columns=names, num_rows=count, read=lambda names: _tables(name, parsed(), names))


def _checked(name: str, pieces: Iterator[tuple[int, Parsed]], check: Check | None) -> tuple[tuple[str, ...], int]:
    """Read every piece; give the columns and the number of rows. Raises DataError for all bad rows at once."""
    columns: dict[str, None] = {}
    problems: Problems = []
    refusal: DataError | None = None
    count, place = 0, "line"
    for before, (stated, expected, place, objects) in pieces:
        columns.update(dict.fromkeys(stated or ()))
        rows, lines, wrong = readers.collected(objects, columns)
        problems += [(before + line, problem) for line, problem in wrong]
        if len(problems) >= MOST_PROBLEMS:
            break
        count += len(rows)
        if not wrong and len(rows) != expected:
            first = before + 1
            raise DataError(
                f"{name}: {len(rows)} rows were read from {place} {first} on, where the file holds {expected}; "
                "is it damaged?"
            )
        if check is not None and refusal is None and rows and not problems:
            try:
                check(_block(name, tuple(columns), rows, lines, before))
            except DataError as error:
                refusal = error
    raise_for_rows(f"{name}: bad rows", problems, place=place)
    if not count:
        raise DataError(f"{name} has no rows" if columns else f"{name} is empty")
    if refusal is not None:
        raise refusal
    return tuple(columns), count


def _tables(name: str, pieces: Iterator[tuple[int, Parsed]], columns: tuple[str, ...]) -> Iterator[Table]:
    for before, (_, _, place, objects) in pieces:
        seen = dict.fromkeys(columns)
        rows, lines, wrong = readers.collected(objects, seen)
        raise_for_rows(f"{name}: bad rows", [(before + n, problem) for n, problem in wrong], place=place)
        if rows:
            yield _block(name, tuple(seen), rows, lines, before)


def _block(name: str, columns: tuple[str, ...], rows: list[dict[str, Cell]], lines: list[int], before: int) -> Table:
    ordered = [{column: row[column] for column in columns if column in row} for row in rows]
    fingerprint = readers.fingerprint(columns, ordered)
    places = [before + line for line in lines]
    return Table(columns=columns, rows=ordered, lines=places, source=name, fingerprint=fingerprint)


def _slices(table: Table) -> Iterator[Table]:
    """Give the rows of a table that is held whole, a block at a time."""
    for start in range(0, len(table.rows), BLOCK_ROWS):
        stop = start + BLOCK_ROWS
        yield dataclasses.replace(table, rows=table.rows[start:stop], lines=table.lines[start:stop])


# Pieces of a file: what stands before them (lines or rows), and their parsed objects


def _parquet(path: Path) -> Iterator[tuple[int, Parsed]]:
    done = 0
    for names, rows in parquet_blocks(path, size=BLOCK_ROWS):
        yield done, (names, len(rows), "row", enumerate(rows, start=1))
        done += len(rows)


def _text(path: Path, name: str, kind: str, columns: Sequence[str] | None) -> Iterator[tuple[int, Parsed]]:
    """Give the parsed pieces of a file of lines; the header of the first piece serves all others."""
    header = columns
    for before, data in _pieces(_records(raw_lines(path), name, kind)):
        text = decoded(data, name, first_line=before + 1)
        if kind in DELIMITED:
            parsed = readers.delimited_objects(data, text, name, kind, header, known=before > 0)
            header = parsed[0]
        else:
            parsed = readers.json_objects(data, text, name, lines=before > 0)
        yield before, parsed


def _pieces(records: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Give (lines before it, bytes) of every piece.

    A piece ends between two records that are not empty: the parsers complain of an empty line before another row and
    overlook those at the end, so they must see what follows. Nothing but empty lines gives no piece.
    """
    held: list[bytes] = []
    before = size = 0
    for line, data in records:
        full = len(held) >= BLOCK_ROWS or size >= BLOCK_BYTES
        if full and _says_something(held[-1]) and _says_something(data):
            yield before, b"".join(held)
            held, size, before = [], 0, line - 1
        held.append(data)
        size += len(data)
    if any(data.strip() for data in held):
        yield before, b"".join(held)


def _says_something(record: bytes) -> bool:
    return bool(record.strip(b' \t\r\n"'))


def _records(lines: Iterator[bytes], name: str, kind: str) -> Iterator[tuple[int, bytes]]:
    """Give (first line, bytes) of every record: a line, and in csv all lines of a record."""
    if kind != "csv":
        yield from enumerate(lines, start=1)
        return
    held: list[bytes] = []

    def fed() -> Iterator[str]:
        for number, data in enumerate(lines, start=1):
            held.append(data)
            yield decoded(data, name, first_line=number).removesuffix("\n")

    for line, _ in readers.csv_records(fed(), name):
        yield line, b"".join(held)
        held.clear()


def raw_lines(path: Path) -> Iterator[bytes]:
    """Give the lines of a file, gzipped or not, each with its end; the first without a byte order mark."""
    try:
        with _opened(path) as file:
            for number, line in enumerate(file):
                yield line if number else line.removeprefix(b"\xef\xbb\xbf")
    except (OSError, EOFError, zlib.error) as error:
        raise cannot_be_read(path, error) from error


def _opened(path: Path) -> BinaryIO | gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else open(path, "rb")


def _is_one_value(path: Path) -> bool:
    """Say whether a JSON file is one array, or could be one SQuAD-shaped object, and no lines."""
    head = b""
    for line in raw_lines(path):
        head += line[: HEAD - len(head)] if head or line.strip() else b""
        if len(head) >= HEAD:
            break
    return head.lstrip().startswith(b"[") or begins_like_squad(head.decode(errors="replace"))
