"""The command line: parses, calls, prints. Everything heavy is imported inside the command that needs it."""

from __future__ import annotations

import io
import os
import sys

from thrice.cli import screen, studies  # isort: skip - commands stand in the help in the order of these imports
from thrice.cli import fewshot  # isort: skip
from thrice.cli import pretrain  # isort: skip
from thrice.cli import models  # isort: skip
from thrice.cli.app import app
from thrice.errors import ThriceError
from thrice.launcher import launched

__all__ = ["app", "fewshot", "main", "models", "pretrain", "studies"]


def main() -> None:
    """Run the command line; errors of thrice are one or two lines and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # answers and tables are Unicode wherever they go
    try:
        app()
    except ThriceError as error:
        if _speaks():
            screen.err.print("[bold red]error:[/] ", end="")
            screen.err.print(str(error), markup=False, highlight=False)
        sys.exit(2)
    except BrokenPipeError:  # whoever read the answers has seen enough
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - the interpreter flushes it on its way out
        sys.exit(1)
    except OSError as error:
        screen.err.print("[bold red]error:[/] ", end="")
        screen.err.print(
            f"{error.filename}: {error.strerror}" if error.filename else str(error), markup=False, highlight=False
        )
        sys.exit(2)
    except Exception:
        if _speaks():
            raise
        sys.exit(2)


def _speaks() -> bool:
    """Whether this process says what went wrong: of several that train together, the first one to fail does."""
    if launched() == 1:
        return True
    from thrice.training.distributed import first_to_fail

    return first_to_fail()
