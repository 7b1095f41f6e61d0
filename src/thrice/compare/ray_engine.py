"""Calls as tasks of Ray, on this machine or a cluster: which save and stop when this process is asked to."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Generator, Sequence
from typing import Any

from thrice import ray_cluster
from thrice.errors import ConfigError, Interrupted, TrainingError
from thrice.training.interrupt import Request, interruptible


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

    A call whose process or machine dies is made anew, RETRIES times; a cell goes on from its last save. Its own error
    stops the others, which save what they are at, and is raised. On a first Ctrl-C or SIGTERM the calls in work save
    and stop, those that ended instead are given, and Interrupted is raised; a second one waits for nobody. A machine
    that is told to stop by SIGTERM saves its calls too, and Ray makes them elsewhere.
    Calls run in this process's working directory where their machine has it, and with its number of BLAS threads, not
    with Ray's, since that may change a score's last digits.
    Raises ConfigError where Ray is not installed, the cluster does not answer, or this machine lacks the GPUs asked
    for; TrainingError where the processes of a call were killed again and again.
    """
    if not calls:
        return
    ray = ray_cluster.import_ray()
    with ray_cluster.joined(ray, address, cpus=min(jobs, len(calls)) * cpus) as started:
        if started and ray.cluster_resources().get("GPU", 0) < gpus:
            raise ConfigError(
                f"a cell is to have {gpus:g} GPUs, and Ray finds {ray.cluster_resources().get('GPU', 0):g} on this "
                "machine - ask for fewer, or name a cluster that has them"
            )
        start = ray.remote(_entrance()).options(
            num_cpus=cpus, num_gpus=gpus, max_retries=ray_cluster.RETRIES, retry_exceptions=False
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
    """Give what a call gave; raises its own error."""
    try:
        return ray_cluster.result_of(ray, ref)
    except ray_cluster.WorkerKilledError as error:
        raise TrainingError(
            f"a process of the study was killed, and again in {ray_cluster.RETRIES} new starts, perhaps for memory "
            f"({error}); finished cells are kept - start the same command again, with fewer --jobs"
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
