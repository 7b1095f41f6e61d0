"""Blocks of rows: the same rows as the whole table, every complaint with its line, memory that does not grow."""

from __future__ import annotations

import gzip
import json
import os
import random
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thrice.data import read_table, streaming
from thrice.data.streaming import stream_rows
from thrice.errors import ConfigError, DataError
from thrice.finetune import DataSource, finetune
from thrice.predict import load_model, predict_file
from thrice.tasks.classification import Classification

QUOTED = '"two\nlines, ""quoted""\n\nand an empty one"'
CELLS = ("plain", "中文", "", "007", 'a 5" screen', "a\u2028b\x85c", "NA")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows a block, so that a short file has many."""
    monkeypatch.setattr(streaming, "BLOCK_ROWS", 3)


@pytest.fixture(scope="session")
def tuned(tiny_checkpoint: Path, reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fine-tuned folder."""
    folder = tmp_path_factory.mktemp("tuned") / "out"
    source, training = DataSource(data=str(reviews)), {"epochs": 1, "learning_rate": 5e-3, "batch_size": 16}
    finetune(
        str(tiny_checkpoint),
        folder,
        source=source,
        task_name="classification",
        options={"max_length": 24},
        training=training,
    )
    return folder


def random_file(kind: str, draw: random.Random) -> str:
    """Give a file of a dozen rows with empty lines where the format allows them."""
    rows = [(draw.choice(CELLS), f"r{number}") for number in range(draw.randint(1, 14))]
    if kind == "jsonl":
        lines = [json.dumps({"text": a, "id": b} | ({"late": "x"} if n > 5 else {})) for n, (a, b) in enumerate(rows)]
        return draw.choice(["", "\ufeff"]) + "".join(line + draw.choice(["\n", "\n \n"]) for line in lines)
    end = draw.choice(["\n", "\r\n"])
    tsv = kind == "tsv"
    cells = [[a if tsv else draw.choice([QUOTED, a]), b] for a, b in rows]
    content = end.join(("\t" if tsv else ",").join(line) for line in [["text", "id"], *cells])
    return content + draw.choice(["", end, 3 * end])


