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
        self.paths = [work_path(folder, cell) / "train.jsonl" for cell in cells]
        self.on_steps = on_steps
        self.steps: dict[Path, int] = {}
        self.done = 0
        self.look(tell=False)

    def look(self, *, tell: bool = True) -> None:
        """Tell how many steps were done since the last look."""
        for log in self.paths:
            self.steps[log] = max(_last_step(log), self.steps.get(log, 0))
        done = sum(self.steps.values())
        if tell and self.on_steps is not None and done > self.done:
            self.on_steps(done - self.done)
        self.done = done

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
