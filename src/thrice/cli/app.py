"""The application that commands register with, and how a long command is stopped."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from thrice.cli import screen
from thrice.errors import Interrupted
from thrice.launcher import is_main

app = typer.Typer(
    name="thrice",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Say on Ctrl-C or SIGTERM what to do next; typer would leave without a word."""
    from thrice.training.interrupt import orderly_termination

    try:
        with orderly_termination():
            yield
    except KeyboardInterrupt as stop:
        said, code = (str(stop), 128 + stop.signum) if isinstance(stop, Interrupted) else ("stopped", 130)
        way_on = "the same command (without --restart) goes on from the last save"
        way_on += "" if "saved" in said else ", or begins anew where there is none"
        if is_main():
            screen.err.print(f"{said}; {way_on}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(code) from None


def typed() -> str:
    """Give the command as it was typed, for a study to keep."""
    return shlex.join(["thrice", *sys.argv[1:]])


def _version(wanted: bool) -> None:
    if wanted:
        import thrice

        print(thrice.__version__)
        raise typer.Exit


@app.callback()
def thrice(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Train, un-share and compare small text encoders: choose by measurement, not by reputation.

    Begin with [bold]thrice demo[/]. Patterns after + name what is shared: all, none, attention, ffn, groups=K, cycle=K.
    """
