"""The calls of an encoder when nothing is learned: the bare operations, without a module or a graph around each.

For one short text the modules of the training form take as long as the matrix products. The numbers are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from thrice.model.activations import ACTIVATION, gelu_tanh
from thrice.model.attention import attend
from thrice.model.config import EncoderConfig
from thrice.model.packing import PackedBatch
from thrice.model.parts import Linear, is_bare

Weights = tuple[Tensor, ...]
"""Weight and bias of each linear map of a block, then of its norm."""


def infer(
    hidden: Tensor,
    batch: PackedBatch,
    config: EncoderConfig,
    *,
    calls: Sequence[tuple[Weights, Weights]],
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Give hidden states (T, H) after all calls, from those before the first, and what went into the last LayerNorm.

    calls: the weights of the attention and of the feed-forward block that each call uses. rows: see `Encoder.forward`.
    """
    width, eps = (config.hidden_size,), config.layer_norm_eps
    before = hidden
    activation = gelu_tanh if config.hidden_act == "gelu_new" else ACTIVATION[config.hidden_act]
    for i, (attention, ffn) in enumerate(calls, start=1):
        (qkv_w, qkv_b, o_w, o_b, g_1, b_1), (in_w, in_b, out_w, out_b, g_2, b_2) = attention, ffn
        context = attend(F.linear(hidden, qkv_w, qkv_b), batch, num_heads=config.num_attention_heads, dropout=0.0)
        if rows is not None and i == len(calls):
            hidden, context = hidden.index_select(0, rows), context.index_select(0, rows)
        hidden = torch.layer_norm(F.linear(context, o_w, o_b).add_(hidden), width, g_1, b_1, eps)
        inner = activation(F.linear(hidden, in_w, in_b))
        before = F.linear(inner, out_w, out_b).add_(hidden)
        hidden = torch.layer_norm(before, width, g_2, b_2, eps)
    return hidden, before


def weights_of(*parts: Linear | nn.LayerNorm) -> Weights | None:
    """Give weight and bias of a block's linear maps, then of its norm; None where one of them must be called."""
    if not is_bare(*parts):
        return None
    return tuple(tensor for part in parts for tensor in (part.weight, part.bias))
