"""The loss as named terms, sums and what divides them, so that the parts of a batch on several processes add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor, nn

from thrice.errors import TrainingError
from thrice.training.distributed import Ranks
from thrice.training.step import precision

Terms = Mapping[str, tuple[Tensor, Any, float]]
"""Name -> total (a tensor, with a gradient where it counts in the loss), what the mean divides by, and weight."""


class ModelTerms(nn.Module):
    """The model's terms as a forward call: what Accelerate does to a model, it does to `forward`."""

    def __init__(self, model: nn.Module, *, mixed_precision: str | None) -> None:
        super().__init__()
        self.model: Any = model
        self.mixed_precision = mixed_precision

    def forward(self, batch: Any) -> Terms:
        """Give name -> (total, count, weight), by name."""
        with precision(self.model, self.mixed_precision):
            terms = self.model.terms(batch)
        # A term that is only logged has no gradient: processes would wait for it in vain.
        return {
            name: (terms[name].total if terms[name].weight else terms[name].total.detach(), terms[name].count, w)
            for name, w in sorted((name, term.weight) for name, term in terms.items())
        }


def together(ranks: Ranks, terms: Terms, flops: float, *, shares: bool) -> tuple[dict[str, tuple[float, float]], float]:
    """Give name -> (total, count) of every term, and the operations of the step, added up over all processes.

    shares: whether this process has a part of the batch.
    """
    numbers: list[float] = []
    if terms:
        device = next(iter(terms.values()))[0].device
        flat = [part for total, count, _ in terms.values() for part in (total, count)]
        # One wait for the device, not one per number.
        numbers = torch.stack([torch.as_tensor(part, dtype=torch.float32, device=device) for part in flat]).tolist()
    summed = ranks.sum([x if shares else 0.0 for x in (*numbers, flops)])
    pairs = zip(summed[:-1:2], summed[1:-1:2], strict=True)
    return dict(zip(terms, pairs, strict=True)), summed[-1]


def loss_of(terms: Terms, counts: Mapping[str, float], ranks: Ranks, *, shares: bool) -> Tensor:
    """Give the loss to call backward on; counts: of every term, of the whole batch over all processes.

    Gradients are averaged over the processes afterwards: a process's part is divided by the count of all and taken as
    often as there are processes, so that the average is the gradient of the whole. shares: whether this process has a
    part of the batch.
    """
    parts = [
        total * (weight * ranks.size * shares / counts[name] if counts[name] else 0.0)
        for name, (total, _, weight) in terms.items()
        if weight
    ]
    if not parts:
        raise TrainingError(f"the model gave no term to learn from, only {', '.join(terms) or 'none at all'}")
    return torch.stack(parts).sum()


def value_of(terms: Terms, sums: Mapping[str, tuple[float, float]]) -> float:
    """Give the value of the loss over all processes; sums: of `together`."""
    return sum(
        weight * sums[name][0] / sums[name][1] for name, (_, _, weight) in terms.items() if weight and sums[name][1]
    )


def backward_in_parts(
    forward: nn.Module, model: Any, batches: Sequence[Any], *, accelerator: Accelerator, ranks: Ranks, shares: bool
) -> Terms:
    """Add up the gradients of a batch that is computed part by part, and give the terms of all parts together.

    forward: `ModelTerms` of the model as Accelerate prepared it. batches: the parts, on the CPU, of which the device
    holds one at a time. The loss is that of the whole batch: its counts are known before the first pass. The processes
    exchange gradients in the last part, so that each may have another number of them.
    """
    own: dict[str, float] = {}
    for batch in batches:
        for name, count in model.counts(batch).items():
            own[name] = own.get(name, 0.0) + count
    counts = dict(zip(own, ranks.sum([count if shares else 0.0 for count in own.values()]), strict=True))
    added: dict[str, tuple[Tensor, Any, float]] = {}
    for number, batch in enumerate(batches, start=1):
        with nullcontext() if number == len(batches) else accelerator.no_sync(forward):
            terms = forward(send_to_device(batch, accelerator.device))
            accelerator.backward(loss_of(terms, counts, ranks, shares=shares))
        for name, (total, count, weight) in terms.items():
            before = added.get(name, (0.0, 0.0, weight))
            added[name] = (before[0] + total.detach(), before[1] + count, weight)
    return added
