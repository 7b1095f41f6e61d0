"""The result of a finished run, and the file that says a run is finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thrice.errors import TrainingError
from thrice.files import read_json, write_json
from thrice.training.resume import FORMAT, IDENTITY, WAY_OUT, check_identity, check_saved

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """What came out of a run; the model itself holds the weights of the best epoch."""

    epochs: list[Record]
    """Per epoch: epoch (from 1), step, train_loss, dev (what evaluate gave), with ema_decay dev_raw, collapsed,
    grad_norm, clipped_fraction, seconds (training) and eval_seconds."""
    best_epoch: int
    """Epoch with the highest metric, counted from 1; the earlier one of equals."""
    best_value: float
    """The metric after that epoch."""
    collapsed: bool
    """Whether the best epoch sits on the majority class."""
    steps: int
    """Optimiser steps done."""
    seconds: float
    """Training and evaluation, summed over all starts."""


def finished_result(folder: Path, identity: Mapping[str, Any]) -> FitResult | None:
    """Give the result of the folder's run; None where it is not finished.

    Raises TrainingError for another run or a damaged file.
    """
    path = folder / "fit.json"
    if not path.exists():
        return None
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path} cannot be read: {error} - {WAY_OUT}") from error
    check_saved(path, content, {"identity": IDENTITY, "result": FitResult})
    check_identity(folder, content["identity"], identity)
    return FitResult(**content["result"])


def write_result(folder: Path, identity: Mapping[str, Any], result: FitResult) -> None:
    """Write fit.json: from now on the run is finished."""
    write_json(folder / "fit.json", {"format": FORMAT, "identity": identity, "result": vars(result)})
