"""Which documents were seen before, in 16 bytes each."""

from __future__ import annotations

import hashlib

import numpy as np

RECENT = 1 << 16
"""Digests that are held as Python objects, about 100 bytes each, before they are sorted into the arrays."""


class Seen:
    """The documents seen so far, by blake2b of 128 bits: two different ones never count as one in practice."""

    def __init__(self) -> None:
        self._recent: set[bytes] = set()
        self._runs: list[np.ndarray] = []

    def add(self, document: str) -> bool:
        """Remember a document; says whether it was seen before."""
        digest = hashlib.blake2b(document.encode("utf-8"), digest_size=16).digest()
        if digest in self._recent or any(_holds(run, digest) for run in self._runs):
            return True
        self._recent.add(digest)
        if len(self._recent) >= RECENT:
            self._runs.append(_sorted(np.frombuffer(b"".join(self._recent), dtype=">u8").reshape(-1, 2)))
            self._recent.clear()
            # Runs double in length, as the digits of a number do: few to look in, and each digest is sorted rarely.
            while len(self._runs) > 1 and len(self._runs[-2]) <= len(self._runs[-1]):
                self._runs.append(_sorted(np.concatenate([self._runs.pop(), self._runs.pop()])))
        return False

    def __len__(self) -> int:
        return len(self._recent) + sum(len(run) for run in self._runs)


def _sorted(digests: np.ndarray) -> np.ndarray:
    """Give (n, 2) digests in the order of their first half, in this machine's byte order."""
    native = digests.astype(np.uint64, copy=False)
    return native[np.argsort(native[:, 0], kind="stable")]


def _holds(run: np.ndarray, digest: bytes) -> bool:
    first, second = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
    place = int(np.searchsorted(run[:, 0], np.uint64(first)))
    while place < len(run) and int(run[place, 0]) == first:
        if int(run[place, 1]) == second:
            return True
        place += 1
    return False
