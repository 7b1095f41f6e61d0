"""The folder beside a model in which it is trained: who may use it, what a killed start left there, when it goes.

OUT.run/            the run, see training/loop.py; gone when the model is written
OUT.run/tensorboard its curves, where it is tracked
OUT.run/anew        the run replaces the finished model in OUT
OUT.run/.lock       a process works here
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from thrice.checkpoints import refuse_foreign_folder
from thrice.errors import ConfigError, TrainingError
from thrice.files import clear_partials, write_atomically
from thrice.locks import locked
from thrice.training.resume import forget_run

CURVES = "tensorboard"
"""Folder of the curves of a run that TensorBoard follows."""


@contextlib.contextmanager
def run_folder(folder: Path, *, restart: bool) -> Iterator[Path]:
    """Give the folder of the run that writes a model's folder, held against other processes; gone if it stays empty.

    Raises CheckpointError where the model's folder holds something else, TrainingError where it holds a finished model
    and `restart` is not asked, or another process works on it.
    """
    run = place_of_run(folder)
    place = folder.resolve()
    refuse_foreign_folder(place)
    try:
        with locked(run):
            clear_partials(place.parent, place.name)
            clear_partials(run, deep=True)
            if (place / "config.json").exists() and not restart:
                _refuse_finished(folder, run)
            yield run
    finally:
        with contextlib.suppress(OSError):
            run.rmdir()


def place_of_run(folder: Path) -> Path:
    """Give the folder beside a model's folder in which the model is trained; raises ConfigError for no new name."""
    place = folder.resolve()
    if not place.name or folder == Path():
        raise ConfigError(f"--out {folder}: expected the name of a new folder, such as out")
    return place.with_name(place.name + ".run")


def begin_anew(run: Path) -> None:
    """Discard a run; the one that begins replaces the finished model beside it, and after a stop goes on unasked."""
    _forget(run)
    write_atomically(run / "anew", "This run replaces the finished model beside it.\n")


def clear_away(run: Path) -> None:
    """Remove what a run whose model is written has left, and nothing else."""
    (run / "anew").unlink(missing_ok=True)
    _forget(run)


def _forget(run: Path) -> None:
    # First the curves: after a kill in between, the old run gives them again; a new one would take them for its own.
    shutil.rmtree(run / CURVES, ignore_errors=True)
    forget_run(run)


def _refuse_finished(folder: Path, run: Path) -> None:
    # A run beside a finished model goes on where it was begun anew, or killed between saving and clearing away.
    if (run / "anew").exists() or (run / "fit.json").exists():
        return
    left = ""
    # What a save holds beside state.json counts for nothing without it.
    if (run / "resume" / "state.json").exists():
        left = f"; a save is left in {run}: remove it if nobody will go on with it"
    else:
        clear_away(run)
    raise TrainingError(f"{folder} holds a finished model; choose another --out, or --restart to train it anew{left}")
