"""What a model's name means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thrice.checkpoints import require_folder, resolve, zoo_names
from thrice.errors import CheckpointError, ConfigError


def test_a_folder_may_carry_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    plain, shared = resolve(f"{tmp_path}/model"), resolve(f"{tmp_path}/model+attention=0,0;ffn=0,1")
    assert (plain.kind, plain.pattern, plain.folder) == ("folder", None, tmp_path / "model")
    assert (shared.kind, shared.pattern, shared.folder) == ("folder", "attention=0,0;ffn=0,1", tmp_path / "model")


def test_a_real_folder_with_a_plus_wins_over_the_pattern(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model+none").mkdir()
    source = resolve(f"{tmp_path}/model+none")
    assert (source.folder, source.pattern) == (tmp_path / "model+none", None)
    source = resolve(f"{tmp_path}/model+none+all")
    assert (source.folder, source.pattern) == (tmp_path / "model+none", "all")


def test_a_plus_inside_a_path_is_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(CheckpointError, match="no such folder"):
        resolve(f"{tmp_path}/a+b/c")


def test_relative_and_home_folders_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("model", "model/", "./model", "~/model"):
        assert resolve(name).kind == "folder"


def test_zoo_and_presets_are_known_by_name() -> None:
    source = resolve("zoo:albert-nano-zh+none")
    assert (source.kind, source.name, source.pattern) == ("zoo", "albert-nano-zh", "none")
    assert source.folder is not None
    assert (source.folder / "config.json").is_file()
    assert "albert-nano-zh" in zoo_names()
    source = resolve("preset:bert-tiny+all")
    assert (source.kind, source.name, source.pattern, source.folder) == ("preset", "bert-tiny", "all", None)
    with pytest.raises(ConfigError, match="random weights and no files"):
        require_folder(source)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zoo:albert-nano", "did you mean albert-nano-zh"),
        ("zoo:", "no model called ''"),
        ("zoo:../albert-nano-zh", "no model called"),
        ("preset:bert-tny", "did you mean bert-tiny"),
        ("preset:nothing-like-it", "known: albert-base"),
        ("./absent", "no such folder: ./absent"),
        ("absent/", "no such folder: absent/"),
        ("/absent/model", "no such folder"),
        ("~/absent-model", "no such folder"),
        ("a/b/c", "no such folder"),
        ("two words", "no such folder"),
        ("", "an empty name"),
        ("model+", "such as model+none"),
        ("+none", "such as out/+none"),
        ("x" * 5000, "x"),
    ],
)
def test_names_that_mean_nothing_say_what_would(name: str, expected: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve(name)
    assert expected in str(caught.value)


def test_a_file_points_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=f"is a file, expected the folder around it. - try {tmp_path}"):
        resolve(f"{tmp_path}/model.safetensors")


def test_an_unreachable_hub_id_is_two_lines() -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve("nobody/has-this-model+none")
    lines = str(caught.value).split("\n")
    assert len(lines) == 2
    assert "'nobody/has-this-model'" in lines[0]
    assert "zoo:NAME" in lines[1]


@pytest.mark.parametrize("has_safetensors", [True, False])
def test_hub_files_are_fetched_as_safetensors_where_there_are_any(
    has_safetensors: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    calls: list[list[str]] = []

    def fetch(hub_id: str, *, allow_patterns: list[str]) -> str:
        assert hub_id == "albert/albert-base-v2"
        calls.append(allow_patterns)
        if has_safetensors:
            (tmp_path / "model.safetensors").touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    source = resolve("albert/albert-base-v2+none")
    assert (source.kind, source.name, source.pattern) == ("hub", "albert/albert-base-v2", "none")
    assert source.folder == tmp_path
    pickled: Any = [any(pattern.endswith(".bin") for pattern in patterns) for patterns in calls]
    assert pickled == ([False] if has_safetensors else [False, True])
    assert all(
        {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json"} <= set(patterns) for patterns in calls
    )


def fetched(hub_files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give those of a repo's files that are fetched."""
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    found: set[str] = set()

    def fetch(hub_id: str, *, allow_patterns: list[str]) -> str:
        for name in filter_repo_objects(hub_files, allow_patterns=allow_patterns):
            found.add(name)
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    resolve("somebody/electra")
    return sorted(found)


def test_a_hub_id_brings_its_towers_and_no_pickle_of_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ["config.json", "model.safetensors", "thrice.json", "vocab.txt"]
    towers = ["proposal.safetensors", *(f"generator/{name}" for name in own)]
    others = [
        "README.md",
        "generator/README.md",
        "generator/checkpoint-5/config.json",
        "generator/optimizer.pt",
        "generator/pytorch_model.bin",
        "generator/run.py",
        "pytorch_model.bin",
        "tensorboard/events.out.tfevents.1",
    ]
    assert fetched([*own, *towers, *others], tmp_path, monkeypatch) == sorted([*own, *towers])


def test_a_tower_does_not_stand_for_weights_that_are_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = ["config.json", "proposal.safetensors", "pytorch_model.bin"]
    assert fetched(repo, tmp_path, monkeypatch) == repo


def test_a_misspelt_folder_reached_as_a_hub_id_says_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="no folder called 'outt' here"):
        resolve("outt")
