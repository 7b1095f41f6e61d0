"""SQuAD-shaped files become rows: every question once, its answers with their places, bad ones named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from thrice.data.readers import read_table
from thrice.data.squad import COLUMNS, Answer, answers_in, is_impossible
from thrice.data.streaming import stream_rows
from thrice.errors import DataError

CONTEXT = "The cat sat on the mat; the mat was red."


def squad_file(*questions: dict[str, Any], context: Any = CONTEXT) -> dict[str, Any]:
    return {"version": "1.1", "data": [{"title": "cats", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


WHOLE = squad_file(
    {"id": "q1", "question": "Who sat?", "answers": [{"text": "The cat", "answer_start": 0}], "evidences": ["x"]},
    {"id": "q2", "question": "Who ran?", "answers": [], "is_impossible": True},
    {"id": "q3", "question": "Where?"},
)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["whole.json", "whole.json.gz"])
def test_a_squad_file_gives_one_row_a_question(tmp_path: Path, indent: int | None, name: str) -> None:
    data = json.dumps(WHOLE, indent=indent).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    table = read_table(tmp_path / name)
    assert table.columns == COLUMNS
    assert table.lines == [1, 2, 3]
    assert [row["id"] for row in table.rows] == ["q1", "q2", "q3"]
    assert all(row["context"] == CONTEXT and row["title"] == "cats" for row in table.rows)
    assert [answers_in(row.get("answers")) for row in table.rows] == [(Answer("The cat", 0),), (), ()]
    assert [is_impossible(row["is_impossible"]) for row in table.rows] == [False, True, False]
    streamed = stream_rows(tmp_path / name)
    assert [row for block in streamed.blocks() for row in block.rows] == table.rows


def test_lines_that_look_like_squad_stay_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines.json"
    path.write_text("\n".join(json.dumps({"data": "x", "paragraphs": str(n)}) for n in range(3)))
    assert [row["paragraphs"] for row in read_table(path).rows] == ["0", "1", "2"]
    assert stream_rows(path).num_rows == 3
    one = tmp_path / "one.json"
    one.write_text(json.dumps({"data": ["x"], "paragraphs": "y"}))
    assert len(read_table(one).rows) == 1


def test_bad_questions_are_named_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    value = squad_file({"id": "q1"}, {"id": "q2", "question": "Who?"}, "no object")  # type: ignore[arg-type]
    value["data"] += [{"title": "no paragraphs"}, {"paragraphs": [{"qas": []}, {"context": "x"}]}]
    path.write_text(json.dumps(value))
    with pytest.raises(DataError, match=r"bad rows \(5\): question 1: article 1, paragraph 1: a question without text"):
        read_table(path)


def test_a_damaged_squad_file_is_told_as_one_thing(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(WHOLE, indent=1)[:-9])
    with pytest.raises(DataError, match="begins like a SQuAD file and is no JSON"):
        read_table(path)


def test_answers_come_in_every_shape_files_have() -> None:
    pair = (Answer("a", 3), Answer("b", None))
    assert answers_in('[{"text": "a", "answer_start": 3}, {"text": "b"}]') == pair
    assert answers_in('{"text": ["a", "b"], "answer_start": [3, null]}') == pair
    assert answers_in('{"text": "a", "answer_start": 3}') == pair[:1]
    assert answers_in(["x", "y"]) == (Answer("x"), Answer("y"))
    assert answers_in("[sic] words") == (Answer("[sic] words"),)
    assert answers_in("[1, 2]") == (Answer("[1, 2]"),)
    assert answers_in(None) == answers_in("[]") == ()
    with pytest.raises(DataError, match="whole answer_start"):
        answers_in('[{"text": "a", "answer_start": "soon"}]')
    with pytest.raises(DataError, match="true or false"):
        is_impossible("perhaps")


def test_a_misplaced_answer_is_found_at_its_nearest_occurrence() -> None:
    assert Answer("the mat", 15).found_in(CONTEXT) == 15
    assert Answer("the mat", 20).found_in(CONTEXT) == 24
    assert Answer("the mat", 16).found_in(CONTEXT) == 15
    assert Answer("the mat").found_in(CONTEXT) == 15
    assert Answer("dog", 3).found_in(CONTEXT) is None
    assert Answer("", 3).found_in(CONTEXT) is None


@pytest.mark.parametrize(
    ("name", "questions", "answers", "misplaced", "nowhere", "impossible"),
    [  # 193 of the answers that people wrote for CMRC are no part of their passage
        ("cmrc2018/cmrc2018_dev.json.gz", 3219, 9657, 200, 193, 0),
        ("cmrc2018/cmrc2018_trial.json.gz", 1002, 1002, 5, 0, 0),
        ("xquad/xquad.zh.json.gz", 1190, 1190, 0, 0, 0),
        ("xquad/xquad.en.json.gz", 1190, 1190, 0, 0, 0),
        ("squad2_half_dev/dev-v2.0.json.gz", 6078, 10052, 0, 0, 3168),
    ],
)
def test_real_files_are_read_whole(
    shared_data: Path, name: str, questions: int, answers: int, misplaced: int, nowhere: int, impossible: int
) -> None:
    table = read_table(shared_data / name)
    pairs = [(str(row["context"]), answer) for row in table.rows for answer in answers_in(row["answers"])]
    assert (len(table.rows), len(pairs)) == (questions, answers)
    found = [(answer.start, answer.found_in(context)) for context, answer in pairs]
    assert sum(place is None for _, place in found) == nowhere
    assert sum(start != place for start, place in found) == misplaced
    assert sum(is_impossible(row["is_impossible"]) for row in table.rows) == impossible
