"""Attention over runs as one node of the graph: the public kernel's values and gradients, with and without dropout."""

import pytest
import torch
from torch.nn import functional as F

from thrice.model.attention import attend
from thrice.model.dropout import keep, random_words
from thrice.model.packing import PackedBatch, pack

HEADS, WIDTH = 3, 4
BATCH: PackedBatch = pack([[1] * n for n in (5, 2, 5, 1, 2, 2, 40)])


def projections(batch: PackedBatch = BATCH) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(batch.num_tokens, 3 * HEADS * WIDTH, generator=draw).requires_grad_()


def reference(qkv: torch.Tensor, batch: PackedBatch, *, words: list[torch.Tensor] | None = None, p: float = 0.0):
    """Attention of each sequence by itself, from the formula; words: the random words of each run."""
    outputs, start = [], 0
    masks = [] if words is None else [mask for run in words for mask in run]
    for i, length in enumerate(batch.lengths):
        part = qkv[start : start + length].view(length, 3, HEADS, WIDTH).permute(1, 2, 0, 3)
        weights = torch.softmax(part[0] @ part[1].transpose(1, 2) / WIDTH**0.5, -1)
        if masks:
            weights = weights * keep(torch.ones_like(weights), masks[i], p=p)
        outputs.append((weights @ part[2]).transpose(0, 1).reshape(length, -1))
        start += length
    return torch.cat(outputs)


@pytest.mark.parametrize("lengths", [(5, 2, 5, 1, 2, 2, 40), (7,), (3, 3, 3)])
def test_values_and_gradients_are_those_of_the_formula(lengths: tuple[int, ...]) -> None:
    batch = pack([[1] * n for n in lengths])
    ours, plain = projections(batch), projections(batch)
    out = attend(ours, batch, num_heads=HEADS, dropout=0.0)
    expected = reference(plain, batch)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(ours.grad, plain.grad, atol=1e-5, rtol=1e-5)


def test_without_gradients_the_values_are_the_same_bit_for_bit() -> None:
    qkv = projections()
    with torch.no_grad():
        quiet = attend(qkv, BATCH, num_heads=HEADS, dropout=0.0)
    assert torch.equal(attend(qkv, BATCH, num_heads=HEADS, dropout=0.0), quiet)


def test_dropout_drops_weights_and_its_gradient_knows_which() -> None:
    ours, plain = projections(), projections()
    torch.manual_seed(3)
    out = attend(ours, BATCH, num_heads=HEADS, dropout=0.3)
    torch.manual_seed(3)
    words = [
        random_words((run.count * HEADS, run.length, run.length)).view(run.count, HEADS, run.length, run.length)
        for run in BATCH.runs
    ]
    expected = reference(plain, BATCH, words=words, p=0.3)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, plain.grad, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(out, reference(plain, BATCH))


def test_dropout_is_right_on_average() -> None:
    batch = pack([[1] * 6])
    qkv = projections(batch).detach()
    with torch.no_grad():
        expected = F.scaled_dot_product_attention(*qkv.view(1, 6, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4).unbind(0))
    torch.manual_seed(0)
    many = [attend(qkv.clone().requires_grad_(), batch, num_heads=HEADS, dropout=0.2).detach() for _ in range(2000)]
    mean = torch.stack(many).mean(0)
    torch.testing.assert_close(mean, expected.transpose(1, 2).reshape(mean.shape), atol=0.06, rtol=0)
