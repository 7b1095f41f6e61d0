"""Few examples: how they are drawn, the study over methods, sizes and samples, and answers without training."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from test_cli import run

from thrice.compare.fewshot import fewshot_study, fewshot_table
from thrice.compare.runner import run_study
from thrice.data.splits import choose_shots
from thrice.errors import ConfigError, DataError
from thrice.finetune import DataSource, read_splits
from thrice.training import TrainingConfig

PROMPT = {"pattern": "{text}，很{mask}", "verbalizer": "good=好,bad=差"}


def test_shots_are_so_many_texts_of_each_label_and_grow_by_inclusion() -> None:
    texts = [f"text {i % 30}" for i in range(60)]  # every text twice
    labels = ["a" if i % 30 < 20 else "b" for i in range(60)]
    eight = choose_shots(texts, labels, shots=8, seed=1)
    assert Counter(labels[i] for i in eight) == {"a": 8, "b": 8}
    assert len({texts[i] for i in eight}) == 16
    assert set(choose_shots(texts, labels, shots=4, seed=1)) < set(eight)
    assert choose_shots(texts, labels, shots=8, seed=2) != eight
    chosen = choose_shots(texts[::-1], labels[::-1], shots=8, seed=1)
    assert {texts[::-1][i] for i in chosen} == {texts[i] for i in eight}


def test_too_few_texts_of_a_class_are_told_for_all_classes() -> None:
    texts, labels = ["1", "1", "2", "3", "4"], ["a", "a", "b", "b", "c"]
    with pytest.raises(DataError, match="2 different training texts of every class are wanted; 'a' has 1, 'c' has 1"):
        choose_shots(texts, labels, shots=2, seed=0)
    assert choose_shots(texts, labels, shots=2, seed=0, fewer=True) == [0, 2, 3, 4]


def test_the_dev_part_is_as_small_as_the_training_part_and_test_stays_whole(reviews: Path) -> None:
    _, whole = read_splits("classification", DataSource(data=str(reviews)), {})
    for seed in (0, 1):
        source = DataSource(data=str(reviews), shots=4, split_seed=seed)
        _, splits = read_splits("fewshot", source, PROMPT)
        assert Counter(e.label for e in splits.train) == {0: 4, 1: 4}
        assert max(Counter(e.label for e in splits.dev).values()) <= 4
        assert len(splits.test) == len(whole.test)
        assert splits.facts["train"]["rows"] == 8
        _, plain = read_splits("classification", source, {})
        assert [e.text for e in plain.train] == [e.text for e in splits.train], "the same sample for both methods"


@pytest.fixture
def parts(reviews: Path, tmp_path: Path) -> dict[str, str]:
    """Files of training, dev and test rows."""
    header, *rows = reviews.read_text(encoding="utf-8").splitlines(keepends=True)
    found = {}
    for name, own in (("train", rows[:60]), ("dev", rows[60:90]), ("test", rows[90:])):
        (tmp_path / f"{name}.csv").write_text(header + "".join(own), encoding="utf-8")
        found[name] = str(tmp_path / f"{name}.csv")
    return found


def test_a_study_of_few_examples_has_a_cell_for_every_sample_and_its_table(
    parts: dict[str, str], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    study = fewshot_study(
        [str(tiny_checkpoint)],
        DataSource(**parts),  # type: ignore[arg-type]
        options={**PROMPT, "max_length": 24},
        shots=[2, 4],
        splits=2,
        training=TrainingConfig(epochs=2, batch_size=4, learning_rate=1e-3),
    )
    assert len(study.cells) == 2 * 2 * 2 + 1
    run_study(study, tmp_path / "study", cost=False)
    assert not (tmp_path / "study" / "cost.json").exists()
    found = json.loads(json.dumps(fewshot_table(tmp_path / "study")))
    assert found["score"] == "test"
    shapes = {(row["method"], row["shots"]): row["n"] for row in found["rows"]}
    expected = {(method, k): 2 for method in ("prompt", "plain") for k in (2, 4)}
    assert shapes == expected | {("zero-shot", None): 1}
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "study" / "cells").iterdir()]
    steps = {row["task"]: row["steps"] for row in rows}
    assert (steps["zero-shot split=0"], steps["prompt k=4 split=1"], steps["plain k=4 split=1"]) == (0, 4, 4)
    for row in found["rows"]:
        own = [r for r in rows if r["task"].startswith(row["method"]) and f"k={row['shots']} " in r["task"]]
        if row["shots"] is not None:
            assert sorted(row["values"]) == sorted(r["test"]["accuracy"] for r in own), "collapsed runs count too"
    by_key = {(row["method"], row["shots"]): row for row in found["rows"]}
    for pair in found["differences"]:
        means = [by_key[method, pair["shots"]]["mean"] for method in ("prompt", "plain")]
        assert pair["mean"] == pytest.approx(means[0] - means[1])


def test_a_study_that_cannot_be_is_told_with_all_its_problems(parts: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        fewshot_study(
            ["tfidf"],
            DataSource(**parts, shots=3),  # type: ignore[arg-type]
            options={"patern": "{text}{mask}"},
            shots=[0],
            splits=0,
            methods=["prompt", "promt"],
            metric="f1",
            training=TrainingConfig(),
        )
    for part in (
        "no method 'promt'; did you mean prompt",
        "shots are 0",
        "splits is 0",
        "metric is 'f1'",
        "tfidf has no prompts",
        "shots of the source are set",
        "no option 'patern'; did you mean pattern",
    ):
        assert part in str(caught.value)


def typed(parts: dict[str, str]) -> list[str]:
    files = [word for part, path in parts.items() for word in (f"--{part}", path)]
    return [*files, "--pattern", PROMPT["pattern"], "--verbalizer", PROMPT["verbalizer"], "--max-length", "24"]


def test_the_fewshot_command_prints_its_table_and_goes_on_where_it_was(
    parts: dict[str, str],
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["fewshot", str(tiny_checkpoint), *typed(parts), "--out", str(tmp_path / "few"), "-k", "2", "--splits", "2"]
    words += ["--epochs", "1", "--batch-size", "4", "--threads", "1"]
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert [line[1] for line in lines[1:4]] == ["prompt", "plain", "zero-shot"]
    assert "prompt less plain" in out
    assert err.count("best dev") == 5
    code, out, err = run(monkeypatch, capsys, *words, "--json")
    assert code == 0
    assert "best dev" not in err, "nothing is computed twice"
    assert json.loads(out)["cells"] == {"done": 5, "planned": 5}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-k", "8,many"], "--per-class '8,many': expected numbers"),
        (["-k", "50"], "50 different training texts of every class are wanted; 'bad' has 30, 'good' has 30"),
        (["--task", "classification2"], "the methods of fewshot are its tasks"),
        (["--methods", "promt"], "did you mean prompt"),
    ],
)
def test_what_the_fewshot_command_cannot_do_is_said(
    words: list[str],
    said: str,
    parts: dict[str, str],
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["fewshot", str(tiny_checkpoint), *typed(parts), "--out", str(tmp_path / "few"), *words]
    code, _, err = run(monkeypatch, capsys, *command)
    assert code == 2
    assert said in err


def test_predict_answers_without_training_from_a_checkpoint_as_it_is(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "质量很好"}\n{"text": "很差"}\n', encoding="utf-8")
    words: list[Any] = ["predict", str(tiny_checkpoint), str(tmp_path / "texts.jsonl"), "--task"]
    options = [word for name, value in {**PROMPT, "max_length": 32}.items() for word in ("-o", f"{name}={value}")]
    code, out, err = run(monkeypatch, capsys, *words, "fewshot", *options)
    assert code == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["text"] for answer in answers] == ["质量很好", "很差"]
    assert all(set(answer["probabilities"]) == {"good", "bad"} for answer in answers)
    code, _, err = run(monkeypatch, capsys, *words, "classification")
    assert code == 2
    assert "weights that must be trained first; without training works: fewshot" in err


def test_finetune_takes_shots_and_any_option_of_the_task_as_typed(
    reviews: Path,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "finetune",
        str(tiny_checkpoint),
        "--task",
        "fewshot",
        "--data",
        str(reviews),
        "--out",
        str(tmp_path / "m"),
    ]
    options = ["-o", 'pattern=["{text}，很{mask}", "{mask}。{text}"]', "-o", 'verbalizer={good = ["好"], bad = "差"}']
    code, out, err = run(
        monkeypatch, capsys, *words, *options, "--shots", "4", "--epochs", "1", "--max-length", "32", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["data"]["train"]["rows"] == 8
