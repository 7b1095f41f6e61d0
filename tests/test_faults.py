"""A full or closed disk, data that vanish, no memory, numbers that are none: told, and what was saved stays."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty import CONFIG, at_step, names, saved, send, signalling_loss
from test_cli import run as command
from test_compare import comparable, study_of
from test_finetune import TRAINING, run
from test_loop import Toy, fit_toy, read_log, toy_batches
from test_resume import assert_same, finish

from thrice.compare.cells import run_cell
from thrice.compare.data import _read
from thrice.compare.grid import Cell, arms_of
from thrice.compare.results import read_rows, read_study
from thrice.compare.runner import run_study
from thrice.errors import DataError, Interrupted, TrainingError
from thrice.finetune import DataSource
from thrice.predict import predict_file


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """Make no file of this process grow beyond some bytes: what a full disk does, without one and for everybody."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder that this process may read and not write, even where the suite runs as root."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o555)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield place
    os.seteuid(before)
    place.chmod(0o755)
    shutil.rmtree(place)


# The disk


SIZES = [(1000, "the save of step 4"), (12_000, "the save of step 4"), (100, "line step 3 of the log")]


@pytest.mark.parametrize(("size", "what"), SIZES)
def test_a_disk_that_is_full_leaves_the_older_save_and_no_half_file(
    tmp_path: Path, limit: Callable[[int], None], size: int, what: str
) -> None:
    config = CONFIG.replace(save_every_steps=2)
    whole = finish(tmp_path / "whole", make_batch=at_step(0, print), config=config)
    with pytest.raises(TrainingError) as caught:
        fit_toy(tmp_path / "full", Toy(), config, make_batch=at_step(3, lambda: limit(size)))
    assert f"{what} could not be written: File too large" in str(caught.value)
    assert f"the last save is kept in {tmp_path / 'full' / 'resume'} (step 2)" in str(caught.value)
    assert names(tmp_path / "full" / "resume") == ["state.json", "step-00000002.safetensors"]
    assert all(line["event"] == "step" for line in read_log(tmp_path / "full")), "its lines are whole"
    limit(2**40)
    assert_same(finish(tmp_path / "full", make_batch=at_step(0, print), config=config), whole)


def test_a_model_that_the_disk_does_not_hold_is_written_by_the_next_start_without_training(
    tiny_checkpoint: Path,
    reviews: Path,
    tmp_path: Path,
    limit: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from thrice.finetune import save_model

    def with_little_room(*arguments: Any, **more: Any) -> Any:
        limit(3000)
        return save_model(*arguments, **more)

    training = TRAINING | {"epochs": 1}
    with monkeypatch.context() as patch:
        patch.setattr("thrice.finetune.save_model", with_little_room)
        with pytest.raises(TrainingError) as caught:
            run(str(tiny_checkpoint), tmp_path / "out", reviews, training=training)
    assert f"the model in {tmp_path / 'out'} could not be written: File too large" in str(caught.value)
    assert f"the finished run is kept in {tmp_path / 'out.run'}" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["out.run"]
    limit(2**40)
    signalling_loss(monkeypatch, 1, lambda: pytest.fail("it trains"))
    run(str(tiny_checkpoint), tmp_path / "out", reviews, training=training)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_without_permission_is_refused_before_anything_is_read(
    nobody: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["finetune", "zoo:albert-nano-zh", "--data", "x.csv", "--out", str(nobody / "out")],
        ["finetune", "zoo:albert-nano-zh", "--data", "x.csv", "--out", str(nobody / "a" / "out")],
    ):
        code, out, err = command(monkeypatch, capsys, *words)
        assert (code, out) == (2, "")
        assert f"{nobody / Path(words[-1]).relative_to(nobody).parts[0]}" in err
        assert "Permission denied" in err
        assert "Traceback" not in err
    with pytest.raises(DataError, match="no permission to write in"):
        predict_file(nobody, "x.csv", nobody / "answers.csv")


def test_predictions_that_cannot_be_written_are_refused_before_the_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "answers.csv").mkdir()
    (tmp_path / "file").write_text("")
    for target, message in (("answers.csv", "is a folder"), ("file/answers.csv", "is a file, not a folder")):
        with pytest.raises(DataError, match=message):
            predict_file(tmp_path / "no model", "x.csv", tmp_path / target)


