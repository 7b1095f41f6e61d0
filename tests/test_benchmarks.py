"""The benchmark computes the same on both sides, and notices where it does not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from thrice.model.presets import PRESETS


def benchmark() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "finetune.py"
    spec = importlib.util.spec_from_file_location("finetune_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("family", ["albert", "bert"])
def test_both_sides_have_the_same_loss_and_gradients(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark()
    preset = PRESETS["albert-tiny-zh" if family == "albert" else "bert-tiny"]
    small = preset.replace(vocab_size=40, max_position_embeddings=16)
    monkeypatch.setitem(module.PRESETS, "small", small)
    encoder, stock = module.same_weights("small")
    sequences = [[2, 5, 6, 3], [2, 7, 3], [2, 8, 9, 10, 11, 3]]
    module.check_equal(encoder, stock, sequences)
    with torch.no_grad():
        encoder.ffn[0].output.bias[0] += 1
    with pytest.raises(SystemExit, match="do not compute the same"):
        module.check_equal(encoder, stock, sequences)
