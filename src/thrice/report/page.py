"""The report of a study as one HTML file that asks for nothing outside itself."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from thrice.files import write_atomically
from thrice.report import charts, cost, facts, tables
from thrice.report.verdict import headline, verdict

# On the page every colour is a CSS variable, so that one drawing serves light, dark and paper.
ON_PAGE = charts.Colours(
    ink="var(--ink)",
    muted="var(--muted)",
    grid="var(--line)",
    background="var(--paper)",
    arms=tuple(f"var(--arm-{place})" for place in range(len(charts.LIGHT.arms))),
    memory=tuple(f"var(--memory-{place})" for place in range(len(charts.LIGHT.memory))),
)

LISTED = 200
"""Rows of one table that stand in the page as HTML; of the runs, the others as JSON that the script shows in pages."""

MOST_DRAWN = 1_000_000
"""Characters of pictures after which further tasks have none; a page of fifty tasks stays one that opens."""

Rows = Iterable[Mapping[str, Any]]


def write_report(summary: tables.Summary, rows: Rows, path: Path) -> Path:
    """Write the report of a study, finished or not, and give its path.

    summary: what `thrice.compare.summary.summarise` gives; rows: what `read_rows` gives.
    The file opens offline: Vega is inlined once (0.9 MB) and a content security policy forbids every request.
    """
    return write_atomically(Path(path), render_report(summary, rows))


def render_report(summary: tables.Summary, rows: Rows) -> str:
    """Give the report as HTML text; everything that comes from the study is escaped.

    Time and size grow with the number of rows; pictures hold some thousand points however many there are, and after
    MOST_DRAWN characters of them the sections of further tasks have tables alone.
    """
    import jinja2

    rows = list(rows)
    by_task: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_task.setdefault(row["task"], []).append(row)
    parts, study = summary["tasks"], dict(summary["study"])
    said = facts.data_facts(study)
    tasks, drawn = [], 0
    for place, part in enumerate(parts):
        tasks.append(_task(part, said))
        if drawn < MOST_DRAWN:
            tasks[-1]["charts"] = _charts(place, part, by_task.get(part["task"], []))
            drawn += sum(len(json.dumps(chart["spec"])) for chart in tasks[-1]["charts"])
        else:
            tasks[-1]["undrawn"] = True
    across = (
        _drawn([("overview-differences", charts.differences(parts, colours=ON_PAGE), FOREST, True)]) if parts else []
    )
    memory = _drawn([("memory", charts.memory_split(summary, colours=ON_PAGE), "Measured on the first task.", True)])
    pictures = [*(across if len(parts) > 1 else []), *memory, *(chart for task in tasks for chart in task["charts"])]
    command = facts.command_of(study)
    for known in ("command", "notes"):
        study.pop(known, None)
    finished = facts.last_finished(rows)
    bundle = _bundle() if pictures else ""
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html").render(
        summary=summary,
        several=len(parts) > 1,
        headline=headline(summary),
        notes=facts.all_notes(summary),
        places={arm["arm"]: place for place, arm in enumerate(summary["arms"])},
        styles=[charts.arm_style(place, ON_PAGE) for place in range(len(summary["arms"]))],
        overview={"cells": tables.overview_cells(summary), "charts": across},
        tasks=tasks,
        differences_caption=tables.DIFFERENCES,
        cost={
            "words": cost.cost_words(summary),
            "prediction": cost.prediction_cells(summary),
            "training": cost.training_cells(summary),
            "steps": cost.step_cells(summary),
            "settings": _not_packed(summary),
            "charts": memory,
        },
        seeds=_seeds(tables.run_cells(summary, rows), [arm["arm"] for arm in summary["arms"]]),
        specs={chart["id"]: chart["spec"] for chart in pictures},
        bundle=bundle,
        script=script,
        script_hashes=" ".join(_hash(text) for text in (bundle, script) if text),
        command=command,
        study={**study, **({"last_cell_finished": finished} if finished else {})},
        light=charts.LIGHT,
        dark=charts.DARK,
    )


FOREST = (
    "Thick: 95% interval over seeds. Thin, below: 95% interval over test items with these seeds. Dashed: no difference."
)


def _task(part: tables.Part, said: Mapping[str, list[str]]) -> dict[str, Any]:
    """Give all that the section of one task shows."""
    headers, tried = tables.grid_cells(part)
    return {
        "name": part["task"],
        "metric": tables.metric_name(part["metric"]),
        "facts": said.get(part["task"], []),
        "verdict": verdict(part),
        "caption": tables.caption(part),
        "notes": [tables.arm_note(arm) for arm in part["arms"]],
        "settings": [tables.arm_setting(arm) for arm in part["arms"]],
        "result": tables.result_cells(part),
        "differences": tables.difference_cells(part),
        "grid": (headers, tried[:LISTED]),
        "grid_points": len(tried),
        "disagreements": [_counted(item) for item in part["disagreements"]],
        "charts": [],
        "undrawn": False,
    }


def _counted(item: Mapping[str, Any]) -> dict[str, Any]:
    """Give a disagreement with every arm's answers counted over its seeds: "spam ×2, ham ×1"; one alone without."""
    said = {}
    for arm, answers in item["answers"].items():
        counts = Counter(map(str, answers)).most_common()
        said[arm] = ", ".join(f"{answer} ×{count}" if len(answers) > 1 else answer for answer, count in counts)
    return {**item, "answers": said}


