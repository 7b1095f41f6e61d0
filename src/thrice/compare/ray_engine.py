"""Calls as tasks of Ray, on this machine or a cluster: which save and stop when this process is asked to."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from thrice.errors import ConfigError, Interrupted, TrainingError, first_line
from thrice.training.interrupt import Request, interruptible

RETRIES = 3
"""How often a call is made anew whose process or machine died; a cell goes on from its last save."""

STORE_BYTES = 100 * 2**20
"""Shared memory of a Ray that is started here: rows are small, and Ray's own default is a third of the machine."""

ANSWERS_WITHIN = 10.0
"""Seconds in which a cluster takes a connection, or is not there."""

LONGEST_ROOM = 40
"""Characters of a folder in which Ray can make its sockets: their names, of up to 107, hold 64 more."""


def in_ray(
    compute: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    *,
    jobs: int,
    look: Callable[[], None],
    address: str | None = None,
    cpus: int = 1,
    gpus: float = 0,
) -> Generator[Any, None, None]:
    """Give what a function gives for each call, made as tasks of Ray, in the order in which they end.

    jobs: calls in work at once. look: called about once a second. address: of a cluster, as `ray.init` takes it; None
    starts a Ray on this machine that ends with the generator, and where this process has joined a Ray already, that
    one is used and left running. cpus, gpus: what Ray reserves for a call; with gpus=0 it hides the GPUs from it.
    Where no machine has as much free, the calls wait.

    A call whose process or machine dies is made anew, RETRIES times. Its own error stops the others, which save what
    they are at, and is raised. On a first Ctrl-C or SIGTERM the calls in work save and stop, those that ended instead
    are given, and Interrupted is raised; a second one waits for nobody. A machine that is told to stop by SIGTERM saves
    its calls too, and Ray makes them elsewhere.
    Calls run in this process's working directory where their machine has it, and with its number of BLAS threads, not
    with Ray's, since that may change a score's last digits.
    Raises ConfigError where Ray is not installed, the cluster does not answer, or this machine lacks the GPUs asked
    for; TrainingError where the processes of a call were killed again and again.
    """
    if not calls:
        return
    ray = _import_ray()
    with _joined(ray, address, jobs=min(jobs, len(calls) or 1), cpus=cpus, gpus=gpus):
        start = ray.remote(_entrance()).options(
            num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, retry_exceptions=False
        )
        surroundings = (os.getcwd(), os.environ.get("OMP_NUM_THREADS"))
        waiting = [ray.cloudpickle.dumps((compute, call)) for call in reversed(calls)]
        request = Request()
        refs: list[Any] = []
        try:
            with interruptible() as request:
                while (waiting or refs) and request.signum is None:
                    while waiting and len(refs) < jobs:
                        refs.append(start.remote(waiting.pop(), *surroundings))
                    finished, refs = ray.wait(refs, num_returns=1, timeout=1)
                    look()
                    for ref in finished:  # at most one
                        yield _result(ray, ref)
                if request.signum is not None:
                    yield from _stopped(ray, refs)
                    raise Interrupted("stopped, and saved the cells in work", signum=request.signum)
        except KeyboardInterrupt as error:
            # Ray makes a plain one of what a handler raises while it waits.
            if request.signum is None or isinstance(error, Interrupted):
                raise
            raise Interrupted("stopped at once", signum=request.signum) from None
        finally:
            # After an error the others save what they are at; asked twice to stop, nobody waits for that.
            for ref in refs:
                ray.cancel(ref, force=request.signum is not None)
            if refs and request.signum is None:
                ray.wait(refs, num_returns=len(refs))


def _stopped(ray: Any, refs: list[Any]) -> Generator[Any, None, None]:
    """Let the workers save what they are at and stop; give what came to its end instead."""
    for ref in refs:
        ray.cancel(ref)
    while refs:
        finished, refs[:] = ray.wait(refs, num_returns=1)
        with contextlib.suppress(ray.exceptions.TaskCancelledError):
            yield _result(ray, finished[0])


