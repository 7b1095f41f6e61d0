"""The shards of a corpus as tasks of Ray, made by the machines of a cluster that share its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import signal
import threading
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Any

from thrice import ray_cluster
from thrice.data.preparing import Maker, Preparation, Work, digest_of
from thrice.data.shards import ShardRecord, is_whole
from thrice.errors import ConfigError, DataError, Interrupted

PACKAGES = ("thrice", "tokenizers")
"""Whose versions must be the same on all machines, or one corpus would be cut in several ways."""

CHARACTER_BYTES = 4
"""Most bytes of a character in UTF-8."""


def in_ray(
    preparation: Preparation,
    works: Iterator[Work],
    *,
    characters: int,
    processes: int | None = None,
    address: str | None = None,
) -> Generator[tuple[int, ShardRecord], None, None]:
    """Write the shard of every work; gives (number, record) in the order in which they are finished.

    characters: of a work, about. processes: CPUs of a Ray that is started here, all of this machine where None; on a
    cluster, works at once, as many as it has CPUs where None. address: see `ray_cluster.joined`.
    Twice as many texts as there are CPUs are in work or wait for it; a cluster that grows or shrinks is followed. A
    worker builds its tokenizer once.
    The work of a process or machine that dies is done anew, RETRIES times. After an error, one of `works` too, or
    Ctrl-C, the works begun end with the connection to the cluster, and what they wrote so far is cleared away by the
    next start; in a Ray that this process had joined before, they are finished first. Finished shards are kept.
    Raises ConfigError where Ray is not installed, the cluster does not answer, has other versions, or does not share
    the folder; DataError where the processes of a work were killed again and again.
    """
    ray = ray_cluster.import_ray()
    preparation = dataclasses.replace(preparation, folder=preparation.folder.absolute())
    key = digest_of([str(preparation.folder), preparation.settings, preparation.pipeline])
    cpus = processes or len(os.sched_getaffinity(0))
    guest = ray.is_initialized()
    store = max(ray_cluster.STORE_BYTES, 2 * cpus * CHARACTER_BYTES * characters)
    with ray_cluster.joined(ray, address, cpus=cpus, store_bytes=store), _terminations() as heard:
        make = ray.remote(_make).options(num_cpus=1, max_retries=ray_cluster.RETRIES, retry_exceptions=False)
        shared = [ray.put((preparation, _versions()))]  # in a list, Ray hands over the reference and not its content
        waiting: dict[Any, int] = {}
        try:
            for work in works:
                waiting[make.remote(work, key, shared)] = work.number
                while len(waiting) >= _most(ray, processes):
                    yield _finished(ray, waiting, preparation)
            while waiting:
                yield _finished(ray, waiting, preparation)
        except KeyboardInterrupt as error:
            # Ray makes a plain one of what a handler raises while it waits.
            if isinstance(error, Interrupted) or not heard:
                raise
            raise Interrupted("stopped", signum=heard[0]) from None
        finally:
            # Not by `ray.cancel`: where a task ends at that moment, Ray 2.60 takes this process down with it.
            if guest and waiting:
                ray.wait(list(waiting), num_returns=len(waiting))


def _most(ray: Any, processes: int | None) -> int:
    """Give how many works may be in Ray's hands."""
    cpus = max(1, int(ray.cluster_resources().get("CPU", 0)))  # none is there yet, or any more: it waits
    return processes if processes is not None and processes < cpus else 2 * cpus


def _finished(ray: Any, waiting: dict[Any, int], preparation: Preparation) -> tuple[int, ShardRecord]:
    """Wait for a work to end, and take it out of those that are waited for."""
    (ref,), _ = ray.wait(list(waiting), num_returns=1)
    number = waiting.pop(ref)
    try:
        record: ShardRecord = ray_cluster.result_of(ray, ref)
    except ray_cluster.WorkerKilledError as error:
        raise DataError(
            f"a process that prepared the corpus was killed, and again in {ray_cluster.RETRIES} new starts, perhaps "
            f"for memory ({error}); finished shards are kept. - start again, with fewer --processes"
        ) from error
    if not is_whole(preparation.folder, number, record):
        raise _not_shared(preparation)
    return number, record


def _not_shared(preparation: Preparation) -> ConfigError:
    return ConfigError(f"the workers of Ray do not share the folder {preparation.folder}; give one that they do")


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


@contextlib.contextmanager
def _terminations() -> Iterator[list[int]]:
    """Note SIGTERM, then let it do what it does."""
    heard: list[int] = []
    theirs = signal.getsignal(signal.SIGTERM)
    if not callable(theirs) or threading.current_thread() is not threading.main_thread():
        yield heard
        return

    def note(signum: int, frame: FrameType | None) -> None:
        heard.append(signum)
        theirs(signum, frame)

    signal.signal(signal.SIGTERM, note)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGTERM, theirs)


# In a worker

_MAKERS: dict[str, Maker] = {}
"""The maker of the corpus that this process works on, by the digest of what it was made of."""


def _make(work: Work, key: str, shared: list[Any]) -> ShardRecord:
    """Write the shard of a work.

    shared: the reference to a Preparation and the versions that belong to it, asked for by a worker's first work alone.
    """
    if key not in _MAKERS:
        import ray

        preparation, versions = ray.get(shared[0])
        if versions != _versions():
            raise ConfigError(f"{_told(versions)} here, {_told(_versions())} at a worker of Ray; install the same")
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one CPU is reserved for a work
        _MAKERS.clear()
        _MAKERS[key] = Maker(preparation)
    maker = _MAKERS[key]
    if not maker.preparation.folder.is_dir():
        raise _not_shared(maker.preparation)
    return maker.write(work)


def _told(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())
