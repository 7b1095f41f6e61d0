"""The two stored blocks a call consists of: attention and feed-forward, each with its LayerNorm."""

from __future__ import annotations

from torch import Tensor, nn

from thrice.model.activations import ACTIVATION, feed_forward
from thrice.model.attention import attend
from thrice.model.config import EncoderConfig
from thrice.model.dropout import Dropout
from thrice.model.inference import Weights, weights_of
from thrice.model.packing import PackedBatch
from thrice.model.parts import Linear, is_bare


class AttentionBlock(nn.Module):
    """LN(x + dropout(W_o attention(x))), the first half of a post-norm layer (Devlin et al. 2019)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.attention_dropout = config.attention_probs_dropout_prob
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, batch: PackedBatch, *, rows: Tensor | None = None) -> Tensor:
        """hidden: (T, H). Returns (T, H), or (N, H) of the tokens `rows`, (N,) packed indices."""
        dropout = self.attention_dropout if self.training else 0.0
        context = attend(self.qkv(hidden), batch, num_heads=self.num_heads, dropout=dropout)
        if rows is not None:
            hidden, context = hidden.index_select(0, rows), context.index_select(0, rows)
        return self.LayerNorm(hidden + self.dropout(self.output(context)))

    def weights(self) -> Weights | None:
        """Give weights and biases in the order of calling; None where this block must be called as a module."""
        if not (is_bare(self, of=(AttentionBlock,)) and is_bare(self.dropout, of=(Dropout,))):
            return None
        return weights_of(self.qkv, self.output, self.LayerNorm)


class FeedForwardBlock(nn.Module):
    """LN(x + dropout(W_2 act(W_1 x))), the second half of a post-norm layer.

    Dropout acts here as in Google's ALBERT; transformers' AlbertLayer builds it and never applies it.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.hidden_act = config.hidden_act
        self.intermediate = Linear(config.hidden_size, config.intermediate_size)
        self.output = Linear(config.intermediate_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, *, before_norm: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """hidden: (T, H). Returns (T, H); with before_norm also what went into the LayerNorm, (T, H)."""
        if is_bare(self.intermediate, self.output):
            weights = ((linear.weight, linear.bias) for linear in (self.intermediate, self.output))
            result = feed_forward(hidden, *weights, act=self.hidden_act)
        else:
            result = self.output(ACTIVATION[self.hidden_act](self.intermediate(hidden)))
        before = hidden + self.dropout(result)
        after: Tensor = self.LayerNorm(before)
        return (after, before) if before_norm else after

    def weights(self) -> Weights | None:
        """Give weights and biases in the order of calling; None where this block must be called as a module."""
        if not (is_bare(self, of=(FeedForwardBlock,)) and is_bare(self.dropout, of=(Dropout,))):
            return None
        return weights_of(self.intermediate, self.output, self.LayerNorm)
