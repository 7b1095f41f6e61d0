"""The encoder's laws: packing moves nothing, dropout acts everywhere, shapes and errors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thrice.errors import ConfigError, DataError
from thrice.model.config import EncoderConfig, canonical
from thrice.model.encoder import Encoder
from thrice.model.packing import from_padded, pack, to_padded
from thrice.model.presets import PRESETS


def tiny(**changes: object) -> EncoderConfig:
    values: dict = {
        "family": "albert",
        "vocab_size": 50,
        "embedding_size": 8,
        "hidden_size": 12,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "attention_map": (0, 0, 0),
        "ffn_map": (0, 1, 2),
        "embedding_projection": True,
        "max_position_embeddings": 40,
        "hidden_act": "gelu_new",
    }
    return EncoderConfig(**(values | changes))


def random_filled(config: EncoderConfig, **kwargs: object) -> Encoder:
    encoder = Encoder(config, **kwargs).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return encoder


def test_composition_and_order_of_a_batch_never_move_a_hidden_state() -> None:
    encoder = random_filled(tiny())
    texts = [[2, 7, 9, 3], [2, 3], [2, 11, 12, 13, 14, 15, 3], [2, 5, 6, 3], [2, 3]]
    alone = [encoder(pack([text])) for text in texts]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [2, 1]):
        batch = pack([texts[i] for i in order])
        together = encoder(batch)
        for row, i in enumerate(order):
            start = int(batch.starts[row])
            torch.testing.assert_close(together[start : start + len(texts[i])], alone[i], atol=1e-5, rtol=0)


def test_padded_tensors_give_what_packed_ones_give() -> None:
    encoder = random_filled(tiny())
    ids = torch.tensor([[2, 7, 3, 0, 0], [2, 5, 6, 8, 3]])
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    types = torch.tensor([[0, 0, 1, 0, 0], [0, 0, 1, 1, 1]])
    padded = encoder.padded(ids, mask, types)
    batch = pack([[2, 7, 3], [2, 5, 6, 8, 3]], [[0, 0, 1], [0, 0, 1, 1, 1]])
    packed = encoder(batch)
    torch.testing.assert_close(padded[0, :3], packed[5:], atol=1e-6, rtol=0)
    torch.testing.assert_close(padded[1], packed[:5], atol=1e-6, rtol=0)
    assert padded[0, 3:].abs().max() == 0


@settings(max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_spreading_and_packing_are_inverse(lengths: list[int]) -> None:
    width = max(lengths)
    mask = torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]
    ids = torch.arange(1, len(lengths) * width + 1).view(-1, width) * mask
    batch, places = from_padded(ids, mask)
    assert torch.equal(to_padded(batch.input_ids, places, rows=len(lengths), columns=width), ids)
    assert list(batch.lengths) == sorted(lengths, reverse=True)
    assert torch.equal(batch.input_ids[batch.starts], ids[:, 0])
    assert sum(run.count * run.length for run in batch.runs) == batch.num_tokens
    same = pack([row[: int(n)].tolist() for row, n in zip(ids, lengths, strict=True)])
    for name in ("input_ids", "position_ids", "starts"):
        assert torch.equal(getattr(same, name), getattr(batch, name))


DROPOUTS = [
    "embeddings.dropout",
    "attention.0.dropout",
    "attention.0.attention_dropout",
    "ffn.0.dropout",
    "ffn.2.dropout",
]


@pytest.mark.parametrize("place", DROPOUTS)
def test_each_dropout_acts_alone_in_training_and_not_in_evaluation(place: str) -> None:
    encoder = random_filled(tiny())
    batch = pack([[2, 7, 9, 3], [2, 5, 3]])
    quiet = encoder.train()(batch)
    assert torch.equal(quiet, encoder(batch)), "with every probability 0 training is deterministic"
    owner, name = place.rsplit(".", 1)
    if name == "attention_dropout":
        encoder.get_submodule(owner).attention_dropout = 0.5
    else:
        encoder.get_submodule(place).p = 0.5
    assert not torch.equal(encoder(batch), quiet)
    assert torch.equal(encoder.eval()(batch), quiet)


def test_the_config_reaches_every_dropout() -> None:
    config = tiny(hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.125, classifier_dropout_prob=0.375)
    encoder = Encoder(config, heads=("sequence", "token"))
    hidden = [m.p for n, m in encoder.named_modules() if n.endswith("dropout") and not n.startswith("heads")]
    assert set(hidden) == {0.25}
    assert len(hidden) == 1 + config.num_attention_blocks + config.num_ffn_blocks
    assert {block.attention_dropout for block in encoder.attention} == {0.125}
    assert encoder.heads["sequence"].dropout.p == encoder.heads["token"].dropout.p == 0.375


HEAD_DROPOUTS = [
    ("albert", "sequence", ["dropout"]),
    ("bert", "sequence", ["dropout"]),
    ("roberta", "sequence", ["first_dropout", "dropout"]),
    ("electra", "sequence", ["first_dropout", "dropout"]),
    ("bert", "token", ["dropout"]),
    ("albert", "sentence_pair", ["dropout"]),
]


@pytest.mark.parametrize(("family", "name", "places"), HEAD_DROPOUTS)
def test_each_dropout_of_a_head_acts_alone_and_only_in_training(family: str, name: str, places: list[str]) -> None:
    head = random_filled(tiny(family=family, classifier_dropout_prob=0.5), heads=(name,)).heads[name]
    rows = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))
    everywhere = [m for m, part in head.named_modules() if isinstance(part, torch.nn.Dropout) and part.p > 0]
    assert sorted(everywhere) == sorted(places), "the config's probability stands where stock code has it"
    still = head.eval()(rows)
    head.train()
    for place in places:
        for other in places:
            getattr(head, other).p = 0.5 if other == place else 0.0
        assert not torch.equal(head(rows), still)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: the varlen kernel cannot run here")
def test_the_varlen_kernel_gives_what_runs_of_equal_length_give() -> None:
    encoder = random_filled(tiny(hidden_size=24)).cuda().bfloat16()
    batch = pack([[2, 7, 9, 3], [2, 5, 3], [2, 6, 3]]).to("cuda")
    varlen = encoder(batch)
    encoder.train()
    for block in encoder.attention:
        block.attention_dropout = 1e-9  # any dropout sends it the other way
    torch.testing.assert_close(varlen, encoder(batch), atol=0.1, rtol=0.1)


def test_same_generator_gives_the_same_weights_and_leaves_the_global_state_alone() -> None:
    before = torch.random.get_rng_state()
    one, two = (Encoder(tiny(), heads=("mlm",), generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_gradients_reach_every_parameter_of_a_partly_shared_encoder() -> None:
    encoder = random_filled(tiny()).train()
    encoder(pack([[2, 7, 9, 3], [2, 5, 3]], [[0, 0, 1, 1], [0, 0, 1]])).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in encoder.parameters())


# Millions of stored encoder parameters, by what is shared: all, attention only, FFN only, nothing (pooler included, as
# the published figures have it).
STORED = {
    "albert-tiny-zh": (4.08, 6.42, 5.25, 7.60),
    "albert-small-zh": (4.74, 10.65, 7.70, 13.61),
    "albert-base": (11.7, 63.7, 37.7, 89.7),
}


@pytest.mark.parametrize("name", STORED)
def test_presets_store_as_many_parameters_as_published(name: str) -> None:
    own = tuple(range(PRESETS[name].num_calls))
    shared = (0,) * len(own)
    maps = [(shared, shared), (shared, own), (own, shared), (own, own)]
    for (attention_map, ffn_map), expected in zip(maps, STORED[name], strict=True):
        config = PRESETS[name].replace(attention_map=attention_map, ffn_map=ffn_map)
        assert _count(config) / 1e6 == pytest.approx(expected, rel=0.005)


def _count(config: EncoderConfig) -> int:
    hidden, width, embedding = config.hidden_size, config.intermediate_size, config.embedding_size
    encoder = Encoder(config, heads=("pooler",))
    assert sum(p.numel() for p in encoder.attention[0].parameters()) == 4 * hidden * (hidden + 1) + 2 * hidden
    assert sum(p.numel() for p in encoder.ffn[0].parameters()) == 2 * hidden * width + width + 3 * hidden
    assert encoder.embeddings.word_embeddings.weight.shape == (config.vocab_size, embedding)
    return sum(p.numel() for p in encoder.parameters())


def test_a_wrong_config_names_all_its_problems_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        tiny(hidden_size=13, attention_map=(1, 0), hidden_act="swish", hidden_dropout_prob=1.0)
    for word in ("hidden_size 13", "(1, 0)", "swish", "hidden_dropout_prob"):
        assert word in str(caught.value)


def test_maps_are_renumbered_by_first_use() -> None:
    assert canonical((4, 4, 2, 4, 0)) == (0, 0, 1, 0, 2)


def test_too_long_and_empty_sequences_are_clear_errors() -> None:
    with pytest.raises(DataError, match=r"41 tokens, the position table holds 40"):
        Encoder(tiny())(pack([[1] * 41]))
    with pytest.raises(DataError, match="at least one token"):
        pack([[1], []])
    with pytest.raises(DataError, match="without a real token"):
        from_padded(torch.ones(2, 3, dtype=torch.long), torch.tensor([[1, 0, 0], [0, 0, 0]]))


def test_asking_for_a_head_that_is_not_there_names_those_that_are() -> None:
    encoder = Encoder(tiny(), heads=("pooler",))
    with pytest.raises(ConfigError, match="pooler"):
        encoder.predict_tokens(torch.zeros(1, 12))
    with pytest.raises(ConfigError, match="did you mean mlm"):
        encoder.add_head("mlmm")
