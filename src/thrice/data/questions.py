"""Questions about passages: which columns hold them, and the examples that rows become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thrice.data.columns import plain, shown_names
from thrice.data.readers import Cell, Table, raise_for_rows
from thrice.data.squad import Answer, answers_in, is_impossible
from thrice.errors import DataError, nearest

NAMES = {
    "context": ("context", "passage", "paragraph", "文章", "段落", "原文", "篇章"),
    "question": ("question", "query", "问题"),
    "answers": ("answers", "answer", "答案"),
    "start": ("answer_start",),
    "impossible": ("is_impossible",),
}
"""Role -> well-known names of its column, the likeliest first."""
NEEDED = ("context", "question", "answers")


@dataclass(frozen=True, kw_only=True)
class QuestionColumns:
    """Which column plays which role."""

    context: str
    """The passage."""
    question: str
    """The question about it."""
    answers: str
    """One answer, a list of answers, or SQuAD's list of objects; an empty one is a question without an answer."""
    start: str | None = None
    """First character of the answer in the passage, from 0; where absent, the answers may say it."""
    impossible: str | None = None
    """Whether the question has no answer."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question about a passage."""

    context: str
    """The passage."""
    question: str
    """As it was asked; may be empty."""
    answers: tuple[Answer, ...] = ()
    """Gold answers, the first for training; () where the passage has none."""
    known: bool = False
    """Whether the gold answers are known, be it that there is none."""

    @property
    def golds(self) -> list[str]:
        """Texts of the gold answers."""
        return [answer.text for answer in self.answers]

    def place(self) -> tuple[int, int] | None:
        """Give start and stop of the first gold answer that stands in the passage, without white space around it."""
        for answer in self.answers:
            start = answer.found_in(self.context)
            if start is not None:
                inner = answer.text.strip()
                begin = start + answer.text.index(inner)
                return begin, begin + len(inner)
        return None


def question_columns(
    table: Table, *, context: str | None = None, question: str | None = None, answers: str | None = None
) -> QuestionColumns:
    """Say which column plays which role: named ones win, then well-known names.

    Raises DataError that says all that cannot be found, and how to name it.
    """
    given = {"context": context, "question": question, "answers": answers}
    problems = [f"no column {n!r}; {nearest(n, table.columns)}" for n in given.values() if n and n not in table.columns]
    if problems:
        raise DataError(f"{table.source}: {'; '.join(problems)}")
    by_plain = {plain(name): name for name in reversed(table.columns)}
    found: dict[str, str] = {role: name for role, name in given.items() if name}
    for role, names in NAMES.items():
        likely = next((by_plain[name] for name in names if by_plain.get(name, "") not in ("", *found.values())), None)
        if likely is not None:
            found.setdefault(role, likely)
    missing = [role for role in NEEDED if role not in found]
    if missing:
        ways = ", ".join(f"-o {role}_column=NAME" for role in missing)
        raise DataError(
            f"{table.source}: which column is the {', the '.join(missing)}? columns: {shown_names(table.columns)}; "
            f"name it: {ways}"
        )
    return QuestionColumns(**found)


def read_questions(table: Table, columns: QuestionColumns, *, gold: bool) -> list[Question]:
    """Give one question per row; with gold, what is no answer raises DataError, all such rows at once.

    A row without an answer is said to be one by is_impossible, an empty list or an empty text; a null is an error.
    """
    wanted = [columns.context, columns.question, *([columns.answers] if gold else [])]
    missing = [name for name in wanted if name not in table.columns]
    if missing:
        raise DataError(f"{table.source}: no column {', '.join(missing)}; it has {shown_names(table.columns)}")
    contexts, asked = table.texts(columns.context), table.texts(columns.question)
    problems = [(n, "an empty passage") for n, text in zip(table.lines, contexts, strict=True) if not text.strip()]
    questions = []
    for line, row, context, question in zip(table.lines, table.rows, contexts, asked, strict=True):
        answers: tuple[Answer, ...] = ()
        if gold:
            try:
                answers = _answers(row, columns)
            except DataError as error:
                problems.append((line, str(error)))
        questions.append(Question(context=context, question=question, answers=answers, known=gold))
    raise_for_rows(f"{table.source}: rows that are no questions about a passage", sorted(problems))
    return questions


def questions_from(pairs: Sequence[Any]) -> list[Question]:
    """Give questions from pairs (question, passage); raises DataError for what is none."""
    wrong = [
        i
        for i, pair in enumerate(pairs)
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair)
    ]
    if wrong:
        raise DataError(
            f"expected pairs (question, passage); entries {wrong[:5]} are none, the first {pairs[wrong[0]]!r}"
        )
    return [Question(context=context, question=question) for question, context in pairs]


def told(questions: Sequence[Question]) -> str:
    """Give what a reader should know of the answers, such as how many were looked for in the passage."""
    counts: Counter[str] = Counter()
    for question in questions:
        counts["without an answer"] += not question.answers
        if not question.answers:
            continue
        first = question.answers[0]
        place = first.found_in(question.context)
        if question.place() is None:
            counts["whose answer is not in the passage: they are scored, not learned from"] += 1
        elif place is None:
            counts["whose first answer is not in the passage: a later one is taken"] += 1
        elif first.start is None:
            counts["whose answer has no start: its first occurrence is taken"] += 1
        elif place != first.start:
            counts["whose answer is not where it is said to start: the nearest occurrence is taken"] += 1
    return ", ".join([f"{len(questions)} questions", *(f"{n} {what}" for what, n in counts.items() if n)])


def _answers(row: dict[str, Cell], columns: QuestionColumns) -> tuple[Answer, ...]:
    """Give the answers of a row; raises DataError, without a place, where they are none."""
    cell = row.get(columns.answers)
    impossible = columns.impossible is not None and is_impossible(row.get(columns.impossible))
    if cell is None and not impossible:
        raise DataError("no answer; expected one, or an empty text where the passage has none")
    answers = answers_in(cell)
    if columns.start is not None and (starts := row.get(columns.start)) is not None:
        answers = _with_starts(answers, [starts] if isinstance(starts, str) else starts)
    answers = tuple(answer for answer in answers if answer.text.strip())
    if answers and impossible:
        raise DataError(f"is_impossible is true, and there is an answer, {answers[0].text[:40]!r}")
    return answers


def _with_starts(answers: Sequence[Answer], starts: Sequence[str]) -> tuple[Answer, ...]:
    wrong = [start for start in starts if start.strip() and not start.strip().removeprefix("-").isdecimal()]
    if wrong or len(starts) != len(answers):
        raise DataError(f"{len(answers)} answers and the starts {', '.join(starts) or 'none'}; expected whole numbers")
    return tuple(
        Answer(answer.text, int(start) if start.strip() else None)
        for answer, start in zip(answers, starts, strict=True)
    )
