"""Packed batches: the real tokens of all sequences in one row, longest first; padding exists only at the edges.

Letters: B sequences, T real tokens of the batch, S width of a padded batch, H hidden.
"""

from __future__ import annotations

import bisect
import itertools
import math
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
    prefix: int | None = None
    """Tokens at the beginning of each that see one another and nothing behind; None where every token sees all."""


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
    prefix_lengths: tuple[int, ...] | None = None
    """In packed order: tokens of each sequence that see one another, while each later one sees those before it and
    itself (UniLM's mask for sequence to sequence; Dong et al. 2019, section 2.3). None: every token sees all."""

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Runs of equal length, and of equal prefix where some tokens do not see all, in packed order."""
        # Without a token behind it a prefix hides nothing.
        prefixes = self.prefix_lengths or self.lengths
        shapes = [(n, p if p < n else None) for n, p in zip(self.lengths, prefixes, strict=True)]
        runs, start = [], 0
        for (length, prefix), same in itertools.groupby(shapes):
            count = len(list(same))
            runs.append(Run(start, count, length, prefix))
            start += count * length
        return tuple(runs)

    @cached_property
    def hidden_keys(self) -> tuple[Tensor | None, ...]:
        """What is added to the scores of each run, (length, length) float32: -inf where a query does not see a key."""
        return tuple(_hidden_keys(run, self.input_ids.device) for run in self.runs)

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
            self.prefix_lengths,
        )


def _hidden_keys(run: Run, device: torch.device) -> Tensor | None:
    if run.prefix is None:
        return None
    places = torch.arange(run.length, device=device)
    hidden = (places >= run.prefix) & (places > places.unsqueeze(1))
    return torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -math.inf)


def pack(
    sequences: Sequence[Sequence[int] | np.ndarray],
    token_type_ids: Sequence[Sequence[int] | np.ndarray] | None = None,
    *,
    prefix_lengths: Sequence[int] | np.ndarray | None = None,
) -> PackedBatch:
    """Pack token sequences, longest first (a stable sort; of equal ones the longest prefix first).

    sequences: B lists or arrays of token ids, none empty. token_type_ids: the same shape, all 0 where absent.
    prefix_lengths: (B,) tokens at the beginning of each sequence that do not see those behind, at least 1; see
    `PackedBatch.prefix_lengths`.
    Raises DataError for an empty sequence or batch, and for a prefix that is empty or longer than its sequence.
    """
    lengths = np.array([len(s) for s in sequences], dtype=np.int64)
    if len(lengths) == 0 or lengths.min() == 0:
        raise DataError(f"a packed batch needs sequences of at least one token, got lengths {lengths.tolist()[:20]}")
    order = np.argsort(-lengths, kind="stable")
    prefixes = None
    if prefix_lengths is not None:
        given = np.asarray(prefix_lengths, dtype=np.int64)
        if given.shape != lengths.shape or bool(((given < 1) | (given > lengths)).any()):
            raise DataError(f"prefixes of {given.tolist()[:20]} tokens do not fit sequences of {lengths.tolist()[:20]}")
        order = np.lexsort((-given, -lengths))
        prefixes = tuple(given[order].tolist())
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
        prefixes,
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
        prefixes = None if batch.prefix_lengths is None else batch.prefix_lengths[first:last]
        parts.append(PackedBatch(ids, types, positions, batch.lengths[first:last], starts, prefixes))
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
