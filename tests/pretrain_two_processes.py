"""What the test of pre-training in several processes runs in each of them; started by torchrun."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from pretraining_parts import RESHARING, tiny_recipe
from torch import nn

from thrice.pretraining import pretrain, run
from thrice.training.distributed import join

CASES: dict[str, dict[str, Any]] = {
    "albert, un-shared midway": {"stages": RESHARING},
    "electra": {
        "model": {"family": "electra", "hidden_size": 64, "intermediate_size": 64},
        "stages": [
            {"share": 0.5, "max_length": 24, "objectives": ["mlm"]},
            {"share": 0.5, "max_length": 32, "objectives": ["rtd"]},
        ],
    },
    "parts, of which a process has none, one or several": {
        "stages": [
            {"share": 0.5, "max_length": 24, "objectives": ["mlm"]},
            {"share": 0.5, "max_length": 24, "objectives": ["mlm", "sop"]},
        ],
        "batch": {"tokens": 90, "micro_tokens": 24},
    },
}
SETTINGS: dict[str, Any] = {"batch": {"tokens": 90}, "budget": {"tokens": 3000}, "run": {"log_every_steps": 1}}
"""Batches of a few examples, some of one alone, of which one of two processes has none."""


def digest(model: nn.Module) -> str:
    """Give the sha256 of all parameters."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def run_case(name: str, texts: Path, folder: Path) -> dict[str, Any]:
    """Pre-train one case in float64 without dropout, so that nothing can hide behind last digits."""
    changes = SETTINGS | CASES[name]
    changes["model"] = {**changes.get("model", {}), "dropout": 0.0, "classifier_dropout_prob": 0.0}
    built, models = run.prepare, []

    def prepare(recipe: Any) -> Any:
        materials = built(recipe)
        models.append(materials.model.double())
        return materials

    run.prepare = prepare
    try:
        outcome = pretrain(tiny_recipe(texts, **changes), folder / name.partition(",")[0])
    finally:
        run.prepare = built
    kept = {key: outcome[key] for key in ("spent", "stages", "evaluations", "sharing", "verdict")}
    return {**kept, "digest": digest(models[0])}


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=FutureWarning)
    ranks = join()
    place = Path(sys.argv[2])
    found = {name: run_case(name, Path(sys.argv[1]), place) for name in CASES}
    (place / f"rank-{ranks.rank}.json").write_text(json.dumps({"size": ranks.size, **found}), encoding="utf-8")
    ranks.wait()
    os._exit(0)
