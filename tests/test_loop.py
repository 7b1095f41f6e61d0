"""The training loop on a toy model with dropout: what it logs, keeps, chooses and refuses."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from thrice.errors import TrainingError
from thrice.training import FitResult, TrainingConfig, fit

NUM_EXAMPLES, BATCH_SIZE, STEPS_PER_EPOCH = 22, 4, 6


class Toy(nn.Module):
    """A classifier with dropout, a norm, a tied table, a shared layer, a frozen parameter and a buffer that moves."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(7)
            self.first, self.shared, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.again = self.shared
        self.norm = nn.LayerNorm(8)
        self.dropout = nn.Dropout(0.3)
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.dropout(torch.tanh(self.first(inputs)))
        return self.head(self.norm(self.again(self.shared(hidden)) * self.frozen))

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        if self.training:
            self.seen += len(batch[1])
        return nn.functional.cross_entropy(self(batch[0]), batch[1])


def toy_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(NUM_EXAMPLES, 5, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def toy_batches(epoch: int) -> list[list[int]]:
    order = np.random.default_rng(epoch).permutation(NUM_EXAMPLES).tolist()
    return [order[i : i + BATCH_SIZE] for i in range(0, NUM_EXAMPLES, BATCH_SIZE)]


class Killed(BaseException):
    """Stands for a kill: nothing in the program may catch it."""


def fit_toy(
    folder: Path, model: Toy, config: TrainingConfig, *, dies_after: int | None = None, **more: Any
) -> FitResult:
    """Fit the toy; batches and evaluation draw from all three global generators, as corrupting objectives might.

    dies_after: batches that this start makes before it dies of Killed.
    """
    inputs, labels = toy_data()
    made = itertools.count()

    def make_batch(indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        if next(made) == dies_after:
            raise Killed
        noise = 0.1 * random.random() + torch.from_numpy(0.1 * np.random.randn(len(indices), 5)).float()
        return inputs[list(indices)] + noise, labels[list(indices)]

    def evaluate() -> dict[str, Any]:
        scores = model(inputs) + 0.01 * torch.rand(NUM_EXAMPLES, 3)
        return {
            "accuracy": (scores.argmax(1) == labels).float().mean(),
            "loss": np.float64(model.loss((inputs, labels))),
        }

    fixed = {"num_examples": NUM_EXAMPLES, "batches": toy_batches, "evaluate": evaluate, "metric": "accuracy"}
    arguments = fixed | {"make_batch": make_batch, "folder": folder, "progress": False} | more
    return fit(model, config, **arguments)


def toy_config(**changes: Any) -> TrainingConfig:
    return TrainingConfig(**{"learning_rate": 0.02, "batch_size": BATCH_SIZE, "schedule": "cosine"} | changes)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def without_times(value: Any) -> Any:
    """Drop the measured seconds, the only thing in which two equal runs differ."""
    if isinstance(value, FitResult):
        return without_times(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in ("seconds", "eval_seconds")}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]


class Ramp(nn.Module):
    """Two weights whose gradient is scale * (3, 4), of norm 5 * scale: clipping can be worked out by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 2))

    def loss(self, batch: float) -> Tensor:
        return batch * (self.weight * torch.tensor([[3.0, 4.0]])).sum() + 2.0


def fit_ramp(folder: Path, config: TrainingConfig, scales: Sequence[float], **more: Any) -> FitResult:
    defaults = {
        "num_examples": len(scales),
        "batches": lambda epoch: [[i] for i in range(len(scales))],
        "make_batch": lambda indices: scales[indices[0]],
        "evaluate": lambda: {"score": 0.5},
        "metric": "score",
        "folder": folder,
        "progress": False,
    }
    return fit(Ramp(), config, **defaults | more)


def scripted(values: Sequence[Any]) -> Callable[[], dict[str, Any]]:
    """Give an evaluation that returns the prepared metrics one after the other."""
    left = iter(values)
    return lambda: dict(next(left))


def test_the_toy_learns(tmp_path: Path) -> None:
    result = fit_toy(tmp_path, Toy(), toy_config(epochs=15))
    assert result.epochs[-1]["train_loss"] < 0.6 * result.epochs[0]["train_loss"]
    assert result.best_value > 0.8 > result.epochs[0]["dev"]["accuracy"]


def test_one_seed_gives_one_run_and_another_seed_another(tmp_path: Path) -> None:
    runs = []
    for i, seed in enumerate((3, 3, 4)):
        torch.manual_seed(100 + i)  # what came before does not matter
        model = Toy()
        result = fit_toy(tmp_path / str(i), model, toy_config(seed=seed))
        runs.append((without_times(result), weights(model), without_times(read_log(tmp_path / str(i)))))
    assert runs[0][0] == runs[1][0]
    assert runs[0][2] == runs[1][2]
    assert same_weights(runs[0][1], runs[1][1])
    assert not same_weights(runs[0][1], runs[2][1])


def test_the_log_has_every_step_with_its_loss_rate_and_norm_and_every_epoch(tmp_path: Path) -> None:
    config = TrainingConfig(epochs=2, learning_rate=0.5, schedule="constant", warmup=2, max_grad_norm=None)
    fit_ramp(tmp_path, config, [1.0, 0.1, 2.0])
    log = read_log(tmp_path)
    assert [(line["event"], line["step"], line["epoch"]) for line in log] == [
        ("step", 1, 1),
        ("step", 2, 1),
        ("step", 3, 1),
        ("epoch", 3, 1),
        ("step", 4, 2),
        ("step", 5, 2),
        ("step", 6, 2),
        ("epoch", 6, 2),
    ]
    steps = [line for line in log if line["event"] == "step"]
    assert [line["lr"] for line in steps] == [0.25, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert [line["grad_norm"] for line in steps] == pytest.approx([5, 0.5, 10] * 2)
    assert steps[0]["loss"] == 2.0
    assert steps[1]["loss"] < 2.0
    times = [line["seconds"] for line in steps]
    assert times == sorted(times)
    assert times[0] > 0


def test_a_line_of_several_steps_holds_their_means(tmp_path: Path) -> None:
    whole = fit_ramp(tmp_path / "whole", TrainingConfig(epochs=2, max_grad_norm=0), [1.0, 0.1, 2.0])
    fit_ramp(tmp_path / "means", TrainingConfig(epochs=2, max_grad_norm=0, log_every_steps=2), [1.0, 0.1, 2.0])
    every = [line for line in read_log(tmp_path / "whole") if line["event"] == "step"]
    means = [line for line in read_log(tmp_path / "means") if line["event"] == "step"]
    assert [line["step"] for line in means] == [2, 4, 6]
    for name in ("loss", "grad_norm"):
        assert means[1][name] == pytest.approx((every[2][name] + every[3][name]) / 2)
    assert whole.steps == 6


def test_the_epochs_loss_is_the_mean_over_examples_although_the_last_batch_is_smaller(tmp_path: Path) -> None:
    result = fit_toy(tmp_path, Toy(), toy_config(epochs=1))
    losses = [line["loss"] for line in read_log(tmp_path) if line["event"] == "step"]
    sizes = [len(indices) for indices in toy_batches(1)]
    assert sizes == [4, 4, 4, 4, 4, 2]
    assert result.epochs[0]["train_loss"] == pytest.approx(np.average(losses, weights=sizes), rel=1e-12)


def test_clipping_scales_long_gradients_and_counts_them(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    means = []

    def look(record: dict[str, Any]) -> None:
        saved = load_file(next((tmp_path / "on" / "resume").glob("*.safetensors")))
        means.append(saved["optimizer.weight.exp_avg"])

    config = TrainingConfig(epochs=1, max_grad_norm=1.0, adam_beta1=0.5)
    on = fit_ramp(tmp_path / "on", config, [1.0, 0.1, 0.1, 2.0], on_epoch=look)
    off = fit_ramp(tmp_path / "off", config.replace(max_grad_norm=None), [1.0, 0.1, 0.1, 2.0])
    assert on.epochs[0]["clipped_fraction"] == 0.5
    assert off.epochs[0]["clipped_fraction"] == 0.0
    assert on.epochs[0]["grad_norm"] == pytest.approx((5 + 0.5 + 0.5 + 10) / 4)
    assert off.epochs[0]["grad_norm"] == pytest.approx((5 + 0.5 + 0.5 + 10) / 4)
    # Lengths as Adam saw them: 1, 0.5, 0.5, 1 in the direction (0.6, 0.8).
    length = ((1 * 0.5 + 0.5) * 0.5 + 0.5) * 0.5 * 0.5 + 1 * 0.5
    assert means[0].tolist()[0] == pytest.approx([0.6 * length, 0.8 * length])


def test_a_gradient_of_exactly_the_limit_is_not_counted_as_clipped(tmp_path: Path) -> None:
    assert fit_ramp(tmp_path, TrainingConfig(epochs=1, max_grad_norm=5.0), [1.0]).epochs[0]["clipped_fraction"] == 0


def test_gradients_left_by_the_caller_and_those_of_frozen_parameters_do_not_count(tmp_path: Path) -> None:
    model = Toy()
    clean = fit_toy(tmp_path / "clean", Toy(), toy_config(epochs=1))
    model.first.weight.grad = torch.full_like(model.first.weight, 9.0)
    model.frozen.grad = torch.full_like(model.frozen, 9.0)
    assert without_times(fit_toy(tmp_path / "dirty", model, toy_config(epochs=1))) == without_times(clean)


def test_the_best_epoch_is_the_highest_and_the_earlier_of_equals(tmp_path: Path) -> None:
    model, states = Toy(), []
    metrics = [{"score": s, "collapsed": c} for s, c in ((0.2, False), (0.7, True), (0.7, False), (0.5, False))]
    result = fit_toy(
        tmp_path,
        model,
        toy_config(epochs=4),
        evaluate=scripted(metrics),
        metric="score",
        on_epoch=lambda record: states.append(weights(model)),
    )
    assert (result.best_epoch, result.best_value, result.collapsed) == (2, 0.7, True)
    assert [e["collapsed"] for e in result.epochs] == [False, True, False, False]
    assert same_weights(weights(model), states[1])
    assert not same_weights(weights(model), states[3])
    assert not model.training


def test_a_metric_that_is_nan_never_wins(tmp_path: Path) -> None:
    scores = [{"score": s} for s in (float("nan"), 0.1, float("nan"))]
    result = fit_ramp(tmp_path, TrainingConfig(epochs=3), [1.0], evaluate=scripted(scores))
    assert (result.best_epoch, result.best_value) == (2, 0.1)


def test_evaluation_runs_in_eval_mode_without_gradients_and_training_goes_on_in_train_mode(tmp_path: Path) -> None:
    model = Toy()
    modes: list[tuple[str, bool, bool]] = []

    def evaluate() -> dict[str, float]:
        modes.append(("evaluate", model.training, torch.is_grad_enabled()))
        return {"score": 0.0}

    def make_batch(indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        modes.append(("step", model.training, torch.is_grad_enabled()))
        inputs, labels = toy_data()
        return inputs[list(indices)], labels[list(indices)]

    model.eval()
    fit_toy(tmp_path, model, toy_config(epochs=2), make_batch=make_batch, evaluate=evaluate, metric="score")
    assert modes == ([("step", True, True)] * STEPS_PER_EPOCH + [("evaluate", False, False)]) * 2


def test_max_steps_ends_inside_an_epoch_evaluates_there_and_sets_the_schedule(tmp_path: Path) -> None:
    config = toy_config(epochs=3, max_steps=8, schedule="linear", warmup=0, learning_rate=1.0)
    result = fit_toy(tmp_path, Toy(), config)
    assert result.steps == 8
    assert [e["step"] for e in result.epochs] == [6, 8]
    assert [line["lr"] for line in read_log(tmp_path) if line["event"] == "step"][-1] == pytest.approx(1 / 8)
    assert fit_toy(tmp_path / "longer", Toy(), toy_config(epochs=1, max_steps=100)).steps == STEPS_PER_EPOCH


def test_numbers_of_the_evaluation_become_plain_values(tmp_path: Path) -> None:
    values = {"score": np.float32(0.5), "confusion": np.arange(4).reshape(2, 2), "more": {"a": torch.tensor(2)}}
    result = fit_ramp(tmp_path, TrainingConfig(epochs=1), [1.0], evaluate=scripted([values]))
    assert result.epochs[0]["dev"] == {"score": 0.5, "confusion": [[0, 1], [2, 3]], "more": {"a": 2}}
    assert json.loads((tmp_path / "fit.json").read_text())["result"] == dataclasses.asdict(result)


def test_a_metric_that_evaluate_does_not_give_is_named_with_those_it_gives(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="evaluate gave no 'f1' to choose the best epoch by, only score"):
        fit_ramp(tmp_path, TrainingConfig(epochs=1), [1.0], metric="f1")


def test_a_run_without_batches_and_epochs_of_different_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"epoch 1 has no batches \(0 examples\)"):
        fit_ramp(tmp_path, TrainingConfig(), [])
    with pytest.raises(TrainingError, match="epoch 2 has 2 batches, epoch 1 has 1"):
        fit_ramp(tmp_path, TrainingConfig(), [1.0] * 3, batches=lambda epoch: [[0]] * epoch)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_before_the_weights_move(tmp_path: Path, value: float) -> None:
    config = TrainingConfig(epochs=3, learning_rate=0.5, warmup=0, save_every_steps=1)
    with pytest.raises(TrainingError) as caught:
        fit_ramp(tmp_path, config, [1.0, 1.0, -value])
    for part in (
        f"loss is {'nan' if value != value else 'inf'} at step 3, epoch 1",
        "all weights are finite",
        "a third",
    ):
        assert part in str(caught.value)
    assert f"the last save is kept in {tmp_path / 'resume'}" in str(caught.value)
    assert json.loads((tmp_path / "resume" / "state.json").read_text())["state"]["step"] == 2


def test_a_gradient_that_is_not_finite_stops_although_the_loss_is(tmp_path: Path) -> None:
    class Root(Ramp):
        def loss(self, batch: float) -> Tensor:
            return self.weight.abs().sqrt().sum() + 1.0  # its slope at 0 is endless or undefined

    with pytest.raises(TrainingError, match=r"the gradient norm is (nan|inf) at step 1.*nothing was saved before"):
        fit(
            Root(),
            TrainingConfig(),
            num_examples=1,
            batches=lambda epoch: [[0]],
            make_batch=lambda indices: 1.0,
            evaluate=lambda: {"score": 0.0},
            metric="score",
            folder=tmp_path,
            progress=False,
        )


def test_weights_that_were_broken_before_are_named(tmp_path: Path) -> None:
    model = Toy()
    model.first.weight.data[0, 0] = float("nan")
    with pytest.raises(TrainingError, match=r"first\.weight and 0 more are not finite"):
        fit_toy(tmp_path, model, toy_config())


def test_what_accelerate_does_to_forward_reaches_the_loss(tmp_path: Path) -> None:
    class Watched(Toy):
        def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            dtypes.append(self(batch[0]).dtype)
            return super().loss(batch)

    dtypes: list[torch.dtype] = []
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        fit_toy(
            tmp_path, Watched(), toy_config(epochs=1), accelerator=accelerator, evaluate=scripted([{"accuracy": 0.0}])
        )
        assert dtypes == [torch.bfloat16] * STEPS_PER_EPOCH
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_an_accelerator_that_accumulates_gradients_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="a batch is one optimiser step"):
        fit_toy(tmp_path, Toy(), toy_config(), accelerator=Accelerator(cpu=True, gradient_accumulation_steps=2))
