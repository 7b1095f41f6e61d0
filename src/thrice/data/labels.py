"""Cells of a label column to names of classes, and what the classes weigh."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from thrice.data.readers import Cell, Table, raise_for_rows
from thrice.errors import ConfigError, DataError, nearest


def label_names(table: Table, column: str, *, multi_label: bool) -> list[tuple[str, ...]]:
    """Give the class names of every row: one, or with several labels per text any number of them.

    Raises DataError that names the lines where a label is missing or empty, or is a list or an object where a name is
    wanted.
    """
    names, problems = [], []
    for line, cell in zip(table.lines, table.labels(column), strict=True):
        try:
            names.append(names_in(cell, multi_label=multi_label))
        except DataError as error:
            problems.append((line, str(error)))
    raise_for_rows(f"{table.source}: column {column!r} has labels that are no names of classes", problems)
    return names


def names_in(cell: Cell, *, multi_label: bool) -> tuple[str, ...]:
    """Give the class names in one cell; several come as a list, or as text with a JSON list or commas."""
    if not multi_label:
        if isinstance(cell, list):
            raise DataError(f"the list {cell}; texts with several labels want --multi-label")
        if not cell.strip():
            raise DataError("an empty label; every row needs one, or leave the row out")
        if cell.startswith("{") and isinstance(_json_value(cell), dict):
            raise DataError(f"the object {cell[:40]}")
        return (cell,)
    words: Any = cell
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        words = _json_value(cell)
        if not isinstance(words, list):
            raise DataError(f"{cell[:40]!r}, which begins like a JSON list and is none")
    elif isinstance(cell, str):
        words = [name for name in map(str.strip, cell.split(",")) if name]
    wrong = [word for word in words if not isinstance(word, str | bool) or word == ""]
    if wrong:
        raise DataError(f"{json.dumps(wrong[0])[:40]} in a list of labels; every item must be a name")
    return tuple(dict.fromkeys(word if isinstance(word, str) else json.dumps(word) for word in words))


def class_weights(text: str | None, labels: tuple[str, ...], counts: Counter[str]) -> tuple[float, ...] | None:
    """Give the weight of every class that --class-weight asks for: "balanced", or name=weight and 1 for the others.

    counts: rows of each class. Raises ConfigError for what is neither, an unknown class or a weight not above 0.
    """
    if text is None:
        return None
    if text == "balanced":
        total = sum(counts.values())
        return tuple(total / (len(labels) * counts[name]) for name in labels)
    given: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.rpartition("=")
        try:
            given[name] = float(weight)
        except ValueError:
            raise ConfigError(
                f"--class-weight {text!r}: expected 'balanced' or name=weight,..., got {part!r}"
            ) from None
        if name not in labels:
            raise ConfigError(f"--class-weight {part!r}: no class called {name!r}; {nearest(name, labels)}")
        if not 0 < given[name] < math.inf:
            raise ConfigError(f"--class-weight {part!r}: expected a number above 0; leave rows of a class out instead")
    return tuple(given.get(name, 1.0) for name in labels)


def _json_value(text: str) -> Any:
    """Give what a JSON text says, numbers as they were written; None where it is no JSON."""
    try:
        return json.loads(text, parse_int=str, parse_float=str, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        return None
