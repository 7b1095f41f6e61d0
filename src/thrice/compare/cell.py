"""One run of a study by its name: arm, task, seed and grid point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Point = tuple[tuple[str, Any], ...]
"""One point of an arm's grid: (field of the training config, value) pairs; () where the arm has no grid."""


class Cell(NamedTuple):
    """One run of a study."""

    arm: str
    """Name of the arm."""
    task: str
    """Name of the task."""
    seed: int
    """Draws the head, the order of the examples and dropout, the same ones for every arm."""
    point: Point = ()
    """The grid point it is trained at."""

    def __str__(self) -> str:
        at = "".join(f" {name}={value}" for name, value in self.point)
        return f"{self.arm} on {self.task}{at} seed {self.seed}"


def cell_of(row: Mapping[str, Any]) -> Cell:
    """Give the cell that a result row is of."""
    return Cell(row["arm"], row["task"], row["seed"], tuple(sorted((row.get("point") or {}).items())))
