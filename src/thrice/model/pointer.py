"""Global pointers: a score for every pair of tokens and every kind, and a loss that never builds them all.

Su et al. 2022, "Global Pointer: Novel Efficient Span-based Approach for Named Entity Recognition" (arXiv 2208.03054),
in its efficient form: s_k(m, n) = q_m k_n / sqrt(d) + u_k(m) + v_k(n), one matrix for all kinds, and two numbers a
token for each. Letters: B sequences, S tokens of the longest, K kinds, G gold pairs of tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from thrice.model.parts import Linear

MINUS_INFINITY = float("-inf")
PRIOR = -7.0
"""Score of every pair before training: few pairs are gold, and a loss over S x S pairs need not learn that first."""


@dataclass(frozen=True)
class Rows:
    """Where in a packed batch the tokens of B sequences stand that can be pointed at."""

    index: Tensor
    """(B, S) int64: packed index; anything where there is no token."""
    real: Tensor
    """(B, S) bool: whether there is one."""
    lengths: tuple[int, ...]
    """Tokens of each sequence."""

    def to(self, device: torch.device | str) -> Rows:
        """Give the same rows on a device."""
        return Rows(self.index.to(device), self.real.to(device), self.lengths)


def rows_of(starts: Tensor, lengths: Sequence[int]) -> Rows:
    """Give the rows of sequences; starts: (B,) packed index of the first token, lengths: tokens of each."""
    longest = max(1, *lengths)
    place = torch.arange(longest, device=starts.device)
    real = place < torch.tensor(lengths, device=starts.device).unsqueeze(1)
    return Rows((starts.unsqueeze(1) + place).masked_fill(~real, 0), real, tuple(lengths))


@dataclass(frozen=True)
class GoldPairs:
    """Which pairs of tokens are of which kinds, without a table of all of them."""

    owner: Tensor
    """(G,) int64: sequence of each pair that is of one kind at least."""
    first: Tensor
    """(G,) int64: m, counted within the sequence."""
    second: Tensor
    """(G,) int64: n."""
    slot: Tensor
    """(G,) int64: number of the pair within its sequence."""
    pair: Tensor
    """(N,) int64: pair of each label."""
    kind: Tensor
    """(N,) int64: its kind."""
    slots: int
    """Most pairs of one sequence, at least 1."""

    def to(self, device: torch.device | str) -> GoldPairs:
        """Give the same pairs on a device."""
        return dataclasses.replace(self, **{name: getattr(self, name).to(device) for name in TENSORS})


TENSORS = ("owner", "first", "second", "slot", "pair", "kind")


def gold_pairs(labels: np.ndarray) -> GoldPairs:
    """Give the gold pairs of labels, (N, 4) int64: sequence, kind, m, n; the same label twice counts once."""
    labels = labels.reshape(-1, 4)
    if not len(labels):  # three sorts of nothing are a tenth of the time that one sentence takes to be answered
        nothing = torch.zeros(0, dtype=torch.long)
        return GoldPairs(**dict.fromkeys(TENSORS, nothing), slots=1)
    labels = np.unique(labels, axis=0)
    pairs, pair = np.unique(labels[:, [0, 2, 3]], axis=0, return_inverse=True)
    slot = np.arange(len(pairs)) - np.searchsorted(pairs[:, 0], pairs[:, 0])
    columns = (*pairs.T, slot, pair.reshape(-1), labels[:, 1])
    tensors = [torch.from_numpy(np.array(column, dtype=np.int64)) for column in columns]
    return GoldPairs(**dict(zip(TENSORS, tensors, strict=True)), slots=int(slot.max(initial=0)) + 1)


class PairScores:
    """Scores of all pairs of tokens in their short form.

    products: (B, S, S), minus infinity where there is no such pair. first: (B, K, S), what a token adds as the first of
    a pair, second: (B, K, S), as the second.
    """

    def __init__(self, products: Tensor, first: Tensor, second: Tensor) -> None:
        self.products = products
        self.first = first
        self.second = second

    @cached_property
    def dense(self) -> Tensor:
        """(B, K, S, S): every score."""
        return self.products.unsqueeze(1) + self.first.unsqueeze(3) + self.second.unsqueeze(2)

    def at(self, owner: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Give (G, K), the scores of some pairs, each index (G,)."""
        products = self.products[owner, first, second].unsqueeze(1)
        return products + self.first[owner, :, first] + self.second[owner, :, second]

    def loss(self, gold: GoldPairs) -> Tensor:
        """Give (B, K): log(1 + sum over gold of exp(-s)) + log(1 + sum over all others of exp(s)), in nats.

        Su et al. 2022, "ZLPR: A Novel Loss for Multi-label Classification" (arXiv 2208.02955): what is gold is pushed
        above 0, what is not below, and there is no threshold to choose.
        A pair that is gold for no kind is summed without its K scores: the sum over n of exp(q_m k_n) exp(v_k(n)) is a
        matrix product. Gold pairs are few; theirs are written out. Nothing is subtracted, and no digit is lost by it.
        """
        written = self.at(gold.owner, gold.first, gold.second)
        is_gold = torch.zeros(written.shape, dtype=torch.bool, device=written.device)
        is_gold[gold.pair, gold.kind] = True
        others = self._sums_over_second(gold)
        shape = (len(self.products), gold.slots, written.shape[1])
        place = (gold.owner, gold.slot)
        empty = written.new_full(shape, MINUS_INFINITY)
        right = empty.index_put(place, (-written).masked_fill(~is_gold, MINUS_INFINITY)).transpose(1, 2)
        wrong = empty.index_put(place, written.masked_fill(is_gold, MINUS_INFINITY)).transpose(1, 2)
        zero = written.new_zeros(shape[0], shape[2], 1)
        return torch.logsumexp(torch.cat([zero, right], 2), 2) + torch.logsumexp(torch.cat([zero, wrong, others], 2), 2)

    def _sums_over_second(self, gold: GoldPairs) -> Tensor:
        """Give (B, K, S): log of the sum over n of exp(s(m, n)), without the pairs that are gold for any kind."""
        place = (gold.owner, gold.first, gold.second)
        products = self.products.index_put(place, self.products.new_tensor(MINUS_INFINITY))
        highest = products.detach().amax(2)
        highest = highest.masked_fill(highest.isinf(), 0.0)
        top = self.second.detach().amax(2, keepdim=True)
        weights = (self.second - top).exp()
        sums = torch.matmul(weights, (products - highest.unsqueeze(2)).exp().transpose(1, 2))
        none = sums <= 0
        logs = sums.masked_fill(none, 1.0).log().masked_fill(none, MINUS_INFINITY)
        return logs + highest.unsqueeze(1) + top + self.first


