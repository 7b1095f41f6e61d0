"""Parameter groups, layer-wise decay, the optimiser and the config that describes them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from transformers import TrainingArguments

from thrice.errors import ConfigError, TrainingError
from thrice.training import TrainingConfig
from thrice.training.optim import build_optimizer, parameter_groups, set_learning_rates


class Tower(nn.Module):
    """Embeddings tied to an output table, two calls, a head: L = 2."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.calls = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head = nn.Linear(4, 3)
        self.decoder = nn.Linear(4, 7, bias=False)
        self.decoder.weight = self.embeddings.weight

    def layer_depths(self) -> dict[str, int]:
        depth = {"embeddings": 0, "norm": 0, "calls.0": 1, "calls.1": 2, "head": 3}
        return {name: depth[name.rsplit(".", 1)[0]] for name, _ in self.named_parameters()}


def members(model: nn.Module, config: TrainingConfig) -> dict[str, dict[str, float]]:
    return {name: group for group in parameter_groups(model, config) for name, _ in group["params"]}


def test_weight_decay_acts_on_matrices_and_neither_on_biases_nor_on_norms() -> None:
    found = {name: g["weight_decay"] for name, g in members(Tower(), TrainingConfig(weight_decay=0.3)).items()}
    assert {name for name, decay in found.items() if decay == 0.3} == {
        "embeddings.weight",
        "calls.0.weight",
        "calls.1.weight",
        "head.weight",
    }
    assert {name for name, decay in found.items() if decay == 0.0} == {
        "norm.weight",
        "norm.bias",
        "calls.0.bias",
        "calls.1.bias",
        "head.bias",
    }


def test_a_tied_parameter_appears_once_and_a_frozen_one_not_at_all() -> None:
    model = Tower()
    model.calls[0].weight.requires_grad_(False)
    names = [name for group in parameter_groups(model, TrainingConfig()) for name, _ in group["params"]]
    assert len(names) == len(set(names)) == 8
    assert "decoder.weight" not in names
    assert "calls.0.weight" not in names


def test_layerwise_decay_gives_the_head_the_full_rate_and_each_layer_below_one_factor_less() -> None:
    found = members(Tower(), TrainingConfig(learning_rate=1.0, layerwise_decay=0.5))
    expected = {"head": 1.0, "calls.1": 0.5, "calls.0": 0.25, "embeddings": 0.125, "norm": 0.125}
    assert {name: g["lr"] for name, g in found.items()} == {n: expected[n.rsplit(".", 1)[0]] for n in found}
    assert len(parameter_groups(Tower(), TrainingConfig(layerwise_decay=0.5))) == 8


def test_a_frozen_head_does_not_raise_the_rates_below_it() -> None:
    model = Tower()
    model.head.requires_grad_(False)
    assert members(model, TrainingConfig(learning_rate=1.0, layerwise_decay=0.5))["calls.1.weight"]["lr"] == 0.5


def test_without_layerwise_decay_all_learn_at_one_rate_and_no_depths_are_asked_for() -> None:
    groups = parameter_groups(nn.Linear(3, 2), TrainingConfig(learning_rate=0.25))
    assert [(g["lr"], [name for name, _ in g["params"]]) for g in groups] == [(0.25, ["bias"]), (0.25, ["weight"])]


def test_layerwise_decay_without_depths_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a model with layer_depths"):
        parameter_groups(nn.Linear(3, 2), TrainingConfig(layerwise_decay=0.9))


def test_a_depth_left_out_is_named() -> None:
    model = Tower()
    model.extra = nn.Linear(2, 2)
    model.layer_depths = lambda: dict.fromkeys((n for n, _ in Tower().named_parameters()), 0)  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"leaves out extra\.weight, extra\.bias"):
        parameter_groups(model, TrainingConfig(layerwise_decay=0.9))


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(TrainingError, match="nothing to train"):
        parameter_groups(Tower().requires_grad_(False), TrainingConfig())


def test_the_optimiser_is_fused_adamw_with_the_values_of_the_config() -> None:
    config = TrainingConfig(adam_beta1=0.8, adam_beta2=0.9, adam_epsilon=1e-3, weight_decay=0.1, learning_rate=0.01)
    optimizer = build_optimizer(Tower(), config)
    assert all(g["fused"] and g["betas"] == (0.8, 0.9) and g["eps"] == 1e-3 for g in optimizer.param_groups)
    assert {name for g in optimizer.param_groups for name in g["param_names"]} == {
        n for n, _ in Tower().named_parameters()
    }


def test_one_fused_step_is_the_update_worked_out_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    optimizer = build_optimizer(model, TrainingConfig(learning_rate=0.1, weight_decay=0.5, adam_epsilon=1.0))
    set_learning_rates(optimizer, 0.5)
    model.weight.grad = torch.tensor([[3.0]])
    optimizer.step()
    # lr 0.05; decay 2 * (1 - 0.05 * 0.5) = 1.95; Adam's first step: m = 3, sqrt(v) = 3, 3 / (3 + 1) = 0.75
    assert model.weight.item() == pytest.approx(1.95 - 0.05 * 0.75)


def test_a_factor_scales_each_group_from_its_own_peak_and_never_compounds() -> None:
    optimizer = build_optimizer(Tower(), TrainingConfig(learning_rate=1.0, layerwise_decay=0.5))
    for factor in (0.5, 0.1):
        set_learning_rates(optimizer, factor)
    assert sorted({g["lr"] for g in optimizer.param_groups}) == pytest.approx([0.0125, 0.025, 0.05, 0.1])


def test_all_problems_of_a_config_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainingConfig(epochs=-1, warmup=1.5, layerwise_decay=0.0, seed=True, schedule="linea", max_grad_norm=-1.0)
    for part in (
        "epochs is -1, it must be a whole number of at least 0",
        "warmup is 1.5, it must be a fraction",
        "layerwise_decay is 0.0, it must be a number in (0, 1]",
        "seed is True",
        "did you mean linear",
        "max_grad_norm is -1.0",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(TrainingConfig)])
def test_every_field_is_checked(name: str) -> None:
    with pytest.raises(ConfigError, match="mystery" if name == "schedule" else name):
        TrainingConfig(**{name: "mystery" if name == "schedule" else -3})


def test_shared_names_are_those_of_transformers() -> None:
    theirs = {f.name for f in dataclasses.fields(TrainingArguments)}
    ours = {
        "learning_rate",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "max_grad_norm",
        "max_steps",
        "seed",
    }
    assert ours <= theirs & {f.name for f in dataclasses.fields(TrainingConfig)}
