"""Self-attention over a packed batch: runs of equal length on the CPU, a varlen kernel on CUDA where one fits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from thrice.model.packing import PackedBatch


def attend(qkv: Tensor, batch: PackedBatch, *, num_heads: int, dropout: float) -> Tensor:
    """Give softmax(q k / sqrt(d)) v within each sequence.

    qkv: (T, 3H), query, key and value side by side. dropout: probability of dropping an attention weight.
    Returns (T, H). Source: Vaswani et al. 2017, section 3.2, bidirectional.
    """
    width = qkv.shape[1] // (3 * num_heads)
    half = qkv.dtype in (torch.float16, torch.bfloat16)
    if qkv.is_cuda and dropout == 0 and half and width % 8 == 0:
        return _attend_varlen(qkv, batch, num_heads=num_heads)
    return _attend_runs(qkv, batch, num_heads=num_heads, dropout=dropout)


def _attend_runs(qkv: Tensor, batch: PackedBatch, *, num_heads: int, dropout: float) -> Tensor:
    """Call the public kernel once for each run of equal length.

    One split and one concatenation: their backward is one copy each, where slicing would add a zero-filled (T, 3H)
    tensor for every run.
    """
    outputs = []
    parts = qkv.split([run.count * run.length for run in batch.runs])
    for run, part in zip(batch.runs, parts, strict=True):
        heads = part.view(run.count, run.length, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        context = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        outputs.append(context.transpose(1, 2).reshape(run.count * run.length, -1))
    return torch.cat(outputs)


def _attend_varlen(qkv: Tensor, batch: PackedBatch, *, num_heads: int) -> Tensor:
    """Call the public varlen kernel once; flash attention wants half precision and heads of a multiple of 8."""
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = qkv.view(len(qkv), 3, num_heads, -1).unbind(1)
    borders, longest = batch.cumulative_lengths, batch.lengths[0]
    context = varlen_attn(query, key, value, borders, borders, longest, longest)
    assert isinstance(context, Tensor)
    return context.reshape(len(qkv), -1)
