"""The report of a study as one HTML file that asks for nothing outside itself."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from thrice.files import write_atomically
from thrice.report import charts, tables
from thrice.report import verdict as words

# On the page every colour is a CSS variable, so that one drawing serves light, dark and paper.
ON_PAGE = charts.Colours(
    ink="var(--ink)",
    muted="var(--muted)",
    grid="var(--line)",
    background="var(--paper)",
    arms=tuple(f"var(--arm-{place})" for place in range(len(charts.LIGHT.arms))),
)

# `ast` makes Vega interpret its expressions: the page's security policy forbids building code from strings.
DRAWING = """
const options = {mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false,
                 tooltip: {disableDefaultStyle: true}};
const specs = JSON.parse(document.getElementById("specs").textContent);
Promise.all(Object.entries(specs).map(([id, spec]) => vegaEmbed("#" + id, spec, options).catch((error) => {
  document.getElementById(id).textContent = "This picture could not be drawn: " + error.message;
  console.error(error);
}))).then(() => { document.documentElement.dataset.charts = "drawn"; });
"""


def write_report(summary: tables.Summary, rows: Iterable[Mapping[str, Any]], path: Path) -> Path:
    """Write the report of a study, finished or not, and give its path.

    summary: what `thrice.compare.results.summarise` gives; rows: what `read_rows` gives.
    The file opens offline: Vega is inlined once (0.9 MB) and a content security policy forbids every request.
    """
    return write_atomically(Path(path), render_report(summary, rows))


def render_report(summary: tables.Summary, rows: Iterable[Mapping[str, Any]]) -> str:
    """Give the report as HTML text; everything that comes from the study is escaped."""
    import jinja2

    rows = list(rows)
    drawn = _charts(summary, rows)
    bundle = _bundle() if drawn else ""
    study = dict(summary["study"])
    command, study_notes = study.pop("command", None), study.pop("notes", None) or []
    finished = max((str(row["finished"]) for row in rows if row.get("finished")), default=None)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html").render(
        summary=summary,
        metric=tables.metric_name(summary["metric"]),
        data=_data(study.get("data")),
        verdict=words.verdict(summary),
        notes=[*words.notes(summary), *study_notes],
        caption=tables.caption(summary),
        arm_notes=[tables.arm_note(arm) for arm in summary["arms"]],
        styles=[charts.arm_style(place, ON_PAGE) for place in range(len(summary["arms"]))],
        result=_table(tables.result_cells(summary)),
        seeds=_table(tables.seed_cells(summary)),
        costs=_table(tables.cost_cells(summary)),
        charts=drawn,
        specs={chart["id"]: chart["spec"] for chart in drawn},
        bundle=bundle,
        drawing=DRAWING,
        script_hashes=f"{_hash(bundle)} {_hash(DRAWING)}" if drawn else "'none'",
        command=command if command is None or isinstance(command, str) else " ".join(map(str, command)),
        study={**study, **({"last_cell_finished": finished} if finished else {})},
        light=charts.LIGHT,
        dark=charts.DARK,
    )


def _data(parts: Any) -> list[str]:
    """Say in short where the examples come from and how many rows each part has.

    parts: {"train": {"source", "rows", ...}, "dev": ..., ...} of study.json.
    """
    known = {name: part for name, part in parts.items() if isinstance(part, Mapping)} if parts else {}
    sources = dict.fromkeys(str(part["source"]) for part in known.values() if part.get("source"))
    sizes = [f"{part['rows']:,} {name}" for name, part in known.items() if isinstance(part.get("rows"), int)]
    return [*sources, *([", ".join(sizes)] if sizes else [])]


def _charts(summary: tables.Summary, rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Give id, title, caption and spec of every picture that has something to show."""
    curves = "Thin lines: single seeds. Thick lines: means over the seeds that did not collapse. Large marks: epoch 1."
    if any(row["collapsed"] for row in rows):
        curves += " Dotted: collapsed runs, on the lower edge where they lie below it."
    if len({len(row["epochs"]) for row in rows}) > 1:
        curves += " Dashed level: an arm that is fitted once and has no later epochs."
    wanted = [("learning-curves", charts.learning_curves(summary, rows, colours=ON_PAGE), curves)]
    for cost, name in (("seconds_per_epoch", "score-time"), ("file_bytes", "score-size")):
        marks = (
            "Large marks: means; their area grows with the stored parameters. Dots: single seeds. Lines: their range."
        )
        absent = charts.not_drawn(summary, cost)
        marks += f" Not measured, so not drawn: {', '.join(absent)}." if absent else ""
        wanted.append((name, charts.score_against_cost(summary, cost, colours=ON_PAGE), marks))
    return [
        {"id": name, "title": chart.title.text, "caption": caption, "spec": _on_page(chart)}
        for name, chart, caption in wanted
        if chart is not None
    ]


def _on_page(chart: charts.Chart) -> dict[str, Any]:
    """Fit a chart into the page: as wide as its place, without title and legends, which the page has itself."""
    # altair checks every value of a dataset against its schema, 14 seconds for 10,000 points: they go round it.
    datasets, chart.datasets = chart.datasets, {}
    spec = chart.to_dict()
    for layer in spec["layer"]:
        for channel in ("color", "shape", "size"):
            if channel in layer["encoding"]:
                layer["encoding"][channel]["legend"] = None
    kept = {key: value for key, value in spec.items() if key not in ("$schema", "title")}
    return {**kept, "datasets": datasets, "width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


def _table(cells: tuple[list[str], list[list[str]]]) -> dict[str, Any]:
    headers, rows = cells
    return {"headers": headers, "rows": rows}


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
