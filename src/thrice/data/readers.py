"""Tables of strings out of jsonl, csv, tsv, parquet, CoNLL files and hub data sets, exactly as they were written."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thrice.data.columns import Columns, guess_columns
from thrice.data.conll import conll_objects
from thrice.data.decoding import bytes_of, decoded
from thrice.data.headers import check_header, check_stated
from thrice.data.hub_sets import hub_objects, names_a_hub_set
from thrice.data.parquet import parquet_blocks
from thrice.data.squad import begins_like_squad, is_squad, num_questions, squad_rows
from thrice.errors import ConfigError, DataError, nearest

__all__ = ["Cell", "Columns", "Table", "guess_columns", "read_table"]

FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet", ".tsv": "tsv"}
FORMATS |= {".bio": "conll", ".conll": "conll"}
FORMAT_NAMES = ("conll", "csv", "json", "jsonl", "parquet", "tsv")
SURROGATE = re.compile("[\ud800-\udfff]")

Cell = str | list[str]
"""One value of a table: a string, or the strings of a list (several labels)."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of strings with named columns."""

    columns: tuple[str, ...]
    """Names in the order of the file; for JSON in the order of their first appearance."""
    rows: list[dict[str, Cell]]
    """One dict a row, keys in the order of `columns`; a null or missing value has no key."""
    lines: list[int]
    """Where each row starts: the line of the file from 1; for parquet, hub data sets and SQuAD the row from 1."""
    source: str
    """File or data set, as the caller named it."""
    fingerprint: str
    """sha256 (hex) of columns and rows: the same for a file and its gzipped copy."""

    def texts(self, column: str) -> list[str]:
        """Give one column as strings; raises DataError naming the lines where it is null, missing or a list."""
        values = [row.get(column) for row in self.rows]
        raise_for_rows(
            f"{self.source}: column {column!r} has no text",
            [
                (line, "null or missing" if value is None else "a list")
                for line, value in zip(self.lines, values, strict=True)
                if not isinstance(value, str)
            ],
        )
        return [value for value in values if isinstance(value, str)]

    def labels(self, column: str) -> list[Cell]:
        """Give one column as strings or lists of strings; raises DataError naming the lines where it is missing."""
        values = [row.get(column) for row in self.rows]
        raise_for_rows(
            f"{self.source}: column {column!r} has no label",
            [(line, "null or missing") for line, value in zip(self.lines, values, strict=True) if value is None],
        )
        return [value for value in values if value is not None]


def read_table(source: str | Path, *, columns: Sequence[str] | None = None, format: str | None = None) -> Table:
    """Read a file or a hub data set; every value stays the string that was written ("NA", "007" and " x" survive).

    source: a path ending in .jsonl, .json (lines or one array), .csv, .tsv, each also .gz, or .parquet; where no
        such path exists, the id of a hub data set: "owner/name", "owner/name:config", "owner/name:config@split".
        A .json file in the shape of SQuAD gives one row a question, see `data.squad`.
        A .conll or .bio file, also .gz, gives one row a sentence, see `data.conll`.
    columns: names for a csv or tsv file that has no header row, or for the fields of a CoNLL file.
    format: "jsonl", "json", "csv", "tsv", "conll" or "parquet", for other file names.

    tsv is split on tabs and nothing else: quotes mean nothing. csv follows RFC 4180. Lines end with \\n or \\r\\n only.
    JSON numbers and booleans become the text they were written as; other nested values become JSON text.
    Raises DataError: all bad rows at once, with their line numbers; ConfigError for arguments that do not fit.
    """
    name = str(source)
    path = Path(source).expanduser()
    if path.is_dir():
        raise DataError(f"{name} is a folder; name one file in it")
    if not path.exists():
        if format is not None or columns is not None or not names_a_hub_set(name, FORMATS):
            raise DataError(f"{name}: no such file")
        return _table(name, hub_objects(name))
    kind = format_of(path, format)
    if columns is not None and kind not in ("csv", "tsv", "conll"):
        raise ConfigError(f"{name}: {kind} files name their own columns; column names are for csv and tsv files")
    if kind == "parquet":
        return _table(name, _parquet_objects(path))
    data = bytes_of(path)
    text = decoded(data, name)
    if not text.strip("\r\n\t "):
        raise DataError(f"{name} is empty")
    if kind == "json":
        return _table(name, json_objects(data, text, name))
    if kind == "conll":
        return _table(name, conll_objects(text, name, columns))
    return _table(name, delimited_objects(data, text, name, kind, columns))


