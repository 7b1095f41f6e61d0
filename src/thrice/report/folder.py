"""All files of a report, written into the folder of its study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from thrice.files import write_atomically
from thrice.report import charts
from thrice.report.flat import write_rows
from thrice.report.markdown import markdown_report
from thrice.report.page import write_report
from thrice.report.tables import Summary


def write_all(
    summary: Summary, rows: Iterable[Mapping[str, Any]], folder: Path, *, pictures: bool = False
) -> dict[str, Path]:
    """Write report.html, report.md, rows.csv and rows.parquet, and pictures where asked; give every path by its name.

    Names: "page", "markdown", "csv", "parquet", and "charts/NAME.png" and "charts/NAME.svg" for every picture.
    """
    rows, folder = list(rows), Path(folder)
    paths = {
        "page": write_report(summary, rows, folder / "report.html"),
        "markdown": write_atomically(folder / "report.md", markdown_report(summary)),
        **write_rows(rows, folder),
    }
    if pictures:
        drawn = write_charts(summary, rows, folder / "charts")
        paths |= {f"charts/{path.name}": path for path in drawn}
    return paths


def write_charts(summary: Summary, rows: Iterable[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write every picture of a study in light colours as PNG and SVG and give the paths.

    Names say what is drawn and, with several tasks, the place of the task in the study: learning-curves-0.png.
    """
    import vl_convert

    rows, parts, written = list(rows), summary["tasks"], []
    wanted = {"memory": charts.memory_split(summary)}
    if len(parts) > 1:
        wanted["differences"] = charts.differences(parts)
    for place, part in enumerate(parts):
        of = f"-{place}" if len(parts) > 1 else ""
        wanted[f"learning-curves{of}"] = charts.learning_curves(part, rows)
        wanted[f"differences{of}"] = charts.differences([part])
        wanted[f"classes{of}"] = charts.class_scores(part)
        for cost in charts.COSTS:
            wanted[f"score-{cost.replace('_', '-')}{of}"] = charts.score_against_cost(part, cost)
    for name, chart in wanted.items():
        if chart is None:
            continue
        spec = charts.specification(chart)
        opening, colon, finding = spec["title"]["text"].partition(": ")
        spec["title"]["text"] = [opening + colon.strip(), finding] if colon else opening  # a line is cut at no width
        spec["config"]["font"] = "sans-serif"  # of the fonts a page names, a converter without a browser may have none
        written.append(write_atomically(folder / f"{name}.png", vl_convert.vegalite_to_png(spec, scale=2)))
        written.append(write_atomically(folder / f"{name}.svg", vl_convert.vegalite_to_svg(spec)))
    return written
