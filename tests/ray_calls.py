"""What the workers of Ray in tests are given to do; light, since each of them imports it anew."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thrice.errors import Interrupted, TrainingError
from thrice.training.interrupt import interruptible


def add(left: int, right: int) -> int:
    return left + right


def nothing() -> None:
    pass


def report(room: Path, name: str) -> str:
    """Say which process works, and stop at a request as a cell does; the file `go` lets it end."""
    (room / f"{name}.{os.getpid()}").touch()
    with interruptible() as request:
        while not (room / "go").exists():
            if request.signum is not None:
                (room / f"{name}.saved").touch()
                raise Interrupted("saved", signum=request.signum)
            time.sleep(0.02)
    return name


def stubborn(room: Path, name: str) -> str:
    """Report, but under one name hear no request."""
    if name != "stubborn":
        return report(room, name)
    (room / f"{name}.{os.getpid()}").touch()
    until((room / "go").exists, seconds=60)
    return name


def fail_beside_a(room: Path, name: str) -> str:
    """Report, but under one name raise an error once another one is at work."""
    if name != "fails":
        return report(room, name)
    (room / f"{name}.{os.getpid()}").touch()
    until(lambda: pids(room, "a"))
    raise TrainingError("fails does")


def die(room: Path) -> None:
    with open(room / "deaths", "a") as file:
        file.write("x")
    os._exit(1)


@dataclass(frozen=True)
class Texts:
    """Documents that say in a room which process reads them, and wait for the file `go`, or kill it."""

    room: Path
    name: str
    deaths: int = 0

    def __iter__(self) -> Iterator[str]:
        (self.room / f"{self.name}.{os.getpid()}").touch()
        if len(pids(self.room, self.name)) <= self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        until((self.room / "go").exists)
        yield f"He sat. {self.name}!"


def surroundings() -> tuple[str, str | None, set[int]]:
    """Give working directory, OMP_NUM_THREADS and the thread counts of every BLAS."""
    import scipy.linalg  # noqa: F401 - brings a BLAS of its own
    import threadpoolctl

    counts = {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}
    return os.getcwd(), os.environ.get("OMP_NUM_THREADS"), counts


def pids(room: Path, name: str) -> list[int]:
    """Give the processes that said they work under a name."""
    return [int(path.suffix[1:]) for path in room.glob(f"{name}.*") if path.suffix[1:].isdecimal()]


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until something holds, and give it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found
