"""Masked language modelling on masks that a small network proposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from thrice.data.segments import PretrainingExample, generator_of
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.flops import head_flops, packed_flops
from thrice.model.packing import PackedBatch
from thrice.model.parts import Linear
from thrice.objectives.base import Objective, Outcome, Term, Vocabulary, corrupted, moved, predicted
from thrice.objectives.masking import hide, number_to_choose, packed_starts, share_problems
from thrice.objectives.subsets import NEVER, draw_subsets, log_probabilities, log_uniform, subset_table

if TYPE_CHECKING:
    from thrice.objectives.model import PretrainingModel

TOWER = "proposal"
HIDING, DRAWING = 4, 5
"""Purposes of the example's generators."""


@dataclass(frozen=True)
class Candidates:
    """A batch in which any ordinary token may be chosen; B sequences in packed order, n ordinary tokens of the longest.

    Every chance is drawn here already, so that what comes of it is a function of the weights alone.
    """

    hidden_ids: Tensor
    """(T,) int64: what stands in the place of each token if it is chosen."""
    places: Tensor
    """(B, n) int64: packed indices of the ordinary tokens, 0 at padding."""
    real: Tensor
    """(B, n) bool: False at padding."""
    uniforms: np.ndarray
    """(B, n) float64 in [0, 1): what decides the draw; stays on the CPU."""
    counts: tuple[int, ...]
    """(B,) ordinary tokens of each sequence."""
    sizes: tuple[int, ...]
    """(B,) tokens to choose, k."""
    uniform: bool = False
    """Whether all sets are equally likely, whatever the proposal says: to compare it with."""

    @property
    def count(self) -> int:
        """N: tokens that will be chosen."""
        return sum(self.sizes)

    def to(self, device: torch.device | str) -> Candidates:
        """Give the same batch on a device."""
        return moved(self, device)


@dataclass(frozen=True)
class Chosen:
    """Sets of positions drawn for a batch; N positions, grouped by sequence in packed order."""

    positions: Tensor
    """(N,) int64: packed indices."""
    owner: Tensor
    """(N,) int64: number of the sequence in packed order."""
    log_q: Tensor
    """(B,) float64 on the CPU: log q(M), with its gradient."""
    weights: Tensor
    """(B,) float32: p(M) / q(M), without a gradient."""


