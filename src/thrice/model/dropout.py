"""Dropout that does not wait for its random bits: on a CPU they cost more than the layer they regularise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class Dropout(nn.Dropout):
    """Drop entries with probability p and scale the others by 1 / (1 - p); nothing happens in eval mode.

    Bits come from torch's global generator. On a CPU, sixteen of them decide on an entry, so p is met to 1 / 65536.
    Source: Srivastava et al. 2014, section 10 (inverted).
    """

    def forward(self, values: Tensor) -> Tensor:
        """values: any shape. Returns the same shape."""
        return dropout(values, p=self.p) if self.training else values


def dropout(values: Tensor, *, p: float) -> Tensor:
    """Give the values, each dropped with probability p and scaled by 1 / (1 - p) otherwise."""
    if p == 0:
        return values
    if values.device.type != "cpu" or values.dtype != torch.float32 or torch.compiler.is_compiling():
        return F.dropout(values, p)
    dropped: Tensor = _Dropout.apply(values, p)
    return dropped


def random_words(shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Give int16 entries of that shape, uniform over all 65536 values, from torch's global generator.

    One 64-bit draw makes four of them: a fifth of the time that torch takes to draw a number for each.
    """
    count = torch.Size(shape).numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64, device="cpu").random_(-(2**63), None)
    return words.view(torch.int16)[:count].view(shape)


def keep(values: Tensor, words: Tensor, *, p: float) -> Tensor:
    """Give the values where a word says so, zero elsewhere, scaled by 1 / (1 - p); values and words of one shape."""
    # The backward of a threshold is the one vectorised "this where that is large, else 0" that torch has on a CPU.
    kept = torch.ops.aten.threshold_backward(values, words.to(values.dtype), p * 65536 - 32768.5)
    scaled: Tensor = kept.mul_(1 / (1 - p))
    return scaled


class _Dropout(torch.autograd.Function):
    """Keeps the random words, two bytes an entry, and nothing else."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, p: float) -> Tensor:
        words = random_words(values.shape)
        ctx.save_for_backward(words)
        ctx.p = p
        return keep(values, words, p=p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (words,) = ctx.saved_tensors
        return keep(gradient, words, p=ctx.p), None
