"""How much of a gradient's variance comes from the texts of a batch and how much from the masks, measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from thrice.data.segments import PretrainingExample
from thrice.errors import ConfigError
from thrice.model.packing import pack
from thrice.objectives.model import PretrainingModel
from thrice.objectives.mpn import MaskProposal


@dataclass(frozen=True)
class GradientVariance:
    """Total variance of one example's gradient, summed over the parameters looked at: batch + masks."""

    batch: float
    """Var over texts of the mean gradient over masks. An unbiased estimate, so that it may come out below 0."""
    masks: float
    """Mean over texts of the variance over masks."""
    masks_of_examples: np.ndarray
    """(examples,) float64: the variance over masks of each text; `masks` is their mean."""


@dataclass(frozen=True)
class MaskVariance:
    """Both terms for masks drawn uniformly and for those that the proposal draws."""

    uniform: GradientVariance
    """Of uniform masks."""
    proposal: GradientVariance
    """Of the proposal's masks, weighted."""
    ratio: float
    """proposal.masks / uniform.masks; below 1 where the proposal helps."""
    ratio_error: float
    """Standard error of the ratio over texts, by the delta method."""
    num_examples: int
    """Texts."""
    draws: int
    """Masks drawn for each, of either kind."""
    num_parameters: int
    """Numbers whose gradient was looked at."""


def measure_mask_variance(
    model: PretrainingModel,
    examples: Sequence[PretrainingExample],
    *,
    draws: int,
    seed: int,
    parameters: Sequence[str] | None = None,
) -> MaskVariance:
    """Measure the variance of the true gradient of the masked-token loss under both kinds of masks.

    With g(x, M) the gradient of text x under mask M, Var g = Var_x E_M g + E_x Var_M g; the mask here includes what
    stands in the place of a chosen token. Dropout is off. Both kinds use the same numbers for their draws.
    examples: at least 2. draws: masks of each kind for each text, at least 2; a step forth and back for each.
    parameters: names of the parameters of the main encoder to look at, without "encoder."; where None, all but those
    of the embeddings and the heads.
    Source: arXiv 2008.05333 for the two terms.
    Raises ConfigError where the model has no mask proposal, for an unknown parameter, and for too few texts or draws.
    """
    objective = next((o for o in model.objectives if isinstance(o, MaskProposal)), None)
    known = dict(model.encoder.named_parameters())
    wanted = [n for n in known if not n.startswith(("embeddings.", "heads."))] if parameters is None else parameters
    problems = [f"the encoder has no parameter {name}" for name in wanted if name not in known]
    if objective is None:
        problems.append("the model has no objective mpn")
    if len(examples) < 2 or draws < 2:
        problems.append(f"{len(examples)} texts and {draws} draws, expected at least 2 of each")
    if objective is None or problems:
        raise ConfigError("variance of masks: " + "; ".join(problems))
    chosen = [known[name] for name in wanted]
    was_training = model.training
    model.eval()
    found = [_variance(model, objective, examples, chosen, draws, seed, uniform=uniform) for uniform in (True, False)]
    model.train(was_training)
    uniform, proposal = found
    ratio = proposal.masks / uniform.masks
    off = proposal.masks_of_examples - ratio * uniform.masks_of_examples
    error = float(np.std(off, ddof=1) / np.sqrt(len(off)) / uniform.masks)
    return MaskVariance(uniform, proposal, ratio, error, len(examples), draws, sum(p.numel() for p in chosen))


def _variance(
    model: PretrainingModel,
    objective: MaskProposal,
    examples: Sequence[PretrainingExample],
    parameters: Sequence[torch.nn.Parameter],
    draws: int,
    seed: int,
    *,
    uniform: bool,
) -> GradientVariance:
    within, means_squared = [], 0.0
    total: list[torch.Tensor] = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    device = parameters[0].device
    for example in examples:
        clean = pack([example.input_ids], [example.token_type_ids])
        sums = [torch.zeros_like(t) for t in total]
        squares = 0.0
        for draw in range(draws):
            drawn_seed = seed * draws + draw
            part = objective.corrupt([example], clean, seed=drawn_seed, vocabulary=model.vocabulary)
            part = dataclasses.replace(part, uniform=uniform).to(device)
            loss = objective.outcome(model, part, clean.to(device), None, followed=False).terms["mpn"].mean
            gradients = torch.autograd.grad(loss, parameters)
            for held, gradient in zip(sums, gradients, strict=True):
                held += gradient
            squares += float(sum(g.double().square().sum() for g in gradients))
        mean_square = float(sum(s.square().sum() for s in sums)) / draws**2
        within.append((squares - draws * mean_square) / (draws - 1))
        means_squared += mean_square
        for held, summed in zip(total, sums, strict=True):
            held += summed / draws
    count = len(examples)
    grand = float(sum(t.square().sum() for t in total)) / count**2
    masks = float(np.mean(within))
    between = (means_squared - count * grand) / (count - 1)
    return GradientVariance(between - masks / draws, masks, np.array(within))
