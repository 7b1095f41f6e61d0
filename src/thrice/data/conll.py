"""CoNLL-like files: a token a line with its fields, a blank line between sentences; a sentence becomes a row of lists.

Fields stand between tabs, or between spaces where the file has no tab. A line that begins with "#" and has another
number of fields than the rest ("#doc 7", "# text = ...") and a -DOCSTART- line end a sentence and are no part of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from thrice.data.columns import shown_names
from thrice.errors import DataError

TAG = re.compile(r"O|[BIESLUM]-\S+")
SEGMENTED = re.compile(r"(.+?)(\d+)", re.DOTALL)
SEGMENTED_SHARE = 0.99

Sentence = list[tuple[int, list[str]]]
"""Lines with their fields."""


def conll_objects(
    text: str, name: str, columns: Sequence[str] | None
) -> tuple[list[str] | None, int, str, Iterator[tuple[int, Any]]]:
    """Parse a file: its columns, the number of sentences, what a place is called, and (line, column -> list) of each.

    columns: a name for every field. Without them the last field whose values are all BIO tags is "tags", the first
    that neither is it nor counts the tokens is "tokens", and the others are "column_1", "column_2", ... by their place.
    Where tokens are characters with a number each that counts from 0, as in the Weibo corpus ("科0 技1"), the numbers
    go to a column "segment" of their own.
    Raises DataError where the names do not fit the fields.
    """
    lines = text.removesuffix("\n").split("\n")
    tabs = "\t" in text
    split = [_fields(line.removesuffix("\r"), tabs=tabs) for line in lines]
    sure = [fields for fields in split if fields and not fields[0].startswith(("#", "-DOCSTART-"))]
    sure = sure or [fields for fields in split if fields and fields[0] != "#"]
    width = len(sure[0]) if sure else 0
    if columns is not None and len(columns) != width:
        raise DataError(
            f"{name}: --columns names {len(columns)} columns ({shown_names(columns)}), a token has {width} fields "
            f"({shown_names(sure[0] if sure else [])})"
        )
    sentences, problems = _sentences(split, width)
    names = list(columns) if columns is not None else _guessed(sentences, width)
    tokens = names.index("tokens") if "tokens" in names else None
    parts = None if tokens is None else _segments(sentences, tokens)
    if parts is not None and "segment" not in names:
        names = [*names, "segment"]
        numbered = iter(parts)
        for sentence in sentences:
            for _, fields in sentence:
                fields[tokens], number = next(numbered)  # type: ignore[index]
                fields.append(number)

    def objects() -> Iterator[tuple[int, Any]]:
        yield from problems
        for sentence in sentences:
            lists = zip(*(fields for _, fields in sentence), strict=True)
            yield sentence[0][0], {column: list(values) for column, values in zip(names, lists, strict=True)}

    return names, len(sentences), "line", objects()


def _fields(line: str, *, tabs: bool) -> list[str]:
    """Give the fields of a line, none of a blank one."""
    if not line.strip():
        return []
    return line.split("\t") if tabs else [field for field in line.split(" ") if field]


def _sentences(split: list[list[str]], width: int) -> tuple[list[Sentence], list[tuple[int, str]]]:
    sentences: list[Sentence] = [[]]
    problems = []
    for line, fields in enumerate(split, start=1):
        comment = bool(fields) and fields[0].startswith("#") and len(fields) != width
        if not fields or comment or fields[0] == "-DOCSTART-":
            sentences.append([])
        elif len(fields) != width:
            problems.append((line, f"{len(fields)} fields, not {width}"))
        elif "" in fields:
            problems.append((line, f"field {fields.index('') + 1} is empty"))
        else:
            sentences[-1].append((line, fields))
    return [sentence for sentence in sentences if sentence], problems


def _guessed(sentences: list[Sentence], width: int) -> list[str]:
    places = range(width)
    tags = [p for p in places if all(TAG.fullmatch(fields[p]) for sentence in sentences for _, fields in sentence)]
    tag = tags[-1] if tags and width > 1 else None
    free = [p for p in places if p != tag and not (width > 1 and _counts(sentences, p))]
    names = [f"column_{p + 1}" for p in places]
    if tag is not None:
        names[tag] = "tags"
    if free:
        names[free[0]] = "tokens"
    return names


def _counts(sentences: list[Sentence], place: int) -> bool:
    """Whether a field counts the tokens of every sentence, from 0 or from 1."""
    values = [[fields[place] for _, fields in sentence] for sentence in sentences]
    return any(all(v == [str(start + i) for i in range(len(v))] for v in values) for start in (0, 1))


def _segments(sentences: list[Sentence], place: int) -> list[tuple[str, str]] | None:
    """Give (character, number) of every token where they are such; None where the file is an ordinary one.

    Every token ends in a number, and nearly all are one character and 0 or one more than the number before it: the
    Weibo corpus has 44 broken emoji of two characters, and one number left out.
    """
    parts, regular = [], 0
    for sentence in sentences:
        before = -1
        for _, fields in sentence:
            found = SEGMENTED.fullmatch(fields[place])
            if found is None:
                return None
            number = int(found[2])
            regular += len(found[1]) == 1 and number in (0, before + 1)
            before = number
            parts.append((found[1], found[2]))
    return parts if regular >= SEGMENTED_SHARE * len(parts) else None
