"""The building blocks of the encoder on this CPU, one at a time: what thrice computes them with, and what lost.

    python benchmarks/kernels.py --threads 2

For each block thrice's way and another one take turns on the same numbers; a ratio above 1 says how much longer the
other one takes. gelu: forward and backward of the tanh approximation against torch's. dropout: the same against
torch's. attention: torch's kernel against matrix products in the open that keep nothing but q, k and v, forward and
backward, one text of each length, 12 heads. linear: torch's against a weight packed once by oneDNN and by MKL, for the
few tokens of a single text.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import torch
from timing import arguments_for, interleave, ratio, seconds, show, times
from torch import Tensor
from torch.nn import functional as F

from thrice.model.activations import gelu_tanh, gelu_tanh_and_gradient_
from thrice.model.attention import attend
from thrice.model.dropout import Dropout
from thrice.model.packing import pack

Work = Callable[[], Any]
HEADS = 12


def main(words: list[str] | None = None) -> None:
    """Print one table, or JSON."""
    parser = arguments_for(__doc__)
    parser.add_argument("--tokens", type=int, default=3400, help="rows of GELU and dropout (default 3400)")
    parser.add_argument("--hidden", type=int, default=312, help="width; a multiple of 12 (default 312)")
    parser.add_argument("--lengths", type=int, nargs="*", default=[8, 32, 64, 128, 256, 512], help="texts of attention")
    arguments = parser.parse_args(words)
    torch.set_num_threads(arguments.threads)
    show(measure(arguments), as_json=arguments.json, text=table)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Give the ratio of every other way to thrice's."""
    width = arguments.hidden
    blocks = {"gelu": gelu(arguments.tokens, 4 * width), "dropout": dropout(arguments.tokens, width)}
    blocks |= {f"attention, {n} tokens": attention(n, width) for n in arguments.lengths}
    for tokens in (1, 8, 32):
        blocks |= linear(tokens, width)
    found = {}
    for name, sides in blocks.items():
        spent = interleave(
            {side: lambda _, work=work: seconds(work) for side, work in sides.items()}, rounds=arguments.rounds
        )
        ours, theirs = spent.values()
        found[name] = {"milliseconds": 1000 * sorted(ours)[len(ours) // 2], "ratio": ratio(ours, theirs)}
    return {"threads": arguments.threads, "hidden": width, "tokens": arguments.tokens, "blocks": found}


def gelu(rows: int, width: int) -> dict[str, Work]:
    """Give both ways of GELU, forward and backward."""
    values, gradient = torch.randn(rows, width), torch.randn(rows, width)

    def ours() -> Tensor:
        gelu_tanh(values)
        below = gradient.clone()
        gelu_tanh_and_gradient_(values, below)
        return below

    def theirs() -> Tensor:
        F.gelu(values, approximate="tanh")
        found: Tensor = torch.ops.aten.gelu_backward(gradient.clone(), values, approximate="tanh")
        return found

    return {"thrice": ours, "torch": theirs}


def dropout(rows: int, width: int) -> dict[str, Work]:
    """Give both ways of dropout, forward and backward."""
    values, gradient = torch.randn(rows, width, requires_grad=True), torch.randn(rows, width)

    def both(layer: Callable[[Tensor], Tensor]) -> Work:
        return lambda: torch.autograd.grad(layer(values), values, gradient)

    return {"thrice": both(Dropout(0.1)), "torch": both(torch.nn.Dropout(0.1))}


def attention(length: int, width: int) -> dict[str, Work]:
    """Give both ways of attention over one text, forward and backward."""
    batch, qkv = pack([[1] * length]), torch.randn(length, 3 * width, requires_grad=True)
    gradient = torch.randn(length, width)

    def ours() -> Any:
        return torch.autograd.grad(attend(qkv, batch, num_heads=HEADS, dropout=0.0), qkv, gradient)

    return {"thrice": ours, "in the open": lambda: _in_the_open(qkv.detach(), gradient)}


@torch.no_grad()
def _in_the_open(qkv: Tensor, gradient: Tensor) -> Tensor:
    """Give d(qkv) by matrix products; the weights are computed again for the backward, so nothing large is kept."""
    length, to_qkv = len(qkv), torch.empty_like(qkv)
    query, key, value = _by_heads(qkv)
    scale, rows = query.shape[-1] ** -0.5, gradient.view(length, HEADS, -1).transpose(0, 1)

    def weights() -> Tensor:
        scores = torch.baddbmm(query.new_empty(HEADS, length, length), query, key.transpose(1, 2), beta=0, alpha=scale)
        return torch.softmax(scores, -1, out=scores)

    torch.bmm(weights(), value).transpose(0, 1).reshape(length, -1)
    again = weights()
    to_scores = torch._softmax_backward_data(torch.bmm(rows, value.transpose(1, 2)), again, -1, again.dtype)
    empty = torch.empty_like(query)
    below = (
        torch.baddbmm(empty, to_scores, key, beta=0, alpha=scale),
        torch.baddbmm(empty, to_scores.transpose(1, 2), query, beta=0, alpha=scale),
        torch.bmm(again.transpose(1, 2), rows),
    )
    for target, found in zip(_by_heads(to_qkv), below, strict=True):
        target.copy_(found)
    return to_qkv


def _by_heads(qkv: Tensor) -> tuple[Tensor, ...]:
    return qkv.view(len(qkv), 3, HEADS, -1).permute(1, 2, 0, 3).unbind(0)


@torch.no_grad()
def linear(tokens: int, width: int) -> dict[str, dict[str, Work]]:
    """Give torch's linear map of width to 4 width beside those with a packed weight, where this build has them."""
    values, weight, bias = torch.randn(tokens, width), torch.randn(4 * width, width), torch.randn(4 * width)
    plain = torch.no_grad()(lambda: F.linear(values, weight, bias))
    found: dict[str, dict[str, Work]] = {}
    if torch.backends.mkldnn.is_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, tokens)
        work = torch.no_grad()(lambda: torch.ops.mkldnn._linear_pointwise(values, packed, bias, "none", [], ""))
        found[f"linear, {tokens} tokens, packed by oneDNN"] = {"thrice": plain, "packed": work}
    if torch.backends.mkl.is_available():
        mkl = torch.ops.mkl._mkl_reorder_linear_weight(weight, tokens)
        other = torch.no_grad()(lambda: torch.ops.mkl._mkl_linear(values, mkl, weight, bias, tokens))
        found[f"linear, {tokens} tokens, packed by MKL"] = {"thrice": plain, "packed": other}
    return found


def table(result: Mapping[str, Any]) -> str:
    """Give the result for a reader."""
    lines = [
        f"hidden {result['hidden']}, {result['tokens']} tokens, {result['threads']} threads: the other over thrice"
    ]
    lines += [
        f"  {name:36} {times(block['ratio']):24} thrice {block['milliseconds']:.3f} ms"
        for name, block in result["blocks"].items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
