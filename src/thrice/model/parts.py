"""Linear maps and tables whose weights are drawn by `init_weights`, or read from a checkpoint, and by nobody before."""

from __future__ import annotations

from torch import nn


class Linear(nn.Linear):
    """A linear map that leaves its memory as it is when built: torch's own draw costs seconds at base size."""

    def reset_parameters(self) -> None:
        """Do nothing."""


class Embedding(nn.Embedding):
    """A table that leaves its memory as it is when built."""

    def reset_parameters(self) -> None:
        """Do nothing."""
