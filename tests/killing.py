"""Kills runs at random moments and starts them again until they end: a program that imports thrice once.

It never computes itself: each start is a forked child, which therefore begins at once, and what is killed is a real
process by a real signal. Memory that both share says what the child was doing when it died. The moment is a number of
things done and a short time after the last of them, so that a slow machine is hit like a fast one. Reads one JSON value
from standard input: checkpoint, reviews, room (a folder to work in) and seed; writes one with a line per scenario.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import mmap
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import thrice.compare.cells
import thrice.compare.pool
import thrice.compare.runner
import thrice.finetune
import thrice.training.loop
from thrice.compare.grid import Study, StudyTask, arms_of
from thrice.compare.runner import Engine, run_study
from thrice.errors import TrainingError
from thrice.finetune import DataSource, finetune
from thrice.tasks.base import TaskModel
from thrice.training import TrainingConfig, resume

PHASES = ("elsewhere", "resuming", "training", "evaluating", "saving", "writing the model", "clearing away")
TIMES = ("seconds", "eval_seconds", "started", "finished", "save_every_steps", "process_peak_bytes")
TRAINING = {"epochs": 2, "batch_size": 8, "learning_rate": 5e-3}
MOST_A_CHAIN = 4

# What a child does -> the phase in which it is then.
DOES = (
    (resume, "load_run", "resuming"),
    (thrice.training.loop, "_train_step", "training"),
    (TaskModel, "predict", "evaluating"),
    (resume, "save_run", "saving"),
    (resume, "save_best", "saving"),
    (thrice.finetune, "save_model", "writing the model"),
    (thrice.compare.cells, "save_model", "writing the model"),
    (thrice.finetune, "clear_away", "clearing away"),
)


@dataclass(kw_only=True)
class Scenario:
    """One way to be killed, again and again."""

    name: str
    work: Callable[[Path], Any]
    """Does the work in a folder; a second call goes on."""
    kills: int
    """To land before it is enough."""
    aim: str | None = None
    """Phase to wait for before the kill, from the second start of a chain on where it is resuming; None for any."""
    begin: Callable[[Path], Any] = lambda room: None
    """Done once, before a chain's first start."""
    phases: Counter[str] = field(default_factory=Counter)
    chains: int = 0
    starts: int = 0
    different: list[str] = field(default_factory=list)


def scenarios(checkpoint: str, reviews: str) -> list[Scenario]:
    """Give the scenarios of the suite."""

    def tune(room: Path, *, every: int | None = None, restart: bool = False, epochs: int = 2, **more: Any) -> None:
        finetune(
            checkpoint,
            room / "out",
            source=DataSource(data=reviews),
            task_name="classification",
            options={"max_length": 24},
            training=TRAINING | {"save_every_steps": every, "epochs": epochs} | more,
            restart=restart,
        )

    def to_the_end(room: Path, *, every: int | None = None, **more: Any) -> None:
        try:
            tune(room, every=every, **more)
        except TrainingError as error:  # killed after the moment from which on the model counts as finished
            if "holds a finished model" not in str(error):
                raise

    def again(room: Path) -> None:
        tune(room, restart=not (room / "out.run" / "anew").exists() and (room / "first").exists())
        (room / "first").unlink(missing_ok=True)

    def first(room: Path) -> None:
        tune(room, epochs=1)
        (room / "first").touch()

    def study(room: Path, *, jobs: int) -> None:
        source = DataSource(data=reviews)
        task = StudyTask(name="reviews", metric="accuracy", options={"max_length": 24}, source=source)
        config = TrainingConfig(**TRAINING, save_every_steps=2, max_grad_norm=0.0)
        asked = Study(
            arms=arms_of(f"{checkpoint}+all", f"{checkpoint}+none", "tfidf"),
            tasks=(task,),
            seeds=(0, 1),
            training=config,
            save_models=True,
        )
        run_study(asked, room / "study", engine=Engine(jobs=jobs))

    every_step = functools.partial(to_the_end, every=1)
    averaged = functools.partial(to_the_end, every=1, ema_decay=0.9)
    one_job, two_jobs = (functools.partial(study, jobs=jobs) for jobs in (1, 2))
    return [
        Scenario(name="finetune", work=to_the_end, kills=6),
        Scenario(name="finetune, saved at every step", work=every_step, kills=8),
        Scenario(name="finetune, while it resumes", work=every_step, kills=5, aim="resuming"),
        Scenario(name="finetune, its weights averaged", work=averaged, kills=5),
        Scenario(name="finetune, while it evaluates", work=every_step, kills=3, aim="evaluating"),
        Scenario(name="finetune, while the model is written", work=to_the_end, kills=5, aim="writing the model"),
        Scenario(name="finetune --restart over a model", work=again, kills=4, aim="writing the model", begin=first),
        Scenario(name="finetune, while it clears away", work=to_the_end, kills=3, aim="clearing away"),
        Scenario(name="study, one process", work=one_job, kills=6),
        Scenario(name="study, two processes", work=two_jobs, kills=6),
    ]


SHARED = memoryview(mmap.mmap(-1, 16)).cast("Q")
"""Of a child: the phase in which it is, and how often it has entered one."""


