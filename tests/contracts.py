"""What every plug-in of a room must keep; called by the tests of each room for each of its plug-ins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thrice.checkpoints import load_any
from thrice.data.readers import Table
from thrice.data.segments import PretrainingExample
from thrice.data.tokenizer import Tokenizer
from thrice.finetune import save_model
from thrice.model.encoder import Encoder
from thrice.objectives.base import loss_of
from thrice.objectives.model import PretrainingModel
from thrice.predict import load_model
from thrice.tasks.base import Task, TaskModel


def task_contract(
    task: Task, table: Table, checkpoint: Path, place: Path, *, perfect: Any, tolerance: float = 1e-5
) -> None:
    """Run the contract of a task on a table with gold answers.

    perfect: gives, from an example, the prediction that says exactly its gold answer. tolerance: how far the other
    examples of a batch may move a number of an answer; above 1e-5 only where numbers are large.
    """
    encoder = load_any(str(checkpoint))
    tokenizer = Tokenizer.from_folder(checkpoint, vocab_size=encoder.config.vocab_size)
    examples = task.read(table)
    assert len(examples) == len(table.rows)
    assert all(isinstance(task.split_key(row)[0], str) for row in table.rows)

    scores = task.score([perfect(example) for example in examples], examples)
    for name in task.metrics:
        assert abs(scores[name] - 1) <= 1e-12, name
    assert not scores["collapsed"]
    json.dumps(scores)

    counts_contract(task, [perfect(example) for example in examples], examples)
    assert all(isinstance(task.shown(example)[key], str) for example in examples for key in ("text", "gold"))

    again = type(task).restore(json.loads(json.dumps(task.settings())))
    assert again == task

    model = TaskModel(encoder, task, seed=1)
    data = task.encode(examples, tokenizer)
    assert len(data) == len(examples)
    _batches_change_nothing(model, data, tolerance)
    _parts_make_up_the_whole(model, data)
    _learns_one_batch(model, data)

    before = model.predict(data)
    assert len(before) == len(examples)
    json.dumps(before)
    folder = save_model(model, place / "saved", tokenizer)
    restored = load_model(folder)
    assert restored.model.task == task
    assert restored.answer(task.read(table, gold=False)) == before


def counts_contract(task: Task, predictions: Sequence[Any], examples: Sequence[Any]) -> None:
    """Check that every metric follows from the summed counts, where a task counts, and is 0 of nothing."""
    counts = task.counts(predictions, examples)
    if counts is None:
        return
    assert counts.dtype == np.float64
    assert counts.shape[:1] == (len(examples),)
    scores = task.score(predictions, examples)
    sums = np.stack([counts.sum(axis=0), counts[::2].sum(axis=0), np.zeros(counts.shape[1])])
    for metric in task.metrics:
        whole, half, nothing = task.from_counts(metric, sums)
        assert abs(whole - scores[metric]) <= 1e-12, metric
        assert abs(half - task.score(predictions[::2], examples[::2])[metric]) <= 1e-12, metric
        assert nothing == 0


def _batches_change_nothing(model: TaskModel, data: Any, tolerance: float) -> None:
    alone = model.predict(data, max_tokens=1)
    for max_tokens in (50, 10_000):
        for one, other in zip(alone, model.predict(data, max_tokens=max_tokens), strict=True):
            assert_close(one, other, tolerance=tolerance)


def _parts_make_up_the_whole(model: TaskModel, data: Any) -> None:
    """Several processes share a batch by the weight of its loss."""
    model.eval()
    whole, *parts = (data.batch(range(start, stop)) for start, stop in ((0, 8), (0, 3), (3, 8)))
    summed = sum(model.loss(part).item() * model.loss_weight(part) for part in parts)
    assert abs(summed / model.loss_weight(whole) - model.loss(whole).item()) < 1e-5


def assert_close(one: Any, other: Any, *, tolerance: float = 1e-5) -> None:
    """Compare two JSON values, numbers within the tolerance and everything else exactly."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_close(one[key], other[key], tolerance=tolerance)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_close(mine, theirs, tolerance=tolerance)
    elif isinstance(one, float):
        assert abs(one - other) <= tolerance
    else:
        assert one == other


def _learns_one_batch(model: TaskModel, data: Any) -> None:
    torch.manual_seed(0)
    batch = data.batch(range(min(16, len(data))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model.train()
    losses = []
    for _ in range(60):
        loss = model.loss(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def objective_contract(model: PretrainingModel, examples: Sequence[PretrainingExample]) -> None:
    """Run the contract of a pre-training objective on a model that has it alone, in eval mode, and some examples."""
    (objective,) = model.objectives
    assert objective.summary
    assert objective.source
    batch = model.make_batch(examples, seed=1)
    terms = model.terms(batch)
    assert objective.name in terms
    assert terms[objective.name].weight > 0
    for name, term in terms.items():
        assert term.total.shape == (), name
        assert term.total.dtype == torch.float32, name
        assert torch.isfinite(term.mean), name
        fraction = name.endswith(("accuracy", "auc", "fraction"))
        assert not fraction or (0 <= term.mean <= 1 and term.weight == 0), name
    assert isinstance(model.flops(batch), int)

    _special_tokens_stay(model, examples)
    _chance_is_the_examples_own(model, examples)

    model.zero_grad()
    loss_of(terms).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    assert set(model.layer_depths()) == {name for name, _ in model.named_parameters()}


def _special_tokens_stay(model: PretrainingModel, examples: Sequence[PretrainingExample]) -> None:
    seen = []
    for module in model.modules():
        if isinstance(module, Encoder):
            module.register_forward_pre_hook(lambda _, given: seen.append(given[0].input_ids))
    batch = model.make_batch(examples, seed=1)
    model.terms(batch)
    assert seen
    special = torch.isin(batch.clean.input_ids, torch.tensor([2, 3]))
    assert special.sum() >= 2 * len(examples)
    for ids in seen:
        assert torch.equal(ids[special], batch.clean.input_ids[special])


def _chance_is_the_examples_own(model: PretrainingModel, examples: Sequence[PretrainingExample]) -> None:
    """Parts of a batch, in any order, add up to the whole; the same seed gives the same and another one does not."""
    with torch.no_grad():
        whole = model.terms(model.make_batch(examples, seed=1))
        same = model.terms(model.make_batch(examples, seed=1))
        other = model.terms(model.make_batch(examples, seed=2))
        shared_out = [examples[::-1][:2], examples[::-1][2:]]
        parts = [model.terms(model.make_batch(part, seed=1)) for part in shared_out]
    for name, term in whole.items():
        assert torch.equal(term.total, same[name].total), name
        assert abs(float(sum(part[name].total for part in parts)) - float(term.total)) < 1e-3, name
        assert abs(float(sum(part[name].count for part in parts)) - float(term.count)) < 1e-3, name
    if model.objectives[0].pairs is None:
        assert not torch.equal(whole[model.objectives[0].name].total, other[model.objectives[0].name].total)
