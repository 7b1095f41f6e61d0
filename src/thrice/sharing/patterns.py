"""Names of sharing: which calls use the same stored block.

A map has one entry per call, the number of the stored block that the call uses, numbered by first use:
(0, 0, 0, 0) is one block called four times, (0, 1, 2, 3) is four blocks. An encoder has two maps, one for its
attention blocks and one for its feed-forward blocks. A pattern is a short text that names both:

    pattern := map | "attention" | "ffn" | "attention=" map ";ffn=" map
    map     := "all" | "none" | "groups=K" | "cycle=K" | numbers with commas, such as 0,0,1,1

Patterns say what is shared. N below is the number of calls, num_hidden_layers * inner_group_num of an ALBERT.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from thrice.errors import SharingError, nearest
from thrice.model.config import canonical

Map = tuple[int, ...]

PATTERNS: dict[str, str] = {
    "all": "every call uses one attention block and one feed-forward block (ALBERT)",
    "none": "every call has its own blocks (BERT, RoBERTa, ELECTRA)",
    "attention": "one attention block for all calls, each call its own feed-forward block",
    "ffn": "one feed-forward block for all calls, each call its own attention block",
    "groups=K": "K layers, each called several times in a row: 0,0,1,1 is groups=2",
    "cycle=K": "K layers called in turn: 0,1,0,1 is cycle=2",
    "attention=0,0,1,1;ffn=0,1,2,3": "explicit: the block of each call, numbered by first use",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StockLayout:
    """The three numbers by which a stock ALBERT config says who shares with whom."""

    num_hidden_layers: int
    """Steps, L in the formula: one group is called per step."""
    num_hidden_groups: int
    """Stored groups, G."""
    inner_group_num: int
    """Different layers inside a group, called in a row, I; L * I is the number of calls."""
    exact: bool
    """True if the numbers give exactly the maps asked for; False if they give every call a copy of its block."""


def parse(pattern: str, num_calls: int) -> tuple[Map, Map]:
    """Give the attention map and the feed-forward map that a pattern names for `num_calls` calls.

    Raises SharingError, with every problem at once, where the word is unknown, K is no whole number in 1..num_calls,
    or an explicit map has another length or is not numbered by first use.

    >>> parse("attention", 3)
    ((0, 0, 0), (0, 1, 2))
    """
    if num_calls < 1:
        raise SharingError(f"a sharing pattern needs at least one call, got num_calls={num_calls}")
    text = pattern.strip()
    problems: list[str] = []
    if text in ("attention", "ffn"):
        parts = {"attention": "none", "ffn": "none", text: "all"}
    elif ";" in text or text.startswith(("attention=", "ffn=")):
        parts = _two_parts(text, problems)
    else:
        parts = {"": text}
    maps = {side: _one_map(part, num_calls, side, problems) for side, part in parts.items()}
    if problems:
        raise SharingError(f"sharing pattern {pattern!r} for {num_calls} calls: {'; '.join(problems)}")
    return maps.get("attention", maps.get("", ())), maps.get("ffn", maps.get("", ()))


def describe(attention_map: Sequence[int], ffn_map: Sequence[int]) -> str:
    """Give the most familiar name of two maps; `parse` reads it back to the same maps.

    The first that fits of: none, all, attention, ffn, groups=K with the smallest K, cycle=K, explicit. With a single
    call nothing can be shared, and the name is "none".
    Raises SharingError where the maps differ in length or are not numbered by first use.
    """
    attention, ffn = tuple(attention_map), tuple(ffn_map)
    if len(attention) != len(ffn) or not attention:
        raise SharingError(f"the two maps need one entry per call each, got {len(attention)} and {len(ffn)} entries")
    num_calls = len(attention)
    explicit = f"attention={_listed(attention)};ffn={_listed(ffn)}"
    parse(explicit, num_calls)
    blocks = max(attention) + 1
    familiar = ("none", "all", "attention", "ffn", f"groups={blocks}", f"cycle={blocks}")
    return next((name for name in familiar if parse(name, num_calls) == (attention, ffn)), explicit)


def refines(fine_map: Sequence[int], coarse_map: Sequence[int]) -> bool:
    """Say whether calls that share in the fine map also share in the coarse one.

    Exactly then blocks of the coarse map can be copied into the fine one without changing what any call computes.
    Raises SharingError where the maps speak of different numbers of calls.
    """
    if len(fine_map) != len(coarse_map):
        raise SharingError(f"maps of {len(fine_map)} and {len(coarse_map)} calls cannot be compared")
    return len(set(zip(fine_map, coarse_map, strict=True))) == len(set(fine_map))


def stock_albert_map(num_hidden_layers: int, num_hidden_groups: int, inner_group_num: int) -> Map:
    """Give the layer that each call uses in transformers' ALBERT: group * inner_group_num + inner layer.

    The group of step i is int(i / (L / G)) in floating point, as in `AlbertTransformer.forward`: for (L, G, i) =
    (18, 14, 9) that is 6, where whole numbers (and Google's int(i / L * G)) give 7. With G > L some groups are never
    called and the result is not numbered by first use.
    """
    steps = [int(i / (num_hidden_layers / num_hidden_groups)) for i in range(num_hidden_layers)]
    return tuple(group * inner_group_num + n for group in steps for n in range(inner_group_num))


def stock_albert_layout(attention_map: Sequence[int], ffn_map: Sequence[int]) -> StockLayout:
    """Give the stock ALBERT config that says these maps, or else one with a copy of its layer for every call.

    A stock layer is an attention block and a feed-forward block together, so only equal maps can be exact. Of several
    exact layouts the one with the smallest inner_group_num is taken; no layout leaves a stored group unused.
    """
    wanted, num_calls = tuple(attention_map), len(attention_map)
    stored = max(wanted) + 1
    for inner in range(1, num_calls + 1):
        if wanted != tuple(ffn_map) or num_calls % inner or stored % inner:
            continue
        steps, groups = num_calls // inner, stored // inner
        if groups <= steps and stock_albert_map(steps, groups, inner) == wanted:
            return StockLayout(num_hidden_layers=steps, num_hidden_groups=groups, inner_group_num=inner, exact=True)
    return StockLayout(num_hidden_layers=num_calls, num_hidden_groups=num_calls, inner_group_num=1, exact=False)


def _two_parts(text: str, problems: list[str]) -> dict[str, str]:
    """Split "attention=X;ffn=Y", in either order, into its two sides."""
    pairs = [(side.strip(), part.strip()) for side, _, part in (piece.partition("=") for piece in text.split(";"))]
    if sorted(side for side, _ in pairs) != ["attention", "ffn"]:
        problems.append('expected both sides once, such as "attention=0,0,1,1;ffn=none"')
        return {}
    return dict(pairs)


def _one_map(text: str, num_calls: int, side: str, problems: list[str]) -> Map:
    """Read one map; what is wrong with it goes to `problems`."""
    where = f"{side}: " if side else ""
    word, equals, value = (piece.strip() for piece in text.partition("="))
    if text in ("all", "none"):
        return (0,) * num_calls if text == "all" else tuple(range(num_calls))
    if word in ("groups", "cycle"):
        if not _is_number(value) or not 1 <= int(value) <= num_calls:
            problems.append(f"{where}{word}=K wants a whole number K from 1 to {num_calls}, got {text!r}")
            return ()
        k = int(value)
        return tuple(i * k // num_calls if word == "groups" else i % k for i in range(num_calls))
    numbers = [number.strip() for number in text.split(",")]
    if equals or not any(_is_number(number) for number in numbers):
        known = ("all", "none", "groups=K", "cycle=K") + (() if side else ("attention", "ffn"))
        problems.append(f"{where}nobody knows {text!r}; {nearest(text, known)}")
        return ()
    if not all(_is_number(number) for number in numbers):
        problems.append(f"{where}a map is whole numbers with commas, got {text!r}")
        return ()
    explicit = tuple(int(number) for number in numbers)
    if len(explicit) != num_calls:
        problems.append(f"{where}{len(explicit)} entries, expected one for each of the {num_calls} calls")
    elif explicit != canonical(explicit):
        problems.append(f"{where}blocks are numbered by first use: write {_listed(canonical(explicit))} for {text}")
    return explicit


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _listed(any_map: Sequence[int]) -> str:
    return ",".join(str(entry) for entry in any_map)
