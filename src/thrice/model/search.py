"""The best continuation by beam search, several sources voting on each token, perhaps held to what they say.

Letters: Q questions, C sources, W hypotheses of a question, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Writer(Protocol):
    """What writes: `Continuation`, or anything that gives the same numbers."""

    logits: Tensor
    """(C, 1, V), of the first token."""

    def advance(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Write a token in every hypothesis and give the next logits; see `Continuation.advance`."""
        ...

    def keep(self, chosen: Tensor) -> None:
        """Forget all sources but these; see `Continuation.keep`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written for one question."""

    tokens: tuple[int, ...]
    """Without the end symbol; () where there is no answer."""
    log_score: float
    """Sum over the tokens and the end symbol of the logarithm of probability or vote, in nats."""
    place: tuple[int, int] | None = None
    """The source, by its number, and the first token there, where the tokens had to be a piece of one."""

    @property
    def score(self) -> float:
        """Geometric mean over the tokens and the end symbol, 0 to 1."""
        return float(np.exp(self.log_score / (len(self.tokens) + 1)))


@torch.no_grad()
def write(
    writer: Writer,
    owner: Sequence[int] | np.ndarray,
    *,
    width: int,
    end: int,
    longest: int,
    pieces: Sequence[np.ndarray] | None = None,
    never: Sequence[int] = (),
    answer_all: bool = False,
) -> list[Written]:
    """Give the best continuation of every question.

    writer: over C sources. owner: (C,) the question of each source, 0 to Q - 1, not falling.
    width: hypotheses kept; 1 is greedy. end: the end symbol. longest: tokens of a continuation at most, the end symbol
    included, which is all that may stand in the last place.
    pieces: (C,) arrays of ids of which a continuation must be a piece, in one of its question's sources; None leaves
    it free. never: tokens that a free continuation may not hold. answer_all: every question has an answer.

    A source whose likeliest first token is the end symbol has nothing to say and is dropped; where all are, the answer
    is empty, and nowhere else; with `answer_all` the one whose end symbol is least likely speaks then. The others vote
    on each token with sum(p^2) / (sum(p) + 1) over their probabilities p, which are not scaled up to what is allowed;
    where one is left its p counts as it is.
    Source: Su's reading comprehension example in bert4keras. There one source too is given p^2 / (p + 1), and the end
    symbol may come first after all.
    """
    owners = np.asarray(owner, dtype=np.int64)
    logits = writer.logits
    speaks = (logits[:, 0].argmax(-1) != end).cpu().numpy()
    filled = np.array([pieces is None or len(pieces[i]) > 0 for i in range(len(owners))])
    speaks &= filled
    if answer_all:
        silence = torch.log_softmax(logits[:, 0].float(), -1)[:, end].cpu().numpy()
        for question in np.setdiff1d(owners[filled], owners[speaks]):
            own = np.flatnonzero((owners == question) & filled)
            speaks[own[silence[own].argmin()]] = True
    found: dict[int, Written] = {}
    for question in np.setdiff1d(owners, owners[speaks]):
        silent = torch.log_softmax(logits[torch.from_numpy(owners == question), 0].float(), -1)[:, end]
        found[int(question)] = Written(tokens=(), log_score=float(silent.exp().mean().log()))
    sources = np.flatnonzero(speaks)
    if len(sources) == 0:
        return [found[question] for question in range(len(found))]
    beam = _Beam(writer, sources, owners[sources], width=width, end=end, pieces=pieces, never=never)
    if len(sources) < len(owners):
        chosen = torch.from_numpy(sources).to(logits.device)
        writer.keep(chosen)
        logits = logits[chosen]
    for step in range(longest):
        beam.choose(logits, last=step + 1 == longest)
        beam.collect(found)
        if not beam.questions:
            break
        logits = beam.advance()
    return [found[question] for question in range(len(found))]


