"""Tiny models and examples for the tests of pre-training objectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tiny_checkpoints import tiny_config

from thrice.data.segments import PretrainingExample
from thrice.objectives.base import Objective, Vocabulary
from thrice.objectives.model import PretrainingModel, build_pretraining_model

PAD, UNK, CLS, SEP, MASK = range(5)


def vocabulary(size: int = 20) -> Vocabulary:
    return Vocabulary(num_tokens=size, mask_id=MASK, special_ids=(PAD, UNK, CLS, SEP, MASK))


def example(
    tokens: Sequence[int],
    second: Sequence[int] | None = None,
    *,
    starts: Sequence[bool] | None = None,
    label: int = -100,
    number: int = 0,
) -> PretrainingExample:
    """Give [CLS] tokens [SEP], or [CLS] tokens [SEP] second [SEP]. starts: which tokens begin a word."""
    ids = [CLS, *tokens, SEP, *([*second, SEP] if second is not None else [])]
    special = np.isin(ids, (CLS, SEP))
    words = np.ones(len(ids), dtype=bool)
    if starts is not None:
        words[~special] = starts
    types = [0] * (len(tokens) + 2) + [1] * (len(ids) - len(tokens) - 2)
    return PretrainingExample(
        input_ids=np.array(ids, dtype=np.int64),
        token_type_ids=np.array(types, dtype=np.int64),
        special=special,
        word_starts=words,
        pair_label=label,
        key=(0, 0, 0, number),
    )


def examples(count: int = 6, *, size: int = 20, longest: int = 11, pairs: bool = True) -> list[PretrainingExample]:
    """Give random examples of 5 to `longest` tokens, special ones aside, half of them with label 0 and half with 1."""
    generator = np.random.Generator(np.random.PCG64(5))
    made = []
    for number in range(count):
        length = int(generator.integers(5, longest + 1))
        tokens = generator.integers(5, size, size=length).tolist()
        starts = [True, *(generator.random(length - 1) < 0.6).tolist()]
        first, second = (tokens[:3], tokens[3:]) if pairs else (tokens, None)
        made.append(example(first, second, starts=starts, label=number % 2 if pairs else -100, number=number))
    return made


def tiny_model(
    family: str, objectives: Sequence[Objective], *, seed: int = 1, fill: float | None = 0.3, **changes: Any
) -> PretrainingModel:
    """Give a model in eval mode; with fill, every parameter is drawn with that deviation, norms and biases too."""
    config = tiny_config(family, changes.pop("pattern", "none"), **{"max_position_embeddings": 24, **changes})
    model = build_pretraining_model(config, objectives, vocabulary=vocabulary(config.vocab_size), seed=seed)
    if fill is not None:
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0.0, fill, generator=generator)
    return model.eval()
