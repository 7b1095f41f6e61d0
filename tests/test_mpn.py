"""Proposed masks: what is said of sets and of their weights, checked by going through all of them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from pretraining import example, examples, tiny_model
from torch import Tensor

import thrice.objectives.mpn
from thrice.data.segments import generator_of
from thrice.errors import ConfigError
from thrice.model.flops import packed_flops
from thrice.objectives.mask_variance import measure_mask_variance
from thrice.objectives.mlm import MaskedLM
from thrice.objectives.model import PretrainingBatch, PretrainingModel
from thrice.objectives.mpn import MaskProposal
from thrice.objectives.subsets import NEVER, draw_subsets, log_probabilities, log_uniform, subset_table


def subsets(n: int, k: int) -> Tensor:
    """Give (sets, n) bool, every set of k of n."""
    rows = [[i in chosen for i in range(n)] for chosen in itertools.combinations(range(n), k)]
    return torch.tensor(rows).reshape(-1, n)


def weights_of(n: int, *, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 1), (5, 2), (6, 3), (5, 5), (3, 0), (9, 4)])
def test_the_probabilities_of_all_sets_add_up_to_one(n: int, k: int) -> None:
    weights, sets = weights_of(n), subsets(n, k)
    every = weights.expand(len(sets), n)
    log_q = log_probabilities(every, subset_table(every, k), [k] * len(sets), sets)
    assert log_q.exp().sum().item() == pytest.approx(1, abs=1e-12)
    products = (every * sets).sum(1).exp()
    assert torch.allclose(log_q.exp(), products / products.sum(), atol=1e-12)
    assert log_uniform([n], [k]).exp().item() == pytest.approx(1 / len(sets))


def test_the_gradient_of_a_sets_probability_is_membership_less_the_probability_of_it() -> None:
    sets = subsets(6, 2)
    weights = weights_of(6).requires_grad_()
    every = weights.expand(len(sets), 6)
    log_q = log_probabilities(every, subset_table(every, 2), [2] * len(sets), sets)
    inclusion = (log_q.exp().detach().unsqueeze(1) * sets).sum(0)
    for number in (0, 7, 14):
        (gradient,) = torch.autograd.grad(log_q[number], weights, retain_graph=True)
        assert torch.allclose(gradient, sets[number].double() - inclusion, atol=1e-12)


def test_sets_are_drawn_as_often_as_they_should_be() -> None:
    n, k, draws = 5, 2, 60_000
    weights, sets = weights_of(n), subsets(n, k)
    # A second, shorter sequence beside it shows that padding is never drawn.
    padded = torch.cat([weights.expand(draws, n), torch.full((draws, 2), NEVER)], 1)
    table = subset_table(padded, k + 1)
    drawn = draw_subsets(padded, table, [k] * draws, generator_of(1, (0,)).random((draws, n + 2)))
    assert (drawn.sum(1) == k).all()
    assert not drawn[:, n:].any()
    counts = torch.stack([(drawn[:, :n] == one).all(1).sum() for one in sets])
    every = weights.expand(len(sets), n)
    expected = draws * log_probabilities(every, subset_table(every, k), [k] * len(sets), sets).exp()
    assert ((counts - expected) ** 2 / expected).sum().item() < 9 + 5 * math.sqrt(18)


def test_sequences_of_several_lengths_and_sizes_share_a_table() -> None:
    log_weights = torch.full((3, 6), NEVER, dtype=torch.float64)
    for row, n in enumerate((6, 4, 2)):
        log_weights[row, :n] = weights_of(n)
    sizes = [3, 4, 0]
    table = subset_table(log_weights.requires_grad_(), 4)
    drawn = draw_subsets(log_weights, table, sizes, generator_of(2, (0,)).random((3, 6)))
    assert drawn.sum(1).tolist() == sizes
    assert drawn[1].tolist() == [True] * 4 + [False] * 2
    log_q = log_probabilities(log_weights, table, sizes, drawn)
    alone = weights_of(6).unsqueeze(0)
    assert log_q[0].item() == pytest.approx(
        log_probabilities(alone, subset_table(alone, 3), [3], drawn[:1]).item(), abs=1e-12
    )
    assert log_q[1:].tolist() == pytest.approx([0, 0], abs=1e-12)
    (gradient,) = torch.autograd.grad(log_q.sum(), log_weights)
    assert torch.isfinite(gradient).all()


def test_long_texts_and_many_tokens_stay_exact() -> None:
    log_weights = 0.2 * torch.randn(2, 510, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    table = subset_table(log_weights, 255)
    zero = subset_table(torch.zeros(2, 510, dtype=torch.float64), 255)
    assert zero[-1, 0, 255].item() == pytest.approx(-log_uniform([510], [255]).item(), rel=1e-12)
    drawn = draw_subsets(log_weights, table, [255, 1], generator_of(1, (0,)).random((2, 510)))
    assert drawn.sum(1).tolist() == [255, 1]


def proposed(tokens: int = 5, **options: Any) -> tuple[PretrainingModel, PretrainingBatch]:
    """Give a random model, whose proposal is random too, and one text of so many tokens; two of them are chosen."""
    options = {"rate": 2 / (tokens + 2), "bound": 2.0, "hidden_size": 8, "embedding_size": 4, **options}
    model = tiny_model("albert", [MaskProposal(**options)])
    batch = model.make_batch([example(list(range(6, 6 + tokens)))], seed=1)
    proposal: Any = model.towers["proposal"]
    with torch.no_grad():  # scores on both sides of 0, far from it
        proposal.score.bias.zero_()
        scores = proposal.score(proposal.encoder(batch.clean))[1:-1]
        proposal.score.weight.div_(scores.std())
        proposal.score.bias.sub_(scores.mean() / scores.std())
    return model, batch


def outcomes_of_all_sets(
    model: PretrainingModel, batch: PretrainingBatch, monkeypatch: pytest.MonkeyPatch, *, uniform: bool = False
) -> list[tuple[float, dict[str, Any]]]:
    """Give (q(M), terms) of every set that can be drawn for the one text."""
    part = dataclasses.replace(batch.parts["mpn"], uniform=uniform)
    found = []
    for one in subsets(part.counts[0], part.sizes[0]):
        monkeypatch.setattr(thrice.objectives.mpn, "draw_subsets", lambda *_, taken=one: taken.unsqueeze(0))
        chosen = model.objectives[0].choose(model, part, batch.clean)
        terms = model.terms(PretrainingBatch(batch.clean, {"mpn": part}))
        found.append((chosen.log_q.exp().item(), terms))
    return found


def test_weighted_loss_and_gradient_have_the_mean_of_uniform_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = proposed()
    parameters = [p for name, p in model.encoder.named_parameters()]
    means = []
    for uniform in (True, False):
        loss = 0.0
        gradients = [torch.zeros_like(p) for p in parameters]
        total = 0.0
        for probability, terms in outcomes_of_all_sets(model, batch, monkeypatch, uniform=uniform):
            total += probability
            loss += probability * terms["mpn"].mean.item()
            for held, gradient in zip(gradients, torch.autograd.grad(terms["mpn"].mean, parameters), strict=True):
                held += probability * gradient
        assert total == pytest.approx(1, abs=1e-9)
        means.append((loss, gradients))
    (expected, expected_gradients), (weighted, weighted_gradients) = means
    assert weighted == pytest.approx(expected, abs=1e-5)
    for one, other in zip(expected_gradients, weighted_gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert max(g.abs().max().item() for g in expected_gradients) > 0.05


def test_a_product_of_ratios_of_single_positions_would_be_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = proposed()
    sets = subsets(5, 2)
    q = torch.tensor([p for p, _ in outcomes_of_all_sets(model, batch, monkeypatch)])
    uniform = outcomes_of_all_sets(model, batch, monkeypatch, uniform=True)
    losses = torch.tensor([terms["mpn"].mean.item() for _, terms in uniform])
    expected = losses.mean()
    inclusion = (q.unsqueeze(1) * sets).sum(0)
    product = torch.where(sets, (2 / 5) / inclusion, 1.0).prod(1)
    mean = torch.where(sets, (2 / 5) / inclusion, 0.0).sum(1) / 2
    exact = (1 / 10) / q
    assert (q * exact * losses).sum().item() == pytest.approx(expected.item(), abs=1e-5)
    for ratios in (product, mean):
        assert abs((q * ratios * losses).sum().item() - expected.item()) > 0.003
    assert abs((q * product).sum().item() - 1) > 0.003, "not even a constant loss would come out right"


def test_the_proposals_gradient_is_that_of_the_second_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = proposed()
    parameters = list(model.towers["proposal"].parameters())
    uniform = outcomes_of_all_sets(model, batch, monkeypatch, uniform=True)
    squares = torch.tensor([terms["proposal"].count.item() for _, terms in uniform])  # weight 1: G^2 itself
    estimated = [torch.zeros_like(p) for p in parameters]
    part, log_q = batch.parts["mpn"], []
    for probability, terms in outcomes_of_all_sets(model, batch, monkeypatch):
        gradients = torch.autograd.grad(terms["proposal"].total, parameters)
        for held, gradient in zip(estimated, gradients, strict=True):
            held += probability * gradient
    for one in subsets(5, 2):
        monkeypatch.setattr(thrice.objectives.mpn, "draw_subsets", lambda *_, taken=one: taken.unsqueeze(0))
        log_q.append(model.objectives[0].choose(model, part, batch.clean).log_q[0])
    second_moment = (0.1**2 * squares / torch.stack(log_q).exp()).sum()
    exact = torch.autograd.grad(second_moment, parameters)
    for one, other in zip(estimated, exact, strict=True):
        assert torch.allclose(one, other.to(one.dtype), atol=1e-5)
    assert max(g.abs().max().item() for g in exact) > 1e-3


def test_the_norm_of_the_last_layer_is_the_one_that_autograd_finds() -> None:
    rows, table = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)), torch.zeros(9, 6, requires_grad=True)
    targets = torch.tensor([1, 5, 8, 0])
    for number in range(4):
        row = rows[number : number + 1]
        logits = row @ table.T + torch.arange(9) / 4
        loss = torch.nn.functional.cross_entropy(logits, targets[number : number + 1])
        (gradient,) = torch.autograd.grad(loss, table)
        found = thrice.objectives.mpn._last_layer_norms(logits, row, loss.unsqueeze(0), targets[[number]])
        assert found.item() == pytest.approx(gradient.square().sum().item(), rel=1e-5)


def test_a_fresh_proposal_draws_uniformly_and_weighs_nothing() -> None:
    model = tiny_model("bert", [MaskProposal(rate=0.3)], fill=None)
    batch = model.make_batch(examples(), seed=1)
    terms = model.terms(batch)
    assert terms["effective_sample"].mean.item() == pytest.approx(1, abs=1e-6)
    assert terms["second_moment"].mean.item() == pytest.approx(1, abs=1e-6)
    uniform = dataclasses.replace(batch.parts["mpn"], uniform=True)
    assert terms["mpn"].mean.item() == pytest.approx(
        model.terms(PretrainingBatch(batch.clean, {"mpn": uniform}))["mpn"].mean.item(), abs=1e-6
    )


def test_neither_loss_reaches_the_weights_of_the_other() -> None:
    model = tiny_model("albert", [MaskProposal()])
    terms = model.terms(model.make_batch(examples(), seed=1))
    (terms["proposal"].mean + terms["proposal_baseline"].mean).backward(retain_graph=True)
    assert all(p.grad is None for p in model.encoder.parameters())
    assert all(p.grad is not None for p in model.towers["proposal"].parameters())
    model.zero_grad()
    terms["mpn"].mean.backward()
    assert all(p.grad is None for p in model.towers["proposal"].parameters())
    assert all(p.grad is not None for p in model.encoder.parameters())


def test_a_proposal_of_weight_zero_is_frozen_so_that_no_process_waits_for_its_gradient() -> None:
    model = tiny_model("albert", [MaskProposal(proposal_weight=0.0)])
    batch = model.make_batch(examples(), seed=1)
    model.loss(batch).backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    assert all(p.grad is None for p in model.towers["proposal"].parameters())
    moving = tiny_model("albert", [MaskProposal()])
    config, lengths = model.towers["proposal"].encoder.config, batch.clean.lengths
    forth = packed_flops(config, lengths) + 2 * sum(lengths) * config.hidden_size
    assert model.flops(batch) == moving.flops(batch) - 2 * forth


def test_a_proposal_learns_to_draw_what_has_large_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    # One token of each text is chosen; only token 6 costs anything, and it stands in another place each time.
    model = tiny_model("bert", [MaskProposal(rate=0.1, bound=1.5, hidden_size=16, embedding_size=8)], fill=None)
    for parameter in model.encoder.parameters():
        parameter.requires_grad_(False)
    texts = [example([7] * (i % 6) + [6] + [7] * (5 - i % 6), number=i) for i in range(24)]
    model.encoder.predict_tokens = lambda rows: torch.tensor([0.0] * 7 + [9.0] + [0.0] * 12).expand(len(rows), 20)
    optimizer = torch.optim.Adam(model.towers["proposal"].parameters(), lr=1e-2)
    for step in range(80):
        optimizer.zero_grad()
        model.loss(model.make_batch(texts, seed=step)).backward()
        optimizer.step()
    moments = [model.terms(model.make_batch(texts, seed=seed))["second_moment"] for seed in range(100, 120)]
    ratio = sum(m.total.item() for m in moments) / sum(m.count.item() for m in moments)
    # With w between e^-1.5 and e^1.5 the best q draws token 6 with 20 / 25 instead of 1 / 6.
    assert ratio < 0.3
    assert ratio > 25 / 20 / 6 - 0.02


def test_the_variance_that_is_measured_is_that_of_all_masks() -> None:
    options = {"rate": 0.1, "mask_share": 1.0, "random_share": 0.0, "hidden_size": 8, "embedding_size": 4}
    model = tiny_model("albert", [MaskProposal(bound=2.0, **options)])
    texts = [example(list(range(6 + i, 11 + i)), number=i) for i in range(3)]
    names = ["ffn.0.output.weight", "attention.1.qkv.bias"]
    found = measure_mask_variance(model, texts, draws=100, seed=1, parameters=names)
    parameters = [model.encoder.get_parameter(name) for name in names]
    within, means = [], []
    for text in texts:
        gradients = []
        for place in range(5):
            part = model.make_batch([text], seed=1)
            ids = part.clean.input_ids.clone()
            target = ids[place + 1].clone()
            ids[place + 1] = 4
            states = model.encoder(dataclasses.replace(part.clean, input_ids=ids))
            loss = torch.nn.functional.cross_entropy(model.encoder.predict_tokens(states[[place + 1]]), target[None])
            gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
        stacked = torch.stack(gradients)
        means.append(stacked.mean(0))
        within.append(((stacked - means[-1]) ** 2).sum(1).mean().item())
    assert found.uniform.masks == pytest.approx(np.mean(within), rel=0.15)
    between = torch.stack(means).var(0).sum().item()
    assert found.uniform.batch == pytest.approx(between, rel=0.25)
    assert found.proposal.batch == pytest.approx(between, rel=0.4)
    assert found.num_parameters == sum(p.numel() for p in parameters)
    assert abs(found.ratio - 1) > 1e-3
    assert found.ratio_error > 0


def test_a_fresh_proposal_has_the_variance_of_uniform_masks() -> None:
    model = tiny_model("albert", [MaskProposal(rate=0.3)], fill=None).train()
    found = measure_mask_variance(model, examples(3), draws=4, seed=2)
    assert found.ratio == pytest.approx(1, abs=1e-5)
    assert found.uniform.masks > 0
    assert model.training


@pytest.mark.parametrize(
    ("count", "options", "expected"),
    [
        (3, {"draws": 1}, "3 texts and 1 draws, expected at least 2 of each"),
        (1, {"parameters": ["nothing"]}, "the encoder has no parameter nothing; 1 texts"),
    ],
)
def test_a_variance_that_cannot_be_measured_is_refused(count: int, options: dict[str, Any], expected: str) -> None:
    model = tiny_model("albert", [MaskProposal()])
    with pytest.raises(ConfigError) as caught:
        measure_mask_variance(model, examples(count), **{"draws": 2, "seed": 1, **options})
    assert expected in str(caught.value)
    with pytest.raises(ConfigError, match="the model has no objective mpn"):
        measure_mask_variance(tiny_model("albert", [MaskedLM()]), examples(2), draws=2, seed=1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"bound": 0.0}, "bound is 0.0"),
        ({"hidden_size": 200, "num_layers": 0}, "num_layers is 0, expected at least 1; hidden_size is 200"),
        ({"proposal_weight": -1.0}, "proposal_weight is -1.0"),
    ],
)
def test_options_of_proposing_that_make_no_sense_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match="objective mpn: ") as caught:
        MaskProposal(**options)
    assert expected in str(caught.value)
