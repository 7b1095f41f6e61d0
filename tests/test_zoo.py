"""The bundled checkpoint is the real one, and published traps around dropout are closed."""

from __future__ import annotations

import json
import logging
import shutil
import tomllib
from pathlib import Path

import pytest
from no_thrice import run_without_thrice

from thrice.checkpoints import load, resolve, zoo_names
from thrice.pretraining import recipe_of

EQUAL = sorted(name for name in zoo_names() if "-8e13-" in name)


def test_the_bundled_checkpoint_loads_as_its_card_says(nano: Path) -> None:
    encoder = load("zoo:albert-nano-zh")
    assert round(encoder.parameter_counts()[0] / 1e6, 1) == 3.3
    assert encoder.config.num_calls == 4
    assert set(encoder.config.attention_map) == {0}
    assert list(encoder.heads) == ["mlm"]
    assert "MLM only" in (nano / "README.md").read_text(encoding="utf-8")


def test_dropout_is_0_where_the_checkpoint_was_trained_with_0() -> None:
    config = load("zoo:albert-nano-zh").config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0, 0)


@pytest.mark.parametrize(("place", "pinned"), [("albert-base-v2", True), ("albert-base-v1", False)])
def test_albert_version_2_has_no_dropout_whatever_its_config_says(
    place: str, pinned: bool, tiny_checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / place
    shutil.copytree(tiny_checkpoint, folder)
    stock = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stock |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    (folder / "config.json").write_text(json.dumps(stock), encoding="utf-8")
    with caplog.at_level(logging.WARNING, "thrice"):
        config = load(str(folder)).config
    expected = 0.0 if pinned else 0.1
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (expected, expected)
    assert ("trained with dropout 0" in caplog.text) is pinned
    assert load(str(folder)).attention[0].dropout.p == expected


@pytest.mark.parametrize("name", EQUAL)
def test_a_model_of_equal_cost_is_what_its_card_says(name: str) -> None:
    folder = resolve(f"zoo:{name}").folder
    assert folder is not None
    assert (folder / "model.safetensors").stat().st_size < 13e6
    said = json.loads((folder / "thrice.json").read_text(encoding="utf-8"))["pretraining"]
    assert said["name"] == name
    assert 8e13 <= said["spent"]["flops"] < 8.01e13
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"**Verdict: {said['verdict']}.**" in card
    assert f"thrice finetune zoo:{name}" in card
    recipe = recipe_of(tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8")), name=name)
    assert json.loads(json.dumps(recipe.facts())) == said["recipe"]
    encoder = load(f"zoo:{name}")
    assert encoder.parameter_counts()[0] == said["parameters"]["encoder"][0]


def test_models_of_equal_cost_read_the_same_text_with_the_same_tokenizer() -> None:
    folders = [resolve(f"zoo:{name}").folder for name in EQUAL]
    runs = [json.loads((folder / "thrice.json").read_text())["pretraining"] for folder in folders if folder]
    assert len(runs) == 6
    for fact in ("data", "tokenizer"):
        assert all(run[fact] == runs[0][fact] for run in runs)


def test_models_of_equal_cost_load_whole_in_stock_transformers() -> None:
    found = run_without_thrice(
        """
import json, transformers
result = {}
for name, folder in arguments.items():
    kind = json.load(open(folder + "/config.json"))["architectures"][0]
    _, told = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    result[name] = [kind, [list(map(str, told[key])) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")]]
""",
        **{name: str(resolve(f"zoo:{name}").folder) for name in EQUAL},
    )
    assert {kind for kind, _ in found.values()} == {
        "AlbertForPreTraining",
        "AlbertForMaskedLM",
        "BertForPreTraining",
        "ElectraForPreTraining",
    }
    assert all(left == [[], [], []] for _, left in found.values())
