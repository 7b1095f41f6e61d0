"""Stopping on request: a first Ctrl-C or SIGTERM lets the step at hand finish and be saved, a second one does not."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from thrice.errors import Interrupted
from thrice.launcher import is_main

SIGNALS = (signal.SIGINT, signal.SIGTERM)
NOTICE = "\nstopping: what is being computed now is finished and saved first; once more stops at once\n"


@dataclass
class Request:
    """What was asked of this process so far."""

    signum: int | None = None
    """The first signal that asked it to stop; None while nobody has."""


_heard: Request | None = None


@contextlib.contextmanager
def interruptible() -> Iterator[Request]:
    """Give the request to stop, which whoever computes looks at where stopping is cheap.

    Within, a first signal only notes the request, and a second one raises Interrupted wherever the program is; a
    request that nobody answered raises it at the end. Handlers are put in place in the main thread alone, only where
    nobody put others (a signal that is ignored stays ignored), and taken away at the end. Inside another
    `interruptible`, and after `obey`, it is that one's request.
    """
    global _heard
    if _heard is not None or threading.current_thread() is not threading.main_thread():
        yield _heard or Request()
        return
    request = Request()

    def note(signum: int, frame: FrameType | None) -> None:
        if request.signum is not None:
            raise Interrupted("stopped at once", signum=signum)
        request.signum = signum
        # print may be at work below this handler, and is not reentrant; whoever reads may be stopped as well
        with contextlib.suppress(OSError):
            if is_main():
                os.write(2, NOTICE.encode())

    theirs = (signal.SIG_DFL, signal.default_int_handler, stop_at_once)
    before = {signum: signal.getsignal(signum) for signum in SIGNALS if signal.getsignal(signum) in theirs}
    _heard = request
    try:
        for signum in before:
            signal.signal(signum, note)
        yield request
        if request.signum is not None:
            raise Interrupted("stopped", signum=request.signum)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        _heard = None


def obey() -> None:
    """Make this process one that another one stops: SIGTERM, however often, is a request, and Ctrl-C is not for it.

    A terminal sends Ctrl-C to every process, and a scheduler perhaps SIGTERM: the parent says what becomes of it.
    """
    global _heard
    _heard = request = Request()

    def note(signum: int, frame: FrameType | None) -> None:
        request.signum = signum

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, note)


def stop_at_once(signum: int, frame: FrameType | None) -> None:
    """Raise Interrupted: a handler under which SIGTERM tidies up on its way out, as Ctrl-C does."""
    raise Interrupted("stopped", signum=signum)


@contextlib.contextmanager
def orderly_termination() -> Iterator[None]:
    """Let SIGTERM raise Interrupted within, where nothing else handles it; for the main thread of a program."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
