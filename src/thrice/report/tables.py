"""What the tables of a study hold, as text: every number is formatted here, once, for terminal, Markdown and page.

A summary is the JSON value that `thrice.compare.summary.summarise` gives, a part one entry of its `tasks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Summary = Mapping[str, Any]
Part = Mapping[str, Any]
Cells = tuple[list[str], list[list[str]]]
"""Headers, and one list of as many texts per row; the first is the name of an arm."""

NOTHING = "—"

SCORE_NAMES = {"best_dev": "best dev", "epoch1_dev": "after epoch 1", "test": "test"}

# Scores between 0 and 1 that people read in per cent; every other metric is printed as it is.
IN_PER_CENT = frozenset({"accuracy", "exact_match", "f1", "macro_f1", "micro_f1", "precision", "recall"})


def percent(metric: str) -> bool:
    """Say whether a metric is printed in per cent."""
    return metric in IN_PER_CENT


def unit(metric: str) -> str:
    """Give what follows a printed score: a space that does not break and %, or nothing."""
    return "\u00a0%" if percent(metric) else ""


def metric_name(metric: str) -> str:
    """Give a metric's name for a sentence or an axis: macro_f1 -> macro F1."""
    return metric.replace("_", " ").replace("f1", "F1")


def format_score(value: float | None, metric: str) -> str:
    """Give a score in per cent with two decimals, or a raw metric with four."""
    if value is None:
        return NOTHING
    return f"{100 * value:.2f}" if percent(metric) else f"{value:.4f}"


def format_signed(value: float | None, metric: str) -> str:
    """Give a difference with its sign, a true minus and no negative zero."""
    if value is None:
        return NOTHING
    digits = format_score(abs(value), metric)
    if float(digits) == 0:
        return digits
    return ("+" if value > 0 else "−") + digits


def format_mean(score: Mapping[str, Any], metric: str, planned: int) -> str:
    """Give mean ± standard deviation, followed by the number of seeds where it is not all of them."""
    if score["mean"] is None:
        return NOTHING
    spread = "" if score["std"] is None else f" ± {format_score(score['std'], metric)}"
    return format_score(score["mean"], metric) + spread + _counted(score["n"], planned)


def format_difference(difference: Mapping[str, Any] | None, metric: str, planned: int) -> str:
    """Give mean [low, high] of a paired difference, followed by the number of pairs where it is not all seeds."""
    if difference is None:
        return "baseline"
    if difference["mean"] is None:
        return NOTHING
    interval = f" [{format_interval(difference, metric, ', ')}]" if difference["low"] is not None else ""
    return format_signed(difference["mean"], metric) + interval + _counted(difference["n"], planned)


def format_interval(difference: Mapping[str, Any], metric: str, between: str = " to ") -> str:
    """Give both ends of an interval, signed."""
    return format_signed(difference["low"], metric) + between + format_signed(difference["high"], metric)


def format_plain(value: float | None) -> str:
    """Give a cost with as many decimals as its size deserves: 3.42, 37.60, 375.1, 1,217."""
    if value is None:
        return NOTHING
    return f"{value:,.{2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0}f}"


def format_millions(value: float | None) -> str:
    """Give a count, or bytes, in millions: parameters in M, 1 MB = 10^6 bytes."""
    return NOTHING if value is None else format_plain(value / 1e6)


def format_seeds(seeds: Iterable[int]) -> str:
    """Give "seed 2" or "seeds 0, 2"."""
    listed = list(seeds)
    return f"seed{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"


def format_p(p: float | None) -> str:
    """Give a p-value with three decimals, or say that it is smaller than those can show."""
    return NOTHING if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def format_point(point: Mapping[str, Any]) -> str:
    """Give a grid point as text: learning_rate=0.0001, epochs=3."""
    return ", ".join(f"{field}={value}" for field, value in point.items())


def deciding(part: Part) -> str:
    """Give the score that the comparison is decided by: the test score, or best dev where no arm has been tested."""
    if part.get("deciding"):
        return str(part["deciding"])
    tested = any(run["test"] is not None for arm in part["arms"] for run in arm["runs"])
    return "test" if tested or not part["cells"]["done"] else "best_dev"


def result_cells(part: Part) -> Cells:
    """Give headers and one row per arm of the essays' table, with difference and cost."""
    metric, score = part["metric"], deciding(part)
    headers = [
        "Model",
        f"best dev{unit(metric)}",
        "s/epoch",
        f"after epoch 1{unit(metric)}",
        f"test{unit(metric)}",
        f"{SCORE_NAMES[score]}: difference to first",
        "stored / called M",
        "file MB",
        "peak memory MB",
    ]
    rows = []
    for arm in part["arms"]:
        cost = arm["cost"]
        rows.append(
            [
                arm["arm"],
                format_mean(arm["best_dev"], metric, arm["planned"]),
                format_plain(cost["seconds_per_epoch"]),
                format_mean(arm["epoch1_dev"], metric, arm["planned"]),
                format_mean(arm["test"], metric, arm["planned"]),
                format_difference(arm[score]["difference"], metric, arm["planned"]),
                f"{format_millions(cost['parameters_stored'])} / {format_millions(cost['parameters_called'])}",
                format_millions(cost["file_bytes"]),
                format_millions(cost["peak_memory_bytes"]),
            ]
        )
    return headers, rows


