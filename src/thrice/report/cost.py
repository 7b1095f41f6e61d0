"""What the arms of a study cost: tables, and what may be concluded from them in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from thrice.report.tables import NOTHING, Cells, Summary, format_millions, format_plain

TIMES = {
    "latency_short_ms": "one short text",
    "latency_long_ms": "one long text",
    "step_ms": "a training step",
    "prediction_tokens_per_second": "many texts at once",
}
"""What was timed twice for the control."""

ONE_TEXT = ("latency_short_ms", "latency_long_ms")
IN_BULK = "prediction_tokens_per_second"

MEMORY = {"weights": "weights", "gradients": "gradients", "optimizer": "optimiser", "activations": "activations"}


def cost_of(cost: Mapping[str, Any], name: str) -> float | None:
    """Give one cost as one number: of times that are several, the median."""
    value = cost.get(name)
    if isinstance(value, Mapping):
        value = value.get("p50", value.get("median"))
    return value


def prediction_cells(summary: Summary) -> Cells:
    """Give headers and one row per arm of what it costs to keep and to use."""
    headers = [
        "Model",
        "stored / called M",
        "file MB: float32 / 16 / int8",
        "MFLOPs per token",
        "short text ms: p50 / p95",
        "long text ms: p50 / p95",
        "tokens/s",
    ]
    rows = []
    for arm in summary["arms"]:
        cost = arm["cost"]
        sizes = ("file_bytes", "file_bytes_float16", "file_bytes_int8")
        rows.append(
            [
                arm["arm"],
                _several(format_millions(cost[key]) for key in ("parameters_stored", "parameters_called")),
                _several(format_millions(cost[key]) for key in sizes),
                format_millions(cost["flops_per_token"]),
                _quantiles(cost["latency_short_ms"]),
                _quantiles(cost["latency_long_ms"]),
                _whole(cost["prediction_tokens_per_second"]),
            ]
        )
    return headers, rows


def training_cells(summary: Summary) -> Cells:
    """Give headers and one row per arm of what it costs to train: operations, speed and memory at its peak."""
    headers = [
        "Model",
        "MFLOPs per token",
        "tokens/s",
        "peak memory MB",
        *(f"{name} MB" for name in MEMORY.values()),
    ]
    rows = []
    for arm in summary["arms"]:
        cost = arm["cost"]
        split = cost["memory"] or {}
        rows.append(
            [
                arm["arm"],
                format_millions(cost["flops_per_token_training"]),
                _whole(cost["training_tokens_per_second"]),
                format_millions(cost["peak_memory_bytes"]),
                *(format_millions(split.get(key)) for key in MEMORY),
            ]
        )
    return headers, rows


def step_cells(summary: Summary) -> Cells:
    """Give headers and one row per arm and task of the time that training takes there."""
    several = len(summary["tasks"]) > 1
    headers = [
        *("Model", *(["task"] if several else [])),
        *("s/epoch", "step ms, median [range]", "step / first arm"),
    ]
    rows = []
    for part in summary["tasks"]:
        steps = [cost_of(arm["cost"], "step_ms") for arm in part["arms"]]
        for arm, step in zip(part["arms"], steps, strict=True):
            values = (arm["cost"]["step_ms"] or {}).get("values") or []
            spread = f" [{format_plain(min(values))}, {format_plain(max(values))}]" if len(values) > 1 else ""
            rows.append(
                [
                    *(arm["arm"], *([part["task"]] if several else [])),
                    format_plain(arm["cost"]["seconds_per_epoch"]),
                    format_plain(step) + spread,
                    f"× {step / steps[0]:.2f}" if step and steps[0] else NOTHING,
                ]
            )
    return headers, rows


def cost_words(summary: Summary) -> list[str]:
    """Say what the noise of the times is and whether arms of equal called parameters are equally fast.

    The noise comes from the control: the first arm, built and measured a second time. Empty where no time was measured.
    """
    said = []
    noises = control_noise(summary)
    if noises:
        low, high = (_per_cent(choose(noises.values())) for choose in (min, max))
        by = low if low == high else f"{low} to {high}"
        said.append(f"The same model measured twice differs by {by}: smaller differences in time mean nothing.")
    elif any(cost_of(arm["cost"], name) for arm in summary["arms"] for name in TIMES if name in arm["cost"]):
        said.append("No arm was measured twice, so how far times differ by chance is not known.")
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for arm in summary["arms"]:
        if arm["cost"]["parameters_called"] and any(cost_of(arm["cost"], name) for name in ONE_TEXT):
            groups.setdefault((arm["cost"]["parameters_called"], arm["cost"].get("packed")), []).append(arm)
    said += [_same_speed(arms, noises) for arms in groups.values() if len(arms) > 1]
    return said


def control_noise(summary: Summary) -> dict[str, float]:
    """Give by how much of itself each time of the first arm differed when it was measured again: 0.02 for 2%."""
    ratios = (summary["cost_control"] or {}).get("ratios") or {}
    return {name: max(ratio, 1 / ratio) - 1 for name in TIMES if (ratio := ratios.get(name))}


def _same_speed(arms: list[Mapping[str, Any]], noises: Mapping[str, float]) -> str:
    """Say whether arms that call the same parameters answer equally fast, as the essays say they must."""
    shares = len({arm["cost"]["parameters_stored"] for arm in arms}) > 1
    whom = "shared and un-shared" if shares else "arms that call the same parameters"
    found = {}
    for name in (*ONE_TEXT, IN_BULK):
        times = {arm["arm"]: time for arm in arms if (time := _time_of(arm["cost"], name))}
        if len(times) > 1:
            slow, fast = (choose(times, key=lambda arm: times[arm]) for choose in (max, min))
            found[name] = (times[slow] / times[fast], slow, fast)
    if not found:
        return f"Whether {whom} run at the same speed was not measured."
    figures = {name: f"{ratio:.2f} times for {TIMES[name]}" for name, (ratio, _, _) in found.items()}
    called = format_millions(arms[0]["cost"]["parameters_called"])
    opening = f"{whom[0].upper()}{whom[1:]} ({called} M called parameters each)"
    if not noises:
        return f"{opening} differ by {_listed(figures.values())}; whether that is noise is not known."
    noise = max(noises.values())
    apart = [name for name, (ratio, _, _) in found.items() if ratio - 1 > noise]
    if not apart:
        return f"{opening} run at the same speed within the noise of this measurement: {_listed(figures.values())}."
    stored = {arm["arm"]: arm["cost"]["parameters_stored"] or 0 for arm in arms}
    larger_is_slower = all(stored[found[name][1]] > stored[found[name][2]] for name in apart)
    said = _listed(figures[name] for name in apart)
    control = f"the same model measured twice differs by {_per_cent(noise)} at most"
    if IN_BULK in found and IN_BULK not in apart and larger_is_slower:
        return (
            f"{opening} run at the same speed within the noise of this measurement where there is much to do: "
            f"{figures[IN_BULK]}. One text alone takes the un-shared longer, {said}, while {control}; perhaps one "
            "shared layer stays in the processor's cache from depth to depth where separate ones are fetched."
        )
    if larger_is_slower:
        return (
            f"{opening} do the same work and are not equally fast here: {_listed(figures.values())}, the one that "
            f"stores more being slower, while {control}; perhaps one shared layer stays in the processor's cache from "
            "depth to depth where separate ones are fetched."
        )
    worst = max(found[name] for name in apart)
    return (
        f"{opening} do not run at the same speed here: {_listed(figures.values())}, while {control}. Slowest is "
        f"{worst[1]}, fastest {worst[2]}; sharing alone explains no such difference, so look for what else differs, or "
        "for a busy machine."
    )


def _time_of(cost: Mapping[str, Any], name: str) -> float | None:
    """Give a cost as a time, of speeds that per token."""
    value = cost_of(cost, name)
    return 1 / value if value and name == IN_BULK else value


def _listed(texts: Iterable[str]) -> str:
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last


def _per_cent(share: float) -> str:
    return f"{100 * share:.{1 if share < 0.0995 else 0}f}%"


def _quantiles(times: Mapping[str, Any] | None) -> str:
    return _several(format_plain((times or {}).get(key)) for key in ("p50", "p95"))


def _several(texts: Iterable[str]) -> str:
    """Join numbers with slashes, unless there is not one."""
    listed = list(texts)
    return NOTHING if set(listed) == {NOTHING} else " / ".join(listed)


def _whole(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"
