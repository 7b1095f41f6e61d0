"""Segments of a corpus in batches without padding: single texts, or pairs for next sentence and sentence order.

Which segments there are, in which order and in which batches, depends on the corpus, the options, the seed, the stage
and the number of the pass alone, see `data.drawing`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from thrice.data.corpus import Corpus
from thrice.data.corpus_file import named_counts
from thrice.data.cutting import LEAST, Cut, Text, cut_pairs, cut_singles
from thrice.data.drawing import Draws, generator_of, shuffled
from thrice.errors import ConfigError, DataError

__all__ = ["Position", "PretrainingExample", "SegmentStream", "generator_of"]

PAIRS = ("nsp", "sop")


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
    sentences_left_over: int = 0
    """In the finished blocks of all passes: last ones of a document that had no neighbour in a pair."""
    tokens_cut: int = 0
    """In the same: ends of sentences too long for a pair, and ends of documents too short for a segment."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Block:
    """The segments of one shard, in the order in which they are given."""

    codes: np.ndarray
    """(n,) uint32: twice the id of each token, and 1 more where it begins a word."""
    table: np.ndarray
    """(e, 5) int64: see `cutting.Cut.table`."""
    numbers: np.ndarray
    """(e,) int64: of each segment in the order of the text."""
    borders: list[int]
    """First segment of each batch, and e."""
    left: Mapping[str, int]
    """What got lost: sentences_left_over, tokens_cut."""


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
        self.frame = corpus.pair if pairs else corpus.single
        """Special tokens around each segment or pair."""
        least = len(self.frame) + (2 * LEAST if pairs else LEAST)
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
        self.skipped = self._look_through()
        """documents_of_one_sentence and documents_too_short: left out of every pass."""
        self._special = np.zeros(corpus.vocab_size, dtype=np.bool_)
        self._special[[index for name, index in corpus.special_ids.items() if name != "unk"]] = True

    def _look_through(self) -> dict[str, int]:
        """Count the documents of no use; raises DataError where no other is left."""
        skipped = {"documents_of_one_sentence": 0, "documents_too_short": 0}
        total = 0
        for number in range(self.corpus.num_shards):
            shard = self.corpus.shard(number)
            short = np.diff(shard.sentences[shard.documents]) < LEAST
            skipped["documents_too_short"] += int(short.sum())
            if self.pairs:
                skipped["documents_of_one_sentence"] += int(((np.diff(shard.documents) < 2) & ~short).sum())
            total += len(short)
        folder = self.corpus.folder
        if self.pairs == "nsp" and total < 2:
            raise DataError(
                f"{folder} has one document: nsp takes half of the second segments from another one. - add documents "
                "(an empty line parts them), or train with sop or without pairs"
            )
        if total <= sum(skipped.values()):
            why = named_counts(skipped)
            raise DataError(
                f"{folder} has nothing for {self.pairs or 'training'}: {why or 'no documents'}. - a pair needs two "
                "sentences of one document; is there an empty line behind every paragraph?"
                if self.pairs
                else f"{folder} has nothing for training: {why or 'no documents'}"
            )
        return skipped

    def batches(self, position: Position | None = None) -> Iterator[tuple[list[PretrainingExample], Position]]:
        """Give batches and the position behind each, from a position on, without end.

        A batch has at most `batch_tokens` tokens; the last one of a block may be small. Going on from any position
        gives what the uninterrupted iteration gives.
        Raises ConfigError for a position that this corpus does not have, DataError for a damaged shard.
        """
        at = position or Position()
        num_shards = self.corpus.num_shards
        if min(at.pass_number, at.block, at.batch) < 0 or at.block >= num_shards:
            raise ConfigError(f"{at} is no position in a corpus of {num_shards} shards")
        pass_number, first_block, first_batch = at.pass_number, at.block, at.batch
        left = Counter(sentences_left_over=at.sentences_left_over, tokens_cut=at.tokens_cut)
        while True:
            order = shuffled(num_shards, 0, self.seed, self.stage, pass_number).tolist()
            for block in range(first_block, num_shards):
                cut = self._block(pass_number, order[block])
                num_batches = len(cut.borders) - 1
                if first_batch and first_batch >= num_batches:
                    raise ConfigError(f"{at} is no position in this corpus: that block has {num_batches} batches")
                before = dict(left)
                left.update(cut.left)
                behind = Position(pass_number=pass_number, block=block + 1, **left)
                if block + 1 == num_shards:
                    behind = Position(pass_number=pass_number + 1, **left)
                for batch in range(first_batch, num_batches):
                    next_one = Position(pass_number=pass_number, block=block, batch=batch + 1, **before)
                    examples = self._examples(cut, batch, (self.stage, pass_number, order[block]))
                    yield examples, behind if batch + 1 == num_batches else next_one
                first_batch = 0
            pass_number, first_block = pass_number + 1, 0

    def _block(self, pass_number: int, number: int) -> _Block:
        """Cut one shard, shuffle its segments and fill them into batches."""
        codes, text = self._text(number)
        key = (self.seed, self.stage, pass_number, number)
        room, draws = self.max_length - len(self.frame), Draws(1, *key)
        cut: Cut
        if self.pairs:
            cut = cut_pairs(text, self.pairs, room=room, short=self.short, draws=draws)
        else:
            cut = cut_singles(text, room=room, short=self.short, draws=draws)
        order = shuffled(len(cut.spans), 2, *key)
        table = cut.table()[order]
        ends = np.cumsum(table[:, 1] - table[:, 0] + table[:, 3] - table[:, 2] + len(self.frame))
        borders = [0]
        while borders[-1] < len(table):
            used = int(ends[borders[-1] - 1]) if borders[-1] else 0
            borders.append(int(np.searchsorted(ends, used + self.batch_tokens, side="right")))
        return _Block(codes=codes, table=table, numbers=order, borders=borders, left=cut.left)

    def _text(self, number: int) -> tuple[np.ndarray, Text]:
        """Give the tokens of a shard, see `_Block.codes`, and its borders.

        For nsp, the one document of a shard has another shard behind it, to take second segments from.
        """
        shards = [number]
        if self.pairs == "nsp" and self.corpus.shards[number].documents == 1:
            others = (*range(number + 1, self.corpus.num_shards), *range(number))
            shards.append(next(other for other in others if self.corpus.shards[other].documents))
        codes, sentences, documents = [], [np.zeros(1, dtype=np.int64)], [np.zeros(1, dtype=np.int64)]
        for one in shards:
            shard = self.corpus.shard(one, verify=one not in self._verified)
            if one not in self._verified and len(shard.ids) and int(shard.ids.max()) >= self.corpus.vocab_size:
                raise DataError(f"{self.corpus.folder}: shard {one} has ids beyond its vocabulary; prepare it again")
            self._verified.add(one)
            codes.append(shard.ids.astype(np.uint32) << 1 | shard.word_starts())
            sentences.append(shard.sentences[1:] + sentences[-1][-1])
            documents.append(shard.documents[1:] + documents[-1][-1])
        text = Text(
            sentences=np.concatenate(sentences).tolist(),
            documents=np.concatenate(documents).tolist(),
            own=self.corpus.shards[number].documents,
        )
        return np.concatenate(codes), text

    def _examples(self, block: _Block, batch: int, key: tuple[int, ...]) -> list[PretrainingExample]:
        """Make the examples of one batch; their arrays are views of arrays of the whole batch."""
        rows = slice(block.borders[batch], block.borders[batch + 1])
        table, numbers = block.table[rows], block.numbers[rows].tolist()
        # The code of a special token says that it begins a word.
        before, between, after = (
            np.array(part, dtype=np.uint32) << 1 | 1
            for part in (self.frame.before, self.frame.between, self.frame.after)
        )
        pieces = []
        for a, a_end, b, b_end, _ in table.tolist():
            pieces += [before, block.codes[a:a_end], between, block.codes[b:b_end], after]
        codes = np.concatenate(pieces)
        firsts, seconds = table[:, 1] - table[:, 0], table[:, 3] - table[:, 2]
        heads, tails = firsts + len(before) + len(between), seconds + len(after)
        ends = np.cumsum(heads + tails)
        starts = ends - heads - tails
        input_ids = (codes >> 1).astype(np.int64)
        word_starts = (codes & 1).astype(np.bool_)
        word_starts[starts + len(before)] = True  # a segment may begin inside a word; B begins with a sentence
        token_type_ids = np.zeros(len(codes), dtype=np.int64)
        if self.pairs:
            types = np.tile(np.array([0, self.corpus.second_type], dtype=np.int64), len(table))
            token_type_ids = np.repeat(types, np.column_stack([heads, tails]).ravel())
        special = self._special[input_ids]
        return [
            PretrainingExample(
                input_ids=input_ids[start:end],
                token_type_ids=token_type_ids[start:end],
                special=special[start:end],
                word_starts=word_starts[start:end],
                pair_label=label,
                key=(*key, number),
            )
            for start, end, label, number in zip(
                starts.tolist(), ends.tolist(), table[:, 4].tolist(), numbers, strict=True
            )
        ]