def seed_cells(part: Part) -> Cells:
    """Give headers and one row per arm and planned seed, finished or not."""
    metric, score = part["metric"], deciding(part)
    headers = [
        "Model",
        "seed",
        f"best dev{unit(metric)}",
        "at epoch",
        f"after epoch 1{unit(metric)}",
        f"test{unit(metric)}",
    ]
    headers += [f"{SCORE_NAMES[score]}: difference to first", "state"]
    first = {run["seed"]: run for run in part["arms"][0]["runs"]} if part["arms"] else {}
    rows = []
    for arm in part["arms"]:
        runs = {run["seed"]: run for run in arm["runs"]}
        for seed in part["seeds"]:
            run = runs.get(seed)
            if run is None:
                rows.append([arm["arm"], str(seed), *[NOTHING] * 5, "not finished"])
                continue
            rows.append(
                [
                    arm["arm"],
                    str(seed),
                    *_scored(run, metric),
                    _pair(run, first.get(seed), score, metric),
                    "collapsed" if run["collapsed"] else "finished",
                ]
            )
    return headers, rows


def difference_cells(part: Part) -> Cells:
    """Give headers and one row per arm but the first: what its difference is, and everything said about its certainty.

    Intervals: over seeds with the test items fixed, and over test items with the seeds fixed.
    """
    metric, score = part["metric"], deciding(part)
    headers = [
        "Model",
        f"{SCORE_NAMES[score]}: difference to first",
        "95% over seeds",
        "95% over test items",
        "p, corrected",
        "better in",
        "pairs",
        "seeds needed",
    ]
    rows = []
    for arm in part["arms"][1:]:
        difference = arm[score]["difference"]
        better = difference.get("improvement")
        rows.append(
            [
                arm["arm"],
                format_signed(difference["mean"], metric),
                _interval(difference, metric),
                _interval(difference.get("items"), metric),
                format_p(difference.get("p_corrected")),
                NOTHING if better is None else f"{100 * better:.0f}\u00a0%",
                str(difference["n"]),
                f"{needed:,}" if (needed := difference.get("seeds_needed")) else NOTHING,
            ]
        )
    return headers, rows


DIFFERENCES = (
    "p: paired t-test over seeds, two-sided, Holm-corrected over all comparisons of the study. Better in: how often a "
    "run of the arm beats a run of the first, over all pairs. Seeds needed: in all, to find a difference of this size "
    "and spread four times in five; — where more than 1,000 or unknown."
)


def overview_cells(summary: Summary) -> Cells:
    """Give headers and one row per arm: the mean of the score that decides, for every task."""
    parts = summary["tasks"]
    scores = [(part, deciding(part)) for part in parts]
    headers = [
        f"{part['task']}: {SCORE_NAMES[score]} {metric_name(part['metric'])}{unit(part['metric'])}"
        for part, score in scores
    ]
    rows = []
    for place, arm in enumerate(summary["arms"]):
        results = [(part["arms"][place], score, part["metric"]) for part, score in scores]
        rows.append(
            [arm["arm"], *(format_mean(found[score], metric, found["planned"]) for found, score, metric in results)]
        )
    return ["Model", *headers], rows


def grid_cells(part: Part) -> Cells:
    """Give headers and one row per grid point that was tried, the best of each arm first; no rows without a grid."""
    metric = part["metric"]
    rows = []
    for arm in part["arms"]:
        if len(arm["points"]) < 2:
            continue
        ranked = sorted(arm["points"], key=lambda tried: (tried["best_dev"] is None, -(tried["best_dev"] or 0)))
        for tried in ranked:
            rows.append(
                [
                    arm["arm"],
                    format_point(tried["point"]),
                    f"{tried['done']} of {tried.get('planned', arm['planned'])}",
                    format_score(tried["best_dev"], metric),
                    "chosen" if tried["point"] == arm["point"] else "",
                ]
            )
    return ["Model", "grid point", "seeds done", f"mean best dev{unit(metric)}", "taken for the tables"], rows


