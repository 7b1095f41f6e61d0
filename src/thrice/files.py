"""Files written whole or not at all: beside the target first, then renamed over it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes | str) -> Path:
    """Write the content to a new file beside `path` and rename it over `path`: a kill leaves the old or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise type(error)(error.errno, error.strerror, str(path)) from None
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
