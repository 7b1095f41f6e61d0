"""Linear maps and tables without a draw of their own, and the questions that decide who may go around a module."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook


class Linear(nn.Linear):
    """A linear map that leaves its memory as it is when built: torch's own draw costs seconds at base size."""

    def reset_parameters(self) -> None:
        """Do nothing."""


class Embedding(nn.Embedding):
    """A table that leaves its memory as it is when built."""

    def reset_parameters(self) -> None:
        """Do nothing."""


def is_bare(*modules: nn.Module, of: tuple[type[nn.Module], ...] = (Linear, nn.LayerNorm)) -> bool:
    """Tell whether these are of such a class and do what it does, so that their weights stand for them.

    A subclass, a hook, a parametrisation or an adapter put in their place must be called, not passed by.
    """
    return not _has_any_global_hook() and not any(type(m) not in of or _is_touched(m) for m in modules)


def _is_touched(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


def is_plain_float_on_cpu(*tensors: Tensor) -> bool:
    """Tell whether all are float32 on a CPU, in eager mode and outside autocast: where our own operations are right."""
    same = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
    return same and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
