"""Tables, words, pictures and page of a study, from finished to empty, with names that try to break out."""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from studies import ARMS, full_study, make_row, write_study

from thrice import report
from thrice.compare.results import read_rows, summarise
from thrice.report import charts, tables

EVIL = "<script>alert(1)</script>"


def summary_of(folder: Path, scores: dict[str, Sequence[float | None]], **more: Any) -> dict[str, Any]:
    """Give the summary of a study whose arms have these test scores, seed by seed; None is a cell not finished."""
    rows = [
        make_row(arm, seed, [value - 0.02, value - 0.01], value)
        for arm, values in scores.items()
        for seed, value in enumerate(values)
        if value is not None
    ]
    seeds = range(max(map(len, scores.values())))
    return summarise(write_study(folder, rows, arms=list(scores), seeds=list(seeds), **more))


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


# Numbers


@pytest.mark.parametrize(
    ("value", "metric", "expected"),
    [(0.9466, "accuracy", "94.66"), (0.5, "macro_f1", "50.00"), (0.31416, "loss", "0.3142"), (None, "accuracy", "—")],
)
def test_scores_are_per_cent_where_people_read_them_so(value: float | None, metric: str, expected: str) -> None:
    assert tables.format_score(value, metric) == expected


def test_differences_carry_a_sign_and_never_a_negative_zero() -> None:
    signed = [tables.format_signed(value, "accuracy") for value in (0.0042, -0.0042, 0.00001, -0.00001)]
    assert signed == ["+0.42", "−0.42", "0.00", "0.00"]


def test_costs_keep_three_or_more_figures() -> None:
    assert [tables.format_plain(value) for value in (3.416, 37.6, 375.14, 1217.2)] == [
        "3.42",
        "37.60",
        "375.1",
        "1,217",
    ]
    assert tables.format_millions(2_438_000_000) == "2,438"


# Tables


def test_markdown_table_has_the_essays_columns_and_our_numbers(tmp_path: Path) -> None:
    lines = report.markdown_table(summarise(full_study(tmp_path))).splitlines()
    header = [cell.strip().replace("\u00a0", " ") for cell in lines[0].strip("|").split("|")]
    assert header[:5] == ["Model", "best dev %", "s/epoch", "after epoch 1 %", "test %"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:6]]
    assert cells[0][1:] == [
        "88.43 ± 0.25",
        "19.20",
        "86.17 ± 0.50",
        "88.03 ± 0.25",
        "baseline",
        "2.95 / 5.65",
        "11.80",
        "333.6",
    ]
    assert cells[1][5] == "+0.43 [−0.19, +1.06]"
    assert cells[2][0] == f"{ARMS[2]} (2 of 3 seeds done; seed 1 collapsed)"
    assert cells[2][4:6] == ["88.90 (1 of 3)", "+0.90 (1 of 3)"]
    assert cells[3][6:] == ["0.05 / —", "1.90", "—"]


def test_markdown_cells_cannot_be_ended_by_a_name(tmp_path: Path) -> None:
    text = report.markdown_table(summary_of(tmp_path, {"a|b\n<b>*x*": [0.8]}))
    assert "a\\|b &lt;b>\\*x\\*" in text
    assert len(text.splitlines()[2].replace("\\|", "").split("|")) == len(text.splitlines()[0].split("|"))


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_number_is_cut_in_a_terminal(tmp_path: Path, width: int) -> None:
    summary = summarise(full_study(tmp_path))
    text = printed(report.terminal_table(summary, width=width), width) + printed(
        report.seed_table(summary, width=width), width
    )
    for number in ("88.43 ± 0.25", "[−0.19, +1.06]", "(1 of 3)", "5.71 / 5.65", "355.7", "−1.93", "collapsed", "+0.70"):
        assert number in text
    assert "…+none" in text if width < 150 else ARMS[2] in text
    assert max(map(len, text.splitlines())) <= width


def test_names_are_printed_as_they_are_not_as_markup(tmp_path: Path) -> None:
    assert "[bold]x[/bold]" in printed(report.terminal_table(summary_of(tmp_path, {"[bold]x[/bold]": [0.8]})), 200)


def test_seed_table_shows_every_planned_cell(tmp_path: Path) -> None:
    _, rows = tables.seed_cells(summarise(full_study(tmp_path)))
    assert len(rows) == 12
    assert [row[-1] for row in rows[6:9]] == ["finished", "collapsed", "not finished"]
    assert rows[7][2:7] == ["55.00", "1", "55.00", "54.00", "—"]
    assert rows[4][6] == "+0.70"


def test_without_any_test_score_best_dev_decides(tmp_path: Path) -> None:
    rows = [make_row("a", 0, [0.7], None), make_row("b", 0, [0.8], None)]
    summary = summarise(write_study(tmp_path, rows, arms=["a", "b"], seeds=[0]))
    headers, cells = tables.result_cells(summary)
    assert headers[5] == "best dev: difference to first"
    assert cells[1][5] == "+10.00"


# Pictures


