"""Self-attention over a packed batch: runs of equal length on the CPU, a varlen kernel on CUDA where one fits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from thrice.model.dropout import keep, random_words
from thrice.model.packing import PackedBatch, Run
from thrice.model.parts import is_plain_float_on_cpu

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(qkv: Tensor, batch: PackedBatch, *, num_heads: int, dropout: float) -> Tensor:
    """Give softmax(q k / sqrt(d)) v within each sequence.

    qkv: (T, 3H), query, key and value side by side. dropout: probability of dropping an attention weight.
    Returns (T, H). Source: Vaswani et al. 2017, section 3.2, bidirectional; with `batch.prefix_lengths` the mask of
    Dong et al. 2019, figure 1, for sequence to sequence.
    """
    width = qkv.shape[1] // (3 * num_heads)
    half = qkv.dtype in (torch.float16, torch.bfloat16)
    if qkv.is_cuda and dropout == 0 and half and width % 8 == 0 and batch.prefix_lengths is None:
        return _attend_varlen(qkv, batch, num_heads=num_heads)
    if torch.is_grad_enabled() and qkv.requires_grad and is_plain_float_on_cpu(qkv):
        function = _AttendDropping if dropout else _Attend
        attended: Tensor = function.apply(qkv, batch, num_heads, dropout)
        return attended
    return _attend_runs(qkv, batch, num_heads=num_heads, dropout=dropout)


def _attend_runs(qkv: Tensor, batch: PackedBatch, *, num_heads: int, dropout: float) -> Tensor:
    """Call the public kernel once for each run of equal length.

    One split and one concatenation: their backward is one copy each, where slicing would add a zero-filled (T, 3H)
    tensor for every run.
    """
    outputs = []
    parts = qkv.split([run.count * run.length for run in batch.runs])
    for run, part, hidden in zip(batch.runs, parts, batch.hidden_keys, strict=True):
        query, key, value = _split_heads(part, run, num_heads)
        mask = None if hidden is None else hidden.to(query.dtype)
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        outputs.append(context.transpose(1, 2).reshape(run.count * run.length, -1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_varlen(qkv: Tensor, batch: PackedBatch, *, num_heads: int) -> Tensor:
    """Call the public varlen kernel once; flash attention wants half precision and heads of a multiple of 8."""
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = qkv.view(len(qkv), 3, num_heads, -1).unbind(1)
    borders, longest = batch.cumulative_lengths, batch.lengths[0]
    context = varlen_attn(query, key, value, borders, borders, longest, longest)
    assert isinstance(context, Tensor)
    return context.reshape(len(qkv), -1)


class _Attend(torch.autograd.Function):
    """torch's CPU kernel over all runs as one node of the graph, whose backward writes into one d(qkv).

    Under autograd every run is a dozen nodes, and its gradient is copied twice on the way to where it belongs.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, batch: PackedBatch, num_heads: int, dropout: float) -> Tensor:
        del dropout
        out = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
        sums = []
        for run, hidden in zip(batch.runs, batch.hidden_keys, strict=True):
            context, log_sum = _flash(*_heads(qkv, run, num_heads), attn_mask=hidden)
            _rows(out, run, num_heads).copy_(context)
            sums.append(log_sum)
        ctx.save_for_backward(qkv, out, *sums)
        ctx.batch, ctx.num_heads = batch, num_heads
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, out, *sums = ctx.saved_tensors
        to_qkv = torch.empty_like(qkv)
        for run, hidden, log_sum in zip(ctx.batch.runs, ctx.batch.hidden_keys, sums, strict=True):
            context, above = (_rows(t, run, ctx.num_heads) for t in (out, gradient))
            heads = _heads(qkv, run, ctx.num_heads)
            below = _flash_backward(above, *heads, context, log_sum, 0.0, False, attn_mask=hidden)
            for target, value in zip(_heads(to_qkv, run, ctx.num_heads), below, strict=True):
                target.copy_(value)
        return to_qkv, None, None, None


class _AttendDropping(torch.autograd.Function):
    """The same with dropped weights, which torch's CPU kernel does not know: matrix products in the open.

    Kept for the backward are the weights P and two bytes of chance for each: dP = keep(dD), dS = P (dP - sum dP P).
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, batch: PackedBatch, num_heads: int, dropout: float) -> Tensor:
        out = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
        kept = []
        for run, hidden in zip(batch.runs, batch.hidden_keys, strict=True):
            query, key, value = (part.flatten(0, 1) for part in _heads(qkv, run, num_heads))
            scores = _scaled_product(query, key)
            weights = (scores if hidden is None else scores.add_(hidden)).softmax(-1)
            words = random_words(weights.shape)
            context = torch.bmm(keep(weights, words, p=dropout), value)
            _rows(out, run, num_heads).copy_(context.view(run.count, num_heads, run.length, -1))
            kept += [weights, words]
        ctx.save_for_backward(qkv, *kept)
        ctx.runs, ctx.num_heads, ctx.dropout = batch.runs, num_heads, dropout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, *kept = ctx.saved_tensors
        to_qkv = torch.empty_like(qkv)
        for run, weights, words in zip(ctx.runs, kept[::2], kept[1::2], strict=True):
            query, key, value = (part.flatten(0, 1) for part in _heads(qkv, run, ctx.num_heads))
            above = _rows(gradient, run, ctx.num_heads).flatten(0, 1)
            to_value = torch.bmm(keep(weights, words, p=ctx.dropout).transpose(1, 2), above)
            to_weights = keep(torch.bmm(above, value.transpose(1, 2)), words, p=ctx.dropout)
            to_scores = torch._softmax_backward_data(to_weights, weights, -1, weights.dtype)
            to_scores.mul_(query.shape[-1] ** -0.5)
            below = torch.bmm(to_scores, key), torch.bmm(to_scores.transpose(1, 2), query), to_value
            for target, value in zip(_heads(to_qkv, run, ctx.num_heads), below, strict=True):
                target.copy_(value.view(run.count, ctx.num_heads, run.length, -1))
        return to_qkv, None, None, None


def _scaled_product(query: Tensor, key: Tensor) -> Tensor:
    scores = query.new_empty(len(query), query.shape[1], key.shape[1])
    return torch.baddbmm(scores, query, key.transpose(1, 2), beta=0, alpha=query.shape[-1] ** -0.5)


def _heads(qkv: Tensor, run: Run, num_heads: int) -> tuple[Tensor, ...]:
    """Give views (count, heads, length, width) of the run's query, key and value."""
    return _split_heads(qkv[run.start : run.start + run.count * run.length], run, num_heads)


def _split_heads(part: Tensor, run: Run, num_heads: int) -> tuple[Tensor, ...]:
    return part.view(run.count, run.length, 3, num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


def _rows(values: Tensor, run: Run, num_heads: int) -> Tensor:
    """Give a view (count, heads, length, width) of the run's rows of (T, H)."""
    part = values[run.start : run.start + run.count * run.length]
    return part.view(run.count, run.length, num_heads, -1).transpose(1, 2)
