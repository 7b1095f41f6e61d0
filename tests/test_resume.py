"""Stopping anywhere and starting again ends bit for bit like the run that was never stopped.

Processes that are killed: test_faults_kill.py.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from test_loop import Killed, Toy, fit_toy, read_log, same_weights, scripted, toy_config, weights, without_times

from thrice.errors import TrainingError
from thrice.training.resume import random_state, seed_everything, set_random_state

CONFIG = toy_config(epochs=3, save_every_steps=4, log_every_steps=3)  # 6 steps an epoch
CPU = torch.device("cpu")

Outcome = tuple[Any, ...]


def finish(folder: Path, **more: Any) -> Outcome:
    """Run to the end and give all that a run leaves: result, log, files, weights and generators."""
    model = Toy()
    result = fit_toy(folder, model, more.pop("config", CONFIG), **more)
    best = (folder / "best.safetensors").read_bytes()
    files = sorted(path.name for path in folder.iterdir())
    return without_times(result), without_times(read_log(folder)), files, best, weights(model), random_state(CPU)


def die(folder: Path, **more: Any) -> None:
    with pytest.raises(Killed):
        fit_toy(folder, Toy(), more.pop("config", CONFIG), **more)


def assert_same(one: Outcome, other: Outcome) -> None:
    for mine, theirs in zip(one, other, strict=True):
        if isinstance(mine, dict) and "head.weight" in mine:
            assert same_weights(mine, theirs)
        else:
            assert mine == theirs


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    torch.set_num_threads(1)
    return finish(tmp_path_factory.mktemp("undisturbed"))


def test_an_undisturbed_run_uses_dropout_and_its_best_epoch_is_not_trivial(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    model = Toy()
    model.dropout.p = 0.0
    fit_toy(tmp_path, model, CONFIG)
    assert not same_weights(weights(model), undisturbed[4])
    assert undisturbed[2] == ["best.safetensors", "fit.json", "train.jsonl"]


@pytest.mark.parametrize("step", range(18))
def test_a_run_stopped_after_any_step_ends_like_the_undisturbed_one(
    tmp_path: Path, undisturbed: Outcome, step: int
) -> None:
    die(tmp_path, dies_after=step)
    assert_same(finish(tmp_path), undisturbed)


def test_a_run_stopped_again_and_again_ends_like_the_undisturbed_one(tmp_path: Path, undisturbed: Outcome) -> None:
    starts = 0
    while starts < 30:
        starts += 1
        try:
            fit_toy(tmp_path, Toy(), CONFIG, dies_after=5)
            break
        except Killed:
            continue
    assert 3 < starts < 30
    assert_same(finish(tmp_path), undisturbed)


def test_work_that_was_saved_is_not_done_again(tmp_path: Path) -> None:
    die(tmp_path, dies_after=11)  # saved after steps 4, 6 (the end of epoch 1) and 8, so 10 steps are left
    epochs: list[int] = []
    fit_toy(tmp_path, Toy(), CONFIG, dies_after=10, on_epoch=lambda record: epochs.append(record["epoch"]))
    assert epochs == [2, 3]


@pytest.mark.parametrize("operation", ["replace", "unlink"])
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_change_of_the_folder_leaves_a_run_that_ends_the_same(
    tmp_path: Path, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch, operation: str, after: bool
) -> None:
    owner = os if operation == "replace" else Path
    real = getattr(owner, operation)
    died = 0
    while True:
        left = died

        def dying(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0 and not after:
                raise Killed
            done = real(*arguments, **more)
            if left < 0:
                raise Killed
            return done

        folder = tmp_path / str(died)
        with monkeypatch.context() as patch:
            patch.setattr(owner, operation, dying)
            try:
                fit_toy(folder, Toy(), CONFIG)
                break
            except Killed:
                died += 1
        assert_same(finish(folder), undisturbed)
    assert died >= 6


def test_saving_by_the_clock_or_never_inside_an_epoch_changes_no_result(tmp_path: Path, undisturbed: Outcome) -> None:
    for name, changes in (
        ("never", {"save_every_steps": None, "save_seconds": None}),
        ("always", {"save_every_steps": None, "save_seconds": 1e-9}),
    ):
        assert_same(finish(tmp_path / name, config=CONFIG.replace(**changes)), undisturbed)


def test_saving_by_the_clock_saves_inside_an_epoch(tmp_path: Path) -> None:
    def slowly(*_: Any) -> None:
        time.sleep(0.05)

    model = Toy()
    model.register_forward_hook(slowly)
    config = CONFIG.replace(save_every_steps=None, save_seconds=0.01)
    with pytest.raises(Killed):
        fit_toy(tmp_path, model, config, dies_after=5)
    state = json.loads((tmp_path / "resume" / "state.json").read_text())["state"]
    assert 0 < state["step"] == state["position"] <= 5


def test_the_saved_state_is_json_and_safetensors_and_the_older_one_is_gone(tmp_path: Path) -> None:
    (tmp_path / "resume").mkdir()
    (tmp_path / "resume" / ".state.json.1.partial").write_bytes(b"left by a kill")
    die(tmp_path, dies_after=10)
    assert sorted(p.name for p in (tmp_path / "resume").iterdir()) == ["state.json", "step-00000008.safetensors"]
    content = json.loads((tmp_path / "resume" / "state.json").read_text())
    assert (content["state"]["step"], content["state"]["position"]) == (8, 2)
    with safe_open(tmp_path / "resume" / content["tensors"], framework="pt") as file:
        names = set(file.keys())
    for name in ("model.shared.weight", "model.frozen", "model.seen", "optimizer.head.bias.exp_avg_sq"):
        assert name in names
    assert not any("again" in name or "optimizer.frozen" in name for name in names)


def test_the_log_of_a_resumed_run_is_cut_back_to_the_save(tmp_path: Path) -> None:
    config = CONFIG.replace(log_every_steps=1)
    die(tmp_path, config=config, dies_after=11)
    assert read_log(tmp_path)[-1]["step"] == 11
    finish(tmp_path, config=config)
    steps = [line["step"] for line in read_log(tmp_path) if line["event"] == "step"]
    assert steps == list(range(1, 19))
    assert [line["epoch"] for line in read_log(tmp_path) if line["event"] == "epoch"] == [1, 2, 3]


def test_seconds_add_up_over_the_starts(tmp_path: Path) -> None:
    die(tmp_path, dies_after=11)
    before = json.loads((tmp_path / "resume" / "state.json").read_text())["state"]["seconds"]
    result = fit_toy(tmp_path, Toy(), CONFIG)
    assert result.seconds > before > 0
    assert result.seconds == pytest.approx(sum(e["seconds"] + e["eval_seconds"] for e in result.epochs))


def test_a_finished_run_gives_its_result_without_training(tmp_path: Path, undisturbed: Outcome) -> None:
    first = fit_toy(tmp_path, Toy(), CONFIG)
    again = Toy()
    assert fit_toy(tmp_path, again, CONFIG, dies_after=0, evaluate=scripted([])) == first
    assert same_weights(weights(again), undisturbed[4])
    assert not again.training


def test_restart_discards_the_run_and_only_the_run(tmp_path: Path, undisturbed: Outcome) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    fit_toy(tmp_path, Toy(), CONFIG.replace(seed=5))
    model = Toy()
    result = fit_toy(tmp_path, model, CONFIG, restart=True)
    assert without_times(result) == undisturbed[0]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_parameters_that_are_views_or_not_contiguous_survive_a_stop(tmp_path: Path) -> None:
    def build() -> Toy:
        model, table = Toy(), torch.arange(80.0).sin()
        model.first.weight = torch.nn.Parameter(table[:40].view(5, 8).T)
        model.head.bias = torch.nn.Parameter(table[40:43])
        return model

    whole, stopped = build(), build()
    fit_toy(tmp_path / "whole", whole, CONFIG)
    with pytest.raises(Killed):
        fit_toy(tmp_path / "stopped", build(), CONFIG, dies_after=10)
    fit_toy(tmp_path / "stopped", stopped, CONFIG)
    assert same_weights(weights(whole), weights(stopped))


@pytest.mark.parametrize("finished", [False, True])
def test_a_changed_run_is_refused_with_every_change_named(tmp_path: Path, finished: bool) -> None:
    if finished:
        fit_toy(tmp_path, Toy(), CONFIG, identity={"data": "abc"})
    else:
        die(tmp_path, dies_after=10, identity={"data": "abc"})
    wider = Toy()
    wider.head = torch.nn.Linear(8, 4)
    changed = CONFIG.replace(learning_rate=0.5, seed=9)
    with pytest.raises(TrainingError) as caught:
        fit_toy(tmp_path, wider, changed, identity={"data": "xyz", "model": "tiny"})
    for part in (
        f"{tmp_path} holds another run",
        "learning_rate was 0.02, is 0.5",
        "seed was 0, is 9",
        "data was abc, is xyz",
        "model was absent, is tiny",
        "head.weight was torch.float32 [3, 8], is torch.float32 [4, 8]",
        "new folder",
        "--restart",
    ):
        assert part in str(caught.value)


def test_what_is_only_bookkeeping_may_change_over_a_stop(tmp_path: Path, undisturbed: Outcome) -> None:
    die(tmp_path, dies_after=10)
    result = fit_toy(tmp_path, Toy(), CONFIG.replace(save_every_steps=1, log_every_steps=1, save_seconds=None))
    assert without_times(result) == undisturbed[0]


def test_another_order_of_the_examples_is_refused_inside_an_epoch(tmp_path: Path) -> None:
    die(tmp_path, dies_after=10)
    with pytest.raises(TrainingError, match="stopped after 2 batches of epoch 2, whose examples now come in another"):
        fit_toy(tmp_path, Toy(), CONFIG, batches=lambda epoch: [[0, 1, 2, 3]] * 6)


def test_a_damaged_save_is_refused_with_a_way_out(tmp_path: Path) -> None:
    die(tmp_path, dies_after=10)
    tensors = next((tmp_path / "resume").glob("*.safetensors"))
    tensors.write_bytes(tensors.read_bytes()[:-100])
    with pytest.raises(TrainingError, match=r"resume cannot be resumed, it is damaged: .*--restart"):
        fit_toy(tmp_path, Toy(), CONFIG)
    tensors.unlink()
    with pytest.raises(TrainingError, match="it is damaged"):
        fit_toy(tmp_path, Toy(), CONFIG)
    (tmp_path / "resume" / "state.json").write_text('{"format": 1')
    with pytest.raises(TrainingError, match="it is damaged"):
        fit_toy(tmp_path, Toy(), CONFIG)


def test_best_weights_of_another_epoch_are_not_taken_for_the_best(tmp_path: Path) -> None:
    fit_toy(tmp_path, Toy(), CONFIG)
    (tmp_path / "best.safetensors").unlink()
    with pytest.raises(TrainingError, match=r"best.safetensors should hold epoch \d, but is missing or damaged"):
        fit_toy(tmp_path, Toy(), CONFIG)


def test_random_states_go_through_json_and_come_back_exactly() -> None:
    def draws() -> list[Any]:
        return [random.gauss(0, 1), np.random.randn(), torch.randn(3).tolist(), random.random(), np.random.rand()]

    seed_everything(11)
    draws()  # leaves half of a pair of Gaussians in Python's and numpy's generators
    state = json.loads(json.dumps(random_state(CPU)))
    expected = draws()
    seed_everything(12)
    assert draws() != expected
    set_random_state(state, CPU)
    assert draws() == expected


def test_a_run_whose_metric_is_nan_goes_on_and_is_read_again(tmp_path: Path) -> None:
    nothing = {"evaluate": lambda: {"score": float("nan")}, "metric": "score"}
    with pytest.raises(Killed):
        fit_toy(tmp_path, Toy(), CONFIG, dies_after=8, **nothing)
    assert fit_toy(tmp_path, Toy(), CONFIG, **nothing).best_epoch == 1
    assert fit_toy(tmp_path, Toy(), CONFIG, **nothing).best_epoch == 1


def test_a_metric_larger_than_any_count_is_no_damage(tmp_path: Path) -> None:
    huge = {"evaluate": lambda: {"score": 1e20}, "metric": "score"}
    with pytest.raises(Killed):
        fit_toy(tmp_path, Toy(), CONFIG, dies_after=8, **huge)
    assert fit_toy(tmp_path, Toy(), CONFIG, **huge).best_value == 1e20


def test_a_save_with_too_few_generators_is_damaged_and_no_crash(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fit_toy(tmp_path, Toy(), CONFIG, dies_after=8)
    path = tmp_path / "resume" / "state.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["random"]["numpy"][1] = [2**40] * 624
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(TrainingError, match="cannot be resumed, it is damaged"):
        fit_toy(tmp_path, Toy(), CONFIG)
