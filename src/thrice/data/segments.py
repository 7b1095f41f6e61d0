"""Examples of pre-training, and the generator that each of them owns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class PretrainingExample:
    """One sequence of pre-training before anything is hidden in it; n tokens."""

    input_ids: np.ndarray
    """(n,) int64: [CLS] A [SEP] or [CLS] A [SEP] B [SEP]."""
    token_type_ids: np.ndarray
    """(n,) int64."""
    special: np.ndarray
    """(n,) bool: never masked or replaced."""
    word_starts: np.ndarray
    """(n,) bool: False where a token goes on with the word of the one before."""
    pair_label: int
    """-100 where there is no pair; 0 in order; 1 swapped (sop) or from another document (nsp)."""
    key: tuple[int, ...]
    """Says the example within the run: (stage, pass, shard, number)."""


def generator_of(seed: int, key: Sequence[int], purpose: int = 0) -> np.random.Generator:
    """Give an example's own generator: its draws do not depend on its batch or on the number of processes.

    purpose: tells apart several draws for one example.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, purpose, *key))))
