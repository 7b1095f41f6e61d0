"""What a summary says of one task, made by hand from scores, for the tests of words and of advice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from thrice.compare.statistics import paired_difference, seeds_needed, summary

Scores = Mapping[str, Sequence[float | None]]


def make_part(
    scores: Scores,
    *,
    task: str = "reviews",
    metric: str = "accuracy",
    deciding: str = "test",
    collapsed: Mapping[str, Sequence[int]] | None = None,
    differences: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Give a task's part of a summary, arm -> score of every seed, None where that is not finished.

    collapsed: arm -> seeds that count nowhere. differences: arm -> entries of its difference to the first arm.
    """
    first = next(iter(scores), None)
    seeds = list(range(max(map(len, scores.values()), default=0)))
    arms = []
    for name, values in scores.items():
        lost = list((collapsed or {}).get(name, ()))
        done = [seed for seed, value in enumerate(values) if value is not None]
        counted = {seed: values[seed] for seed in done if seed not in lost}
        base = {seed: value for seed, value in enumerate(scores[first]) if seed not in (collapsed or {}).get(first, ())}
        shared = [seed for seed in counted if base.get(seed) is not None]
        pair = [counted[seed] for seed in shared], [base[seed] for seed in shared]
        difference = None
        if name != first:
            found = paired_difference(*pair)
            difference = {**dataclasses.asdict(found), "p_corrected": found.p, "seeds_needed": seeds_needed(*pair)}
            difference |= {"improvement": None, "items": None, **(differences or {}).get(name, {})}
        score = {**dataclasses.asdict(summary(list(counted.values()))), "seeds": list(counted)}
        empty = {**dataclasses.asdict(summary([])), "seeds": [], "difference": None}
        arms.append(
            {
                "arm": name,
                "done": len(done),
                "planned": len(seeds),
                "collapsed": lost,
                "runs": [{"seed": seed, "collapsed": seed in lost, deciding: values[seed]} for seed in done],
                **dict.fromkeys(("best_dev", "epoch1_dev", "test"), empty),
                deciding: {**score, "difference": difference},
            }
        )
    cells = {"done": sum(arm["done"] for arm in arms), "planned": len(scores) * len(seeds)}
    held = {"task": task, "metric": metric, "deciding": deciding, "baseline": first, "cells": cells}
    return {**held, "seeds": seeds, "arms": arms}


def make_summary(
    *parts: Mapping[str, Any],
    cost: Mapping[str, Mapping[str, Any]] | None = None,
    models: Mapping[str, str] | None = None,
    control: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Give a summary of these tasks. cost: arm -> its entry of cost.json. models: arm -> model, where not its name."""
    names = [arm["arm"] for arm in parts[0]["arms"]] if parts else []
    arms = [{"arm": n, "model": (models or {}).get(n, n), "cost": (cost or {}).get(n, {})} for n in names]
    held = {"baseline": names[0] if names else None, "arms": arms, "tasks": list(parts)}
    return {**held, "cost_control": control, "outside": []}
