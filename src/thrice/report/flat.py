"""The rows of a study as one flat table, for spreadsheets and data frames."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thrice.files import written_beside

if TYPE_CHECKING:
    import pyarrow as pa

PLAIN = ("arm", "model", "task", "kind", "seed")
RUN = (
    "metric",
    "best_dev",
    "epoch1_dev",
    "best_epoch",
    "collapsed",
    "steps",
    "packed",
    "threads",
    "seconds",
    "peak_memory_bytes",
    "started",
    "finished",
)


def flat_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Give one flat mapping per row, all with the same keys in the same order.

    Grid points become `point.FIELD`, test scores `test.METRIC`; `epochs` is the number of epochs. None: not there.
    """
    listed = list(rows)
    points = dict.fromkeys(field for row in listed for field in row.get("point") or {})
    metrics = dict.fromkeys(
        name for row in listed for name, value in (row.get("test") or {}).items() if isinstance(value, int | float)
    )
    return [
        {
            **{name: row.get(name) for name in PLAIN},
            **{f"point.{field}": (row.get("point") or {}).get(field) for field in points},
            **{name: row.get(name) for name in RUN},
            **{f"test.{name}": (row.get("test") or {}).get(name) for name in metrics},
            "epochs": len(row.get("epochs") or ()),
        }
        for row in listed
    ]


def write_rows(rows: Iterable[Mapping[str, Any]], folder: Path) -> dict[str, Path]:
    """Write rows.csv and rows.parquet, one line per row, and give their paths under "csv" and "parquet"."""
    from pyarrow import csv, parquet

    table = _table(flat_rows(rows))
    paths = {"csv": Path(folder) / "rows.csv", "parquet": Path(folder) / "rows.parquet"}
    with written_beside(paths["csv"]) as beside:
        csv.write_csv(table, beside)
    with written_beside(paths["parquet"]) as beside:
        parquet.write_table(table, beside)
    return paths


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """Give the rows as columns; a column of several kinds of values, such as a grid over texts and numbers, is text."""
    import pyarrow as pa

    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else dict.fromkeys((*PLAIN, *RUN)))}
    return pa.table({name: _one_kind(values) for name, values in columns.items()})


def _one_kind(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values] if float in kinds else values
    if len(kinds) < 2 and kinds <= {str, bool}:
        return values
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
