"""Linear maps and tables without a draw of their own, and the questions that decide who may go around a module."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Linear(nn.Linear):
    """A linear map that leaves its memory as it is when built: torch's own draw costs seconds at base size."""

    def reset_parameters(self) -> None:
        """Do nothing."""


class Embedding(nn.Embedding):
    """A table that leaves its memory as it is when built."""

    def reset_parameters(self) -> None:
        """Do nothing."""


def is_bare(*modules: nn.Module) -> bool:
    """Tell whether these do what their class does and nothing else, so that their weights stand for them.

    A hook, a parametrisation or an adapter put in their place must be called, not passed by.
    """
    plain = all(type(module) in (Linear, nn.LayerNorm) for module in modules)
    return plain and not any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def is_plain_float_on_cpu(*tensors: Tensor) -> bool:
    """Tell whether all are float32 on a CPU, in eager mode and outside autocast: where our own operations are right."""
    same = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
    return same and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
