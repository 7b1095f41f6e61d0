"""Documents cut into segments and pairs of segments, as spans of tokens."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from thrice.data.drawing import Draws
from thrice.data.tokenizer import longest_first

LEAST = 2
"""Tokens of the shortest text that a segment is made of."""
NO_PAIR, IN_ORDER, OUT_OF_ORDER = -100, 0, 1
"""Labels of pairs."""

Span = tuple[int, int, int, int]
"""First token and last token + 1 of A, then of B; B is (0, 0) without pairs."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """Where the sentences and documents of a shard begin and end."""

    sentences: list[int]
    """First token of each sentence, and the end."""
    documents: list[int]
    """First sentence of each document, and the end."""
    own: int
    """Documents that are cut; those behind them only lend second segments."""


@dataclass(kw_only=True)
class Cut:
    """Segments in the order of the text."""

    spans: list[Span] = field(default_factory=list)
    """Tokens of each."""
    labels: list[int] = field(default_factory=list)
    """-100 without pairs, 0 in order, 1 swapped or from another document."""
    left: Counter[str] = field(default_factory=Counter)
    """What got lost: sentences_left_over, tokens_cut."""

    def table(self) -> np.ndarray:
        """Give (e, 5) int64: spans and labels."""
        spans = np.array(self.spans, dtype=np.int64).reshape(-1, 4)
        return np.column_stack([spans, np.array(self.labels, dtype=np.int64)])


def cut_singles(text: Text, *, room: int, short: float, draws: Draws) -> Cut:
    """Cut every document into whole sentences, as many as fit; one that is longer than a segment is cut.

    room: tokens of text in a segment. short: share of segments with a random shorter length.
    """
    cut = Cut()
    for first, last in itertools.islice(itertools.pairwise(text.documents), text.own):
        start, end, sentence = text.sentences[first], text.sentences[last], first
        while end - start >= LEAST:
            limit = start + _length(room, LEAST, short, draws)
            sentence = bisect.bisect_right(text.sentences, limit, sentence, last + 1) - 1
            stop = text.sentences[sentence]
            if stop - start < LEAST:
                stop = limit  # within a sentence
            if end - stop == 1 and stop - start > LEAST:
                stop -= 1  # a token alone would be lost
            cut.spans.append((start, stop, 0, 0))
            start = stop
        cut.left["tokens_cut"] += end - start
    cut.labels = [NO_PAIR] * len(cut.spans)
    return cut


def cut_pairs(text: Text, kind: str, *, room: int, short: float, draws: Draws) -> Cut:
    """Cut every document of two sentences or more into pairs, parted between two sentences.

    A pair has as many whole sentences as fit, at least two; where those do not fit, the longer loses its end. kind:
    "sop" swaps half of the pairs; "nsp" takes B of half of them from another document, and what followed A begins the
    next pair.
    """
    cut = Cut()
    borders = text.sentences
    for number, (first, last) in enumerate(itertools.islice(itertools.pairwise(text.documents), text.own)):
        if last - first < 2:
            continue
        start = first
        while last - start >= 2:
            limit = _length(room, 2 * LEAST, short, draws)
            stop = max(start + 2, bisect.bisect_right(borders, borders[start] + limit, start + 1, last + 1) - 1)
            if last - stop == 1 and stop - start > 2:
                stop -= 1  # the last sentence gets a neighbour
            middle = start + 1 + draws.below(stop - start - 1)
            label = IN_ORDER if draws.fraction() < 0.5 else OUT_OF_ORDER
            a, b = (borders[start], borders[middle]), (borders[middle], borders[stop])
            start = stop
            if kind == "nsp" and label == OUT_OF_ORDER:
                b, start = _elsewhere(text, number, limit - (a[1] - a[0]), draws), middle
            keep = longest_first(a[1] - a[0], b[1] - b[0], room)
            cut.left["tokens_cut"] += a[1] - a[0] + b[1] - b[0] - sum(keep)
            a, b = (a[0], a[0] + keep[0]), (b[0], b[0] + keep[1])
            cut.spans.append((*b, *a) if kind == "sop" and label == OUT_OF_ORDER else (*a, *b))
            cut.labels.append(label)
        cut.left["sentences_left_over"] += last - start
    return cut


def _length(room: int, least: int, short: float, draws: Draws) -> int:
    """Give how many tokens of text a segment is to have at most."""
    return least + draws.below(room - least + 1) if draws.fraction() < short else room


def _elsewhere(text: Text, number: int, room: int, draws: Draws) -> tuple[int, int]:
    """Give sentences of another document, as many as fit, at least one."""
    other = draws.below(len(text.documents) - 2)
    other += other >= number
    first, last = text.documents[other], text.documents[other + 1]
    start = first + draws.below(last - first)
    stop = bisect.bisect_right(text.sentences, text.sentences[start] + room, start + 1, last + 1) - 1
    return text.sentences[start], text.sentences[max(stop, start + 1)]