class _Beam:
    """The W best hypotheses of every question that is not answered yet, best first."""

    def __init__(
        self,
        writer: Writer,
        sources: np.ndarray,
        owner: np.ndarray,
        *,
        width: int,
        end: int,
        pieces: Sequence[np.ndarray] | None,
        never: Sequence[int],
    ) -> None:
        self.writer, self.width, self.end = writer, width, end
        words = torch.arange(writer.logits.shape[-1], device=writer.logits.device)
        self.free = words[~torch.isin(words, words.new_tensor([end, *never]))]
        self.questions: list[int] = [int(q) for q in dict.fromkeys(owner.tolist())]
        self.rows = np.searchsorted(self.questions, owner)
        device = writer.logits.device
        self.scores = torch.zeros(len(self.questions), 1, dtype=torch.float64, device=device)
        self.tokens = torch.zeros(len(self.questions), 1, 0, dtype=torch.long, device=device)
        self.ended = torch.zeros(len(self.questions), 1, dtype=torch.bool, device=device)
        self.parents = torch.zeros(len(self.questions), 1, dtype=torch.long, device=device)
        self.grams: list[list[_Piece]] | None = None
        if pieces is not None:
            texts = [[(int(s), pieces[s]) for s in sources[self.rows == q]] for q in range(len(self.questions))]
            self.grams = [[_Piece.anywhere(text)] for text in texts]

    def choose(self, logits: Tensor, *, last: bool) -> None:
        """Take the W best of all hypotheses with one more token; last: it has to be the end symbol."""
        votes = self._votes(logits)
        size = votes.shape[-1]
        allowed = torch.full_like(votes, -torch.inf)
        allowed[..., self.end] = 0 if last or self.tokens.shape[-1] else -torch.inf
        if not last and self.grams is None:
            allowed[..., self.free] = 0
        elif not last and self.grams is not None:
            for q, hypotheses in enumerate(self.grams):
                for w, piece in enumerate(hypotheses):
                    allowed[q, w, torch.from_numpy(piece.next_tokens()).to(allowed.device)] = 0
        # An ended hypothesis goes on as itself.
        votes = (votes + allowed).masked_fill(self.ended.unsqueeze(-1), -torch.inf)
        votes[..., self.end].masked_fill_(self.ended, 0.0)
        totals = (self.scores.unsqueeze(-1) + votes).flatten(1)
        self.scores, places = totals.topk(min(self.width, totals.shape[1]))
        self.parents, chosen = places // size, places % size
        self.ended = self.ended.gather(1, self.parents) | (chosen == self.end)
        before = self.tokens.gather(1, self.parents.unsqueeze(-1).expand(-1, -1, self.tokens.shape[-1]))
        self.tokens = torch.cat([before, chosen.unsqueeze(-1)], -1)
        if self.grams is not None:
            pairs = zip(self.parents.tolist(), chosen.tolist(), strict=True)
            self.grams = [
                [self.grams[q][p].followed_by(c, end=self.end) for p, c in zip(*both, strict=True)]
                for q, both in enumerate(pairs)
            ]

    def _votes(self, logits: Tensor) -> Tensor:
        """Give (Q, W, V) float64 logarithms of probability or vote."""
        if len(self.rows) == len(self.questions):
            return torch.log_softmax(logits.float(), -1).double()
        p = torch.softmax(logits.float(), -1).double()
        rows = torch.from_numpy(self.rows).to(p.device)
        empty = p.new_zeros(len(self.questions), *p.shape[1:])
        sums, squares = empty.index_add(0, rows, p), empty.index_add(0, rows, p.square())
        alone = (torch.bincount(rows) == 1).view(-1, 1, 1)
        return torch.where(alone, sums, squares / (sums + 1)).log()

    def collect(self, found: dict[int, Written]) -> None:
        """Move the questions whose best hypothesis has ended to `found`: scores only fall, so none overtakes it."""
        done = self.ended[:, 0].cpu().numpy()
        for q in np.flatnonzero(done):
            tokens = self.tokens[q, 0].tolist()
            tokens = tokens[: tokens.index(self.end)]
            place = self.grams[q][0].place(len(tokens)) if self.grams is not None and tokens else None
            score = float(self.scores[q, 0])
            found[self.questions[q]] = Written(tokens=tuple(tokens), log_score=score, place=place)
        if not done.any():
            return
        left = np.flatnonzero(~done)
        staying = np.flatnonzero(~done[self.rows])
        self.questions = [self.questions[q] for q in left]
        if not self.questions:
            return
        chosen = torch.from_numpy(left).to(self.scores.device)
        self.rows = np.searchsorted(left, self.rows[staying])
        self.writer.keep(torch.from_numpy(staying).to(self.scores.device))
        self.scores, self.tokens, self.ended = self.scores[chosen], self.tokens[chosen], self.ended[chosen]
        self.parents = self.parents[chosen]
        if self.grams is not None:
            self.grams = [self.grams[q] for q in left]

    def advance(self) -> Tensor:
        rows = torch.from_numpy(self.rows).to(self.scores.device)
        return self.writer.advance(self.tokens[rows, :, -1], self.parents[rows])


@dataclass(frozen=True)
class _Piece:
    """The places of a question's sources where what was written so far ends."""

    text: np.ndarray
    """Ids of the sources, one after the other, -1 behind each."""
    borders: tuple[tuple[int, int], ...]
    """(first index in `text`, number) of each source."""
    ends: np.ndarray
    """Indices into `text` of what follows."""

    @classmethod
    def anywhere(cls, sources: Sequence[tuple[int, np.ndarray]]) -> _Piece:
        parts, borders, size = [], [], 0
        for number, ids in sources:
            borders.append((size, number))
            parts += [np.asarray(ids, dtype=np.int64), np.array([-1])]
            size += len(ids) + 1
        return cls(np.concatenate(parts), tuple(borders), np.arange(size))

    def next_tokens(self) -> np.ndarray:
        """Give the ids with which it may go on."""
        found = np.unique(self.text[self.ends])
        return found[found >= 0]

    def followed_by(self, token: int, *, end: int) -> _Piece:
        """Give the places after one more token; the end symbol leaves them as they are."""
        if token == end:
            return self
        return _Piece(self.text, self.borders, self.ends[self.text[self.ends] == token] + 1)

    def place(self, length: int) -> tuple[int, int]:
        """Give (source, first token) of the first place where `length` tokens end."""
        start = int(self.ends[0]) - length
        first, number = max(border for border in self.borders if border[0] <= start)
        return number, start - first
