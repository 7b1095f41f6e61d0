"""One run in one folder: a second start finds the folder locked and leaves it alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from thrice.errors import TrainingError

LOCK = ".lock"
"""The file in a locked folder that the kernel holds for its process; it holds that process's number."""


@contextlib.contextmanager
def locked(folder: Path, *, patience: float = 0) -> Iterator[None]:
    """Hold a folder, made if absent, against other processes for as long as the block runs.

    The kernel frees the lock when its process ends, however it ends. Afterwards the lock file is gone, and so is a
    folder that was made for it and stayed empty. patience: seconds to wait for another process to let go.
    Raises TrainingError, naming the process where it is known, if another one holds the folder.
    """
    from filelock import FileLock, Timeout

    made = _make(folder)
    path = folder / LOCK
    try:
        try:
            lock = FileLock(path, timeout=patience)
            lock.acquire()
        except Timeout:
            raise TrainingError(_held(folder, path)) from None
        try:
            path.write_text(f"{os.getpid()}\n", encoding="ascii")
            yield
        finally:
            # While it is still held: whoever opened it before sees that it has no name any more, and opens the next.
            path.unlink(missing_ok=True)
            lock.release()
    finally:
        for place in made:
            with contextlib.suppress(OSError):
                place.rmdir()


def _make(folder: Path) -> list[Path]:
    """Make a folder and give what had to be made, innermost first."""
    absent = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return absent


def _held(folder: Path, path: Path) -> str:
    try:
        pid = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        pid = ""
    who, stop = (f"process {pid}", f" or stop it with: kill {pid}") if pid.isdecimal() else ("another process", "")
    return f"{folder} is in use by {who}: one run at a time works in a folder; wait until it ends{stop}"
