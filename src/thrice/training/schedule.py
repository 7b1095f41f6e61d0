"""Learning-rate schedules: pure functions from the number of an optimiser step to a factor of the peak learning rate.

Steps are counted from 1: `factor(s)` scales the learning rate of the s-th update. The warm-up rises as s / warmup, so
the factor is 1 / warmup at the first update and 1 at update `warmup`. Nothing is stored between steps, so a run that is
resumed at step s uses the very same numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

from thrice.errors import ConfigError, nearest

EXAMPLE = "1000:1,2000:0.1"
"""The points of the essays: the full rate at step 1000, a tenth of it at step 2000 and from then on."""

SCHEDULES: dict[str, str] = {
    "constant": "Warm-up, then the full learning rate to the end.",
    "cosine": "Warm-up, then half a cosine wave that would touch zero one step after the last.",
    "linear": "Warm-up, then a straight line that would touch zero one step after the last.",
    EXAMPLE: "Any points STEP:FACTOR, joined by straight lines from 0 at step 0, constant after the last; no warm-up.",
}
"""Name -> sentence; every name is a valid text for `parse_schedule`."""

Schedule = Callable[[int], float]


def parse_schedule(text: str, *, total_steps: int, warmup: float) -> Schedule:
    """Give the factor of each optimiser step, counted from 1.

    text: a name of SCHEDULES or points such as "1000:1,2000:0.1". total_steps: updates of the whole run.
    warmup: a fraction of them below 1, or a whole number of steps; points say their own and ignore it.
    "linear" and "cosine" fall from 1 at step max(warmup, 1) towards 0 at step total_steps + 1, so that the last update
    still learns; without warm-up that is the linear schedule of transformers, whose own warm-up wastes the first
    update at a factor of 0.
    Raises ConfigError for an unknown name, malformed points, or a warm-up longer than the run.
    Source of the points: Su, bert4keras, `extend_with_piecewise_linear_lr`, which evaluates them at the number of
    updates already made: one step later than here, its first update having the factor 0.
    """
    if ":" in text:
        return _piecewise_linear(parse_points(text))
    check_schedule(text)
    rise = warmup_steps(warmup, total_steps)
    if rise > total_steps:
        raise ConfigError(f"a warm-up of {rise} steps does not fit into a run of {total_steps}; lower warmup")
    peak = max(rise, 1)

    def fall(step: int) -> float:
        return (step - peak) / (total_steps + 1 - peak)

    after: dict[str, Schedule] = {
        "constant": lambda step: 1.0,
        "cosine": lambda step: 0.5 * (1 + math.cos(math.pi * fall(step))),
        "linear": lambda step: 1 - fall(step),
    }
    return lambda step: step / rise if step < rise else after[text](step)


def check_schedule(text: str) -> None:
    """Raise ConfigError if the text is neither a name of SCHEDULES nor well-formed points."""
    if not isinstance(text, str):
        raise ConfigError(f"schedule is {text!r}, expected a name or points such as 1000:1,2000:0.1")
    if ":" in text:
        parse_points(text)
    elif text not in SCHEDULES:
        raise ConfigError(f"no schedule called {text!r}; {nearest(text, SCHEDULES)}")


def parse_points(text: str) -> tuple[tuple[int, float], ...]:
    """Give the (step, factor) pairs of a text such as "1000:1,2000:0.1"; raises ConfigError with every problem."""
    points: list[tuple[int, float]] = []
    problems: list[str] = []
    for part in text.split(","):
        step, _, factor = part.partition(":")
        try:
            point = int(step), float(factor)
        except ValueError:
            problems.append(f"{part.strip()!r} is not STEP:FACTOR")
            continue
        if point[0] < 0 or not 0 <= point[1] < math.inf:
            problems.append(f"{part.strip()!r} has a negative or endless number")
        if points and point[0] <= points[-1][0]:
            problems.append(f"step {point[0]} does not come after step {points[-1][0]}")
        points.append(point)
    if problems:
        raise ConfigError(f"schedule {text!r}: {'; '.join(problems)}; write points like {EXAMPLE!r}")
    return tuple(points)


def warmup_steps(warmup: float, total_steps: int) -> int:
    """Give the length of the warm-up in optimiser steps: a fraction below 1 of all steps, rounded up, or the number.

    The fraction is taken as the decimal that was written: in binary, 0.1 * 70 is a little above 7 and would round to 8.
    """
    return math.ceil(Fraction(repr(float(warmup))) * total_steps) if warmup < 1 else int(warmup)


def _piecewise_linear(points: tuple[tuple[int, float], ...]) -> Schedule:
    corners = points if points[0][0] == 0 else ((0, 0.0), *points)

    def factor(step: int) -> float:
        for (left, low), (right, high) in itertools.pairwise(corners):
            if step < right:
                return low + (high - low) * (step - left) / (right - left)
        return corners[-1][1]

    return factor
