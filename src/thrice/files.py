"""Files written whole or not at all: beside the target first, then renamed over it."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PARTIAL = re.compile(r"\..+\.(\d+)\.partial")


def partial_path(path: Path) -> Path:
    """Give the hidden name beside `path` under which this process writes what becomes `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Give a name beside `path` to write to; what is there at the end is flushed to the disk and renamed over `path`.

    A kill leaves the old or the new. So does an error, such as that of a full disk, which leaves no half file either.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = partial_path(path)
    try:
        yield beside
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(beside)):
            raise type(error)(error.errno, error.strerror, str(path)) from None
        raise


def write_atomically(path: Path, content: bytes | str) -> Path:
    """Write the content to a new file beside `path` and rename it over `path`: a kill leaves the old or the new."""
    with written_beside(path) as beside:
        beside.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write a value as indented JSON, atomically; non-ASCII text stays readable."""
    return write_atomically(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Read one JSON value; raises OSError, UnicodeDecodeError or json.JSONDecodeError."""
    text = Path(path).read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", text[:100], 0) from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # Python reads no number of more than 4300 digits
        raise json.JSONDecodeError(str(error).partition(":")[0], text[:100], 0) from None


def clear_partials(folder: Path, name: str = "*", *, deep: bool = False) -> None:
    """Remove the half-written files and folders that killed processes left in a folder, for one name or all.

    deep: in the folders below too. Those of a process that lives, this one aside, are left alone.
    """
    pattern = f".{name if name == '*' else glob.escape(name)}.*.partial"
    for path in list(folder.rglob(pattern) if deep else folder.glob(pattern)):
        match = _PARTIAL.fullmatch(path.name)
        if match is None or _lives(int(match[1])):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    """Whether another process of this number runs on this machine."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    # Who was killed and not yet buried, as in a container without an init, answers signals and does nothing.
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0] != "Z"
        )
    return True


@contextlib.contextmanager
def plain_os_errors(path: Path) -> Iterator[None]:
    """Turn safetensors' own kind of input and output error into the OSError that it stands for."""
    try:
        yield
    except Exception as error:
        number = re.search(r"os error (\d+)", str(error))
        if isinstance(error, OSError) or type(error).__name__ != "SafetensorError" or number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
