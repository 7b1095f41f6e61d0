"""Every case of bad input gets its own message, exit code 2, and leaves the folder as it was."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from bad_input import CASES, ROWS, STORY, Case, document
from studies import full_study
from test_cli import run

ARMS = ("model+all", "model+none", "model", "tfidf")


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a checkpoint, a fine-tuned model (its head untrained), a study and a data file."""
    from thrice.data.corpus import prepare_corpus
    from thrice.data.tokenizer import Tokenizer
    from thrice.finetune import DataSource, build, read_splits, save_model

    place = tmp_path_factory.mktemp("bad") / "whole"
    place.mkdir()
    (place / "good.csv").write_text(ROWS, encoding="utf-8")
    shutil.copytree(tiny_checkpoint, place / "model")
    shutil.copytree(tiny_checkpoint.parent / "words", place / "words")
    task, _ = read_splits("classification", DataSource(data=str(place / "good.csv")), {"max_length": 24})
    model, tokenizer = build(str(place / "model"), task, seed=0)
    save_model(model, place / "tuned", tokenizer)
    words = Tokenizer.from_folder(place / "words")
    for name, text in (("corpus", STORY), ("single", STORY.replace(". A", ""))):
        (place / f"{name}.txt").write_text(text, encoding="utf-8")
        prepare_corpus(place / f"{name}.txt", words, place / name)
    full_study(place / "study", arms=ARMS)
    return place


def contents(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() if p.is_file() else b"" for p in place.rglob("*")}


def pattern(message: str) -> str:
    """Give a message as a regular expression: N for a number, ... for anything, white space as it comes."""
    pieces = [re.escape(piece) for piece in message.replace("\n", " ").split("...")]
    return ".*".join(re.sub(r"\bN\b", r"\\d+", piece) for piece in pieces)


@pytest.mark.parametrize("case", CASES, ids=[case.what for case in CASES])
def test_bad_input_gets_its_message_and_changes_nothing(
    case: Case, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    shutil.copytree(folder, place)
    case.spoil(place)
    before = contents(place)
    monkeypatch.chdir(place)
    code, out, err = run(monkeypatch, capsys, *case.command.split())
    said = " ".join(err.replace(f"{place}/", "").partition("error: ")[2].split())
    assert code == 2, out + err
    assert re.fullmatch(pattern(case.message), said), said
    assert "Traceback" not in out + err
    assert contents(place) == before


def test_the_document_holds_exactly_these_cases() -> None:
    page = Path(__file__).parents[1] / "docs" / "bad-input.md"
    assert page.read_text(encoding="utf-8") == document(), "python tests/bad_input.py > docs/bad-input.md"


LEGITIMATE = {
    "a byte order mark": "\ufeff" + ROWS,
    "a text of many letters": ROWS + "ab " * 100_000 + ",good\n",
    "NUL letters": ROWS + "a\0b,good\n",
    "empty texts": ROWS + ",good\n,bad\n",
    "emoji, right to left, mixed scripts": ROWS + "🙂🙂,good\nשלום عليكم abc 中文,bad\n",
}


@pytest.mark.parametrize("content", LEGITIMATE.values(), ids=LEGITIMATE.keys())
def test_odd_texts_are_read_and_encoded(content: str, folder: Path, tmp_path: Path) -> None:
    from thrice.data.tokenizer import Tokenizer
    from thrice.finetune import DataSource, read_splits

    path = tmp_path / "odd.csv"
    path.write_text(content, encoding="utf-8")
    task, splits = read_splits("classification", DataSource(data=str(path)), {"max_length": 24})
    rows = [*splits.train, *splits.dev, *splits.test]
    assert len(rows) == content.count("\n") - 1
    assert len(task.encode(rows, Tokenizer.from_folder(folder / "words"))) == len(rows)
