"""On real questions the threshold of no answer is the one that dev chose, it decides, and dev does not lose by it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from thrice.checkpoints import load
from thrice.data.questions import Question
from thrice.data.readers import read_table
from thrice.data.squad import Answer
from thrice.data.tokenizer import Tokenizer
from thrice.model.encoder import Encoder
from thrice.tasks.base import TaskModel
from thrice.tasks.spans import Spans


def gap(answer: dict[str, Any]) -> float:
    """How much better "no answer" scores than the best span."""
    (none,) = (entry["score"] for entry in answer["n_best"] if entry["start"] is None)
    best: float = none - max(entry["score"] for entry in answer["n_best"] if entry["start"] is not None)
    return best


def test_the_threshold_that_dev_chose_decides_and_never_lowers_the_dev_score(shared_data: Path, minilm: Path) -> None:
    table = read_table(shared_data / "squad2_half_dev" / "dev-v2.0.json.gz")
    short = sorted(table.rows, key=lambda row: len(str(row["context"])))[:32]
    table = dataclasses.replace(table, rows=short, lines=table.lines[:32])
    task = Spans.learn(table, max_length=96, max_question=32, stride=16, max_answer=16)
    dev = task.read(table)
    assert {bool(question.answers) for question in dev} == {True, False}
    encoder = load(str(minilm))
    assert isinstance(encoder, Encoder)
    model = TaskModel(encoder, task).eval()
    data = task.encode(dev, Tokenizer.from_folder(minilm, vocab_size=encoder.config.vocab_size))
    plain = model.predict(data)
    gaps = [gap(answer) for answer in plain]

    # An untuned head is right nowhere; as if it were where it is surest of a span, dev has something to gain by it.
    middle = sorted(gaps)[len(gaps) // 2]
    for examples in (dev, [taught(q, a, middle) for q, a in zip(dev, plain, strict=True)]):
        chosen: Any = task.tuned(lambda: plain, examples)
        assert isinstance(chosen.null_threshold, float)
        model.task = chosen
        answers = model.predict(data)
        assert [a["prediction"] == "" for a in answers] == [distance > chosen.null_threshold for distance in gaps]
        score = chosen.score(answers, examples)["score"]
        for other in (0.0, -1e9, 1e9):
            model.task = dataclasses.replace(chosen, null_threshold=other)
            assert score >= chosen.score(model.predict(data), examples)["score"] - 1e-9, other
    assert min(gaps) < chosen.null_threshold < max(gaps), "some keep their span and some do not"
    assert score == pytest.approx(1)


def taught(question: Question, answer: dict[str, Any], middle: float) -> Question:
    """Give a question whose gold answer is the model's best span where it is surer of one than in the middle."""
    span = next(entry for entry in answer["n_best"] if entry["start"] is not None)
    sure = gap(answer) < middle
    return dataclasses.replace(question, answers=(Answer(span["text"], span["start"]),) if sure else ())
