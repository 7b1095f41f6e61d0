"""What a study has finished, put to a second place and fetched from it: whole, and of the same study."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from thrice.compare.store import Store
from thrice.errors import ConfigError, DataError


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    memory = fsspec.filesystem("memory")
    yield "memory://somewhere/study" if request.param == "memory" else f"file://{tmp_path}/far/study"
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def study_json(seeds: list[int], *, epochs: int) -> bytes:
    return json.dumps({"arms": [], "tasks": [], "seeds": seeds, "training": {"epochs": epochs}}).encode()


CONTENT = {
    "study.json": study_json([0], epochs=2),
    "cells/a--seed-0.json": b'{"arm": "a"}',
    "cells/b--seed-0.json": "{'arm': '乙'}".encode(),
    "items/a--seed-0.parquet": b"PAR1\x00\xff",
    "models/a--seed-0/config.json": b"{}",
    "models/a--seed-0/model.safetensors": bytes(range(256)),
}


def make(folder: Path, content: dict[str, bytes]) -> Path:
    for name, value in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(value)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_was_put_is_fetched_byte_for_byte_by_a_machine_that_has_nothing(url: str, tmp_path: Path) -> None:
    here = make(tmp_path / "here", CONTENT | {"models/a--seed-0/.lock": b"1", "work/a/train.jsonl": b"{}"})
    put = Store(url).push(here, ["cells/b--seed-0.json", "cells/a--seed-0.json", "study.json", "models", Path("items")])
    assert sorted(put) == sorted(CONTENT)
    fetched = Store(url).pull(tmp_path / "there")
    assert content(tmp_path / "there") == CONTENT
    for order in (put, fetched):
        assert [name[:6] for name in order[-2:]] == ["cells/"] * 2, "a row says that its cell is finished"
        assert order.index("models/a--seed-0/config.json") > order.index("models/a--seed-0/model.safetensors")
    assert Store(url).pull(tmp_path / "there") == []


def test_a_row_that_the_folder_has_is_left_alone_and_one_in_the_store_is_replaced(url: str, tmp_path: Path) -> None:
    store = Store(url)
    store.push(make(tmp_path / "here", CONTENT), ["cells"])
    newer = {"cells/a--seed-0.json": b'{"arm": "newer"}'}
    there = make(tmp_path / "there", newer)
    assert store.pull(there) == ["cells/b--seed-0.json"]
    assert content(there)["cells/a--seed-0.json"] == newer["cells/a--seed-0.json"]
    store.push(there, newer)
    store.pull(tmp_path / "third")
    assert content(tmp_path / "third")["cells/a--seed-0.json"] == newer["cells/a--seed-0.json"]


def test_a_worker_may_ask_for_the_study_alone(url: str, tmp_path: Path) -> None:
    Store(url).push(make(tmp_path / "here", CONTENT), CONTENT)
    assert Store(url).pull(tmp_path / "there", rooms=()) == ["study.json"]


def test_an_empty_store_gives_nothing_and_makes_nothing(url: str, tmp_path: Path) -> None:
    assert Store(url).pull(tmp_path / "there") == []
    assert list(tmp_path.iterdir()) == []


def test_rows_of_another_study_are_not_fetched(url: str, tmp_path: Path) -> None:
    store = Store(url)
    store.push(make(tmp_path / "here", CONTENT), CONTENT)
    grown = make(tmp_path / "grown", {"study.json": study_json([0, 1], epochs=2)})
    assert len(store.pull(grown)) == len(CONTENT) - 1, "more seeds are the same study"
    other = make(tmp_path / "other", {"study.json": study_json([0], epochs=3)})
    with pytest.raises(DataError, match=r"another study than .*training\.epochs was 2 and is 3.*--restart"):
        store.pull(other)
    assert list(content(other)) == ["study.json"]


def test_forgetting_leaves_what_is_not_of_the_study(url: str, tmp_path: Path) -> None:
    store = Store(url)
    store.push(make(tmp_path / "here", CONTENT | {"mine/notes.txt": b"!"}), [*CONTENT, "mine/notes.txt"])
    store.forget()
    store.forget()
    assert store.pull(tmp_path / "there") == []
    fs, root = fsspec.url_to_fs(url)
    assert [path.rpartition("/")[2] for path in fs.find(root)] == ["notes.txt"]


@pytest.mark.parametrize("name", ["../x.json", "cells/../../x.json", "/etc/hostname", "", ".", "..", "cells\\..\\x"])
def test_names_that_leave_the_folder_are_refused_before_anything_is_copied(
    url: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(url)
    here = make(tmp_path / "here", CONTENT)
    (tmp_path / "x.json").write_bytes(b"mine")
    with pytest.raises(DataError, match="no name inside"):
        store.push(here, ["cells/a--seed-0.json", name])
    monkeypatch.setattr(store, "_listed", lambda room: ["cells/a--seed-0.json", name])
    with pytest.raises(DataError, match="no name inside"):
        store.pull(tmp_path / "there")
    assert not (tmp_path / "there").exists()
    assert Store(url).pull(tmp_path / "there") == []


def test_a_link_out_of_the_folder_is_refused(url: str, tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", {"a.json": b"secret"})
    here = make(tmp_path / "here", {"study.json": b"{}"})
    (here / "cells").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="by a link"):
        Store(url).push(here, ["cells/a.json"])


def test_a_copy_that_breaks_leaves_the_old_file_and_no_half(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(url)
    here = make(tmp_path / "here", CONTENT)
    store.push(here, ["cells/a--seed-0.json"])
    (here / "cells/a--seed-0.json").write_bytes(b"{}")

    def half(source: str, target: str, **_: Any) -> None:
        store._fs.pipe_file(target, b"{")
        raise TimeoutError("the line went dead\nand more")

    monkeypatch.setattr(store._fs, "put_file", half)
    with pytest.raises(DataError, match=r"did not take cells/a--seed-0.json: the line went dead - .*start the same"):
        store.push(here, ["cells/a--seed-0.json"])
    fs, root = fsspec.url_to_fs(url)
    (only,) = fs.find(root, withdirs=False)
    assert fs.cat_file(only) == CONTENT["cells/a--seed-0.json"]


def test_a_fetch_that_breaks_leaves_no_half(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(url)
    store.push(make(tmp_path / "here", CONTENT), ["cells"])

    def half(source: str, target: str, **_: Any) -> None:
        Path(target).write_bytes(b"{")
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(store._fs, "get_file", half)
    with pytest.raises(DataError, match=r"did not give cells/a--seed-0\.json: reset by peer"):
        store.pull(tmp_path / "there")
    assert content(tmp_path / "there") == {}


def test_a_file_that_is_not_there_is_named(url: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"items/a\.parquet is not there"):
        Store(url).push(tmp_path, ["items/a.parquet"])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [("nope://x/y", "Protocol not known: nope - give a URL such as s3://"), ("s3://bucket/x", "[Ii]nstall s3fs")],
)
def test_a_kind_of_url_without_a_client_is_refused(wrong: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ConfigError, match=told):
        Store(wrong)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="holds a password") as raised:
        Store("sftp://me:hunter2@host/study")
    assert "hunter2" not in str(raised.value)


def test_study_json_is_compared_as_json(url: str, tmp_path: Path) -> None:
    store = Store(url)
    store.push(make(tmp_path / "here", CONTENT), ["study.json"])
    same = json.dumps(json.loads(CONTENT["study.json"]), indent=4).encode()
    assert store.pull(make(tmp_path / "there", {"study.json": same})) == []


def test_a_damaged_study_in_the_store_is_told(url: str, tmp_path: Path) -> None:
    Store(url).push(make(tmp_path / "here", {"study.json": b'{"arms": '}), ["study.json"])
    with pytest.raises(DataError, match=r"did not give study\.json as one can read it"):
        Store(url).pull(make(tmp_path / "there", CONTENT))