def test_learning_curves_hold_every_seed_and_the_mean_of_those_that_count(tmp_path: Path) -> None:
    study = full_study(tmp_path)
    chart = report.learning_curves(summarise(study), read_rows(study))
    assert chart is not None
    spec = chart.to_dict()
    seeds, levels, means = (spec["datasets"][name] for name in ("seeds", "levels", "means"))
    assert len(seeds) == 8 * 3 + 3
    assert {(point["arm"], point["seed"]) for point in seeds if point["state"] == "collapsed"} == {(ARMS[2], 1)}
    assert [point["score"] for point in means if point["arm"] == ARMS[2]] == [84.5, 88.4, 89.3]
    assert [point["arm"] for point in levels] == ["tfidf"]
    low, high = spec["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert 83 < low < 84.4
    assert 89.3 < high < 91
    assert "does not start at 0" in spec["layer"][0]["encoding"]["y"]["title"]
    assert "between 84.50\u00a0% (zoo:albert-nano-zh+none) and 86.17" in spec["title"]["text"]


def test_score_against_cost_holds_means_and_seeds_and_leaves_out_what_was_not_measured(tmp_path: Path) -> None:
    summary = summarise(full_study(tmp_path))
    chart = report.score_against_cost(summary, "peak_memory_bytes")
    assert chart is not None
    spec = chart.to_dict()
    assert [point["arm"] for point in spec["datasets"]["means"]] == list(ARMS[:3])
    assert spec["datasets"]["means"][0]["cost"] == pytest.approx(333.6)
    assert len(spec["datasets"]["seeds"]) == 3 + 3 + 1
    assert charts.not_drawn(summary, "peak_memory_bytes") == ["tfidf"]


def test_cost_axis_is_logarithmic_only_over_a_wide_range(tmp_path: Path) -> None:
    summary = summarise(full_study(tmp_path))
    kinds = []
    for cost in ("seconds_per_epoch", "parameters_stored"):
        chart = report.score_against_cost(summary, cost)
        assert chart is not None
        kinds.append(chart.to_dict()["layer"][0]["encoding"]["x"]["scale"].get("type", "linear"))
    assert kinds == ["linear", "log"]


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {"a": [0.8]})
    assert report.score_against_cost(summary) is None
    assert report.learning_curves({**summary, "arms": [{**summary["arms"][0], "runs": []}]}, []) is None


def test_more_points_than_altair_allows_reach_the_page(tmp_path: Path) -> None:
    rows = [make_row("a", seed, [0.5 + step / 2000 for step in range(600)], 0.8) for seed in range(9)]
    page = page_of(write_study(tmp_path, rows, arms=["a"], seeds=list(range(9))))
    assert len(json.loads(page.scripts[0])["learning-curves"]["datasets"]["seeds"]) == 5400


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colours", [charts.LIGHT, charts.DARK])
def test_marks_and_text_stand_out_from_their_background(colours: charts.Colours) -> None:
    """WCAG 2.2: 3:1 for graphics, 4.5:1 for text."""
    back = luminance(colours.background)
    for colour, least in [*((arm, 3.0) for arm in colours.arms), (colours.ink, 4.5), (colours.muted, 4.5)]:
        bright, dim = sorted((luminance(colour), back), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= least, colour


# Page


def test_page_asks_for_nothing_outside_itself(tmp_path: Path) -> None:
    study = full_study(tmp_path)
    page = page_of(study)
    assert (study / "report.html").stat().st_size < 3_000_000
    links = [value for _, attributes in page.elements for key, value in attributes.items() if key in ("src", "href")]
    assert len(links) >= 6
    assert [link for link in links if not (link or "").startswith("#")] == []
    own = page.scripts[0] + page.scripts[2] + page.text
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
    kept["data"]["train"]["source"] = EVIL
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
        report.verdict(summary),
        *report.notes(summary),
        tables.caption(summary),
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
    assert sum(tag == "caption" for tag, _ in page.elements) == sum(tag == "table" for tag, _ in page.elements) == 3
    assert sum(a.get("class") == "chart" and bool(a["aria-label"]) for _, a in page.elements) == 3


@pytest.mark.parametrize(
    ("scores", "pictures"),
    [
        ({"a": [0.8]}, 1),
        ({"a": [0.8, 0.9, 0.85]}, 1),
        ({"a": [0.8], "b": [0.8]}, 1),
        ({"a": [None]}, 0),
        ({"a": [None, 0.8], "b": [0.7, None]}, 1),
        ({f"arm {place}": [0.8 + place / 1000] for place in range(50)}, 1),
    ],
)
def test_small_large_and_unfinished_studies_have_a_page(
    tmp_path: Path, scores: dict[str, list[float | None]], pictures: int
) -> None:
    summary = summary_of(tmp_path, scores)
    page = Page(report.write_report(summary, read_rows(tmp_path), tmp_path / "report.html").read_text(encoding="utf-8"))
    assert sum(a.get("class") == "chart" for _, a in page.elements) == pictures
    assert len(page.scripts) == (3 if pictures else 0)
    assert report.verdict(summary) in page.text
    for table in (report.terminal_table(summary), report.seed_table(summary), report.markdown_table(summary)):
        assert next(iter(scores)) in printed(table, 200)


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


def test_the_report_imports_neither_torch_nor_anything_of_thrice_but_files_and_errors() -> None:
    for path in Path(report.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in ("torch", "transformers")
                assert not name.startswith("thrice") or name.startswith(
                    ("thrice.report", "thrice.files", "thrice.errors")
                )
