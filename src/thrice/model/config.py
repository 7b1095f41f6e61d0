"""The one config of every encoder of the family; sharing is two of its values."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from thrice.errors import ConfigError

FAMILIES = ("albert", "bert", "electra", "roberta")
ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Shape, sharing and regularisation of an encoder; V, E, H, L as in the papers, N = len(attention_map) calls."""

    family: str
    """Whose stock classes it is saved as and whose stock heads it carries: albert, bert, electra or roberta."""
    vocab_size: int
    """V: rows of the word table."""
    embedding_size: int
    """E: width of the word, position and type tables."""
    hidden_size: int
    """H: width of every hidden state; a multiple of num_attention_heads."""
    num_attention_heads: int
    """A: heads of each attention block."""
    intermediate_size: int
    """Width of the feed-forward block, 4H in the papers."""
    attention_map: tuple[int, ...]
    """Entry i names the stored attention block that call i uses; numbered by first use."""
    ffn_map: tuple[int, ...]
    """Entry i names the stored feed-forward block that call i uses; numbered by first use."""
    embedding_projection: bool
    """Whether a linear map E -> H follows the embeddings (ALBERT in transformers: always; ELECTRA: where E != H)."""
    max_position_embeddings: int = 512
    """Rows of the position table, position_offset included."""
    type_vocab_size: int = 2
    """Rows of the token type table."""
    hidden_act: str = "gelu"
    """Activation of the feed-forward block: gelu (erf), gelu_new (tanh approximation), relu or silu."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in every LayerNorm."""
    position_offset: int = 0
    """Position id of the first token; RoBERTa: pad_token_id + 1."""
    pad_token_id: int = 0
    """Token id of padding in padded tensors."""
    hidden_dropout_prob: float = 0.0
    """Probability of dropping an entry of the embeddings and of each block's output, 0 <= p < 1."""
    attention_probs_dropout_prob: float = 0.0
    """Probability of dropping an attention weight, 0 <= p < 1."""
    classifier_dropout_prob: float = 0.0
    """Probability of dropping an entry before the classifier of a token, sequence or sentence-pair head, 0 <= p < 1."""
    initializer_range: float = 0.02
    """Standard deviation of freshly drawn matrices."""

    def __post_init__(self) -> None:
        """Check every value; raises ConfigError that lists all problems at once."""
        problems = list(_problems(self))
        if problems:
            raise ConfigError("encoder config: " + "; ".join(problems))

    @property
    def num_calls(self) -> int:
        """Blocks a token passes: L times the inner layers of a group."""
        return len(self.attention_map)

    @property
    def num_attention_blocks(self) -> int:
        """Stored attention blocks."""
        return max(self.attention_map) + 1

    @property
    def num_ffn_blocks(self) -> int:
        """Stored feed-forward blocks."""
        return max(self.ffn_map) + 1

    @property
    def head_size(self) -> int:
        """Width of one attention head, H / A."""
        return self.hidden_size // self.num_attention_heads

    @property
    def max_length(self) -> int:
        """Longest sequence the position table allows, in tokens."""
        return self.max_position_embeddings - self.position_offset

    def replace(self, **changes: Any) -> EncoderConfig:
        """Give the same config with some values changed, validated anew."""
        return dataclasses.replace(self, **changes)


def canonical(entries: tuple[int, ...]) -> tuple[int, ...]:
    """Give the map renumbered by first use: (7, 7, 2) -> (0, 0, 1)."""
    number = {entry: i for i, entry in enumerate(dict.fromkeys(entries))}
    return tuple(number[entry] for entry in entries)


def _problems(config: EncoderConfig) -> Any:
    if config.family not in FAMILIES:
        yield f"family is {config.family!r}, known: {', '.join(FAMILIES)}"
    if config.hidden_act not in ACTIVATIONS:
        yield f"hidden_act is {config.hidden_act!r}, known: {', '.join(ACTIVATIONS)}"
    sizes = ("vocab_size", "embedding_size", "hidden_size", "num_attention_heads", "intermediate_size")
    for name in (*sizes, "max_position_embeddings", "type_vocab_size"):
        if getattr(config, name) < 1:
            yield f"{name} is {getattr(config, name)}, it must be at least 1"
    if config.num_attention_heads > 0 and config.hidden_size % config.num_attention_heads:
        yield f"hidden_size {config.hidden_size} is no multiple of num_attention_heads {config.num_attention_heads}"
    if not config.embedding_projection and config.embedding_size != config.hidden_size:
        sizes_differ = f"embedding_size {config.embedding_size} differs from hidden_size {config.hidden_size}"
        yield f"{sizes_differ} without a projection"
    if len(config.attention_map) != len(config.ffn_map) or not config.attention_map:
        calls = f"attention_map has {len(config.attention_map)} entries, ffn_map {len(config.ffn_map)}"
        yield f"{calls}: one per call wanted"
    for name in ("attention_map", "ffn_map"):
        entries = getattr(config, name)
        if entries != canonical(entries):
            yield f"{name} {entries} is not numbered by first use, expected {canonical(entries)}"
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob"):
        if not 0 <= getattr(config, name) < 1:
            yield f"{name} is {getattr(config, name)}, it must lie in [0, 1)"
    if not 0 <= config.initializer_range < math.inf:
        yield f"initializer_range is {config.initializer_range}, it must be a number of 0 or more"
    if not 0 <= config.layer_norm_eps < 1:
        yield f"layer_norm_eps is {config.layer_norm_eps}, it must lie in [0, 1)"
    if not 0 <= config.position_offset < config.max_position_embeddings:
        yield f"position_offset {config.position_offset} leaves no row of {config.max_position_embeddings}"
