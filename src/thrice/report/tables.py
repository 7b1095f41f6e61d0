"""The essays' table for the terminal, for Markdown and for the page; every number and sentence is formatted here, once.

A summary is the JSON value that `thrice.compare.results.summarise` gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Summary = Mapping[str, Any]

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


def deciding(summary: Summary) -> str:
    """Give the score that the comparison is decided by: the test score, or best dev where no arm has been tested."""
    tested = any(run["test"] is not None for arm in summary["arms"] for run in arm["runs"])
    return "test" if tested or not summary["cells"]["done"] else "best_dev"


def result_cells(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Give headers and one row per arm of the essays' table, with difference and cost."""
    metric, score = summary["metric"], deciding(summary)
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
    for arm in summary["arms"]:
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


def seed_cells(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Give headers and one row per arm and planned seed, finished or not."""
    metric, score = summary["metric"], deciding(summary)
    headers = [
        "Model",
        "seed",
        f"best dev{unit(metric)}",
        "at epoch",
        f"after epoch 1{unit(metric)}",
        f"test{unit(metric)}",
    ]
    headers += [f"{SCORE_NAMES[score]}: difference to first", "state"]
    first = {run["seed"]: run for run in summary["arms"][0]["runs"]} if summary["arms"] else {}
    rows = []
    for arm in summary["arms"]:
        runs = {run["seed"]: run for run in arm["runs"]}
        for seed in summary["seeds"]:
            run = runs.get(seed)
            if run is None:
                rows.append([arm["arm"], str(seed), *[NOTHING] * 5, "not finished"])
                continue
            rows.append(
                [
                    arm["arm"],
                    str(seed),
                    format_score(run["best_dev"], metric),
                    str(run["best_epoch"]),
                    format_score(run["epoch1_dev"], metric),
                    format_score(run["test"], metric),
                    _pair(run, first.get(seed), score, metric),
                    "collapsed" if run["collapsed"] else "finished",
                ]
            )
    return headers, rows


def cost_cells(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Give headers and one row per arm of everything that cost.json measured, steps also relative to the first arm."""
    headers = [
        "Model",
        "stored parameters M",
        "called parameters M",
        "file MB",
        "peak memory MB",
        "s/epoch",
        "step ms, median [range]",
        "step / first arm",
    ]
    steps = [(arm["cost"]["step_ms"] or {}).get("median") for arm in summary["arms"]]
    rows = []
    for arm, step in zip(summary["arms"], steps, strict=True):
        cost = arm["cost"]
        values = (cost["step_ms"] or {}).get("values") or []
        spread = f" [{format_plain(min(values))}, {format_plain(max(values))}]" if len(values) > 1 else ""
        rows.append(
            [
                arm["arm"],
                format_millions(cost["parameters_stored"]),
                format_millions(cost["parameters_called"]),
                format_millions(cost["file_bytes"]),
                format_millions(cost["peak_memory_bytes"]),
                format_plain(cost["seconds_per_epoch"]),
                format_plain(step) + spread,
                f"× {step / steps[0]:.2f}" if step and steps[0] else NOTHING,
            ]
        )
    return headers, rows


def arm_note(arm: Mapping[str, Any]) -> str:
    """Say what must stand beside an arm's name: unfinished seeds, collapsed seeds; empty where all is well."""
    parts = []
    if arm["done"] < arm["planned"]:
        parts.append(f"{arm['done']} of {arm['planned']} seeds done")
    if arm["collapsed"]:
        parts.append(f"{format_seeds(arm['collapsed'])} collapsed")
    return "; ".join(parts)


def caption(summary: Summary) -> str:
    """Say what the table's numbers are."""
    scale = " in %" if percent(summary["metric"]) else ""
    count = len(summary["seeds"])
    spread = f"mean ± standard deviation over {count} seeds" if count > 1 else "one seed"
    text = f"{summary['task']}, {metric_name(summary['metric'])}{scale}, {spread}."
    if len(summary["arms"]) > 1:
        text += f" Differences are to {summary['baseline']}, paired by seed, with a 95% t-interval."
    return text


def terminal_table(summary: Summary, *, width: int = 80) -> RenderableType:
    """Give the essays' table for a terminal of that many columns.

    Where one table is too wide it becomes two, scores and cost, and arms that share a model lose its name:
    zoo:albert-nano-zh+none is printed as …+none below a line that says what the dots stand for.
    """
    from rich.console import Group

    headers, rows = result_cells(summary)
    names = ["\n".join([arm["arm"], *filter(None, arm_note(arm).split("; "))]) for arm in summary["arms"]]
    whole = [[name, *row[1:]] for name, row in zip(names, rows, strict=True)]
    if _natural_width([headers, *whole]) <= width:
        return _rich_table(headers, whole, caption(summary), width)
    short, said = _short(names)
    heads = [*headers[:3], headers[3].replace(" epoch", "\nepoch"), headers[4], headers[5].replace(": ", ":\n")]
    heads[5] = heads[5].replace(" to first", "\nto first")
    scores = [
        [name, *(cell.replace(" [", "\n[").replace(" (", "\n(") for cell in row[1:6])]
        for name, row in zip(short, rows, strict=True)
    ]
    costs = [[name.split("\n")[0], *row[6:]] for name, row in zip(short, rows, strict=True)]
    return Group(
        _rich_table(heads, scores, "", width),
        _rich_table([headers[0], *headers[6:]], costs, f"{caption(summary)}{said}", width),
    )


def seed_table(summary: Summary, *, width: int = 80) -> Table:
    """Give the table of every seed for a terminal of that many columns."""
    headers, rows = seed_cells(summary)
    said = "Every seed. A collapsed run is shown and never averaged."
    if _natural_width([headers, *rows]) <= width:
        return _rich_table(headers, rows, said, width)
    headers = [header.replace(" ", "\n", 1).replace(": ", ":\n").replace(" to", "\nto") for header in headers]
    short, meaning = _short([row[0] for row in rows])
    return _rich_table(
        headers, [[name, *row[1:]] for name, row in zip(short, rows, strict=True)], said + meaning, width
    )


def markdown_table(summary: Summary) -> str:
    """Give the essays' table as GitHub Markdown, its caption below it."""
    headers, rows = result_cells(summary)
    lines = [headers, [":--", *["--:"] * (len(headers) - 1)]]
    for row, arm in zip(rows, summary["arms"], strict=True):
        note = arm_note(arm)
        lines.append([_markdown(row[0]) + (f" ({note})" if note else ""), *row[1:]])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{_markdown(caption(summary))}\n"


def _rich_table(headers: list[str], rows: list[list[str]], text: str, width: int) -> Table:
    """Build a rich table whose cells are plain text: an arm called "[bold]" stays what it is."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD,
        caption=Text(text, style="dim") if text else None,
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    # Names give way before numbers do; numbers fold only where a name would keep fewer than 8 columns.
    roomy = _natural_width([headers[1:], *(row[1:] for row in rows)]) + 10 <= width
    for place, header in enumerate(headers):
        table.add_column(
            Text(header), justify="right" if place else "left", overflow="fold", no_wrap=roomy and place > 0
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _natural_width(lines: list[list[str]]) -> int:
    """Give the columns of a terminal that a table needs where no cell is folded."""
    columns = zip(*lines, strict=True)
    return sum(2 + max(len(part) for cell in column for part in cell.split("\n")) for column in columns)


def _short(names: list[str]) -> tuple[list[str], str]:
    """Leave out the model that several arms share before their pattern; give the names and what the dots mean."""
    stems = [name.split("\n")[0].rpartition("+")[0] for name in names]
    stem = max(stems, key=lambda stem: stems.count(stem) if stem else 0, default="")
    if not stem or stems.count(stem) < 2:
        return names, ""
    return [f"…{name.removeprefix(stem)}" if name.startswith(f"{stem}+") else name for name in names], f" … is {stem}."


def _markdown(text: str) -> str:
    """Escape what would end a cell or start markup."""
    for sign, safe in {"\\": "\\\\", "|": "\\|", "<": "&lt;", "\n": " ", "`": "\\`", "*": "\\*"}.items():
        text = text.replace(sign, safe)
    return text


def _counted(n: int, planned: int) -> str:
    return "" if n == planned else f" ({n} of {planned})"


def _pair(run: Mapping[str, Any], other: Mapping[str, Any] | None, score: str, metric: str) -> str:
    """Give the difference of one run to the first arm's run of the same seed, where both count."""
    if run is other:
        return "baseline"
    if other is None or run["collapsed"] or other["collapsed"] or run[score] is None or other[score] is None:
        return NOTHING
    return format_signed(run[score] - other[score], metric)
