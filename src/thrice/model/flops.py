"""Costs that follow from an encoder's shape alone: parameters, bytes of a file and floating-point operations.

Letters: S tokens of a sequence, H hidden, E embedding, V vocabulary, I feed-forward, N calls. Nothing here needs torch
or builds a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from thrice.model.config import EncoderConfig

BYTES = {"float32": 4, "float16": 2}
"""Of one number."""


def parameter_counts(config: EncoderConfig, *, pooler: bool = False, classes: int = 0) -> tuple[int, int]:
    """Give (stored, called) parameters of an encoder; `Encoder.parameter_counts` counts the same on a built one.

    Stored counts each block once and is what sharing saves; called counts a block once for every call that uses it and
    is what a forward pass works through. pooler: count the H x H map that BERT and ALBERT have on the first token.
    classes: count a sequence classifier of so many classes, an H x H map included.
    """
    hidden, embedding = config.hidden_size, config.embedding_size
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    outside = rows * embedding + 2 * embedding
    if config.embedding_projection:
        outside += (embedding + 1) * hidden
    if pooler or classes:
        outside += (hidden + 1) * hidden
    outside += (hidden + 1) * classes
    norm = 2 * hidden
    attention = 4 * (hidden + 1) * hidden + norm
    ffn = (hidden + 1) * config.intermediate_size + (config.intermediate_size + 1) * hidden + norm
    stored = outside + config.num_attention_blocks * attention + config.num_ffn_blocks * ffn
    return stored, outside + config.num_calls * (attention + ffn)


def forward_flops(config: EncoderConfig, *, tokens: int) -> int:
    """Give floating-point operations per token of one forward pass over sequences of so many tokens.

    A multiply-add counts as two. Counted are matrix products: the projection E -> H, and in each of the N calls query,
    key, value and output (4 H^2), the feed-forward block (2 H I), and the scores and the weighted sum of the values
    (S H each). Sharing changes none of them. Left out: biases, norms, softmax, activations and table look-ups; and the
    pooler and the heads, which work on some tokens alone (`head_flops`).
    """
    hidden = config.hidden_size
    linear = 4 * hidden * hidden + 2 * hidden * config.intermediate_size
    projection = config.embedding_size * hidden if config.embedding_projection else 0
    return 2 * projection + config.num_calls * (2 * linear + 2 * 2 * tokens * hidden)


def training_flops(config: EncoderConfig, *, tokens: int) -> int:
    """Give floating-point operations per token of a training step: three times the forward pass.

    The way back costs two products for each one of the way forth, for the gradient of its input and of its weights
    (Kaplan et al. 2020, section 2.1). The optimiser, once per step, is left out; so is what gradient checkpointing
    computes a second time.
    """
    return 3 * forward_flops(config, tokens=tokens)


def packed_flops(config: EncoderConfig, lengths: Sequence[int], *, rows: int | None = None) -> int:
    """Give floating-point operations of one forward pass over a packed batch of sequences of these lengths, in tokens.

    The same products as `forward_flops`, for sequences of any lengths together. rows: tokens whose states are asked
    for, all where None; the last call's output and feed-forward products are those of these tokens.
    """
    hidden, tokens = config.hidden_size, sum(lengths)
    scores = 2 * 2 * config.num_calls * hidden * sum(length * length for length in lengths)
    unread = 0 if rows is None else tokens - rows
    left_out = 2 * unread * (hidden * hidden + 2 * hidden * config.intermediate_size)
    return tokens * forward_flops(config, tokens=0) + scores - left_out


def head_flops(config: EncoderConfig, head: str, *, rows: int, num_labels: int = 2) -> int:
    """Give floating-point operations of one forward pass of a stock head over so many gathered rows.

    head: mlm (H E for the dense layer, E V for the word table), pooler (H H), sentence_pair (H per class) or rtd
    (H H + H). A multiply-add counts as two.
    Raises KeyError for a head that no pre-training objective uses.
    """
    hidden = config.hidden_size
    products = {
        "mlm": hidden * config.embedding_size + config.embedding_size * config.vocab_size,
        "pooler": hidden * hidden,
        "sentence_pair": hidden * num_labels,
        "rtd": hidden * hidden + hidden,
    }
    return 2 * rows * products[head]


def tensor_bytes(shapes: Iterable[Sequence[int]], dtype: str) -> int:
    """Give the bytes of tensors of these shapes; a file has some KB of names beside them.

    dtype: float32, float16, or int8: matrices with one byte per weight and a float32 scale for each row, vectors
    (biases and norms) in float32. It tells the size that a file would have, not whether the model would still be good.
    """
    if dtype == "int8":
        return sum(math.prod(shape) + 4 * shape[0] if len(shape) > 1 else 4 * math.prod(shape) for shape in shapes)
    return BYTES[dtype] * sum(math.prod(shape) for shape in shapes)
