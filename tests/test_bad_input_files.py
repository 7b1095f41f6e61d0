"""Damaged files of every kind end in an error of thrice, never in another one."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from tiny_checkpoints import HEADS, tiny_encoder

from thrice.checkpoints import load, save
from thrice.compare.summary import summarise
from thrice.data.tokenizer import Tokenizer
from thrice.errors import CheckpointError, ConfigError, DataError, ThriceError, TrainingError
from thrice.finetune import save_model
from thrice.predict import load_model
from thrice.report.page import render_report
from thrice.schema import misfits, newer_format
from thrice.tasks.base import TaskModel
from thrice.tasks.classification import Classification
from thrice.training.config import TrainingConfig
from thrice.training.result import FitResult, finished_result

WRONG: tuple[Any, ...] = (None, -1, 1e30, 10**400, "x", [], {}, {"a": 1}, True, [[[1]]])


@pytest.fixture(scope="module")
def tuned(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from thrice.data.columns import Columns

    task = Classification(labels=("bad", "good"), columns=Columns(text="text", label="label"), max_length=24)
    model = TaskModel(load(str(tiny_checkpoint)), task)
    return save_model(model, tmp_path_factory.mktemp("tuned") / "out", Tokenizer.from_folder(tiny_checkpoint))


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    return [above, *(place for key, item in inner for place in places(item, (*above, key)))]


def changed(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    if not place:
        return other
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = other
    return copy


# Whole folders


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "vocab.txt", "tokenizer_config.json", "thrice.json"]
)
def test_a_file_cut_at_any_tenth_is_named(name: str, tuned: Path, tmp_path: Path) -> None:
    shutil.copytree(tuned, tmp_path / "cut")
    whole = (tuned / name).read_bytes()
    for tenth in range(10):
        (tmp_path / "cut" / name).write_bytes(whole[: len(whole) * tenth // 10])
        with pytest.raises((CheckpointError, DataError), match=name.replace(".", r"\.")):
            load_model(tmp_path / "cut")


def test_a_folder_damaged_at_random_loads_or_says_why(tuned: Path, tmp_path: Path) -> None:
    draw = random.Random(7)
    names = sorted(path.name for path in tuned.iterdir())
    refused = 0
    for number in range(60):
        folder = shutil.copytree(tuned, tmp_path / str(number))
        path = folder / draw.choice(names)
        data = bytearray(path.read_bytes())
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(data))
            damage = draw.choice(("flip", "cut", "drop", "zero"))
            if damage == "flip":
                data[place] ^= 1 << draw.randrange(8)
            elif damage == "cut":
                del data[max(1, place) :]
            elif damage == "drop":
                del data[place : place + draw.randint(1, max(1, len(data) // 4))]
                data = data or bytearray(b" ")
            else:
                data[place : place + 8] = bytes(min(8, len(data) - place))
        path.write_bytes(data)
        try:
            load_model(folder)
        except ThriceError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize("family", sorted(HEADS))
def test_config_values_of_the_wrong_kind_or_size_are_refused_or_harmless(family: str, tmp_path: Path) -> None:
    folder = save(tiny_encoder(family), tmp_path / "out")
    stock = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    refused = 0
    for key in stock:
        for other in (-1, 1e30, 10**400, "x", [[1]], 100_000, float("nan")):
            (folder / "config.json").write_text(json.dumps({**stock, key: other}), encoding="utf-8")
            try:
                load(str(folder))
            except CheckpointError:
                refused += 1
    assert refused > 3 * len(stock)


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    with torch.no_grad():
        encoder.embeddings.LayerNorm.weight[0] = float("inf")
    folder = save(encoder, tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"hold NaN or infinity: embeddings\.LayerNorm\.weight"):
        load(str(folder))


# Files of thrice


def test_every_wrong_kind_in_thrice_json_is_an_error_or_harmless(tuned: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tuned, tmp_path / "out")
    whole = json.loads((folder / "thrice.json").read_text(encoding="utf-8"))
    said = []
    for place in places(whole):
        for other in WRONG:
            (folder / "thrice.json").write_text(json.dumps(changed(whole, place, other)), encoding="utf-8")
            try:
                load_model(folder)
            except ThriceError as error:
                said.append(str(error))
    assert len(said) > 100
    assert all("thrice.json" in text or "max-length" in text for text in said)


@pytest.mark.parametrize("name", ["study.json", "cost.json", "items.json", "cells/cell-000.json"])
def test_every_wrong_kind_in_a_study_is_an_error_or_harmless(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies import full_study

    from thrice.compare.results import read_rows
    from thrice.report import page

    monkeypatch.setattr(page, "_charts", lambda *_: [])  # seconds each
    folder = full_study(tmp_path / "study")
    whole = json.loads((folder / name).read_text(encoding="utf-8"))
    said = []
    for place in places(whole):
        for other in ("x", 10**400, {}) if len(place) < 3 or "step_ms" in place else ():
            (folder / name).write_text(json.dumps(changed(whole, place, other)), encoding="utf-8")
            try:
                render_report(summarise(folder), read_rows(folder))
            except DataError as error:
                said.append(str(error))
    assert len(said) > (5 if name == "items.json" else 15)
    assert all(Path(name).name in text or "study.json" in text for text in said)


def test_a_damaged_result_of_a_run_is_refused_with_a_way_out(tmp_path: Path) -> None:
    identity: dict[str, Any] = {"config": {}, "run": {}, "tensors": {}}
    result = FitResult(epochs=[], best_epoch=1, best_value=0.5, collapsed=False, steps=3, seconds=1.0)
    whole = {"format": 1, "identity": identity, "result": vars(result)}
    (tmp_path / "fit.json").write_text(json.dumps(whole), encoding="utf-8")
    assert finished_result(tmp_path, identity) == result
    for spoilt in ({**whole, "format": 2}, {**whole, "identity": 3}, {**whole, "result": {"epochs": 1}}, [], "x"):
        (tmp_path / "fit.json").write_text(json.dumps(spoilt), encoding="utf-8")
        with pytest.raises(TrainingError, match=r"fit\.json.*--restart"):
            finished_result(tmp_path, identity)
    (tmp_path / "fit.json").write_text("{", encoding="utf-8")
    with pytest.raises(TrainingError, match=r"fit\.json cannot be read.*--restart"):
        finished_result(tmp_path, identity)


def test_a_schema_says_every_difference_with_its_place() -> None:
    wanted = {"arms": list[str | dict[str, int]], "seed?": int | None, "training": TrainingConfig}
    value = {"arms": ["a", 3, {"b": True}], "seed": 1.5, "training": {"epochs": "x", "speed": 1}}
    assert misfits(value, wanted) == [
        "arms[1] is 3, expected text or an object",
        "arms[2].b is True, expected a whole number",
        "seed is 1.5, expected a whole number or null",
        "training.epochs is 'x', expected a whole number",
        "training.speed is unknown",
    ]
    assert misfits({"arms": [], "training": {}}, wanted) == []
    assert misfits([], {"a": int}) == ["it is a list of 0, expected an object"]
    assert misfits({"a": 10**400}, {"a": float}) == ["a is a number of 401 digits, expected a number"]
    assert misfits({"a": float("nan")}, {"a": float}) == ["a is nan, expected a number"]
    assert newer_format({"format": 1}, 1) == newer_format({}, 1) == []
    assert "newer thrice" in newer_format({"format": 2}, 1)[0]
    assert newer_format({"format": "x"}, 1) == ["format is 'x', expected 1"]


def test_one_folder_under_two_spellings_is_one_arm() -> None:
    from thrice.compare.grid import Study, StudyTask, arms_of
    from thrice.finetune import DataSource

    tasks = (StudyTask(name="t", metric="accuracy", source=DataSource(data="d.csv")),)
    for arms in (("m1", "m1/"), ("m1", "./m1"), ("a/b", "a//b")):
        with pytest.raises(ConfigError, match=f"arms named twice: {min(arms)}, {max(arms)}"):
            Study(arms=arms_of(*arms), tasks=tasks, training=TrainingConfig())
    Study(arms=arms_of("m1", "m1+none"), tasks=tasks, training=TrainingConfig())


# Sentencepiece models with special tokens of other kinds


def trained(folder: Path, **options: Any) -> Path:
    """Train a unigram model of a few pieces and give the folder it lies in as spiece.model."""
    folder.mkdir()
    text = folder / "text"
    text.write_text("\n".join(f"the {a} {b} walks" for a in "abcdefghij" for b in ("cat", "dog", "owl")), "utf-8")
    given = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "pad_piece": "<pad>", **options}
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(folder / "spiece"),
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
        **given,
    )
    text.unlink()
    (folder / "spiece.vocab").unlink()
    return folder


def test_sentencepiece_models_with_odd_special_tokens_are_read_or_refused(tmp_path: Path) -> None:
    usual = trained(tmp_path / "usual", control_symbols="[CLS],[SEP]", user_defined_symbols='[MASK],(,),",-')
    tokenizer = Tokenizer.from_folder(usual)
    library = sentencepiece.SentencePieceProcessor(model_file=str(usual / "spiece.model"))
    assert tokenizer.content_ids(["the cat"])[0] == library.encode("the cat")
    late = trained(tmp_path / "late", control_symbols="x,y,z,[SEP],[CLS]", user_defined_symbols="[MASK]")
    assert Tokenizer.from_folder(late).cls_token_id == 6
    none = trained(tmp_path / "none")
    with pytest.raises(DataError, match=r"lacks cls_token \(\[CLS\] or <s>\), sep_token"):
        Tokenizer.from_folder(none)
    first = trained(tmp_path / "first", unk_id=0, pad_id=-1, control_symbols="[CLS],[SEP]")
    with pytest.raises(DataError, match=r"unknown piece should be number 1 and is \[0\]"):
        Tokenizer.from_folder(first)
    ranks = trained(tmp_path / "ranks", model_type="bpe", control_symbols="[CLS],[SEP]")
    with pytest.raises(DataError, match="a BPE model"):
        Tokenizer.from_folder(ranks)
    maskless = trained(tmp_path / "maskless", control_symbols="[CLS],[SEP]")
    size = sentencepiece.SentencePieceProcessor(model_file=str(maskless / "spiece.model")).get_piece_size()
    with pytest.raises(DataError, match=r"\[MASK\].*word table"):  # stock code adds it beyond the table
        Tokenizer.from_folder(maskless, vocab_size=size)


def test_a_sentencepiece_model_cut_at_any_tenth_is_refused(tmp_path: Path) -> None:
    folder = trained(tmp_path / "cut", control_symbols="[CLS],[SEP]", user_defined_symbols="[MASK]")
    whole = (folder / "spiece.model").read_bytes()
    for tenth in range(10):
        (folder / "spiece.model").write_bytes(whole[: len(whole) * tenth // 10])
        with pytest.raises(DataError, match=r"spiece\.model"):
            Tokenizer.from_folder(folder)


def test_a_vocabulary_much_smaller_than_the_word_table_is_said_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n", encoding="utf-8")
    Tokenizer.from_folder(tmp_path, vocab_size=6)
    assert not caplog.records
    Tokenizer.from_folder(tmp_path, vocab_size=100)
    assert "vocab.txt has 6 tokens, the model's word table 100 rows" in caplog.text
