"""Calls in processes of their own, which save and stop when this one is asked to, and do not outlive it."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any

from thrice.errors import Interrupted, TrainingError
from thrice.training.interrupt import Request, interruptible, obey


def in_pool(
    compute: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, jobs: int, threads: int, look: Callable[[], None]
) -> Generator[Any, None, None]:
    """Give what a function gives for each call, made in processes of their own, in the order in which they end.

    threads: cores that a process keeps to itself, where there are enough of them for all, so that cells do not disturb
    each other's clocks. look: called about once a second. A call that fails stops the others, which save what they are
    at, and raises its error. On a first Ctrl-C or SIGTERM the calls in work save and stop, those that ended instead are
    given, and Interrupted is raised; a second one waits for nobody. Raises TrainingError where a process was killed.
    """
    context = multiprocessing.get_context("spawn")  # a forked torch inherits thread pools that are not there
    others = multiprocessing.active_children()
    jobs = min(jobs, len(calls) or 1)
    places = context.SimpleQueue()
    for place in _places(jobs, threads):
        places.put(place)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_become_worker, initargs=(os.getpid(), places))
    request = Request()
    try:
        with interruptible() as request:
            futures = {pool.submit(_in_worker, compute, *call) for call in calls}
            while futures and request.signum is None:
                finished, futures = wait(futures, timeout=1, return_when=FIRST_COMPLETED)
                look()
                yield from (future.result() for future in finished)
            if request.signum is not None:
                yield from _stopped(futures, others)
                raise Interrupted("stopped, and saved the cells in work", signum=request.signum)
    except BrokenProcessPool as error:
        raise TrainingError(
            "a process of the study was killed, perhaps for memory; finished cells are kept - start the same command "
            "again, with fewer --jobs"
        ) from error
    finally:
        # After an error the others save what they are at; asked twice to stop, nobody waits for that.
        for process in _workers(others) if sys.exc_info()[0] else ():
            process.terminate() if request.signum is None else process.kill()
        pool.shutdown(wait=True, cancel_futures=True)


def _stopped(futures: Collection[Future[Any]], others: list[BaseProcess]) -> Generator[Any, None, None]:
    """Let the workers save what they are at and stop; give what came to its end instead."""
    begun = [future for future in futures if not future.cancel()]
    for process in _workers(others):
        process.terminate()
    wait(begun)
    for future in begun:
        if not isinstance(future.exception(), Interrupted | BrokenProcessPool):
            yield future.result()


def _workers(others: list[BaseProcess]) -> list[BaseProcess]:
    return [process for process in multiprocessing.active_children() if process not in others]


def _places(jobs: int, threads: int) -> list[set[int]]:
    """Give the cores of each worker: some of its own, or all of them where they do not go round."""
    if not hasattr(os, "sched_getaffinity"):
        return [set()] * jobs
    cores = sorted(os.sched_getaffinity(0))
    if jobs * threads > len(cores):
        return [set(cores)] * jobs
    return [set(cores[i * threads : (i + 1) * threads]) for i in range(jobs)]


def _become_worker(parent: int, places: Any) -> None:
    """Keep to cores of one's own, stop when the parent says so, and do not outlive it.

    A worker whose parent was killed would go on training in folders that the next start uses.
    """
    obey()
    if place := places.get():
        os.sched_setaffinity(0, place)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _in_worker(compute: Callable[..., Any], *call: Any) -> Any:
    with interruptible() as request:
        if request.signum is not None:  # this call lay in the queue when the parent said to stop
            raise Interrupted("stopped before it began", signum=request.signum)
        return compute(*call)
