"""Sequences with a prefix: no token sees a later one, the prefix sees itself, as stock code with an explicit mask."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from thrice.checkpoints import save
from thrice.errors import ConfigError, DataError
from thrice.model.attention import attend
from thrice.model.dropout import keep, random_words
from thrice.model.encoder import Encoder
from thrice.model.packing import PackedBatch, pack
from thrice.model.presets import PRESETS

HEADS, WIDTH = 3, 4
LENGTHS, PREFIXES = (9, 7, 9, 9, 4, 1, 30), (5, 7, 5, 2, 1, 1, 21)
BATCH = pack([[1] * n for n in LENGTHS], prefix_lengths=PREFIXES)


def visible(length: int, prefix: int) -> torch.Tensor:
    """(length, length): c_j <= c_i with c the running sum of segment ids, 0 on the prefix and 1 behind."""
    c = torch.cumsum(torch.tensor([0] * prefix + [1] * (length - prefix)), 0)
    return c.unsqueeze(0) <= c.unsqueeze(1)


def projections() -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(BATCH.num_tokens, 3 * HEADS * WIDTH, generator=draw).requires_grad_()


def reference(qkv: torch.Tensor, *, words: list[torch.Tensor] | None = None, p: float = 0.0) -> torch.Tensor:
    outputs, start = [], 0
    masks = [mask for run in words or () for mask in run]
    assert BATCH.prefix_lengths is not None
    for i, (length, prefix) in enumerate(zip(BATCH.lengths, BATCH.prefix_lengths, strict=True)):
        part = qkv[start : start + length].view(length, 3, HEADS, WIDTH).permute(1, 2, 0, 3)
        scores = part[0] @ part[1].transpose(1, 2) / WIDTH**0.5
        weights = scores.masked_fill(~visible(length, prefix), -math.inf).softmax(-1)
        if masks:
            weights = weights * keep(torch.ones_like(weights), masks[i], p=p)
        outputs.append((weights @ part[2]).transpose(0, 1).reshape(length, -1))
        start += length
    return torch.cat(outputs)


def test_runs_are_of_one_length_and_one_prefix() -> None:
    shapes = [(run.start, run.count, run.length, run.prefix) for run in BATCH.runs]
    assert shapes == [(0, 1, 30, 21), (30, 2, 9, 5), (48, 1, 9, 2), (57, 1, 7, None), (64, 1, 4, 1), (68, 1, 1, None)]
    assert BATCH.to("cpu").prefix_lengths == BATCH.prefix_lengths == (21, 5, 5, 2, 7, 1, 1)
    assert BATCH.starts.tolist() == [30, 57, 39, 48, 64, 68, 0]


@pytest.mark.parametrize("prefixes", [[0, 1], [3, 1], [1]])
def test_a_prefix_that_does_not_fit_is_refused(prefixes: list[int]) -> None:
    with pytest.raises(DataError, match="do not fit"):
        pack([[1, 2], [3]], prefix_lengths=prefixes)


def test_values_and_gradients_are_those_of_the_formula() -> None:
    ours, plain = projections(), projections()
    out, expected = attend(ours, BATCH, num_heads=HEADS, dropout=0.0), reference(plain)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(ours.grad, plain.grad, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        assert torch.equal(attend(ours, BATCH, num_heads=HEADS, dropout=0.0), out)


def test_dropout_drops_weights_and_its_gradient_knows_which() -> None:
    ours, plain = projections(), projections()
    torch.manual_seed(3)
    out = attend(ours, BATCH, num_heads=HEADS, dropout=0.3)
    torch.manual_seed(3)
    words = [
        random_words((run.count * HEADS, run.length, run.length)).view(run.count, HEADS, run.length, run.length)
        for run in BATCH.runs
    ]
    expected = reference(plain, words=words, p=0.3)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, plain.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_numbers_take_the_public_kernel(dtype: torch.dtype) -> None:
    qkv = projections().detach()
    loose = 1e-6 if dtype == torch.float64 else 0.05
    out = attend(qkv.to(dtype).requires_grad_(), BATCH, num_heads=HEADS, dropout=0.0)
    torch.testing.assert_close(out.float(), reference(qkv), atol=loose, rtol=loose)


SHAPE = {
    "vocab_size": 50,
    "embedding_size": 12,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.5,
    "attention_map": (0, 1, 0),
    "ffn_map": (0, 0, 1),
}


def encoder_of(preset: str) -> Encoder:
    model = Encoder(PRESETS[preset].replace(**SHAPE), heads=("mlm",))
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=draw)
    return model


@pytest.mark.parametrize("learning", [True, False])
@pytest.mark.parametrize("preset", ["albert-tiny-zh", "bert-mini", "electra-small", "roberta-base"])
def test_no_token_sees_a_later_one_and_the_prefix_sees_itself(preset: str, learning: bool) -> None:
    model = encoder_of(preset).train(learning)
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 50, (14,), generator=draw).tolist()
    prefix = 8
    with torch.set_grad_enabled(learning):
        before = model(pack([ids, ids[:10]], prefix_lengths=[prefix, prefix]))
        for place in range(14):
            changed = [*ids[:place], (ids[place] + 1) % 45 + 5, *ids[place + 1 :]]
            after = model(pack([changed, ids[:10]], prefix_lengths=[prefix, prefix]))
            same = [torch.equal(before[i], after[i]) for i in range(14)]
            sees = [i >= place if place >= prefix else True for i in range(14)]
            assert same == [not s for s in sees], place
            assert torch.equal(before[14:], after[14:])
        # What the source says does not depend on whether there is a target at all.
        alone = model(pack([ids[:prefix]]))
        torch.testing.assert_close(before[:prefix], alone, atol=1e-6, rtol=1e-5)
        assert torch.equal(model(pack([ids[:prefix]], prefix_lengths=[prefix])), alone)


def test_without_a_prefix_nothing_changes_bit_for_bit() -> None:
    model = encoder_of("bert-mini").eval()
    batch = pack([[5, 6, 7], [8] * 9])
    full = dataclasses.replace(batch, prefix_lengths=batch.lengths)
    assert torch.equal(model(batch), model(full))


def test_stock_bert_with_an_explicit_mask_gives_the_same_states_and_gradients(tmp_path: Path) -> None:
    import transformers

    model = encoder_of("bert-mini").train()
    folder = save(model, tmp_path / "m")
    stock = transformers.BertForMaskedLM.from_pretrained(folder, attn_implementation="eager").train()
    draw = torch.Generator().manual_seed(2)
    sequences = [torch.randint(5, 50, (n,), generator=draw).tolist() for n in (11, 7, 11)]
    prefixes = (6, 4, 9)
    types = [[0] * p + [1] * (len(s) - p) for s, p in zip(sequences, prefixes, strict=True)]
    packed: PackedBatch = pack(sequences, types, prefix_lengths=prefixes)
    ours = model.predict_tokens(model(packed))

    mask = torch.zeros(3, 1, 11, 11, dtype=torch.bool)
    ids, kinds = torch.zeros(3, 11, dtype=torch.long), torch.zeros(3, 11, dtype=torch.long)
    for i, (sequence, prefix) in enumerate(zip(sequences, prefixes, strict=True)):
        n = len(sequence)
        ids[i, :n], kinds[i, :n] = torch.tensor(sequence), torch.tensor(types[i])
        mask[i, 0, :n, :n] = visible(n, prefix)
        mask[i, 0, n:, 0] = True
    additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    theirs = stock(input_ids=ids, attention_mask=additive, token_type_ids=kinds).logits
    loss_ours, loss_theirs = [], []
    for i, sequence in enumerate(sequences):
        start, n, prefix = int(packed.starts[i]), len(sequence), prefixes[i]
        torch.testing.assert_close(ours[start : start + n], theirs[i, :n], atol=1e-5, rtol=1e-5)
        targets = torch.tensor(sequence[prefix:])
        loss_ours.append(F.cross_entropy(ours[start + prefix - 1 : start + n - 1], targets))
        loss_theirs.append(F.cross_entropy(theirs[i, prefix - 1 : n - 1], targets))
    sum(loss_ours).backward()  # type: ignore[union-attr]
    sum(loss_theirs).backward()  # type: ignore[union-attr]
    table = stock.bert.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(model.embeddings.word_embeddings.weight.grad, table, atol=1e-5, rtol=1e-5)
    layers = stock.bert.encoder.layer
    queries = [layer.attention.self.query.weight.grad for layer in layers]
    # Calls 0 and 2 are one stored block here and two there.
    torch.testing.assert_close(model.attention[0].qkv.weight.grad[:12], queries[0] + queries[2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.attention[1].qkv.weight.grad[:12], queries[1], atol=1e-5, rtol=1e-5)


def test_a_stock_class_refuses_a_prefix() -> None:
    import transformers

    from thrice.model.stock import StockEncoder

    config = transformers.DistilBertConfig(vocab_size=30, dim=8, n_heads=2, n_layers=1, hidden_dim=8)
    stock = StockEncoder(transformers.DistilBertForSequenceClassification(config))
    with pytest.raises(ConfigError, match="run packed"):
        stock(pack([[1, 2, 3]], prefix_lengths=[2]))