def _charts(place: int, part: tables.Part, rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Give id, title, caption and spec of every picture of a task that has something to show."""
    curves = charts.learning_curves(part, rows, colours=ON_PAGE)
    if curves is not None and "bands" in curves.datasets:
        said = "Lines: medians. Bands: 80% of the runs. Large marks: epoch 1."
    else:
        said = (
            "Thin lines: single seeds. Thick lines: means over the seeds that did not collapse. Large marks: epoch 1."
        )
    if any(arm["collapsed"] for arm in part["arms"]):
        said += " Dotted: collapsed runs, on the lower edge where they lie below it." if "Thin" in said else ""
    if curves is not None and curves.datasets["levels"]:
        said += " Dashed level: an arm that is fitted once and has no later epochs."
    wanted = [
        (f"curves-{place}", curves, said, True),
        (f"differences-{place}", charts.differences([part], colours=ON_PAGE), FOREST, False),
        (f"classes-{place}", charts.class_scores(part, colours=ON_PAGE), CLASSES, False),
    ]
    for name, key in PRICES.items():
        marks = (
            "Large marks: means; their area grows with the stored parameters. Dots: single seeds. Lines: their range. "
        )
        marks += "Stepped: no other arm is both cheaper and better."
        absent = charts.not_drawn(part, key)
        marks += f" Not measured, so not drawn: {', '.join(absent)}." if absent else ""
        wanted.append((f"{name}-{place}", charts.score_against_cost(part, key, colours=ON_PAGE), marks, False))
    return _drawn(wanted)


PRICES = {
    "latency": "latency_long_ms",
    "size": "file_bytes",
    "time": "seconds_per_epoch",
    "memory": "peak_memory_bytes",
}
"""The costs against which scores are drawn, by the name of the picture."""

CLASSES = (
    "From the answers on the test set, over all seeds that did not collapse. Lines: from the lowest arm to the highest."
)


def _drawn(wanted: Sequence[tuple[str, Any, str, bool]]) -> list[dict[str, Any]]:
    return [
        {"id": name, "title": chart.title.text, "caption": caption, "spec": _on_page(chart), "whole": whole}
        for name, chart, caption, whole in wanted
        if chart is not None
    ]


def _on_page(chart: Any) -> dict[str, Any]:
    """Fit a chart into the page: as wide as its place, without title and legend of arms, which the page has itself."""
    spec = charts.specification(chart)
    for layer in spec["layer"]:
        for channel in ("color", "shape", "size"):
            if channel in layer["encoding"] and layer["encoding"][channel].get("field") != "part":
                layer["encoding"][channel]["legend"] = None
    kept = {key: value for key, value in spec.items() if key not in ("$schema", "title")}
    return {**kept, "width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


def _seeds(cells: tables.Cells, arms: list[str]) -> dict[str, Any]:
    """Give the table of runs: its first rows, what can be filtered, and of long tables all rows in compact form.

    Columns that repeat few words are embedded as numbers that point into a list of them.
    """
    headers, rows = cells
    words = {column: list(dict.fromkeys(row[column] for row in rows)) for column in _named(headers)}
    words[0] = arms
    filters = [
        {"name": name if name != "Model" else "arm", "column": column, "choices": words[column]}
        for column, name in enumerate(headers)
        if name in ("Model", "task", "state")
    ]
    data = None
    if len(rows) > LISTED:
        places = {column: {word: place for place, word in enumerate(listed)} for column, listed in words.items()}
        compact = [
            [places[column][cell] if column in places else cell for column, cell in enumerate(row)] for row in rows
        ]
        data = {"words": words, "rows": compact}
    return {
        "headers": headers,
        "rows": rows[:LISTED],
        "count": len(rows),
        "listed": LISTED,
        "filters": filters,
        "data": data,
    }


def _named(headers: Sequence[str]) -> list[int]:
    return [column for column, name in enumerate(headers) if name in ("Model", "task", "grid point", "state")]


def _not_packed(summary: tables.Summary) -> list[str]:
    """Say, per arm, whether it computes its padding too."""
    padded = {arm["arm"] for part in summary["tasks"] for arm in part["arms"] if arm["packed"] is False}
    return ["not packed" if arm["arm"] in padded else "" for arm in summary["arms"]]


def _hash(script: str) -> str:
    """Give a script's name in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode('utf-8')).digest()).decode('ascii')}'"


@functools.cache
def _bundle() -> str:
    """Give Vega, Vega-Lite and Vega-Embed as one script, about 2.5 seconds the first time."""
    import vl_convert

    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # Inside a page "</script" would end the script, and a carriage return would change its hash.
    return script.replace("</script", "<\\/script").replace("\r", "")
