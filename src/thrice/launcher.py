"""Whether a launcher (torchrun, accelerate launch, mpirun) started several processes together, and which one this is.

Read from the environment alone, so that the command line knows it before anything heavy is imported.
"""

from __future__ import annotations

import os

from thrice.errors import TrainingError

WORLD_SIZE = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Environment variables by which launchers say how many processes there are."""
RANK = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
"""Environment variables by which launchers say which one this is."""


def launched() -> int:
    """Give the number of processes that a launcher started together with this one; 1 without a launcher."""
    return max(1, _number(WORLD_SIZE, 1))


def is_main() -> bool:
    """Whether this is the process that writes and speaks: the first of those a launcher started, or the only one."""
    return launched() == 1 or _number(RANK, 0) == 0


def refuse_several(what: str, instead: str) -> None:
    """Raise TrainingError where a launcher started several processes for something that one has to do."""
    if launched() > 1:
        raise TrainingError(f"{what} was started as {launched()} processes at once, but it is work for one; {instead}")


def _number(names: tuple[str, ...], default: int) -> int:
    """Give the first of these variables that holds a number."""
    found = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in found if text.isdecimal()), default)
