"""Tiny stock ALBERTs with random weights, and what they compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertForMultipleChoice, AlbertModel

STEPS = 4
BERT_SIZES = {
    "vocab_size": 37,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "max_position_embeddings": 16,
}
SIZES = {**BERT_SIZES, "embedding_size": 12}


def config(*, groups: int = 1, inner: int = 1, **changes: Any) -> AlbertConfig:
    sharing = {"num_hidden_layers": STEPS, "num_hidden_groups": groups, "inner_group_num": inner}
    return AlbertConfig(**{**SIZES, **sharing, **changes})


def stock(cls: type[nn.Module] = AlbertModel, **changes: Any) -> Any:
    """A tiny model in eval mode, every parameter drawn at random: norms and biases too."""
    model = cls(config(**changes))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.1, 0.3, generator=generator)
    return model.eval()


def inputs_for(model: nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(1, 37, (2, 7), generator=generator)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    types_ = torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 2)
    batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types_}
    if isinstance(model, AlbertForMultipleChoice):
        batch = {name: torch.stack([value, value.flip(0), value], 1) for name, value in batch.items()}
    return batch


def outputs_of(model: nn.Module, **asked: bool) -> list[Tensor]:
    flat: list[Tensor] = []
    for value in model(**inputs_for(model), **asked).to_tuple():
        flat += value if isinstance(value, tuple) else [value]
    return flat


def groups_of(model: nn.Module) -> nn.ModuleList:
    return (model if isinstance(model, AlbertModel) else model.albert).encoder.albert_layer_groups


def backward(model: nn.Module) -> None:
    model.zero_grad()
    generator = torch.Generator().manual_seed(5)
    sum((out * torch.randn(out.shape, generator=generator)).sum() for out in outputs_of(model)).backward()


def equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
