"""Entities of a text, and the BIO tags that say them token by token.

A span is (start, end, type), end exclusive; in tokens or in characters, as the caller has them. Entities are flat: none
lies in another.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from thrice.data.readers import Cell
from thrice.errors import DataError

Span = tuple[int, int, str]

# Other schemes say of a token that it ends an entity (E, L) or is the whole of one (S, U); BIO can say the same.
PREFIXES = {"B": "B", "I": "I", "E": "I", "L": "I", "M": "I", "S": "B", "U": "B"}


def bio(tag: str) -> tuple[str, str]:
    """Give ("B" or "I", type) of a tag, ("O", "") of none; raises DataError for what is no tag."""
    if tag == "O":
        return "O", ""
    prefix, dash, kind = tag.partition("-")
    if prefix not in PREFIXES or not dash or not kind:
        raise DataError(f"the tag {tag[:40]!r}; expected O, B-TYPE or I-TYPE")
    return PREFIXES[prefix], kind


def spans_of(tags: Sequence[str]) -> tuple[list[Span], list[int]]:
    """Give the entities that tags say, and the places of I- tags that begin one because nothing of their type precedes.

    Such tags are read as conlleval and seqeval read them: an entity begins there.
    """
    spans: list[Span] = []
    stray: list[int] = []
    before = ""
    for place, tag in enumerate(tags):
        prefix, kind = bio(tag)
        if prefix == "I" and kind == before:
            spans[-1] = (spans[-1][0], place + 1, kind)
        elif prefix != "O":
            spans.append((place, place + 1, kind))
            if prefix == "I":
                stray.append(place)
        before = kind
    return spans, stray


def tags_of(spans: Sequence[Span], size: int) -> list[str]:
    """Give `size` BIO tags that say these spans, which do not overlap."""
    tags = ["O"] * size
    for start, end, kind in spans:
        tags[start:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - start - 1)]
    return tags


# Cells of a table


def words_in(cell: Cell | None) -> list[str]:
    """Give the tokens or tags in a cell: a list, the text of a JSON list, or words between white space."""
    if cell is None:
        raise DataError("null or missing, or a null in the list")
    if isinstance(cell, list):
        return cell
    if cell.lstrip().startswith("["):
        try:
            words = json.loads(cell, parse_int=str, parse_float=str)
        except (ValueError, RecursionError):
            return cell.split()
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return words
    return cell.split()


def entities_in(cell: Cell | None, text: str) -> list[Span]:
    """Give the entities in a cell, sorted: a list of {"start", "end", "label"} or of [start, end, label], as JSON.

    start, end: characters of the text, end exclusive. "type" stands for "label" too. An entity that states its own text
    must be right about it. Raises DataError that says what is wrong with which entity.
    """
    if cell is None:
        raise DataError("null or missing; expected a list of entities, [] where there is none")
    try:
        items = cell if isinstance(cell, list) else json.loads(cell)
    except (ValueError, RecursionError):
        items = None
    if not isinstance(items, list):
        raise DataError(f"{str(cell)[:40]!r} is no JSON list of entities")
    spans = sorted(_span(item, text) for item in items)
    for one, other in itertools.pairwise(spans):
        if other[0] < one[1]:
            raise DataError(f"entities {list(one)} and {list(other)} overlap; expected such as lie apart")
    return spans


def _span(item: Any, text: str) -> Span:
    stated = None
    if isinstance(item, dict):
        stated = item.get("text")
        item = [item.get("start"), item.get("end"), item.get("label", item.get("type"))]
    if not (isinstance(item, list) and len(item) == 3 and _whole(item[0]) and _whole(item[1]) and _named(item[2])):
        raise DataError(f"{json.dumps(item, ensure_ascii=False)[:60]} is no entity; expected [start, end, label]")
    start, end, kind = item
    if not 0 <= start < end <= len(text):
        raise DataError(f"{item} lies outside of the text of {len(text)} characters, or is empty")
    if isinstance(stated, str) and stated != text[start:end]:
        raise DataError(
            f"{item} is {text[start:end][:40]!r} and says {stated[:40]!r}; positions count characters from 0, end "
            "exclusive"
        )
    return start, end, kind


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _named(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and not any(map(str.isspace, value))


def cells(said: Sequence[Span], gold: Sequence[Span]) -> tuple[list[str], list[str]]:
    """Give both sets of entities as tags, one for each stretch of characters between ends of entities."""
    ends = sorted({end for start, stop, _ in (*said, *gold) for end in (start, stop)})
    place = {end: i for i, end in enumerate(ends)}
    said_tags, gold_tags = (
        tags_of([(place[start], place[stop], kind) for start, stop, kind in spans], max(1, len(ends)))
        for spans in (said, gold)
    )
    return said_tags, gold_tags


def entity_scores(pairs: Sequence[tuple[Sequence[Span], Sequence[Span]]], kinds: Sequence[str]) -> dict[str, Any]:
    """Give micro F1, precision and recall over whole entities, as seqeval counts them, and "types", the same per kind.

    pairs: of every text the entities that were said and the gold ones. An entity is right where its type and both its
    ends are.
    """
    import warnings

    from seqeval.metrics import classification_report

    types: dict[str, Any] = {}
    whole = dict.fromkeys(("precision", "recall", "f1-score"), 0.0)
    if any(said or gold for said, gold in pairs):
        # seqeval counts tags: one stands for all characters between two places where some entity begins or ends.
        said, gold = zip(*(cells(*pair) for pair in pairs), strict=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of types that nobody said, which are 0 as they should be
            report = classification_report(list(gold), list(said), output_dict=True, zero_division=0)
        whole = report["micro avg"]
        types = {
            kind: {
                "f1": float(found["f1-score"]),
                "precision": float(found["precision"]),
                "recall": float(found["recall"]),
                "entities": int(found["support"]),
            }
            for kind, found in report.items()
            if kind in kinds
        }
    return {
        "f1": float(whole["f1-score"]),
        "precision": float(whole["precision"]),
        "recall": float(whole["recall"]),
        "types": types,
    }
