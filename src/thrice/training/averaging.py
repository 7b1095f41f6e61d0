"""An exponential moving average of the weights beside a run: smoother than the last step, and often better.

Early on an average with decay 0.999 would still be the first weights, and on small data it never becomes anything
else. So the decay of step t is at most (1 + t) / (10 + t), as in TensorFlow's ExponentialMovingAverage: 0.18 at the
first step, 0.9 at step 80, 0.99 at step 890, and 0.999 from step 8,990 on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


def decay_at(step: int, decay: float) -> float:
    """Give what is kept of the average at an optimiser step, counted from 1."""
    return min(decay, (1 + step) / (10 + step))


class Average:
    """The average of a model's trained parameters, which begins as what they are now.

    decay: what is kept of it at each step once it is warm, in (0, 1). Frozen parameters and buffers have no average.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay = decay
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.tensors: dict[str, Tensor] = {name: p.detach().clone() for name, p in self._trained.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the parameters as they are after this optimiser step, counted from 1."""
        take_in = get_ema_multi_avg_fn(decay_at(step, self.decay))
        take_in(list(self.tensors.values()), [p.detach() for p in self._trained.values()], step)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model hold the average for a while, then its own weights again, in the same memory."""
        own = {name: p.detach().clone() for name, p in self._trained.items()}
        self._fill(self.tensors)
        try:
            yield
        finally:
            self._fill(own)

    @torch.no_grad()
    def _fill(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self._trained.items():
            parameter.copy_(tensors[name])
