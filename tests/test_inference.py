"""The calls without graph and modules: the numbers of the training form, and the modules where somebody listens."""

import pytest
import torch

from thrice.model.encoder import Encoder
from thrice.model.packing import pack
from thrice.model.presets import PRESETS

SHAPE = {
    "vocab_size": 50,
    "embedding_size": 12,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.5,
}
BATCH = pack([[1, 2, 3], [4] * 9, [5, 6, 7]])


@pytest.fixture(params=["albert-tiny-zh", "bert-mini", "electra-small", "roberta-base"])
def encoder(request: pytest.FixtureRequest) -> Encoder:
    config = PRESETS[request.param]
    maps = {"attention_map": (0, 1, 0), "ffn_map": (0, 0, 1)}
    model = Encoder(config.replace(**SHAPE | maps)).eval()
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=draw)
    return model


@pytest.mark.parametrize("sequences", [[[1, 2, 3], [4] * 9, [5, 6, 7]], [[8, 9]]])
def test_it_gives_the_numbers_of_the_training_form_bit_for_bit(encoder: Encoder, sequences: list[list[int]]) -> None:
    batch = pack(sequences)
    learning = encoder(batch)
    with torch.no_grad():
        quiet = encoder(batch)
    assert learning.requires_grad
    assert torch.equal(quiet, learning)


def test_training_mode_without_gradients_still_drops(encoder: Encoder) -> None:
    encoder.train()
    with torch.no_grad():
        assert not torch.equal(encoder(BATCH), encoder(BATCH))


@pytest.mark.parametrize("place", ["attention.0", "attention.1.qkv", "ffn.0.intermediate", "ffn.1.LayerNorm"])
def test_a_hook_is_called(encoder: Encoder, place: str) -> None:
    calls: list[str] = []
    encoder.get_submodule(place).register_forward_hook(lambda *_: calls.append(place))
    with torch.no_grad():
        encoder(BATCH)
    assert calls


def test_an_adapter_is_called(encoder: Encoder) -> None:
    with torch.no_grad():
        before = encoder(BATCH)
        encoder.ffn[0].output = torch.nn.Sequential(encoder.ffn[0].output, torch.nn.Dropout(0.0), torch.nn.Tanh())
        assert not torch.allclose(encoder(BATCH), before)


def test_weights_that_change_are_seen(encoder: Encoder) -> None:
    with torch.no_grad():
        before = encoder(BATCH)
        encoder.attention[0].qkv.weight.mul_(2)
        doubled = encoder(BATCH)
        encoder.attention[0].qkv.weight = torch.nn.Parameter(encoder.attention[0].qkv.weight / 2)
        after = encoder(BATCH)
    assert not torch.allclose(doubled, before)
    torch.testing.assert_close(after, before)


def test_a_block_of_ones_own_predicts_as_it_trains(encoder: Encoder) -> None:
    class Louder(type(encoder.ffn[0])):  # type: ignore[misc]
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(hidden)

    encoder.ffn[0].__class__ = Louder
    learning = encoder(BATCH)
    with torch.no_grad():
        torch.testing.assert_close(encoder(BATCH), learning)
        encoder.attention[1] = torch.nn.Module()
        encoder.attention[1].forward = lambda hidden, batch: hidden  # type: ignore[method-assign, assignment]
        encoder(BATCH)


def test_hooks_on_the_way_back_are_called_in_training(encoder: Encoder) -> None:
    seen: list[int] = []
    encoder.ffn[0].intermediate.register_full_backward_hook(lambda *_: seen.append(1))
    encoder(BATCH).sum().backward()
    assert seen


def test_the_states_before_the_last_norm_are_what_it_makes_the_states_of(encoder: Encoder) -> None:
    norm = encoder.ffn[encoder.config.ffn_map[-1]].LayerNorm
    learning, before = encoder(BATCH, before_last_norm=True)
    with torch.no_grad():
        quiet, quiet_before = encoder(BATCH, before_last_norm=True)
        assert torch.equal(norm(before), learning)
        assert torch.equal(quiet, encoder(BATCH))
    assert torch.equal(quiet, learning)
    assert torch.equal(quiet_before, before)
    assert not torch.allclose(before, learning, atol=1e-3)


def test_the_states_before_the_last_norm_have_a_gradient_with_checkpointing_too(encoder: Encoder) -> None:
    gradients = []
    for twice in (False, True):
        encoder.train().gradient_checkpointing = twice
        encoder.zero_grad()
        torch.manual_seed(0)
        states, before = encoder(BATCH, before_last_norm=True)
        (states.square().sum() + before.pow(3).sum()).backward()
        gradients.append([p.grad.clone() for p in encoder.parameters() if p.grad is not None])
    assert len(gradients[0]) > 10
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("twice", [False, True])
def test_states_of_some_tokens_and_what_they_teach_are_those_of_all_tokens(encoder: Encoder, twice: bool) -> None:
    for dropout in (m for m in encoder.modules() if hasattr(m, "p")):
        dropout.p = 0.0
    for block in encoder.attention:
        block.attention_dropout = 0.0
    encoder.train(twice)
    encoder.gradient_checkpointing = twice
    rows = torch.tensor([11, 0, 4, 5])
    found = []
    for states in (encoder(BATCH).index_select(0, rows), encoder(BATCH, rows=rows)):
        encoder.zero_grad()
        (states * torch.arange(states.numel()).view_as(states).cos()).sum().backward()
        found.append((states.detach(), {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}))
    (all_states, all_gradients), (some_states, some_gradients) = found
    torch.testing.assert_close(some_states, all_states, atol=1e-6, rtol=1e-6)
    assert all_gradients.keys() == some_gradients.keys()
    for name, gradient in all_gradients.items():
        torch.testing.assert_close(some_gradients[name], gradient, atol=1e-5, rtol=1e-5, msg=name)


def test_some_rows_without_gradients_are_those_of_all_rows(encoder: Encoder) -> None:
    rows = torch.tensor([14, 2, 9])
    with torch.no_grad():
        whole, before = encoder(BATCH, before_last_norm=True)
        some, some_before = encoder(BATCH, before_last_norm=True, rows=rows)
    torch.testing.assert_close(some, whole[rows], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(some_before, before[rows], atol=1e-6, rtol=1e-6)