class EfficientPointer(nn.Module):
    """Scores of pairs of tokens for some kinds.

    kinds: K. width: d, of a query. rotary: whether products depend on the distance of the two tokens (Su et al. 2021,
    RoFormer, arXiv 2104.09864). ordered: whether the second token of a pair cannot stand before the first.
    """

    def __init__(self, hidden_size: int, kinds: int, *, width: int = 64, rotary: bool, ordered: bool) -> None:
        super().__init__()
        self.rotary = rotary
        self.ordered = ordered
        self.project = Linear(hidden_size, 2 * width)
        self.bias = Linear(2 * width, 2 * kinds)

    @torch.no_grad()
    def start(self, generator: torch.Generator) -> None:
        """Draw the weights so that scores differ by a few from PRIOR.

        A product of two maps with an encoder's small weights would hardly differ from one pair to the next, and much of
        a short training would go by before it does.
        """
        for part in (self.project, self.bias):
            part.weight.normal_(0.0, part.in_features**-0.5, generator=generator)
        self.project.bias.zero_()
        self.bias.bias.fill_(PRIOR / 2)

    def forward(self, hidden: Tensor, rows: Rows) -> PairScores:
        """hidden: (T, H) packed. Gives the scores of all pairs of the rows' tokens, in float32."""
        features = self.project(hidden)
        biases = self.bias(features).float()[rows.index]
        query, key = features.float()[rows.index].chunk(2, dim=2)
        if self.rotary:
            query, key = rotated(query), rotated(key)
        possible = rows.real.unsqueeze(1) & rows.real.unsqueeze(2)
        if self.ordered:
            possible = possible.triu()
        products = torch.matmul(query, key.transpose(1, 2)) * query.shape[2] ** -0.5
        first, second = biases.transpose(1, 2).chunk(2, dim=1)
        return PairScores(products.masked_fill(~possible, MINUS_INFINITY), first, second)


