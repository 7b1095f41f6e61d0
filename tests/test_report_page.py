"""The page of a study: whole, offline, escaped, and small however many runs there are."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from studies import full_study, make_row, write_study
from studies_of_report import EVIL, many_runs, summary_of, two_tasks

from thrice import report
from thrice.compare.results import read_rows
from thrice.compare.summary import summarise
from thrice.report import charts, tables
from thrice.report.page import LISTED, render_report


def printed(renderable: Any, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


class Page(HTMLParser):
    """Collects what a page holds: elements with their attributes, and the text of scripts and of everything else."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts[-1] += data
        elif self._open != "style":
            self.text += data


def page_of(study: Path) -> Page:
    path = report.write_report(summarise(study), read_rows(study), study / "report.html")
    return Page(path.read_text(encoding="utf-8"))


def test_page_asks_for_nothing_outside_itself(tmp_path: Path) -> None:
    study = full_study(tmp_path)
    page = page_of(study)
    assert (study / "report.html").stat().st_size < 3_000_000
    links = [value for _, attributes in page.elements for key, value in attributes.items() if key in ("src", "href")]
    assert len(links) >= 6
    assert [link for link in links if not (link or "").startswith("#")] == []
    own = page.scripts[0] + page.scripts[-1] + page.text
    assert "http" not in own.replace("application", "")
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert (policy or "").startswith("default-src 'none'")


def test_security_policy_names_exactly_the_two_scripts_that_run(tmp_path: Path) -> None:
    page = page_of(full_study(tmp_path))
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.scripts[1:]]
    assert len(page.scripts) == 3
    allowed = policy.split("script-src ")[1].split(";")[0]
    assert allowed == " ".join(f"'sha256-{digest}'" for digest in hashes)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    study = full_study(tmp_path, arms=(EVIL, '"><img src=x onerror=alert(2)>', "{{ 7 * 7 }}", "</style><b>"))
    kept = json.loads((study / "study.json").read_text())
    kept["command"] = f"thrice compare '{EVIL}'"
    kept["data"]["classification"]["train"]["source"] = EVIL
    kept["notes"] = [EVIL]
    kept["versions"][EVIL] = [EVIL, {"a": EVIL}]
    (study / "study.json").write_text(json.dumps(kept))
    page = page_of(study)
    assert len(page.scripts) == 3
    assert "img" not in {tag for tag, _ in page.elements}
    assert not [key for _, attributes in page.elements for key in attributes if key.startswith("on")]
    assert page.text.count(EVIL) >= 8
    assert "{{ 7 * 7 }}" in page.text
    assert EVIL not in page.scripts[0]
    assert EVIL in json.dumps(json.loads(page.scripts[0]))


def test_page_holds_tables_words_and_provenance(tmp_path: Path) -> None:
    study = full_study(tmp_path)
    page = page_of(study)
    summary = summarise(study)
    for text in (
        report.headline(summary),
        *report.all_notes(summary),
        tables.caption(summary["tasks"][0]),
        "+0.43 [−0.19, +1.06]",
        "not finished",
        "× 1.05",
        "median of 30 interleaved steps",
        "thrice compare a b --data reviews.csv --out study/",
        "reviews.csv",
        "8,000 train, 1,000 dev, 1,000 test",
        "12 texts of test also stand in train",
        "5f2b" * 16,
        "0.0001",
        "some processor",
        "2026-01-03T10:00:00+00:00",
    ):
        assert text in page.text
    assert sum(tag == "caption" for tag, _ in page.elements) == sum(tag == "table" for tag, _ in page.elements) == 6
    assert sum(a.get("class") == "chart" and bool(a["aria-label"]) for _, a in page.elements) == 8


def test_page_has_a_section_for_every_task(tmp_path: Path) -> None:
    text = f"</script>{EVIL}<b>fett</b>"
    study = two_tasks(tmp_path, text=text)
    page = page_of(study)
    summary = summarise(study)
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert {"overview", "task-0", "task-1", "cost", "seeds", "overview-differences", "curves-1", "memory"} <= ids
    for part in summary["tasks"]:
        assert report.verdict(part) in page.text
    assert page.text.count(text) == 1
    assert "learning_rate=0.0003, best of 2 grid points" in page.text
    assert "not packed" in page.text
    assert page.text.count("Where the arms disagree most") == 2
    assert "1 ×2, 0 ×1" in page.text
    assert "(33% right)" in page.text


