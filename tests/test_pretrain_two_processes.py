"""Two real processes pre-train like one: same curve, same weights, in stages that leave parameters unused too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pretrain_two_processes import CASES, run_case
from pretraining_parts import content_of

HERE = Path(__file__).parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
EXACT = {"step", "stage", "share", "tokens", "examples", "event", "evaluation", "name", "eval_tokens"}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give the texts, where two processes have trained on them, and what each of them found."""
    texts, place = tmp_path_factory.mktemp("texts"), tmp_path_factory.mktemp("both")
    content_of(texts)
    words = [*TORCHRUN, "pretrain_two_processes.py", str(texts), str(place)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=HERE, env=environment, capture_output=True, text=True, check=False, timeout=400)
    files = [place / f"rank-{rank}.json" for rank in range(2)]
    assert all(file.exists() for file in files), done.stderr
    return {"texts": texts, "place": place, "ranks": [json.loads(file.read_text()) for file in files]}


def numbers(value: Any, place: str = "") -> dict[str, float]:
    """Give place -> number in a JSON value, clocks left out."""
    if isinstance(value, dict):
        parts = [(f"{place}.{key}", part) for key, part in value.items() if "second" not in key]
    elif isinstance(value, list):
        parts = [(f"{place}.{i}", part) for i, part in enumerate(value)]
    else:
        return {place: value} if isinstance(value, int | float) else {}
    return {name: number for key, part in parts for name, number in numbers(part, key).items()}


@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", CASES)
def test_two_processes_pretrain_as_one_does(both: dict[str, Any], name: str, tmp_path: Path) -> None:
    alone = run_case(name, both["texts"], tmp_path)
    first, second = (found[name] for found in both["ranks"])
    assert [found["size"] for found in both["ranks"]] == [2, 2]
    assert first["digest"] == second["digest"], "both end with the same weights bit for bit"
    ours, theirs = numbers(first), numbers(alone)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        # Sums are added up in two parts, which moves the last digits of float32 totals; the weights are float64.
        assert value == pytest.approx(theirs[key], rel=1e-5, nan_ok=True), key
    folder = name.partition(",")[0]
    logs = [(place / folder / "pretrain.jsonl").read_text().splitlines() for place in (both["place"], tmp_path)]
    assert len(logs[0]) == len(logs[1]) > 30
    for mine, other in zip(*logs, strict=True):
        one, two = numbers(json.loads(mine)), numbers(json.loads(other))
        assert one.keys() == two.keys()
        for key, value in one.items():
            assert value == pytest.approx(two[key], rel=1e-5, abs=1e-9, nan_ok=True), (key, mine, other)


def test_some_batch_leaves_a_process_without_an_example(both: dict[str, Any]) -> None:
    spent = both["ranks"][0]["albert, un-shared midway"]["spent"]
    assert spent["examples"] / spent["steps"] < 4
