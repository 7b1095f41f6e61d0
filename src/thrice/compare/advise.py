"""Which arm of a study to take under limits of time, file, memory and score, and why, from the study's summary alone.

The highest mean is not the pick where an arm that fits is cheaper and, as far as the seeds tell, may be as good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from thrice.compare.candidates import SAME_SPEED, Candidate, Scene, candidate_of, cheaper, may_be_equal
from thrice.compare.reasons import Limit, caveats, plain, reasons, score_text
from thrice.errors import ConfigError, nearest
from thrice.metrics import IN_PER_CENT, metric_name


def advise(
    summary: Mapping[str, Any],
    *,
    task: str | None = None,
    max_latency_ms: float | None = None,
    max_size_mb: float | None = None,
    max_memory_mb: float | None = None,
    min_score: float | None = None,
) -> dict[str, Any]:
    """Give the arm to take and why, as JSON values, from what `summarise` gives.

    task: name of the one that decides; None where there is one, or for the mean over tasks that are all in per cent.
    max_latency_ms: for one long text, median. max_size_mb: file, 1 MB = 10^6 bytes. max_memory_mb: peak of a training
    step. min_score: in the metric's own scale; of a metric read in per cent, a value above 1 is per cent. An arm whose
    cost is not known does not fit a limit on it.
    Keys: "task"; "pick" and "runner_up", names or None; "reasons", sentences; "fits", names, highest first; "fails",
    [{"arm", "because"}]; "nearest_miss", {"arm", "because", "beyond"} where no arm fits: the one whose worst relative
    excess, "beyond", is smallest, None if nothing was measured.
    The pick is the highest mean that fits, or a cheaper arm that may be as good: the paired 95% t-interval covers zero,
    or the corrected p-value is 5% or more. Cheaper: less of latency, file or memory, and of none of them more, by more
    than the measurement's noise. Where there is no interval, as of one seed, the highest mean is the pick.
    Raises ConfigError for an unknown task, tasks that have no common scale and limits that are no numbers above 0.
    """
    limits = {"max_latency_ms": max_latency_ms, "max_size_mb": max_size_mb, "max_memory_mb": max_memory_mb}
    _check(limits | {"min_score": min_score})
    parts = _parts(summary, task)
    metrics = {part["metric"] for part in parts}
    ratios = (summary.get("cost_control") or {}).get("ratios") or {}
    control = ratios.get("latency_long_ms")
    scene = Scene(
        baseline=summary["baseline"],
        metric=metric_name(min(metrics)) if len(metrics) == 1 else "score",
        per_cent=metrics <= IN_PER_CENT,
        noise=max(SAME_SPEED, abs(control - 1) if control else 0),
    )
    if min_score is not None and scene.per_cent and min_score > 1:
        min_score /= 100
    asked: list[Limit] = [
        (unit, measure, most, words)
        for unit, measure, most, words in (
            ("ms", lambda c: c.latency, max_latency_ms, lambda c: c.long_text),
            ("MB", lambda c: c.size, max_size_mb, lambda c: "its file"),
            ("MB", lambda c: c.memory, max_memory_mb, lambda c: "training at its peak"),
        )
        if most is not None
    ]
    candidates = [candidate_of(arm, parts) for arm in summary["arms"]]
    misses = {c.arm: _misses(c, asked, min_score, scene) for c in candidates}
    fits = sorted((c for c in candidates if not misses[c.arm]), key=lambda c: -(c.mean or 0))
    fails = [{"arm": c.arm, "because": [said for said, _ in misses[c.arm]]} for c in candidates if misses[c.arm]]
    result: dict[str, Any] = {
        "task": parts[0]["task"] if len(parts) == 1 else None,
        "pick": None,
        "runner_up": None,
        "reasons": [],
        "fits": [c.arm for c in fits],
        "fails": fails,
        "nearest_miss": None,
    }
    if fits:
        pick, other = _choose(fits, scene)
        result |= {"pick": pick.arm, "runner_up": other.arm if other else None}
        result["reasons"] = reasons(pick, other, candidates, fits, asked, scene)
    else:
        result["nearest_miss"] = miss = _nearest_miss(candidates, misses)
        result["reasons"] = [_nothing_fits(miss, any(c.mean is not None for c in candidates))]
    result["reasons"] += caveats(parts, candidates)
    return result


def _check(limits: Mapping[str, float | None]) -> None:
    wrong = [f"{name} is {v}" for name, v in limits.items() if v is not None and not 0 < v < math.inf]
    if wrong:
        raise ConfigError(f"{'; '.join(wrong)}: expected a number above 0 - leave a limit out to have none")


def _parts(summary: Mapping[str, Any], task: str | None) -> list[Mapping[str, Any]]:
    """Give what the summary says of the tasks that decide."""
    parts = list(summary["tasks"])
    names = [part["task"] for part in parts]
    if task is not None:
        if task not in names:
            raise ConfigError(f"the study has no task {task!r}; {nearest(task, names)}")
        return [part for part in parts if part["task"] == task]
    metrics = sorted({part["metric"] for part in parts})
    if len(parts) > 1 and not IN_PER_CENT.issuperset(metrics):
        raise ConfigError(
            f"the tasks are scored by {', '.join(metrics)}, of which no mean can be taken - say which task decides "
            f"with --task: {', '.join(names)}"
        )
    return parts


def _misses(
    candidate: Candidate, asked: Sequence[Limit], min_score: float | None, scene: Scene
) -> list[tuple[str, float]]:
    """Give every limit that an arm does not keep: a sentence, and by which share it is beyond, infinite if unknown."""
    if candidate.mean is None:
        collapsed, done = candidate.collapsed
        lost = done and collapsed == done
        return [(f"every finished run collapsed, {done} of {done}" if lost else "it has no score yet", math.inf)]
    found = []
    for unit, measure, most, words in asked:
        value = measure(candidate)
        if value is None:
            found.append((f"what {words(candidate)} takes was not measured", math.inf))
        elif value > most:
            said = f"{words(candidate)} takes {plain(value)} {unit}, at most {plain(most)} are asked"
            found.append((said, value / most - 1))
    if min_score is not None and candidate.mean < min_score:
        least = score_text(min_score, scene)
        said = f"its {scene.metric} is {score_text(candidate.mean, scene)}, at least {least} is asked"
        found.append((said, 1 - candidate.mean / min_score))
    return found


def _nearest_miss(candidates: Sequence[Candidate], misses: Mapping[str, Sequence[tuple[str, float]]]) -> Any:
    """Give the arm whose worst excess is smallest; None where no arm has all that is asked measured."""
    worst = {c.arm: max((beyond for _, beyond in misses[c.arm]), default=math.inf) for c in candidates}
    arm = min(worst, key=lambda name: worst[name], default=None)
    if arm is None or math.isinf(worst[arm]):
        return None
    return {"arm": arm, "because": [said for said, _ in misses[arm]], "beyond": worst[arm]}


def _nothing_fits(miss: Mapping[str, Any] | None, scored: bool) -> str:
    if miss is None:
        return "No arm fits: what is asked was not measured of any." if scored else "No arm has a score to go by."
    return f"No arm fits. The nearest is {miss['arm']}, {miss['beyond']:.0%} beyond: {'; '.join(miss['because'])}."


def _choose(fits: Sequence[Candidate], scene: Scene) -> tuple[Candidate, Candidate | None]:
    """Give the pick and the arm it is held against: the highest where the pick is not it, the second otherwise."""
    best = fits[0]
    as_good = [c for c in fits[1:] if cheaper(c, best, scene.noise) and may_be_equal(best, c, scene)]
    cheapest = [c for c in as_good if not any(cheaper(other, c, scene.noise) for other in as_good)]
    if cheapest:
        return cheapest[0], best
    return best, fits[1] if len(fits) > 1 else None
