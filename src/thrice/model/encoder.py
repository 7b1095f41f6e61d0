"""The one encoder: embeddings, then N calls of stored blocks as the two maps say."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from thrice.errors import ConfigError
from thrice.model.config import EncoderConfig
from thrice.model.embeddings import Embeddings
from thrice.model.heads import build_head
from thrice.model.inference import Weights, infer
from thrice.model.layer import AttentionBlock, FeedForwardBlock
from thrice.model.packing import PackedBatch, from_padded, to_padded
from thrice.model.parts import is_plain_float_on_cpu


class Encoder(nn.Module):
    """BERT, RoBERTa, ALBERT or ELECTRA over packed batches.

    config: shape and sharing. heads: names of stock heads to carry (see `model.heads.HEADS`); they are never run by
    `forward`. num_labels: classes of heads that have classes. generator: draws the weights, a new one with seed 0
    where absent, so that two encoders of one config are equal. draw: False leaves the memory of everything but the
    heads as it is, for a caller that fills all of it.
    gradient_checkpointing, an attribute: whether training keeps only what goes into each call and computes the call a
    second time on the way back, with the same dropout; the gradients are the same bit for bit on a CPU.

        >>> from thrice.model.presets import PRESETS
        >>> from thrice.model.packing import pack
        >>> Encoder(PRESETS["bert-tiny"])(pack([[101, 2023, 102], [101, 102]])).shape
        torch.Size([5, 128])
    """

    packed = True
    """Whether no padding is computed on."""

    def __init__(
        self,
        config: EncoderConfig,
        *,
        heads: Sequence[str] = (),
        num_labels: int = 2,
        generator: torch.Generator | None = None,
        draw: bool = True,
    ) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.embeddings = Embeddings(config)
        self.attention = nn.ModuleList(AttentionBlock(config) for _ in range(config.num_attention_blocks))
        self.ffn = nn.ModuleList(FeedForwardBlock(config) for _ in range(config.num_ffn_blocks))
        if draw:
            init_weights(self, std=config.initializer_range, generator=generator)
        self.heads = nn.ModuleDict()
        for name in heads:
            self.add_head(name, num_labels=num_labels, generator=generator)

    def forward(
        self, batch: PackedBatch, *, before_last_norm: bool = False, rows: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Give hidden states (T, H) of a packed batch after the last call.

        before_last_norm: give (states, what went into the last call's last LayerNorm), (T, H) both.
        rows: (N,) packed indices of the tokens that somebody reads: give (N, H), in that order. What the last call does
        after its attention is done for these tokens alone; their states are the same.
        """
        hidden = self.embeddings(batch)
        if not (torch.is_grad_enabled() or self.training) and is_plain_float_on_cpu(hidden):
            calls = self._weights_of_calls()
            if calls is not None:
                states, before = infer(hidden, batch, self.config, calls=calls, rows=rows)
                return (states, before) if before_last_norm else states
        twice = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        last = self.config.num_calls - 1
        for i, (attention, ffn) in enumerate(zip(self.config.attention_map, self.config.ffn_map, strict=True)):
            blocks = self.attention[attention], self.ffn[ffn]
            more: dict[str, Any] = {"rows": rows, "before_norm": before_last_norm} if i == last else {}
            if twice:
                hidden = checkpoint(_call, *blocks, hidden, batch, use_reentrant=False, **more)
            else:
                hidden = _call(*blocks, hidden, batch, **more)
        return hidden

    def _weights_of_calls(self) -> list[tuple[Weights, Weights]] | None:
        """Give the weights of each call's blocks; None where one of the blocks must be called as a module."""
        attention, ffn = (
            [block.weights() if isinstance(block, AttentionBlock | FeedForwardBlock) else None for block in blocks]
            for blocks in (self.attention, self.ffn)
        )
        calls = []
        for i, j in zip(self.config.attention_map, self.config.ffn_map, strict=True):
            first, second = attention[i], ffn[j]
            if first is None or second is None:
                return None
            calls.append((first, second))
        return calls

    def padded(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Give hidden states (B, S, H) of a padded batch, zeros at padding; inputs (B, S) as transformers has them."""
        batch, places = from_padded(input_ids, attention_mask, token_type_ids)
        if self.config.family == "roberta":
            # Stock RoBERTa counts the tokens that are no padding, whatever the mask says.
            ranks = input_ids.ne(self.config.pad_token_id).cumsum(1).flatten()[places] - 1
            batch = dataclasses.replace(batch, position_ids=ranks)
        return to_padded(self(batch), places, rows=len(input_ids), columns=input_ids.shape[1])

    def classify(self, batch: PackedBatch) -> Tensor:
        """Give (B, labels), logits of the sequence head in the caller's order; raises ConfigError where it has none."""
        if "sequence" not in self.heads:
            raise ConfigError(f"this encoder has no sequence head; it carries: {', '.join(self.heads) or 'none'}")
        return self.heads["sequence"](self(batch)[batch.starts])

    def predict_tokens(self, rows: Tensor) -> Tensor:
        """Give MLM logits (N, V) of gathered rows (N, H); raises ConfigError where the checkpoint has no MLM head."""
        if "mlm" not in self.heads:
            raise ConfigError(
                f"this encoder has no masked-language head; it carries: {', '.join(self.heads) or 'none'}"
            )
        return self.heads["mlm"](rows, self.embeddings.word_embeddings.weight)

    def parameter_counts(self) -> tuple[int, int]:
        """Give (stored, called) parameters; see `count_parameters`."""
        return count_parameters(self.config, {name: p.shape for name, p in self.named_parameters()})

    def layer_depths(self) -> dict[str, int]:
        """Give parameter name -> depth for layer-wise decay: 0 embeddings, 1..N by the last call, N + 1 heads."""
        maps = {"attention": self.config.attention_map, "ffn": self.config.ffn_map}
        depths = {}
        for name, _ in self.named_parameters():
            room, _, rest = name.partition(".")
            if room in maps:
                block = int(rest.partition(".")[0])
                depths[name] = max(i for i, entry in enumerate(maps[room]) if entry == block) + 1
            else:
                depths[name] = 0 if room == "embeddings" else self.config.num_calls + 1
        return depths

    def add_head(
        self, name: str, *, num_labels: int = 2, tied: bool = True, generator: torch.Generator | None = None
    ) -> nn.Module:
        """Carry one more stock head with fresh weights (seed 0 where no generator is given), and give it."""
        head = build_head(self.config, name, num_labels=num_labels, tied=tied)
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        init_weights(head, std=self.config.initializer_range, generator=generator)
        self.heads[name] = head
        return head


def _call(
    attention: nn.Module,
    ffn: nn.Module,
    hidden: Tensor,
    batch: PackedBatch,
    *,
    rows: Tensor | None = None,
    before_norm: bool = False,
) -> Any:
    attended = attention(hidden, batch) if rows is None else attention(hidden, batch, rows=rows)
    return ffn(attended, before_norm=True) if before_norm else ffn(attended)


@torch.no_grad()
def init_weights(module: nn.Module, *, std: float, generator: torch.Generator) -> None:
    """Draw every matrix from N(0, std), set biases to 0 and norms to 1 (Devlin et al. 2019's scheme, untruncated)."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            part.weight.normal_(0.0, std, generator=generator)
        if isinstance(part, nn.Linear) and part.bias is not None:
            part.bias.zero_()


def count_parameters(config: EncoderConfig, shapes: Mapping[str, Sequence[int]]) -> tuple[int, int]:
    """Give (stored, called) parameters of an encoder with these parameters, name -> shape, heads included.

    Stored counts each tensor once; called counts a block once for every call that uses it, which is what a forward pass
    works through and what sharing leaves alone (the word table counts once: a token looks up one row).
    """
    stored = called = 0
    maps = {"attention": config.attention_map, "ffn": config.ffn_map}
    for name, shape in shapes.items():
        room, block = name.split(".")[:2]
        stored += math.prod(shape)
        called += math.prod(shape) * (maps[room].count(int(block)) if room in maps else 1)
    return stored, called
