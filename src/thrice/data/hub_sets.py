"""Data sets of the Hugging Face hub as rows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thrice.errors import DataError

if TYPE_CHECKING:
    import datasets

    from thrice.data.readers import Parsed

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?(:[\w.-]+)?(@[\w.-]+)?")


def names_a_hub_set(name: str, endings: Iterable[str]) -> bool:
    """Whether a name could be a hub id: not a file name with a known ending, not inside an existing folder."""
    file_like = Path(name).suffix.lower() in {*endings, ".gz", ".data", ".txt"}
    inside = "/" in name and Path(name).parent.is_dir()
    return HUB_NAME.fullmatch(name) is not None and not file_like and not inside


def hub_set(name: str) -> datasets.Dataset:
    """Load one split of a hub data set, see `readers.read_table` for its name; raises DataError where it fails."""
    import datasets

    whole, _, split = name.partition("@")
    path, _, config = whole.partition(":")
    try:
        loaded = datasets.load_dataset(path, config or None, split=split or None)
    except Exception as error:  # the hub client raises a dozen unrelated types
        detail = " ".join(str(error).split())[:300]
        raise DataError(
            f"{name}: no such file, and no hub data set of that name could be loaded (offline? "
            f"a configuration goes after a colon, {path}:CONFIG): {type(error).__name__}: {detail}"
        ) from error
    if isinstance(loaded, dict):
        if len(loaded) > 1:
            raise DataError(f"{name} has several splits; name one as {name}@SPLIT: {', '.join(loaded)}")
        loaded = next(iter(loaded.values()))
    return loaded


def edition_of(loaded: datasets.Dataset) -> tuple[int, str]:
    """Give the rows of a loaded set and the fingerprint that `datasets` gives it.

    The fingerprint is that of the repo's data, configuration and split, the same wherever they are loaded; a commit may
    change it and leave the rows as they were.
    """
    return loaded.num_rows, loaded._fingerprint


def hub_objects(name: str) -> Parsed:
    """Load a hub data set; the values of a ClassLabel column become the names of its classes."""
    import datasets

    loaded = hub_set(name)
    classes = {}
    for column, feature in loaded.features.items():
        feature = getattr(feature, "feature", feature)
        if isinstance(feature, datasets.ClassLabel):
            classes[column] = feature.names

    def named(column: str, value: Any) -> Any:
        if column not in classes or value is None:
            return value
        if isinstance(value, list):
            return [named(column, item) for item in value]
        return classes[column][value] if value >= 0 else None

    table = loaded.with_format("arrow")[:]
    values = ({column: named(column, item) for column, item in row.items()} for row in table.to_pylist())
    return list(loaded.column_names), loaded.num_rows, "row", enumerate(values, start=1)
