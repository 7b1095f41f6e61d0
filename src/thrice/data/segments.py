"""Segments of a corpus in batches without padding: single texts, or pairs for next sentence and sentence order.

Everything that is drawn here comes from the raw stream of PCG64, which NumPy promises to keep, and depends on the seed,
the stage, the pass and the shard alone.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from thrice.data.corpus import Corpus
from thrice.data.shards import Shard
from thrice.data.tokenizer import longest_first
from thrice.errors import ConfigError, DataError

PAIRS = ("nsp", "sop")
LEAST = 2
"""Tokens of the shortest text that a segment is made of."""
NO_PAIR, IN_ORDER, OUT_OF_ORDER = -100, 0, 1


@dataclass(frozen=True, kw_only=True, eq=False)
class PretrainingExample:
    """One segment or pair of segments, as an encoder reads it."""

    input_ids: np.ndarray
    """(n,) int64: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""
    token_type_ids: np.ndarray
    """(n,) int64."""
    special: np.ndarray
    """(n,) bool: tokens that are never masked or replaced."""
    word_starts: np.ndarray
    """(n,) bool: False where a token goes on with the word of the one before."""
    pair_label: int
    """-100 without a pair; 0 where B follows A; 1 where they are swapped (sop) or B is of another document (nsp)."""
    key: tuple[int, ...]
    """Says the example within the run: (stage, pass, shard, number in the shard)."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a stream stands: the batch that comes next."""

    pass_number: int = 0
    """Passes through the corpus that are finished."""
    block: int = 0
    """Blocks of this pass that are finished."""
    batch: int = 0
    """Batches of this block that are finished."""


def generator_of(seed: int, key: Sequence[int], purpose: int = 0) -> np.random.Generator:
    """Give an example's own generator: its draws depend on nothing but seed, key and purpose.

    So they are the same in whatever batch the example is and however many processes share the work. purpose: tells
    apart the draws that are made for one example.
    """
    return np.random.Generator(_bits(seed, *key, purpose))


def _bits(*numbers: int) -> np.random.PCG64:
    # A list of numbers would not do: NumPy's seeding takes [1, 2] and [1, 2, 0] for the same.
    text = " ".join(str(int(number)) for number in numbers)
    return np.random.PCG64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little"))


class _Draws:
    """Numbers from the raw stream, one at a time."""

    def __init__(self, *numbers: int) -> None:
        self._bits = _bits(*numbers)
        self._held: list[int] = []

    def fraction(self) -> float:
        """Give a number from 0 up to 1, which is left out."""
        if not self._held:
            self._held = self._bits.random_raw(4096).tolist()
        return (self._held.pop() >> 11) * 2.0**-53

    def below(self, limit: int) -> int:
        """Give one of 0 ... limit - 1; the bias is below limit / 2^53."""
        return int(self.fraction() * limit)


def _shuffled(count: int, *numbers: int) -> np.ndarray:
    """Give 0 ... count - 1 in random order."""
    return np.argsort(_bits(*numbers).random_raw(count), kind="stable")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Block:
    """The segments of one shard, in the order in which they are given."""

    shard: Shard
    word_starts: np.ndarray
    spans: np.ndarray
    """(e, 4) int64: first and last token + 1 of A, then of B; B is empty without pairs."""
    labels: np.ndarray
    """(e,) int64."""
    numbers: np.ndarray
    """(e,) int64: of each segment in the order of the text."""
    borders: list[int]
    """First segment of each batch, and e."""


