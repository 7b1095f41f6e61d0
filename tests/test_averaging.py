"""The average of the weights: worked out by hand, warm early, kept beside the run, resumed bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_loop import Toy, fit_ramp, fit_toy, read_log, same_weights, toy_config, weights
from test_resume import Outcome, assert_same, die, finish
from torch import nn

from thrice.errors import ConfigError, TrainingError
from thrice.training import TrainingConfig
from thrice.training.averaging import Average, decay_at

CONFIG = toy_config(epochs=3, save_every_steps=4, log_every_steps=3, ema_decay=0.9)  # 6 steps an epoch


def test_the_average_of_three_steps_is_the_one_worked_out_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1.0)
    average = Average(model, decay=0.3)
    expected = 1.0
    for step, value in ((1, 2.0), (2, 4.0), (3, 8.0)):
        model.weight.data.fill_(value)
        average.update(step)
        decay = (2 / 11, 3 / 12, 0.3)[step - 1]  # (1 + t) / (10 + t) until that is above 0.3
        expected = decay * expected + (1 - decay) * value
    assert average.tensors["weight"].item() == pytest.approx(expected, rel=1e-6)


def test_a_decay_of_0_999_moves_from_the_first_step_on() -> None:
    assert decay_at(1, 0.999) < 0.2
    assert decay_at(100, 0.999) < 0.92
    assert decay_at(10_000, 0.999) == 0.999


def test_the_model_holds_the_average_for_a_while_and_its_own_weights_after_an_error_too() -> None:
    model = nn.Linear(2, 1)
    average, begun = Average(model, decay=0.9), weights(model)
    place = model.weight.data_ptr()
    with torch.no_grad():
        model.weight.add_(1.0)
    moved = weights(model)
    inside = {}

    def fail() -> None:
        with average.in_place():
            inside.update(weights(model))
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert same_weights(inside, begun)
    assert same_weights(weights(model), moved)
    assert model.weight.data_ptr() == place


def test_frozen_parameters_and_buffers_are_left_alone() -> None:
    assert "frozen" not in Average(Toy(), decay=0.9).tensors
    assert "seen" not in Average(Toy(), decay=0.9).tensors


def test_both_are_evaluated_and_the_best_epoch_is_that_of_the_average(tmp_path: Path) -> None:
    model = Toy()
    result = fit_toy(tmp_path, model, CONFIG)
    plain = Toy()
    without = fit_toy(tmp_path / "without", plain, CONFIG.replace(ema_decay=None))
    assert all(record["dev"] != record["dev_raw"] for record in result.epochs)
    assert all("dev_raw" not in record for record in without.epochs)
    # Only the first: the toy's evaluation draws random numbers, and there are two of it.
    assert result.epochs[0]["train_loss"] == without.epochs[0]["train_loss"]
    values = [record["dev"]["accuracy"] for record in result.epochs]
    assert result.best_value == max(values) == values[result.best_epoch - 1]
    assert not same_weights(weights(model), weights(plain))
    assert [line["dev_raw"] for line in read_log(tmp_path) if line["event"] == "epoch"] == [
        record["dev_raw"] for record in result.epochs
    ]


def test_what_is_kept_is_the_average_and_not_the_last_step(tmp_path: Path) -> None:
    # Ramp's weight goes down by the learning rate at each step of constant gradient, up to Adam's epsilon.
    config = TrainingConfig(
        epochs=1, learning_rate=0.1, schedule="constant", warmup=0.0, weight_decay=0.0, max_grad_norm=None
    )
    fit_ramp(tmp_path / "raw", config, [1.0] * 3)
    fit_ramp(tmp_path / "averaged", config.replace(ema_decay=0.999), [1.0] * 3)
    raw, averaged = (load_file(tmp_path / name / "best.safetensors")["weight"][0, 0] for name in ("raw", "averaged"))
    expected = 0.0
    for step in (1, 2, 3):
        decay = (1 + step) / (10 + step)
        expected = decay * expected + (1 - decay) * -0.1 * step
    assert raw == pytest.approx(-0.3, rel=1e-4)
    assert averaged == pytest.approx(expected, rel=1e-4)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    torch.set_num_threads(1)
    return finish(tmp_path_factory.mktemp("undisturbed"), config=CONFIG)


@pytest.mark.parametrize("step", range(0, 18, 3))
def test_a_stopped_run_with_an_average_ends_like_the_undisturbed_one(
    tmp_path: Path, undisturbed: Outcome, step: int
) -> None:
    die(tmp_path, config=CONFIG, dies_after=step)
    assert_same(finish(tmp_path, config=CONFIG), undisturbed)


def test_best_weights_lost_in_a_kill_are_written_anew_from_the_average(
    tmp_path: Path, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thrice.training import resume

    right, calls = resume.save_best, iter(range(9))

    def dies(*args: object, **more: object) -> None:
        if next(calls) == 0:
            raise KeyboardInterrupt
        right(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(resume, "save_best", dies)
    with pytest.raises(KeyboardInterrupt):
        fit_toy(tmp_path, Toy(), CONFIG)
    assert_same(finish(tmp_path, config=CONFIG), undisturbed)


def test_a_run_goes_on_only_with_the_average_it_began_with(tmp_path: Path) -> None:
    die(tmp_path, config=CONFIG, dies_after=9)
    with pytest.raises(TrainingError, match=r"ema_decay was 0\.9, is None"):
        fit_toy(tmp_path, Toy(), CONFIG.replace(ema_decay=None))


def test_a_run_without_an_average_says_nothing_of_one_as_before_there_was_any(tmp_path: Path) -> None:
    die(tmp_path, config=CONFIG.replace(ema_decay=None), dies_after=9)
    state = json.loads((tmp_path / "resume" / "state.json").read_text(encoding="utf-8"))
    assert "ema_decay" not in state["identity"]["config"]


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1, True, "0.9"])
def test_an_impossible_decay_is_refused(decay: object) -> None:
    with pytest.raises(ConfigError, match="ema_decay"):
        TrainingConfig(ema_decay=decay)  # type: ignore[arg-type]