# The data


def test_data_that_vanish_stop_the_next_start_and_not_the_run_that_has_read_them(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data.csv"
    shutil.copy(reviews, data)
    source = DataSource(data=str(data))
    signalling_loss(monkeypatch, 5, send(signal.SIGINT))
    with pytest.raises(Interrupted):
        run(str(tiny_checkpoint), tmp_path / "out", reviews, source=source)
    data.rename(tmp_path / "elsewhere.csv")
    before = names(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        run(str(tiny_checkpoint), tmp_path / "out", reviews, source=source)
    assert names(tmp_path) == before
    shutil.copy(reviews, data)
    signalling_loss(monkeypatch, 1, data.unlink)
    assert run(str(tiny_checkpoint), tmp_path / "out", reviews, source=source)["test"] is not None


def test_a_cell_of_other_data_than_the_study_began_with_is_refused(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thrice.compare.runner.measure_cost", lambda *_: None)
    data = tmp_path / "data.csv"
    shutil.copy(reviews, data)
    study = study_of(tiny_checkpoint, data, arms=arms_of("tfidf"), seeds=(0,))
    run_study(study, tmp_path / "study")
    before = comparable(read_rows(tmp_path / "study"))
    began = read_study(tmp_path / "study")["data"]["reviews"]
    text = data.read_text(encoding="utf-8")
    data.write_text(text.replace("喜欢", "讨厌"), encoding="utf-8")
    _read.cache_clear()  # as in a worker that begins after the change
    with pytest.raises(DataError, match=r"changed while the study was at work \(.*train"):
        run_cell(study, tmp_path / "study", Cell("tfidf", "reviews", 1), began)
    data.write_text(text, encoding="utf-8")
    _read.cache_clear()
    run_cell(study, tmp_path / "study", Cell("tfidf", "reviews", 1), began)
    assert comparable(read_rows(tmp_path / "study"))[:1] == before


# Memory and numbers


def too_big() -> None:
    torch.empty(10**15)


def no_memory() -> None:
    raise MemoryError


def no_device_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.mark.parametrize("ask", [too_big, no_memory, no_device_memory])
def test_want_of_memory_names_the_batch_and_what_helps_and_keeps_the_save(
    tiny_checkpoint: Path,
    reviews: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[], None],
) -> None:
    signalling_loss(monkeypatch, 5, ask)
    with pytest.raises(TrainingError) as caught:
        run(str(tiny_checkpoint), tmp_path / "out", reviews, training=TRAINING | {"save_every_steps": 2})
    for part in (
        "out of memory at step 5; the batch has 8 examples and ",
        "tokens, the longest sequence 1",
        "--gradient-checkpointing, a smaller --batch-size or a smaller --max-length",
        f"the last save is kept in {tmp_path / 'out.run' / 'resume'} (step 4)",
    ):
        assert part in str(caught.value)


def test_want_of_memory_in_an_evaluation_is_told_and_other_errors_are_what_they_were(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="out of memory in the evaluation after epoch 1: try"):
        fit_toy(tmp_path / "one", Toy(), CONFIG, evaluate=too_big)

    def wrong() -> None:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        fit_toy(tmp_path / "two", Toy(), CONFIG, make_batch=at_step(2, wrong))


def test_a_number_that_is_none_leaves_the_last_good_state_and_a_whole_log(tmp_path: Path) -> None:
    model = Toy()

    def break_a_weight() -> None:
        model.head.weight.data[0, 0] = float("nan")

    with pytest.raises(
        TrainingError, match=r"the loss is nan at step 6, epoch 1 .*head\.weight and 0 more.*\(step 4\)"
    ):
        fit_toy(tmp_path, model, CONFIG.replace(log_every_steps=1), make_batch=at_step(6, break_a_weight))
    assert [line["step"] for line in read_log(tmp_path)] == [1, 2, 3, 4, 5]
    assert len(toy_batches(1)) == 6
    assert saved(tmp_path)["step"] == 4
