"""Second starts, what killed ones left, Ctrl-C and SIGTERM: what is not of the run is not touched."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty import CONFIG, at_step, dead_process, names, saved, send, signalling_loss
from test_cli import run as command
from test_compare import study_of
from test_finetune import TRAINING, run
from test_loop import Toy, fit_toy, read_log, toy_config
from test_resume import Outcome, assert_same, finish

from thrice.compare import cells
from thrice.compare.grid import Cell, arms_of, cell_path, work_path
from thrice.compare.runner import Engine, run_study
from thrice.errors import ConfigError, DataError, Interrupted, TrainingError
from thrice.files import clear_partials
from thrice.finetune import DataSource
from thrice.locks import locked
from thrice.run_folder import begin_anew, clear_away, run_folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    torch.set_num_threads(1)
    return finish(tmp_path_factory.mktemp("undisturbed"))


# Two starts at once


def test_a_second_start_is_told_who_is_at_work_and_touches_nothing(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    study = study_of(tiny_checkpoint, reviews, arms=arms_of("tfidf"), seeds=(0,))
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
    run_study(study_of(tiny_checkpoint, reviews, arms=arms_of("tfidf"), seeds=(0,)), tmp_path)
    assert [name for name in names(tmp_path) if Path(name).name.startswith(".")] == []
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".hidden").write_text("years of work")
    with pytest.raises(ConfigError, match="holds no study"):
        run_study(study_of(tiny_checkpoint, reviews), tmp_path / "other")


def test_a_cell_waits_for_an_orphaned_worker_and_takes_what_it_finished(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(tiny_checkpoint, reviews, arms=arms_of("tfidf"), seeds=(0,))
    cell = Cell("tfidf", "reviews", 0)
    path = cell_path(tmp_path, cell)
    monkeypatch.setattr(cells, "PATIENCE", 0.05)
    with locked(work_path(tmp_path, cell)):
        with pytest.raises(TrainingError, match="in use by process"):
            cells.run_cell(study, tmp_path, cell, {})
        path.parent.mkdir()
        path.write_text('{"arm": "tfidf", "written": "by the orphan"}')
    assert cells.run_cell(study, tmp_path, cell, {})["written"] == "by the orphan"


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


def test_a_dead_process_that_nobody_buried_is_dead(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    half = tmp_path / f".out.{child.pid}.partial"
    half.write_text("")
    deadline = time.monotonic() + 10
    while half.exists() and time.monotonic() < deadline:  # not waited for: it stays in the table of processes
        clear_partials(tmp_path)
    assert not half.exists()
    os.kill(child.pid, 0)
    child.wait()


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
    # With a save in it, it may be somebody's run beside a model that came from elsewhere.
    save = tmp_path / "out.run" / "resume" / "state.json"
    save.parent.mkdir(parents=True)
    save.touch()
    with pytest.raises(TrainingError, match=f"finished model.*a save is left in {save.parents[1]}: remove it"):
        run(str(tiny_checkpoint), tmp_path / "out", reviews)
    assert save.exists()


def finished(place: Path) -> tuple[Path, Path]:
    """Give a finished model's folder and what a kill left of its run: tensors that no state names, and curves."""
    out, left = place / "out", place / "out.run"
    for path in (left / "tensorboard" / "events", left / "resume" / "step-00000001.safetensors", out / "config.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"model_type": "albert"}', encoding="utf-8")
    return out, left


def test_half_of_a_save_and_the_curves_of_a_finished_run_are_cleared_away(tmp_path: Path) -> None:
    out, _ = finished(tmp_path)
    with pytest.raises(TrainingError, match=r"anew$"), run_folder(out, restart=False):
        pass
    assert names(tmp_path) == ["out", "out/config.json"]
    out, left = finished(tmp_path)
    with run_folder(out, restart=True) as held:
        clear_away(held)
    assert not left.exists()


def test_a_run_that_begins_anew_has_no_curves_of_the_one_before(tmp_path: Path) -> None:
    out, _ = finished(tmp_path)
    with run_folder(out, restart=True) as held:
        begin_anew(held)
        assert names(held) == [".lock", "anew"]


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
    study = study_of(tiny_checkpoint, reviews, arms=arms_of(*arms), seeds=(0,), training=training)
    logs = [work_path(tmp_path / "study", Cell(arm, "reviews", 0)) / "train.jsonl" for arm in arms]

    def stop_when_both_are_at_work() -> None:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and not all(path.exists() and path.stat().st_size for path in logs):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop_when_both_are_at_work)
    thread.start()
    with pytest.raises(Interrupted):
        run_study(study, tmp_path / "study", engine=Engine(jobs=2))
    thread.join()
    for log in logs:
        lines = [line for line in read_log(log.parent) if line["event"] == "step"]
        assert saved(log.parent)["step"] == len(lines) > 0, "it goes on from exactly there"
        assert names(log.parent / "resume") == ["state.json", f"step-{len(lines):08d}.safetensors"]
    assert not list((tmp_path / "study").rglob(".*"))


def test_a_refused_start_removes_nothing_that_is_not_its_own(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    run(str(tiny_checkpoint), tmp_path / "out", reviews)
    own = tmp_path / "out.run" / "notes" / "mine.txt"
    own.parent.mkdir(parents=True)
    own.write_text("by hand")
    with pytest.raises(TrainingError, match="holds a finished model"):
        run(str(tiny_checkpoint), tmp_path / "out", reviews)
    assert own.read_text() == "by hand"


def test_ctrl_c_saves_even_where_nobody_reads_the_notice_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: Any) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("thrice.training.interrupt.os.write", closed)
    with pytest.raises(Interrupted, match="and saved"):
        fit_toy(tmp_path, Toy(), CONFIG, make_batch=at_step(2, send(signal.SIGINT)))
    assert saved(tmp_path)["step"] == 2
