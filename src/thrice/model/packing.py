"""Packed batches: the real tokens of all sequences in one row, longest first; padding exists only at the edges.

Letters: B sequences, T real tokens of the batch, S width of a padded batch, H hidden.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from thrice.errors import DataError


@dataclass(frozen=True)
class Run:
    """Neighbouring sequences of one length inside a packed batch."""

    start: int
    """Packed index of the run's first token."""
    count: int
    """Sequences in the run."""
    length: int
    """Tokens of each of them."""


@dataclass(frozen=True)
class PackedBatch:
    """B sequences without padding, longest first, as (T,) tensors."""

    input_ids: Tensor
    """(T,) int64."""
    token_type_ids: Tensor
    """(T,) int64: segment of each token."""
    position_ids: Tensor
    """(T,) int64, counted from 0; the encoder adds its family's offset."""
    lengths: tuple[int, ...]
    """Tokens of each sequence in packed order, never increasing; a tuple, so that no kernel waits for a device."""
    starts: Tensor
    """(B,) int64: packed index of the first token of the caller's i-th sequence, so hidden[starts] is (B, H)."""

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Runs of equal length, in packed order."""
        runs, start = [], 0
        for length, same in itertools.groupby(self.lengths):
            count = len(list(same))
            runs.append(Run(start, count, length))
            start += count * length
        return tuple(runs)

    @cached_property
    def cumulative_lengths(self) -> Tensor:
        """(B + 1,) int32 on the batch's device: borders of the sequences, as varlen kernels want them."""
        borders = torch.tensor((0, *itertools.accumulate(self.lengths)), dtype=torch.int32)
        return borders.to(self.input_ids.device)

    @property
    def num_tokens(self) -> int:
        """T: real tokens."""
        return len(self.input_ids)

    def to(self, device: torch.device | str) -> PackedBatch:
        """Give the same batch on a device."""
        return PackedBatch(
            self.input_ids.to(device),
            self.token_type_ids.to(device),
            self.position_ids.to(device),
            self.lengths,
            self.starts.to(device),
        )


def pack(
    sequences: Sequence[Sequence[int] | np.ndarray],
    token_type_ids: Sequence[Sequence[int] | np.ndarray] | None = None,
) -> PackedBatch:
    """Pack token sequences, longest first (a stable sort).

    sequences: B lists or arrays of token ids, none empty. token_type_ids: the same shape, all 0 where absent.
    Raises DataError for an empty sequence or an empty batch.
    """
    lengths = np.array([len(s) for s in sequences], dtype=np.int64)
    if len(lengths) == 0 or lengths.min() == 0:
        raise DataError(f"a packed batch needs sequences of at least one token, got lengths {lengths.tolist()[:20]}")
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    first = np.cumsum(ordered) - ordered
    starts = np.empty_like(first)
    starts[order] = first
    ids = np.concatenate([np.asarray(sequences[i], dtype=np.int64) for i in order])
    if token_type_ids is None:
        types = np.zeros_like(ids)
    else:
        types = np.concatenate([np.asarray(token_type_ids[i], dtype=np.int64) for i in order])
    positions = np.arange(len(ids)) - np.repeat(first, ordered)
    return PackedBatch(
        torch.from_numpy(ids),
        torch.from_numpy(types),
        torch.from_numpy(positions),
        tuple(ordered.tolist()),
        torch.from_numpy(starts),
    )


def parts_of(batch: PackedBatch, max_tokens: int) -> tuple[list[PackedBatch], Tensor]:
    """Give a batch as batches of at most max_tokens tokens, and (B,) where the caller's i-th sequence stands in them.

    The parts follow each other in packed order, and so do their own sequences; a sequence longer than max_tokens is a
    part of its own.
    """
    borders = [0, *itertools.accumulate(batch.lengths)]
    ranks = torch.searchsorted(batch.cumulative_lengths[:-1].to(batch.starts), batch.starts)
    parts = []
    first = 0
    while first < len(batch.lengths):
        last = max(first + 1, bisect.bisect_right(borders, borders[first] + max_tokens) - 1)
        inside = slice(borders[first], borders[last])
        starts = torch.tensor(borders[first:last], device=batch.starts.device) - borders[first]
        ids, types, positions = batch.input_ids[inside], batch.token_type_ids[inside], batch.position_ids[inside]
        parts.append(PackedBatch(ids, types, positions, batch.lengths[first:last], starts))
        first = last
    return parts, ranks


def from_padded(
    input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
) -> tuple[PackedBatch, Tensor]:
    """Pack a padded batch; gives the batch and the (T,) flat indices b * S + s that its tokens came from.

    input_ids, attention_mask, token_type_ids: (B, S). Position ids are the columns, as BERT counts them, so a batch
    padded on the left keeps the positions that stock code would use.
    Raises DataError where a row has no real token.
    """
    rows, columns = input_ids.shape
    real = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    lengths = real.sum(1).cpu()
    if rows == 0 or int(lengths.min()) == 0:
        raise DataError("attention_mask leaves a row without a real token")
    order = torch.argsort(lengths, descending=True, stable=True).to(input_ids.device)
    flat = torch.arange(rows * columns, device=input_ids.device).view(rows, columns)
    places = flat[order][real[order]]
    types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
    ordered = lengths[order.cpu()]
    starts = torch.empty_like(ordered)
    starts[order.cpu()] = torch.cumsum(ordered, 0) - ordered
    batch = PackedBatch(
        input_ids.flatten()[places],
        types.flatten()[places],
        places % columns,
        tuple(ordered.tolist()),
        starts.to(input_ids.device),
    )
    return batch, places


def to_padded(values: Tensor, places: Tensor, *, rows: int, columns: int) -> Tensor:
    """Spread packed values (T, ...) to (rows, columns, ...), zeros at padding; places as `from_padded` gives them."""
    padded = values.new_zeros((rows * columns, *values.shape[1:]))
    return padded.index_copy(0, places, values).view(rows, columns, *values.shape[1:])
