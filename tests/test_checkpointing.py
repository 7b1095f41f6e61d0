"""Gradient checkpointing changes what is kept during a step, and no number that comes out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_compare import study_of
from test_loop import Killed, Toy, fit_toy, read_log, toy_config, without_times
from torch import Tensor

from thrice.compare.grid import arms_of, write_study
from thrice.errors import ConfigError
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.packing import pack
from thrice.tasks.base import TaskModel
from thrice.training import TrainingConfig

TEXTS = [[5, 6, 7, 8, 9, 10], [11, 12, 13], [14, 15, 16], [17]]
MAPS = {"shared": (0, 0, 0, 0), "un-shared": (0, 1, 2, 3), "groups": (0, 0, 1, 1)}


def encoder(calls: tuple[int, ...]) -> Encoder:
    config = EncoderConfig(
        family="albert",
        vocab_size=30,
        embedding_size=8,
        hidden_size=12,
        num_attention_heads=3,
        intermediate_size=24,
        attention_map=calls,
        ffn_map=calls,
        embedding_projection=True,
        max_position_embeddings=8,
        hidden_dropout_prob=0.2,
        attention_probs_dropout_prob=0.2,
        initializer_range=0.3,
    )
    return Encoder(config).train()


def gradients(model: Encoder) -> tuple[Tensor, dict[str, Tensor], int]:
    """Give the loss of a step with dropout, its gradients, and the bytes kept for the way back."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(3)
    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(pack(TEXTS)).square().mul(torch.arange(12)).mean()
        held = sum(kept.values())
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}, held


# Bit-equal: on a CPU the second computation runs the same kernels on the same numbers, dropout's generator included.
@pytest.mark.parametrize("calls", MAPS.values(), ids=MAPS.keys())
def test_gradients_with_dropout_are_the_same_bit_for_bit_and_less_is_kept(calls: tuple[int, ...]) -> None:
    model = encoder(calls)
    loss, plain, held = gradients(model)
    model.gradient_checkpointing = True
    again, recomputed, less = gradients(model)
    assert torch.equal(loss, again)
    assert plain.keys() == recomputed.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)
    assert less < held / 2


def test_nothing_is_computed_twice_outside_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("recomputed")

    monkeypatch.setattr("thrice.model.encoder.checkpoint", refuse)
    model = encoder(MAPS["shared"])
    model.gradient_checkpointing = True
    model.eval()(pack(TEXTS))
    with torch.no_grad():
        model.train()(pack(TEXTS))
    with pytest.raises(AssertionError, match="recomputed"):
        model(pack(TEXTS))


class Recomputing(Toy):
    """A toy that says whether it was asked to compute twice."""

    gradient_checkpointing = False


def test_a_run_may_be_resumed_with_checkpointing_switched(tmp_path: Path) -> None:
    config = toy_config(epochs=2)
    fit_toy(tmp_path / "plain", Recomputing(), config)
    with pytest.raises(Killed):
        fit_toy(tmp_path / "switched", Recomputing(), config, dies_after=8)
    model = Recomputing()
    fit_toy(tmp_path / "switched", model, config.replace(gradient_checkpointing=True))
    assert model.gradient_checkpointing
    assert without_times(read_log(tmp_path / "switched")) == without_times(read_log(tmp_path / "plain"))


def test_a_model_that_cannot_compute_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Toy has none - set it to False"):
        fit_toy(tmp_path, Toy(), toy_config(gradient_checkpointing=True))
    with pytest.raises(ConfigError, match="gradient_checkpointing is 1, it must be True or False"):
        toy_config(gradient_checkpointing=1)


def test_what_a_study_measures_is_what_it_trains_with(
    tiny_checkpoint: Path, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thrice.compare.memory import training_memory
    from thrice.compare.timing import step_times
    from thrice.finetune import DataSource, build, read_splits

    seen: list[bool] = []
    right = TaskModel.loss

    def watched(model: TaskModel, batch: Any) -> Any:
        seen.append(model.gradient_checkpointing)
        return right(model, batch)

    monkeypatch.setattr(TaskModel, "loss", watched)
    task, splits = read_splits("classification", DataSource(data=str(reviews)), {"max_length": 24})
    config = TrainingConfig(gradient_checkpointing=True)
    for measure in (
        lambda model, data: step_times({"a": model}, {"a": data}, {"a": config}, rounds=1),
        lambda model, data: training_memory(model, data, config),
    ):
        model, tokenizer = build(str(tiny_checkpoint), task, seed=0)
        measure(model, task.encode(splits.train, tokenizer))
        assert set(seen) == {True}
        seen.clear()


def test_a_study_begun_before_this_option_goes_on(tiny_checkpoint: Path, reviews: Path, tmp_path: Path) -> None:
    study = study_of(tiny_checkpoint, reviews, arms=arms_of("tfidf"))
    write_study(tmp_path, study, {"made_of": {}, "data": {}})
    content = json.loads((tmp_path / "study.json").read_text())
    del content["training"]["gradient_checkpointing"]
    (tmp_path / "study.json").write_text(json.dumps(content))
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "one.json").write_text("{}")
    write_study(tmp_path, study, {"made_of": {}, "data": {}})
    switched = study_of(
        tiny_checkpoint, reviews, arms=arms_of("tfidf"), training=study.training.replace(gradient_checkpointing=True)
    )
    with pytest.raises(ConfigError, match="gradient_checkpointing was False and is True"):
        write_study(tmp_path, switched, {"made_of": {}, "data": {}})
