"""What the tests of several processes run in each of them; started by torchrun, with what to do as the first word."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from thrice.errors import DataError
from thrice.finetune import DataSource, build, finetune, read_splits, train
from thrice.model.layer import AttentionBlock
from thrice.tasks.base import TaskModel
from thrice.tasks.classification import Classification
from thrice.training import TrainingConfig
from thrice.training.distributed import join

CASES: dict[str, dict[str, Any]] = {
    "shared": {"pattern": "all"},
    "class weights": {"pattern": "none", "options": {"class_weight": "good=3"}},
    "computed twice": {"pattern": "all", "training": {"gradient_checkpointing": True}},
}
TRAINING = {"epochs": 2, "batch_size": 5, "learning_rate": 5e-3, "seed": 1}
"""Of 96 examples; the last batch holds one, so that one of two processes has none."""
COMMAND = ("--epochs", "4", "--batch-size", "5", "--lr", "5e-3", "--max-length", "24")


def without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, AttentionBlock):
            module.attention_dropout = 0.0


def digest(model: nn.Module) -> str:
    """Give the sha256 of all parameters."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def run_case(name: str, checkpoint: str, reviews: str, folder: Path) -> dict[str, Any]:
    """Train one case and give what came out of it in this process."""
    case = CASES[name]
    source = DataSource(data=reviews)
    task, splits = read_splits("classification", source, {"max_length": 24, **case.get("options", {})})
    model, tokenizer = build(f"{checkpoint}+{case['pattern']}", task, seed=1)
    without_dropout(model.double())  # so that nothing can hide behind the last digits of float32
    config = TrainingConfig(**TRAINING | case.get("training", {}))
    last: list[str] = []
    right = TaskModel.eval
    model.eval = lambda: (last.append(digest(model)), right(model))[1]  # type: ignore[method-assign, assignment]
    done = train(model, tokenizer, splits, config, name=name, metric="accuracy", folder=folder, progress=False)
    return {
        "digests": [*last, digest(model)],
        "dev": [epoch["dev"] for epoch in done.fit.epochs],
        "losses": [epoch["train_loss"] for epoch in done.fit.epochs],
        "test": done.test,
    }


def sharded_gradients() -> dict[str, float]:
    """Give by how much gradients of parted weights differ from those of whole ones, per sharing pattern.

    Each rank has texts of its own, so that the average over the ranks is no rank's gradient.
    """
    import copy

    from test_checkpointing import MAPS, TEXTS, encoder
    from torch.distributed.fsdp import fully_shard

    from thrice.model.fsdp import shard_blocks
    from thrice.model.packing import pack

    ranks, differences = join(), {}
    weights = torch.arange(12)
    for name, calls in MAPS.items():
        plain = encoder(calls)
        without_dropout(plain)
        parted = copy.deepcopy(plain)
        parted.gradient_checkpointing = True
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (ranks.size,))
        shard_blocks(parted, mesh=mesh)
        fully_shard(parted, mesh=mesh)
        parted(pack(TEXTS[ranks.rank :])).square().mul(weights).mean().backward()
        for rank in range(ranks.size):
            (plain(pack(TEXTS[rank:])).square().mul(weights).mean() / ranks.size).backward()
        worst = 0.0
        for one, other in zip(plain.parameters(), parted.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            assert one.grad.abs().max() > 0
            difference = (one.grad - other.grad.full_tensor()).abs().max() / one.grad.abs().max()  # type: ignore[operator]
            worst = max(worst, float(difference)) if difference == difference else float("inf")
        differences[name] = worst
    return differences


def everything(place: Path, checkpoint: str, reviews: str) -> None:
    """Run all cases, write what came out, one file per rank, and end by an error in the second process alone."""
    ranks = join()
    found: dict[str, Any] = {
        "size": ranks.size,
        "backend": torch.distributed.get_backend(),
        "threads": torch.get_num_threads(),
    }
    for name in CASES:
        found[name] = run_case(name, checkpoint, reviews, place / name)
    arguments = {"source": DataSource(data=reviews), "task_name": "classification", "options": {"max_length": 24}}
    training = {"epochs": 4, "batch_size": 5, "learning_rate": 5e-3}
    finetune(checkpoint, place / "undisturbed", training=training, **arguments)
    found["streams"] = torch.rand(1).item()
    found["sharded"] = sharded_gradients()
    (place / f"rank-{ranks.rank}.json").write_text(json.dumps(found), encoding="utf-8")
    ranks.wait()
    if ranks.rank == 1:
        break_loss()
    from thrice.cli import main

    sys.argv = ["thrice", "finetune", checkpoint, "--data", reviews, *COMMAND, "--out", str(place / "broken")]
    main()


def break_loss() -> None:
    """Let the loss fail at its eighth step."""
    right, calls = Classification.loss, iter(range(100))

    def loss(task: Classification, model: TaskModel, batch: Any) -> torch.Tensor:
        if next(calls) == 7:
            raise DataError("a text that only the second process sees is broken")
        return right(task, model, batch)

    Classification.loss = loss  # type: ignore[method-assign]


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=FutureWarning)
    everything(Path(sys.argv[1]), *sys.argv[2:])
    os._exit(0)