def start(work: Callable[[Path], Any], room: Path) -> int:
    """Fork a child that does the work; give its number."""
    SHARED[0] = SHARED[1] = 0
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for owner, name, phase in DOES:
            setattr(owner, name, _told(getattr(owner, name), PHASES.index(phase)))
        os.unlink = _slow_to_clear_away(os.unlink)
        work(room)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _told(right: Callable[..., Any], phase: int) -> Callable[..., Any]:
    @functools.wraps(right)
    def wrapper(*arguments: Any, **more: Any) -> Any:
        before, SHARED[0] = SHARED[0], phase
        SHARED[1] += 1
        try:
            return right(*arguments, **more)
        finally:
            SHARED[0] = before

    return wrapper


def _slow_to_clear_away(right: Callable[..., None]) -> Callable[..., None]:
    """Removing a few files is over before anybody could kill it: here each takes as long as on a slow disk."""

    def unlink(*arguments: Any, **more: Any) -> None:
        if PHASES[SHARED[0]] == "clearing away":
            time.sleep(0.005)
        right(*arguments, **more)

    return unlink


def ended(pid: int) -> int | None:
    """Give a child's exit code, -9 if it was killed; None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def kill_one(pid: int, *, aim: str | None, after: int, delay: float) -> int:
    """Kill a child a moment after it has begun a number of things, or the phase aimed at; give its exit code."""
    while (code := ended(pid)) is None:
        if PHASES[SHARED[0]] == aim if aim else SHARED[1] >= after:
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        time.sleep(0.0005)
    return code


def run_chains(scenario: Scenario, room: Path, draw: random.Random) -> None:
    """Kill a scenario as often as it wants, each chain in a folder of its own, and compare how each ends."""
    undisturbed = room / "undisturbed"
    undisturbed.mkdir(parents=True)
    finish(scenario.begin, undisturbed)
    finish(scenario.work, undisturbed)
    does = SHARED[1]
    expected = left_in(undisturbed)
    while sum(scenario.phases.values()) < scenario.kills and scenario.chains < 5 * scenario.kills:
        scenario.chains += 1
        chain = room / f"chain-{scenario.chains}"
        chain.mkdir()
        finish(scenario.begin, chain)
        for number in range(MOST_A_CHAIN):
            # A run that resumes has to have been stopped before.
            aim = None if scenario.aim == "resuming" and number == 0 else scenario.aim
            pid = start(scenario.work, chain)
            code = kill_one(
                pid, aim=aim, after=draw.randint(1, does // 3), delay=draw.uniform(0, 0.005 if aim else 0.02)
            )
            scenario.starts += 1
            if code == 0:
                break
            if code != -signal.SIGKILL:
                raise SystemExit(f"{scenario.name}: a start in {chain} ended with {code}")
            scenario.phases[PHASES[SHARED[0]]] += 1
        else:
            finish(scenario.work, chain)
        now = left_in(chain)
        scenario.different += [
            f"{chain.name}/{name}" for name in {**expected, **now} if expected.get(name) != now.get(name)
        ]


def import_what_is_needed(works: list[Callable[[Path], Any]], room: Path) -> None:
    """Import what the works import on their way: a child that finds it there begins at once."""
    room.mkdir(parents=True)
    list_of_modules = room / "modules"

    def look(place: Path) -> None:
        for number, work in enumerate(works):
            (place / str(number)).mkdir()
            work(place / str(number))
        list_of_modules.write_text("\n".join(sys.modules), encoding="utf-8")

    finish(look, room)
    for name in list_of_modules.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def finish(work: Callable[[Path], Any], room: Path) -> None:
    """Let a child do its work undisturbed."""
    pid = start(work, room)
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise SystemExit(f"an undisturbed start in {room} ended with {code}")


def left_in(room: Path) -> dict[str, Any]:
    """Give name -> content of everything in a folder, hidden files and empty folders too, without times."""
    left: dict[str, Any] = {}
    for path in sorted(room.rglob("*")):
        name = str(path.relative_to(room))
        if path.is_dir():
            left[name] = None
        elif path.suffix in (".json", ".jsonl"):
            text = path.read_text(encoding="utf-8")
            values = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
            left[name] = without_times(values)
        else:
            left[name] = path.read_bytes()
    return left


def without_times(value: Any) -> Any:
    """Give a JSON value without what a clock wrote into it."""
    if isinstance(value, dict):
        return {key: without_times(v) for key, v in value.items() if key not in TIMES}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def forking_pool(*arguments: Any, **more: Any) -> Any:
    """Give a pool whose workers are forked, all of them before it has threads: they need not import torch again."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    pool = ProcessPoolExecutor(*arguments, **more | {"mp_context": multiprocessing.get_context("fork")})
    pool._safe_to_dynamically_spawn_children = False
    return pool


def main() -> None:
    """Run all scenarios and print what became of them."""
    asked = json.load(sys.stdin)
    torch.set_num_threads(1)
    thrice.compare.pool.ProcessPoolExecutor = forking_pool
    thrice.compare.runner.measure_cost = lambda *_: None  # times, which no two runs share
    draw = random.Random(asked["seed"])
    todo = scenarios(asked["checkpoint"], asked["reviews"])
    import_what_is_needed([todo[0].work, todo[-2].work], Path(asked["room"]) / "imports")
    found = []
    for number, scenario in enumerate(todo):
        run_chains(scenario, Path(asked["room"]) / str(number), draw)
        found.append(
            {
                "scenario": scenario.name,
                "wanted": scenario.kills,
                "kills": sum(scenario.phases.values()),
                "chains": scenario.chains,
                "starts": scenario.starts,
                "phases": dict(scenario.phases.most_common()),
                "different": scenario.different,
            }
        )
        print(f"{found[-1]}", file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