# Where the bytes come from


def format_of(path: Path, format: str | None) -> str:
    if format is not None:
        if format not in FORMAT_NAMES:
            raise ConfigError(f"no format called {format!r}; {nearest(format, FORMAT_NAMES)}")
        return "json" if format == "jsonl" else format
    suffix = Path(path.stem).suffix if path.suffix.lower() == ".gz" else path.suffix
    if suffix.lower() not in FORMATS:
        raise DataError(
            f"{path}: cannot tell the format from the ending {suffix!r}; say it: --format {'|'.join(FORMAT_NAMES)}"
        )
    return FORMATS[suffix.lower()]


def _lines(text: str) -> list[str]:
    """Split on \\n alone; `str.splitlines` would also split on U+0085, U+2028, \\x1c and others, inside texts."""
    pieces = text.split("\n")
    return pieces[:-1] if pieces[-1] == "" else pieces


# One parser a format: each yields (line, value of every column or a complaint)

Parsed = tuple[list[str] | None, int, str, Iterator[tuple[int, Any]]]
"""Columns if the file states them, rows by an independent count, what a place is called, and the objects."""


def _table(source: str, parsed: Parsed) -> Table:
    """Make the table of (line, object) pairs; raises DataError for all bad rows at once and for a wrong count."""
    stated, expected, place, objects = parsed
    columns: dict[str, None] = dict.fromkeys(stated or ())
    rows, lines, problems = collected(objects, columns)
    raise_for_rows(f"{source}: bad rows", problems, place=place)
    if len(rows) != expected:
        raise DataError(f"{source}: {len(rows)} rows were read, the file holds {expected}; is it damaged?")
    if not rows:
        raise DataError(f"{source} has no rows")
    rows = [{name: row[name] for name in columns if name in row} for row in rows]
    names = tuple(columns)
    return Table(columns=names, rows=rows, lines=lines, source=source, fingerprint=fingerprint(names, rows))


def collected(
    objects: Iterator[tuple[int, Any]], columns: dict[str, None]
) -> tuple[list[dict[str, Cell]], list[int], list[tuple[int, str]]]:
    """Give rows, their lines and the problems of (line, object) pairs; new names of columns are added to `columns`."""
    rows, lines, problems = [], [], []
    for line, value in objects:
        if isinstance(value, str):
            problems.append((line, value))
            continue
        try:
            cells = {key: _cell(item) for key, item in value.items()}
        except RecursionError:
            problems.append((line, "a value is nested too deeply"))
            continue
        if any(SURROGATE.search(cell if isinstance(cell, str) else "".join(cell or ())) for cell in cells.values()):
            problems.append((line, "half of a surrogate pair, which is no text"))
        columns.update(dict.fromkeys(cells))
        rows.append({key: cell for key, cell in cells.items() if cell is not None})
        lines.append(line)
    return rows, lines, problems


def delimited_objects(
    data: bytes, text: str, name: str, kind: str, columns: Sequence[str] | None, *, known: bool = False
) -> Parsed:
    """Parse csv or tsv; known: the columns are those of an earlier piece, which need no second look."""
    records = csv_records(_lines(text), name) if kind == "csv" else _tsv_records(text)
    if columns is None:
        header_line, header = next(records)
        check_header(name, header, kind=kind)
    else:
        first = next(records)
        header_line, header, records = 0, list(columns), itertools.chain([first], records)
        if not known:
            check_stated(name, header, first[1])
    single = len(header) == 1
    # Quoted csv fields may hold line ends: take each as one letter, then a record is a line.
    flat = re.sub(rb'(?<![^,\n])"(?:[^"]|"")*+"', b"x", data) if kind == "csv" else data
    flat = flat if single else flat.rstrip(b"\r\n")
    expected = flat.count(b"\n") + (not flat.endswith(b"\n")) - (header_line > 0)

    def objects() -> Iterator[tuple[int, Any]]:
        blank: list[int] = []
        for line, fields in records:
            if fields in ([], [""]) and not single:
                blank.append(line)  # harmless at the end of the file, an error before another row
                continue
            yield from ((line, "an empty line") for line in blank)
            blank.clear()
            fields = fields or [""]
            fits = len(fields) == len(header)
            yield line, dict(zip(header, fields, strict=True)) if fits else f"{len(fields)} fields, not {len(header)}"

    return header, expected, "line", objects()


