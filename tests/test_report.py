"""Tables, words and files of a study, from finished to empty, with names that try to break out."""

from __future__ import annotations

import ast
import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from rich.console import Console
from studies import ARMS, full_study, make_row, write_study
from studies_of_report import EVIL, TASKS, many_runs, summary_of, two_tasks

from thrice import report
from thrice.compare.results import read_rows
from thrice.compare.summary import summarise
from thrice.report import cost, tables
from thrice.study_result import read_study


def part_of(study: Path) -> dict[str, Any]:
    """Give what the summary of a study says of its first task."""
    return summarise(study)["tasks"][0]


def printed(renderable: Any, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


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
    lines = report.markdown_table(part_of(full_study(tmp_path))).splitlines()
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
        "307.2",
    ]
    assert cells[1][5] == "+0.43 [−0.19, +1.06]"
    assert cells[2][0] == f"{ARMS[2]} (2 of 3 seeds done; seed 1 collapsed)"
    assert cells[2][4:6] == ["88.90 (1 of 3)", "+0.90 (1 of 3)"]
    assert cells[3][6:] == ["0.05 / —", "1.90", "—"]


def test_markdown_cells_cannot_be_ended_by_a_name(tmp_path: Path) -> None:
    text = report.markdown_table(summary_of(tmp_path, {"a|b\n<b>*x*[y](z)": [0.8]})["tasks"][0])
    assert "a\\|b &lt;b>\\*x\\*[y]\\(z)" in text
    assert len(text.splitlines()[2].replace("\\|", "").split("|")) == len(text.splitlines()[0].split("|"))


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_number_is_cut_in_a_terminal(tmp_path: Path, width: int) -> None:
    part = part_of(full_study(tmp_path))
    text = printed(report.terminal_table(part, width=width), width) + printed(
        report.seed_table(part, width=width), width
    )
    for number in ("88.43 ± 0.25", "[−0.19, +1.06]", "(1 of 3)", "5.71 / 5.65", "351.4", "−1.93", "collapsed", "+0.70"):
        assert number in text
    assert "…+none" in text if width < 150 else ARMS[2] in text
    assert max(map(len, text.splitlines())) <= width


def test_names_are_printed_as_they_are_not_as_markup(tmp_path: Path) -> None:
    assert "[bold]x[/bold]" in printed(
        report.terminal_table(summary_of(tmp_path, {"[bold]x[/bold]": [0.8]})["tasks"][0]), 200
    )


def test_seed_table_shows_every_planned_cell(tmp_path: Path) -> None:
    _, rows = tables.seed_cells(part_of(full_study(tmp_path)))
    assert len(rows) == 12
    assert [row[-1] for row in rows[6:9]] == ["finished", "collapsed", "not finished"]
    assert rows[7][2:7] == ["55.00", "1", "55.00", "54.00", "—"]
    assert rows[4][6] == "+0.70"


def test_without_any_test_score_best_dev_decides(tmp_path: Path) -> None:
    rows = [make_row("a", 0, [0.7], None), make_row("b", 0, [0.8], None)]
    part = part_of(write_study(tmp_path, rows, arms=["a", "b"], seeds=[0]))
    headers, cells = tables.result_cells(part)
    assert headers[5] == "best dev: difference to first"
    assert cells[1][5] == "+10.00"


def test_differences_stand_with_both_intervals_and_what_would_tell(tmp_path: Path) -> None:
    headers, rows = tables.difference_cells(part_of(full_study(tmp_path)))
    assert headers[1:5] == ["test: difference to first", "95% over seeds", "95% over test items", "p, corrected"]
    assert [row[0] for row in rows] == list(ARMS[1:])
    assert rows[0][1:4] == ["+0.43", "−0.19 to +1.06", "−0.60 to +1.40"]
    assert rows[0][5:7] == ["83\u00a0%", "3"]
    assert rows[1][1:3] == ["+0.90", "—"]
    assert [row[4] for row in rows][1] == "—"
    assert float(rows[2][4].lstrip("<")) < 0.05


def test_overview_has_an_arm_a_row_and_a_task_a_column(tmp_path: Path) -> None:
    headers, rows = tables.overview_cells(summarise(two_tasks(tmp_path)))
    assert [header.replace("\u00a0", " ") for header in headers[1:]] == [
        "tnews: test accuracy %",
        "afqmc: test macro F1 %",
    ]
    assert [row[0] for row in rows] == list(ARMS)
    assert rows[0][1].startswith("85.")
    assert rows[1][2].endswith("(2 of 3)")


def test_grid_points_are_ranked_and_the_best_is_marked(tmp_path: Path) -> None:
    study = two_tasks(tmp_path)
    _, rows = tables.grid_cells(part_of(study))
    assert [row[:3] for row in rows[:2]] == [
        [ARMS[1], "learning_rate=0.0003", "3 of 3"],
        [ARMS[1], "learning_rate=0.0001", "3 of 3"],
    ]
    assert [row[-1] for row in rows] == ["chosen", "", "chosen", ""]
    assert "learning_rate=0.0003, best of 2 grid points" in report.markdown_table(part_of(study))
    assert "not packed" in report.markdown_table(part_of(study))
    assert tables.grid_cells(part_of(full_study(tmp_path / "other")))[1] == []


