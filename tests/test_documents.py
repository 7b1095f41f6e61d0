"""Files and data sets give their documents, in memory that does not grow; paragraphs give their sentences."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import datasets
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thrice.data import documents
from thrice.data.documents import documents_of, find_sources
from thrice.data.sentences import sentences_of
from thrice.errors import ConfigError, DataError


def read(*sources: str | Path, column: str | None = None) -> list[str]:
    return list(documents_of(find_sources(list(sources), column=column)))


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


# Sentences


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("他来了。她走了！真的？是的", ["他来了。", "她走了！", "真的？", "是的"]),
        ("他说：“你来了。”她不说话。", ["他说：“你来了。”", "她不说话。"]),
        ('他说："你来了。"她不说话。', ['他说："你来了。"', "她不说话。"]),
        ('他走了。"你好。"她说。', ["他走了。", '"你好。"', "她说。"]),
        ("等等……他来了。！？好", ["等等……", "他来了。！？", "好"]),
        ("真的?我不信!他说", ["真的?", "我不信!", "他说"]),
        ("使用 Python 3.11 和 e.g. 它。好", ["使用 Python 3.11 和 e.g. 它。", "好"]),
        ("It was the end. He sat.  Why? No!", ["It was the end.", "He sat.", "Why?", "No!"]),
        ('"Stop." He sat. "Why?" she said.', ['"Stop."', "He sat.", '"Why?" she said.']),
        ("Mr. Smith met Dr. J. R. Brown at 3.5 p.m. today.", ["Mr. Smith met Dr. J. R. Brown at 3.5 p.m. today."]),
        ("Wait... what? Yes... No.", ["Wait... what?", "Yes...", "No."]),
        ("  spaces   around.  ", ["spaces   around."]),
        ("", []),
        (" \t\u3000", []),
        ("。", ["。"]),
    ],
)
def test_a_paragraph_is_cut_where_its_sentences_end(paragraph: str, sentences: list[str]) -> None:
    assert sentences_of(paragraph) == sentences


@given(st.text(alphabet="他来了。！？…”“\"'.!?()） abAB3\u3000", max_size=60))
def test_no_character_but_white_space_is_lost_between_sentences(paragraph: str) -> None:
    sentences = sentences_of(paragraph)
    assert "".join("".join(sentences).split()) == "".join(paragraph.split())
    assert all(sentence == sentence.strip() != "" for sentence in sentences)
    place = 0
    for sentence in sentences:
        place = paragraph.index(sentence, place) + len(sentence)


# Text files


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "A.TXT"])
def test_empty_lines_part_documents_and_lines_are_paragraphs(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, "\ufeff\n\none\n  two \r\n\r\n \t\nthree\u2028still\n\n")
    assert read(path) == ["one\ntwo", "three\u2028still"]


@given(st.lists(st.lists(st.text(alphabet="ab 。\u3000\x85", max_size=5), max_size=4), max_size=6))
def test_what_is_written_as_documents_is_read_as_documents(pieces: list[list[str]]) -> None:
    wanted = [[line.strip() for line in paragraphs if line.strip()] for paragraphs in pieces]
    text = "\n\n".join("\n".join(paragraphs) for paragraphs in wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "raw_lines", lambda path: iter(text.encode().splitlines(keepends=True)))
        found = list(documents._text_documents(Path("x.txt"), "x.txt"))
    assert found == ["\n".join(paragraphs) for paragraphs in wanted if paragraphs]


def test_a_text_in_another_encoding_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("好\n\n".encode() + "他来了。他走了。".encode("gb18030"))
    with pytest.raises(DataError, match=r"line 3 is not UTF-8.*GB18030"):
        read(path)


def test_a_file_of_lines_without_empty_ones_is_no_single_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "LONGEST", 100)
    path = written(tmp_path / "a.txt", "short\n\n" + "a line\n" * 20)
    with pytest.raises(DataError, match=r"begins at line 3 has more than .*expected an empty line"):
        read(path)


def test_a_cut_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\n\ntwo\n" * 1000)[:-20])
    with pytest.raises(DataError, match="gzip -t"):
        read(path)


# Rows


def test_rows_of_jsonl_and_parquet_are_documents(tmp_path: Path) -> None:
    rows = [{"id": 1, "text": "one\n\n two "}, {"id": 2, "text": None}, {"id": 3, "text": "three"}]
    lines = written(tmp_path / "a.jsonl.gz", "".join(json.dumps(row) + "\n" for row in rows) + "\n")
    pandas.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    assert read(lines) == read(tmp_path / "a.parquet") == ["one\ntwo", "", "three"]


def test_the_column_with_the_text_is_named_where_it_cannot_be_guessed(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", json.dumps({"title": "t", "body": "b"}) + "\n")
    assert read(path, column="body") == ["b"]
    assert read(written(tmp_path / "b.jsonl", json.dumps({"body": "b"}))) == ["b"]
    with pytest.raises(DataError, match=r"which column has the text.*title, body"):
        read(path)
    with pytest.raises(DataError, match="no column 'bdy'; did you mean body"):
        read(path, column="bdy")
    path.write_text("\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(DataError, match="no column 'bdy'; did you mean body"):
        read(path, column="bdy")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": 3}', "line 2: 'text' is no text but '3'"),
        ('{"text": "a"', "line 2 is no JSON object"),
        ("[1]", "line 2 begins an array"),
        ("3", "line 2 is no JSON object"),
        ('{"text": "\\ud800"}', "line 2: half of a surrogate pair"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path / "a.jsonl", '{"text": "a"}\n' + line + "\n")
    with pytest.raises(DataError, match=message):
        read(path)


def test_a_hub_set_gives_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = datasets.Dataset.from_dict({"text": ["one\n\ntwo", "three"], "n": [1, 2]})
    asked = []

    def load_dataset(path: str, config: str | None, split: str | None) -> datasets.Dataset:
        asked.append((path, config, split))
        return made

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read("somebody/texts:zh@train") == ["one\ntwo", "three"]
    assert asked == [("somebody/texts", "zh", "train")]


# Several sources


def test_globs_give_their_files_by_name_and_each_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.txt"):
        written(tmp_path / name, name)
    found = find_sources([tmp_path / "a.txt", f"{tmp_path}/*.txt", f"{tmp_path}/**/c.txt"])
    assert [Path(source.name).name for source in found] == ["a.txt", "b.txt", "c.txt"]


def test_all_that_cannot_be_found_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.txt: no such file; .*is a folder; name its files.*matches no file"):
        find_sources([tmp_path / "x.txt", tmp_path, f"{tmp_path}/*.jsonl"])
    with pytest.raises(ConfigError, match=r"\.txt, \.jsonl \(also \.gz\) and \.parquet files, not from '\.doc'"):
        find_sources(written(tmp_path / "a.doc", "x"))
    with pytest.raises(ConfigError, match="no source"):
        find_sources([])


@pytest.mark.parametrize("at_once", [64, 2])
def test_sources_are_read_in_turn_so_that_they_end_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(documents, "OPEN_AT_ONCE", at_once)
    big = written(tmp_path / "big.txt", "\n\n".join(f"big {number:04d}" for number in range(300)))
    small = written(tmp_path / "small.txt", "\n\n".join(f"sml {number:04d}" for number in range(100)))
    told: list[tuple[int, int]] = []
    found = list(documents_of(find_sources([big, small]), lambda done, total: told.append((done, total))))
    assert [text for text in found if "big" in text] == [f"big {number:04d}" for number in range(300)]
    for tenth in range(40, 400, 40):
        assert abs(sum("sml" in text for text in found[:tenth]) - tenth / 4) <= 2
    assert told[-1][0] == told[-1][1] == big.stat().st_size + small.stat().st_size
    assert told == sorted(told)


def test_groups_of_sources_come_one_after_the_other_and_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "OPEN_AT_ONCE", 2)
    paths = [written(tmp_path / f"{number}.txt", f"{number} a\n\n{number} b\n") for number in range(5)]
    found = read(*paths)
    assert sorted(found) == sorted(f"{number} {letter}" for number in range(5) for letter in "ab")
    assert found == read(*paths)


def test_reading_takes_the_memory_of_a_document_and_not_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        for number in range(4000):
            file.write(f"{number} " + "words " * 500 + "\n\n")
    tracemalloc.start()
    try:
        count = sum(1 for _ in documents_of(find_sources(path)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 4000
    assert peak < 1_000_000 < 4000 * 3000


def test_the_real_articles_are_the_documents_their_index_says(shared_data: Path) -> None:
    found = read(shared_data / "zh_tech_articles" / "dev.txt.gz")
    assert len(found) == 60
    sentences = [sentence for document in found for line in document.split("\n") for sentence in sentences_of(line)]
    assert 15 < sum(map(len, sentences)) / len(sentences) < 60
    assert max(map(len, sentences)) < 1000
