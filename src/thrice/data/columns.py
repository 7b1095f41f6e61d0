"""Which column of a table is the text, its pair and the label."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thrice.errors import DataError, nearest

if TYPE_CHECKING:
    from thrice.data.readers import Table

TEXT_NAMES = frozenset(
    ("text", "texts", "sentence", "review", "content", "comment", "document", "body", "文本", "内容", "评论", "句子")
)
PAIR_NAMES = (
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "answer"),
    ("query", "passage"),
)
LABEL_NAMES = frozenset(("label", "labels", "class", "category", "target", "sentiment", "标签", "类别", "分类", "情感"))
KNOWN_NAMES = TEXT_NAMES | LABEL_NAMES | {name for pair in PAIR_NAMES for name in pair}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which column plays which role."""

    text: str
    """The text, or the first text of a pair."""
    text_pair: str | None = None
    """The second text of a pair."""
    label: str | None = None
    """The label or the list of labels."""


def guess_columns(
    table: Table,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    need_label: bool = True,
) -> Columns:
    """Say which column is the text, its pair and the label, and check that every row has them.

    Named columns win. Otherwise well-known names ("text", "sentence1" + "sentence2", "label", ...); otherwise, of two
    columns, the one with few distinct short values is the label. Where two answers fit equally nothing is guessed.
    need_label: whether a table without labels is an error.
    Raises DataError for an unknown, ambiguous or incomplete column.
    """
    for name in (text, text_pair, label):
        if name is not None and name not in table.columns:
            raise DataError(f"{table.source} has no column {name!r}; {nearest(name, table.columns)}")
    named = [name for name in (text, text_pair, label) if name is not None]
    if len(set(named)) < len(named):
        raise DataError(f"{table.source}: one column cannot play two roles: {', '.join(map(repr, named))}")

    label_was_named = label is not None
    free = [name for name in table.columns if name not in named]
    if label is None:
        label = _only([name for name in free if plain(name) in LABEL_NAMES], table, role="label")
        free = [name for name in free if name != label]
    if text is None:
        text, text_pair = _guess_text(free, table, text_pair, label)
        free = [name for name in free if name not in (text, text_pair)]
    if label is None and need_label and len(free) == 1 and _looks_like_labels(table, free[0]):
        label = free[0]
        _refuse_headless(table, label)
    if label is None and need_label:
        raise DataError(
            f"{table.source}: which column is the label? columns: {shown_names(table.columns)}; name it: --label-column"
        )
    table.texts(text)
    if text_pair is not None:
        table.texts(text_pair)
    if label is not None and not (need_label or label_was_named) and any(label not in row for row in table.rows):
        label = None
    if label is not None:
        table.labels(label)
    return Columns(text=text, text_pair=text_pair, label=label)


# Roles of columns


def _guess_text(free: list[str], table: Table, text_pair: str | None, label: str | None) -> tuple[str, str | None]:
    """Give the text column and its pair out of the columns that are still free."""
    by_plain = {plain(name): name for name in free}
    second = by_plain if text_pair is None else {plain(text_pair): text_pair}
    found: list[tuple[str, str | None]] = [
        (by_plain[a], second[b]) for a, b in PAIR_NAMES if a in by_plain and b in second
    ]
    in_pairs = {name for pair in found for name in pair}
    found += [(name, text_pair) for name in free if plain(name) in TEXT_NAMES and name not in in_pairs]
    if len(found) == 1:
        return found[0]
    if not found and len(free) == 1 and (label is not None or len(table.columns) == 1):
        return free[0], text_pair
    if not found and len(free) == 2 and label is None:
        likely = [_looks_like_labels(table, name) for name in free]
        if likely.count(True) == 1:
            return free[likely.index(False)], text_pair
    fitting = f"these fit equally: {', '.join(' + '.join(filter(None, names)) for names in found)}; " if found else ""
    hint = "" if found else " (a file without a header row: give the names with --columns)"
    fitting += f"{text_pair!r} is its pair; " if text_pair is not None else ""
    raise DataError(
        f"{table.source}: which column is the text? {fitting}columns: {shown_names(table.columns)}; "
        f"name it: --text-column{hint}"
    )


def _refuse_headless(table: Table, label: str) -> None:
    """Raise DataError where the name of a column that looks like labels is one of them: there is no header row."""
    same = sum(row.get(label) == label for row in table.rows)
    if same:
        raise DataError(
            f"{table.source}: the first row is taken for a header and looks like data: {label!r} is the label of "
            f"{same} other rows; give the names with --columns, such as text,label, or say that it is right: "
            f"--label-column {label}"
        )


def _only(names: list[str], table: Table, *, role: str) -> str | None:
    """Give the one name, or None for none; raises DataError where several fit."""
    if len(names) > 1:
        raise DataError(
            f"{table.source}: which column is the {role}? these fit equally: {', '.join(names)}; "
            f"name it: --{role}-column"
        )
    return names[0] if names else None


def _looks_like_labels(table: Table, column: str) -> bool:
    """Whether a column has few distinct, short values."""
    values = [row.get(column) for row in table.rows]
    if any(isinstance(value, list) for value in values):
        return True
    words = {value for value in values if isinstance(value, str)}
    few = len(words) <= 2 or 3 * len(words) <= len(values)
    return few and all(len(word) <= 40 for word in words)


def plain(name: str) -> str:
    """Give a column's name in the spelling of the lists above: lower case, white space and hyphens as underscores."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def shown_names(names: Sequence[str], limit: int = 12) -> str:
    """Give names for an error message; a data row taken for a header makes long and many ones."""
    short = [name if len(name) <= 40 else name[:40] + "..." for name in names[:limit]]
    return ", ".join(map(repr, short)) + (f" and {len(names) - limit} more" if len(names) > limit else "")