def test_every_run_is_listed_with_task_and_grid_point(tmp_path: Path) -> None:
    study = two_tasks(tmp_path)
    headers, rows = tables.run_cells(summarise(study), read_rows(study))
    assert headers[:4] == ["Model", "task", "grid point", "seed"]
    assert len(rows) == 2 * 6 * 3 - 2 + 1
    missing = [row for row in rows if row[-1] == "not finished"]
    assert [row[:4] for row in missing] == [[ARMS[1], "afqmc", "learning_rate=0.0003", "2"]]
    assert [row[:4] for row in rows if row[-1] == "collapsed"] == [
        [ARMS[2], "afqmc", "learning_rate=0.0001", "1"],
        [ARMS[2], "afqmc", "learning_rate=0.0003", "1"],
    ]
    compared = [row for row in rows if row[-2].startswith(("+", "−"))]
    assert {row[2] for row in compared} == {"", "learning_rate=0.0003"}


def test_the_order_of_the_fields_of_a_grid_point_does_not_matter(tmp_path: Path) -> None:
    grid = {"learning_rate": [0.1], "epochs": [3, 5]}
    row = make_row("a", 0, [0.7], 0.8, point={"learning_rate": 0.1, "epochs": 5})
    study = write_study(tmp_path, [row], arms=["a"], seeds=[0], grids={"a": grid})
    _, rows = tables.run_cells(summarise(study), read_rows(study))
    assert [cells[-1] for cells in rows if "epochs=5" in cells[1]] == ["finished"]


# Cost


def test_cost_card_holds_what_was_measured_and_dashes_else(tmp_path: Path) -> None:
    summary = summarise(full_study(tmp_path))
    _, rows = cost.prediction_cells(summary)
    assert rows[0][1:] == [
        "2.95 / 5.65",
        "11.80 / 5.90 / 2.97",
        "4.10",
        "1.90 / 2.40",
        "6.80 / 7.90",
        "31,000",
    ]
    assert rows[3][1:] == ["0.05 / —", "1.90 / — / —", "—", "—", "—", "—"]
    _, rows = cost.training_cells(summary)
    assert rows[0][1:] == ["12.30", "9,800", "307.2", "11.80", "11.80", "23.60", "260.0"]
    _, rows = cost.step_cells(summary)
    assert rows[1][1:] == ["20.20", "43.30 [40.20, 44.00]", "× 1.05"]


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ({"latency_short_ms": 1.02, "latency_long_ms": 0.97, "step_ms": None}, "differs by 2.0% to 3.1%: smaller"),
        ({"latency_long_ms": 1.02}, "differs by 2.0%: smaller"),
        ({"step_ms": 1.3}, "differs by 30%: smaller"),
        (None, "No arm was measured twice"),
    ],
)
def test_the_control_is_said_in_words(tmp_path: Path, ratios: dict[str, float | None] | None, said: str) -> None:
    summary = summarise(full_study(tmp_path))
    summary["cost_control"] = ratios and {"arm": ARMS[0], "ratios": ratios}
    assert said in cost.cost_words(summary)[0]


@pytest.mark.parametrize(
    ("slow", "control", "said"),
    [
        (1.01, 1.03, "run at the same speed within the noise of this measurement"),
        (
            1.2,
            1.03,
            "do not run at the same speed here: 1.01 times for one short text, 1.20 times for one long text and 1.01",
        ),
        (1.2, None, "whether that is noise is not known"),
    ],
)
def test_shared_and_unshared_are_held_against_each_other(
    tmp_path: Path, slow: float, control: float | None, said: str
) -> None:
    summary = summarise(full_study(tmp_path))
    summary["cost_control"] = control and {"ratios": {"latency_long_ms": control}}
    for arm, ratio in zip(summary["arms"], (slow, 1.0, 1.0), strict=False):
        arm["cost"]["latency_long_ms"] = {"p50": 6.8 * ratio, "p95": 9.0}
    sentence = cost.cost_words(summary)[1]
    assert sentence.startswith("Shared and un-shared (5.65 M called parameters each)")
    assert said in sentence
    assert (f"Slowest is {ARMS[0]}" in sentence) == (slow > 1.1 and control is not None)


def test_one_text_alone_may_take_separate_layers_longer(tmp_path: Path) -> None:
    summary = summarise(full_study(tmp_path))
    summary["cost_control"] = {"ratios": {"latency_long_ms": 1.02, "prediction_tokens_per_second": 0.99}}
    for arm, ratio in zip(summary["arms"], (1.0, 1.05, 1.1), strict=False):
        arm["cost"]["latency_long_ms"] = {"p50": 6.8 * ratio, "p95": 9.0}
    sentence = cost.cost_words(summary)[1]
    assert "at the same speed within the noise of this measurement where there is much to do: 1.01 times" in sentence
    assert "One text alone takes the un-shared longer, 1.10 times for one long text, while" in sentence
    for arm, speed in zip(summary["arms"], (31_000, 30_000, 29_000), strict=False):
        arm["cost"]["prediction_tokens_per_second"] = speed
    sentence = cost.cost_words(summary)[1]
    assert "do the same work and are not equally fast here" in sentence
    assert "1.07 times for many texts at once, the one that stores more being slower" in sentence


