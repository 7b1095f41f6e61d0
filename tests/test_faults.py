"""What machine and user do to a run: full disk, no memory, a signal, a second start. Nothing that was saved is lost."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_cli import run as command
from test_compare import comparable, study_of
from test_finetune import TRAINING, run
from test_loop import Toy, fit_toy, read_log, toy_batches, toy_config, toy_data
from test_resume import Outcome, assert_same, finish

from thrice.compare import runner
from thrice.compare.results import read_rows
from thrice.compare.runner import run_cell, run_study
from thrice.errors import ConfigError, DataError, Interrupted, TrainingError
from thrice.files import clear_partials
from thrice.finetune import DataSource
from thrice.locks import locked
from thrice.predict import predict_file
from thrice.tasks.classification import Classification

CONFIG = toy_config(epochs=3, save_every_steps=4, log_every_steps=3)  # as in test_resume: 6 steps an epoch


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    torch.set_num_threads(1)
    return finish(tmp_path_factory.mktemp("undisturbed"))


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


def at_step(number: int, act: Callable[[], Any]) -> Callable[[Any], Any]:
    """Give a batch maker of the toy's shape that acts while it makes the n-th batch of its start."""
    inputs, labels = toy_data()
    made = iter(range(1, 1000))

    def make_batch(indices: Any) -> Any:
        if next(made) == number:
            act()
        return inputs[list(indices)], labels[list(indices)]

    return make_batch


def saved(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "resume" / "state.json").read_text(encoding="utf-8"))["state"]
    return state


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def dead_process() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def signalling_loss(monkeypatch: pytest.MonkeyPatch, call: int, act: Callable[[], Any]) -> None:
    """Let the task's loss act once, when it is computed for the n-th time."""
    right, calls = Classification.loss, iter(range(1, 10_000))

    def loss(task: Classification, model: Any, batch: Any) -> torch.Tensor:
        if next(calls) == call:
            act()
        return right(task, model, batch)

    monkeypatch.setattr(Classification, "loss", loss)


def send(signum: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signum)


# Two starts at once