@pytest.mark.parametrize("kind", ["csv", "jsonl", "tsv"])
@pytest.mark.parametrize("packed", [False, True])
def test_blocks_together_are_the_table(kind: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / (f"a.{kind}.gz" if packed else f"a.{kind}")
    most = 0
    for seed in range(60):
        data = random_file(kind, random.Random(seed)).encode()
        path.write_bytes(gzip.compress(data) if packed else data)
        table, stream = read_table(path), stream_rows(path)
        blocks = list(stream.blocks())
        assert (stream.columns, stream.num_rows) == (table.columns, len(table.rows))
        assert [row for block in blocks for row in block.rows] == table.rows
        assert [line for block in blocks for line in block.lines] == table.lines
        most = max(most, len(blocks))
    assert most >= 4


def test_single_columns_with_empty_rows_and_files_without_header_stream_alike(tmp_path: Path) -> None:
    for name, content, columns in (
        ("a.csv", "text\n\na\n\n\n\nb\nc\nd\ne\n\n", None),
        ("b.tsv", "x\t1\n" * 10, ("text", "label")),
        ("c.csv", '""\n""\n', ("text",)),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
        table = read_table(tmp_path / name, columns=columns)
        blocks = stream_rows(tmp_path / name, columns=columns).blocks()
        assert [row for block in blocks for row in block.rows] == table.rows


def test_parquet_and_json_arrays_come_in_blocks(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"text": f"t{n}", "label": None if n == 4 else "1"} for n in range(10)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    for name in ("a.parquet", "a.json"):
        table, blocks = read_table(tmp_path / name), list(stream_rows(tmp_path / name).blocks())
        assert len(blocks) == 4
        assert [row for block in blocks for row in block.rows] == table.rows
        assert [line for block in blocks for line in block.lines] == table.lines


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "rows.jsonl"
    os.mkfifo(pipe)
    content = "".join(f'{{"text": "{n}"}}\n' for n in range(7))
    writer = threading.Thread(target=pipe.write_text, args=(content,), daemon=True)
    writer.start()
    assert [len(block.rows) for block in stream_rows(pipe).blocks()] == [3, 3, 1]
    writer.join()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.jsonl", '{"a": 1}\n' * 5 + "x\n" + '{"a": 1}\n' * 5 + "y\n", r"bad rows \(2\): line 6: .*; line 12: "),
        ("a.csv", "a,b\n" + "1,2\n" * 6 + "1\n" + "1,2\n" * 6 + "1,2,3\n", r"line 8: 1 fields.*; line 15: 3 fields"),
        ("a.tsv", "a\tb\n" + "1\t2\n" * 2 + "\n" + "1\t2\n" * 6, "line 4: an empty line"),
        ("a.csv", "a,b\n" + "1,2\n" * 8 + '1,"2\n', "line 10: .*unbalanced quote"),
        ("a.csv", b"a,b\n" + b"1,2\n" * 8 + b"1,\xff\n", "line 10 is not UTF-8"),
        ("a.tsv", b"a\tb\n" + b"1\t2\n" * 8 + b"1\t\xff\n", "line 10 is not UTF-8"),
        ("a.jsonl", "", "is empty"),
        ("a.csv", "\n\n", "is empty"),
        ("a.csv", "a,b\n", "has no rows"),
        ("a.csv.gz", b"no gzip", "cannot be read"),
        ("a.parquet", b"no parquet", "no readable parquet"),
        ("a.csv", "a,a\n1,2\n", "more than once"),
    ],
)
def test_a_damaged_file_is_refused_as_the_whole_table_is(
    name: str, content: str | bytes, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    for read in (stream_rows, read_table):
        with pytest.raises(DataError, match=complaint):
            read(path)


@pytest.mark.parametrize("kind", ["csv", "tsv"])
@pytest.mark.parametrize("empty", ["\n", "\n\n\n\n"])
def test_an_empty_line_is_refused_wherever_it_falls_in_a_block(kind: str, empty: str, tmp_path: Path) -> None:
    row = "1,2\n" if kind == "csv" else "1\t2\n"
    for before in range(1, 7):
        path = tmp_path / f"a.{kind}"
        path.write_text(row.replace("1", "a").replace("2", "b") + before * row + empty + 5 * row, encoding="utf-8")
        with pytest.raises(DataError, match=rf"bad rows \({len(empty)}\): line {before + 2}: an empty line"):
            stream_rows(path)
        path.write_text(before * row.replace("1", "a") + 8 * "\n", encoding="utf-8")
        assert stream_rows(path, columns=("a", "b")).num_rows == before


def test_column_names_for_a_format_that_has_its_own_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": "b"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="name their own columns"):
        stream_rows(tmp_path / "a.jsonl", columns=("a",))


def test_a_file_that_changes_between_the_readings_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for later in ('{"a": "b"}\n' * 4, '{"a": "b"}\n' * 6, '{"a": "b"}\n' * 4 + '{"c": "b"}\n'):
        path.write_text('{"a": "b"}\n' * 5, encoding="utf-8")
        stream = stream_rows(path)
        path.write_text(later, encoding="utf-8")
        with pytest.raises(DataError, match="was changed while it was read: it held 5 rows"):
            list(stream.blocks())


def test_a_row_without_text_is_refused_before_the_first_answer(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Classification, "predict", lambda *_: pytest.fail("something was answered"))
    (tmp_path / "a.jsonl").write_text('{"text": "好"}\n' * 10 + '{"text": null}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"'text' has no text \(1\): line 11: null"):
        predict_file(tuned, str(tmp_path / "a.jsonl"), tmp_path / "answers.csv")


def test_an_error_in_the_middle_leaves_the_older_file_and_nothing_beside_it(
    tuned: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "answers" / "a.csv"
    target.parent.mkdir()
    target.write_text("older", encoding="utf-8")
    right, calls = Classification.predict, []

    def failing(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return right(*arguments)

    monkeypatch.setattr(Classification, "predict", failing)
    with pytest.raises(KeyboardInterrupt):
        predict_file(tuned, str(reviews), target)
    assert [path.name for path in target.parent.iterdir()] == ["a.csv"]
    assert target.read_text(encoding="utf-8") == "older"


def test_answers_do_not_depend_on_the_blocks(
    tuned: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [json.loads(line) for line in predict_file(tuned, str(reviews), None)]
    monkeypatch.setattr(streaming, "BLOCK_ROWS", 1000)
    whole = [json.loads(line) for line in predict_file(tuned, str(reviews), None)]
    answers = load_model(tuned).predict([row["text"] for row in blocks])
    assert len(blocks) == 120
    for ours, other, answer in zip(blocks, whole, answers, strict=True):
        assert ours["id"] == other["id"]
        assert ours["probabilities"] == pytest.approx(other["probabilities"], abs=1e-6)
        assert ours["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-6)


def test_lines_come_as_they_are_made(tuned: Path, reviews: Path) -> None:
    told: list[str] = []
    assert predict_file(tuned, str(reviews), None, on_batch=lambda n: told.append("batch"), on_line=told.append) == []
    assert told[0] == "batch"
    assert "batch" in told[2:]
    assert len([line for line in told if line != "batch"]) == 120


def test_memory_does_not_grow_with_the_file(tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "BLOCK_ROWS", 100)
    for kind, line in (("csv", '{n},"质量很好\n{n}"'), ("jsonl", '{{"id": "{n}", "text": "质量很好{n}"}}')):
        head = "id,text\n" if kind == "csv" else ""

        def run(rows: int, kind: str = kind, line: str = line, head: str = head) -> Callable[[], Any]:
            source, target = tmp_path / f"{rows}.{kind}", tmp_path / f"answers.{kind}"
            source.write_text(head + "".join(line.format(n=n) + "\n" for n in range(rows)), encoding="utf-8")
            return lambda: predict_file(tuned, str(source), target)

        run(200)()  # what is loaded once is loaded
        short, long = peak(run(200)), peak(run(1600))
        assert long < 1.1 * short + 2**16


def peak(run: Callable[[], Any]) -> int:
    """Give the most bytes that Python and numpy held at once."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_list_among_lines_is_refused_wherever_it_falls(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for row in (1, 4):  # blocks are of three rows
        lines = [json.dumps({"text": str(n)}) for n in range(4)]
        lines.insert(row, '[{"text": "x"}]')
        path.write_text("\n".join(lines[: row + 1]) + "\n", encoding="utf-8")
        with pytest.raises(DataError) as whole:
            read_table(path)
        with pytest.raises(DataError) as blocks:
            stream_rows(path)
        assert str(blocks.value) == str(whole.value)


def test_reading_stops_where_too_many_rows_are_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "MOST_PROBLEMS", 5)
    path = tmp_path / "x.jsonl"
    path.write_text("no json\n" * 30, encoding="utf-8")
    with pytest.raises(DataError, match="line 1"):
        stream_rows(path)


def test_answers_do_not_replace_what_they_answer(tuned: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("text\ngood\n", encoding="utf-8")
    (tmp_path / "also.csv").symlink_to(path)
    for target in (path, tmp_path / "also.csv"):
        with pytest.raises(DataError, match="is the file that is read"):
            predict_file(tuned, str(path), target)
    assert path.read_text(encoding="utf-8") == "text\ngood\n"
