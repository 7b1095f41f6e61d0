"""Finished cells in TensorBoard, W&B and trackio: every number of the log, once."""

from __future__ import annotations

import json
import sys
from importlib import invalidate_caches
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from studies import make_row

from thrice.compare.trackers import log_cell
from thrice.errors import ConfigError, TrainingError
from thrice.trackers import TRACKERS, check_trackers


def step_line(step: int) -> dict[str, Any]:
    means = {"loss": 0.7 / step, "lr": 1e-3 * step, "grad_norm": 1.25 + step}
    return {"event": "step", "step": step, "epoch": 1 + step // 5, **means, "seconds": 0.1 * step}


def row_and_log(folder: Path, **changes: Any) -> tuple[dict[str, Any], Path]:
    """Give a finished row and the log that stands for it, as a run writes them."""
    row = make_row("zoo:albert-nano-zh+all", 3, [0.6, 0.8], 0.75) | {
        "steps": 8,
        "threads": 1,
        "training": {"learning_rate": 1e-3, "epochs": 2, "max_steps": None, "schedule": "linear"},
        "versions": {"torch": "2.13"},
    }
    for epoch in row["epochs"]:
        epoch["step"] = 4 * epoch["epoch"]
        epoch["dev"]["confusion"] = [[1, 2], [3, 4]]
        epoch["collapsed"] = False
    lines = [*map(step_line, (2, 4)), {"event": "epoch", **row["epochs"][0]}]
    lines += [*map(step_line, (6, 8)), {"event": "epoch", **row["epochs"][1]}]
    log = folder / "train.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return row | changes, log


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Give tag -> [(step, value)] as TensorBoard reads a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_every_number_of_the_log(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    row, log = row_and_log(tmp_path)
    study = tmp_path / "study"
    log_cell(row, log, trackers=["tensorboard"], folder=study, project="p")
    (seed,) = study.glob("tensorboard/*/classification/seed-3")
    read = scalars(seed)
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    for name in ("loss", "lr", "grad_norm"):
        expected = [(line["step"], pytest.approx(line[name])) for line in lines if line["event"] == "step"]
        assert read.pop(f"train/{name}") == expected
    epochs = [line for line in lines if line["event"] == "epoch"]
    assert read.pop("dev/accuracy") == [(e["step"], pytest.approx(e["dev"]["accuracy"])) for e in epochs]
    for name in ("train_loss", "clipped_fraction", "seconds", "collapsed"):
        assert read.pop(f"epoch/{name}") == [(e["step"], pytest.approx(float(e[name]))) for e in epochs]
    assert read.pop("test/accuracy") == [(8, pytest.approx(0.75))]
    assert read.pop("result/best_dev") == [(8, pytest.approx(0.8))]
    assert read.pop("result/epoch1_dev") == [(8, pytest.approx(0.6))]
    assert read.pop("result/best_epoch") == [(8, 2)]
    assert read.pop("result/collapsed") == [(8, 0)]
    assert read == {}, "nothing else"
    (config,) = seed.rglob("hparams.yml")
    assert "training.learning_rate: 0.001" in config.read_text(encoding="utf-8")


def test_a_cell_logged_again_replaces_what_was_there(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    row, log = row_and_log(tmp_path)
    study = tmp_path / "study"
    log_cell(row, log, trackers=["tensorboard"], folder=study, project="p")
    before = sorted(path.suffix for path in study.rglob("*") if path.is_file())
    log_cell(row | {"best_dev": 0.9}, log, trackers=["tensorboard", "tensorboard"], folder=study, project="p")
    (seed,) = study.glob("tensorboard/*/classification/*")
    assert scalars(seed)["result/best_dev"] == [(8, pytest.approx(0.9))]
    assert len([path for path in study.rglob("*") if path.is_file()]) == len(before)


def test_points_of_a_grid_are_runs_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for rate in (1e-3, 1e-4):
        row, log = row_and_log(tmp_path, arm="a", point={"learning_rate": rate, "epochs": 2})
        log_cell(row, log, trackers=["tensorboard"], folder=tmp_path, project="p")
    rooms = sorted(path.name[:13] for path in (tmp_path / "tensorboard/a/classification/seed-3").iterdir())
    assert len(rooms) == 2
    assert rooms[0].startswith("epochs=2")


def test_a_broken_write_leaves_the_old_curve_and_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from accelerate.tracking import TensorBoardTracker

    row, log = row_and_log(tmp_path, arm="a")
    log_cell(row, log, trackers=["tensorboard"], folder=tmp_path, project="p")
    seed = tmp_path / "tensorboard/a/classification/seed-3"
    before = scalars(seed)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TensorBoardTracker, "log", full)
    with pytest.raises(TrainingError, match=r"cell a/classification/seed-3 is .*tensorboard: OSError.*No space"):
        log_cell(row | {"best_dev": 0.1}, log, trackers=["tensorboard"], folder=tmp_path, project="p")
    assert scalars(seed) == before
    assert [path.name for path in seed.parent.iterdir()] == ["seed-3"]


def test_without_a_log_the_epochs_of_the_row_are_the_curve(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    row = make_row("tfidf", 0, [0.7], None)
    log_cell(row, tmp_path / "none.jsonl", trackers=["tensorboard"], folder=tmp_path, project="p")
    read = scalars(tmp_path / "tensorboard/tfidf/classification/seed-0")
    assert read["dev/accuracy"] == [(1, pytest.approx(0.7))]
    assert not [tag for tag in read if tag.startswith(("test/", "train/"))]


def double(name: str, calls: list[Any]) -> ModuleType:
    """Give a module that writes down what is asked of it, for a client that is not installed."""
    run = SimpleNamespace(
        log=lambda values, step, **_: calls.append((step, values)), finish=lambda: calls.append("finished")
    )
    module: Any = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, origin=f"{name}.py")
    module.init = lambda **settings: (calls.append(settings), run)[1]
    module.finish = run.finish
    module.config = SimpleNamespace(update=lambda values, **_: calls.append(values))
    return module


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_services_get_one_finished_run_per_cell(tmp_path: Path, tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, tracker, double(tracker, calls))
    row, log = row_and_log(tmp_path)
    log_cell(row, log, trackers=[tracker], folder=tmp_path, project="my study")
    settings, config, *points, end = calls
    assert settings["project"] == "my study"
    assert settings["name"] == "zoo:albert-nano-zh+all/classification/seed-3"
    assert config["training.learning_rate"] == 1e-3
    assert "training.max_steps" not in config
    assert [step for step, _ in points] == [2, 4, 4, 6, 8, 8, 8], "steps never fall"
    assert points[0][1] == {"train/loss": 0.35, "train/lr": 0.002, "train/grad_norm": 3.25}
    assert end == "finished"
    log_cell(row, log, trackers=[tracker], folder=tmp_path, project="my study")
    assert [call for call in calls if isinstance(call, dict) and "project" in call] == [settings] * 2, "the same run"
    if tracker == "wandb":
        log_cell(row | {"finished": "later"}, log, trackers=[tracker], folder=tmp_path, project="my study")
        assert calls[2 * (len(points) + 3)]["id"] != settings["id"]


def test_a_process_that_trained_nothing_can_tell_a_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate import PartialState

    monkeypatch.setattr(PartialState, "_shared_state", {})
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, "wandb", double("wandb", calls))
    row, log = row_and_log(tmp_path)
    log_cell(row, log, trackers=["wandb"], folder=tmp_path, project="p")
    assert calls[-1] == "finished"


def test_all_trackers_are_tried_before_one_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    broken: Any = double("wandb", [])

    def init(**_: Any) -> None:
        raise RuntimeError("no API key configured\nlong help")

    broken.init = init
    monkeypatch.setitem(sys.modules, "wandb", broken)
    monkeypatch.setitem(sys.modules, "trackio", double("trackio", calls))
    row, log = row_and_log(tmp_path)
    with pytest.raises(TrainingError, match=r"row kept.*wandb: RuntimeError: no API key configured - leave"):
        log_cell(row, log, trackers=["wandb", "trackio"], folder=tmp_path, project="p")
    assert calls[-1] == "finished"


def test_trackers_nobody_knows_or_has_are_all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"'tensorbord'.*did you mean tensorboard\?; wandb is not installed: pip"):
        check_trackers(["tensorbord", "wandb"])
    check_trackers([])


@pytest.mark.parametrize("tracker", TRACKERS)
def test_the_folder_that_a_tracker_left_here_is_not_the_tracker(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / tracker / "run-1").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, tracker, raising=False)
    with pytest.raises(ConfigError, match=f"{tracker} is not installed: pip install {tracker}"):
        check_trackers([tracker])
    (tmp_path / tracker / "__init__.py").touch()
    invalidate_caches()
    check_trackers([tracker])
