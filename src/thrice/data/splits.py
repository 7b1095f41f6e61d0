"""One file into training, development and test rows, the same way on every machine."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from thrice.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class Split:
    """Row numbers of the three parts, each ascending; every row is in exactly one."""

    train: list[int]
    """Rows to learn from."""
    dev: list[int]
    """Rows that choose the best epoch."""
    test: list[int]
    """Rows that are scored once."""


def split(
    texts: Sequence[str],
    labels: Sequence[str | list[str]],
    *,
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
    seed: int = 0,
) -> Split:
    """Split rows into train, dev and test: stratified, by hash, duplicates on one side.

    The rule. Rows whose texts are equal up to white space form a group; the group counts for its most common label (of
    equally common ones the first in sorted order). Within a label the groups stand in the order of
    sha256("SEED\\nTEXT"), and this line of rows is cut at the fractions: a group goes where its middle lies, the first
    one to train, so that train has every label. What rounding leaves over is carried to the next label, so that rare
    labels together get their share. A row with several labels counts for the rarest of them. The parts do not depend on
    the order of the rows.

    fractions: shares of the rows, train > 0, together 1.
    Raises DataError where a part with a share would stay empty; ConfigError for impossible fractions.
    """
    if len(texts) != len(labels):
        raise ConfigError(f"{len(texts)} texts and {len(labels)} labels; one label for each text is needed")
    if len(fractions) != 3 or min(fractions) < 0 or fractions[0] == 0 or abs(sum(fractions) - 1) > 1e-9:
        raise ConfigError(f"fractions {fractions} must be three shares that sum to 1, the first above 0")
    groups: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(_normal(text), []).append(row)
    strata: dict[str, list[tuple[str, list[int]]]] = {}
    row_labels = _one_label_a_row(labels)
    for text, rows in groups.items():
        votes = Counter(row_labels[row] for row in rows)
        label = min(votes, key=lambda name: (-votes[name], name))
        strata.setdefault(label, []).append((hashlib.sha256(f"{seed}\n{text}".encode()).hexdigest(), rows))

    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    owed = [0.0, 0.0, 0.0]
    for _, stratum in sorted(strata.items()):
        size = sum(len(rows) for _, rows in stratum)
        wanted = [fraction * size + debt for fraction, debt in zip(fractions, owed, strict=True)]
        given = [0, 0, 0]
        done = 0
        for _, rows in sorted(stratum):
            middle = done + len(rows) / 2
            part = 0 if done == 0 or middle < wanted[0] else 1 if middle < wanted[0] + wanted[1] else 2
            parts[part].extend(rows)
            given[part] += len(rows)
            done += len(rows)
        owed = [want - got for want, got in zip(wanted, given, strict=True)]

    names = ("train", "dev", "test")
    empty = [name for name, rows, share in zip(names, parts, fractions, strict=True) if share > 0 and not rows]
    if empty:
        alone = sum(len(stratum) == 1 for stratum in strata.values())
        hint = f" ({alone} of {len(strata)} labels have one text each: is it the column of the label?)"
        raise DataError(
            f"{len(texts)} rows with {len(groups)} distinct texts are too few to split into {fractions}: "
            f"{' and '.join(empty)} would be empty; give separate files{hint if alone > 2 else ''}"
        )
    train, dev, test = (sorted(rows) for rows in parts)
    return Split(train=train, dev=dev, test=test)


def choose_shots(
    texts: Sequence[str], labels: Sequence[str | list[str]], *, shots: int, seed: int, fewer: bool = False
) -> list[int]:
    """Give the row numbers of `shots` distinct texts per label, ascending.

    The texts of a label whose sha256("SEED\\nTEXT") are the smallest, of equal texts the first row. So the choice does
    not depend on the order of the rows, and that of 8 shots lies within that of 16. A row with several labels counts
    for the rarest of them.
    fewer: whether a label with fewer texts gives those it has; else DataError lists all such labels.
    """
    ranked: dict[str, dict[str, int]] = {}
    for row, (text, label) in enumerate(zip(texts, _one_label_a_row(labels), strict=True)):
        digest = hashlib.sha256(f"{seed}\n{_normal(text)}".encode()).hexdigest()
        ranked.setdefault(label, {}).setdefault(digest, row)
    few = [f"{name!r} has {len(own)}" for name, own in sorted(ranked.items()) if len(own) < shots]
    if few and not fewer:
        more = f" and {len(few) - 8} more" if len(few) > 8 else ""
        raise DataError(f"{shots} different training texts of every class are wanted; {', '.join(few[:8])}{more}")
    return sorted(row for own in ranked.values() for _, row in sorted(own.items())[:shots])


def overlap(a_texts: Sequence[str], b_texts: Sequence[str]) -> int:
    """Count the distinct texts of b (the test texts) that stand in a (the training texts) too, white space aside."""
    return len({_normal(text) for text in b_texts} & {_normal(text) for text in a_texts})


def _normal(text: str) -> str:
    return " ".join(text.split())


def _one_label_a_row(labels: Sequence[str | list[str]]) -> list[str]:
    """Give every row the label it is stratified by: its own, or the rarest of several; "" for none."""
    counts = Counter(name for label in labels for name in ([label] if isinstance(label, str) else label))
    return [
        label if isinstance(label, str) else min(label, key=lambda name: (counts[name], name), default="")
        for label in labels
    ]