class Proposal(nn.Module):
    """Gives every token of a clean text the logarithm of a weight, between -bound and bound.

    The last layer starts at zero, so that a run begins with all sets equally likely.
    """

    def __init__(self, config: EncoderConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = Encoder(config, generator=generator)
        self.score = Linear(config.hidden_size, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, clean: PackedBatch) -> Tensor:
        """Give (T,) scores in (-1, 1)."""
        return torch.tanh(self.score(self.encoder(clean)).squeeze(1))


@dataclass(frozen=True, kw_only=True)
class MaskProposal(Objective):
    """Masked language modelling on sets of positions that a proposal network draws, weighted so as to stay unbiased.

    p, the aim, makes all sets of k ordinary tokens equally likely; the proposal draws a set M with probability
    q(M) = product of w_i over M / e_k(w) (see `subsets`). The loss of an example is p(M) / q(M) times the mean cross
    entropy over M, and its mean over examples has the mean, and the gradient the mean, of uniform masks.
    The weight is that of the whole set. A product, or a mean, of ratios p_i / q_i of single positions is another
    number: drawn without replacement, the positions of a set depend on each other, and what a hidden token costs
    depends on which others are hidden, so that nothing makes up for the difference.

    The proposal learns beside the model to lower the second moment of the weighted gradient, E_q[(p / q)^2 G^2], whose
    gradient is -E_q[(p / q)^2 G^2 grad log q]. G is a bound on the norm of the set's gradient from the last layer:
    G^2 = sum over M of |softmax - onehot|^2 |state|^2 / k^2, products between positions left out (after Katharopoulos
    and Fleuret 2018, section 3.2). With (p / q)^2 G^2 normalised over the batch and 1 / B taken off, which changes the
    mean by no more than the normalisation does and lessens the noise, the term is
    -sum over B of ((p / q)^2 G^2 / sum of it - 1 / B) log q.

    Source: arXiv 2008.05333, which splits the variance of the gradient into a part of the batch and a part of the
    masks, lowers the second by importance sampling, and trains the network that proposes (there: MAPNet) beside the
    model. That much is taken from it. The network, the distribution of sets with its weights, and this form of the
    proposal's loss are our own, not checked against the paper's; no implementation of it is known.
    """

    name = "mpn"
    summary = "masked tokens, on masks that a small network proposes to lower the variance of the gradient"
    source = "arXiv 2008.05333 (variance reduction by proposed masks)"
    towers = (TOWER,)

    rate: float = 0.15
    """Tokens to choose, as a fraction of a sequence's tokens, 0 < rate < 1; at least one."""
    mask_share: float = 0.8
    """Probability that a chosen token becomes [MASK]."""
    random_share: float = 0.1
    """Probability that a chosen token becomes an ordinary token drawn at random; what is left of 1 stays as it is."""
    bound: float = 1.0
    """|log w| of a token is at most bound / sqrt(k), so that whatever k is, the logarithm of a set's weight deviates by
    about bound at most, and the effective sample is no less than about exp(-bound^2) of the batch."""
    hidden_size: int = 64
    """Width of the proposal network, a multiple of 64 or less than 128; its feed-forward block is 4 times as wide."""
    embedding_size: int = 32
    """Width of its own word table."""
    num_layers: int = 1
    """Its layers, at least 1."""
    proposal_weight: float = 1.0
    """Of the proposal's term in the loss; it reaches no weight of the main model. 0 freezes the proposal."""

    def problems(self) -> list[str]:
        problems = [*super().problems(), *share_problems(self.rate, self.mask_share, self.random_share)]
        if not 0 < self.bound <= 10:
            problems.append(f"bound is {self.bound}, expected a number above 0 and up to 10")
        for name in ("hidden_size", "embedding_size", "num_layers"):
            if getattr(self, name) < 1:
                problems.append(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.hidden_size > 0 and self.hidden_size % max(1, self.hidden_size // 64):
            problems.append(f"hidden_size is {self.hidden_size}, expected a multiple of 64 or less than 128")
        if not 0 <= self.proposal_weight < math.inf:
            problems.append(f"proposal_weight is {self.proposal_weight}, expected a number of 0 or more")
        return problems

    def equip(self, model: PretrainingModel, generator: torch.Generator) -> None:
        model.equip_head("mlm", generator)
        layers = tuple(range(self.num_layers))
        config = model.config.replace(
            family="electra",
            hidden_size=self.hidden_size,
            embedding_size=self.embedding_size,
            intermediate_size=4 * self.hidden_size,
            num_attention_heads=max(1, self.hidden_size // 64),
            attention_map=layers,
            ffn_map=layers,
            embedding_projection=True,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        proposal = Proposal(config, generator)
        # Frozen where nothing trains it: several processes would wait for a gradient that never comes.
        model.towers[TOWER] = proposal.requires_grad_(self.proposal_weight > 0)

    def corrupt(
        self, examples: Sequence[PretrainingExample], clean: PackedBatch, *, seed: int, vocabulary: Vocabulary
    ) -> Candidates:
        order = packed_starts(examples, clean)
        ordinary = [np.flatnonzero(~examples[i].special) for _, i in order]
        shape = len(order), max(1, *(len(own) for own in ordinary))
        places, real, uniforms = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool), np.zeros(shape)
        hidden = clean.input_ids.numpy().copy()
        for row, ((start, i), own) in enumerate(zip(order, ordinary, strict=True)):
            example = examples[i]
            generator = generator_of(seed, example.key, HIDING)
            shares = {"mask_share": self.mask_share, "random_share": self.random_share}
            hidden[start + own] = hide(example.input_ids[own], generator, vocabulary, **shares)
            places[row, : len(own)] = start + own
            real[row, : len(own)] = True
            uniforms[row, : len(own)] = generator_of(seed, example.key, DRAWING).random(len(own))
        return Candidates(
            torch.from_numpy(hidden),
            torch.from_numpy(places),
            torch.from_numpy(real),
            uniforms,
            tuple(len(own) for own in ordinary),
            tuple(number_to_choose(examples[i], self.rate) for _, i in order),
        )

    def choose(self, model: PretrainingModel, part: Candidates, clean: PackedBatch) -> Chosen:
        """Draw a set for each sequence of a batch. The sets are drawn on the CPU, whatever the device: this waits."""
        device = clean.input_ids.device
        sizes = torch.tensor(part.sizes, dtype=torch.float64)
        if part.uniform:
            scores = torch.zeros(part.real.shape, dtype=torch.float64)
        else:
            scores = model.towers[TOWER](clean)[part.places].double().cpu()
        scaled = scores * (self.bound / sizes.clamp_min(1).sqrt()).unsqueeze(1)
        log_weights = scaled.masked_fill(~part.real.cpu(), NEVER)
        table = subset_table(log_weights, max(part.sizes))
        taken = draw_subsets(log_weights, table, part.sizes, part.uniforms)
        log_q = log_probabilities(log_weights, table, part.sizes, taken)
        weights = (log_uniform(part.counts, part.sizes) - log_q.detach()).exp().float().to(device)
        owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes.long()).to(device)
        return Chosen(part.places[taken.to(device)], owner, log_q, weights)

    def outcome(
        self, model: PretrainingModel, part: Candidates, clean: PackedBatch, first: Tensor | None, *, followed: bool
    ) -> Outcome:
        """Give mpn, the weighted loss; mpn_accuracy, a weighted mean; proposal and proposal_baseline, whose sum the
        proposal lowers; effective_sample, (sum of weights)^2 / (B times the sum of squares) with B in place of the sum;
        and second_moment: of the weighted gradients' G over that of uniform masks, estimated from the same draws.
        """
        chosen = self.choose(model, part, clean)
        ids = clean.input_ids.index_copy(0, chosen.positions, part.hidden_ids[chosen.positions])
        rows, first = model.states_at(corrupted(clean, ids), chosen.positions, with_first=followed)
        logits = model.encoder.predict_tokens(rows).float()
        targets = clean.input_ids[chosen.positions]
        losses, right = predicted(logits, targets)
        share = torch.tensor([1 / max(1, k) for k in part.sizes], device=rows.device)
        weights, count = chosen.weights, float(sum(k > 0 for k in part.sizes))
        means = share * self._sums(losses, chosen, len(share))
        hits = share * self._sums(right.float(), chosen, len(share))
        bounds = _last_layer_norms(logits, rows, losses, targets)
        norms = share**2 * self._sums(bounds, chosen, len(share))
        squares = weights**2 * norms
        log_q = chosen.log_q.to(rows.device, torch.float32)
        present = torch.tensor([float(k > 0) for k in part.sizes], device=rows.device)
        terms = {
            "mpn": Term((weights * means).sum(), count, self.weight),
            "mpn_accuracy": Term((weights * hits).sum(), (present * weights).sum()),
            "proposal": Term(-(squares * log_q).sum(), squares.sum(), self.proposal_weight),
            "proposal_baseline": Term((present * log_q).sum(), count, self.proposal_weight),
            "effective_sample": Term(present.sum(), (present * weights**2).sum()),
            "second_moment": Term(squares.sum(), (weights * norms).sum()),
        }
        return Outcome(terms, first)

    def flops(
        self, model: PretrainingModel, part: Candidates, clean: PackedBatch, *, reads: bool, followed: bool
    ) -> int:
        del reads
        config = _proposal_of(model).encoder.config
        proposal = packed_flops(config, clean.lengths) + 2 * clean.num_tokens * config.hidden_size
        rows = part.count + followed * len(clean.lengths)
        main = packed_flops(model.config, clean.lengths, rows=rows) + head_flops(model.config, "mlm", rows=part.count)
        return 3 * main + (3 if self.proposal_weight else 1) * proposal

    @staticmethod
    def _sums(values: Tensor, chosen: Chosen, sequences: int) -> Tensor:
        """Give (B,): sums of (N,) values over each sequence's positions."""
        return values.new_zeros(sequences).index_add(0, chosen.owner, values)


def _proposal_of(model: PretrainingModel) -> Proposal:
    tower = model.towers[TOWER]
    assert isinstance(tower, Proposal)
    return tower


@torch.no_grad()
def _last_layer_norms(logits: Tensor, rows: Tensor, losses: Tensor, targets: Tensor) -> Tensor:
    """Give (N,): |softmax - onehot|^2 |row|^2, without a gradient.

    logits: (N, V). rows: (N, H). losses: (N,) cross entropies. targets: (N,).
    |softmax - onehot|^2 = sum of p^2 - 2 p_target + 1; the loss gives p_target and the sum that p was divided by.
    """
    log_sum = losses + logits.gather(1, targets.unsqueeze(1)).squeeze(1)
    squared = torch.linalg.vector_norm((logits - log_sum.unsqueeze(1)).exp_(), dim=1) ** 2
    return (squared - 2 * (-losses).exp() + 1).clamp_min(0) * rows.float().square().sum(1)


PLUGIN = MaskProposal
