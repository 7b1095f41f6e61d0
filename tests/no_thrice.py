"""Runs code in a process that cannot import thrice, as on a machine where only transformers is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

_PRELUDE = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "thrice":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
sys.dont_write_bytecode = True
try:
    import thrice
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("thrice can be imported")
arguments = json.loads(sys.stdin.read())
"""
_MARK = "result of the process without thrice: "


def run_without_thrice(code: str, /, **arguments: Any) -> Any:
    """Run `code`, which finds `arguments` as a dict and sets `result`; both are values that JSON can say."""
    script = f"{_PRELUDE}\n{code}\nprint({_MARK!r} + json.dumps(result))\n"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(arguments),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode != 0 or not lines:
        raise AssertionError(f"the process without thrice failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(lines[-1].removeprefix(_MARK))
