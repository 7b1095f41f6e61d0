"""Answers to test items: written and read back, intervals over items, and the items on which arms differ most."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from thrice.compare import items
from thrice.compare.items import Items, compare_items, read_items, write_items
from thrice.data.readers import Table
from thrice.errors import DataError
from thrice.tasks.classification import Classification, Example


def task_of(*, multi_label: bool = False) -> Classification:
    rows = [{"text": "x", "label": name} for name in ("bad", "good")]
    table = Table(columns=("text", "label"), rows=rows, lines=[1, 2], source="here", fingerprint="0")
    return Classification.learn(table, multi_label=multi_label)


def examples_of(n: int) -> list[Example]:
    return [Example(text=f"text {i}", labels=(i % 2,)) for i in range(n)]


def answered(place: Path, task: Classification, examples: list[Example], right: np.ndarray) -> Items:
    """Write and read the answers of a run that is right where `right` is."""
    names = task.labels
    said = [names[e.labels[0]] if ok else names[1 - e.labels[0]] for e, ok in zip(examples, right, strict=True)]
    return read_items(write_items(place, task, [{"prediction": name} for name in said], examples))


@pytest.mark.parametrize("multi_label", [False, True])
def test_answers_read_back_are_those_written(tmp_path: Path, multi_label: bool) -> None:
    task = task_of(multi_label=multi_label)
    said: list[Any] = [["good"], [], ["bad", "good"]] if multi_label else ["good", "bad", "good"]
    predictions = [{"prediction": answer, "probabilities": {"bad": 0.25, "good": 0.75}} for answer in said]
    path = write_items(tmp_path / "items" / "cell.parquet", task, predictions, examples_of(3))
    found = read_items(path)
    assert found.answers == said
    assert np.array_equal(found.counts, task.counts(predictions, examples_of(3)))
    assert [p.name for p in path.parent.iterdir()] == ["cell.parquet"], "nothing half-written stays beside"


def test_files_hold_neither_texts_nor_gold_answers(tmp_path: Path) -> None:
    examples = [Example(text="a private complaint", labels=(0,))] * 50
    path = write_items(tmp_path / "cell.parquet", task_of(), [{"prediction": "good"}] * 50, examples)
    assert b"private" not in path.read_bytes()
    assert pyarrow.parquet.read_schema(path).names == ["prediction", *(f"c{k}" for k in range(8))]


class Uncounted(Classification):
    """A task whose metric is no function of sums."""

    def counts(self, predictions: Any, examples: Any) -> None:  # type: ignore[override]
        return None


def test_a_task_that_does_not_count_has_answers_and_no_intervals(tmp_path: Path) -> None:
    task, examples = Uncounted(**vars(task_of())), examples_of(4)
    run = answered(tmp_path / "a.parquet", task, examples, np.ones(4))
    assert run.counts is None
    assert run.answers == ["bad", "good"] * 2
    found = compare_items(["a", "b"], {"a": {0: run}, "b": {0: run}}, task, examples, "accuracy", seed=0)
    assert (found["arms"], found["disagreements"]) == ({}, [])


def damage(path: Path, how: str) -> None:
    text = pyarrow.array(['"good"'])
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif how == "no parquet":
        path.write_text("prediction\ngood\n")
    elif how == "other columns":
        pyarrow.parquet.write_table(pyarrow.table({"answer": text}), path)
    elif how == "no JSON":
        pyarrow.parquet.write_table(pyarrow.table({"prediction": ["good"]}), path)
    elif how == "null":
        pyarrow.parquet.write_table(pyarrow.table({"prediction": pyarrow.array([None], pyarrow.string())}), path)
    elif how == "text for numbers":
        pyarrow.parquet.write_table(pyarrow.table({"prediction": text, "c0": ["many"]}), path)
    else:
        pyarrow.parquet.write_table(pyarrow.table({"prediction": text, "c0": [float("nan")]}), path)


@pytest.mark.parametrize(
    "how", ["missing", "cut", "no parquet", "other columns", "no JSON", "null", "text for numbers", "nan"]
)
def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path, how: str) -> None:
    path = write_items(tmp_path / "cell.parquet", task_of(), [{"prediction": "good"}], examples_of(1))
    damage(path, how)
    with pytest.raises(DataError, match=r"cell\.parquet.* start the study again"):
        read_items(path)


def test_intervals_over_items_hold_the_known_difference_and_its_mean_is_that_of_the_seeds(tmp_path: Path) -> None:
    task, examples = task_of(), examples_of(2000)
    generator = np.random.default_rng(1)
    shares = {"a": 0.7, "b": 0.8, "c": 0.7}
    right = {arm: generator.uniform(size=(3, 2000)) < share for arm, share in shares.items()}
    tables = {
        arm: {s: answered(tmp_path / f"{arm}{s}.parquet", task, examples, right[arm][s]) for s in (2, 0, 1)}
        for arm in shares
    }
    del tables["b"][1]  # a run that collapsed
    found = compare_items(list(shares), tables, task, examples, "accuracy", seed=3)
    json.dumps(found)
    assert (found["items"], found["resamples"], list(found["arms"])) == (2000, 2000, ["b", "c"])
    b, c = found["arms"]["b"], found["arms"]["c"]
    assert b["mean"] == pytest.approx(right["b"][[0, 2]].mean() - right["a"][[0, 2]].mean())
    assert 0 < b["low"] < 0.1 < b["high"]
    assert c["low"] < 0 < c["high"]
    alone = compare_items(["a", "b"], tables, task, examples, "accuracy", seed=3)
    assert alone["arms"]["b"] == b, "an arm's interval does not depend on what else is compared"
    assert compare_items(list(shares), tables, task, examples, "accuracy", seed=4)["arms"]["b"] != b


def test_disagreements_are_the_items_on_which_shares_of_right_answers_differ_most(tmp_path: Path) -> None:
    task, examples = task_of(), examples_of(6)
    examples[4] = Example(text="长" * 500, labels=(0,))
    right = {
        "a": [[1, 1, 0, 1, 1, 1], [1, 1, 0, 1, 1, 0]],
        "b": [[1, 0, 0, 1, 0, 1], [1, 1, 0, 1, 0, 0]],
        "c": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]],
    }
    tables = {
        arm: {s: answered(tmp_path / f"{arm}{s}.parquet", task, examples, np.array(run)) for s, run in enumerate(runs)}
        for arm, runs in right.items()
    }
    found = compare_items(list(right), tables, task, examples, "macro_f1", seed=0)["disagreements"]
    assert [item["index"] for item in found] == [2, 4, 1], (
        "by difference, then by place; items 0, 3 and 5 are agreed on"
    )
    assert found[0]["right"] == {"a": 0, "b": 0, "c": 1}
    assert found[0]["answers"] == {"a": ["good", "good"], "b": ["good", "good"], "c": ["bad", "bad"]}
    assert found[1]["text"] == "长" * 299 + "…"
    assert (found[2]["text"], found[2]["gold"]) == ("text 1", "good")
    assert found[2]["right"] == {"a": 1, "b": 0.5, "c": 1}


def test_no_more_than_thirty_disagreements_are_kept(tmp_path: Path) -> None:
    task, examples = task_of(), examples_of(100)
    tables = {
        arm: {0: answered(tmp_path / f"{arm}.parquet", task, examples, np.full(100, share))}
        for arm, share in (("a", 0), ("b", 1))
    }
    found = compare_items(["a", "b"], tables, task, examples, "accuracy", seed=0)["disagreements"]
    assert [item["index"] for item in found] == list(range(items.MOST_DISAGREEMENTS))


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    task, examples = task_of(), examples_of(4)
    run = answered(tmp_path / "a.parquet", task, examples, np.ones(4))
    for tables in ({}, {"b": {0: run}}, {"a": {}, "b": {0: run}}):
        found = compare_items(["a", "b"], tables, task, examples, "accuracy", seed=0)
        assert (found["arms"], found["disagreements"]) == ({}, [])
    unpaired = compare_items(["a", "b"], {"a": {0: run}, "b": {1: run}}, task, examples, "accuracy", seed=0)
    assert unpaired["arms"] == {}


def test_answers_to_other_test_items_are_refused_all_at_once(tmp_path: Path) -> None:
    task, examples = task_of(), examples_of(4)
    run = answered(tmp_path / "a.parquet", task, examples, np.ones(4))
    short = answered(tmp_path / "short.parquet", task, examples[:3], np.ones(3))
    narrow = Items(path=tmp_path / "narrow.parquet", answers=run.answers, counts=run.counts[:, :5])
    tables = {"a": {0: run, 1: run}, "b": {0: short, 1: narrow}}
    with pytest.raises(DataError, match=r"short\.parquet holds 3 answers.*narrow\.parquet holds 5 counts"):
        compare_items(["a", "b"], tables, task, examples, "accuracy", seed=0)
