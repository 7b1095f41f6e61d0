"""Dropout from sixteen bits an entry: how many it drops, that it scales, repeats and passes gradients as it dropped."""

import pytest
import torch

from thrice.model.dropout import Dropout, keep, random_words


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_dropped_and_the_scale_are_right(p: float) -> None:
    torch.manual_seed(0)
    out = Dropout(p)(torch.ones(1000, 1000))
    # Four standard deviations of a binomial over a million entries, and half of 1 / 65536.
    assert (out == 0).double().mean().item() == pytest.approx(p, abs=4 * (p * (1 - p) / 1e6) ** 0.5 + 1e-5)
    assert out.max().item() == pytest.approx(1 / (1 - p))


def test_every_word_is_drawn_and_the_border_lies_where_p_says() -> None:
    words = torch.arange(-32768, 32768, dtype=torch.int16)
    assert int((keep(torch.ones(65536), words, p=0.25) > 0).sum()) == 49152
    torch.manual_seed(0)
    drawn = random_words((300_001,))
    assert drawn.dtype == torch.int16
    assert abs(drawn.double().mean().item()) < 200
    assert {int(drawn.min()), int(drawn.max())} == {-32768, 32767}
    assert len(drawn.unique()) > 60_000


def test_neighbouring_entries_fall_independently() -> None:
    torch.manual_seed(0)
    kept = Dropout(0.5)(torch.ones(400_000)).bool().double()
    for shift in (1, 2, 3, 4):
        assert (kept[shift:] * kept[:-shift]).mean().item() == pytest.approx(0.25, abs=0.005)


def test_the_gradient_passes_where_the_value_passed() -> None:
    values = torch.randn(50, 8, requires_grad=True)
    out = Dropout(0.4)(values)
    out.backward(torch.ones_like(out))
    torch.testing.assert_close(values.grad, (out != 0) / 0.6)


def test_it_repeats_from_a_seed_and_is_silent_in_eval_mode() -> None:
    layer, values = Dropout(0.3), torch.randn(7, 5)
    torch.manual_seed(5)
    first = layer(values)
    torch.manual_seed(5)
    assert torch.equal(layer(values), first)
    assert layer.eval()(values) is values
    assert Dropout(0.0)(values) is values


def test_other_kinds_of_numbers_are_left_to_torch() -> None:
    values = torch.ones(1000, dtype=torch.bfloat16)
    out = Dropout(0.5)(values)
    assert out.dtype == torch.bfloat16
    assert 300 < int((out == 0).sum()) < 700
