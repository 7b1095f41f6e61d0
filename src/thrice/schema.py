"""Whether a JSON value is what a file of thrice should hold: one check for every kind of file, all problems at once."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

Wanted = Any
"""What a value should be: a type (`str`, `int`, `float`, `bool`, `list[int]`, `dict[str, float]`, `int | None`, `Any`);
a dataclass: an object with its fields, of which those with a default may be absent; or a dict of key -> Wanted, where a
key that ends in "?" may be absent and further keys are left alone."""

WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    dict: "an object",
    list: "a list",
}
LARGEST = 2**63
"""Whole numbers in files of thrice count things; larger ones are damage."""


def misfits(value: Any, wanted: Wanted, *, place: str = "", finite: bool = True) -> list[str]:
    """Give everything in which a JSON value differs from what is wanted, each with its place, such as `arms[2].name`.

    Whole numbers count as numbers, true and false as neither. A tuple stands for a list. finite: whether NaN and
    infinity, which some numbers that were measured may be, are misfits.

        >>> misfits({"seeds": [0, "x"]}, {"seeds": list[int], "task": str})
        ["seeds[1] is 'x', expected a whole number", 'task is missing']
    """
    return list(_misfits(value, wanted, place, finite))


def newer_format(value: Any, known: int) -> list[str]:
    """Say where an object's `format` is not one that this thrice reads; 1 where it has none."""
    if not isinstance(value, Mapping):
        return []
    found = value.get("format", 1)
    if isinstance(found, int) and not isinstance(found, bool) and found > known:
        return [f"format is {found}, written by a newer thrice (this one reads up to {known}); upgrade thrice"]
    return [] if found in range(1, known + 1) else [f"format is {_shown(found)}, expected {known}"]


def _misfits(value: Any, wanted: Wanted, place: str, finite: bool) -> Iterator[str]:
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any:
        return
    if isinstance(wanted, types.UnionType) or origin is typing.Union:
        found = [misfits(value, one, place=place, finite=finite) for one in inner]
        if all(found):
            # Where one alternative is of the right kind its own complaints say more.
            near = [one for one in found if not one[0].startswith(f"{place or 'it'} is ")]
            yield from near[0] if near else [_wrong(value, wanted, place)]
    elif dataclasses.is_dataclass(wanted):
        yield from _fields(value, _fields_of(wanted), place, finite, closed=True)
    elif isinstance(wanted, dict):
        yield from _fields(value, wanted, place, finite, closed=False)
    elif origin in (list, tuple):
        if not isinstance(value, list | tuple):
            yield _wrong(value, list, place)
            return
        for number, item in enumerate(value):
            yield from _misfits(item, inner[0], f"{place}[{number}]", finite)
    elif origin is dict:
        if not isinstance(value, dict):
            yield _wrong(value, dict, place)
            return
        for key, item in value.items():
            yield from _misfits(item, inner[1], f"{place}.{key}".lstrip("."), finite)
    elif not _is(value, wanted, finite):
        yield _wrong(value, wanted, place)


def _fields(value: Any, wanted: Mapping[str, Wanted], place: str, finite: bool, *, closed: bool) -> Iterator[str]:
    if not isinstance(value, dict):
        yield _wrong(value, dict, place)
        return
    for key, kind in wanted.items():
        name = key.removesuffix("?")
        where = f"{place}.{name}".lstrip(".")
        if name in value:
            yield from _misfits(value[name], kind, where, finite)
        elif not key.endswith("?"):
            yield f"{where} is missing"
    if closed:
        known = {key.removesuffix("?") for key in wanted}
        yield from (f"{place}.{key}".lstrip(".") + " is unknown" for key in value if key not in known)


def _fields_of(kind: Any) -> dict[str, Wanted]:
    hints = typing.get_type_hints(kind)
    nothing = dataclasses.MISSING
    return {
        f.name + ("" if f.default is nothing and f.default_factory is nothing else "?"): hints[f.name]
        for f in dataclasses.fields(kind)
    }


def _is(value: Any, kind: type, finite: bool) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is int:
        return isinstance(value, int) and abs(value) < LARGEST
    if kind is float:
        if isinstance(value, int):
            return abs(value) < LARGEST
        return isinstance(value, float) and (math.isfinite(value) or not finite)
    return isinstance(value, kind)


def _wrong(value: Any, wanted: Wanted, place: str) -> str:
    return f"{place or 'it'} is {_shown(value)}, expected {_words(wanted)}"


def _words(wanted: Wanted) -> str:
    kinds = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    plain = (typing.get_origin(kind) or kind for kind in kinds)
    return " or ".join(dict.fromkeys(WORDS.get(list if kind is tuple else kind, "an object") for kind in plain))


def _shown(value: Any, most: int = 40) -> str:
    """Give a value in short; a damaged file may hold a number of a thousand digits."""
    if isinstance(value, int) and abs(value) >= LARGEST:
        return f"a number of {int(value.bit_length() * math.log10(2)) + 1} digits"
    if isinstance(value, dict | list):
        return f"{WORDS[type(value)]} of {len(value)}"
    text = repr(value)
    return text if len(text) <= most else text[:most] + "..."