def _result(ray: Any, ref: Any) -> Any:
    """Give what a call gave; raises its own error, not Ray's, whose message is a traceback."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, BaseException):
            raise error.cause from error
        raise
    except ray.exceptions.TaskCancelledError:
        raise
    except ray.exceptions.RayError as error:
        raise TrainingError(
            f"a process of the study was killed, and again in {RETRIES} new starts, perhaps for memory "
            f"({first_line(error)}); finished cells are kept - start the same command again, with fewer --jobs"
        ) from error


def _entrance() -> Callable[[bytes, str, str | None], Any]:
    """Give the function that runs in a worker.

    Ray sends a function within another one by value, and the call comes as bytes: so a worker imports nothing of ours,
    and no torch, before the variables are set that those read then. The bytes are what this program packed itself, as
    Ray packs every call.
    """

    def thrice_call(call: bytes, directory: str, threads: str | None) -> Any:
        import os
        import pickle

        given = os.environ.pop("OMP_NUM_THREADS", None)
        try:
            if threads is not None:
                os.environ["OMP_NUM_THREADS"] = threads
            compute, arguments = pickle.loads(call)
            from thrice.compare.ray_engine import _in_worker

            return _in_worker(compute, arguments, directory, threads)
        finally:
            os.environ.pop("OMP_NUM_THREADS", None)
            if given is not None:  # Ray takes away what it set
                os.environ["OMP_NUM_THREADS"] = given

    return thrice_call


def _in_worker(compute: Callable[..., Any], call: tuple[Any, ...], directory: str, threads: str | None) -> Any:
    import threadpoolctl

    with contextlib.suppress(OSError):  # a machine may lack it; a call that needs it says so
        os.chdir(directory)
    # Ray's worker has loaded numpy before, under Ray's number of threads.
    count = int(threads) if threads is not None and threads.isdecimal() else len(os.sched_getaffinity(0))
    # A script that was started in the background, and all that it starts, ignores Ctrl-C, and with it Ray's cancelling.
    theirs = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, signal.SIG_DFL),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    ended: list[Any] = []
    try:
        # Ray cancels by what Python takes for Ctrl-C.
        with interruptible(), threadpoolctl.threadpool_limits(count, user_api="blas"):
            ended.append(compute(*call))
    except Interrupted as stopped:
        if not ended and stopped.signum == signal.SIGTERM:
            # Not the study is stopped, but this machine: saved, the call dies, and Ray makes it elsewhere.
            os._exit(1)
        if not ended:
            raise
    finally:
        for signum, handler in theirs.items():
            signal.signal(signum, handler)
    return ended[0]


@contextlib.contextmanager
def _joined(ray: Any, address: str | None, *, jobs: int, cpus: int, gpus: float) -> Iterator[None]:
    """Join a cluster or start a Ray, and leave or end it; one that this process has joined already stays as it is."""
    if ray.is_initialized():
        yield
        return
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    room = None
    try:
        # Ray's own default makes a call that needs too much memory anew for ever.
        with _signals_kept(), _environment(RAY_USAGE_STATS_ENABLED="0", RAY_task_oom_retries=str(RETRIES)):
            if address is None:
                room = _short_room()
                settings |= {"num_cpus": jobs * cpus, "include_dashboard": False, "_temp_dir": str(room)}
                ray.init(address="local", object_store_memory=STORE_BYTES, **settings)
            else:
                _connect(ray, address, settings)
        if address is None and ray.cluster_resources().get("GPU", 0) < gpus:
            raise ConfigError(
                f"a cell is to have {gpus:g} GPUs, and Ray finds {ray.cluster_resources().get('GPU', 0):g} on this "
                "machine - ask for fewer, or name a cluster that has them"
            )
        yield
    finally:
        with _signals_kept():
            ray.shutdown()
        if room is not None:
            shutil.rmtree(room, ignore_errors=True)


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


def _import_ray() -> Any:
    try:
        import ray
        import ray.cloudpickle
        import ray.exceptions
    except ImportError as error:
        raise ConfigError('Ray is not installed: pip install "thrice[ray]"') from error
    return ray


def _short_room() -> Path:
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
