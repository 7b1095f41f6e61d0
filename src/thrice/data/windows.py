"""Passages as tokens that know their characters, and the windows in which a long one is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thrice.data.tokenizer import Tokenizer

BLOCK = 512
"""Texts tokenised at once, so that the offsets of a whole file are never held as Python's pairs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """The tokens of one text, without special ones, and where in it each of them stands."""

    ids: np.ndarray
    """(n,) int32."""
    starts: np.ndarray
    """(n,) int32: first character of each token, white space left out."""
    stops: np.ndarray
    """(n,) int32: the character behind it; equal to the start for a token that stands for white space alone."""

    def __len__(self) -> int:
        return len(self.ids)

    def tokens_of(self, start: int, stop: int) -> tuple[int, int] | None:
        """Give the first and the last token that hold one of these characters; None where no token holds any."""
        touched = np.flatnonzero((self.starts < stop) & (self.stops > start))
        return (int(touched[0]), int(touched[-1])) if len(touched) else None

    def characters_of(self, first: int, last: int) -> tuple[int, int]:
        """Give the characters, start and stop, from the first to the last of these tokens."""
        return int(self.starts[first : last + 1].min()), int(self.stops[first : last + 1].max())


def pieces_of(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Pieces]:
    """Give the tokens of every text with their characters.

    Offsets count characters of the text as it is: lower-casing, accents and full-width forms do not move them. Where
    a tokenizer counts the space before a word as part of it, the space is left out here.
    """
    pieces = []
    for begin in range(0, len(texts), BLOCK):
        block = list(texts[begin : begin + BLOCK])
        # A call of the stock tokenizer with truncation or padding leaves both switched on in the shared backend.
        tokenizer.backend.no_truncation()
        tokenizer.backend.no_padding()
        for text, encoding in zip(block, tokenizer.backend.encode_batch(block, add_special_tokens=False), strict=True):
            offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
            starts, stops = without_space(text, offsets[:, 0].copy(), offsets[:, 1].copy())
            pieces.append(Pieces(ids=np.array(encoding.ids, dtype=np.int32), starts=starts, stops=stops))
    return pieces


def windows_of(length: int, *, room: int, stride: int) -> list[tuple[int, int]]:
    """Give the windows, (first token, token behind the last), in which `length` tokens are read; at least one.

    room: tokens of a window, at least 1. stride: tokens that neighbours share, as transformers counts it. Every span of
    up to stride + 1 tokens is whole in some window, as long as room > stride; where it is not, neighbours share
    room - 1 tokens.
    """
    step = max(1, room - stride)
    return [(start, min(start + room, length)) for start in range(0, max(1, length - room + step), step)]


def best_spans(
    logits: np.ndarray, passage: Pieces, first: int, *, most: int, count: int
) -> list[tuple[float, int, int]]:
    """Give (score, first token, last token) of a window's best spans, unordered, tokens counted in the passage.

    logits: (n, 2), start and end of the passage's tokens from `first` on; a score is their sum. most: tokens of a span.
    count: spans at most. A span neither begins nor ends with a token that stands for white space.
    """
    size = len(logits)
    if not size:
        return []
    most = min(most, size)
    places = slice(first, first + size)
    visible = passage.starts[places] < passage.stops[places]
    starts, ends = np.where(visible[:, None], logits, -np.inf).T
    padded = np.concatenate((ends, np.full(most - 1, -np.inf, dtype=ends.dtype)))
    scores = (starts[:, None] + np.lib.stride_tricks.sliding_window_view(padded, most)).ravel()
    count = min(count, len(scores))
    best = np.argpartition(-scores, count - 1)[:count]
    begins, beyond = np.divmod(best, most)
    return [
        (float(score), first + int(begin), first + int(begin + length))
        for score, begin, length in zip(scores[best], begins, beyond, strict=True)
        if np.isfinite(score)
    ]


def without_space(text: str, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give starts and stops of tokens, moved in place past white space at their edges; start = stop where none is left.

    starts, stops: (n,) characters of the text, [start, stop).
    """
    if not len(starts):
        return starts, stops
    space = np.fromiter((c.isspace() for c in text), dtype=bool, count=len(text))
    for _ in range(len(text)):
        wide = (starts < stops) & space[np.minimum(starts, len(text) - 1)]
        if not wide.any():
            break
        starts[wide] += 1
    for _ in range(len(text)):
        wide = (starts < stops) & space[np.maximum(stops - 1, 0)]
        if not wide.any():
            break
        stops[wide] -= 1
    return starts, stops