def test_a_second_start_is_told_who_is_at_work_and_touches_nothing(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    study = study_of(tiny_checkpoint, reviews, arms=("tfidf",), seeds=(0,))
    with locked(tmp_path / "out.run"), locked(tmp_path / "study"):
        before = names(tmp_path)
        for start in (
            lambda: run(str(tiny_checkpoint), tmp_path / "out", reviews),
            lambda: run(str(tiny_checkpoint), tmp_path / "out", reviews, restart=True),
            lambda: run_study(study, tmp_path / "study"),
            lambda: run_study(study, tmp_path / "study", restart=True),
        ):
            with pytest.raises(TrainingError, match=f"in use by process {os.getpid()}: .*kill {os.getpid()}$"):
                start()
        assert names(tmp_path) == before == ["out.run", "out.run/.lock", "study", "study/.lock"]
    assert names(tmp_path) == [], "neither locks nor folders made for them stay"


def test_a_lock_left_by_a_kill_makes_no_folder_foreign(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thrice.compare.runner.measure_cost", lambda *_: None)
    (tmp_path / ".lock").write_text(f"{dead_process()}\n")
    (tmp_path / f".study.json.{dead_process()}.partial").write_text("{")
    run_study(study_of(tiny_checkpoint, reviews, arms=("tfidf",), seeds=(0,)), tmp_path)
    assert [name for name in names(tmp_path) if Path(name).name.startswith(".")] == []
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".hidden").write_text("years of work")
    with pytest.raises(ConfigError, match="holds no study"):
        run_study(study_of(tiny_checkpoint, reviews), tmp_path / "other")


def test_a_cell_waits_for_an_orphaned_worker_and_takes_what_it_finished(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(tiny_checkpoint, reviews, arms=("tfidf",), seeds=(0,))
    cell = runner.cell_path(tmp_path, "tfidf", 0)
    monkeypatch.setattr(runner, "PATIENCE", 0.05)
    with locked(runner.work_path(tmp_path, "tfidf", 0)):
        with pytest.raises(TrainingError, match="in use by process"):
            run_cell(study, tmp_path, "tfidf", 0)
        cell.parent.mkdir()
        cell.write_text('{"arm": "tfidf", "written": "by the orphan"}')
    assert run_cell(study, tmp_path, "tfidf", 0)["written"] == "by the orphan"


def test_half_files_of_dead_processes_are_cleared_away_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    dead = dead_process()
    kept = [f".out.{os.getppid()}.partial", f".out.x{dead}.partial", ".partial", f"out.{dead}.partial"]
    gone = [f".out.{dead}.partial", f".out.{os.getpid()}.partial"]
    for name in (*kept, *gone, f".other.{dead}.partial"):
        (tmp_path / name).mkdir()
    (tmp_path / gone[0] / "model.safetensors").write_bytes(b"half")
    clear_partials(tmp_path, "out")
    assert names(tmp_path) == sorted([*kept, f".other.{dead}.partial"])
    clear_partials(tmp_path)
    assert names(tmp_path) == sorted(kept)


def test_what_a_kill_left_of_a_model_is_gone_before_the_next_start_trains(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    half = tmp_path / f".out.{dead_process()}.partial"
    half.mkdir()
    with pytest.raises(DataError):
        run(str(tiny_checkpoint), tmp_path / "out", reviews, source=DataSource(data="typo.csv"))
    assert names(tmp_path) == []


def test_a_kill_while_a_finished_run_is_cleared_away_leaves_nothing_for_good(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    run(str(tiny_checkpoint), tmp_path / "out", reviews, training=TRAINING | {"epochs": 1})
    (tmp_path / "out.run").mkdir()
    (tmp_path / "out.run" / "best.safetensors").write_bytes(b"rest")
    with pytest.raises(TrainingError, match="finished model"):
        run(str(tiny_checkpoint), tmp_path / "out", reviews)
    assert not (tmp_path / "out.run").exists()
    # With a save in it, it is somebody's run beside a model that came from elsewhere.
    (tmp_path / "out.run" / "resume").mkdir(parents=True)
    with pytest.raises(TrainingError, match="finished model"):
        run(str(tiny_checkpoint), tmp_path / "out", reviews)
    assert (tmp_path / "out.run" / "resume").exists()


# Asked to stop


@pytest.mark.parametrize("step", [1, 4, 5, 6, 13, 18])
def test_a_run_asked_to_stop_finishes_the_step_saves_and_ends_like_the_undisturbed_one(
    tmp_path: Path, step: int, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = finish(tmp_path / "whole", make_batch=at_step(0, print))
    with pytest.raises(Interrupted, match=rf"stopped after step {step} of 18 and saved in .*resume") as caught:
        fit_toy(tmp_path / "stopped", Toy(), CONFIG, make_batch=at_step(step, send(signal.SIGTERM)))
    assert caught.value.signum == signal.SIGTERM
    assert "once more stops at once" in capfd.readouterr().err
    assert saved(tmp_path / "stopped")["step"] == step
    left = iter(range(18 - step))
    again = at_step(0, print)
    assert_same(finish(tmp_path / "stopped", make_batch=lambda i: (next(left), again(i))[1]), whole)


def test_asked_twice_a_run_stops_at_once_and_its_last_save_stays(tmp_path: Path) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the second one stops here")

    whole = finish(tmp_path / "whole", make_batch=at_step(0, print))
    with pytest.raises(Interrupted, match="stopped at once"):
        fit_toy(tmp_path / "stopped", Toy(), CONFIG, make_batch=at_step(11, twice))
    assert saved(tmp_path / "stopped")["step"] == 8
    assert_same(finish(tmp_path / "stopped", make_batch=at_step(0, print)), whole)


@pytest.mark.parametrize("epoch", [1, 3])
def test_asked_during_an_evaluation_a_run_finishes_it_and_saves_the_epoch(
    tmp_path: Path, undisturbed: Outcome, epoch: int
) -> None:
    evaluations = iter(range(1, 4))
    model = Toy()

    def hook(*_: Any) -> None:
        if not model.training and next(evaluations, None) == 2 * epoch - 1:
            os.kill(os.getpid(), signal.SIGINT)

    evaluations = iter(range(1, 100))
    model.register_forward_hook(hook)  # evaluating calls the model twice
    with pytest.raises(Interrupted):
        fit_toy(tmp_path, model, CONFIG)
    assert (len(saved(tmp_path)["epochs"]), saved(tmp_path)["position"]) == (epoch, 0)
    assert_same(finish(tmp_path), undisturbed)


def test_handlers_are_put_back_and_those_of_others_respected(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    fit_toy(tmp_path / "one", Toy(), toy_config(epochs=1))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        fit_toy(tmp_path / "two", Toy(), CONFIG, make_batch=at_step(2, send(signal.SIGINT)))
    finally:
        signal.signal(signal.SIGINT, before[0])
    worker = threading.Thread(target=fit_toy, args=(tmp_path / "three", Toy(), toy_config(epochs=1)))
    worker.start()
    worker.join()
    assert (tmp_path / "three" / "fit.json").exists(), "beside the main thread a run goes without handlers"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_line_says_where_a_stopped_run_stands_and_leaves_with_its_code(
    signum: int,
    code: int,
    tiny_checkpoint: Path,
    reviews: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    signalling_loss(monkeypatch, 7, send(signum))
    words = ["finetune", str(tiny_checkpoint), "--data", str(reviews), "--out", str(tmp_path / "out")]
    words += ["--max-length", "24", "--batch-size", "8", "--epochs", "1"]
    ended, _, err = command(monkeypatch, capsys, *words)
    assert ended == code
    stands = f"stopped after step 7 of 12 and saved in {tmp_path / 'out.run' / 'resume'}; the same command"
    assert stands in err
    assert names(tmp_path / "out.run") == [
        "resume",
        "resume/state.json",
        "resume/step-00000007.safetensors",
        "train.jsonl",
    ]
    assert command(monkeypatch, capsys, *words)[0] == 0
    assert "Traceback" not in err


def test_a_study_in_processes_asked_to_stop_saves_every_cell_in_work(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thrice.compare.runner.measure_cost", lambda *_: None)
    arms = (f"{tiny_checkpoint}+all", f"{tiny_checkpoint}+none")
    training = toy_config(epochs=200, batch_size=8, learning_rate=1e-2, max_grad_norm=0.0)
    study = study_of(tiny_checkpoint, reviews, arms=arms, seeds=(0,), training=training)
    logs = [runner.work_path(tmp_path / "study", arm, 0) / "train.jsonl" for arm in arms]

    def stop_when_both_are_at_work() -> None:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and not all(path.exists() and path.stat().st_size for path in logs):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop_when_both_are_at_work)
    thread.start()
    with pytest.raises(Interrupted):
        run_study(study, tmp_path / "study", jobs=2)
    thread.join()
    for log in logs:
        lines = [line for line in read_log(log.parent) if line["event"] == "step"]
        assert saved(log.parent)["step"] == len(lines) > 0, "it goes on from exactly there"
        assert names(log.parent / "resume") == ["state.json", f"step-{len(lines):08d}.safetensors"]
    assert not list((tmp_path / "study").rglob(".*"))


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
    study = study_of(tiny_checkpoint, reviews, arms=("tfidf",), seeds=(0,), source=DataSource(data=str(data)))
    run_study(study, tmp_path / "study")
    before = comparable(read_rows(tmp_path / "study"))
    text = data.read_text(encoding="utf-8")
    data.write_text(text.replace("喜欢", "讨厌"), encoding="utf-8")
    runner._read_cached.cache_clear()  # as in a worker that begins after the change
    with pytest.raises(DataError, match=r"changed while it was at work \(.*train"):
        run_cell(study, tmp_path / "study", "tfidf", 1)
    data.write_text(text, encoding="utf-8")
    runner._read_cached.cache_clear()
    run_cell(study, tmp_path / "study", "tfidf", 1)
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
