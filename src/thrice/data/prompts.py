"""Patterns that turn a text into a cloze, tokenised around the gap (Schick and Schuetze 2021, section 3.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from thrice.data.tokenizer import Tokenizer, longest_first
from thrice.errors import ConfigError, nearest

TEXT, PAIR, MASK = "{text}", "{text_pair}", "{mask}"
SLOTS = (TEXT, PAIR, MASK)


class Cloze(NamedTuple):
    """A pattern filled with its texts, special tokens included; something is put between the halves."""

    before: list[int]
    """Ids before the gap."""
    after: list[int]
    """Ids after the gap."""
    cut: bool
    """Whether the texts lost tokens."""


def pattern_problems(pattern: str, *, pair: bool) -> Iterator[str]:
    """Say everything that keeps a text from being a pattern. pair: whether there is a second text."""
    for name in re.findall(r"\{\w*\}", pattern):
        if name not in SLOTS:
            yield f"pattern {pattern!r}: {name} is no slot; {nearest(name, SLOTS)}"
    if pattern.count(MASK) != 1:
        yield f"pattern {pattern!r} has {MASK} {pattern.count(MASK)} times, expected once: the word to be found"
    if not (TEXT in pattern or PAIR in pattern):
        yield f"pattern {pattern!r} has no {TEXT}, expected the text that is to be classified"
    if max(pattern.count(TEXT), pattern.count(PAIR)) > 1:
        yield f"pattern {pattern!r} has a text twice, expected {TEXT} and {PAIR} once at most"
    if PAIR in pattern and not pair:
        yield f"pattern {pattern!r} has {PAIR}, and there is one text; name the second one's column"


def words_in_place(tokenizer: Tokenizer, pattern: str, words: Sequence[str]) -> list[list[int]]:
    """Give the ids of each word as they stand in the gap of a pattern: with a space before it or without one.

    A word that runs into the pattern's own letters is tokenised alone.
    Raises ConfigError that lists every word the vocabulary lacks.
    """
    found, unknown = [], []
    left, _, right = pattern.replace(TEXT, "").replace(PAIR, "").partition(MASK)
    tokenizer.content_ids([])  # leaves the backend without padding and truncation
    for word in words:
        start, stop = len(left), len(left) + len(word)
        encoding = tokenizer.backend.encode(left + word + right, add_special_tokens=False)
        own = [i for i, (a, b) in enumerate(encoding.offsets) if b > start and a < stop]
        spans = [encoding.offsets[i] for i in own]
        # A token may take the space before the word along.
        exact = bool(own) and spans[-1][1] == stop and left[min(spans[0][0], start) :].strip() == ""
        exact = exact and not encoding.tokens[own[0]].startswith("##")  # WordPiece went on with the pattern's word
        ids = [encoding.ids[i] for i in own] if exact else tokenizer.content_ids([word])[0]
        found.append(ids)
        if not ids or tokenizer.unk_token_id in ids:
            unknown.append(word)
    if unknown:
        raise ConfigError(
            f"{len(unknown)} words of the verbalizer are not in the vocabulary: {', '.join(map(repr, unknown[:8]))}; "
            "expected words that this tokenizer knows"
        )
    return found


def clozes(
    tokenizer: Tokenizer,
    pattern: str,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    *,
    max_length: int,
    gap: int,
) -> list[Cloze]:
    """Give the pattern filled with each text or pair, as one segment, tokenised as a whole around a mask token.

    max_length: tokens with `gap` tokens in the gap and the special ones; texts lose their end, of a pair the longer one
    first, the pattern's own words never. Strings such as "[SEP]" become that token, in the pattern and in texts.
    Raises ConfigError where the pattern alone leaves no room for text, or the tokenizer has no mask token.
    """
    if tokenizer.mask_token_id is None:
        raise ConfigError("this tokenizer has no mask token, which marks the gap of a pattern; expected one that has")
    mask = str(tokenizer.hf.mask_token)
    pieces = [piece for piece in re.split(f"({'|'.join(map(re.escape, SLOTS))})", pattern) if piece]
    wholes, spans = [], []
    for text, pair in zip(texts, pairs if pairs is not None else [""] * len(texts), strict=True):
        whole, places = "", dict[str, tuple[int, int]]()
        for piece in pieces:
            filled = {TEXT: text, PAIR: pair, MASK: mask}.get(piece, piece)
            if piece in SLOTS:
                places[piece] = (len(whole), len(whole) + len(filled))
            whole += filled
        wholes.append(whole)
        spans.append(places)
    tokenizer.content_ids([])
    frame = tokenizer.single
    found = []
    encodings = tokenizer.backend.encode_batch(wholes, add_special_tokens=False)
    for whole, encoding, places in zip(wholes, encodings, spans, strict=True):
        # Where a token's last character stands: its first may be a space before it.
        ends = [max(start, stop - 1) for start, stop in encoding.offsets]
        end_of_mask = places[MASK][1] - 1
        at = next(
            (
                i
                for i, (token, end) in enumerate(zip(encoding.ids, ends, strict=True))
                if end == end_of_mask and token == tokenizer.mask_token_id
            ),
            None,
        )
        if at is None:
            raise ConfigError(f"pattern {pattern!r}: this tokenizer does not keep {mask} as one token in it")
        first, second = (
            [i for i, end in enumerate(ends) if i != at and start <= end < stop]
            for start, stop in (places.get(TEXT, (0, 0)), places.get(PAIR, (0, 0)))
        )
        fixed = len(frame) + gap + len(ends) - 1 - len(first) - len(second)
        if fixed >= max_length:
            raise ConfigError(
                f"pattern {pattern!r} takes {fixed} tokens without the text; --max-length {max_length} leaves no room"
            )
        keep_first, keep_second = longest_first(len(first), len(second), max_length - fixed)
        dropped = {*first[keep_first:], *second[keep_second:]}
        cut = bool(dropped)
        # Where a space before the gap is a token, the word in it has that space inside, as stock mask tokens have.
        for i in range(at - 1, -1, -1):
            if i in first or i in second or whole[slice(*encoding.offsets[i])].strip():
                break
            dropped.add(i)
        before, after = (
            [encoding.ids[i] for i in part if i not in dropped] for part in (range(at), range(at + 1, len(ends)))
        )
        found.append(Cloze([*frame.before, *before], [*after, *frame.after], cut))
    return found


def words_of(verbalizer: Mapping[str, str | Sequence[str]] | str, problems: list[str]) -> dict[str, tuple[str, ...]]:
    """Give class -> words of a verbalizer, or of "class=word|word,class=word"; adds what is wrong to the problems."""
    if isinstance(verbalizer, str):
        parts = [part.partition("=") for part in verbalizer.split(",")]
        verbalizer = {name.strip(): words.split("|") for name, _, words in parts}
    found = {}
    for name, words in verbalizer.items():
        own = (words,) if isinstance(words, str) else tuple(words)
        if not own or not all(isinstance(word, str) and word.strip() for word in own):
            problems.append(f"verbalizer: {name!r} has {words!r}; expected a word, or words as class=word|word")
            continue
        found[str(name)] = tuple(word.strip() for word in own)
    return found


def tell_apart(words: Sequence[tuple[str, str]], ids: Sequence[Sequence[int]]) -> None:
    """Raise ConfigError where two words, (class, word) each, have the same ids and no score could tell them apart."""
    same = [
        f"{words[i][0]} ({words[i][1]}) and {words[j][0]} ({words[j][1]})"
        for i in range(len(words))
        for j in range(i)
        if ids[i] == ids[j]
    ]
    if same:
        raise ConfigError(f"words with the same tokens cannot be told apart: {'; '.join(same[:5])}")
