"""Cells with relation triples to (subject, predicate, object), in the shapes that data sets have them."""

from __future__ import annotations

import json
from typing import Any

from thrice.data.readers import Cell, Table, raise_for_rows
from thrice.errors import DataError, nearest

TRIPLE_COLUMNS = ("spo_list", "triples", "relations", "spo")
"""Names by which the column of the triples is known."""
PARTS = ("subject", "predicate", "object")

Triple = tuple[str, str, str]
"""Subject, predicate and object."""


def triple_column(table: Table, named: str | None) -> str:
    """Give the column of the triples; raises DataError where none is called so."""
    if named is not None:
        if named not in table.columns:
            raise DataError(f"{table.source} has no column {named!r}; {nearest(named, table.columns)}")
        return named
    found = [name for name in table.columns if name.lower() in TRIPLE_COLUMNS]
    if len(found) != 1:
        seen = ", ".join(found) if found else "none of them"
        raise DataError(
            f"{table.source}: which column holds the triples? expected one of {', '.join(TRIPLE_COLUMNS)}, found "
            f"{seen}; columns: {', '.join(table.columns[:12])}; name it: --label-column"
        )
    return found[0]


def triples_of(table: Table, column: str) -> tuple[list[tuple[Triple, ...]], int]:
    """Give the triples of every row, each once, and how many slots of objects beside "@value" were left out.

    Raises DataError that names the lines where a cell is missing or holds something else.
    """
    found, problems, left_out = [], [], 0
    for line, cell in zip(table.lines, table.labels(column), strict=True):
        try:
            triples, more = triples_in(cell)
        except DataError as error:
            problems.append((line, str(error)))
            continue
        left_out += more
        found.append(triples)
    raise_for_rows(f"{table.source}: column {column!r} has entries that are no triples", problems)
    return found, left_out


def triples_in(cell: Cell) -> tuple[tuple[Triple, ...], int]:
    """Give the triples of one cell, each once, and how many slots beside "@value" were left out.

    A cell is a JSON list, perhaps empty. An entry is [subject, predicate, object] or an object with these keys, more
    are left alone. An object of a triple may be {"@value": text} (LIC and DuIE), whose further slots are left out.
    """
    entries: Any = cell
    if isinstance(cell, str):
        try:
            entries = json.loads(cell, parse_int=str, parse_float=str)
        except (ValueError, RecursionError):
            raise DataError(f"{cell[:40]!r}, expected a JSON list of triples") from None
    if not isinstance(entries, list):
        raise DataError(f"{str(cell)[:40]!r}, expected a list of triples")
    triples: dict[Triple, None] = {}
    left_out = 0
    for entry in entries:
        parts = [entry.get(part) for part in PARTS] if isinstance(entry, dict) else entry
        if not isinstance(parts, list) or len(parts) != 3:
            raise DataError(f"{str(entry)[:40]!r}, expected [subject, predicate, object]")
        if isinstance(parts[2], dict):
            left_out += len(parts[2]) - ("@value" in parts[2])
            parts = [*parts[:2], parts[2].get("@value")]
        wrong = [name for name, part in zip(PARTS, parts, strict=True) if not isinstance(part, str) or not part.strip()]
        if wrong:
            raise DataError(f"{str(entry)[:40]!r}, {' and '.join(wrong)} should be text that is not empty")
        triples[str(parts[0]), str(parts[1]), str(parts[2])] = None
    return tuple(triples), left_out
