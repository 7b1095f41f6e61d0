"""Products in half precision, on request: in every forward pass of training, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_parts import content_of, stopping_after_a_step
from test_loop import Killed, Toy, fit_toy, toy_config
from torch import Tensor

from thrice.checkpoints import load
from thrice.compare.memory import training_memory
from thrice.compare.timing import step_times
from thrice.errors import ConfigError, TrainingError
from thrice.finetune import DataSource, build, read_splits
from thrice.model.encoder import Encoder
from thrice.pretraining import pretrain, recipe_of, timing
from thrice.tasks.base import TaskModel
from thrice.training import TrainingConfig


@pytest.fixture
def dtypes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, torch.dtype]]:
    """Of every pass of an encoder's dense layers: whether in training, and of what its result is."""
    seen: list[tuple[bool, torch.dtype]] = []
    right = torch.nn.functional.linear

    def watched(*args: Any, **more: Any) -> Tensor:
        result = right(*args, **more)
        seen.append((torch.is_grad_enabled(), result.dtype))
        return result

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    return seen


def test_training_computes_products_in_half_precision_and_keeps_weights_in_float32(
    tmp_path: Path, dtypes: list[tuple[bool, torch.dtype]]
) -> None:
    model = Toy()
    fit_toy(tmp_path, model, toy_config(mixed_precision="bf16"))
    assert set(dtypes) == {(True, torch.bfloat16), (False, torch.float32)}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_without_being_asked_for_nothing_is_in_half_precision(
    tmp_path: Path, dtypes: list[tuple[bool, torch.dtype]]
) -> None:
    fit_toy(tmp_path, Toy(), toy_config())
    assert set(dtypes) == {(True, torch.float32), (False, torch.float32)}


def test_a_run_goes_on_only_in_the_precision_it_began_with(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fit_toy(tmp_path, Toy(), toy_config(mixed_precision="bf16", save_every_steps=1), dies_after=9)
    with pytest.raises(TrainingError, match="mixed_precision was bf16, is no"):
        fit_toy(tmp_path, Toy(), toy_config())
    state = json.loads((tmp_path / "resume" / "state.json").read_text(encoding="utf-8"))
    assert state["identity"]["run"]["mixed_precision"] == "bf16"
    assert "mixed_precision" not in state["identity"]["config"]


@pytest.mark.parametrize("asked", ["fp16", "no", True, 16])
def test_a_precision_that_no_run_could_resume_is_refused(asked: Any) -> None:
    with pytest.raises(ConfigError, match=f"mixed_precision is {asked!r}, it must be bf16 or None"):
        TrainingConfig(mixed_precision=asked)


def test_a_recipe_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtypes: list[tuple[bool, torch.dtype]]
) -> None:
    content = content_of(tmp_path, run={"mixed_precision": "bf16"}, budget={"tokens": 12_000})
    recipe = recipe_of(content, name="tiny.toml")
    with stopping_after_a_step(monkeypatch):
        pretrain(recipe, tmp_path / "out", content=content)
    with pytest.raises(TrainingError, match="mixed_precision was bf16, is no"):
        pretrain(recipe_of(content_of(tmp_path, budget={"tokens": 12_000}), name="tiny.toml"), tmp_path / "out")
    result = pretrain(recipe, tmp_path / "out", content=content)
    assert set(dtypes) == {(True, torch.bfloat16), (False, torch.float32)}
    assert result["mixed_precision"] == "bf16"
    assert result["evaluations"][-1]["held_out"]["mlm"] < result["evaluations"][0]["held_out"]["mlm"]
    assert "| run.mixed_precision | bf16 |" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert {p.dtype for p in load(str(tmp_path / "out")).parameters()} == {torch.float32}


def test_minutes_are_timed_in_the_precision_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "WARM_UP", 1)
    monkeypatch.setattr(timing, "TIMED", 1)
    seen: list[bool] = []
    right = Encoder.forward

    def watched(encoder: Encoder, *args: Any, **more: Any) -> Any:
        seen.append(torch.is_autocast_enabled("cpu"))
        return right(encoder, *args, **more)

    monkeypatch.setattr(Encoder, "forward", watched)
    content = content_of(tmp_path, run={"mixed_precision": "bf16"}, evaluation={"times": 0})
    content["budget"] = {"minutes": 1e-6}
    pretrain(recipe_of(content, name="tiny.toml"), tmp_path / "out", content=content)
    assert seen == [True] * 5, "two timed steps of each stage and the one that spends the budget"


def test_cost_is_measured_in_the_precision_of_the_training(
    tiny_checkpoint: Path, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    right = TaskModel.loss

    def watched(model: TaskModel, batch: Any) -> Any:
        seen.append(torch.is_autocast_enabled("cpu"))
        return right(model, batch)

    monkeypatch.setattr(TaskModel, "loss", watched)
    task, splits = read_splits("classification", DataSource(data=str(reviews)), {"max_length": 24})
    config = TrainingConfig(mixed_precision="bf16")
    for measure in (
        lambda model, data: step_times({"a": model}, {"a": data}, {"a": config}, rounds=1),
        lambda model, data: training_memory(model, data, config),
    ):
        model, tokenizer = build(str(tiny_checkpoint), task, seed=0)
        measure(model, task.encode(splits.train, tokenizer))
        assert set(seen) == {True}
        seen.clear()
