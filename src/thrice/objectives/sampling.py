"""Drawing tokens from logits with little noise, and how well scores part two kinds of tokens.

Letters: N rows, V tokens, W width of a block of tokens, T tokens of a batch, B sequences.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def blocks_of(num_tokens: int) -> tuple[int, int]:
    """Give (number of blocks, W) into which so many tokens are parted: about the square root of them, both."""
    width = math.isqrt(num_tokens - 1) + 1
    return -(-num_tokens // width), width


def sampling_noise(generator: np.random.Generator, rows: int, num_tokens: int) -> np.ndarray:
    """Give (rows, blocks + W) standard exponential numbers, float32, for `sample_tokens`."""
    return generator.standard_exponential((rows, sum(blocks_of(num_tokens))), dtype=np.float32)


@torch.no_grad()
def sample_tokens(logits: Tensor, noise: Tensor) -> Tensor:
    """Draw a token for each row from softmax(logits), by Gumbel arg-max in float32.

    logits: (N, V). noise: (N, blocks + W), as `sampling_noise` gives it. Returns (N,) int64, without a gradient.
    The arg-max of logits plus Gumbel noise is a draw from the softmax, and the largest of a block of such sums is
    itself Gumbel, around the block's logsumexp. So a block is drawn first and a token of it then, both by arg-max, with
    2 sqrt(V) numbers a row instead of V: noise for each token would take longer than the cross entropy.
    Source: Clark et al. 2020, section 2 (sampling at temperature 1); Maddison et al. 2014, section 3 (top down).
    """
    size = logits.shape[1]
    blocks, width = blocks_of(size)
    logits = logits.detach().float()
    gumbel = -noise.clamp_min(torch.finfo(torch.float32).tiny).log()
    full = size // width
    sums = logits[:, : full * width].unflatten(1, (full, width)).logsumexp(2)
    if full < blocks:
        sums = torch.cat([sums, logits[:, full * width :].logsumexp(1, keepdim=True)], 1)
    block = (sums + gumbel[:, :blocks]).argmax(1, keepdim=True)
    tokens = block * width + torch.arange(width, device=logits.device)
    inside = logits.gather(1, tokens.clamp_max(size - 1)).masked_fill(tokens >= size, -math.inf)
    best = (inside + gumbel[:, blocks:]).argmax(1, keepdim=True)
    return tokens.gather(1, best).squeeze(1)


@torch.no_grad()
def ordered_pairs(scores: Tensor, positive: Tensor, owner: Tensor, *, owners: int) -> tuple[Tensor, Tensor]:
    """Give () the pairs of a positive and a negative of one owner where the positive scores higher, and () all pairs.

    scores, positive, owner: (T,); owner in 0 to owners - 1. A tie counts one half. The quotient is the area under the
    curve (Mann and Whitney 1947); unlike an area over the whole batch, the two are sums over sequences.
    """
    order = scores.argsort()
    order = order[owner[order].argsort(stable=True)]
    scores, owner, negative = scores[order], owner[order], (~positive[order]).double()
    new = torch.ones_like(owner)
    new[1:] = (scores[1:] != scores[:-1]) | (owner[1:] != owner[:-1])
    group = new.cumsum(0) - 1
    equal = torch.zeros_like(negative).index_add_(0, group, negative)
    below = equal.cumsum(0) - equal
    per_owner = negative.new_zeros(2, owners).index_add_(1, owner, torch.stack([negative, 1 - negative]))
    before = per_owner[0].cumsum(0) - per_owner[0]
    won = (1 - negative) * (below[group] - before[owner] + equal[group] / 2)
    return won.sum().float(), (per_owner[0] * per_owner[1]).sum().float()
