"""A name for weights: what a folder held when somebody read it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """Give the sha256 of names and bits of tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
