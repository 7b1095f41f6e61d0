"""Folders on the hub: what is put, what the card says, and what is never put."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import Hub, fake_hub
from huggingface_hub import ModelCard, close_session, constants
from studies import full_study, make_row

from thrice.errors import CheckpointError, ConfigError, DataError
from thrice.hub import push


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with fake_hub() as served:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setenv("HF_TOKEN", served.token)
        close_session()
        yield served
        close_session()


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = full_study(tmp_path / "study")
    (folder / "report.html").write_text("<html>", encoding="utf-8")
    (folder / "report.md").write_text("# 结果\n\n![](charts/seeds.svg)\n", encoding="utf-8")
    (folder / "charts").mkdir()
    (folder / "charts" / "seeds.svg").write_text("<svg/>", encoding="utf-8")
    (folder / "rows.csv").write_text("arm\n", encoding="utf-8")
    (folder / "my notes.txt").write_text("mine", encoding="utf-8")
    (folder / ".lock").write_text("1", encoding="utf-8")
    return folder


def model(folder: Path, **sidecar: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(bytes(range(256)))
    (folder / ".lock").write_text("1", encoding="utf-8")
    (folder / "thrice.json").write_text(json.dumps({"task": {"name": "classification"}, **sidecar}), encoding="utf-8")
    return folder


RUN = {
    "model": "zoo:albert-nano-zh+all",
    "metric": "accuracy",
    "best_dev": 0.9,
    "test": {"accuracy": 0.875, "confusion": [[1]], "macro_f1": 0.5},
    "training": {"epochs": 3, "max_steps": None},
}


def test_the_report_of_a_study_is_put_with_a_card_of_every_arm(hub: Hub, study: Path) -> None:
    assert push(study, "me/reviews") == f"{hub.url}/me/reviews"
    assert hub.private == {"me/reviews": True}
    (files,) = hub.commits
    wanted = ["README.md", "charts/seeds.svg", "cost.json", "report.html", "report.md", "rows.csv", "study.json"]
    assert sorted(files) == wanted
    assert files["study.json"] == (study / "study.json").read_bytes()
    card = ModelCard(files["README.md"].decode())
    assert card.text.strip().startswith("# 结果")
    assert card.data.tags == ["thrice"]
    results = {result.metric_name: result for result in card.data.eval_results}
    assert len(results) == 4
    first = results["accuracy of zoo:albert-nano-zh+all, mean of 3 seeds"]
    assert first.metric_value == pytest.approx(0.880 + 0.001 / 3, abs=1e-9)
    assert (first.task_type, first.dataset_name, first.dataset_split) == (
        "text-classification",
        "classification",
        "test",
    )
    assert "accuracy of zoo:albert-nano-zh+none, mean of 1 seed" in results
    assert not (study / "README.md").exists()


def test_a_model_is_put_with_the_scores_of_its_run(hub: Hub, tmp_path: Path) -> None:
    folder = model(tmp_path / "out", run=RUN)
    push(folder, "me/model", private=False)
    assert hub.private == {"me/model": False}
    (files,) = hub.commits
    assert sorted(files) == ["README.md", "config.json", "model.safetensors", "thrice.json"]
    assert files["model.safetensors"] == bytes(range(256))
    card = ModelCard(files["README.md"].decode())
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-classification"
    values = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert values == {"accuracy": 0.875, "macro_f1": 0.5}
    assert "| accuracy on test | 0.8750 |" in card.text
    assert "| epochs | 3 |" in card.text
    assert "max_steps" not in card.text


def test_a_model_that_a_study_kept_has_the_scores_of_its_row(hub: Hub, tmp_path: Path) -> None:
    folder = model(tmp_path / "study" / "models" / "a--seed-0", study={"arm": "a"})
    (tmp_path / "study" / "cells").mkdir()
    row = make_row("a", 0, [0.6, 0.75], None, task="reviews")
    (tmp_path / "study" / "cells" / "a--seed-0.json").write_text(json.dumps(row), encoding="utf-8")
    push(folder, "me/model")
    (result,) = ModelCard(hub.commits[0]["README.md"].decode()).data.eval_results
    assert (result.dataset_name, result.dataset_split, result.metric_value) == ("reviews", "validation", 0.75)


def test_a_card_of_the_users_own_is_left_as_it_is(hub: Hub, tmp_path: Path) -> None:
    folder = model(tmp_path / "out", run=RUN)
    (folder / "README.md").write_text("mine\n", encoding="utf-8")
    push(folder, "me/model")
    assert hub.commits[0]["README.md"] == b"mine\n"


def pretrained(folder: Path) -> Path:
    """Give a folder as `thrice pretrain` leaves it, with every tower and with curves."""
    said = {"name": "tiny", "verdict": "learned", "evaluations": [{"held_out": {"mlm": 2.5}}]}
    for place, sidecar in ((folder, said), (folder / "generator", said | {"tower": "generator"})):
        model(place)
        (place / "thrice.json").write_text(json.dumps({"format": 1, "pretraining": sidecar}), encoding="utf-8")
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n\n# tiny\n", encoding="utf-8")
    (folder / "proposal.safetensors").write_bytes(b"proposal")
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "events.out.tfevents.1").write_bytes(b"curve")
    return folder


def test_a_pre_trained_model_is_put_with_its_towers_and_its_own_card(hub: Hub, tmp_path: Path) -> None:
    folder = pretrained(tmp_path / "out")
    push(folder, "me/tiny")
    (files,) = hub.commits
    own = ["config.json", "model.safetensors", "thrice.json"]
    wanted = ["README.md", "proposal.safetensors", *own, *(f"generator/{name}" for name in own)]
    assert sorted(files) == sorted(wanted)
    assert files["README.md"] == (folder / "README.md").read_bytes()
    assert files["generator/thrice.json"] == (folder / "generator" / "thrice.json").read_bytes()


def test_a_pre_trained_model_without_its_card_gets_one_without_scores(hub: Hub, tmp_path: Path) -> None:
    folder = pretrained(tmp_path / "out")
    (folder / "README.md").unlink()
    push(folder, "me/tiny")
    card = ModelCard(hub.commits[0]["README.md"].decode())
    assert card.data.eval_results is None
    assert card.text.strip() == "# tiny"


def test_an_un_shared_model_of_no_task_is_put(hub: Hub, tmp_path: Path) -> None:
    folder = model(tmp_path / "out")
    (folder / "thrice.json").write_text('{"format": 1, "attention_map": [0, 1]}', encoding="utf-8")
    push(folder, "me/model")
    assert sorted(hub.commits[0]) == ["README.md", "config.json", "model.safetensors", "thrice.json"]


def test_a_generator_that_an_older_model_left_stays_here(hub: Hub, tmp_path: Path) -> None:
    folder = model(tmp_path / "out", run=RUN)
    model(folder / "generator")
    push(folder, "me/model")
    assert not [name for name in hub.commits[0] if name.startswith("generator")]


def test_nothing_private_goes_into_a_public_repo(hub: Hub, study: Path) -> None:
    hub.private["me/open"] = False
    with pytest.raises(ConfigError, match=r"me/open is there and public.*private=False"):
        push(study, "me/open")
    assert hub.commits == []
    push(study, "me/open", private=False)
    assert len(hub.commits) == 1


def test_without_a_token_it_is_said_how_to_log_in(hub: Hub, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ConfigError, match="hf auth login"):
        push(study, "me/reviews")
    assert hub.private == {}


def test_a_refusal_is_told(hub: Hub, study: Path) -> None:
    hub.refuse = 403
    with pytest.raises(DataError, match=r"refused me/reviews: .*may this token write"):
        push(study, "me/reviews")


def test_a_hub_that_does_not_answer_is_told(study: Path, monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"did not take me/reviews: .*offline mode"):
        push(study, "me/reviews")


def test_what_cannot_be_put_is_refused_before_the_hub_is_asked(tmp_path: Path, study: Path) -> None:
    with pytest.raises(ConfigError, match="neither a study"):
        push(tmp_path, "me/x")
    with pytest.raises(ConfigError, match="OWNER/NAME"):
        push(study, "reviews")
    for name in ("report.html", "report.md"):
        (study / name).unlink()
    with pytest.raises(ConfigError, match=r"no report yet: thrice report"):
        push(study, "me/x")
    with pytest.raises(CheckpointError, match=r"thrice\.json is not as"):
        push(model(tmp_path / "broken", task=[]), "me/x")


def test_without_report_md_the_card_has_the_tables(hub: Hub, study: Path) -> None:
    (study / "report.md").unlink()
    push(study, "me/reviews")
    text = ModelCard(hub.commits[0]["README.md"].decode()).text
    assert "| zoo:albert-nano-zh+attention" in text