def rotated(rows: Tensor) -> Tensor:
    """Turn each pair of neighbouring entries of (B, S, d) by its position times 10000^(-2i/d); d is even."""
    length, width = rows.shape[1:]
    rate = 10000.0 ** (-torch.arange(0, width, 2, device=rows.device, dtype=torch.float32) / width)
    angle = torch.arange(length, device=rows.device, dtype=torch.float32).unsqueeze(1) * rate
    sine, cosine = (values.repeat_interleave(2, dim=1) for values in (angle.sin(), angle.cos()))
    turned = torch.stack([-rows[..., 1::2], rows[..., ::2]], dim=3).flatten(2)
    return rows * cosine + turned * sine


class RelationPointers(nn.Module):
    """The three pointers of relation triples (Su 2022, GPLinker).

    entities: spans of subjects and of objects. heads: first tokens of a subject and of its object, for each predicate;
    tails: their last tokens. As in GPLinker, positions count for spans alone: how far apart subject and object stand
    says little.
    """

    def __init__(self, hidden_size: int, predicates: int) -> None:
        super().__init__()
        self.entities = EfficientPointer(hidden_size, 2, rotary=True, ordered=True)
        self.heads = EfficientPointer(hidden_size, predicates, rotary=False, ordered=False)
        self.tails = EfficientPointer(hidden_size, predicates, rotary=False, ordered=False)

    def start(self, generator: torch.Generator) -> None:
        """Draw the weights of all three."""
        for pointer in (self.entities, self.heads, self.tails):
            pointer.start(generator)

    def forward(self, hidden: Tensor, rows: Rows) -> tuple[PairScores, PairScores, PairScores]:
        """hidden: (T, H) packed. Gives scores of entities, heads and tails."""
        return self.entities(hidden, rows), self.heads(hidden, rows), self.tails(hidden, rows)


@dataclass(frozen=True)
class Linked:
    """N triples found in B sequences, on the CPU."""

    places: np.ndarray
    """(N, 6) int64: sequence, first and last token of the subject, predicate, first and last token of the object."""
    scores: np.ndarray
    """(N,) float32 between 0 and 1: how sure, the least sure part of the triple taken."""


def no_links() -> Linked:
    """Give no triple."""
    return Linked(np.zeros((0, 6), np.int64), np.zeros(0, np.float32))


MOST_SPANS = 64
"""Subjects, and objects, of one text that are looked at, the highest scores first; untrained scores may be anything."""


@torch.no_grad()
def link(entities: PairScores, heads: PairScores, tails: PairScores) -> Linked:
    """Give the triples whose two spans, head and tail all score above 0, of all sequences at once.

    A triple's score is the sigmoid of the least of its four.
    """
    size = entities.dense.shape[3]
    values, flat = entities.dense.flatten(2).topk(min(MOST_SPANS, size * size), dim=2)
    most = max(1, int((values > 0).sum(2).max()))
    values, flat = values[:, :, :most], flat[:, :, :most]
    said = values > 0
    owner, one, other = (said[:, 0].unsqueeze(2) & said[:, 1].unsqueeze(1)).nonzero(as_tuple=True)
    places, scores = [], []
    # Untrained scores may link everything with everything: a piece at a time.
    for start in range(0, len(owner), 65_536):
        b, i, j = (index[start : start + 65_536] for index in (owner, one, other))
        subject, object_ = flat[b, 0, i], flat[b, 1, j]
        head = heads.at(b, subject // size, object_ // size)
        both = torch.minimum(head, tails.at(b, subject % size, object_ % size))
        spans = torch.minimum(values[b, 0, i], values[b, 1, j])
        pair, predicate = (both > 0).nonzero(as_tuple=True)
        columns = (b, subject // size, subject % size, object_ // size, object_ % size)
        taken = [column[pair] for column in columns]
        places.append(torch.stack([*taken[:3], predicate, *taken[3:]], 1))
        scores.append(torch.minimum(both[pair, predicate], spans[pair]).sigmoid())
    if not places:
        return no_links()
    return Linked(torch.cat(places).cpu().numpy(), torch.cat(scores).float().cpu().numpy())


def pointer_loss(scores: Sequence[PairScores], gold: Sequence[GoldPairs]) -> Tensor:
    """Give the mean over sequences of the losses summed over pointers and kinds, in nats."""
    return torch.stack([part.loss(pairs).sum(1).mean() for part, pairs in zip(scores, gold, strict=True)]).sum()