def test_nothing_is_said_of_speed_where_none_was_measured(tmp_path: Path) -> None:
    assert cost.cost_words(summary_of(tmp_path, {"a": [0.8], "b": [0.8]})) == []


# Whole reports


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_terminal_gets_every_task_and_fits(tmp_path: Path, width: int) -> None:
    summary = summarise(two_tasks(tmp_path))
    console = Console(width=width, file=io.StringIO())
    report.terminal_report(summary, console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    said = [report.headline(summary), *map(report.verdict, summary["tasks"]), *report.all_notes(summary)]
    for sentence in said:
        assert sentence.replace("\u00a0", " ") in " ".join(text.split())
    for number in (
        "85.",
        "collapsed",
        "learning_rate=0.0003",
        "5.71 /",
        "The same model measured twice",
        "not finished",
    ):
        assert number in text


def test_single_seeds_of_thousands_of_runs_are_left_to_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, _ = many_runs(tmp_path, monkeypatch, seeds=20, points=2)
    console = Console(width=100, file=io.StringIO())
    report.terminal_report(summary, console)
    assert len(console.file.getvalue().splitlines()) < 120


def test_markdown_report_holds_every_table(tmp_path: Path) -> None:
    summary = summarise(two_tasks(tmp_path))
    text = report.markdown_report(summary)
    assert text.startswith("# Of 2 tasks: ")
    for part in summary["tasks"]:
        assert report.markdown_table(part).strip() in text
        assert report.verdict(part).replace("*", "\\*") in text
    for piece in (
        "12 texts of test also stand in train",
        "The same model measured twice",
        "## Cost",
        "thrice compare a b",
    ):
        assert piece in text
    tabled = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tabled) > 40


def test_all_files_of_a_report_are_written_and_agree(tmp_path: Path) -> None:
    study = two_tasks(tmp_path)
    rows = read_rows(study)
    paths = report.write_all(summarise(study), rows, study)
    assert list(paths) == ["page", "markdown", "csv", "parquet"]
    assert all(path.parent == study for path in paths.values())
    table = parquet.read_table(paths["parquet"]).to_pylist()
    assert table == report.flat_rows(rows)
    assert len(table) == len(rows)
    assert table[0]["point.learning_rate"] is None
    assert {row["test.macro_f1"] is None for row in table if row["task"] == "tnews"} == {True}
    with paths["csv"].open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["best_dev"]) for line in lines] == [row["best_dev"] for row in rows]
    assert {line["collapsed"] for line in lines} == {"true", "false"}


def test_grids_over_words_and_numbers_and_no_rows_at_all_are_written(tmp_path: Path) -> None:
    rows = [make_row("a", seed, [0.7], 0.8, point=point) for seed, point in enumerate(POINTS)]
    table = parquet.read_table(report.write_rows(rows, tmp_path)["parquet"]).to_pydict()
    assert table["point.rate"] == [1.0, 0.5, None]
    assert table["point.schedule"] == ["linear", "[1, 2]", None]
    assert parquet.read_table(report.write_rows([], tmp_path / "none")["parquet"]).num_rows == 0


POINTS = ({"rate": 1, "schedule": "linear"}, {"rate": 0.5, "schedule": [1, 2]}, {})


# At hand


def test_a_study_at_hand_gives_tables_words_and_a_page(tmp_path: Path) -> None:
    study = two_tasks(tmp_path)
    result = read_study(study)
    table = result.table()
    assert list(zip(table["task"], table["arm"], strict=True)) == [(task, arm) for task in TASKS for arm in ARMS]
    first = result.summary["tasks"][0]["arms"][1]
    assert table["test"][1] == first["test"]["mean"]
    assert table["difference"][1] == first["test"]["difference"]["mean"]
    assert table["difference"].isna().tolist() == [True, False, False, False] * 2
    assert table["parameters_stored"][1] == 4_180_000
    assert len(result.rows()) == len(read_rows(study))
    assert result.verdict() == report.headline(result.summary)
    assert result.verdict() in repr(result)
    assert result.report(tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert result.report() == study / "report.html"


def test_a_notebook_shows_a_study_as_text_without_script_or_fixed_colours(tmp_path: Path) -> None:
    shown = read_study(full_study(tmp_path, arms=(EVIL, "b", "c", "tfidf")))._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert "88.43 ± 0.25" in shown
    assert not re.search(r"#[0-9a-f]{3,6}\b|color:(?!inherit)", shown.replace("background:none", ""))


# Its place


def test_the_report_imports_neither_torch_nor_anything_of_thrice_but_files_and_errors() -> None:
    for path in Path(report.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in ("torch", "transformers")
                assert not name.startswith("thrice") or name.startswith(
                    ("thrice.report", "thrice.files", "thrice.errors", "thrice.metrics")
                )
