"""Texts with entities out of the rows of a table: tokens with a tag each, or texts with the characters of entities."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from thrice.data.columns import guess_columns, plain, shown_names
from thrice.data.entities import Span, bio, entities_in, spans_of, tags_of, words_in
from thrice.data.readers import Table, raise_for_rows
from thrice.data.tokenizer import Tokenizer
from thrice.data.words import joined, pieces_of_tokens, pieces_of_words, words_of
from thrice.errors import DataError, nearest

TOKEN_NAMES = ("tokens", "words", "token")
TAG_NAMES = ("tags", "ner_tags", "bio_tags", "labels", "label", "ner")
ENTITY_NAMES = ("entities", "spans", "labels", "label", "ner")
SINGLE_CHARACTERS = 0.99
"""Share of tokens of one character from which on tokens are characters, and no space stands between them."""

Stray = list[tuple[int, str]]
"""(line of the row, tag) of I- tags that begin an entity."""


@dataclass(frozen=True, kw_only=True)
class TaggedText:
    """One text with its words and its entities."""

    text: str
    """The text; of tokens, what they are when joined."""
    tokens: tuple[str, ...] | None = None
    """The tokens that were given; None for a text."""
    words: tuple[tuple[int, int], ...] = ()
    """Characters of every token or word."""
    entities: tuple[Span, ...] = ()
    """Gold entities in characters, sorted; none overlaps another."""


def of_text(text: str, entities: Iterable[Span] = ()) -> TaggedText:
    """Give a text with its words and these entities, in characters."""
    return TaggedText(text=text, words=tuple(words_of(text)), entities=tuple(entities))


def of_tokens(tokens: Sequence[str], *, between: str, spans: Iterable[Span] = ()) -> TaggedText:
    """Give the text of tokens, with entities that are stated in tokens; raises DataError for an empty token."""
    if "" in tokens:
        raise DataError(f"token {list(tokens).index('') + 1} is empty")
    text, words = joined(tokens, between)
    entities = tuple((words[first][0], words[end - 1][1], kind) for first, end, kind in spans)
    return TaggedText(text=text, tokens=tuple(tokens), words=tuple(words), entities=entities)


def read_texts(table: Table, *, text: str, label: str | None) -> list[TaggedText]:
    """Give every row of a table of texts; label: column of the entities, None to read none.

    Raises DataError that names all rows whose entities are none of the text.
    """
    texts, problems = [], []
    for line, row, words in zip(table.lines, table.rows, table.texts(text), strict=True):
        try:
            texts.append(of_text(words, entities_in(row.get(label), words) if label is not None else ()))
        except DataError as error:
            problems.append((line, str(error)))
    raise_for_rows(f"{table.source}: column {label!r} holds no entities of its text", problems)
    return texts


def read_tokens(
    table: Table, *, tokens: str, label: str | None, between: str, tag_names: Sequence[str] | None = None
) -> tuple[list[TaggedText], Stray]:
    """Give every row of a table of tokens, and the I- tags that begin an entity; label: column of the tags, or None.

    Raises DataError that names all rows whose tokens or tags are none.
    """
    texts, stray, problems = [], [], []
    for line, row in zip(table.lines, table.rows, strict=True):
        try:
            words = words_in(row.get(tokens))
            spans: list[Span] = []
            if label is not None:
                tags = tags_in(words_in(row.get(label)), len(words), names=tag_names)
                spans, begins = spans_of(tags)
                stray += [(line, tags[place]) for place in begins]
            texts.append(of_tokens(words, between=between, spans=spans))
        except DataError as error:
            problems.append((line, str(error)))
    raise_for_rows(f"{table.source}: rows that are no {'tagged ' if label else ''}tokens", problems)
    return texts, stray


def tags_in(tags: Sequence[str], size: int, *, names: Sequence[str] | None = None) -> list[str]:
    """Give tags as O, B-TYPE and I-TYPE; raises DataError for others and where there are not `size` of them.

    names: what the tags are called, where they are numbers.
    """
    if len(tags) != size:
        raise DataError(f"{size} tokens and {len(tags)} tags")
    if names is not None:
        wrong = [tag for tag in tags if not tag.isdecimal() or int(tag) >= len(names)]
        if wrong:
            raise DataError(f"the tag {wrong[0][:40]!r}; tag_names names the tags 0 to {len(names) - 1}")
        tags = [names[int(tag)] for tag in tags]
    elif tags and all(tag.isdecimal() for tag in tags):
        raise DataError(f"the tag {tags[0][:40]!r}; say what numbers mean: -o tag_names=O,B-PER,I-PER,...")
    return ["-".join(filter(None, bio(tag))) for tag in tags]


def said_of_stray(stray: Stray) -> str:
    """Give the sentence about I- tags that begin an entity."""
    shown = ", ".join(f"{tag} in the row of line {line}" for line, tag in stray[:3]) + (", ..." if stray[3:] else "")
    return f"{len(stray)} I- tags follow no entity of their type and are read as its beginning ({shown})"


def pieces_of(examples: Sequence[TaggedText], tokenizer: Tokenizer, *, between: str) -> list[list[list[int]]]:
    """Give the ids of every word of every example: tokens are encoded one by one, texts whole."""
    pieces: list[list[list[int]]] = [[] for _ in examples]
    given = [i for i, example in enumerate(examples) if example.tokens is not None]
    whole = [i for i, example in enumerate(examples) if example.tokens is None]
    found = pieces_of_tokens(tokenizer, [examples[i].tokens or () for i in given], between)
    found += pieces_of_words(tokenizer, [examples[i].text for i in whole], [examples[i].words for i in whole])
    for i, own in zip((*given, *whole), found, strict=True):
        pieces[i] = own
    return pieces


# Columns


def tagged_columns(
    table: Table, tokens: str | None, text: str | None, label: str | None
) -> tuple[str | None, str | None, str]:
    """Give the columns of the tokens or of the text, and of the label; raises DataError where they are not obvious."""
    for name in (tokens, text, label):
        if name is not None and name not in table.columns:
            raise DataError(f"{table.source} has no column {name!r}; {nearest(name, table.columns)}")
    if tokens is None and text is None:
        tokens = next((c for known in TOKEN_NAMES for c in table.columns if plain(c) == known), None)
    if label is None:
        names = ENTITY_NAMES if tokens is None else TAG_NAMES
        fitting = [c for known in names for c in table.columns if plain(c) == known and c not in (tokens, text)]
        if len(fitting) != 1:
            what = "the entities" if tokens is None else "the tags"
            which = f"these fit equally: {', '.join(fitting)}" if fitting else f"columns: {shown_names(table.columns)}"
            hint = "" if fitting or tokens else "; that of tokens is named by -o tokens_column=NAME"
            raise DataError(f"{table.source}: which column holds {what}? {which}; name it: --label-column{hint}")
        label = fitting[0]
    if tokens is None and text is None:
        text = guess_columns(table, label=label).text
    return tokens, text, label


def between_of(table: Table, tokens: str | None) -> str:
    """Give what stands between the tokens of a text: nothing where nearly all are single characters, else a space."""
    if tokens is None:
        return " "
    sizes = [len(token) for row in table.rows if tokens in row for token in words_in(row[tokens])]
    return "" if sizes and sizes.count(1) >= SINGLE_CHARACTERS * len(sizes) else " "


# Entities and the tags of words


def word_tags(example: TaggedText) -> list[str]:
    """Give the gold tag of every word; one that an entity only reaches into is part of it."""
    tags = ["O"] * len(example.words)
    starts, ends = ([word[side] for word in example.words] for side in (0, 1))
    free = 0
    for start, end, kind in example.entities:
        first, last = max(free, bisect.bisect_right(ends, start)), bisect.bisect_left(starts, end)
        if first < last:
            tags[first:last] = tags_of([(0, last - first, kind)], last - first)
            free = last
    return tags


def spread(said: Mapping[int, str], size: int, reach: int) -> list[str]:
    """Give a tag of every word: its own, or for a word in which no piece begins that of the word before it.

    said: word -> tag. size: words. reach: words that the model has seen; the others have no tag.
    """
    tags: list[str] = []
    for word in range(reach):
        before = tags[-1] if tags else "O"
        tags.append(said.get(word, before if before == "O" else f"I-{before[2:]}"))
    return tags + ["O"] * (size - reach)


def entities_of(example: TaggedText, tags: Sequence[str]) -> list[Span]:
    """Give the entities in characters that the tags of an example's words say."""
    return [(example.words[first][0], example.words[end - 1][1], kind) for first, end, kind in spans_of(tags)[0]]