def test_every_table_is_sortable_and_every_id_is_one(tmp_path: Path) -> None:
    page = page_of(two_tasks(tmp_path))
    tabled = [attributes for tag, attributes in page.elements if tag == "table"]
    assert len(tabled) == 11
    assert all("data-sortable" in attributes and attributes["id"] for attributes in tabled)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {(attributes.get("href") or "#").removeprefix("#") for tag, attributes in page.elements if tag == "a"}
    labels = {attributes["aria-labelledby"] for _, attributes in page.elements if "aria-labelledby" in attributes}
    assert links | labels <= set(ids)


def embedded(page: Page) -> tuple[dict[str, Any], int]:
    """Give the rows that a page holds as JSON, and how many points its pictures hold."""
    data = [json.loads(text) for text in page.scripts if text.startswith("{")]
    specs = next(value for value in data if "words" not in value)
    points = sum(len(values) for spec in specs.values() for values in spec["datasets"].values())
    return next((value for value in data if "words" in value), {}), points


def test_ten_thousand_runs_make_a_page_below_3_mb_that_grows_with_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, points, counts = [], [], []
    for seeds in (25, 50, 100):
        summary, rows = many_runs(tmp_path, monkeypatch, seeds=seeds, points=50, tasks=1, arms=2)
        text = render_report(summary, rows)
        page = Page(text)
        data, drawn = embedded(page)
        assert len(data["rows"]) == len(rows)
        assert sum(tag == "tr" for tag, _ in page.elements) < LISTED + 130
        sizes.append(len(text.encode()))
        points.append(drawn)
        counts.append(len(rows))
    assert counts == [2500, 5000, 10000]
    assert sizes[-1] < 3_000_000
    assert sizes[2] - sizes[1] < 2.2 * (sizes[1] - sizes[0])
    assert max(points) < 3 * charts.MOST_POINTS
    assert page.text.count("all are in rows.csv") == 1


def test_rows_embedded_as_json_are_those_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary, rows = many_runs(tmp_path, monkeypatch, seeds=60, points=1, arms=4, tasks=2)
    page = Page(render_report(summary, rows))
    data, _ = embedded(page)
    shown = [
        [data["words"][str(column)][cell] if str(column) in data["words"] else cell for column, cell in enumerate(row)]
        for row in data["rows"]
    ]
    assert shown == tables.run_cells(summary, rows)[1]
    assert data["words"]["0"] == [arm["arm"] for arm in summary["arms"]]


def test_pictures_of_very_many_tasks_are_left_out_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thrice.report.page.MOST_DRAWN", 1)
    page = page_of(two_tasks(tmp_path))
    drawn = {attributes.get("id") for _, attributes in page.elements if attributes.get("class") == "chart"}
    assert "curves-0" in drawn
    assert "curves-1" not in drawn
    assert page.text.count("No pictures of this task are drawn here") == 1


@pytest.mark.parametrize(
    ("scores", "pictures"),
    [
        ({"a": [0.8]}, 2),
        ({"a": [0.8, 0.9, 0.85]}, 2),
        ({"a": [0.8], "b": [0.8]}, 3),
        ({"a": [None]}, 0),
        ({"a": [None, 0.8], "b": [0.7, None]}, 2),
        ({f"arm {place}": [0.8 + place / 1000] for place in range(50)}, 3),
    ],
)
def test_small_large_and_unfinished_studies_have_a_page(
    tmp_path: Path, scores: dict[str, list[float | None]], pictures: int
) -> None:
    summary = summary_of(tmp_path, scores)
    page = Page(report.write_report(summary, read_rows(tmp_path), tmp_path / "report.html").read_text(encoding="utf-8"))
    assert sum(a.get("class") == "chart" for _, a in page.elements) == pictures
    assert len(page.scripts) == (3 if pictures else 1)
    assert report.headline(summary) in page.text
    for make in (report.terminal_table, report.seed_table, report.markdown_table):
        assert next(iter(scores)) in printed(make(summary["tasks"][0]), 200)


def test_a_study_of_tfidf_alone_has_a_page(tmp_path: Path) -> None:
    study = write_study(
        tmp_path, [make_row("tfidf", seed, [0.8], 0.81) for seed in (0, 1)], arms=["tfidf"], seeds=[0, 1]
    )
    assert "reaches 81.00\u00a0%" in page_of(study).text


def test_a_study_whose_every_run_collapsed_has_a_page(tmp_path: Path) -> None:
    rows = [make_row("a", seed, [0.5, 0.5], 0.5, collapsed=True) for seed in (0, 1, 2)]
    page = page_of(write_study(tmp_path, rows, arms=["a"]))
    assert "every finished run collapsed, 3 of 3" in page.text
    assert "seeds 0, 1, 2 collapsed" in page.text
