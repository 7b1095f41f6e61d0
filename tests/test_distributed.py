"""Two real processes on a CPU, started by torchrun, train like one; killed, they go on; one that fails ends both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from test_loop import Toy, fit_toy, read_log, toy_config, without_times
from two_processes import CASES, COMMAND, run_case

from thrice.errors import ThriceError, TrainingError
from thrice.tasks.classification import Classification
from thrice.training import distributed
from thrice.training.distributed import Ranks, own_seed

HERE = Path(__file__).parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def torchrun(*words: str, cache: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "THRICE_CACHE": str(cache)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*TORCHRUN, *words], cwd=HERE, env=environment, **pipes)


@pytest.fixture(scope="module")
def both(tiny_checkpoint: Path, reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give what each of two processes found, and how they ended when one of them failed."""
    place = tmp_path_factory.mktemp("both")
    started = time.monotonic()
    process = torchrun("two_processes.py", str(place), str(tiny_checkpoint), str(reviews), cache=place / "cache")
    _, said = process.communicate(timeout=400)
    files = [place / f"rank-{rank}.json" for rank in range(2)]
    assert all(file.exists() for file in files), said
    ranks = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    seconds = time.monotonic() - started
    return {"place": place, "ranks": ranks, "code": process.returncode, "said": said, "seconds": seconds}


