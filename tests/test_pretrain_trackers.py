"""Curves of a pre-training run in trackers: every number of the log, once, however often the run was stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretraining_parts import RESHARING, content_of, tiny_recipe
from test_cli import run as run_command
from test_pretrain_killed import forked, left_in
from test_trackers import double, scalars

from thrice.errors import ConfigError, Interrupted
from thrice.pretraining import curves, pretrain
from thrice.pretraining import run as running
from thrice.pretraining.curves import Curves
from thrice.training import budget_loop

RUN = {"save_every_steps": 2, "log_every_steps": 3}
Points = dict[str, list[tuple[int, float]]]


def train(place: Path, *trackers: str, out: str = "out", **more: Any) -> dict[str, Any]:
    recipe = tiny_recipe(place, stages=RESHARING, run=RUN)
    return pretrain(recipe, place / out, trackers=trackers, **more)


def expected(log: Path) -> Points:
    """Give tag -> [(step, value)] of a log, in the precision in which TensorBoard keeps values."""
    found: Points = {}
    for text in log.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        rooms = {"step": {"train": line}, "evaluation": {"evaluation": line, "held_out": line.get("held_out")}}
        for room, values in rooms.get(line["event"], {}).items():
            for name, value in values.items():
                if name not in ("event", "step", "evaluation") and isinstance(value, int | float):
                    found.setdefault(f"{room}/{name}", []).append((line["step"], float(np.float32(value))))
    return found


def stopping_at(monkeypatch: pytest.MonkeyPatch, *steps: int, by: Callable[[Any], None]) -> None:
    """Let the run be stopped once behind each of the steps, counted over all starts."""
    right, calls = budget_loop._train_step, iter(range(1, 1000))

    def step(run: Any, state: Any, feed: Any) -> None:
        right(run, state, feed)
        if next(calls) in steps:
            by(run)

    monkeypatch.setattr(budget_loop, "_train_step", step)


def wait_a_second() -> None:
    """Let TensorBoard's next file have a later name: names hold the second, and files are read in their order."""
    time.sleep(1.05)


def ask(run: Any) -> None:
    run.request.signum = signal.SIGTERM


def given_to(calls: list[Any]) -> list[tuple[int, dict[str, float]]]:
    return [call for call in calls if isinstance(call, tuple)]


