"""Random numbers that depend on a few whole numbers alone: on a seed, and on what they are drawn for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def generator_of(seed: int, key: Sequence[int], purpose: int = 0) -> np.random.Generator:
    """Give an example's own generator: its draws depend on nothing but seed, key and purpose.

    So they are the same in whatever batch the example is and however many processes share the work. purpose: tells
    apart the draws that are made for one example.
    """
    return np.random.Generator(_bits(seed, *key, purpose))


def shuffled(count: int, *numbers: int) -> np.ndarray:
    """Give 0 ... count - 1, (count,) int64, in an order that depends on the numbers alone."""
    # NumPy promises the raw stream of PCG64 for all versions, but not what Generator.permutation makes of it.
    return np.argsort(_bits(*numbers).random_raw(count), kind="stable")


class Draws:
    """Numbers from the raw stream of PCG64, one at a time."""

    def __init__(self, *numbers: int) -> None:
        self._bits = _bits(*numbers)
        self._held: list[int] = []

    def fraction(self) -> float:
        """Give a number from 0 up to 1, which is left out."""
        if not self._held:
            self._held = self._bits.random_raw(4096).tolist()
        return (self._held.pop() >> 11) * 2.0**-53

    def below(self, limit: int) -> int:
        """Give one of 0 ... limit - 1, all equally likely to within limit / 2^53."""
        return int(self.fraction() * limit)


def _bits(*numbers: int) -> np.random.PCG64:
    # A list of numbers would not do: NumPy's seeding takes [1, 2] and [1, 2, 0] for the same.
    text = " ".join(str(int(number)) for number in numbers)
    return np.random.PCG64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little"))