def run_cells(summary: Summary, rows: Iterable[Mapping[str, Any]]) -> Cells:
    """Give headers and one row per finished run of all tasks and grid points, and per run that the tables still miss.

    Columns that would say the same everywhere, task and grid point, are left out.
    """
    parts = summary["tasks"]
    several, grid = len(parts) > 1, any(len(arm["points"]) > 1 for part in parts for arm in part["arms"])
    shared = parts[0]["metric"] if len({part["metric"] for part in parts}) == 1 else None
    of = unit(shared) if shared else ""
    headers = [
        *("Model", *(["task"] if several else []), *(["grid point"] if grid else []), "seed"),
        *(f"best dev{of}", "at epoch", f"after epoch 1{of}", f"test{of}", "difference to first", "state"),
    ]
    found: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        points = found.setdefault((row["task"], row["arm"]), {})
        points.setdefault(_key(row.get("point") or {}), []).append(row)
    listed = []
    for part in parts:
        metric, score = part["metric"], deciding(part)
        first = {run["seed"]: run for run in part["arms"][0]["runs"]} if part["arms"] else {}
        for place, arm in enumerate(part["arms"]):
            known = found.get((part["task"], arm["arm"]), {})
            for tried in arm["points"]:
                point, seeds = format_point(tried["point"]), set(part["seeds"])
                opening = [arm["arm"], *([part["task"]] if several else []), *([point] if grid else [])]
                chosen = tried["point"] == arm["point"]
                runs = {row["seed"]: _run(row) for row in known.get(_key(tried["point"]), ()) if row["seed"] in seeds}
                for seed in part["seeds"]:
                    run = runs.get(seed)
                    if run is None and chosen:
                        listed.append([*opening, str(seed), *[NOTHING] * 5, "not finished"])
                    if run is None:
                        continue
                    other = run if chosen and not place else first.get(seed)
                    listed.append(
                        [
                            *opening,
                            str(seed),
                            *_scored(run, metric, "" if shared else unit(metric)),
                            _pair(run, other, score, metric) if chosen else NOTHING,
                            "collapsed" if run["collapsed"] else "finished",
                        ]
                    )
    return headers, listed


def arm_note(arm: Mapping[str, Any]) -> str:
    """Say what must stand beside an arm's name: unfinished seeds, collapsed seeds; empty where all is well."""
    parts = []
    if arm["done"] < arm["planned"]:
        parts.append(f"{arm['done']} of {arm['planned']} seeds done")
    if arm["collapsed"]:
        parts.append(f"{format_seeds(arm['collapsed'])} collapsed")
    return "; ".join(parts)


def arm_setting(arm: Mapping[str, Any], *, grid: bool = True) -> str:
    """Say what else sets an arm apart: the grid point that it stands for, padding that it computes; often nothing."""
    parts = []
    if grid and len(arm["points"]) > 1:
        parts.append(f"{format_point(arm['point'])}, best of {len(arm['points'])} grid points")
    if arm["packed"] is False:
        parts.append("not packed")
    return "; ".join(parts)


def caption(part: Part) -> str:
    """Say what the table's numbers are."""
    scale = " in %" if percent(part["metric"]) else ""
    count = len(part["seeds"])
    spread = f"mean ± standard deviation over {count} seeds" if count > 1 else "one seed"
    text = f"{part['task']}, {metric_name(part['metric'])}{scale}, {spread}."
    if len(part["arms"]) > 1:
        text += f" Differences are to {part['baseline']}, paired by seed, with a 95% t-interval."
    return text


def _key(point: Mapping[str, Any]) -> str:
    """Give a grid point as text, the same whatever the order of its fields."""
    return format_point(dict(sorted(point.items())))


def _run(row: Mapping[str, Any]) -> dict[str, Any]:
    """Give the scores of a row, as they stand under `runs`."""
    kept = {key: row[key] for key in ("seed", "best_dev", "best_epoch", "epoch1_dev", "collapsed")}
    return {**kept, "test": (row.get("test") or {}).get(row["metric"])}


def _scored(run: Mapping[str, Any], metric: str, of: str = "") -> list[str]:
    """Give the scores of one run, each followed by its unit where the header does not say it."""
    best, first, test = (format_score(run[score], metric) for score in ("best_dev", "epoch1_dev", "test"))
    return [best + of, str(run["best_epoch"]), first + of, test if run["test"] is None else test + of]


def _interval(difference: Mapping[str, Any] | None, metric: str) -> str:
    return NOTHING if not difference or difference["low"] is None else format_interval(difference, metric)


def _counted(n: int, planned: int) -> str:
    return "" if n == planned else f" ({n} of {planned})"


def _pair(run: Mapping[str, Any], other: Mapping[str, Any] | None, score: str, metric: str) -> str:
    """Give the difference of one run to the first arm's run of the same seed, where both count."""
    if run is other:
        return "baseline"
    if other is None or run["collapsed"] or other["collapsed"] or run[score] is None or other[score] is None:
        return NOTHING
    return format_signed(run[score] - other[score], metric)
