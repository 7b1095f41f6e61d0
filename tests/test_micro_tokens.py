"""A batch that is computed in parts trains as one that is computed at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pretrain_two_processes import CASES, run_case
from pretraining import examples, tiny_model
from pretraining_parts import content_of, stopping_after_a_step, watch_passes
from test_objectives import FAMILY, objective
from test_pretrain_two_processes import numbers

from thrice.errors import ConfigError
from thrice.pretraining import pretrain, recipe_of, timing
from thrice.training.feed import in_parts

ELECTRA = {"family": "electra", "hidden_size": 64, "intermediate_size": 64}
STAGES: dict[str, dict[str, Any]] = {
    "mlm and sop": {"stages": [{"max_length": 30, "objectives": ["mlm", "sop"]}]},
    "nsp": {
        "model": {"family": "bert", "embedding_size": 16},
        "stages": [{"max_length": 30, "objectives": ["mlm", "nsp"]}],
    },
    "rtd": {"model": ELECTRA, "stages": [{"max_length": 30, "objectives": ["rtd"]}]},
    "all_token_mlm": {"model": ELECTRA, "stages": [{"max_length": 30, "objectives": ["all_token_mlm"]}]},
}


@pytest.mark.parametrize("name", STAGES)
def test_parts_add_up_to_the_batch(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content_of(tmp_path)
    monkeypatch.setitem(CASES, "whole", STAGES[name] | {"batch": {"tokens": 150}})
    monkeypatch.setitem(CASES, "parted", STAGES[name] | {"batch": {"tokens": 150, "micro_tokens": 60}})
    seen = watch_passes(monkeypatch)
    whole = run_case("whole", tmp_path, tmp_path)
    assert max(seen) > 120
    seen.clear()
    parted = run_case("parted", tmp_path, tmp_path)
    assert max(seen) <= 60, "neither training nor evaluation computes more at once"
    ours, theirs = numbers({**parted, "digest": ""}), numbers({**whole, "digest": ""})
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert value == pytest.approx(theirs[key], rel=1e-6, nan_ok=True), key
    logs = [(tmp_path / folder / "pretrain.jsonl").read_text().splitlines() for folder in ("whole", "parted")]
    assert len(logs[0]) == len(logs[1]) > 20
    for one, two in zip(*logs, strict=True):
        mine, other = numbers(json.loads(one)), numbers(json.loads(two))
        assert mine == pytest.approx(other, rel=1e-6, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("name", [name for name in FAMILY if name != "mpn"])
def test_counts_are_known_before_a_pass_and_are_those_of_the_terms(name: str) -> None:
    model = tiny_model(FAMILY[name], [objective(name)])
    batch = model.make_batch(examples(9), seed=1)
    assert model.counts(batch) == {name: float(t.count) for name, t in model.terms(batch).items() if t.weight}


def test_an_objective_that_weighs_a_batch_as_a_whole_says_so() -> None:
    model = tiny_model("albert", [objective("mpn")])
    with pytest.raises(ConfigError, match="mpn weighs a batch as a whole; it cannot be computed in parts"):
        model.counts(model.make_batch(examples(3), seed=1))


def test_examples_are_parted_in_their_order_and_none_is_lost() -> None:
    lengths = [5, 3, 2, 9, 1, 12, 4]
    assert in_parts("abcdefg", lengths, 10) == [["a", "b", "c"], ["d", "e"], ["f"], ["g"]]
    assert in_parts("abcdefg", lengths, None) == [list("abcdefg")]


def test_a_run_that_began_before_there_were_parts_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(content_of(tmp_path, budget={"tokens": 1500}), name="tiny.toml")
    with stopping_after_a_step(monkeypatch):
        pretrain(recipe, tmp_path / "out")
    path = tmp_path / "out.run" / "resume" / "state.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["identity"]["config"].pop("micro_tokens") is None
    path.write_text(json.dumps(content), encoding="utf-8")
    assert pretrain(recipe, tmp_path / "out")["spent"]["tokens"] >= 1500


def test_minutes_are_timed_in_parts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "WARM_UP", 1)
    monkeypatch.setattr(timing, "TIMED", 2)
    seen = watch_passes(monkeypatch)
    content = content_of(tmp_path, batch={"tokens": 200, "micro_tokens": 50}, evaluation={"times": 0})
    content["budget"] = {"minutes": 1e-6}
    pretrain(recipe_of(content, name="tiny.toml"), tmp_path / "out", content=content)
    assert len(seen) > 7, "three steps of each of two stages in several parts each, and one step"
    assert max(seen) <= 50
