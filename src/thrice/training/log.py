"""The log of a run: JSON lines, each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any


def open_log(path: Path, length: int) -> FileIO:
    """Give a log to append to, cut back to a length in bytes: what stands beyond it will be done again."""
    log = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by the caller
    log.truncate(min(length, log.tell()))
    log.seek(0, 2)
    return log


def write_line(log: FileIO, line: Mapping[str, Any]) -> None:
    """Append one line; an error, such as that of a full disk, leaves no part of it."""
    before, left = log.tell(), (json.dumps(line, ensure_ascii=False) + "\n").encode()
    try:
        while left:
            left = left[log.write(left) :]
    except OSError:
        log.truncate(before)
        raise
