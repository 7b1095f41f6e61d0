"""The feed-forward block computed as one function: its values, its slopes, and who may not be passed by."""

import pytest
import torch
from torch.nn import functional as F

from thrice.model.activations import ACTIVATION, feed_forward, gelu_tanh, gelu_tanh_and_gradient_
from thrice.model.layer import FeedForwardBlock
from thrice.model.presets import PRESETS


def exact(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Give value and slope in double precision, by torch's own function."""
    double = values.double().requires_grad_()
    result = F.gelu(double, approximate="tanh")
    result.sum().backward()
    assert double.grad is not None
    return result.detach(), double.grad


# 524288 / 100 = 5242 rows fit into a block: one row, one block, a block and a bit.
@pytest.mark.parametrize("rows", [1, 7, 5242, 5500])
def test_gelu_and_its_slope_are_those_of_torch(rows: int) -> None:
    values = 4 * torch.randn(rows, 100, generator=torch.Generator().manual_seed(0))
    value, slope = exact(values)
    before, slopes = values.clone(), torch.ones_like(values)
    torch.testing.assert_close(gelu_tanh_and_gradient_(values, slopes).double(), value, atol=2e-6, rtol=2e-6)
    # Where x is large the slope is 1 + (a small difference of large numbers): torch's own is off by as much there.
    torch.testing.assert_close(slopes.double(), slope, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gelu_tanh(values).double(), value, atol=2e-6, rtol=2e-6)
    assert torch.equal(values, before)


def test_gelu_is_finite_far_out() -> None:
    values, slopes = torch.tensor([[-1e4, -50.0, 0.0, 50.0, 1e4]]), torch.ones(1, 5)
    assert gelu_tanh_and_gradient_(values, slopes).tolist() == [[0.0, 0.0, 0.0, 50.0, 1e4]]
    assert slopes.tolist() == [[0.0, 0.0, 0.5, 1.0, 1.0]]


@pytest.mark.parametrize("act", sorted(ACTIVATION))
@pytest.mark.parametrize("frozen", [(), (0,), (1, 2), (3, 4), (0, 1, 2)])
def test_feed_forward_has_the_gradients_of_its_parts(act: str, frozen: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(1)
    shapes = [(9, 6), (24, 6), (24,), (6, 24), (6,)]
    sides = []
    for _ in range(2):
        draw.manual_seed(1)
        tensors = [torch.randn(shape, generator=draw) for shape in shapes]
        sides.append([t.requires_grad_(i not in frozen) for i, t in enumerate(tensors)])
    (x, w1, b1, w2, b2), plain = sides
    feed_forward(x, (w1, b1), (w2, b2), act=act).square().sum().backward()
    F.linear(ACTIVATION[act](F.linear(*plain[:3])), *plain[3:]).square().sum().backward()
    for ours, theirs in zip(sides[0], plain, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-5)
        assert (ours.grad is None) == (not ours.requires_grad)


def test_an_adapter_or_a_hook_in_the_block_is_called() -> None:
    block = FeedForwardBlock(PRESETS["albert-tiny-zh"].replace(hidden_size=24, intermediate_size=48))
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(3, 24)
    before = block(x)
    seen: list[torch.Size] = []
    handle = block.intermediate.register_forward_hook(lambda module, given, result: seen.append(result.shape))
    torch.testing.assert_close(block(x), before)
    assert seen == [(3, 48)]
    handle.remove()
    block.output = torch.nn.Sequential(block.output, torch.nn.Identity())
    block.output.register_forward_hook(lambda module, given, result: result * 0)
    torch.testing.assert_close(block(x), block.LayerNorm(x))


def test_autocast_is_left_to_torch() -> None:
    x, w1, w2 = torch.randn(3, 8), torch.randn(16, 8, requires_grad=True), torch.randn(8, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert feed_forward(x, (w1, torch.zeros(16)), (w2, torch.zeros(8)), act="gelu_new").dtype == torch.bfloat16
