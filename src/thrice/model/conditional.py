"""Objects under the condition of a subject: the head of relation triples in the first essay.

Start and end of a subject are two sigmoids, squared. The subject's states condition a LayerNorm, and on that each
predicate has start and end of its objects as two sigmoids, to the fourth power: a power puts the many negatives below
the threshold from the beginning (Su 2019, bert4keras `task_relation_extraction.py`). B sentences, S tokens of the
longest, H hidden, P predicates, K subjects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from thrice.model.encoder import init_weights
from thrice.model.parts import Linear
from thrice.model.pointer import MINUS_INFINITY, Linked, Rows, no_links

START, END = 0.6, 0.5
"""Thresholds of a start and of an end, after the power."""
MOST_ROWS = 65_536
"""Tokens, over all subjects, whose objects are sought at once."""


class ConditionalNorm(nn.Module):
    """LayerNorm whose gain and offset depend on a condition: (g + Ac)(x - mean) / std + b + Bc, A and B 0 at first."""

    def __init__(self, hidden_size: int, condition_size: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.gain = Linear(condition_size, hidden_size, bias=False)
        self.offset = Linear(condition_size, hidden_size, bias=False)

    def forward(self, rows: Tensor, condition: Tensor) -> Tensor:
        """rows: (K, S, H). condition: (K, C). Returns (K, S, H)."""
        plain = F.layer_norm(rows, rows.shape[-1:], eps=self.eps)
        gain, offset = self.weight + self.gain(condition), self.bias + self.offset(condition)
        return plain * gain.unsqueeze(1) + offset.unsqueeze(1)


@dataclass(frozen=True)
class Subjects:
    """K subjects and, where they are drawn to learn from, their objects."""

    places: np.ndarray
    """(K, 3) int64: sentence, first and last token."""
    objects: np.ndarray
    """(N, 4) int64: subject, token, predicate, and 0 where the token begins an object or 1 where it ends one."""


def draw_subjects(gold: Sequence[np.ndarray], draws: Sequence[Sequence[float]]) -> Subjects:
    """Give one subject of every sentence that has triples: a gold start and a gold end not before it, drawn apart.

    Such a pair need not be a gold subject, and then has no objects: so the head learns to tell.
    gold: per sentence (N, 5), see `Linked` without its sentence. draws: per sentence two numbers in [0, 1).
    """
    places: list[tuple[int, int, int]] = []
    objects: list[tuple[int, int, int, int]] = []
    for owner, (triples, (one, other)) in enumerate(zip(gold, draws, strict=True)):
        if len(triples):
            spans = np.unique(triples[:, :2], axis=0)  # a subject of many triples is not drawn more often
            first = spans[int(one * len(spans)), 0]
            later = spans[spans[:, 1] >= first, 1]
            last = later[int(other * len(later))]
            for _, _, predicate, start, end in triples[(triples[:, 0] == first) & (triples[:, 1] == last)]:
                objects += [(len(places), start, predicate, 0), (len(places), end, predicate, 1)]
            places.append((owner, first, last))
    return Subjects(
        np.array(places, dtype=np.int64).reshape(-1, 3),
        np.unique(np.array(objects, dtype=np.int64).reshape(-1, 4), axis=0),
    )


class ConditionalHead(nn.Module):
    """Subjects from an encoder's states; objects from what the states were before its last LayerNorm."""

    def __init__(self, hidden_size: int, predicates: int, *, eps: float) -> None:
        super().__init__()
        self.predicates = predicates
        self.subject = Linear(hidden_size, 2)
        self.norm = ConditionalNorm(hidden_size, 2 * hidden_size, eps=eps)
        self.object = Linear(hidden_size, 2 * predicates)

    @torch.no_grad()
    def start(self, generator: torch.Generator, *, std: float) -> None:
        """Draw the weights with this standard deviation; the norm begins without a condition."""
        init_weights(self, std=std, generator=generator)
        self.norm.gain.weight.zero_()
        self.norm.offset.weight.zero_()

    def subject_logits(self, states: Tensor, rows: Rows) -> Tensor:
        """states: (T, H) packed. Returns (B, S, 2): start and end, minus infinity where there is no token."""
        logits = self.subject(states).float()[rows.index]
        return logits.masked_fill(~rows.real.unsqueeze(2), MINUS_INFINITY)

    def object_logits(self, before: Tensor, rows: Rows, places: Tensor) -> Tensor:
        """before: (T, H), before the last norm. places: (K, 3), see `Subjects`. Returns (K, S, P, 2), as above."""
        owner, first, last = places.T
        index = rows.index[owner]
        ends = torch.stack([first, last], 1)
        condition = before[index.gather(1, ends)].flatten(1)
        logits = self.object(self.norm(before[index], condition)).float()
        logits = logits.masked_fill(~rows.real[owner].unsqueeze(2), MINUS_INFINITY)
        return logits.unflatten(2, (self.predicates, 2))

    def loss(
        self, states: Tensor, before: Tensor, rows: Rows, gold: Sequence[np.ndarray], subjects: Subjects
    ) -> Tensor:
        """Give the loss of the subjects plus that of the objects summed over predicates, in nats.

        Both are means over start and end and over all tokens. Sentences without triples, which the essay leaves out,
        have subjects to learn, none. gold: see `draw_subjects`, which gives the subjects.
        """
        device = states.device
        marks = [(b, token, side) for b, own in enumerate(gold) for row in own for side, token in enumerate(row[:2])]
        unique = np.unique(np.array(marks, dtype=np.int64).reshape(-1, 3), axis=0)
        loss = powered_loss(self.subject_logits(states, rows), _indices(unique, device), power=2)
        if len(subjects.places):
            logits = self.object_logits(before, rows, torch.from_numpy(subjects.places).to(device))
            loss = loss + powered_loss(logits, _indices(subjects.objects, device), power=4)
        return loss / (2 * max(1, sum(rows.lengths)))

    @torch.no_grad()
    def link(self, states: Tensor, before: Tensor, rows: Rows) -> Linked:
        """Give the triples of all sentences: from each start to the first end not before it; see `first_ends`.

        A score is the least of the four probabilities.
        """
        sides = self.subject_logits(states, rows).sigmoid() ** 2
        subjects = first_ends(sides)
        places = torch.cat([subjects.places, subjects.ends.unsqueeze(1)], 1)
        found = [no_links()]
        step = max(1, MOST_ROWS // sides.shape[1])
        for start in range(0, len(places), step):
            part = places[start : start + step]
            powers = self.object_logits(before, rows, part).sigmoid() ** 4
            objects = first_ends(powers.transpose(1, 2))
            subject, predicate, first = objects.places.T
            columns = (*part[subject].T, predicate, first, objects.ends)
            scores = torch.minimum(subjects.scores[start + subject], objects.scores)
            found.append(Linked(torch.stack(columns, 1).cpu().numpy(), scores.cpu().numpy()))
        return Linked(*(np.concatenate([getattr(f, name) for f in found]) for name in ("places", "scores")))


@dataclass(frozen=True)
class Spans:
    """M runs of tokens from a start to an end."""

    places: Tensor
    """(M, d) int64: indices of the start."""
    ends: Tensor
    """(M,) int64: the last token."""
    scores: Tensor
    """(M,): the smaller of the two probabilities."""


def first_ends(sides: Tensor) -> Spans:
    """Give, for each start above START, the first end above END that does not stand before it.

    sides: (..., S, 2), probabilities of start and end. A start without an end is left out.
    """
    starts, ends = sides[..., 0] > START, sides[..., 1] > END
    size = ends.shape[-1]
    here = torch.arange(size, device=ends.device).expand(ends.shape).masked_fill(~ends, size)
    nearest = here.flip(-1).cummin(-1).values.flip(-1)
    places = (starts & (nearest < size)).nonzero()
    index = tuple(places.T)
    last = nearest[index]
    return Spans(places, last, torch.minimum(sides[..., 0][index], sides[..., 1][(*index[:-1], last)]))


def powered_loss(logits: Tensor, gold: tuple[Tensor, ...], *, power: int) -> Tensor:
    """Give the binary cross-entropy of sigmoid(x) ** power, summed over all logits, in nats.

    gold: indices of the ones, one tensor per dimension, none twice; all others are zeros, and minus infinity is a zero
    that costs nothing. power: 2 or 4. With q the sigmoid, 1 - q ** 4 is (1 - q)(1 + q)(1 + q ** 2), so that no
    logarithm is of a rounded 0.
    """
    q = logits.sigmoid()
    zero = F.softplus(logits) - torch.log1p(q)
    if power == 4:
        zero = zero - torch.log1p(q * q)
    one = power * F.softplus(-logits[gold])
    return zero.sum() + (one - zero[gold]).sum()


def _indices(rows: np.ndarray, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(rows).to(device).T)
