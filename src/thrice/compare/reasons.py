"""The sentences of an advice: why this arm, what sharing buys and costs, and what to know before trusting it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thrice.compare.candidates import SAME_FILE, Candidate, Scene, difference_of, settled, sign
from thrice.compare.statistics import Difference

NOTHING = "nothing that was measured"

Limit = tuple[str, Callable[[Candidate], float | None], float, Callable[[Candidate], str]]
"""Unit, measure, largest value allowed, and the words for what is measured."""


def reasons(
    pick: Candidate,
    other: Candidate | None,
    candidates: Sequence[Candidate],
    fits: Sequence[Candidate],
    asked: Sequence[Limit],
    scene: Scene,
) -> list[str]:
    """Give the sentences for a pick.

    other: the arm it is held against. candidates: all arms. fits: those that keep to what is asked, highest first.
    """
    seeds = f"{pick.seeds} seed{'s' if pick.seeds > 1 else ''}"
    figure = f"{score_text(pick.mean or 0, scene)} over {seeds}"
    relatives = [c for c in candidates if c is not pick and c.mean is not None and _same_shape(pick, c)]
    if len(fits) == 1:
        said = [f"{pick.arm} is the only arm that fits; its {scene.metric} is {figure}."]
    elif pick is fits[0]:
        said = [f"{pick.arm} has the highest {scene.metric} of the {len(fits)} arms that fit, {figure}."]
    else:
        best = fits[0]
        costs = "" if best in relatives else f" ({_costs(pick, best, scene, all_of=False)})"
        said = [
            f"{best.arm} has the highest {scene.metric}, {score_text(best.mean or 0, scene)}, and {pick.arm} {figure}, "
            f"but {_unsettled(best, pick, scene)}: the cheaper of the two is the pick{costs}."
        ]
    if asked:
        kept = [
            f"{words(pick)} takes {plain(value(pick) or 0)} {unit} of {plain(m)}" for unit, value, m, words in asked
        ]
        said.append(f"{pick.arm} keeps to what is asked: {', '.join(kept)}.")
    said += [_sharing(pick, c, fits, scene) for c in relatives]
    if other is not None and other not in relatives and pick is fits[0]:
        said.append(_neutral(pick, other, scene))
    return said


def _same_shape(arm: Candidate, other: Candidate) -> bool:
    """Whether two arms are called with equally many parameters and store different numbers of them."""
    stored, others = arm.cost.get("parameters_stored"), other.cost.get("parameters_stored")
    if not stored or not others or stored == others:
        return False
    called = arm.cost.get("parameters_called")
    return _stem(arm) == _stem(other) or (called is not None and called == other.cost.get("parameters_called"))


def _stem(candidate: Candidate) -> str:
    return candidate.model.partition("+")[0]


def _sharing(pick: Candidate, other: Candidate, fits: Sequence[Candidate], scene: Scene) -> str:
    """Say what sharing buys and costs between two arms of one shape, the pick being one of them."""
    shared, free = sorted((pick, other), key=lambda c: c.cost["parameters_stored"])
    found = difference_of(free, shared)
    opening = f"{free.arm} against {shared.arm}: {_shape(free, shared, scene)}, {_amount(found, scene)}"
    saved = _saved(shared, free, scene)
    if not settled(free, shared, scene):
        return f"{opening}, not settled{': keep sharing' if pick is shared else ''}; the shared one saves you {saved}."
    better = free if (found.mean or 0) > 0 else shared
    if better is not pick:
        why = "costs more" if better in fits else "does not fit what is asked"
        return f"{opening}: {better.arm} is better and {why}; the shared one saves you {saved}."
    if pick is shared:
        return f"{opening}: keep sharing; it also saves you {saved}."
    advice = "un-share" if _stem(free) == _stem(shared) else "take the one that does not share"
    return f"{opening}: {advice}; the shared one saves you {'only ' if saved != NOTHING else ''}{saved}."


def _shape(arm: Candidate, other: Candidate, scene: Scene) -> str:
    if arm.latency is None or other.latency is None:
        return "same shape, speed not measured"
    if sign(arm.latency, other.latency, scene.noise) == 0:
        return "same shape, same speed"
    return f"same shape, {plain(arm.latency)} against {plain(other.latency)} ms for {arm.long_text}"


def _saved(shared: Candidate, free: Candidate, scene: Scene) -> str:
    found = []
    for words, own, others, same in (
        ("the file", shared.size, free.size, SAME_FILE),
        ("training memory", shared.memory, free.memory, scene.noise),
    ):
        if own is not None and others is not None and sign(own, others, same) < 0:
            found.append(f"{words} ({plain(own)} against {plain(others)} MB)")
    return " and ".join(found) or NOTHING


def _neutral(pick: Candidate, other: Candidate, scene: Scene) -> str:
    found = _amount(difference_of(pick, other), scene)
    doubt = "" if settled(pick, other, scene) else ", not settled"
    costs = _costs(pick, other, scene, all_of=True)
    return f"{pick.arm} against {other.arm}: {found}{doubt}{f'; {costs}' if costs else ''}."


def _unsettled(arm: Candidate, other: Candidate, scene: Scene) -> str:
    """Say, as a part of a sentence, why two arms may be equally good."""
    found = difference_of(arm, other)
    if found.low == found.high:
        return "they score the same in every seed that both have"
    covers = (found.low or 0) <= 0 <= (found.high or 0)
    return f"the difference, {_amount(found, scene)}, {'may be zero' if covers else 'may be chance among so many'}"


def _costs(arm: Candidate, other: Candidate, scene: Scene, *, all_of: bool) -> str:
    """Give what two arms cost, side by side; all that was measured of both, or what differs."""
    found = []
    for words, own, others, unit, same in (
        (arm.long_text, arm.latency, other.latency, "ms", scene.noise),
        ("file", arm.size, other.size, "MB", SAME_FILE),
        ("training memory", arm.memory, other.memory, "MB", scene.noise),
    ):
        if own is not None and others is not None and (all_of or sign(own, others, same)):
            found.append(f"{words} {plain(own)} against {plain(others)} {unit}")
    return ", ".join(found)


def _amount(found: Difference, scene: Scene) -> str:
    """Give a difference with the half width of its 95% interval: +4.10 ± 0.90 accuracy."""
    if found.mean is None:
        return "no seed in common"
    digits = f"{abs(100 * found.mean):.2f}" if scene.per_cent else f"{abs(found.mean):.4f}"
    sign = "" if float(digits) == 0 else "+" if found.mean > 0 else "−"
    if found.low is None or found.high is None or found.low == found.high:
        seeds = "one seed" if found.n == 1 else f"every one of {found.n} seeds"
        return f"{sign}{digits} {scene.metric} in {seeds}"
    half = (found.high - found.low) / 2
    return f"{sign}{digits} ± {f'{100 * half:.2f}' if scene.per_cent else f'{half:.4f}'} {scene.metric}"


def caveats(parts: Sequence[Mapping[str, Any]], candidates: Sequence[Candidate]) -> list[str]:
    """Give the sentences on what is unfinished, collapsed, chosen on dev data or averaged."""
    said = []
    done, planned = (sum(part["cells"][key] for part in parts) for key in ("done", "planned"))
    if done < planned:
        said.append(f"Preliminary: {done} of {planned} cells are done.")
    for c in candidates:
        collapsed, runs = c.collapsed
        if collapsed:
            said.append(
                f"{c.arm}: {collapsed} of {runs} run{'s' if runs > 1 else ''} collapsed; no collapsed run counts here."
            )
    if any(part["deciding"] == "best_dev" for part in parts):
        said.append("The scores are those of the dev data, on which epochs were chosen, and so too high.")
    if len(parts) > 1:
        names = ", ".join(part["task"] for part in parts)
        said.append(f"The score is the mean over {len(parts)} tasks: {names}; one of them decides with --task.")
    return said


def score_text(value: float, scene: Scene) -> str:
    return f"{100 * value:.2f}\u00a0%" if scene.per_cent else f"{value:.4f}"


def plain(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"
