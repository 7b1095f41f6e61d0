"""Words of a text with their characters, the pieces a tokenizer makes of each, and windows over long texts."""

from __future__ import annotations

import bisect
import functools
import itertools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thrice.data.tokenizer import Tokenizer
from thrice.errors import ConfigError

if TYPE_CHECKING:
    import tokenizers

# Chinese characters as BERT parts them, and scripts that put no space between words: every character is a word.
_SINGLE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002ebef\U0002f800-\U0002fa1f]"
)


@functools.lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    """Give "space", "alone" (a word of one character) or "inside" (of a longer word)."""
    if character.isspace():
        return "space"
    alone = unicodedata.category(character)[0] in "PS" or _SINGLE.match(character)
    return "alone" if alone else "inside"


def words_of(text: str) -> list[tuple[int, int]]:
    """Give (start, end) of every word: runs of letters and digits; punctuation, symbols and characters of Chinese and
    other scripts without spaces one by one."""
    words: list[tuple[int, int]] = []
    open_word = False
    for place, character in enumerate(text):
        kind = _kind(character)
        if kind == "inside" and open_word:
            words[-1] = (words[-1][0], place + 1)
        elif kind != "space":
            words.append((place, place + 1))
        open_word = kind == "inside"
    return words


def joined(tokens: Sequence[str], between: str) -> tuple[str, list[tuple[int, int]]]:
    """Give the text of tokens with `between` between them, and (start, end) of each in it."""
    words, place = [], 0
    for token in tokens:
        words.append((place, place + len(token)))
        place += len(token) + len(between)
    return between.join(tokens), words


def pieces_of_tokens(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], between: str) -> list[list[list[int]]]:
    """Give the ids of every token of every sentence, each token encoded by itself.

    One of which the tokenizer makes nothing, such as a control character, stands as the unknown token, so that every
    token has a piece. between: what stands between tokens; a space is encoded with the token after it.
    """
    # A token in the middle of a text is another one, to byte-level BPE, than the same at its beginning.
    texts = {between * (i > 0) + token for tokens in sentences for i, token in enumerate(tokens)}
    distinct = sorted(texts)
    known = dict(zip(distinct, tokenizer.content_ids(distinct), strict=True)) if distinct else {}
    unknown = [tokenizer.unk_token_id]
    return [[known[between * (i > 0) + token] or unknown for i, token in enumerate(tokens)] for tokens in sentences]


def pieces_of_words(
    tokenizer: Tokenizer, texts: Sequence[str], words: Sequence[Sequence[tuple[int, int]]]
) -> list[list[list[int]]]:
    """Give the ids of every word of every text, each text encoded as a whole, as stock code does it.

    A piece belongs to the word in which it begins; a word in which none begins has no ids.
    """
    tokenizer.backend.no_truncation()
    tokenizer.backend.no_padding()
    pieces = []
    for text, spans, encoding in zip(
        texts, words, tokenizer.backend.encode_batch(list(texts), add_special_tokens=False), strict=True
    ):
        own: list[list[int]] = [[] for _ in spans]
        starts = [start for start, _ in spans]
        for index, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            while start < end and text[start].isspace():  # some pieces reach over the space before them
                start += 1
            if own:
                own[max(0, bisect.bisect_right(starts, start) - 1)].append(index)
        pieces.append(own)
    return pieces


