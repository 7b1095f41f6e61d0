"""A pre-training run killed by the system at random moments, stage changes and un-sharing among them, ends the same."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pretraining_parts import RESHARING, content_of, tiny_recipe

from thrice.files import read_json
from thrice.pretraining import pretrain
from thrice.pretraining import run as running

KILLS = 12
RUN = {"save_every_steps": 1, "log_every_steps": 3}
TIMES = ("seconds", "eval_seconds", "wait_seconds", "tokens_per_second", "folder")


def forked(work: Callable[[], Any]) -> int:
    """Start a child that does the work; it has imported everything already."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def steps_saved(run: Path) -> int:
    """Give at which step the run stands in its folder, 0 where nothing is saved."""
    try:
        return int(read_json(run / "resume" / "state.json")["state"]["step"])
    except (OSError, ValueError):
        return 0


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(v) for key, v in value.items() if key not in TIMES}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def left_in(folder: Path) -> dict[str, Any]:
    """Give name -> content of a model's files, clocks left out."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name == "README.md":
            continue
        if path.suffix == ".jsonl":
            lines = path.read_text(encoding="utf-8").splitlines()
            found[str(path.relative_to(folder))] = [without_times(json.loads(line)) for line in lines]
        elif path.suffix == ".json":
            found[str(path.relative_to(folder))] = without_times(read_json(path))
        else:
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"stages": RESHARING, "run": RUN},
        {
            "model": {"family": "electra", "hidden_size": 64, "intermediate_size": 64},
            "stages": [{"max_length": 32, "objectives": ["rtd"]}],
            "run": RUN,
        },
    ],
    ids=["un-shared and shared midway", "two towers"],
)
def test_a_run_killed_at_random_moments_ends_with_the_bits_of_a_quiet_one(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    recipe, content = tiny_recipe(tmp_path, **changes), content_of(tmp_path, **changes)
    quiet = pretrain(recipe, tmp_path / "quiet" / "out", content=content)
    steps = quiet["spent"]["steps"]
    assert steps > 24
    draw, killed, hit = random.Random(3), 0, set()
    out = tmp_path / "killed" / "out"
    run = out.with_name("out.run")
    code: int | None = -signal.SIGKILL
    while code != 0:
        pid = forked(lambda: pretrain(recipe, out, content=content))
        wanted = steps_saved(run) + draw.randint(0, 5)
        code = None
        while code is None:
            if killed < KILLS and steps_saved(run) >= wanted:
                time.sleep(draw.uniform(0, 0.02))
                os.kill(pid, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                break
            done, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            time.sleep(0.0005)
        if code == -signal.SIGKILL:
            killed += 1
            hit.add(steps_saved(run))
        else:
            assert code == 0, f"a start ended with {code}"
    assert killed >= 5
    assert len(hit) >= 3, "the kills have to land at different places of the run"
    ours, theirs = left_in(out), left_in(tmp_path / "quiet" / "out")
    assert [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)] == []
    assert not run.exists()


@pytest.mark.parametrize("moment", ["write_model", "clear_away"])
def test_a_run_killed_while_its_model_is_written_or_cleared_away_ends_whole(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"budget": {"tokens": 1000}, "run": RUN}
    recipe, content = tiny_recipe(tmp_path, **changes), content_of(tmp_path, **changes)
    pretrain(recipe, tmp_path / "quiet" / "out", content=content)
    out = tmp_path / "killed" / "out"

    def die(*arguments: Any, **more: Any) -> None:
        if moment == "write_model":
            running.save(running_model(arguments[0]), out, tokenizer=arguments[0].tokenizer)
        os.kill(os.getpid(), signal.SIGKILL)

    def running_model(materials: Any) -> Any:
        return materials.model.encoder

    with monkeypatch.context() as patch:
        patch.setattr(running, moment, die)
        pid = forked(lambda: pretrain(recipe, out, content=content))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert out.with_name("out.run").exists()
    pretrain(recipe, out, content=content)
    ours, theirs = left_in(out), left_in(tmp_path / "quiet" / "out")
    assert ours == theirs
    assert (out / "README.md").exists()
    assert not out.with_name("out.run").exists()
