"""Spans and reading from the command line: fine-tune, predict and compare, on questions of a few words."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
from conftest import NEGATIVE, POSITIVE
from rich.console import Console

from thrice import cli
from thrice.cli import screen
from thrice.compare.results import read_rows
from thrice.compare.summary import summarise

OPTIONS = {
    "spans": ["--max-length", "32", "-o", "max_question=8", "-o", "stride=6", "-o", "max_answer=10"],
    "reading": [
        *("-o", "max_passage=20", "-o", "max_question=6", "-o", "max_answer=8", "-o", "stride=6"),
        *("-o", "negatives=0"),
    ],
}
TRAINING = ["--epochs", "1", "--batch-size", "8", "--lr", "0.005", "--threads", "1"]


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["thrice", *words])
    monkeypatch.setattr(screen, "out", Console(width=200))
    monkeypatch.setattr(screen, "err", Console(stderr=True, width=400))
    with pytest.raises(SystemExit) as caught:
        cli.main()
    said = capsys.readouterr()
    return int(caught.value.code or 0), said.out, said.err


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """A file of questions in the shape of SQuAD; every sixth has no answer."""
    paragraphs = []
    for i, (one, other) in enumerate(itertools.product(POSITIVE, NEGATIVE)):
        phrase = one if i % 2 else other
        context = f"{one}{i % 10}{other}"
        answer = {"text": phrase[2:], "answer_start": context.index(phrase) + 2}
        absent = i % 6 == 5
        question = "价格" if absent else phrase[:2]
        qas = {"id": f"q{i:02}", "question": question, "answers": [] if absent else [answer], "is_impossible": absent}
        paragraphs.append({"context": context, "qas": [qas]})
    path = tmp_path / "asked.json"
    path.write_text(json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]}), encoding="utf-8")
    return path


@pytest.mark.parametrize("task", OPTIONS)
def test_questions_are_learned_and_answered_from_the_command_line(
    task: str,
    tiny_checkpoint: Path,
    asked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["finetune", str(tiny_checkpoint), "--task", task, "--data", str(asked), "--out", str(tmp_path / "out")]
    code, out, err = run(monkeypatch, capsys, *words, *OPTIONS[task], *TRAINING, "--json")
    assert code == 0, err
    assert {"score", "exact_match", "f1"} <= json.loads(out)["test"].keys()
    code, out, err = run(monkeypatch, capsys, "predict", str(tmp_path / "out"), str(asked))
    assert code == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["id"] for answer in answers] == [f"q{i:02}" for i in range(36)]
    for answer in answers:
        assert (answer["prediction"] == "") is (answer["start"] is None)
        if answer["start"] is not None:
            assert answer["context"].startswith(answer["prediction"], answer["start"])


@pytest.mark.parametrize("task", OPTIONS)
def test_questions_are_compared_from_the_command_line(
    task: str,
    tiny_checkpoint: Path,
    asked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("thrice.compare.runner.measure_cost", lambda *_: None)
    arms = [f"{tiny_checkpoint}+all", f"{tiny_checkpoint}+none"]
    words = ["compare", *arms, "--task", task, "--data", str(asked), "--out", str(tmp_path / "study"), "--seeds", "2"]
    code, out, err = run(monkeypatch, capsys, *words, *OPTIONS[task], *TRAINING)
    assert code == 0, err
    assert "after epoch 1" in " ".join(out.split())
    rows = read_rows(tmp_path / "study")
    assert sorted((row["arm"], row["seed"]) for row in rows) == sorted(itertools.product(arms, (0, 1)))
    assert all(0 <= row["test"]["f1"] <= 1 for row in rows)
    (part,) = summarise(tmp_path / "study")["tasks"]
    assert part["metric"] == "score"
    found = part["arms"][1]["test"]["difference"]
    assert found["items"] is None or found["items"]["mean"] == pytest.approx(found["mean"])
    assert (tmp_path / "study" / "report.html").exists()
