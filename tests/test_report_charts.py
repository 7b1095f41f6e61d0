"""Pictures of a study: what they hold, what they leave out, and that they can be seen."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score
from studies import ARMS, full_study, make_row, write_study
from studies_of_report import TASKS, many_runs, summary_of, two_tasks

from thrice import report
from thrice.compare.results import read_rows
from thrice.compare.summary import summarise
from thrice.report import charts
from thrice.report.charts.price import pareto_front


def part_of(study: Path) -> dict[str, Any]:
    """Give what the summary of a study says of its first task."""
    return summarise(study)["tasks"][0]


def test_learning_curves_hold_every_seed_and_the_mean_of_those_that_count(tmp_path: Path) -> None:
    study = full_study(tmp_path)
    chart = report.learning_curves(part_of(study), read_rows(study))
    assert chart is not None
    spec = charts.specification(chart)
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
    part = part_of(full_study(tmp_path))
    chart = report.score_against_cost(part, "peak_memory_bytes")
    assert chart is not None
    spec = charts.specification(chart)
    assert [point["arm"] for point in spec["datasets"]["means"]] == list(ARMS[:3])
    assert spec["datasets"]["means"][0]["cost"] == pytest.approx(307.2)
    assert len(spec["datasets"]["seeds"]) == 3 + 3 + 1
    assert charts.not_drawn(part, "peak_memory_bytes") == ["tfidf"]


def test_cost_axis_is_logarithmic_only_over_a_wide_range(tmp_path: Path) -> None:
    part = part_of(full_study(tmp_path))
    kinds = []
    for cost in ("seconds_per_epoch", "parameters_stored"):
        chart = report.score_against_cost(part, cost)
        assert chart is not None
        kinds.append(chart.to_dict()["layer"][0]["encoding"]["x"]["scale"].get("type", "linear"))
    assert kinds == ["linear", "log"]


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, {"a": [0.8]})
    part = summary["tasks"][0]
    assert report.score_against_cost(part) is None
    assert report.learning_curves({**part, "arms": [{**part["arms"][0], "runs": []}]}, []) is None
    assert report.differences([part]) is None
    assert report.class_scores({**part, "labels": []}) is None
    assert report.memory_split(summary) is None


def test_curves_are_of_their_task_and_of_the_grid_point_that_was_taken(tmp_path: Path) -> None:
    study = two_tasks(tmp_path)
    rows = read_rows(study)
    for part in summarise(study)["tasks"]:
        chart = report.learning_curves(part, rows)
        assert chart is not None
        seeds = chart.datasets["seeds"]
        assert {(point["arm"], point["seed"]) for point in seeds} == {
            (arm["arm"], run["seed"]) for arm in part["arms"] for run in arm["runs"]
        }
        for arm in part["arms"]:
            best = {(point["seed"], point["score"]) for point in seeds if point["arm"] == arm["arm"]}
            assert {(run["seed"], round(100 * run["best_dev"], 6)) for run in arm["runs"]} <= best


def test_many_runs_become_a_median_and_a_band(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary, rows = many_runs(tmp_path, monkeypatch, seeds=400, points=1, arms=2, tasks=1)
    part = summary["tasks"][0]
    chart = report.learning_curves(part, rows)
    assert chart is not None
    assert set(chart.datasets) == {"bands", "levels", "first"}
    bands = chart.datasets["bands"]
    assert len(bands) == 2 * 5
    scores = [100 * row["epochs"][2]["dev"]["accuracy"] for row in rows if row["arm"] == "arm 1"]
    point = next(point for point in bands if point["arm"] == "arm 1" and point["epoch"] == 3)
    expected = np.quantile(scores, [0.1, 0.5, 0.9])
    assert [point["low"], point["score"], point["high"]] == pytest.approx(list(expected), abs=1e-5)
    assert point["seeds"] == 400


def test_of_very_many_epochs_evenly_spaced_ones_and_the_last_are_drawn(tmp_path: Path) -> None:
    rows = [make_row("a", seed, [0.5 + step / 9000 for step in range(4001)], 0.8) for seed in range(2)]
    chart = report.learning_curves(part_of(write_study(tmp_path, rows, arms=["a"], seeds=[0, 1])), rows)
    assert chart is not None
    epochs = [point["epoch"] for point in chart.datasets["bands"]]
    assert len(epochs) <= charts.MOST_POINTS + 1
    assert (epochs[0], epochs[-1]) == (1, 4001)


def test_many_seeds_are_no_dots_beside_cost_and_keep_their_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, _ = many_runs(tmp_path, monkeypatch, seeds=800, points=1, arms=2, tasks=1)
    part = summary["tasks"][0]
    for place, arm in enumerate(part["arms"]):
        arm["cost"]["seconds_per_epoch"] = 1.0 + place
    chart = report.score_against_cost(part)
    assert chart is not None
    assert chart.datasets["seeds"] == []
    values = [100 * value for value in part["arms"][0]["test"]["values"]]
    mean = chart.datasets["means"][0]
    assert [mean["low"], mean["high"]] == pytest.approx(list(np.quantile(values, [0.1, 0.9])), abs=1e-5)


def test_the_pareto_front_holds_exactly_what_nobody_beats() -> None:
    chance = random.Random(1)
    for _ in range(200):
        points = [{"arm": str(place), "cost": chance.randrange(6), "score": chance.randrange(6)} for place in range(7)]
        beaten = {
            point["arm"]
            for point in points
            for other in points
            if other["cost"] <= point["cost"] and other["score"] >= point["score"]
            if (other["cost"], other["score"]) != (point["cost"], point["score"])
        }
        kept = {(point["cost"], point["score"]) for point in points if point["arm"] not in beaten}
        assert {(point["cost"], point["score"]) for point in pareto_front(points)} == kept


def test_the_front_is_drawn(tmp_path: Path) -> None:
    chart = report.score_against_cost(part_of(full_study(tmp_path)), "file_bytes")
    assert chart is not None
    assert [point["arm"] for point in chart.datasets["front"]] == [ARMS[3], ARMS[0], ARMS[1], ARMS[2]]


def test_forest_holds_both_intervals_of_every_arm_and_task(tmp_path: Path) -> None:
    parts = summarise(two_tasks(tmp_path))["tasks"]
    chart = report.differences(parts)
    assert chart is not None
    points, items = chart.datasets["seeds"], chart.datasets["items"]
    assert [(point["task"], point["arm"]) for point in points] == [(task, arm) for task in TASKS for arm in ARMS[1:]]
    difference = parts[1]["arms"][1]["test"]["difference"]
    assert points[3]["low"] == pytest.approx(100 * difference["low"], abs=1e-5)
    assert items[3]["high"] == pytest.approx(1.4)
    assert points[3]["row"] == f"afqmc: {ARMS[1]}"
    clear = sum(point["low"] > 0 or point["high"] < 0 for point in points)
    assert f"{clear} of 6 intervals over seeds leave out zero" in chart.title.text
    alone = report.differences(parts[:1])
    assert alone is not None
    assert [point["row"] for point in alone.datasets["seeds"]] == list(ARMS[1:])


def test_tasks_in_other_units_do_not_share_an_axis(tmp_path: Path) -> None:
    rows = [
        make_row(arm, seed, [0.5 + seed / 100], 0.6 + seed / 90, task=task, metric=metric)
        for arm in ("a", "b")
        for seed in range(3)
        for task, metric in (("t", "accuracy"), ("u", "pearson"))
    ]
    parts = summarise(write_study(tmp_path, rows, arms=["a", "b"], tasks={"t": "accuracy", "u": "pearson"}))["tasks"]
    chart = report.differences(parts)
    assert chart is not None
    assert {point["task"] for point in chart.datasets["seeds"]} == {"t"}


def test_class_scores_are_sklearns_f1(tmp_path: Path) -> None:
    part = part_of(full_study(tmp_path))
    matrix = [[30, 4, 1], [2, 20, 5], [0, 3, 35]]
    part["labels"], part["arms"] = ["x", "y", "z"], [{**part["arms"][0], "confusion": matrix}]
    chart = report.class_scores(part)
    assert chart is not None
    gold = [i for i, row in enumerate(matrix) for count in row for _ in range(count)]
    said = [j for row in matrix for j, count in enumerate(row) for _ in range(count)]
    scores = {point["row"]: point["score"] for point in chart.datasets["classes"]}
    assert list(scores.values()) == pytest.approx(list(100 * f1_score(gold, said, average=None)))
    assert {point["row"]: point["gold"] for point in chart.datasets["classes"]} == {"x": 35, "y": 27, "z": 38}


def test_of_many_classes_those_on_which_arms_differ_most_are_drawn(tmp_path: Path) -> None:
    part = part_of(full_study(tmp_path))
    size = 40
    one = [[90 if i == j else 0 for j in range(size)] for i in range(size)]
    other = [[90 - i if i == j else i if j == (i + 1) % size else 0 for j in range(size)] for i in range(size)]
    # Class i loses i of its 90 texts to the next one, and the last one many to the first.
    part["labels"] = [str(label) for label in range(size)]
    part["arms"] = [{**arm, "confusion": matrix} for arm, matrix in zip(part["arms"], (one, other), strict=False)]
    chart = report.class_scores(part)
    assert chart is not None
    assert {point["row"] for point in chart.datasets["classes"]} == {"0", *map(str, range(16, 40))}
    assert "the 25 of 40 on which arms differ most" in chart.title.text


def test_memory_bars_add_up(tmp_path: Path) -> None:
    chart = report.memory_split(summarise(full_study(tmp_path)))
    assert chart is not None
    parts = [part for part in chart.datasets["parts"] if part["arm"] == ARMS[1]]
    assert [part["part"] for part in parts] == ["weights", "gradients", "optimiser", "activations"]
    assert [part["mb"] for part in parts] == pytest.approx([16.72, 16.72, 33.44, 260.0])
    assert [part["from"] for part in parts[1:]] == [part["to"] for part in parts[:-1]]
    assert "tfidf" not in {part["arm"] for part in chart.datasets["parts"]}


def test_every_picture_is_valid_vega_lite(tmp_path: Path) -> None:
    study = full_study(tmp_path)
    summary, rows = summarise(study), read_rows(study)
    part = summary["tasks"][0]
    drawn = [report.learning_curves(part, rows), report.score_against_cost(part), report.differences([part])]
    for chart in [*drawn, report.class_scores(part), report.memory_split(summary)]:
        assert chart is not None
        assert chart.to_dict()["datasets"] == charts.specification(chart)["datasets"]


def test_pictures_are_written_as_png_and_svg(tmp_path: Path) -> None:
    study = full_study(tmp_path)
    summary = summarise(study)
    for arm in summary["tasks"][0]["arms"]:
        arm["cost"] = {**dict.fromkeys(arm["cost"]), "file_bytes": arm["cost"]["file_bytes"]}
    paths = report.write_charts(summary, read_rows(study), study / "charts")
    names = {path.stem for path in paths}
    assert names == {"learning-curves", "differences", "classes", "memory", "score-file-bytes"}
    assert len(paths) == 2 * len(names)
    for path in paths:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG" if path.suffix == ".png" else b"<svg")
        assert len(content) > 3000


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colours", [charts.LIGHT, charts.DARK])
def test_marks_and_text_stand_out_from_their_background(colours: charts.Colours) -> None:
    """WCAG 2.2: 3:1 for graphics, 4.5:1 for text."""
    back = luminance(colours.background)
    for colour, least in [
        *((mark, 3.0) for mark in colours.arms + colours.memory),
        (colours.ink, 4.5),
        (colours.muted, 4.5),
    ]:
        bright, dim = sorted((luminance(colour), back), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= least, colour
