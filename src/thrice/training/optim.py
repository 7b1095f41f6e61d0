"""The optimiser: fused AdamW over groups that say who decays and who learns how fast; and what a step keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from thrice.errors import ConfigError, TrainingError
from thrice.training.config import TrainingConfig


class OptimizerConfig(Protocol):
    """What an optimiser is built from; see `TrainingConfig`, whose fields these are."""

    @property
    def learning_rate(self) -> float:
        """Peak learning rate."""

    @property
    def weight_decay(self) -> float:
        """Decoupled weight decay of matrices."""

    @property
    def adam_beta1(self) -> float:
        """Decay rate of the mean of the gradient."""

    @property
    def adam_beta2(self) -> float:
        """Decay rate of the mean of the squared gradient."""

    @property
    def adam_epsilon(self) -> float:
        """Added to Adam's denominator."""

    @property
    def layerwise_decay(self) -> float:
        """Factor of the learning rate from a layer to the one below."""


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Give the groups of the optimiser, one per (depth, decays or not), from the embeddings upwards.

    Each group: params, a list of (name, parameter); lr and initial_lr, its peak; weight_decay. A parameter that is
    tied or shared appears once, a frozen one (requires_grad False) not at all.
    Weight decay acts on matrices only, so neither on biases nor on norms (Devlin et al. 2019, appendix A.2).
    Where layerwise_decay < 1, depth d learns at learning_rate * layerwise_decay ** (top - d), top = L + 1 being the
    head's depth: the head at the full rate, the last call one factor below (Clark et al. 2020, appendix B; the
    official code puts the last call two factors below).
    Raises ConfigError where layerwise_decay < 1 and the model does not tell every parameter's depth, TrainingError
    where nothing is left to train.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trained:
        raise TrainingError("the model has no parameter with requires_grad True; nothing to train")
    depths = _depths(model, [name for name, _ in trained]) if config.layerwise_decay < 1 else {}
    top = max(depths.values(), default=0)
    members: dict[tuple[int, bool], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in trained:
        decays = parameter.ndim >= 2 and not name.endswith("bias")
        members.setdefault((depths.get(name, top), decays), []).append((name, parameter))
    groups = []
    for (depth, decays), params in sorted(members.items(), key=lambda item: item[0]):
        rate = config.learning_rate * config.layerwise_decay ** (top - depth)
        decay = config.weight_decay if decays else 0.0
        groups.append({"params": params, "lr": rate, "initial_lr": rate, "weight_decay": decay})
    return groups


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Give torch's fused AdamW over the model's parameter groups; each group keeps its names in `param_names`.

    Raises as `parameter_groups` does.
    """
    return torch.optim.AdamW(
        parameter_groups(model, config),
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=True,
    )


def set_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set each group's learning rate to its peak times the factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def switch_checkpointing(model: Any, config: TrainingConfig) -> None:
    """Let the model compute its calls twice where the config asks for it; one that does so already is left as it is.

    Raises ConfigError where the model has no attribute `gradient_checkpointing`.
    """
    if not config.gradient_checkpointing:
        return
    if not hasattr(model, "gradient_checkpointing"):
        raise ConfigError(
            f"gradient_checkpointing needs a model with an attribute of that name; {type(model).__name__} has none - "
            "set it to False"
        )
    model.gradient_checkpointing = True


def _depths(model: nn.Module, names: list[str]) -> dict[str, int]:
    layer_depths = getattr(model, "layer_depths", None)
    if layer_depths is None:
        raise ConfigError(
            f"layerwise_decay below 1 needs a model with layer_depths(); {type(model).__name__} has none - "
            "set layerwise_decay to 1"
        )
    known: dict[str, int] = layer_depths()
    missing = [name for name in names if name not in known]
    if missing:
        raise ConfigError(f"layer_depths() of {type(model).__name__} leaves out {', '.join(missing)}")
    # The top is taken over all known depths: a frozen head must not raise the layers below it.
    return {name: known[name] for name in [*names, max(known, key=known.__getitem__)]}


def carried(
    held: Mapping[str, Mapping[str, Tensor]], sources: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Tensor]]:
    """Give the optimiser state of the parameters after a change: what a source held, the mean of several.

    The mean, not the sum, although a shared weight's gradient is the sum of those of its calls: Adam's step does not
    depend on the gradient's size, and what was split and is put together again then has the state it had.
    """
    found = {name: dict(state) for name, state in held.items()}
    for name, olds in sources.items():
        states = [held[old] for old in olds if held.get(old)]
        if states:
            found[name] = {key: _mean([state[key] for state in states]) for key in states[0]}
    return found


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack([t.double() for t in tensors]).mean(0).to(tensors[0].dtype)
