"""The loss as named terms, sums and what divides them, so that the parts of a batch on several processes add up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
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


def together(ranks: Ranks, terms: Terms, flops: float, *, counts: bool) -> tuple[dict[str, tuple[float, float]], float]:
    """Give name -> (total, count) of every term, and the operations of the step, added up over all processes.

    counts: whether this process has a part of the batch.
    """
    numbers: list[float] = []
    if terms:
        device = next(iter(terms.values()))[0].device
        flat = [part for total, count, _ in terms.values() for part in (total, count)]
        # One wait for the device, not one per number.
        numbers = torch.stack([torch.as_tensor(part, dtype=torch.float32, device=device) for part in flat]).tolist()
    summed = ranks.sum([x if counts else 0.0 for x in (*numbers, flops)])
    pairs = zip(summed[:-1:2], summed[1:-1:2], strict=True)
    return dict(zip(terms, pairs, strict=True)), summed[-1]


def loss_of(
    terms: Terms,
    sums: Mapping[str, tuple[float, float]],
    ranks: Ranks,
    *,
    counts: bool,
) -> tuple[Tensor, float]:
    """Give the loss to call backward on and its value over all processes.

    Gradients are averaged over the processes afterwards: a process's part is divided by the count of all and taken as
    often as there are processes, so that the average is the gradient of the whole.
    """
    parts, value = [], 0.0
    for name, (total, _, weight) in terms.items():
        if not weight:
            continue
        whole, count = sums[name]
        parts.append(total * (weight * ranks.size * counts / count if count else 0.0))
        value += weight * whole / count if count else 0.0
    if not parts:
        raise TrainingError(f"the model gave no term to learn from, only {', '.join(terms) or 'none at all'}")
    return torch.stack(parts).sum(), value