def test_tensorboard_reads_every_number_of_the_log_and_its_files_lie_beside_the_model(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(tmp_path, "tensorboard")
    points = expected(tmp_path / "out" / "pretrain.jsonl")
    assert {"train/mlm", "train/tokens", "train/tokens_per_second", "held_out/mlm", "held_out/sop"} <= points.keys()
    assert len(points["train/mlm"]) > 8
    assert scalars(tmp_path / "out" / "tensorboard") == points
    (config,) = (tmp_path / "out" / "tensorboard").rglob("hparams.yml")
    told = config.read_text(encoding="utf-8")
    assert "optimizer.learning_rate: 0.005" in told
    assert "name: tiny" in told
    assert not (tmp_path / "out.run").exists()


def test_after_kills_and_stops_tensorboard_has_every_point_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    for step in (7, 4, 10):  # of this start; the second one loses line 9, which is written again

        def killed(step: int = step) -> None:
            with pytest.MonkeyPatch.context() as patch:
                stopping_at(patch, step, by=lambda run: os.kill(os.getpid(), signal.SIGKILL))
                train(tmp_path, "tensorboard")

        assert os.waitstatus_to_exitcode(os.waitpid(forked(killed), 0)[1]) == -signal.SIGKILL
        wait_a_second()
    seen = scalars(tmp_path / "out.run" / "tensorboard")["train/loss"]
    assert len(seen) >= 2, "curves are there while it runs"
    assert not (tmp_path / "out").exists()
    with monkeypatch.context() as patch:
        stopping_at(patch, 3, by=ask)
        with pytest.raises(Interrupted):
            train(tmp_path, "tensorboard")
    wait_a_second()
    train(tmp_path, "tensorboard")
    points = expected(tmp_path / "out" / "pretrain.jsonl")
    assert scalars(tmp_path / "out" / "tensorboard") == points
    assert [step for step, _ in points["train/loss"]] == sorted({step for step, _ in points["train/loss"]})
    assert len(list((tmp_path / "out" / "tensorboard").rglob("hparams.yml"))) == 1


def test_whoever_watches_tensorboard_while_a_run_goes_on_sees_no_point_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with monkeypatch.context() as patch:
        stopping_at(patch, 10, by=ask)
        with pytest.raises(Interrupted):
            train(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "out.run" / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    assert [e.step for e in events.Scalars("train/loss")] == [3, 6, 9]
    wait_a_second()
    kept = Curves.keep

    def look(followed: Curves) -> None:
        followed.close()
        events.Reload()
        kept(followed)

    monkeypatch.setattr(Curves, "keep", look)
    train(tmp_path, "tensorboard")
    seen = [(e.step, e.value) for e in events.Scalars("train/loss")]
    assert seen == expected(tmp_path / "out" / "pretrain.jsonl")["train/loss"]


def test_points_that_a_killed_run_gave_and_did_not_note_are_seen_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    def killed() -> None:
        right = curves.write_json

        def note(path: Path, kept: Any) -> Path:
            if kept["lines"]["tensorboard"] >= 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return right(path, kept)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(curves, "write_json", note)
            train(tmp_path, "tensorboard")

    assert os.waitstatus_to_exitcode(os.waitpid(forked(killed), 0)[1]) == -signal.SIGKILL
    given = scalars(tmp_path / "out.run" / "tensorboard")
    noted = json.loads((tmp_path / "out.run" / "trackers.json").read_text(encoding="utf-8"))["lines"]["tensorboard"]
    assert noted < 3 <= len(given["train/loss"]) + len(given["held_out/mlm"])
    wait_a_second()
    train(tmp_path, "tensorboard")
    assert scalars(tmp_path / "out" / "tensorboard") == expected(tmp_path / "out" / "pretrain.jsonl")


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_services_get_every_line_once_as_one_run_however_often_it_is_stopped(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, tracker, double(tracker, calls))
    stopping_at(monkeypatch, 5, 6, 17, by=ask)
    for _ in range(3):
        with pytest.raises(Interrupted):
            train(tmp_path, tracker, project="mine")
    during = given_to(calls)
    train(tmp_path, tracker, project="mine")
    begun = [call for call in calls if isinstance(call, dict) and "project" in call]
    assert begun == begun[:1] * 4
    assert (begun[0]["project"], begun[0]["group"]) == ("mine", "tiny")
    assert begun[0]["name"].startswith("out-")
    assert begun[0].get("id") == (begun[0]["name"].removeprefix("out-") if tracker == "wandb" else None)
    assert calls.count("finished") == 4
    points: Points = {}
    for step, values in given_to(calls):
        for tag, value in values.items():
            points.setdefault(tag, []).append((step, float(np.float32(value))))
    assert points == expected(tmp_path / "out" / "pretrain.jsonl")
    assert 3 < len(during) < len(given_to(calls))


def test_a_run_goes_on_with_another_tracker_and_with_another_project_which_get_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[str, list[Any]] = {"wandb": [], "trackio": []}
    for name, asked in calls.items():
        monkeypatch.setitem(sys.modules, name, double(name, asked))
    stopping_at(monkeypatch, 8, 9, by=ask)
    for arguments in ({"trackers": ("wandb",)}, {"trackers": ("wandb",), "project": "other"}):
        with pytest.raises(Interrupted):
            pretrain(tiny_recipe(tmp_path, stages=RESHARING, run=RUN), tmp_path / "out", **arguments)  # type: ignore[arg-type]
    once = len(given_to(calls["wandb"]))
    assert [step for step, _ in given_to(calls["wandb"])].count(3) == 2, "each project has it once"
    train(tmp_path, "trackio")
    assert len(given_to(calls["wandb"])) == once, "nobody asked for it any more"
    lines = (tmp_path / "out" / "pretrain.jsonl").read_text(encoding="utf-8").splitlines()
    told = [line for line in map(json.loads, lines) if line["event"] != "stage"]
    assert [step for step, _ in given_to(calls["trackio"])] == [line["step"] for line in told]


def test_trackers_move_no_weight_whatever_their_clients_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    client: Any = double("wandb", calls)
    begin = client.init

    def init(**settings: Any) -> Any:
        random.random(), np.random.rand(3), torch.rand(3)
        run = begin(**settings)
        log = run.log
        run.log = lambda values, step: (torch.rand(5), log(values, step))
        return run

    client.init = init
    monkeypatch.setitem(sys.modules, "wandb", client)
    train(tmp_path / "a")
    train(tmp_path / "b", "wandb")
    assert len(given_to(calls)) > 8
    assert left_in(tmp_path / "a" / "out") == left_in(tmp_path / "b" / "out")


@pytest.mark.parametrize("moment", ["init", "log", "finish"])
def test_a_tracker_that_fails_is_told_once_and_the_run_ends_as_without(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    client: Any = double("wandb", calls)
    begin = client.init

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("the service is down\nlong help")

    def init(**settings: Any) -> Any:
        run = begin(**settings)
        taken, log = iter(range(100)), run.log
        if moment == "log":
            run.log = lambda values, step: fail() if next(taken) >= 2 else log(values, step)
        if moment == "finish":
            run.finish = fail
        return run

    client.init = fail if moment == "init" else init
    monkeypatch.setitem(sys.modules, "wandb", client)
    healthy: list[Any] = []
    monkeypatch.setitem(sys.modules, "trackio", double("trackio", healthy))
    said: list[str] = []
    train(tmp_path / "quiet")
    train(tmp_path / "told", "wandb", "trackio", say=said.append)
    (warning,) = [line for line in said if line.startswith("warning: wandb")]
    assert "ConnectionError: the service is down; pretrain.jsonl has everything" in warning
    assert left_in(tmp_path / "told" / "out") == left_in(tmp_path / "quiet" / "out")
    assert not (tmp_path / "told" / "out.run").exists()
    assert {"init": 0, "log": 2}.get(moment, len(given_to(healthy))) == len(given_to(calls))
    assert healthy[-1] == "finished", "the other one has all of it"


def test_who_gives_no_say_gets_the_failure_as_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = double("trackio", [])
    client.init = lambda **_: 1 // 0
    monkeypatch.setitem(sys.modules, "trackio", client)
    with pytest.warns(UserWarning, match="trackio is left out from here on: ZeroDivisionError"):
        train(tmp_path, "trackio")
    assert (tmp_path / "out" / "config.json").exists()


def test_what_a_failed_tracker_lacks_it_gets_when_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    client: Any = double("trackio", calls)
    run = client.init()
    calls.clear()
    log = run.log
    down = True

    def sometimes(values: Any, step: int) -> None:
        if down and len(given_to(calls)) >= 2:
            raise OSError("no route to host")
        log(values, step)

    run.log = sometimes
    monkeypatch.setitem(sys.modules, "trackio", client)
    with monkeypatch.context() as patch:
        stopping_at(patch, 14, by=ask)
        with pytest.raises(Interrupted):
            train(tmp_path, "trackio", say=lambda _: None)
    assert len(given_to(calls)) == 2
    down = False
    train(tmp_path, "trackio")
    steps = [step for step, values in given_to(calls) if "train/loss" in values]
    assert steps == [step for step, _ in expected(tmp_path / "out" / "pretrain.jsonl")["train/loss"]]


def test_a_damaged_note_of_what_was_given_is_told_and_the_services_get_a_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, "wandb", double("wandb", calls))
    stopping_at(monkeypatch, 8, by=ask)
    with pytest.raises(Interrupted):
        train(tmp_path, "wandb")
    (tmp_path / "out.run" / "trackers.json").write_text('{"key": 3}', encoding="utf-8")
    said: list[str] = []
    train(tmp_path, "wandb", say=said.append)
    assert any("trackers.json is damaged (key is 3, expected text); W&B and trackio get a new run" in s for s in said)
    first, second = [call["id"] for call in calls if isinstance(call, dict) and "project" in call]
    assert first != second
    assert [step for step, _ in given_to(calls)].count(3) == 2


def test_a_restart_is_another_run_in_every_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, "wandb", double("wandb", calls))
    train(tmp_path, "tensorboard", "wandb")
    with monkeypatch.context() as patch:
        stopping_at(patch, 8, by=ask)
        with pytest.raises(Interrupted):
            train(tmp_path, "tensorboard", "wandb", restart=True)
    train(tmp_path, "wandb", restart=True)
    assert len({call["id"] for call in calls if isinstance(call, dict) and "project" in call}) == 3
    assert not (tmp_path / "out" / "tensorboard").exists(), "the curve of another model"


def test_trackers_nobody_knows_or_has_are_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(running, "prepare", lambda _: pytest.fail("it was read"))
    with pytest.raises(ConfigError, match=r"'tensorbord'.*did you mean tensorboard\?; wandb is not installed: pip"):
        train(tmp_path, "tensorbord", "wandb")
    assert not (tmp_path / "out.run").exists()
    words = ("pretrain", "albert-nano", "--out", str(tmp_path / "out"), "--track", "tensorbord")
    code, _, err = run_command(monkeypatch, capsys, *words)
    assert code == 2
    assert "no tracker is called 'tensorbord'" in err


def test_the_command_tells_trackers_and_keeps_its_json_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[Any] = []
    client: Any = double("trackio", calls)
    begin = client.init
    client.init = lambda **settings: (print("* project initialised"), begin(**settings))[1]
    monkeypatch.setitem(sys.modules, "trackio", client)
    content = content_of(tmp_path)
    shape = [f"model.{key}={value}" for key, value in content["model"].items() if isinstance(value, int)]
    stages = 'stages=[{max_length=40,objectives=["mlm"]}]'
    settings = [word for text in (*shape, stages, "budget.tokens=4000") for word in ("--set", text)]
    texts = [word for name, place in content["corpus"].items() for word in (f"--{name.replace('_', '-')}", place)]
    where = ("--tokenizer", content["tokenizer"], *texts, "--out", str(tmp_path / "out"))
    told = ("--track", "trackio", "--project", "mine", "--json")
    code, out, err = run_command(monkeypatch, capsys, "pretrain", "albert-nano", *where, *settings, *told)
    assert code == 0, err
    assert json.loads(out)["spent"]["tokens"] >= 4000
    assert "* project initialised" in err
    assert calls[0]["project"] == "mine"
    assert any("held_out/mlm" in values for _, values in given_to(calls))