def windows(sizes: Sequence[int], *, room: int, stride: int) -> list[tuple[int, int, int, int]]:
    """Give windows over words, each (start, stop, own_start, own_stop) in words; every word is owned by exactly one.

    sizes: pieces of each word. room: pieces of a window; a word with more has a window to itself. stride: pieces that
    neighbours share at most; of what they share each owns the half that it sees more context of.
    Raises ConfigError unless 0 <= stride < room.
    """
    if not 0 <= stride < room:
        raise ConfigError(f"windows of {room} pieces cannot share {stride}; expected 0 to {room - 1}")
    spans = []
    start = 0
    while True:
        total, stop = 0, start
        while stop < len(sizes) and (total + sizes[stop] <= room or stop == start):
            total += sizes[stop]
            stop += 1
        spans.append((start, stop))
        if stop == len(sizes):
            break
        start, shared = stop, 0
        while start - 1 > spans[-1][0] and shared + sizes[start - 1] <= stride:
            start -= 1
            shared += sizes[start]
    middles = [(after[0] + before[1]) // 2 for before, after in itertools.pairwise(spans)]
    return [
        (*span, *own) for span, own in zip(spans, zip([0, *middles], [*middles, len(sizes)], strict=True), strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class Laid:
    """One text as sequences of pieces, and where its words are in them."""

    sequences: list[tuple[list[int], list[int]]]
    """input_ids and token_type_ids of each window."""
    words: np.ndarray
    """(w,) int64: numbers of the words that have a piece in a window, ascending."""
    window: np.ndarray
    """(w,) int64: the window that owns each."""
    place: np.ndarray
    """(w,) int64: its first piece in that window."""
    reach: int
    """Words that were seen; the rest was cut off."""


def lay_out(pieces: Sequence[list[int]], tokenizer: Tokenizer, *, room: int, stride: int, whole: bool) -> Laid:
    """Give a text in windows; whole: all of it, else the first window.

    pieces: ids of each word. room, stride: see `windows`; a word of more than `room` pieces loses its end.
    """
    spans = windows([len(ids) for ids in pieces], room=room, stride=min(stride, room - 1))
    if not whole:
        spans = [(start, stop, start, stop) for start, stop, _, _ in spans[:1]]
    sequences, found = [], []
    for number, (start, stop, own_start, own_stop) in enumerate(spans):
        place = len(tokenizer.single.before)
        for word in range(start, stop):
            if own_start <= word < own_stop and pieces[word]:
                found.append((word, number, place))
            place += len(pieces[word])
        sequences.append(tokenizer.join([piece for ids in pieces[start:stop] for piece in ids][:room]))
    words, window, place_of = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return Laid(sequences=sequences, words=words, window=window, place=place_of, reach=spans[-1][1])


class WordStarts:
    """Finds where words begin in ids, by tables over the vocabulary and without the text.

    Words are those of `words_of`: also inside a sentencepiece text without spaces every Chinese character is one.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        from tokenizers import models

        size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        self._begins = np.ones(size, dtype=np.bool_)  # wherever they stand
        self._ends = np.zeros(size, dtype=np.bool_)  # what follows begins a word
        self._spaces = np.zeros(size, dtype=np.bool_)  # a space alone, which belongs to the word behind it
        model = backend.model
        letters = _byte_letters() if isinstance(model, models.BPE) and '"ByteLevel"' in backend.to_str() else None
        for token, index in backend.get_vocab(with_added_tokens=False).items():
            if isinstance(model, models.WordPiece):
                self._begins[index] = not token.startswith(model.continuing_subword_prefix)
            elif token:
                first, text = 0, token.replace("\u2581", " ")
                if letters is not None:
                    data = bytes(letters.get(letter, ord("?")) for letter in token)
                    first, text = data[0], data.decode("utf-8", "ignore")
                kinds = [_kind(character) for character in (text[:1], text[-1:]) if character]
                # Pieces of three and more bytes of UTF-8 are mostly Chinese; those of two go on with European words.
                self._begins[index] = first >= 0xE0 or (first < 0x80 and kinds[0] != "inside")
                self._ends[index] = bool(kinds) and kinds[-1] == "alone"
                self._spaces[index] = text.isspace()

    def find(self, ids: np.ndarray, firsts: np.ndarray) -> np.ndarray:
        """Give (n,) bool: where a word begins.

        ids: (n,) of any integer type. firsts: (s,) places where a sentence begins, and therefore a word.
        """
        starts = self._begins[ids]
        starts[1:] = (starts[1:] | self._ends[ids[:-1]]) & ~self._spaces[ids[:-1]]
        starts[firsts] = True
        return starts


@functools.cache
def _byte_letters() -> dict[str, int]:
    """Give the letters by which byte-level vocabularies write bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}
