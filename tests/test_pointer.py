"""The heads of relation triples: scores and losses worked out by hand, and against their plain, dense forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from thrice.model.conditional import ConditionalHead, ConditionalNorm, draw_subjects, first_ends, powered_loss
from thrice.model.encoder import init_weights
from thrice.model.pointer import (
    MOST_SPANS,
    EfficientPointer,
    PairScores,
    RelationPointers,
    Rows,
    gold_pairs,
    link,
    pointer_loss,
    rotated,
    rows_of,
)

INFINITY = float("inf")


def dense_loss(scores: Tensor, labels: np.ndarray) -> Tensor:
    """Give (B, K), the loss over all (B, K, S, S) scores, written down as the paper has it."""
    losses = torch.zeros(scores.shape[:2], dtype=scores.dtype)
    gold = {tuple(row) for row in labels.tolist()}
    for b, k in np.ndindex(*losses.shape):
        right, wrong = [0.0], [0.0]
        for m, n in np.ndindex(*scores.shape[2:]):
            side, sign = (right, -1) if (b, k, m, n) in gold else (wrong, 1)
            side.append(sign * scores[b, k, m, n])
        losses[b, k] = sum(
            torch.logsumexp(torch.stack([torch.as_tensor(s) for s in part]), 0) for part in (right, wrong)
        )
    return losses


def test_the_pointers_loss_is_the_one_worked_out_by_hand() -> None:
    # One sentence, one kind, two tokens that may pair in order: scores (0,0) = 1, (0,1) = 2, (1,1) = -1; gold: (0,1).
    products = torch.tensor([[[0.5, 1.0], [-INFINITY, -1.5]]])
    first, second = torch.tensor([[[0.5, 0.0]]]), torch.tensor([[[0.0, 0.5]]])
    loss = PairScores(products, first, second).loss(gold_pairs(np.array([[0, 0, 0, 1]])))
    expected = math.log(1 + math.exp(-2)) + math.log(1 + math.exp(1) + math.exp(-1))
    assert loss.shape == (1, 1)
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def some_scores(seed: int, *, sizes: tuple[int, ...] = (4, 1, 6, 3), kinds: int = 3, scale: float = 2.0) -> PairScores:
    generator = torch.Generator().manual_seed(seed)
    longest = max(sizes)
    real = torch.arange(longest) < torch.tensor(sizes).unsqueeze(1)
    possible = real.unsqueeze(1) & real.unsqueeze(2)
    products, first, second = (
        scale * torch.randn(len(sizes), *shape, generator=generator)
        for shape in ((longest, longest), (kinds, longest), (kinds, longest))
    )
    leaves = [tensor.requires_grad_() for tensor in (products, first, second)]
    scores = PairScores(products.masked_fill(~possible, -INFINITY), first, second)
    scores.leaves = leaves  # type: ignore[attr-defined]
    return scores


LABELS = np.array([[0, 0, 1, 2], [0, 2, 1, 2], [0, 1, 3, 3], [2, 0, 0, 5], [2, 0, 5, 0], [2, 0, 0, 5], [1, 1, 0, 0]])


@pytest.mark.parametrize("scale", [0.1, 2.0, 12.0])
def test_the_short_loss_and_its_gradient_are_those_of_the_dense_one(scale: float) -> None:
    scores = some_scores(1, scale=scale)
    short = scores.loss(gold_pairs(LABELS))
    dense = dense_loss(scores.dense, LABELS)
    assert torch.allclose(short, dense, rtol=1e-5, atol=1e-5)
    weights = torch.randn(short.shape, generator=torch.Generator().manual_seed(2))
    ours, theirs = (
        torch.autograd.grad((loss * weights).sum(), scores.leaves, retain_graph=True) for loss in (short, dense)
    )  # type: ignore[attr-defined]
    for one, other in zip(ours, theirs, strict=True):
        assert torch.isfinite(one).all()
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_gold_score_far_above_all_others_leaves_their_digits_alone() -> None:
    """Where the loss subtracts gold from the sum over all, exp(40) swallows everything beside it."""
    scores = some_scores(3, sizes=(4,), kinds=1, scale=0.5)
    with torch.no_grad():
        scores.products[0, 1, 2] = 40.0
    labels = np.array([[0, 0, 1, 2]])
    assert torch.allclose(scores.loss(gold_pairs(labels)), dense_loss(scores.dense.double(), labels).float(), rtol=1e-6)


def test_without_gold_the_loss_is_over_all_pairs() -> None:
    scores = some_scores(4)
    nothing = np.zeros((0, 4), dtype=np.int64)
    assert torch.allclose(scores.loss(gold_pairs(nothing)), dense_loss(scores.dense, nothing), rtol=1e-5)


def test_pointers_give_finite_gradients_and_know_order_and_distance() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(12, 8, generator=generator)
    rows = rows_of(torch.tensor([1, 6, 11]), [4, 5, 0])
    for rotary, ordered in ((True, True), (False, False)):
        pointer = EfficientPointer(8, 3, width=4, rotary=rotary, ordered=ordered)
        pointer.start(generator)
        scores = pointer(hidden, rows)
        assert torch.equal(scores.dense.isinf()[0, 0, 1], torch.tensor([ordered, False, False, False, True]))
        loss = pointer_loss([scores], [gold_pairs(np.array([[0, 1, 0, 2]]))])
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in pointer.parameters() if p.grad is not None)


def test_rotated_products_depend_on_the_distance_alone() -> None:
    one, other = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    rows = torch.stack([one, other]).repeat_interleave(7, 0).view(2, 7, 8)
    queries, keys = rotated(rows[:1]), rotated(rows[1:])
    products = torch.matmul(queries, keys.transpose(1, 2))[0]
    for distance in range(-5, 6):
        along = products.diagonal(distance)
        assert torch.allclose(along, along[:1].expand_as(along), atol=1e-5)
    assert not torch.allclose(products[0, 1], products[1, 0], atol=1e-3)
    assert torch.allclose(rotated(rows).norm(dim=2), rows.norm(dim=2), atol=1e-5)


def test_linking_takes_exactly_what_scores_above_zero_everywhere() -> None:
    entities, heads, tails = (
        some_scores(seed, sizes=(5, 3), kinds=k, scale=1.5) for seed, k in ((5, 2), (6, 4), (7, 4))
    )
    linked = link(entities, heads, tails)
    spans, starts, ends = (part.dense.detach() for part in (entities, heads, tails))
    expected = {}
    for b, s0, s1, p, o0, o1 in np.ndindex(2, 5, 5, 4, 5, 5):
        parts = (spans[b, 0, s0, s1], spans[b, 1, o0, o1], starts[b, p, s0, o0], ends[b, p, s1, o1])
        if min(parts) > 0:
            expected[b, s0, s1, p, o0, o1] = torch.stack(parts).min().sigmoid().item()
    assert 10 < len(expected) == len(linked.places)
    for place, score in zip(linked.places.tolist(), linked.scores.tolist(), strict=True):
        assert score == pytest.approx(expected[tuple(place)], abs=1e-6)


def test_scores_that_are_all_above_zero_end_in_a_bounded_number_of_triples() -> None:
    size = 12
    scores = [PairScores(torch.ones(1, size, size), *torch.zeros(2, 1, kinds, size)) for kinds in (2, 1, 1)]
    assert len(link(*scores).places) == MOST_SPANS**2


def test_padding_moves_no_score() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(30, 8, generator=generator)
    head = RelationPointers(8, 3)
    head.start(generator)
    alone = [part.dense for part in head(hidden, rows_of(torch.tensor([2]), [5]))]
    together = [part.dense for part in head(hidden, rows_of(torch.tensor([10, 2]), [15, 5]))]
    for one, other in zip(alone, together, strict=True):
        assert torch.allclose(one[0], other[1, :, :5, :5], atol=1e-5)
        assert other[1, :, 5:].isinf().all()


# The essay's head


def test_powered_losses_are_the_ones_worked_out_by_hand() -> None:
    logits = torch.tensor([[0.0, 1.0], [-2.0, 3.0]])
    gold = (torch.tensor([0, 1]), torch.tensor([1, 0]))
    for power in (2, 4):
        p = [[1 / (1 + math.exp(-x)) ** 1 for x in row] for row in logits.tolist()]
        p = [[q**power for q in row] for row in p]
        expected = -math.log(1 - p[0][0]) - math.log(p[0][1]) - math.log(p[1][0]) - math.log(1 - p[1][1])
        assert powered_loss(logits, gold, power=power).item() == pytest.approx(expected, rel=1e-5)
    extreme = torch.tensor([-INFINITY, 40.0, -40.0], requires_grad=True)
    loss = powered_loss(extreme, (torch.tensor([1]),), power=4)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert torch.isfinite(extreme.grad).all()
    assert powered_loss(torch.tensor([40.0]), (torch.tensor([], dtype=torch.int64),), power=2).item() > 38


def test_the_conditional_norm_is_a_layer_norm_until_a_condition_says_otherwise() -> None:
    norm = ConditionalNorm(4, 6, eps=1e-6)
    with torch.no_grad():
        for weight in (norm.gain.weight, norm.offset.weight):
            weight.zero_()
    rows, condition = torch.randn(2, 3, 4), torch.randn(2, 6)
    assert torch.allclose(norm(rows, condition), F.layer_norm(rows, (4,), eps=1e-6))
    with torch.no_grad():
        norm.gain.weight[0, 0], norm.offset.weight[1, 1] = 2.0, 3.0
    by_hand = F.layer_norm(rows, (4,), eps=1e-6)
    by_hand[..., 0] *= 1 + 2 * condition[:, :1]
    by_hand[..., 1] += 3 * condition[:, 1:2]
    assert torch.allclose(norm(rows, condition), by_hand, atol=1e-6)


def essay_head() -> ConditionalHead:
    head = ConditionalHead(4, 2, eps=1e-6)
    init_weights(head, std=0.5, generator=torch.Generator().manual_seed(0))
    return head


def test_the_essays_loss_is_its_formula_on_a_tiny_case() -> None:
    head = essay_head()
    states, before = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(1))
    rows = rows_of(torch.tensor([1, 5]), [3, 2])  # 5 tokens; the second sentence has no triple
    gold = [np.array([[0, 1, 1, 2, 2]]), np.zeros((0, 5), np.int64)]
    loss = head.loss(states, before, rows, gold, draw_subjects(gold, [(0.0, 0.0)] * 2))

    said = head.subject(states)[[1, 2, 3, 5, 6]].sigmoid() ** 2
    truth = torch.zeros(5, 2)
    truth[0, 0] = truth[1, 1] = 1
    subject_loss = F.binary_cross_entropy(said, truth, reduction="none").mean(1).sum() / 5
    own = before[1:4].unsqueeze(0)
    normed = head.norm(own, torch.cat([before[1], before[2]]).unsqueeze(0))[0]
    said = (head.object(normed).view(3, 2, 2)).sigmoid() ** 4
    truth = torch.zeros(3, 2, 2)
    truth[2, 1, 0] = truth[2, 1, 1] = 1
    object_loss = F.binary_cross_entropy(said, truth, reduction="none").mean(2).sum(1).sum() / 5
    assert loss.item() == pytest.approx((subject_loss + object_loss).item(), rel=1e-5)


def test_a_drawn_subject_may_be_no_gold_pair_and_then_has_no_objects() -> None:
    gold = [np.array([[0, 1, 0, 5, 6], [0, 1, 1, 7, 7], [3, 4, 0, 0, 1]]), np.zeros((0, 5), np.int64)]
    drawn = {}
    for one in (0.0, 0.6):
        for other in (0.0, 0.6):
            subjects = draw_subjects(gold, [(one, other), (0.0, 0.0)])
            assert len(subjects.places) == 1
            drawn[tuple(subjects.places[0].tolist())] = len(subjects.objects)
    assert drawn == {(0, 0, 1): 4, (0, 0, 4): 0, (0, 3, 4): 2}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_a_start_ends_at_the_first_end_not_before_it(tokens: list[tuple[bool, bool]]) -> None:
    sides = torch.tensor([[0.7 if start else 0.6, 0.55 if end else 0.5] for start, end in tokens])
    spans = first_ends(sides)
    expected = []
    for i, (start, _) in enumerate(tokens):
        end = next((j for j in range(i, len(tokens)) if tokens[j][1]), None)
        if start and end is not None:
            expected.append((i, end))
    found = list(zip(spans.places[:, 0].tolist(), spans.ends.tolist(), strict=True))
    assert found == expected


def test_all_subjects_of_all_sentences_at_once_give_what_each_alone_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    head = essay_head()
    with torch.no_grad():
        head.subject.bias.fill_(1.0)
        head.object.bias.fill_(1.5)
    states, before = torch.randn(2, 20, 4, generator=torch.Generator().manual_seed(1))
    together = head.link(states, before, rows_of(torch.tensor([1, 10]), [8, 6]))
    monkeypatch.setattr("thrice.model.conditional.MOST_ROWS", 8)
    for other in (
        [head.link(states, before, rows_of(torch.tensor([1, 10]), [8, 6]))],
        [head.link(states, before, rows_of(torch.tensor([s]), [n])) for s, n in ((1, 8), (10, 6))],
    ):
        places = [
            [*([b] if len(other) > 1 else row[:1]), *row[1:]] for b, o in enumerate(other) for row in o.places.tolist()
        ]
        assert len(places) > 5
        assert places == together.places.tolist()
        scores = np.concatenate([o.scores for o in other])
        assert np.allclose(scores, together.scores, atol=1e-6)


def test_rows_of_sentences_travel_to_a_device_whole() -> None:
    rows = rows_of(torch.tensor([3, 0]), [1, 2])
    assert isinstance(rows.to("cpu"), Rows)
    assert rows.index.tolist() == [[3, 0], [0, 1]]
    assert rows.real.tolist() == [[True, False], [True, True]]
    assert rows.to("cpu").lengths == (1, 2)
