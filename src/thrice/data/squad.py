"""Questions about passages out of SQuAD-shaped files: one row a question, its answers with their places.

    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [{"id": ..., "question": ...,
        "answers": [{"text": ..., "answer_start": ...}], "is_impossible": ...}]}]}]}

Source: Rajpurkar et al. 2016 and 2018 (v1.1, v2.0); CMRC 2018, DRCD, XQuAD and others follow it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from thrice.errors import DataError

COLUMNS = ("id", "title", "context", "question", "answers", "is_impossible")
"""Columns of a flattened file; other keys (plausible_answers, evidences) are left out."""
HEAD = 65_536
"""Bytes in which a SQuAD-shaped file shows itself: the keys that its lists hang on stand before any passage."""


@dataclass(frozen=True)
class Answer:
    """One gold answer."""

    text: str
    """As the file has it; may be empty."""
    start: int | None = None
    """Its first character in the passage, from 0; None where the file does not say."""

    def found_in(self, passage: str) -> int | None:
        """Give where the passage has this answer: at `start`, else the occurrence nearest to it, else None.

        Without a start the first occurrence counts. An empty answer is nowhere.
        """
        if not self.text:
            return None
        if self.start is not None and self.start >= 0 and passage.startswith(self.text, self.start):
            return self.start
        wanted, best = self.start or 0, None
        place = passage.find(self.text)
        while place >= 0:
            if best is None or abs(place - wanted) < abs(best - wanted):
                best = place
            place = passage.find(self.text, place + 1)
        return best


def begins_like_squad(head: str) -> bool:
    """Say whether a text of JSON, or its first `HEAD` bytes, could be one SQuAD-shaped object."""
    start = head[:HEAD]
    return start.lstrip(" \t\r\n\ufeff").startswith("{") and '"data"' in start and '"paragraphs"' in start


def is_squad(value: Any) -> bool:
    """Say whether a decoded JSON value is SQuAD-shaped: an object whose data are objects with paragraphs."""
    articles = value.get("data") if isinstance(value, dict) else None
    return isinstance(articles, list) and any(isinstance(a, dict) and "paragraphs" in a for a in articles)


def squad_rows(value: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Give (number of the question from 1, row or a complaint) for every question of a SQuAD-shaped object.

    A row has all `COLUMNS`; what the file leaves out is None, and `is_impossible` False.
    """
    number = 0
    for a, article in enumerate(value["data"], start=1):
        paragraphs = _list(article, "paragraphs")
        if paragraphs is None:
            yield number + 1, f"article {a} has no list of paragraphs"
            continue
        for p, paragraph in enumerate(paragraphs, start=1):
            place = f"article {a}, paragraph {p}"
            questions = _list(paragraph, "qas")
            if questions is None or not isinstance(paragraph.get("context"), str):
                yield number + 1, f"{place} has no {'list of qas' if questions is None else 'context'}"
                continue
            for question in questions:
                number += 1
                if not isinstance(question, dict) or not isinstance(question.get("question"), str):
                    yield number, f"{place}: a question without text"
                    continue
                row = {
                    "id": question.get("id"),
                    "title": article.get("title"),
                    "context": paragraph["context"],
                    "question": question["question"],
                    "answers": question.get("answers"),
                    "is_impossible": question.get("is_impossible", False),
                }
                yield number, row


def num_questions(value: dict[str, Any]) -> int:
    """Give the number of questions of a SQuAD-shaped object, counted apart from `squad_rows`."""
    paragraphs = [p for article in value["data"] for p in _list(article, "paragraphs") or ()]
    return sum(len(_list(paragraph, "qas") or ()) for paragraph in paragraphs)


def _list(value: Any, key: str) -> list[Any] | None:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, list) else None


def answers_in(cell: str | list[str] | None) -> tuple[Answer, ...]:
    """Give the answers of a table's cell, in its order; none for a missing cell.

    A cell is one answer, a list of answers, or the JSON text of SQuAD's answers, [{"text", "answer_start"}, ...], which
    hub data sets turn inside out: {"text": [...], "answer_start": [...]}.
    Raises DataError, without a place, for JSON of that kind whose texts or starts are none.
    """
    if cell is None:
        return ()
    if isinstance(cell, list):
        return tuple(Answer(text) for text in cell)
    if not cell.startswith(("[", "{")):
        return (Answer(cell),)
    try:
        value = json.loads(cell)
    except ValueError:
        return (Answer(cell),)
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        texts = value["text"]
        starts = value.get("answer_start")
        starts = starts if isinstance(starts, list) and len(starts) == len(texts) else [None] * len(texts)
        return tuple(_answer(text, start) for text, start in zip(texts, starts, strict=True))
    entries = [value] if isinstance(value, dict) else value
    if not all(isinstance(entry, dict) and "text" in entry for entry in entries):
        return (Answer(cell),)
    return tuple(_answer(entry["text"], entry.get("answer_start")) for entry in entries)


def _answer(text: Any, start: Any) -> Answer:
    whole = type(start) is int or (isinstance(start, str) and start.isdecimal())
    if not isinstance(text, str) or not (start is None or whole):
        raise DataError(f"an answer is text and perhaps a whole answer_start, not {text!r} at {start!r}")
    return Answer(text, None if start is None else int(start))


def is_impossible(cell: str | list[str] | None) -> bool:
    """Say whether a table's cell marks a question as one without an answer; raises DataError for no truth value."""
    word = "false" if cell is None else cell
    if not isinstance(word, str) or word.strip().lower() not in ("true", "false", "1", "0", ""):
        raise DataError(f"is_impossible is true or false, not {cell!r}")
    return word.strip().lower() in ("true", "1")
