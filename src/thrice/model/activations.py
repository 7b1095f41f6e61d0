"""Activations of the feed-forward block, and GELU's tanh approximation as a CPU computes it fastest.

The approximation x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2 (Hendrycks and Gimpel 2016, section 2) equals
x * sigmoid(x * (C + K x^2)) with C = 2 * sqrt(2 / pi) and K = 0.044715 C. torch's tanh takes four times as long as its
sigmoid on a CPU: here all is done with sigmoids, on rows that stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from thrice.model.parts import is_plain_float_on_cpu

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}

_C = 2 * math.sqrt(2 / math.pi)
_K = 0.044715 * _C
# 0-dimensional tensors of the very numbers: torch's fused operations take scalars in these places as tensors only.
_ADD, _SLOPE_ADD = (torch.tensor(number, dtype=torch.float32, device="cpu") for number in (_C, -2 * _C))
_CACHED = 524288
"""Entries of a block of rows: few enough to stay in the cache with their scratch memory, enough for several threads."""


def feed_forward(hidden: Tensor, inner: tuple[Tensor, Tensor], outer: tuple[Tensor, Tensor], *, act: str) -> Tensor:
    """Give act(hidden W1^T + b1) W2^T + b2.

    hidden: (T, H). inner: W1 (I, H) and b1 (I,). outer: W2 (H, I) and b2 (H,). act: a key of ACTIVATION.
    Returns (T, H).
    """
    if act != "gelu_new" or not is_plain_float_on_cpu(hidden, inner[0], outer[0]):
        return F.linear(ACTIVATION[act](F.linear(hidden, *inner)), *outer)
    if torch.is_grad_enabled():
        result: Tensor = _FeedForward.apply(hidden, *inner, *outer)
        return result
    return F.linear(gelu_tanh(F.linear(hidden, *inner)), *outer)


def gelu_tanh(values: Tensor) -> Tensor:
    """Give the tanh-approximated GELU of contiguous (T, I) entries, float32 on a CPU."""
    result = torch.empty_like(values)
    for x, (p, y) in _blocks(values, result, scratch=1):
        torch.addcmul(_ADD, x, x, value=_K, out=p)
        torch.mul(x, p.mul_(x).sigmoid_(), out=y)
    return result


def gelu_tanh_and_gradient_(values: Tensor, gradient: Tensor) -> Tensor:
    """Give the tanh-approximated GELU of (T, I) entries, and multiply a gradient, in place, by the slope there.

    With p = C + K x^2 and s = sigmoid(p x), the value is y = x s and the slope s + y (1 - s) (3 p - 2 C).
    """
    result = torch.empty_like(values)
    for x, (p, s, y, g) in _blocks(values, result, gradient, scratch=2):
        torch.addcmul(_ADD, x, x, value=_K, out=p)
        torch.mul(p, x, out=s).sigmoid_()
        torch.mul(x, s, out=y)
        torch.add(_SLOPE_ADD, p, alpha=3, out=p).mul_(y)
        g.mul_(p.addcmul_(p, s, value=-1).add_(s))
    return result


class _FeedForward(torch.autograd.Function):
    """The block as one function that keeps only what the activation was given: its value is cheap to compute again.

    At 4H entries a token the two are half of what a layer keeps for its backward.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        inner = F.linear(hidden, w1, b1)
        ctx.save_for_backward(hidden, w1, w2, inner)
        return F.linear(gelu_tanh(inner), w2, b2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, w1, w2, inner = ctx.saved_tensors
        wants = ctx.needs_input_grad
        to_inner = torch.mm(gradient, w2)
        active = gelu_tanh_and_gradient_(inner, to_inner)
        return (
            torch.mm(to_inner, w1) if wants[0] else None,
            torch.mm(to_inner.t(), hidden) if wants[1] else None,
            to_inner.sum(0) if wants[2] else None,
            torch.mm(gradient.t(), active) if wants[3] else None,
            gradient.sum(0) if wants[4] else None,
        )


def _blocks(values: Tensor, *others: Tensor, scratch: int) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
    """Yield rows that fit into the cache: of values, and of scratch memory and the other tensors."""
    rows = max(1, _CACHED // values.shape[1])
    spare = values.new_empty(scratch, min(rows, len(values)), values.shape[1])
    if len(values) <= rows:
        yield values, (*spare, *others)
        return
    for start in range(0, len(values), rows):
        part = values[start : start + rows]
        yield part, (*spare[:, : len(part)], *(other[start : start + rows] for other in others))
