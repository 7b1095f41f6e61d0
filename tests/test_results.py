"""Reading a study folder: what enters the means, what stands apart, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from studies import ARMS, full_study, make_row, write_study

from thrice.compare.results import read_rows, read_study
from thrice.compare.summary import summarise
from thrice.errors import DataError


def only_task(folder: Path) -> dict[str, Any]:
    """Give the summary of a study's one task."""
    (part,) = summarise(folder)["tasks"]
    return part


def test_scores_of_a_finished_study_are_averaged_and_paired_by_seed(tmp_path: Path) -> None:
    rows = [make_row("a", seed, [0.7, 0.80 + seed / 100], 0.75 + seed / 50) for seed in (0, 1, 2)]
    rows += [make_row("b", seed, [0.6, 0.83 + seed / 100], 0.80 + seed / 50 + (seed == 1) / 100) for seed in (2, 0, 1)]
    result = only_task(write_study(tmp_path, rows, arms=["b", "a"]))
    assert [arm["arm"] for arm in result["arms"]] == ["b", "a"]
    assert result["baseline"] == "b"
    assert result["cells"] == {"done": 6, "planned": 6}
    first, second = result["arms"]
    assert second["test"]["values"] == pytest.approx([0.75, 0.77, 0.79])
    assert second["test"]["seeds"] == [0, 1, 2]
    assert second["test"]["mean"] == pytest.approx(0.77)
    assert second["test"]["std"] == pytest.approx(0.02)
    assert second["best_dev"]["mean"] == pytest.approx(0.81)
    assert second["epoch1_dev"]["mean"] == pytest.approx(0.7)
    assert first["test"]["difference"] is None
    assert second["test"]["difference"]["mean"] == pytest.approx((-0.05 - 0.06 - 0.05) / 3)
    assert second["test"]["difference"]["n"] == 3
    assert second["test"]["difference"]["low"] < second["test"]["difference"]["mean"]


def test_collapsed_runs_are_shown_beside_the_means_never_inside(tmp_path: Path) -> None:
    arm = only_task(full_study(tmp_path))["arms"][2]
    assert (arm["done"], arm["planned"], arm["missing"], arm["collapsed"]) == (2, 3, [2], [1])
    assert arm["test"]["values"] == [0.889]
    assert (arm["test"]["n"], arm["test"]["std"]) == (1, None)
    assert arm["test"]["difference"]["n"] == 1
    assert [run["test"] for run in arm["runs"]] == [0.889, 0.54]


def test_a_collapsed_baseline_run_leaves_its_seed_out_of_the_pairs(tmp_path: Path) -> None:
    rows = [make_row("a", seed, [0.8], 0.8, collapsed=seed == 1) for seed in (0, 1, 2)]
    rows += [make_row("b", seed, [0.9], 0.9) for seed in (0, 1, 2)]
    other = only_task(write_study(tmp_path, rows, arms=["a", "b"]))["arms"][1]
    assert (other["test"]["n"], other["test"]["difference"]["n"]) == (3, 2)


def test_an_arm_that_always_collapsed_has_no_mean(tmp_path: Path) -> None:
    rows = [make_row("a", seed, [0.5], 0.5, collapsed=True) for seed in (0, 1, 2)]
    arm = only_task(write_study(tmp_path, rows, arms=["a"]))["arms"][0]
    assert arm["test"] == {"mean": None, "std": None, "n": 0, "values": [], "seeds": [], "difference": None}
    assert arm["collapsed"] == [0, 1, 2]


def test_a_study_without_a_finished_cell_can_be_summarised(tmp_path: Path) -> None:
    result = only_task(write_study(tmp_path, [], arms=["a", "b"]))
    assert result["cells"] == {"done": 0, "planned": 6}
    nothing = dict.fromkeys(("mean", "low", "high", "p", "p_corrected", "improvement", "seeds_needed", "items"))
    assert result["arms"][1]["test"]["difference"] == {**nothing, "n": 0}


def test_unmeasured_cost_is_none_and_measured_cost_is_passed_on(tmp_path: Path) -> None:
    without = summarise(write_study(tmp_path / "a", [make_row("a", 0, [0.8], 0.8)], arms=["a"]))
    assert set(without["arms"][0]["cost"].values()) == {None}
    measured = summarise(full_study(tmp_path / "b"))
    assert measured["arms"][0]["cost"]["parameters_stored"] == 2_950_000
    cost = measured["tasks"][0]["arms"][0]["cost"]
    assert (cost["parameters_stored"], cost["seconds_per_epoch"]) == (2_950_000, 19.2)
    assert measured["arms"][3]["cost"]["parameters_called"] is None
    assert measured["cost_method"].startswith("median")


def test_the_summary_is_json_and_survives_it(tmp_path: Path) -> None:
    result = summarise(full_study(tmp_path))
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_rows_that_the_study_no_longer_names_are_left_out_aloud(tmp_path: Path) -> None:
    rows = [make_row("a", 0, [0.8], 0.8), make_row("old", 0, [0.1], 0.1), make_row("a", 7, [0.1], 0.1)]
    result = summarise(write_study(tmp_path, rows, arms=["a"], seeds=[0]))
    assert result["tasks"][0]["arms"][0]["test"]["mean"] == 0.8
    assert [(cell["arm"], cell["seed"]) for cell in result["outside"]] == [("old", 0), ("a", 7)]


