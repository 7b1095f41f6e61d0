"""Parquet files by pyarrow, a block of rows at a time, with every way of being damaged told as a DataError."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thrice.data.columns import shown_names
from thrice.errors import DataError


def parquet_blocks(path: Path, size: int) -> Iterator[tuple[list[str], list[dict[str, Any]]]]:
    """Give the names of the columns and at most `size` rows at a time; for a file without rows, one block of none.

    Raises DataError where the file is damaged, names a column twice or holds another number of rows than it says.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        names, expected = list(file.schema_arrow.names), file.metadata.num_rows
        if len(set(names)) < len(names):
            raise DataError(f"{path}: the schema names a column more than once: {shown_names(names)}")
        done = 0
        for batch in file.iter_batches(batch_size=size):
            rows = batch.to_pylist()
            done += len(rows)
            yield names, rows
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: a damaged name of a column
        raise DataError(f"{path} is no readable parquet file: {error}") from error
    if done != expected:
        raise DataError(f"{path}: {done} rows were read, the file holds {expected}; is it damaged?")
    if not done:
        yield names, []
