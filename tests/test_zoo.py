"""The bundled checkpoint is the real one, and published traps around dropout are closed."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from thrice.checkpoints import load


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
