"""Tables read exactly: nothing changed, nothing dropped, nothing swallowed, every complaint with its line."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thrice.data import Columns, Table, guess_columns, read_table
from thrice.data import readers as readers_module
from thrice.errors import ConfigError, DataError

UNICODE = st.characters(codec="utf-8")
CELLS = st.lists(st.tuples(st.text(UNICODE), st.text(UNICODE)), min_size=1, max_size=8)
# What common readers change: missing values, numbers, quotes, white space, line ends that are none in a text file.
TRAPS = (
    "NA",
    "null",
    "None",
    "nan",
    "007",
    "1.0",
    "true",
    "",
    " padded ",
    '"',
    'a "quoted" word',
    '"opened and never closed',
    "it's",
    "a,b;c",
    "中文，标点。",
    "a\u2028b\u2029c",
    "a\x85b\x1cc\x0bd\x0ce",
    "\ufeffinside",
    "🙂",
    "#no comment",
    "back\\slash\\n",
)


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    data = content.encode("utf-8") if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def cells_of(table: Table) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in table.columns) for row in table.rows]


def csv_text(rows: list[tuple[str, ...]], *, quoting: int, end: str) -> str:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, quoting=quoting, lineterminator=end).writerows(rows)  # type: ignore[arg-type]
    return buffer.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


# What was written comes back


@given(rows=CELLS)
def test_jsonl_and_json_arrays_give_back_any_text(folder: Path, rows: list[tuple[str, str]]) -> None:
    objects = [{"text": text, "label": label} for text, label in rows]
    for ascii_only in (True, False):
        lines = "\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in objects)
        table = read_table(written(folder, "a.jsonl", lines))
        assert (table.columns, cells_of(table)) == (("text", "label"), rows)
        array = read_table(written(folder, "a.json", json.dumps(objects, ensure_ascii=ascii_only, indent=1)))
        assert (array.columns, cells_of(array)) == (("text", "label"), rows)


@given(rows=CELLS, style=st.sampled_from([(csv.QUOTE_MINIMAL, "\r\n"), (csv.QUOTE_ALL, "\n")]))
def test_csv_gives_back_any_text(folder: Path, rows: list[tuple[str, str]], style: tuple[int, str]) -> None:
    quoting, end = style
    content = csv_text([("text", "label"), *rows], quoting=quoting, end=end)
    assert cells_of(read_table(written(folder, "a.csv", content))) == rows
    without_last_end = content.removesuffix(end)
    assert cells_of(read_table(written(folder, "a.csv", without_last_end))) == rows


@given(rows=CELLS, end=st.sampled_from(["\n", "\r\n"]))
def test_tsv_gives_back_any_text_without_tabs_and_line_ends(
    folder: Path, rows: list[tuple[str, str]], end: str
) -> None:
    legal = [tuple(cell.replace("\t", " ").replace("\n", " ").rstrip("\r") for cell in row) for row in rows]
    content = end.join("\t".join(row) for row in [("text", "label"), *legal]) + end
    assert cells_of(read_table(written(folder, "a.tsv", content))) == legal


@given(texts=st.lists(st.text(UNICODE.filter(lambda letter: letter not in "\t\n\r")), min_size=1, max_size=8))
def test_a_single_column_keeps_its_empty_texts(folder: Path, texts: list[str]) -> None:
    content = "".join(f"{text}\n" for text in ["text", *texts])
    assert read_table(written(folder, "a.tsv", content)).texts("text") == texts


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "tsv", "parquet", "jsonl.gz", "csv.gz", "tsv.gz"])
def test_values_that_common_readers_change_survive(folder: Path, ending: str) -> None:
    rows = [(text, label) for text, label in zip(TRAPS, reversed(TRAPS), strict=True)]
    path = folder / f"traps.{ending}"
    if ending == "parquet":
        import pyarrow
        import pyarrow.parquet

        columns = dict(zip(("text", "label"), zip(*rows, strict=True), strict=True))
        pyarrow.parquet.write_table(pyarrow.table({name: list(cells) for name, cells in columns.items()}), path)
    elif ending.startswith("csv"):
        written(folder, path.name, csv_text([("text", "label"), *rows], quoting=csv.QUOTE_MINIMAL, end="\r\n"))
    elif ending.startswith("tsv"):
        written(folder, path.name, "".join("\t".join(row) + "\n" for row in [("text", "label"), *rows]))
    elif ending == "json":
        written(folder, path.name, json.dumps([dict(zip(("text", "label"), row, strict=True)) for row in rows]))
    else:
        lines = [json.dumps({"text": text, "label": label}, ensure_ascii=False) for text, label in rows]
        written(folder, path.name, "\n".join(lines))
    table = read_table(path)
    assert cells_of(table) == rows
    assert table.texts("text") == list(TRAPS)


def test_the_fingerprint_is_that_of_the_content(folder: Path) -> None:
    content = 'text,label\n"a, b",1\nc,0\n'
    plain = read_table(written(folder, "f.csv", content))
    assert read_table(written(folder, "f.csv.gz", content)).fingerprint == plain.fingerprint
    assert read_table(written(folder, "f.tsv", "text\tlabel\r\na, b\t1\r\nc\t0\r\n")).fingerprint == plain.fingerprint
    for other in (content.replace("c,0", "c,1"), content.replace("label", "class"), content.replace("a, b", "a,b")):
        assert read_table(written(folder, "g.csv", other)).fingerprint != plain.fingerprint


def test_a_byte_order_mark_is_dropped_at_the_beginning_only(folder: Path) -> None:
    for name, content in (
        ("b.csv", "text,label\n\ufeffa,1\n"),
        ("b.tsv.gz", "text\tlabel\n\ufeffa\t1\n"),
        ("b.jsonl", '{"text": "\ufeffa", "label": "1"}\n'),
    ):
        table = read_table(written(folder, name, b"\xef\xbb\xbf" + content.encode()))
        assert (table.columns, cells_of(table)) == (("text", "label"), [("\ufeffa", "1")])


def test_csv_fields_may_hold_line_ends_and_more_than_the_limit_of_the_standard_reader(folder: Path) -> None:
    long = "字" * 200_000
    path = written(folder, "long.csv", f'text,label\r\n"a\n\r\n""b""\r",1\r\n{long},0\r\n')
    limit = csv.field_size_limit()
    table = read_table(path)
    assert cells_of(table) == [('a\n\r\n"b"\r', "1"), (long, "0")]
    assert table.lines == [2, 5]
    assert csv.field_size_limit() == limit


def test_a_file_without_header_takes_the_given_names(folder: Path) -> None:
    path = written(folder, "reviews.data", "很好\t1\n不好\t0\n")
    table = read_table(path, columns=("text", "label"), format="tsv")
    assert (table.columns, cells_of(table), table.lines) == (("text", "label"), [("很好", "1"), ("不好", "0")], [1, 2])
    with pytest.raises(DataError, match=r"--columns names 3 columns .*the first row has 2"):
        read_table(path, columns=("text", "label", "id"), format="tsv")
    with pytest.raises(ConfigError, match="name their own columns"):
        read_table(written(folder, "n.jsonl", '{"a": 1}'), columns=("text",))


def test_other_columns_are_kept_in_order(folder: Path) -> None:
    table = read_table(written(folder, "id.jsonl", '{"id": 7, "text": "a"}\n\n{"text": "b", "id": 8, "extra": "x"}\n'))
    assert table.columns == ("id", "text", "extra")
    assert table.rows == [{"id": "7", "text": "a"}, {"id": "8", "text": "b", "extra": "x"}]
    assert table.lines == [1, 3]


def test_json_values_become_the_text_they_were_written_as(folder: Path) -> None:
    values = ["1", "1.0", "-0", "1e400", "123456789012345678901234567890", "0.1000", "true", "false"]
    for value in values:
        table = read_table(written(folder, "v.jsonl", f'{{"label": {value}, "labels": [{value}, "a"]}}'))
        assert table.rows == [{"label": value, "labels": [value, "a"]}]
    nested = read_table(written(folder, "v.jsonl", '{"spans": [{"at": 1.50, "is": ["字", null, true]}]}'))
    assert nested.rows == [{"spans": '[{"at": 1.50, "is": ["字", null, true]}]'}]


def test_parquet_values_become_strings(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = {
        "text": ["a", None, "c"],
        "label": [1, 0, -1],
        "score": [0.5, float("nan"), 2.0],
        "good": [True, False, None],
        "labels": [["x", "y"], [], ["z"]],
    }
    path = folder / "typed.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    table = read_table(path)
    assert table.columns == tuple(columns)
    assert table.rows == [
        {"text": "a", "label": "1", "score": "0.5", "good": "true", "labels": ["x", "y"]},
        {"label": "0", "good": "false", "labels": []},
        {"text": "c", "label": "-1", "score": "2.0", "labels": ["z"]},
    ]
    with pytest.raises(DataError, match="no readable parquet file"):
        read_table(written(folder, "broken.parquet", b"PAR1 and then nothing"))


def test_a_hub_data_set_is_read_with_the_names_of_its_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    features = datasets.Features(
        text=datasets.Value("string"),
        label=datasets.ClassLabel(names=["neg", "pos"]),
        tags=datasets.Sequence(datasets.ClassLabel(names=["x", "y"])),
    )
    train = datasets.Dataset.from_dict(
        {"text": ["a", "007"], "label": [1, -1], "tags": [[0, 1], []]}, features=features
    )
    asked: list[tuple[Any, ...]] = []

    def load_dataset(path: str, name: str | None, split: str | None) -> Any:
        asked.append((path, name, split))
        return datasets.DatasetDict(train=train, test=train) if split is None else train

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    table = read_table("owner/reviews:zh@train")
    assert asked == [("owner/reviews", "zh", "train")]
    assert table.rows == [{"text": "a", "label": "pos", "tags": ["x", "y"]}, {"text": "007", "tags": []}]
    with pytest.raises(DataError, match="several splits; name one as owner/reviews@SPLIT: train, test"):
        read_table("owner/reviews")


def test_a_hub_data_set_that_cannot_be_reached_is_one_clear_error() -> None:
    with pytest.raises(DataError, match="owner/no-such-set: no such file, and no hub data set"):
        read_table("owner/no-such-set")


# What is wrong is said, with the line


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("e.tsv", "", "is empty"),
        ("e.csv", "\n \n", "is empty"),
        ("e.jsonl", "\ufeff", "is empty"),
        ("e.json", "[]", "has no rows"),
        ("e.tsv", "text\tlabel\n", "has no rows"),
        ("e.csv", "text,text\na,b\n", "names 'text' more than once"),
        ("e.csv", "text\tlabel\na, b, c\t1\n", "--format tsv"),
        ("e.csv", 'text,label\na,1\n"b,0\nc,1\n', "line 3: unexpected end of data; an unbalanced quote"),
        ("e.csv", 'text,label\na,1\n"b,0\n"c",1\n', "line 3: ',' expected after '\"'; an unbalanced quote"),
        ("e.csv", "text,label\na\rb,1\n", "line 2"),
        ("e.tsv", "text\tlabel\na\t1\n\nb\t0\n", r"bad rows \(1\): line 3: an empty line"),
        (
            "e.jsonl",
            '{"text": "a"}\n{"text": "b"\n["c"]\n',
            r"bad rows \(2\): line 2: no JSON object.*line 3: not an obj",
        ),
        ("e.jsonl", '{"text": NaN}', "NaN is not JSON"),
        ("e.jsonl", '{"text": "a", "text": "b"}', "a key stands twice"),
        ("e.jsonl", '{"text": "\\ud83d"}', "line 1: half of a surrogate pair"),
        ("e.jsonl", '{"labels": ["\\ud83d"]}', "line 1: half of a surrogate pair"),
        ("e.json", '[{"text": "a"},\n{"text": "b"}', "begins like a JSON array and is none"),
        ("e.json", '[{"text": "a"},\n\n 7, {"text": "b"}]', r"bad rows \(1\): line 3: not an object but '7'"),
        ("e.tsv", b"text\tlabel\nok\t1\nschlecht f\xfcr\t0\n", "line 3 is not UTF-8.*iconv -f WINDOWS-1252"),
        ("e.csv", "text,label\na,1\n".encode("utf-16"), "is UTF-16, expected UTF-8.*iconv -f UTF-16"),
        ("e.txt", "a", "cannot tell the format from the ending '.txt'; say it: --format"),
        ("e.data.gz", "a", "cannot tell the format from the ending '.data'; say it: --format"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_that_says_why(
    folder: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(DataError, match=f"(?s){message}"):
        read_table(written(folder, name, content))


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_rows_of_another_width_are_counted_and_five_are_shown(folder: Path, ending: str) -> None:
    separator = "," if ending == "csv" else "\t"
    rows = [("text", "label")] + [("a", "1") if number % 3 else ("b", "1", "x") for number in range(24)]
    with pytest.raises(DataError, match=r"bad rows \(8\): line 2: 3 fields, not 2; line 5: .*line 14: .*; and 3 more$"):
        read_table(written(folder, f"width.{ending}", "\n".join(separator.join(row) for row in rows)))


def test_empty_lines_at_the_end_are_no_rows(folder: Path) -> None:
    for name, content in (("z.csv", "text,label\r\na,1\r\n\r\n\r\n"), ("z.tsv", "text\tlabel\na\t1\n\n")):
        assert cells_of(read_table(written(folder, name, content))) == [("a", "1")]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_a_reader_that_loses_a_row_is_found_out(folder: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"csv": 'text\n"a\nb"\nc\n', "tsv": "text\na\nc\n", "jsonl": '{"text": "a"}\n{"text": "c"}\n'}[ending]
    path = written(folder, f"lost.{ending}", content)
    assert len(read_table(path).rows) == 2
    honest = readers_module._lines
    monkeypatch.setattr(readers_module, "_lines", lambda text: honest(text)[:-1])
    with pytest.raises(DataError, match="1 rows were read, the file holds 2"):
        read_table(path)


def test_null_and_missing_values_are_an_error_where_they_are_needed(folder: Path) -> None:
    lines = [
        '{"text": "a", "label": 1}',
        '{"text": null, "label": 1}',
        '{"label": null}',
        '{"text": ["x"], "label": 0}',
    ]
    table = read_table(written(folder, "null.jsonl", "\n".join(lines)))
    with pytest.raises(DataError, match=r"'text' has no text \(3\): line 2: null or missing; line 3: .*line 4: a list"):
        guess_columns(table)
    with pytest.raises(DataError, match=r"'label' has no label \(1\): line 3: null or missing"):
        table.labels("label")


def test_names_that_are_no_file_are_explained(folder: Path) -> None:
    for name in (str(folder / "missing"), "missing.csv", "missing.jsonl.gz", "./missing"):
        with pytest.raises(DataError, match=r"no such file$"):
            read_table(name)
    with pytest.raises(DataError, match="is a folder; name one file in it"):
        read_table(folder)
    with pytest.raises(ConfigError, match="no format called 'tvs'; did you mean tsv"):
        read_table(written(folder, "a.data", "a"), format="tvs")
    (folder / "no.tsv.gz").write_bytes(b"this is not gzip")
    with pytest.raises(DataError, match="cannot be read"):
        read_table(folder / "no.tsv.gz")
    (folder / "half.tsv.gz").write_bytes(gzip.compress(b"text\n" + bytes(range(32, 127)) * 50)[:-20])
    with pytest.raises(DataError, match="cannot be read"):
        read_table(folder / "half.tsv.gz")


# Columns


def table_of(**columns: list[Any]) -> Table:
    names = tuple(columns)
    rows = [dict(zip(names, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return Table(columns=names, rows=rows, lines=list(range(1, len(rows) + 1)), source="t", fingerprint="")


TEXTS = [f"sentence number {number}" for number in range(6)]
FEW = ["good", "bad"] * 3
IDS = [str(number) for number in range(6)]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"id": IDS, "text": TEXTS, "label": FEW}, ("text", None, "label")),
        ({"Review ": TEXTS, "Sentiment": FEW, "id": IDS}, ("Review ", None, "Sentiment")),
        ({"文本": TEXTS, "标签": FEW}, ("文本", None, "标签")),
        ({"sentence1": TEXTS, "sentence2": TEXTS, "label": FEW}, ("sentence1", "sentence2", "label")),
        ({"index": IDS, "question": TEXTS, "sentence": TEXTS, "label": FEW}, ("question", "sentence", "label")),
        ({"Text A": TEXTS, "Text B": TEXTS, "target": FEW}, ("Text A", "Text B", "target")),
        ({"what": TEXTS, "mood": FEW}, ("what", None, "mood")),
        ({"mood": FEW, "what": TEXTS}, ("what", None, "mood")),
        ({"what": TEXTS, "label": IDS}, ("what", None, "label")),
        ({"text": TEXTS, "mood": FEW}, ("text", None, "mood")),
        ({"what": TEXTS, "labels": [["a"], [], ["a", "b"]] * 2}, ("what", None, "labels")),
    ],
)
def test_obvious_columns_are_found(columns: dict[str, list[Any]], expected: tuple[str, str | None, str]) -> None:
    text, text_pair, label = expected
    assert guess_columns(table_of(**columns)) == Columns(text=text, text_pair=text_pair, label=label)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": TEXTS, "content": TEXTS, "label": FEW}, "fit equally: text, content; .*--text-column"),
        ({"text": TEXTS, "sentence1": TEXTS, "sentence2": TEXTS, "label": FEW}, "fit equally: sentence1 .*, text"),
        ({"text": TEXTS, "label": FEW, "class": FEW}, "fit equally: label, class; .*--label-column"),
        ({"a": TEXTS, "b": TEXTS}, "which column is the text.*'a', 'b'.*--text-column"),
        ({"a": FEW, "b": FEW}, "which column is the text"),
        ({"id": IDS, "a": TEXTS, "b": FEW}, "which column is the text.*--columns"),
        ({"text": TEXTS, "id": IDS}, "which column is the label.*--label-column"),
        ({"text": TEXTS}, "which column is the label"),
    ],
)
def test_columns_are_never_guessed_where_several_fit(columns: dict[str, list[str]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        guess_columns(table_of(**columns))


def test_named_columns_win() -> None:
    table = table_of(text=TEXTS, content=TEXTS, label=FEW, stars=FEW)
    assert guess_columns(table, text="content", label="stars") == Columns(text="content", label="stars")
    assert guess_columns(table, text="content") == Columns(text="content", label="label")
    pair = guess_columns(table, text="content", text_pair="text")
    assert pair == Columns(text="content", text_pair="text", label="label")
    pairs = table_of(sentence1=TEXTS, sentence2=TEXTS, label=FEW)
    assert guess_columns(pairs, text="sentence1").text_pair is None
    assert guess_columns(pairs, text_pair="sentence2").text == "sentence1"
    with pytest.raises(DataError, match="no column 'contents'; did you mean content"):
        guess_columns(table, text="contents")
    with pytest.raises(DataError, match="two roles"):
        guess_columns(table, text="text", label="text")


def test_labels_are_optional_for_prediction() -> None:
    assert guess_columns(table_of(id=IDS, text=TEXTS), need_label=False) == Columns(text="text")
    assert guess_columns(table_of(what=TEXTS), need_label=False) == Columns(text="what")
    assert guess_columns(table_of(text=TEXTS, label=FEW), need_label=False) == Columns(text="text", label="label")
    holey = table_of(text=TEXTS, label=FEW)
    del holey.rows[2]["label"]
    assert guess_columns(holey, need_label=False) == Columns(text="text")
    with pytest.raises(DataError, match="line 3: null or missing"):
        guess_columns(holey, label="label", need_label=False)


def test_a_data_row_taken_for_a_header_gives_a_short_hint() -> None:
    with pytest.raises(DataError) as caught:
        guess_columns(table_of(**{"很" * 500: TEXTS, "1": TEXTS}))
    assert len(str(caught.value)) < 250
    assert "--columns" in str(caught.value)


# Real files


def test_real_files_are_read_whole(shared_data: Path) -> None:
    names = ("text", "label")
    for part, rows in (("train", 16_883), ("valid", 2_111), ("test", 2_111)):
        path = shared_data / "sentiment_bojone" / f"sentiment.{part}.data.gz"
        table = read_table(path, columns=names, format="tsv")
        assert len(table.rows) == rows
        assert set(table.labels("label")) == {"0", "1"}
        assert guess_columns(table) == Columns(text="text", label="label")
    iflytek = read_table(shared_data / "iflytek" / "train_few_all.json.gz")
    assert (len(iflytek.rows), len(set(map(str, iflytek.labels("label"))))) == (3_024, 119)
    mrpc = read_table(shared_data / "glue_small" / "MRPC" / "train.tsv.gz")
    assert mrpc.columns == ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    assert sum('"' in text for text in mrpc.texts("#1 String")) == 652
