"""A Ray cluster, started on this machine or joined, and what its tasks give: for whoever makes work tasks of Ray."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from thrice.errors import ConfigError, first_line

ENGINES = ("local", "ray")
"""Where work is done: in processes of this machine, or by the workers of a Ray cluster."""

RETRIES = 3
"""How often a task is made anew whose process or machine died; it must be able to begin where it was left."""

STORE_BYTES = 100 * 2**20
"""Shared memory of a Ray that is started here if nobody says more; Ray's own default is a third of the machine."""

ANSWERS_WITHIN = 10.0
"""Seconds in which a cluster takes a connection, or is not there."""

LONGEST_ROOM = 40
"""Characters of a folder in which Ray can make its sockets: their names, of up to 107, hold 64 more."""


class WorkerKilledError(Exception):
    """The process of a task was killed, and again in RETRIES new starts; the message is Ray's reason, one line."""


def engine_problems(kind: str, ray_only: Mapping[str, bool]) -> list[str]:
    """Say what is wrong with the choice of an engine.

    ray_only: the options that only Ray takes, and whether each is given.
    """
    problems = []
    if kind not in ENGINES:
        problems.append(f"--engine is {kind!r}, it must be {' or '.join(ENGINES)}")
    if kind != "ray" and any(ray_only.values()):
        problems.append(f"{' and '.join(ray_only)} {'are' if len(ray_only) > 1 else 'is'} for --engine ray")
    return problems


def import_ray() -> Any:
    """Give Ray with what its tasks may raise; raises ConfigError where it is not installed."""
    try:
        import ray
        import ray.cloudpickle
        import ray.exceptions
    except ImportError as error:
        raise ConfigError('Ray is not installed: pip install "thrice[ray]"') from error
    return ray


@contextlib.contextmanager
def joined(ray: Any, address: str | None, *, cpus: int, store_bytes: int = STORE_BYTES) -> Iterator[bool]:
    """Join a cluster or start a Ray, and leave or end it; one that this process has joined already stays as it is.

    Yields whether one was started here. address: of a cluster, as `ray.init` takes it; None starts one on this machine,
    with so many cpus and bytes of shared memory. What SIGTERM does here is kept.
    Raises ConfigError where the cluster does not answer.
    """
    if ray.is_initialized():
        yield False
        return
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    room = None
    try:
        # Ray's own default makes a task that needs too much memory anew for ever.
        with _signals_kept(), _environment(RAY_USAGE_STATS_ENABLED="0", RAY_task_oom_retries=str(RETRIES)):
            if address is None:
                room = short_room()
                settings |= {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": str(room)}
                ray.init(address="local", object_store_memory=store_bytes, **settings)
            else:
                _connect(ray, address, settings)
        yield address is None
    finally:
        with _signals_kept():
            ray.shutdown()
        if room is not None:
            shutil.rmtree(room, ignore_errors=True)


def result_of(ray: Any, ref: Any) -> Any:
    """Give what a task gave; raises its own error, not Ray's, whose message is a traceback.

    Raises WorkerKilledError where its process was killed again and again; Ray's TaskCancelledError after `ray.cancel`.
    """
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, BaseException):
            raise error.cause from error
        raise
    except ray.exceptions.TaskCancelledError:
        raise
    except ray.exceptions.RayError as error:
        raise WorkerKilledError(first_line(error)) from error


def _connect(ray: Any, address: str, settings: dict[str, Any]) -> None:
    try:
        host, _, port = address.rpartition("://")[2].rpartition(":")
        if host and port.isdecimal():  # Ray itself tries for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS_WITHIN).close()
        ray.init(address=address, **settings)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster could be joined at {address}: {first_line(error)} - is it running (ray start --head), "
            "and of the same versions of Ray and Python? Without an address, Ray is started on this machine"
        ) from error


def short_room() -> Path:
    """Make a folder for Ray's sockets, whose names the system limits."""
    usual = Path(tempfile.gettempdir())
    return Path(tempfile.mkdtemp(prefix="thrice-", dir=usual if len(str(usual)) + 16 <= LONGEST_ROOM else "/tmp"))


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep what SIGTERM does here; Ray puts its own handler in place when it is joined."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
