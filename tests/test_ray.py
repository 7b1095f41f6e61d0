"""Cells as tasks of Ray: the same rows as in this process, whatever is killed, and stopped in order."""

from __future__ import annotations

import _thread
import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_calls import add, die, fail_beside_a, nothing, pids, report, stubborn, surroundings, until
from test_compare import comparable, study_of

from thrice import ray_cluster
from thrice.compare import ray_engine
from thrice.compare.cells import PATIENCE, run_cell
from thrice.compare.data import data_facts
from thrice.compare.grid import StudyTask, arms_of
from thrice.compare.ray_engine import in_ray
from thrice.errors import ConfigError, Interrupted, TrainingError
from thrice.finetune import DataSource
from thrice.ray_cluster import LONGEST_ROOM

pytest.importorskip("ray")

TESTS = str(Path(__file__).parent)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def soon(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """Workers find the functions above."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([TESTS, *sys.path]))
        yield


@pytest.fixture(scope="module")
def joined(importable: None) -> Iterator[None]:
    """A Ray of two CPUs that this process has joined, so that not every test starts its own."""
    import ray

    with ray_cluster.joined(ray, None, cpus=2):
        yield


# These start their own, and so stand before those that have joined one.


def test_rows_are_those_of_this_process_bit_for_bit(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.chdir(reviews.parent)  # so that a relative name must mean the same to a worker
    source = DataSource(data=reviews.name)
    task = StudyTask(name="reviews", metric="accuracy", options={"max_length": 24}, source=source)
    study = study_of(
        tiny_checkpoint, reviews, tasks=(task,), arms=arms_of(f"{tiny_checkpoint}+none", "tfidf"), seeds=(0,)
    )
    here, there = tmp_path / "here", tmp_path / "there"
    data = data_facts(study)
    expected = [run_cell(study, here, cell, data[cell.task]) for cell in study.cells]

    before = signal.getsignal(signal.SIGTERM)
    looks: list[None] = []
    calls = [(study, there, cell, data[cell.task]) for cell in study.cells]
    rows = list(in_ray(run_cell, calls, jobs=2, look=lambda: looks.append(None)))
    assert looks
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is before

    def place(row: dict[str, Any]) -> tuple[str, int]:
        return row["arm"], row["seed"]

    assert comparable(sorted(rows, key=place)) == comparable(sorted(expected, key=place))
    assert names(there / "cells") == names(here / "cells")
    assert names(there / "items") == names(here / "items")
    assert not list(there.glob("work/*"))


DRIVER = """
import sys
from pathlib import Path
from ray_calls import stubborn
from thrice.compare.ray_engine import in_ray
if __name__ == "__main__":
    list(in_ray(stubborn, [(Path(sys.argv[1]), "stubborn")], jobs=1, look=lambda: None))
"""


def test_no_worker_outlives_a_killed_start(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as short:
        environment = os.environ | {"TMPDIR": short}
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], env=environment)
        (pid,) = until(lambda: pids(tmp_path, "stubborn"))
        driver.kill()
        driver.wait()
        until(lambda: not alive(pid), seconds=PATIENCE)  # as long as the cells of the next start wait for it


@pytest.mark.timeout(120)
def test_a_call_that_needs_too_much_memory_is_given_up_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    low = {"memory_usage_threshold": 0.001, "min_memory_free_bytes": -1, "memory_monitor_refresh_ms": 100}
    monkeypatch.setattr(ray, "init", functools.partial(ray.init, _system_config=low))
    monkeypatch.setattr(ray_cluster, "RETRIES", 1)
    with pytest.raises(TrainingError, match=r"perhaps for memory \(.*low on memory.*fewer --jobs"):
        list(in_ray(report, [(tmp_path, "a")], jobs=1, look=nothing))


def test_more_gpus_than_there_are_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    with pytest.raises(ConfigError, match="to have 1 GPUs, and Ray finds 0 on this machine"):
        list(in_ray(nothing, [()], jobs=1, look=nothing, gpus=1))


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'pip install "thrice\[ray\]"'):
        list(in_ray(nothing, [()], jobs=1, look=nothing))


def test_a_cluster_that_does_not_answer_is_named() -> None:
    with pytest.raises(ConfigError, match=r"joined at 127\.0\.0\.1:1: .*refused - is it running"):
        list(in_ray(nothing, [()], jobs=1, look=nothing, address="127.0.0.1:1"))


def test_a_long_folder_for_temporary_files_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * LONGEST_ROOM)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    room = ray_cluster.short_room()
    room.rmdir()
    assert len(str(room)) <= LONGEST_ROOM


# Those below share one.


def test_an_empty_list_of_calls_gives_nothing(joined: None) -> None:
    assert list(in_ray(add, [], jobs=2, look=nothing)) == []


def test_a_worker_has_the_directory_and_the_threads_of_this_process(
    joined: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for threads, count in ((None, len(os.sched_getaffinity(0))), ("1", 1)):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if threads is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", threads)
        assert list(in_ray(surroundings, [()], jobs=1, look=nothing)) == [(str(tmp_path), threads, {count})]


def test_a_killed_worker_is_replaced(joined: None, tmp_path: Path) -> None:
    def kill() -> None:
        (first,) = until(lambda: pids(tmp_path, "a"))
        os.kill(first, signal.SIGKILL)
        until(lambda: len(pids(tmp_path, "a")) == 2)
        (tmp_path / "go").touch()

    killer = soon(kill)
    assert sorted(in_ray(report, [(tmp_path, "a"), (tmp_path, "b")], jobs=2, look=nothing)) == ["a", "b"]
    killer.join()
    assert len(pids(tmp_path, "b")) == 1, "the other was not disturbed"


def test_a_machine_that_is_told_to_stop_saves_and_the_call_is_made_elsewhere(joined: None, tmp_path: Path) -> None:
    def terminate() -> None:
        (first,) = until(lambda: pids(tmp_path, "a"))
        os.kill(first, signal.SIGTERM)
        until((tmp_path / "a.saved").exists)
        until(lambda: len(pids(tmp_path, "a")) == 2)
        (tmp_path / "go").touch()

    killer = soon(terminate)
    assert list(in_ray(report, [(tmp_path, "a")], jobs=1, look=nothing)) == ["a"]
    killer.join()


def test_a_call_that_kills_every_worker_is_given_up(
    joined: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "RETRIES", 1)
    with pytest.raises(TrainingError, match=r"killed, and again in 1 new starts.*fewer --jobs"):
        list(in_ray(die, [(tmp_path,)], jobs=1, look=nothing))
    assert (tmp_path / "deaths").read_text() == "xx"


def test_an_error_is_raised_as_it_is_once_and_the_others_save(joined: None, tmp_path: Path) -> None:
    calls = [(tmp_path, "a"), (tmp_path, "fails"), (tmp_path, "never begun")]
    with pytest.raises(TrainingError, match=r"^fails does$") as raised:
        list(in_ray(fail_beside_a, calls, jobs=2, look=nothing))
    assert type(raised.value) is TrainingError
    assert (tmp_path / "a.saved").exists()
    assert len(pids(tmp_path, "fails")) == 1
    assert not pids(tmp_path, "never begun")


def test_a_worker_hears_that_it_is_cancelled_where_ctrl_c_was_ignored(tmp_path: Path) -> None:
    def cancel() -> None:
        until(lambda: pids(tmp_path, "a"))
        time.sleep(0.1)
        _thread.interrupt_main()  # as Ray does
        time.sleep(1)
        (tmp_path / "go").touch()

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sender = soon(cancel)
        with pytest.raises(Interrupted, match="saved"):
            ray_engine._in_worker(report, (tmp_path, "a"), os.getcwd(), None)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        sender.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_stops_in_order_and_gives_what_ended(joined: None, tmp_path: Path) -> None:
    def interrupt() -> None:
        until(lambda: pids(tmp_path, "a") and pids(tmp_path, "stubborn"))
        os.kill(os.getpid(), signal.SIGINT)
        until((tmp_path / "a.saved").exists)
        (tmp_path / "go").touch()

    given: list[str] = []
    sender = soon(interrupt)
    calls = [(tmp_path, name) for name in ("a", "stubborn", "c")]
    with pytest.raises(Interrupted, match="saved the cells in work") as stopped:
        given.extend(in_ray(stubborn, calls, jobs=2, look=nothing))
    sender.join()
    assert stopped.value.signum == signal.SIGINT
    assert given == ["stubborn"], "it went on to its end and is given"
    assert not pids(tmp_path, "c")


def test_a_second_ctrl_c_waits_for_nobody(joined: None, tmp_path: Path) -> None:
    def interrupt() -> None:
        until(lambda: pids(tmp_path, "stubborn"))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    sender = soon(interrupt)
    with pytest.raises(Interrupted, match="at once"):
        list(in_ray(stubborn, [(tmp_path, "stubborn")], jobs=1, look=nothing))
    sender.join()
    (pid,) = pids(tmp_path, "stubborn")
    until(lambda: not alive(pid))
