"""Parting an encoder's weights over processes (FSDP), for a training loop of your own: one unit per stored block."""

from __future__ import annotations

from typing import Any

from thrice.model.encoder import Encoder
from thrice.model.layer import AttentionBlock, FeedForwardBlock

WRAPPED = (AttentionBlock.__name__, FeedForwardBlock.__name__)
"""Names of the classes that are units: `transformer_cls_names_to_wrap` of Accelerate's FSDP plugin."""


def shard_blocks(encoder: Encoder, **options: Any) -> None:
    """Make every stored block of the encoder a unit of FSDP2, in place; what holds the encoder is left to the caller.

    A unit's weights are gathered for each call and parted again after it. A shared block is one unit, however often it
    is called: its gradient arrives once, summed over the calls. Afterwards call `fully_shard(model)` on the module
    whose `forward` gives the loss: it keeps the embeddings and the heads, which may be tied to them.
    options: of torch.distributed.fsdp.fully_shard, such as mesh, mp_policy or reshard_after_forward.
    """
    from torch.distributed.fsdp import fully_shard

    for block in (*encoder.attention, *encoder.ffn):
        fully_shard(block, **options)