def _tsv_records(text: str) -> Iterator[tuple[int, list[str]]]:
    for line, record in enumerate(_lines(text), start=1):
        yield line, record.removesuffix("\r").split("\t")


def csv_records(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in lines), strict=True)
    start = 1
    while True:
        # The limit, 131072 characters a field unless set, is one value for the whole process.
        limit = csv.field_size_limit(2**31 - 1)
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{name}: line {start}: {error}; an unbalanced quote? a quote inside a quoted field is written twice, "
                "and --format tsv reads quotes as plain characters"
            ) from error
        finally:
            csv.field_size_limit(limit)
        yield start, record
        start = reader.line_num + 1


class _Number(str):
    """A JSON number as it was written: 1.0 stays "1.0", twenty digits stay twenty digits."""

    __slots__ = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(value := dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return value


def _no_json(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


DECODER = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_no_json, object_pairs_hook=_object)


def json_objects(data: bytes, text: str, name: str, *, lines: bool = False) -> Parsed:
    """Parse JSON lines, one array of objects, or one SQuAD-shaped object; lines: it is known to be lines."""
    if not lines and text.lstrip(" \t\r\n").startswith("["):
        try:
            expected = len(DECODER.decode(text))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name} begins like a JSON array and is none: {error}") from error
        return None, expected, "line", _array_items(text)
    if not lines and begins_like_squad(text) and (squad := _squad_object(text, name)) is not None:
        return None, num_questions(squad), "question", squad_rows(squad)
    expected = sum(1 for line in data.split(b"\n") if line.strip(b" \t\r"))

    def objects() -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(_lines(text), start=1):
            if line.strip(" \t\r"):
                try:
                    yield number, _checked_object(DECODER.decode(line))
                except (ValueError, RecursionError) as error:
                    yield number, f"no JSON object: {error}"

    return None, expected, "line", objects()


def _squad_object(text: str, name: str) -> dict[str, Any] | None:
    """Give the SQuAD-shaped object that is the whole text; None where the text is lines of other objects."""
    try:
        value = DECODER.decode(text)
        return value if is_squad(value) else None
    except (ValueError, RecursionError) as error:
        try:
            DECODER.decode(text.lstrip().partition("\n")[0])
        except (ValueError, RecursionError):
            raise DataError(f"{name} begins like a SQuAD file and is no JSON: {error}") from error
        return None


def _array_items(text: str) -> Iterator[tuple[int, Any]]:
    """Give the items of a valid JSON array with the line each begins on."""
    gap = re.compile(r"[^\s,]")
    place, counted, line = text.index("[") + 1, 0, 1
    while (found := gap.search(text, place)) and found[0] != "]":
        line += text.count("\n", counted, found.start())
        counted = found.start()
        value, place = DECODER.raw_decode(text, counted)
        yield line, _checked_object(value)


def _checked_object(value: Any) -> Any:
    if isinstance(value, dict):
        return value
    try:
        return f"not an object but {str(value)[:40]!r}"
    except RecursionError:
        return "not an object but a list nested too deeply"


def _parquet_objects(path: Path) -> Parsed:
    names: list[str] = []
    values: list[dict[str, Any]] = []
    for block_names, rows in parquet_blocks(path, size=65_536):
        names = block_names
        values += rows
    return names, len(values), "row", enumerate(values, start=1)


# Values


def _cell(value: Any) -> Cell | None:
    """Give a value as string or list of strings; None for null, NaN and a flat list with a null in it."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if value is None or type(value) is str:
        return value
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        words = [_cell(item) for item in value]
        return None if None in words else [word for word in words if isinstance(word, str)]
    return _json_text(value)


def _json_text(value: Any) -> str:
    """Give a value as JSON, numbers as they were written; what JSON does not know (dates) as Python's string."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {_json_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json_text, value)) + "]"
    if isinstance(value, str | bool | int | float) or value is None:
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def fingerprint(columns: tuple[str, ...], rows: list[dict[str, Cell]]) -> str:
    digest = hashlib.sha256(json.dumps(columns, ensure_ascii=False).encode())
    for row in rows:
        digest.update(json.dumps([row.get(name) for name in columns], ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def raise_for_rows(what: str, problems: list[tuple[int, str]], *, place: str = "line") -> None:
    """Raise DataError that counts the bad rows and shows the first five with their places, if there are any."""
    if not problems:
        return
    shown = "; ".join(f"{place} {line}: {problem}" for line, problem in problems[:5])
    more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
    raise DataError(f"{what} ({len(problems)}): {shown}{more}")
