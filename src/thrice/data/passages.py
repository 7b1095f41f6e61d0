"""Questions about one or several passages, the windows in which these are read, and what is learned of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thrice.data.questions import Question, QuestionColumns, read_questions
from thrice.data.readers import Table
from thrice.data.squad import Answer
from thrice.data.windows import Pieces, windows_of
from thrice.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Example:
    """One question about one or several passages."""

    passages: tuple[str, ...]
    """At least one; the answer may stand in any of them."""
    question: str
    """As it was asked."""
    answers: tuple[Answer, ...] = ()
    """Gold answers, the first found for training; () where the passages have none."""
    known: bool = False
    """Whether the gold answers are known, be it that there is none."""

    @property
    def golds(self) -> list[str]:
        """Texts of the gold answers."""
        return [answer.text for answer in self.answers]


@dataclass(frozen=True)
class Window:
    """One stretch of one passage of a question."""

    passage: int
    """Number of the passage among those of its question."""
    pieces: Pieces
    """Tokens of the whole passage."""
    first: int
    """Its first token."""
    stop: int
    """The token behind its last."""

    def __len__(self) -> int:
        return self.stop - self.first

    @property
    def ids(self) -> np.ndarray:
        """Ids of its tokens."""
        return self.pieces.ids[self.first : self.stop]


def passages_in(cell: str | Sequence[str]) -> tuple[str, ...]:
    """Give the passages of a table's cell: one, or those of a list."""
    return (cell,) if isinstance(cell, str) else tuple(cell)


def read_joined(table: Table, columns: QuestionColumns, *, gold: bool) -> list[Question]:
    """Give one question per row with its passages as one text, so that answers are looked for in all of it.

    Raises DataError as `read_questions` does.
    """
    name = columns.context
    rows = [{**row, name: "\n".join(cell)} if isinstance(cell := row.get(name), list) else row for row in table.rows]
    return read_questions(dataclasses.replace(table, rows=rows), columns, gold=gold)


def read_examples(table: Table, columns: QuestionColumns, *, gold: bool) -> list[Example]:
    """Give one example per row; a passage may be a list of passages. Raises DataError as `read_questions` does."""
    examples = []
    for row, question in zip(table.rows, read_joined(table, columns, gold=gold), strict=True):
        passages = passages_in(row[columns.context])
        several = len(passages) > 1  # a start counts the characters of one passage
        answers = tuple(Answer(answer.text) if several else answer for answer in question.answers)
        examples.append(Example(passages=passages, question=question.question, answers=answers, known=question.known))
    return examples


def examples_from(pairs: Sequence[Any]) -> list[Example]:
    """Give examples from pairs (question, passage) or (question, [passage, ...]); raises DataError for what is none."""
    examples, wrong = [], []
    for i, pair in enumerate(pairs):
        question, cell = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, ())
        passages = passages_in(cell) if isinstance(cell, str | list | tuple) else ()
        if isinstance(question, str) and passages and all(isinstance(text, str) for text in passages):
            examples.append(Example(passages=passages, question=question))
        else:
            wrong.append(i)
    if wrong:
        raise DataError(
            f"expected pairs (question, passage) or (question, [passage, ...]); entries {wrong[:5]} are none, the "
            f"first {pairs[wrong[0]]!r}"
        )
    return examples


def windows_in(passages: Sequence[Pieces], *, room: int, stride: int, most: int | None) -> tuple[Window, ...]:
    """Give the windows of a question's passages, room tokens each; most: windows of one passage, None for all."""
    return tuple(
        Window(number, pieces, first, stop)
        for number, pieces in enumerate(passages)
        for first, stop in windows_of(len(pieces), room=room, stride=stride)[:most]
    )


def target_in(example: Example, window: Window) -> np.ndarray | None:
    """Give the tokens of the first gold answer that stands in a window, as its passage has them; else None."""
    passage = example.passages[window.passage]
    for answer in example.answers:
        start = answer.found_in(passage)
        found = None if start is None else window.pieces.tokens_of(start, start + len(answer.text))
        if found is not None and window.first <= found[0] and found[1] < window.stop:
            return window.pieces.ids[found[0] : found[1] + 1]
    return None


def chosen(
    example: Example, targets: Sequence[np.ndarray | None], *, negatives: int, turn: int
) -> list[tuple[int, np.ndarray]]:
    """Give (window, target) of the windows to learn from: the first that has the answer, and some that have none.

    targets: of every window, None where the answer is not in it; its target is empty then. negatives: of those, beside
    the one with the answer; at least one where there is no answer at all. turn: which of them comes first, so that the
    neighbours of a file do not all take the first. Nothing is learned where there is an answer and no window has it.
    """
    having = [(i, target) for i, target in enumerate(targets) if target is not None]
    if not example.known or (example.answers and not having):
        return []
    without = [i for i, target in enumerate(targets) if target is None]
    wanted = min(negatives if having else max(1, negatives), len(without))
    turned = [without[(turn + k) % len(without)] for k in range(wanted)]
    return sorted([*having[:1], *((i, np.zeros(0, dtype=np.int32)) for i in turned)], key=lambda pair: pair[0])