def test_names_of_arms_are_no_paths(tmp_path: Path) -> None:
    rows = [make_row("../../elsewhere", 0, [0.8], 0.8)]
    result = only_task(write_study(tmp_path / "study", rows, arms=["../../elsewhere"], seeds=[0]))
    assert result["arms"][0]["done"] == 1


def test_the_point_of_a_grid_with_the_best_dev_scores_counts(tmp_path: Path) -> None:
    grids = {"b": {"learning_rate": [0.1, 0.2]}}
    rows = [make_row("a", seed, [0.8], 0.8) for seed in (0, 1)]
    rows += [make_row("b", seed, [0.7], 0.99, point={"learning_rate": 0.1}) for seed in (0, 1)]
    rows += [make_row("b", seed, [0.9 - seed / 10], 0.6, point={"learning_rate": 0.2}) for seed in (0, 1)]
    study = write_study(tmp_path, rows, arms=["a", "b"], seeds=[0, 1], grids=grids)
    result = summarise(study)
    assert result["cells"] == {"done": 6, "planned": 6}
    arm = result["tasks"][0]["arms"][1]
    assert arm["point"] == {"learning_rate": 0.2}
    assert [point["best_dev"] for point in arm["points"]] == pytest.approx([0.7, 0.85])
    assert arm["test"]["values"] == [0.6, 0.6], "chosen on dev, whatever test says"
    assert (arm["done"], arm["planned"]) == (2, 2)


def test_p_values_are_corrected_over_all_tasks_of_a_study(tmp_path: Path) -> None:
    rows = []
    for name in ("first", "second"):
        rows += [make_row("a", seed, [0.8], 0.8 + seed / 100, task=name) for seed in (0, 1, 2)]
        rows += [make_row("b", seed, [0.8], 0.85 + seed / 90, task=name) for seed in (0, 1, 2)]
    tasks = {"first": "accuracy", "second": "accuracy"}
    result = summarise(write_study(tmp_path, rows, arms=["a", "b"], tasks=tasks))
    found = [part["arms"][1]["test"]["difference"] for part in result["tasks"]]
    assert [part["task"] for part in result["tasks"]] == ["first", "second"]
    assert [d["p_corrected"] for d in found] == pytest.approx([2 * d["p"] for d in found])
    assert found[0]["improvement"] == 1.0


def test_what_test_items_say_stands_beside_the_difference(tmp_path: Path) -> None:
    part = only_task(full_study(tmp_path))
    assert part["arms"][1]["test"]["difference"]["items"] == {"mean": 0.004, "low": -0.006, "high": 0.014, "n": 1000}
    assert part["disagreements"][0]["index"] == 17


def test_every_unreadable_row_is_named_at_once(tmp_path: Path) -> None:
    study = write_study(tmp_path, [make_row("a", 0, [0.8], 0.8)], arms=["a"])
    row = make_row("a", 1, [0.8], 0.8)
    broken = {
        "half.json": '{"arm": "a", "seed',
        "bytes.json": b"\xff\xfe",
        "list.json": "[]",
        "no-seed.json": json.dumps({key: value for key, value in row.items() if key != "seed"}),
        "nan.json": json.dumps({**row, "best_dev": float("nan")}),
        "no-epochs.json": json.dumps({**row, "epochs": []}),
        "no-metric.json": json.dumps({**row, "epochs": [{"epoch": 1, "dev": {"macro_f1": 0.8}}]}),
        "no-test.json": json.dumps({**row, "test": {"macro_f1": 0.8}}),
        "twin.json": json.dumps(make_row("a", 0, [0.9], 0.9)),
    }
    for name, content in broken.items():
        (study / "cells" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (study / "cells" / ".a--seed-2.json.77.partial").write_text("{")
    with pytest.raises(DataError) as caught:
        read_rows(study)
    assert f"{len(broken)} result file(s)" in str(caught.value)
    assert [name for name in broken if name not in str(caught.value)] == []


def test_a_file_that_is_being_written_is_no_row(tmp_path: Path) -> None:
    study = write_study(tmp_path, [make_row("a", 0, [0.8], 0.8)], arms=["a"])
    (study / "cells" / ".a--seed-2.json.77.partial").write_text("{")
    assert len(read_rows(study)) == 1


def test_rows_judged_by_another_metric_are_refused(tmp_path: Path) -> None:
    study = write_study(tmp_path, [make_row("a", 0, [0.8], 0.8, metric="macro_f1")], arms=["a"])
    with pytest.raises(DataError, match="macro_f1"):
        summarise(study)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format": 2, "seeds": [0]}', '{"arms": "a"}'])
def test_a_folder_without_a_proper_study_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "study.json").write_text(content)
    with pytest.raises(DataError, match=r"study\.json"):
        read_study(tmp_path)


def test_a_study_of_an_older_thrice_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(
        '{"task": "classification", "metric": "accuracy", "arms": ["a"], "seeds": [0]}'
    )
    with pytest.raises(DataError, match="older thrice"):
        read_study(tmp_path)


def test_the_test_score_may_be_absent(tmp_path: Path) -> None:
    arm = only_task(write_study(tmp_path, [make_row(ARMS[0], 0, [0.8], None)], arms=[ARMS[0]]))["arms"][0]
    assert arm["test"]["mean"] is None
    assert arm["best_dev"]["mean"] == 0.8
