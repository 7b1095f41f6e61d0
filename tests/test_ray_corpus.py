"""A corpus prepared by tasks of Ray is the local one, whatever is killed, and stops when it should."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from corpora import numbered, text_of, word_tokenizer
from ray_calls import Texts, pids, until
from test_cli import run
from test_corpus import contents
from test_ray import alive, importable, joined, soon

from thrice import ray_cluster
from thrice.data import ray_preparing
from thrice.data.corpus import prepare_corpus
from thrice.data.preparing import Maker, Preparation, Work, record_path
from thrice.data.ray_preparing import in_ray
from thrice.data.tokenizer import Tokenizer
from thrice.errors import ConfigError, DataError, Interrupted
from thrice.training.interrupt import orderly_termination

__all__ = ["importable", "joined"]  # fixtures

pytest.importorskip("ray")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text(text_of(numbered(120)), encoding="utf-8")
    return path


@pytest.fixture
def words(tmp_path: Path) -> Tokenizer:
    return word_tokenizer(tmp_path / "words")


@pytest.fixture
def preparation(tmp_path: Path, words: Tokenizer) -> Preparation:
    (tmp_path / "c").mkdir()
    pipeline, size = words.backend.to_str(), words.vocab_size
    return Preparation(folder=tmp_path / "c", settings="s", pipeline=pipeline, vocab_size=size, min_tokens=1)


def works(*texts: Any) -> Iterator[Work]:
    return (Work(number=number, documents=documents, text="") for number, documents in enumerate(texts))


def test_a_ray_that_is_started_here_has_so_many_cpus_and_room_for_their_texts(
    source: Path, words: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def joined(ray: Any, address: str | None, **given: int) -> None:
        asked.append((address, given))
        raise ConfigError("no more is asked")

    monkeypatch.setattr(ray_cluster, "joined", joined)
    for characters in (2000, 10_000_000):
        with pytest.raises(ConfigError, match="no more"):
            prepare_corpus(source, words, "c", shard_characters=characters, processes=3, engine="ray")
    stores = [ray_cluster.STORE_BYTES, 240_000_000]
    assert asked == [(None, {"cpus": 3, "store_bytes": store}) for store in stores]


def test_the_command_joins_the_cluster_it_is_told(
    source: Path, words: Tokenizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(source.parent)
    to = ("--engine", "ray", "--address", "127.0.0.1:1")
    code, _, said = run(monkeypatch, capsys, "corpus", source.name, "--tokenizer", "words", "--out", "c", *to)
    assert code == 2
    assert "no Ray cluster could be joined at 127.0.0.1:1" in said
    assert not (source.parent / "c").exists()


def test_a_signal_ends_the_works_begun(tmp_path: Path, preparation: Preparation) -> None:
    def send() -> None:
        until(lambda: pids(tmp_path, "a"), seconds=300)  # Ray starts in seconds, on a busy machine in minutes
        os.kill(os.getpid(), signal.SIGTERM)

    sender = soon(send)
    before = signal.getsignal(signal.SIGTERM)
    with orderly_termination(), pytest.raises(Interrupted) as stopped:
        list(in_ray(preparation, works(Texts(tmp_path, "a")), characters=10, processes=1))
    sender.join()
    assert stopped.value.signum == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    until(lambda: not any(map(alive, pids(tmp_path, "a"))), seconds=10)


# Those below share a Ray of two CPUs.


def test_the_corpus_is_the_local_one_bit_for_bit(
    joined: None, tmp_path: Path, source: Path, words: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # so that a relative name must mean the same to a worker
    there = prepare_corpus(source.name, words, "there", shard_characters=2000, engine="ray")
    here = prepare_corpus(source.name, words, "here", shard_characters=2000)
    assert here.num_shards > 5
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert there.fingerprint == here.fingerprint


def test_each_engine_goes_on_where_the_other_was_stopped(
    joined: None, tmp_path: Path, source: Path, words: Tokenizer
) -> None:
    whole = prepare_corpus(source, words, tmp_path / "whole", shard_characters=2000)
    folder = tmp_path / "c"
    stop_at = 3

    def stop(done: int, total: int) -> None:
        if len(list(folder.glob("shard-*.json"))) >= stop_at:
            raise KeyboardInterrupt

    for engine in ("local", "ray"):
        with pytest.raises(KeyboardInterrupt):
            prepare_corpus(source, words, folder, shard_characters=2000, engine=engine, progress=stop)
        stop_at += 2
    finished = [path.name.partition(".")[0] for path in folder.glob("shard-*.json")]
    assert 5 <= len(finished) < whole.num_shards
    dates = {path: path.stat().st_mtime_ns for path in folder.glob("shard-*.npy")}
    (folder / ".shard-00007.ids.npy.1.partial").write_bytes(b"of another machine, whose number lives on this one")
    for engine in ("ray", "local"):
        prepare_corpus(source, words, folder, shard_characters=2000, engine=engine)
        assert contents(folder) == contents(tmp_path / "whole")
        assert all(path.stat().st_mtime_ns == date for path, date in dates.items() if path.name[:11] in finished)


def test_a_bad_source_is_told_as_it_is_locally(joined: None, tmp_path: Path, words: Tokenizer) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text_of(numbered(60)).encode() + b"\n\xff\xff\n")
    with pytest.raises(DataError, match=r"^.*a\.txt: line \d+ is not UTF-8"):
        prepare_corpus(path, words, tmp_path / "c", shard_characters=2000, engine="ray")
    assert not (tmp_path / "c" / "corpus.json").exists()


def test_twice_as_many_texts_wait_as_there_are_cpus(joined: None, tmp_path: Path, preparation: Preparation) -> None:
    taken: list[int] = []

    def six() -> Iterator[Work]:
        for work in works(*[Texts(tmp_path, "a")] * 6):
            taken.append(work.number)
            yield work

    def look() -> None:
        until(lambda: len(taken) == most)
        time.sleep(0.3)
        waiting.append(len(taken))
        (tmp_path / "go").touch()

    for processes, most in ((None, 4), (1, 1)):
        taken.clear()
        (tmp_path / "go").unlink(missing_ok=True)
        waiting: list[int] = []
        looker = soon(look)
        numbers = [number for number, _ in in_ray(preparation, six(), characters=10, processes=processes)]
        looker.join()
        assert sorted(numbers) == list(range(6))
        assert waiting == [most]


def test_a_worker_builds_its_tokenizer_once(
    joined: None, preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    built: list[Preparation] = []

    class Counted(Maker):
        def __init__(self, preparation: Preparation) -> None:
            built.append(preparation)
            super().__init__(preparation)

    monkeypatch.setattr(ray_preparing, "Maker", Counted)
    monkeypatch.setattr(ray_preparing, "_MAKERS", {})
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    shared = [ray.put((preparation, ray_preparing._versions()))]
    for work in works(["He sat."], ["She ran."]):
        ray_preparing._make(work, "one corpus", shared)
    assert len(built) == 1
    ray_preparing._make(work, "another", shared)
    assert len(built) == 2


def test_a_worker_with_other_versions_is_refused(
    joined: None, preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_preparing, "_versions", lambda: {"thrice": "0", "tokenizers": "0.9"})
    with pytest.raises(ConfigError, match=r"^thrice 0 and tokenizers 0\.9 here, thrice .* at a worker of Ray; install"):
        list(in_ray(preparation, works(["He sat."]), characters=10))


def test_workers_that_do_not_share_the_folder_are_told(
    joined: None, preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = r"do not share the folder .*/c; give one that they do"
    with monkeypatch.context() as patch:
        patch.setattr(ray_preparing, "is_whole", lambda *_: False)
        with pytest.raises(ConfigError, match=message):
            list(in_ray(preparation, works(["He sat."]), characters=10))
    for path in preparation.folder.iterdir():
        path.unlink()
    preparation.folder.rmdir()
    with pytest.raises(ConfigError, match=message):
        list(in_ray(preparation, works(["He sat."]), characters=10))
    assert not preparation.folder.exists()


@pytest.mark.parametrize("kind", [DataError, KeyboardInterrupt])
def test_works_begun_in_a_ray_of_others_are_finished_first(
    joined: None, tmp_path: Path, preparation: Preparation, kind: type[BaseException]
) -> None:
    def one() -> Iterator[Work]:
        yield from works(Texts(tmp_path, "a"))
        until(lambda: pids(tmp_path, "a"))
        if kind is DataError:
            raise DataError("no UTF-8")
        os.kill(os.getpid(), signal.SIGINT)

    def go() -> None:
        until(lambda: pids(tmp_path, "a"))
        time.sleep(0.5)
        (tmp_path / "go").touch()

    opener = soon(go)
    with pytest.raises(kind):
        list(in_ray(preparation, one(), characters=10))
    assert record_path(preparation.folder, 0).exists()
    opener.join()


def test_the_shard_of_a_killed_worker_is_made_anew(joined: None, tmp_path: Path, preparation: Preparation) -> None:
    (tmp_path / "go").touch()
    texts = Texts(tmp_path, "a", deaths=1)
    ((number, record),) = in_ray(preparation, works(texts), characters=10)
    assert len(pids(tmp_path, "a")) == 2
    (tmp_path / f"a.{os.getpid()}").touch()  # whoever reads now is not killed
    (work,) = works(texts)
    assert (number, record) == (0, Maker(preparation).write(work))


def test_a_work_that_kills_every_worker_is_given_up(
    joined: None, preparation: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def result_of(ray: Any, ref: Any) -> None:
        raise ray_cluster.WorkerKilledError("out of memory")

    monkeypatch.setattr(ray_cluster, "result_of", result_of)
    with pytest.raises(DataError, match=r"in 3 new starts, perhaps for memory \(out of memory\); finished .* are kept"):
        list(in_ray(preparation, works(["He sat."]), characters=10))
