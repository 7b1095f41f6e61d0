"""Arms of a study as somebody sees them who must choose one: score, costs, and which differences are settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thrice.compare.statistics import Difference, paired_difference
from thrice.metrics import LARGEST_P

SAME_SPEED = 0.05
"""Relative difference of measured times and memory that counts as none, more where the A/A control differs by more."""
SAME_FILE = 0.01
"""Relative difference of file sizes that counts as none."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One arm with what decides about it."""

    arm: str
    """Its name."""
    model: str
    """The model as typed, before a name of its own."""
    mean: float | None
    """Deciding score, the mean over seeds and then over tasks; None where a task has none."""
    by_seed: dict[int, float]
    """Deciding score of the seeds that count in every task, the mean over tasks."""
    seeds: int
    """The fewest seeds behind the score of a task."""
    collapsed: tuple[int, int]
    """Collapsed and finished runs."""
    corrected: float | None
    """Corrected p-value of its difference to the baseline, where one task decides."""
    cost: Mapping[str, Any]
    """Its entry of cost.json."""

    @property
    def latency(self) -> float | None:
        """Milliseconds for one long text, the median."""
        return (self.cost.get("latency_long_ms") or {}).get("p50")

    @property
    def size(self) -> float | None:
        """MB of the file."""
        return _mega(self.cost.get("file_bytes"))

    @property
    def memory(self) -> float | None:
        """MB at the peak of a training step."""
        return _mega(self.cost.get("peak_memory_bytes"))

    @property
    def long_text(self) -> str:
        """What `latency` was measured on."""
        tokens = (self.cost.get("latency_long_ms") or {}).get("tokens")
        return f"one text of {tokens} tokens" if tokens else "one long text"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What all sentences need to know."""

    baseline: str | None
    """The first arm."""
    metric: str
    """In words: accuracy, or "score" over several tasks."""
    per_cent: bool
    """Whether scores are printed in per cent."""
    noise: float
    """Relative difference of times and memory that counts as none."""


def candidate_of(arm: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> Candidate:
    held = [(part, next(own for own in part["arms"] if own["arm"] == arm["arm"])) for part in parts]
    scores = [own[part["deciding"]] for part, own in held]
    complete = all(score["mean"] is not None for score in scores) and bool(scores)
    runs = [dict(zip(score["seeds"], score["values"], strict=True)) for score in scores]
    common = [seed for seed in runs[0] if all(seed in values for values in runs)] if runs else []
    difference = scores[0]["difference"] if len(scores) == 1 else None
    return Candidate(
        arm=arm["arm"],
        model=arm.get("model") or arm["arm"],
        mean=sum(score["mean"] for score in scores) / len(scores) if complete else None,
        by_seed={seed: sum(values[seed] for values in runs) / len(runs) for seed in common},
        seeds=min((score["n"] for score in scores), default=0),
        collapsed=(sum(len(own["collapsed"]) for _, own in held), sum(len(own["runs"]) for _, own in held)),
        corrected=(difference or {}).get("p_corrected"),
        cost=arm.get("cost") or {},
    )


def difference_of(arm: Candidate, other: Candidate) -> Difference:
    """Give the paired difference of any two arms over the seeds that both have."""
    shared = [seed for seed in arm.by_seed if seed in other.by_seed]
    return paired_difference([arm.by_seed[seed] for seed in shared], [other.by_seed[seed] for seed in shared])


def settled(arm: Candidate, other: Candidate, scene: Scene) -> bool:
    """Whether the difference of two arms is not zero, by interval and, to the baseline, corrected p-value."""
    found = difference_of(arm, other)
    if found.low is None or found.high is None or found.low == found.high or found.low <= 0 <= found.high:
        return False
    against = arm if other.arm == scene.baseline else other if arm.arm == scene.baseline else None
    return against is None or against.corrected is None or against.corrected < LARGEST_P


def may_be_equal(arm: Candidate, other: Candidate, scene: Scene) -> bool:
    """Whether the seeds say of two arms that they may be equally good, which fewer than two shared seeds do not say."""
    found = difference_of(arm, other)
    if found.low is None or found.low == found.high:
        return found.low == 0
    return not settled(arm, other, scene)


def cheaper(arm: Candidate, other: Candidate, noise: float) -> bool:
    """Whether an arm needs less of something measured in both, and of nothing more."""
    signs = {
        sign(arm.latency, other.latency, noise),
        sign(arm.size, other.size, SAME_FILE),
        sign(arm.memory, other.memory, noise),
    }
    return -1 in signs and 1 not in signs


def sign(value: float | None, other: float | None, same: float) -> int:
    """Give -1, 0 or 1 for less, the same or more; 0 where one is not known."""
    if value is None or other is None or abs(value - other) <= same * max(abs(value), abs(other)):
        return 0
    return 1 if value > other else -1


def _mega(value: float | None) -> float | None:
    return None if value is None else value / 1e6
