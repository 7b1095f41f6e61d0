"""Whether the first row of a csv or tsv file is what it is taken for: a header, or the first row of data."""

from __future__ import annotations

from collections.abc import Sequence

from thrice.data.columns import KNOWN_NAMES, plain, shown_names
from thrice.errors import DataError


def check_header(name: str, header: Sequence[str], *, kind: str) -> None:
    """Raise DataError where a header row repeats a name, or is written with another separator."""
    _check_repeated(name, header, hint=" (a file without a header row: give the names with --columns)")
    if kind == "csv" and len(header) == 1:
        if "\t" in header[0]:
            raise DataError(
                f"{name}: the header {header[0][:80]!r} holds tabs and no comma; --format tsv reads such a file"
            )
        if ";" in header[0]:
            raise DataError(
                f"{name}: the header {header[0][:80]!r} holds semicolons and no comma, expected fields between commas; "
                "save the file with commas or with tabs (--format tsv)"
            )


def check_stated(name: str, columns: Sequence[str], first: Sequence[str]) -> None:
    """Raise DataError where the names given for a file without a header row do not fit its first row."""
    if not all(column.strip() for column in columns):
        raise DataError(f"{name}: --columns {','.join(columns)!r} has an empty name; expected such as text,label")
    _check_repeated(name, columns, hint=" in --columns; expected different ones")
    if len(first) != len(columns):
        raise DataError(
            f"{name}: --columns names {len(columns)} columns ({shown_names(columns)}), the first row has {len(first)} "
            f"({shown_names(first)})"
        )
    if list(first) == list(columns) or all(plain(cell) in KNOWN_NAMES for cell in first):
        raise DataError(
            f"{name}: the first row, {shown_names(first)}, is a header, and --columns is for files without one; leave "
            "it out, or say what is what: --text-column, --label-column"
        )


def _check_repeated(name: str, header: Sequence[str], *, hint: str) -> None:
    repeated = sorted({column for column in header if header.count(column) > 1})
    if repeated:
        raise DataError(f"{name}: the header names {shown_names(repeated)} more than once{hint}")
