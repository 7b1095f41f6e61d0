"""Which tokens a piece of text is, and which characters a run of tokens: positions that survive tokenisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from thrice.data.encoding import Encoded
from thrice.data.tokenizer import Tokenizer
from thrice.data.windows import without_space
from thrice.errors import ConfigError

BLOCK = 1024
"""Texts tokenised at once."""


def encode_with_places(
    tokenizer: Tokenizer, texts: Sequence[str], *, max_length: int
) -> tuple[Encoded, list[np.ndarray]]:
    """Encode texts, each its beginning at most, and say where in its text every token stands.

    max_length: tokens of one sequence, special tokens included.
    Returns the sequences, and per text (n, 2) int64: characters [start, end) of each token between the special ones.
    Characters are those of a Python string; white space at the edges of a token is not counted to it. A token that is a
    part of one character, as in byte-level vocabularies, has the whole character.
    Raises ConfigError for a max_length without room for text.
    """
    room = max_length - len(tokenizer.single)
    if room < 1:
        raise ConfigError(f"max_length is {max_length}; {len(tokenizer.single)} special tokens and text need more")
    tokenizer.content_ids([])  # leaves the shared backend without truncation and padding
    sequences, places, num_cut = [], [], 0
    for start in range(0, len(texts), BLOCK):
        block = list(texts[start : start + BLOCK])
        for text, encoding in zip(block, tokenizer.backend.encode_batch(block, add_special_tokens=False), strict=True):
            num_cut += len(encoding.ids) > room
            sequences.append(tokenizer.join(encoding.ids[:room]))
            offsets = np.array(encoding.offsets[:room], dtype=np.int64).reshape(-1, 2)
            places.append(np.stack(without_space(text, offsets[:, 0].copy(), offsets[:, 1].copy()), 1))
    lengths = np.array([len(ids) for ids, _ in sequences], dtype=np.int64)
    return (
        Encoded(
            ids=np.concatenate([np.zeros(0, np.int32), *(np.array(ids, dtype=np.int32) for ids, _ in sequences)]),
            type_ids=np.concatenate([np.zeros(0, np.uint8), *(np.array(t, dtype=np.uint8) for _, t in sequences)]),
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            owner=np.arange(len(texts)),
            num_cut=num_cut,
        ),
        places,
    )


class Aligner:
    """From pieces of one text to its tokens; places: as `encode_with_places` gives them for the text."""

    def __init__(self, text: str, places: np.ndarray) -> None:
        self.text = text
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        for token, (start, end) in enumerate(places.tolist()):
            if start < end:
                self._first.setdefault(start, token)
                self._last[end] = token

    def tokens(self, start: int, end: int) -> tuple[int, int] | None:
        """Give first and last token of the characters [start, end); None where tokens begin or end elsewhere."""
        first, last = self._first.get(start), self._last.get(end)
        return None if first is None or last is None or last < first else (first, last)

    def find(self, piece: str) -> tuple[int, int] | None:
        """Give first and last token of the first occurrence of a piece that tokens can say; None where none can."""
        found = (self.tokens(start, start + len(piece)) for start in occurrences(self.text, piece))
        return next((tokens for tokens in found if tokens is not None), None)


def occurrences(text: str, piece: str) -> Iterator[int]:
    """Give where a piece begins in a text, overlapping occurrences too; nothing for an empty piece."""
    start = text.find(piece) if piece else -1
    while start >= 0:
        yield start
        start = text.find(piece, start + 1)


def characters(places: np.ndarray, first: int, last: int) -> tuple[int, int]:
    """Give the characters [start, end) of the tokens from first to last."""
    return int(places[first, 0]), int(places[last, 1])
