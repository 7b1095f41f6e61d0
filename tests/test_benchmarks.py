"""The benchmark computes the same on both sides, and notices where it does not."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from thrice.model.presets import PRESETS


def benchmark(name: str = "finetune") -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", path)
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


def test_the_arms_of_the_memory_benchmark_are_what_they_are_called() -> None:
    module = benchmark("memory")
    arguments = argparse.Namespace(albert="albert-tiny-zh", bert="bert-tiny", batch_size=2, length=8)
    sizes, kept = {}, {}
    for arm, build in module.ARMS.items():
        model = build(arguments)
        sizes[arm] = sum(p.numel() for p in model.parameters())
        kept[arm] = module.kept_bytes(model, arguments)
        before = model.state_dict()["embeddings.LayerNorm.weight"].clone() if "thrice" in arm else None
        assert module.stepper(model, arguments)() > 0
        if before is not None:
            assert not torch.equal(before, model.state_dict()["embeddings.LayerNorm.weight"]), "a step was taken"
    assert sizes["thrice shared"] == sizes["thrice shared, checkpointing"] == sizes["stock ALBERT"]
    assert sizes["thrice un-shared"] > sizes["thrice shared"]
    for arm in ("stock BERT", "thrice shared"):
        assert kept[f"{arm}, checkpointing"] < kept[arm]
