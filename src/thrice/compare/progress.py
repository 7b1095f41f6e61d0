"""How far the cells of a study are, read from their logs."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from thrice.compare.grid import Cell, work_path


class Follower:
    """Reads how far the cells in work are from the last line of their logs."""

    def __init__(self, folder: Path, cells: Sequence[Cell], on_steps: Callable[[int], None] | None) -> None:
        self.logs = {cell: work_path(folder, cell) / "train.jsonl" for cell in cells}
        self.on_steps = on_steps
        self.steps: dict[Cell, int] = {}
        self.done = 0
        self.lock = threading.Lock()
        self.look(tell=False)

    def look(self, *, tell: bool = True) -> None:
        """Tell how many steps were done since the last look."""
        with self.lock:
            for cell, log in self.logs.items():
                self.steps[cell] = max(_last_step(log), self.steps.get(cell, 0))
            done = sum(self.steps.values())
            if tell and self.on_steps is not None and done > self.done:
                self.on_steps(done - self.done)
            self.done = done

    def finished(self, cell: Cell, steps: int) -> None:
        """Take the steps of a finished cell, whose log is gone, and tell them."""
        with self.lock:
            self.steps[cell] = max(steps, self.steps.get(cell, 0))
        self.look()

    @contextlib.contextmanager
    def in_background(self) -> Iterator[None]:
        """Look once a second from a thread while this process computes."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(1):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.look()


def _last_step(log: Path) -> int:
    """Give the optimiser step that a log ends with; 0 where there is none, or its last line is being written."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - 8192))
            lines = file.read().splitlines()
        return int(json.loads(lines[-1])["step"])
    except (OSError, ValueError, IndexError, KeyError):
        return 0