@pytest.mark.timeout(500)
def test_there_are_really_two_processes(both: dict[str, Any]) -> None:
    # On a CPU Accelerate and some launchers quietly start one, or two that do not know of each other.
    assert [found["size"] for found in both["ranks"]] == [2, 2]
    assert both["ranks"][0]["backend"] == "gloo"


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_as_one_does(
    both: dict[str, Any], name: str, tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    run_case(name, str(tiny_checkpoint), str(reviews), tmp_path)
    first, second = (found[name] for found in both["ranks"])
    assert first["digests"] == second["digests"], "after every epoch the weights are the same bit for bit"
    assert len(set(first["digests"])) > 1
    assert (first["dev"], first["test"]) == (second["dev"], second["test"])
    # The sum over a batch is added up in two parts, which moves the last digits of float64; 40 steps carry them on.
    for mine, theirs in zip(read_log(both["place"] / name), read_log(tmp_path), strict=True):
        for key in {"loss", "train_loss", "grad_norm"} & theirs.keys():
            assert mine[key] == pytest.approx(theirs[key], rel=1e-9), (mine, theirs)
    assert [line["event"] for line in read_log(tmp_path)].count("step") == 40
    assert first["losses"][1] < first["losses"][0]


def test_each_process_draws_dropout_of_its_own(both: dict[str, Any]) -> None:
    assert both["ranks"][0]["streams"] != both["ranks"][1]["streams"]
    assert own_seed(3, 0) == 3
    assert len({own_seed(seed, rank) for seed in range(4) for rank in range(4)}) == 16


def test_parted_weights_have_the_gradients_of_whole_ones(both: dict[str, Any]) -> None:
    # Averages over ranks are added up in another order: last digits of float32.
    assert max(both["ranks"][0]["sharded"].values()) < 1e-5


def test_an_error_in_one_process_ends_both_with_one_message(both: dict[str, Any]) -> None:
    assert both["code"] != 0
    assert both["said"].count("error: ") == 1
    assert "a text that only the second process sees is broken" in both["said"]
    assert "Connection closed" not in both["said"]
    assert (both["place"] / "broken.run" / "train.jsonl").exists()


@pytest.mark.timeout(400)
def test_killed_processes_go_on_to_the_same_end(
    both: dict[str, Any], tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    words = ("-m", "thrice", "finetune", str(tiny_checkpoint), "--data", str(reviews), *COMMAND)
    words = (*words, "--out", str(tmp_path / "out"))
    process = torchrun(*words, cache=tmp_path / "cache")
    log, deadline = tmp_path / "out.run" / "train.jsonl", time.monotonic() + 200
    while not (log.exists() and len(log.read_bytes().splitlines()) >= 30) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.005)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert not (tmp_path / "out").exists()
    state = json.loads((tmp_path / "out.run" / "resume" / "state.json").read_text())
    assert state["identity"]["run"]["processes"] == len(state["random"]) == 2
    assert state["random"][0] != state["random"][1]

    process = torchrun(*words, cache=tmp_path / "cache")
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "going on with the run" in said
    assert said.count("saved to") == 1
    ours, theirs = tmp_path / "out", both["place"] / "undisturbed"
    assert (ours / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()
    assert without_times(read_log(ours)) == without_times(read_log(theirs))


def test_a_run_begun_by_two_processes_is_not_continued_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Ranks, "identity", {"processes": 2})
        fit_toy(tmp_path / "two", Toy(), toy_config(epochs=1))
    with pytest.raises(TrainingError, match="processes was 2, is 1"):
        fit_toy(tmp_path / "two", Toy(), toy_config(epochs=1))
    fit_toy(tmp_path / "one", Toy(), toy_config(epochs=1))
    monkeypatch.setattr(Ranks, "identity", {"processes": 2})
    with pytest.raises(TrainingError, match="processes was 1, is 2"):
        fit_toy(tmp_path / "one", Toy(), toy_config(epochs=1))


def test_a_batch_is_dealt_out_whole_and_evenly() -> None:
    lengths = np.random.default_rng(0).integers(3, 200, 64)
    batch = np.random.default_rng(1).permutation(64)[:33]
    for size in (2, 3, 4):
        for known in (None, lengths):
            shares = [list(Ranks(rank=rank, size=size).share(batch, known)) for rank in range(size)]
            assert sorted(i for share in shares for i in share) == sorted(batch.tolist())
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
            position = {int(i): place for place, i in enumerate(batch)}
            assert all([position[i] for i in share] == sorted(position[i] for i in share) for share in shares)
        tokens = [int(lengths[share].sum()) for share in shares]
        assert max(tokens) - min(tokens) <= lengths.max()
    assert [list(Ranks(rank=rank, size=2).share([7], lengths)) for rank in range(2)] == [[7], []]
    assert Ranks().share(batch, lengths) is batch


def test_the_weights_of_the_parts_of_a_batch_make_up_the_whole() -> None:
    """By hand: three texts of classes 0, 1, 1 with weights 1 and 3; torch divides by 1 + 3 + 3."""
    logits, targets, weights = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 0.0]]), torch.tensor([0, 1, 1]), (1.0, 3.0)

    class Part:
        def __init__(self, start: int, stop: int) -> None:
            self.targets, self.num_examples, self.logits = targets[start:stop], stop - start, logits[start:stop]

    def loss(part: Part) -> float:
        weight = torch.tensor(weights)
        return float(torch.nn.functional.cross_entropy(part.logits, part.targets, weight=weight))

    for given, whole in ((weights, 7.0), (None, 3.0)):
        task = Classification(labels=("a", "b"), columns=None, class_weights=given)  # type: ignore[arg-type]
        assert task.loss_weight(Part(0, 3)) == whole  # type: ignore[arg-type]
    task = Classification(labels=("a", "b"), columns=None, class_weights=weights)  # type: ignore[arg-type]
    parts = [Part(0, 1), Part(1, 3)]
    summed = sum(loss(part) * task.loss_weight(part) for part in parts)  # type: ignore[arg-type]
    assert summed == pytest.approx(7 * loss(Part(0, 3)), rel=1e-6)


def test_a_study_is_not_started_as_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from thrice.compare.runner import run_study

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ThriceError, match=r"started as 2 processes at once, but it is work for one; .*--jobs"):
        run_study(None, tmp_path)  # type: ignore[arg-type]


def test_a_launcher_that_started_one_process_instead_of_several_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(TrainingError, match=r"asked for several processes and started one; .*torchrun"):
        distributed.join()


def test_accelerators_that_a_run_cannot_follow_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = Accelerator(cpu=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TrainingError, match=r"2 processes were started and it is one of 1: .*Accelerator\(cpu=True\)"):
        fit_toy(tmp_path, Toy(), toy_config(), accelerator=accelerator)
    monkeypatch.delenv("WORLD_SIZE")
    accelerator.state.distributed_type, before = distributed.DistributedType.FSDP, accelerator.distributed_type
    try:
        with pytest.raises(TrainingError, match=r"FSDP, .*holds the whole model here, or use thrice\.model\.fsdp"):
            fit_toy(tmp_path, Toy(), toy_config(), accelerator=accelerator)
    finally:
        accelerator.state.distributed_type = before
