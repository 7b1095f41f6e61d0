"""Sharing and un-sharing of thrice's own encoders: laws, averages, and what stays as it was."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import thrice.sharing
from thrice.errors import SharingError
from thrice.model.config import EncoderConfig, canonical
from thrice.model.encoder import Encoder
from thrice.model.packing import PackedBatch, pack
from thrice.sharing.patterns import describe
from thrice.sharing.transform import max_difference, share, unshare

CALLS = 4
LAW = settings(max_examples=30)


@st.composite
def a_map(draw: st.DrawFn) -> tuple[int, ...]:
    return canonical(tuple(draw(st.lists(st.integers(0, CALLS - 1), min_size=CALLS, max_size=CALLS))))


def encoder_with(attention_map: tuple[int, ...], ffn_map: tuple[int, ...] | None = None, **changes: Any) -> Encoder:
    """A tiny encoder in eval mode, every parameter drawn at random: norms and biases too."""
    values = {
        "family": "albert",
        "vocab_size": 37,
        "embedding_size": 12,
        "hidden_size": 24,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "embedding_projection": True,
        "max_position_embeddings": 16,
    }
    ffn_map = attention_map if ffn_map is None else ffn_map
    config = EncoderConfig(**{**values, "attention_map": attention_map, "ffn_map": ffn_map, **changes})
    encoder = Encoder(config, heads=["mlm"])
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(0.1, 0.3, generator=generator)
    return encoder.eval()


def batch() -> PackedBatch:
    return pack([[1, 9, 4, 30, 2], [7, 7, 3], [5]], token_type_ids=[[0, 0, 1, 1, 1], [0, 1, 1], [0]])


def hidden(encoder: Encoder) -> Tensor:
    with torch.no_grad():
        return encoder(batch())


def blocks_of(encoder: Encoder) -> list[tuple[nn.ModuleList, tuple[int, ...]]]:
    return [(encoder.attention, encoder.config.attention_map), (encoder.ffn, encoder.config.ffn_map)]


def bits(encoder: Encoder) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in encoder.state_dict().items()}


@LAW
@given(a_map(), a_map(), a_map(), a_map())
def test_unsharing_keeps_every_output_bit(
    attention: tuple[int, ...], ffn: tuple[int, ...], fine_attention: tuple[int, ...], fine_ffn: tuple[int, ...]
) -> None:
    encoder = encoder_with(attention, ffn)
    before = hidden(encoder)
    # The common refinement of two maps refines both.
    wanted = (
        canonical(tuple(i * CALLS + j for i, j in zip(attention, fine_attention, strict=True))),
        canonical(tuple(i * CALLS + j for i, j in zip(ffn, fine_ffn, strict=True))),
    )
    assert unshare(encoder, describe(*wanted)) is encoder
    assert (encoder.config.attention_map, encoder.config.ffn_map) == wanted
    assert torch.equal(hidden(encoder), before)
    assert [len(blocks) for blocks, _ in blocks_of(encoder)] == [max(entries) + 1 for entries in wanted]
    parameters = list(encoder.parameters())
    assert len({parameter.data_ptr() for parameter in parameters}) == len(parameters)


@LAW
@given(a_map(), a_map(), st.sampled_from(["mean", "first"]), st.sampled_from([torch.float32, torch.float64]))
def test_sharing_what_was_unshared_gives_the_encoder_back_bit_for_bit(
    attention: tuple[int, ...], ffn: tuple[int, ...], method: str, dtype: torch.dtype
) -> None:
    encoder = encoder_with(attention, ffn).to(dtype)
    with torch.no_grad():
        encoder.ffn[0].output.bias.view(-1)[0] = -0.0
    before = bits(encoder)
    share(unshare(encoder), describe(attention, ffn), method=method)
    assert (encoder.config.attention_map, encoder.config.ffn_map) == (attention, ffn)
    assert bits(encoder) == before


@LAW
@given(a_map(), a_map(), st.sampled_from(["mean", "first"]))
def test_a_shared_block_is_the_mean_or_the_first_of_what_its_calls_used(
    old: tuple[int, ...], new: tuple[int, ...], method: str
) -> None:
    encoder = encoder_with(old)
    before = copy.deepcopy(encoder)
    assert share(encoder, describe(new, new), method=method) is encoder
    for (blocks, _), (old_blocks, _) in zip(blocks_of(encoder), blocks_of(before), strict=True):
        for j, block in enumerate(blocks):
            used = [old_blocks[old[call]] for call in range(CALLS) if new[call] == j]
            for name, value in block.state_dict().items():
                terms = torch.stack([each.state_dict()[name].double() for each in used])
                wanted = terms.mean(0) if method == "mean" else terms[0]
                torch.testing.assert_close(value.double(), wanted, rtol=1e-7, atol=1e-8)


def test_means_are_taken_per_call_and_in_float64() -> None:
    encoder = encoder_with((0, 0, 0, 1)).to(torch.float16)
    values = [2048.0, 1.0]  # in float16, 2048 + 1 is 2048
    for block, value in zip(encoder.ffn, values, strict=True):
        nn.init.constant_(block.output.weight, value)
    share(encoder, "all")
    assert set(encoder.ffn[0].output.weight.flatten().tolist()) == {1536.0}  # (3 * 2048 + 1) / 4 = 1536.25, rounded
    assert encoder.ffn[0].output.weight.dtype == torch.float16


def test_gradient_of_a_shared_block_is_the_sum_over_its_copies() -> None:
    shared = encoder_with((0, 1, 0, 1), (0, 0, 0, 0))
    own = unshare(copy.deepcopy(shared))
    weights = torch.randn(9, 24, generator=torch.Generator().manual_seed(1))
    for encoder in (shared, own):
        (encoder(batch()) * weights).sum().backward()
    scale = max(parameter.grad.abs().max().item() for _, parameter in shared.attention.named_parameters())
    for (blocks, entries), (copies, _) in zip(blocks_of(shared), blocks_of(own), strict=True):
        for j, block in enumerate(blocks):
            for name, parameter in block.named_parameters():
                gradients = [copies[call].get_parameter(name).grad for call in range(CALLS) if entries[call] == j]
                torch.testing.assert_close(sum(gradients), parameter.grad, rtol=1e-6, atol=1e-6 * scale)
                assert len({gradient.norm().item() for gradient in gradients}) == len(gradients)


@pytest.mark.parametrize("method", ["mean", "first"])
def test_unsharing_one_side_leaves_the_other_alone(method: str) -> None:
    encoder = encoder_with((0, 0, 0, 0))
    attention, ffn, embeddings = encoder.attention[0], encoder.ffn[0], encoder.embeddings
    table, heads = encoder.embeddings.word_embeddings.weight, encoder.heads["mlm"]
    unshare(encoder, "attention")
    assert list(encoder.attention) == [attention]
    assert encoder.ffn[0] is ffn
    assert len(encoder.ffn) == CALLS
    share(encoder, "all", method=method)
    assert list(encoder.ffn) == [ffn]
    assert encoder.embeddings is embeddings
    assert encoder.embeddings.word_embeddings.weight is table
    assert encoder.heads["mlm"] is heads


def test_copies_keep_dtype_frozen_parameters_modes_and_hooks() -> None:
    encoder, seen = encoder_with((0, 0, 1, 1), hidden_dropout_prob=0.1).to(torch.bfloat16).train(), []
    encoder.ffn[1].intermediate.weight.requires_grad_(False)
    encoder.ffn[1].dropout.eval()
    encoder.ffn[1].register_forward_hook(lambda module, args, output: seen.append(module))
    encoder(batch()).sum().backward()
    encoder.ffn[0].LayerNorm.bias.grad.fill_(3)
    unshare(encoder, "attention=groups=2;ffn=0,0,1,2")
    assert [block.intermediate.weight.requires_grad for block in encoder.ffn] == [True, False, False]
    assert [block.dropout.training for block in encoder.ffn] == [True, False, False]
    assert all(block.training for block in encoder.ffn)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.bfloat16}
    # The gradient of a block that was split is a sum that no copy owns.
    assert encoder.ffn[0].LayerNorm.bias.grad.max() == 3
    assert [block.LayerNorm.bias.grad for block in list(encoder.ffn)[1:]] == [None, None]
    seen.clear()
    encoder(batch())
    assert seen == list(encoder.ffn)[1:]


def test_copies_lie_in_memory_of_their_own_at_the_same_place_modulo_64_bytes() -> None:
    encoder = encoder_with((0,) * CALLS)
    weight = encoder.ffn[0].intermediate.weight
    room = torch.empty(weight.numel() + 32)
    start = (20 - room.data_ptr() % 64) % 64 // 4
    weight.data = room[start : start + weight.numel()].view(weight.shape).copy_(weight.data)
    before = hidden(encoder)
    unshare(encoder)
    assert [block.intermediate.weight.data_ptr() % 64 for block in encoder.ffn] == [20] * CALLS
    assert len({block.intermediate.weight.untyped_storage().data_ptr() for block in encoder.ffn}) == CALLS
    assert torch.equal(hidden(encoder), before)


def test_unsharing_that_would_change_outputs_points_to_share() -> None:
    encoder = encoder_with((0, 1, 1, 2))
    before = bits(encoder)
    for pattern in ("all", "attention", "groups=2", "attention=none;ffn=0,1,2,2"):
        with pytest.raises(SharingError, match=r"differ now .*'attention=0,1,1,2;ffn=0,1,1,2'.*thrice.share"):
            unshare(encoder, pattern)
    with pytest.raises(SharingError, match="from 1 to 4"):
        unshare(encoder, "groups=5")
    with pytest.raises(SharingError, match="did you mean mean"):
        share(encoder, "all", method="meen")
    with pytest.raises(SharingError, match="did you mean all"):
        share(encoder, "alll")
    assert bits(encoder) == before
    assert encoder.config.attention_map == (0, 1, 1, 2)


def test_unsharing_what_is_not_shared_says_so(caplog: pytest.LogCaptureFixture) -> None:
    encoder = encoder_with((0, 0, 0, 0))
    with caplog.at_level(logging.WARNING, logger="thrice"):
        unshare(encoder, "groups=2")
        assert caplog.text == ""
        held = list(encoder.parameters())
        unshare(encoder, "groups=2")
    assert "nothing to un-share: the sharing of this encoder is 'groups=2' already" in caplog.text
    assert all(a is b for a, b in zip(held, encoder.parameters(), strict=True))


def test_max_difference_measures_without_touching_the_encoders() -> None:
    encoder = encoder_with((0, 1, 2, 3), hidden_dropout_prob=0.5).train()
    other = copy.deepcopy(encoder)
    other.attention[0].eval()
    modes = [[module.training for module in each.modules()] for each in (encoder, other)]
    assert max_difference(encoder, other, batch()) == 0.0
    with torch.no_grad():
        other.ffn[3].LayerNorm.bias[5] += 0.25
    assert max_difference(encoder, other, batch()) == pytest.approx(0.25, abs=1e-6)
    assert [[module.training for module in each.modules()] for each in (encoder, other)] == modes
    assert max_difference(encoder, share(other, "all"), batch()) > 0.01
    assert all(parameter.grad is None for parameter in encoder.parameters())


class TaskLike(nn.Module):
    """What tasks look like: an encoder and a head."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(24, 2)


def test_the_one_line_takes_an_encoder_and_a_model_around_one() -> None:
    encoder = encoder_with((0, 0, 0, 0))
    assert thrice.sharing.unshare(encoder, "ffn") is encoder
    assert encoder.config.attention_map == (0, 1, 2, 3)
    model = TaskLike(encoder)
    assert thrice.sharing.unshare(model) is model
    assert encoder.config.ffn_map == (0, 1, 2, 3)
    assert thrice.sharing.share(model, "cycle=2", method="first") is model
    assert encoder.config.ffn_map == (0, 1, 0, 1)


def test_an_unshared_encoder_learns_different_layers() -> None:
    encoder = unshare(encoder_with((0, 0, 0, 0)))
    optimiser = torch.optim.AdamW(encoder.parameters(), lr=1e-2)
    losses = []
    for _ in range(25):
        logits = encoder.predict_tokens(encoder(batch()))
        loss = nn.functional.cross_entropy(logits, batch().input_ids)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    weights = [block.intermediate.weight for block in encoder.ffn]
    assert all(not torch.equal(weights[i], weights[j]) for i in range(CALLS) for j in range(i))