class SegmentStream:
    """Batches of segments of a corpus without end, from any position on.

    Without pairs a segment is whole sentences of one document, as many as fit; a sentence that is longer than a segment
    is cut. With pairs it is two or more, parted between two sentences; where two do not fit, the longer loses its end.
    "sop" (Lan et al. 2020, section 3.1) swaps half of the pairs. "nsp" (Devlin et al. 2019, section 3.1) takes B of
    half of the pairs from another document, and what followed A begins the next pair. Departure from both, whose code
    makes a negative pair of it: a sentence without a neighbour is in no pair.
    A block is one shard: it is cut and shuffled anew in every pass, and filled into batches in that order.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        max_length: int,
        batch_tokens: int,
        pairs: str | None = None,
        short: float = 0.1,
        seed: int,
        stage: int = 0,
    ) -> None:
        """Look through the documents of a corpus.

        max_length: tokens of a segment or pair, special ones included. batch_tokens: of a batch, special ones included.
        pairs: None, "nsp" or "sop". short: share of segments that are cut at a random shorter length, 0 to 1.
        stage: of the run; another one draws other segments.
        Raises ConfigError for numbers that do not fit, DataError for a corpus without a document to use, or with one
        document where nsp needs two.
        """
        self.corpus, self.pairs, self.seed, self.stage = corpus, pairs, seed, stage
        self.max_length, self.batch_tokens, self.short = max_length, batch_tokens, short
        self._frame = corpus.pair if pairs else corpus.single
        self.room = max_length - len(self._frame)
        least = len(self._frame) + (2 * LEAST if pairs else LEAST)
        problems = []
        if pairs is not None and pairs not in PAIRS:
            problems.append(f"pairs is {pairs!r}, expected {' or '.join(PAIRS)} or None")
        if max_length < least:
            problems.append(f"max_length is {max_length}; special tokens and text need at least {least}")
        if batch_tokens < max_length:
            problems.append(f"batch_tokens is {batch_tokens}, less than one segment of max_length {max_length}")
        if not 0 <= short <= 1:
            problems.append(f"short is {short}, expected 0 to 1")
        if seed < 0 or stage < 0:
            problems.append(f"seed {seed} and stage {stage} must not be negative")
        if problems:
            raise ConfigError("; ".join(problems))
        self._verified: set[int] = set()
        self._left: Counter[str] = Counter()
        self._documents = self._look_through()
        specials = [index for name, index in corpus.special_ids.items() if name != "unk"]
        self._special = np.zeros(corpus.vocab_size, dtype=np.bool_)
        self._special[specials] = True

    def _look_through(self) -> dict[str, int]:
        skipped = {"documents_of_one_sentence": 0, "documents_too_short": 0}
        total = 0
        for number in range(self.corpus.num_shards):
            shard = self.corpus.shard(number)
            sizes, tokens = np.diff(shard.documents), np.diff(shard.sentences[shard.documents])
            short = tokens < LEAST
            single = (sizes < 2) & ~short & (self.pairs is not None)
            skipped["documents_too_short"] += int(short.sum())
            skipped["documents_of_one_sentence"] += int(single.sum())
            total += len(sizes)
        if self.pairs == "nsp" and total < 2:
            raise DataError(
                f"{self.corpus.folder} has one document: nsp takes half of the second segments from another one. - add "
                "documents (an empty line parts them), or train with sop or without pairs"
            )
        if total <= sum(skipped.values()):
            why = "; ".join(f"{count} {name.replace('_', ' ')}" for name, count in skipped.items() if count)
            raise DataError(
                f"{self.corpus.folder} has no document for {self.pairs or 'training'}: {why or 'it is empty'}. - a "
                "pair needs two sentences of one document; are there empty lines between all paragraphs?"
            )
        return skipped

    @property
    def skipped(self) -> dict[str, int]:
        """Give what is left out.

        documents_of_one_sentence and documents_too_short: of the whole corpus, in every pass. sentences_left_over: last
        ones of a document that had no neighbour in a pair, tokens_cut: ends of sentences too long for a pair; both in
        the blocks that this stream has cut so far.
        """
        return self._documents | {name: self._left[name] for name in ("sentences_left_over", "tokens_cut")}

    def batches(self, position: Position | None = None) -> Iterator[tuple[list[PretrainingExample], Position]]:
        """Give batches and the position behind each, from a position on, without end.

        A batch has at most `batch_tokens` tokens. Going on from any position gives what the uninterrupted iteration
        gives.
        Raises ConfigError for a position that this corpus does not have, DataError for a damaged shard.
        """
        at = position or Position()
        if min(at.pass_number, at.block, at.batch) < 0 or at.block >= self.corpus.num_shards:
            raise ConfigError(f"{at} is no position in a corpus of {self.corpus.num_shards} shards")
        block, batch = at.block, at.batch
        pass_number = at.pass_number
        while True:
            order = _shuffled(self.corpus.num_shards, 0, self.seed, self.stage, pass_number)
            while block < len(order):
                cut = self._block(pass_number, int(order[block]))
                last = len(cut.borders) - 1
                if batch > last or (batch == last and batch > 0):
                    raise ConfigError(f"{at} is no position in this corpus: that block has {last} batches")
                for number in range(batch, last):
                    behind = Position(pass_number=pass_number, block=block, batch=number + 1)
                    if number + 1 == last:
                        behind = Position(pass_number=pass_number, block=block + 1)
                        if block + 1 == len(order):
                            behind = Position(pass_number=pass_number + 1)
                    yield self._examples(cut, number, (self.stage, pass_number, int(order[block]))), behind
                block, batch = block + 1, 0
            pass_number, block = pass_number + 1, 0

    # Cutting

    def _block(self, pass_number: int, number: int) -> _Block:
        """Cut one shard, shuffle its segments and fill them into batches."""
        shard = self.corpus.shard(number, verify=number not in self._verified)
        if number not in self._verified and len(shard.ids) and int(shard.ids.max()) >= self.corpus.vocab_size:
            raise DataError(f"{self.corpus.folder}: shard {number} has ids beyond its vocabulary")
        self._verified.add(number)
        key = (self.seed, self.stage, pass_number, number)
        draws = _Draws(1, *key)
        spans, labels = self._pairs(shard, draws) if self.pairs else self._singles(shard, draws)
        table = np.array(spans, dtype=np.int64).reshape(-1, 4)
        order = _shuffled(len(table), 2, *key)
        table = table[order]
        ends = np.cumsum(table[:, 1] - table[:, 0] + table[:, 3] - table[:, 2] + len(self._frame))
        borders, start = [0], 0
        while start < len(table):
            used = int(ends[start - 1]) if start else 0
            start = max(start + 1, int(np.searchsorted(ends, used + self.batch_tokens, side="right")))
            borders.append(start)
        return _Block(
            shard=shard,
            word_starts=shard.word_starts(),
            spans=table,
            labels=np.array(labels, dtype=np.int64)[order],
            numbers=order,
            borders=borders,
        )

    def _target(self, draws: _Draws, least: int) -> int:
        """Give how many tokens of text a segment is to have at most."""
        if draws.fraction() < self.short:
            return least + draws.below(self.room - least + 1)
        return self.room

    def _singles(self, shard: Shard, draws: _Draws) -> tuple[list[tuple[int, int, int, int]], list[int]]:
        borders, documents = shard.sentences.tolist(), shard.documents.tolist()
        spans = []
        for first, last in itertools.pairwise(documents):
            start, end, sentence = borders[first], borders[last], first
            while end - start >= LEAST:
                limit = start + self._target(draws, LEAST)
                sentence = bisect.bisect_right(borders, limit, sentence, last + 1) - 1
                stop = borders[sentence]
                if stop <= start:
                    stop = limit  # within a sentence
                spans.append((start, stop, 0, 0))
                start = stop
        return spans, [NO_PAIR] * len(spans)

    def _pairs(self, shard: Shard, draws: _Draws) -> tuple[list[tuple[int, int, int, int]], list[int]]:
        borders, documents = shard.sentences.tolist(), shard.documents.tolist()
        spans, labels = [], []
        for number, (first, last) in enumerate(itertools.pairwise(documents)):
            if last - first < 2:
                continue
            start = first
            while last - start >= 2:
                target = self._target(draws, 2 * LEAST)
                stop = bisect.bisect_right(borders, borders[start] + target, start + 1, last + 1) - 1
                stop = max(stop, start + 2)
                if last - stop == 1 and stop - start > 2:
                    stop -= 1  # the last sentence gets a neighbour
                middle = start + 1 + draws.below(stop - start - 1)
                label = IN_ORDER if draws.fraction() < 0.5 else OUT_OF_ORDER
                a, b = (borders[start], borders[middle]), (borders[middle], borders[stop])
                start = stop
                if label == OUT_OF_ORDER and self.pairs == "nsp":
                    b = self._elsewhere(borders, documents, number, target - (a[1] - a[0]), draws)
                    start = middle
                keep = longest_first(a[1] - a[0], b[1] - b[0], self.room)
                self._left["tokens_cut"] += a[1] - a[0] + b[1] - b[0] - sum(keep)
                a, b = (a[0], a[0] + keep[0]), (b[0], b[0] + keep[1])
                spans.append((*b, *a) if label == OUT_OF_ORDER and self.pairs == "sop" else (*a, *b))
                labels.append(label)
            self._left["sentences_left_over"] += last - start
        return spans, labels

    def _elsewhere(
        self, borders: list[int], documents: list[int], number: int, room: int, draws: _Draws
    ) -> tuple[int, int]:
        """Give sentences of another document of the shard, as many as fit, at least one."""
        other = draws.below(len(documents) - 2)
        other += other >= number
        first, last = documents[other], documents[other + 1]
        start = first + draws.below(last - first)
        stop = bisect.bisect_right(borders, borders[start] + room, start + 1, last + 1) - 1
        return borders[start], borders[max(stop, start + 1)]

    # Batches

    def _examples(self, block: _Block, batch: int, key: tuple[int, ...]) -> list[PretrainingExample]:
        start, stop = block.borders[batch], block.borders[batch + 1]
        ids, starts = block.shard.ids, block.word_starts
        frame = self._frame
        before, between, after = (np.array(part, dtype=np.int64) for part in (frame.before, frame.between, frame.after))
        examples = []
        for (a, a_end, b, b_end), label, number in zip(
            block.spans[start:stop].tolist(),
            block.labels[start:stop].tolist(),
            block.numbers[start:stop].tolist(),
            strict=True,
        ):
            first, second = len(before), len(before) + a_end - a + len(between)
            size = second + b_end - b + len(after)
            input_ids = np.empty(size, dtype=np.int64)
            input_ids[:first] = before
            input_ids[first : first + a_end - a] = ids[a:a_end]
            input_ids[first + a_end - a : second] = between
            input_ids[second : second + b_end - b] = ids[b:b_end]
            input_ids[second + b_end - b :] = after
            word_starts = np.ones(size, dtype=np.bool_)
            word_starts[first + 1 : first + a_end - a] = starts[a + 1 : a_end]
            token_type_ids = np.zeros(size, dtype=np.int64)
            if b_end > b:
                word_starts[second + 1 : second + b_end - b] = starts[b + 1 : b_end]
                token_type_ids[second:] = self.corpus.second_type
            examples.append(
                PretrainingExample(
                    input_ids=input_ids,
                    token_type_ids=token_type_ids,
                    special=self._special[input_ids],
                    word_starts=word_starts,
                    pair_label=label,
                    key=(*key, number),
                )
            )
        return examples
