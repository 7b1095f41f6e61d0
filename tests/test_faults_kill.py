"""Killed by the system at random moments and started again, every run ends with the bits of the undisturbed one.

python -m pytest tests/test_faults_kill.py -s        prints a table: scenario, kills, what they hit, equal or not
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def killed(tiny_checkpoint: Path, reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What became of every scenario; computed once, in a process of its own."""
    room = tmp_path_factory.mktemp("killed")
    asked = {"checkpoint": str(tiny_checkpoint), "reviews": str(reviews), "room": str(room), "seed": 5}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("killing.py"))],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_runs_killed_at_any_moment_end_like_undisturbed_ones_and_leave_no_rubbish(
    killed: list[dict[str, Any]],
) -> None:
    print(f"\n{'scenario':40}{'kills':>6}{'chains':>8}  equal  killed while")
    for line in killed:
        phases = ", ".join(f"{phase} {count}" for phase, count in line["phases"].items())
        equal = "no" if line["different"] else "yes"
        print(f"{line['scenario']:40}{line['kills']:6}{line['chains']:8}  {equal:5}  {phases}")
    print(f"{'together':40}{sum(line['kills'] for line in killed):6}{sum(line['chains'] for line in killed):8}")
    assert [line["different"] for line in killed] == [[]] * len(killed)


def test_at_least_thirty_kills_landed_and_in_every_phase_of_a_run(killed: list[dict[str, Any]]) -> None:
    assert all(line["kills"] >= line["wanted"] for line in killed)
    assert sum(line["kills"] for line in killed) >= 30
    phases: Counter[str] = sum((Counter(line["phases"]) for line in killed), Counter())
    for phase in ("resuming", "training", "evaluating", "saving", "writing the model"):
        assert phases[phase] > 0, phases
