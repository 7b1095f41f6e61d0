"""Everything thrice raises on purpose.

ThriceError
├── ConfigError        values that contradict each other, or a name nobody knows
├── CheckpointError    a folder, file or tensor that cannot be read or written as asked
├── SharingError       a sharing pattern that does not fit the model
├── DataError          a data file, column or label that cannot be used
└── TrainingError      a run that cannot start, go on or be resumed

The command line prints their message in one or two lines and exits with code 2.

KeyboardInterrupt
└── Interrupted        somebody asked a run to stop; no error, and so nothing that catches errors swallows it
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable


class ThriceError(Exception):
    """Root of everything thrice raises on purpose."""


class ConfigError(ThriceError, ValueError):
    """Values that contradict each other, or a name nobody knows."""


class CheckpointError(ThriceError):
    """A folder, file or tensor that cannot be read or written as asked."""


class SharingError(ThriceError, ValueError):
    """A sharing pattern that does not fit the model."""


class DataError(ThriceError):
    """A data file, column or label that cannot be used."""


class TrainingError(ThriceError):
    """A run that cannot start, go on or be resumed."""


class Interrupted(KeyboardInterrupt):
    """Somebody asked a run to stop, by Ctrl-C or SIGTERM; the message says where it stands.

    signum: the signal that asked.
    """

    def __init__(self, message: str, signum: int = signal.SIGINT) -> None:
        super().__init__(message, signum)  # both, so that it can be sent from process to process
        self.signum = int(signum)

    def __str__(self) -> str:
        return str(self.args[0])


def nearest(word: str, known: Iterable[str]) -> str:
    """Give the tail of an error about an unknown name: the nearest known ones, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"


def first_line(error: BaseException) -> str:
    """Give the first line of an error's message, the name of its kind where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
