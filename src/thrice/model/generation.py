"""Continuing texts token by token: sources are read once, every further token costs one token.

Letters: C sources, W hypotheses of each, S tokens of the longest source, D heads, d width of a head, t tokens written.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from thrice.model.attention import attend
from thrice.model.encoder import Encoder
from thrice.model.packing import PackedBatch


class Continuation:
    """The hypotheses behind C sources: what stands in them as keys and values, one pair for every call.

    A stored block that is called L times has L pairs: each call sees other states. Computed is what `Encoder` computes
    of a packed batch whose prefixes are the sources (UniLM's mask: a source never sees what is written), in eval mode
    and without gradients.

    encoder: with an MLM head. source: C sequences without prefix lengths. token_type: segment of what is written.
    longest: tokens that will be written behind a source at most.
    `logits`, (C, 1, V), are those of the first token.
    """

    @torch.no_grad()
    def __init__(self, encoder: Encoder, source: PackedBatch, *, token_type: int, longest: int) -> None:
        config, device = encoder.config, source.input_ids.device
        self.encoder, self.token_type, self.longest = encoder, token_type, longest
        self.num_heads, self.head_size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        self.width, self.written = 1, 0
        packed = torch.tensor(source.lengths, device=device)
        # Rows of the cache stand in the caller's order; `places` says where a packed token goes.
        rank = torch.searchsorted(source.cumulative_lengths[1:].to(source.starts), source.starts, right=True)
        self.lengths = packed[rank]
        row = torch.empty_like(rank)
        row[rank] = torch.arange(len(rank), device=device)
        size = source.lengths[0]
        column = torch.arange(source.num_tokens, device=device) - torch.repeat_interleave(source.starts[row], packed)
        places = torch.repeat_interleave(row, packed) * size + column
        hidden_keys = torch.arange(size, device=device) >= self.lengths.unsqueeze(1)
        zeros = torch.zeros(hidden_keys.shape, device=device, dtype=encoder.embeddings.word_embeddings.weight.dtype)
        self.padding = zeros.masked_fill_(hidden_keys, -math.inf)

        self.source: list[tuple[Tensor, Tensor]] = []
        hidden = encoder.embeddings(source)
        for block, ffn in self._calls():
            qkv = block.qkv(hidden)
            context = attend(qkv, source, num_heads=self.num_heads, dropout=0.0)
            hidden = ffn(block.LayerNorm(hidden + block.output(context)))
            self.source.append(self._spread(qkv[:, config.hidden_size :], places, len(rank), size))
        last = hidden[source.starts + self.lengths - 1]
        self.own: list[tuple[Tensor, Tensor]] = [(last.new_empty(0), last.new_empty(0))] * len(self.source)
        self.logits = encoder.predict_tokens(last).unsqueeze(1)

    def _calls(self) -> list[tuple[Any, Any]]:
        """Give the stored blocks, attention and feed-forward, of each call."""
        encoder, config = self.encoder, self.encoder.config
        maps = zip(config.attention_map, config.ffn_map, strict=True)
        return [(encoder.attention[a], encoder.ffn[f]) for a, f in maps]

    def _spread(self, packed: Tensor, places: Tensor, rows: int, size: int) -> tuple[Tensor, Tensor]:
        """Give keys and values, (C * D, S, d) each and zero at padding, from (T, 2H)."""
        padded = packed.new_zeros(rows * size, packed.shape[1]).index_copy_(0, places, packed)
        keys, values = padded.view(rows, size, 2, self.num_heads, self.head_size).permute(2, 0, 3, 1, 4).unbind(0)
        return keys.reshape(-1, size, self.head_size), values.reshape(-1, size, self.head_size)

    @torch.no_grad()
    def advance(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Write one token in each hypothesis; give the logits of the next, (C, W, V).

        tokens: (C, W). parents: (C, W), which of the hypotheses of its source each of them goes on from; W may differ
        from what it was.
        """
        encoder = self.encoder
        count, width = tokens.shape
        self._follow(parents)
        hidden = encoder.embeddings(self._batch(tokens))
        for call, (block, ffn) in enumerate(self._calls()):
            context = self._attend(block.qkv(hidden), call)
            hidden = ffn(block.LayerNorm(hidden + block.output(context)))
        self.written += 1
        return encoder.predict_tokens(hidden).view(count, width, -1)

    def keep(self, chosen: Tensor) -> None:
        """Forget all sources but the chosen ones, (C',) int64, which are counted anew."""
        heads = torch.arange(self.num_heads, device=chosen.device)
        rows = (chosen.unsqueeze(1) * self.num_heads + heads).flatten()
        self.lengths, self.padding = self.lengths[chosen], self.padding[chosen]
        size = int(self.lengths.max())
        self.padding = self.padding[:, :size]
        self.source = [(keys[rows, :size], values[rows, :size]) for keys, values in self.source]
        if self.written:
            written = (chosen.unsqueeze(1) * self.width + torch.arange(self.width, device=chosen.device)).flatten()
            self.own = [(keys[written], values[written]) for keys, values in self.own]

    def _batch(self, tokens: Tensor) -> PackedBatch:
        """Give the tokens, (C, W), as sequences of one token at their positions."""
        count, width = tokens.shape
        ids = tokens.flatten()
        positions = torch.repeat_interleave(self.lengths + self.written, width)
        rows = torch.arange(len(ids), device=ids.device)
        return PackedBatch(ids, torch.full_like(ids, self.token_type), positions, (1,) * (count * width), rows)

    def _follow(self, parents: Tensor) -> None:
        """Give each hypothesis what its parent has written."""
        count, width = parents.shape
        if self.written:
            rows = (torch.arange(count, device=parents.device).unsqueeze(1) * self.width + parents).flatten()
            if width != self.width or not torch.equal(rows, torch.arange(len(rows), device=rows.device)):
                self.own = [(keys[rows], values[rows]) for keys, values in self.own]
        else:
            keys = self.source[0][0]
            shape = count * width, self.num_heads, self.longest, self.head_size
            self.own = [(keys.new_empty(shape), keys.new_empty(shape)) for _ in self.source]
        self.width = width

    def _attend(self, qkv: Tensor, call: int) -> Tensor:
        """Give the context, (C * W, H), of one new token in each hypothesis, and remember its key and value."""
        count, width, now = len(self.lengths), self.width, self.written
        query, key, value = qkv.view(count * width, 3, self.num_heads, self.head_size).unbind(1)
        own_keys, own_values = self.own[call]
        own_keys[:, :, now], own_values[:, :, now] = key, value
        own_keys, own_values = (t.flatten(0, 1)[:, : now + 1] for t in (own_keys, own_values))

        query = query * self.head_size**-0.5
        keys, values = self.source[call]
        by_source = query.view(count, width, self.num_heads, -1).transpose(1, 2).reshape(-1, width, self.head_size)
        scores = torch.bmm(by_source, keys.transpose(1, 2)).view(count, self.num_heads, width, -1)
        scores = (scores + self.padding.view(count, 1, 1, -1)).transpose(1, 2)
        own = torch.bmm(query.reshape(-1, 1, self.head_size), own_keys.transpose(1, 2))
        own = own.view(count, width, self.num_heads, now + 1)
        weights = torch.cat([scores, own], dim=-1).softmax(-1)

        size = keys.shape[1]
        on_source = weights[..., :size].transpose(1, 2).reshape(-1, width, size)
        read = torch.bmm(on_source, values).view(count, self.num_heads, width, -1).transpose(1, 2)
        on_own = weights[..., size:].reshape(-1, 1, now + 1)
        return (read.reshape(count * width, -1) + torch.bmm(on_own, own_values).view(count * width, -1)).contiguous()
