"""Masked tokens and sentence pairs: by hand, and against the stock classes that are pre-trained this way."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from no_thrice import run_without_thrice
from pretraining import CLS, MASK, example, examples, tiny_model, vocabulary
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from thrice.checkpoints import save
from thrice.errors import ConfigError
from thrice.model.config import EncoderConfig
from thrice.model.packing import to_padded
from thrice.objectives.base import Labels, loss_of
from thrice.objectives.masking import MaskedTokens
from thrice.objectives.mlm import MaskedLM
from thrice.objectives.model import PretrainingBatch, PretrainingModel, build_pretraining_model
from thrice.objectives.nsp import NextSentence
from thrice.objectives.sop import SentenceOrder

STOCK = {
    "albert": ("AlbertForPreTraining", SentenceOrder(), "sentence_order_label"),
    "bert": ("BertForPreTraining", NextSentence(), "next_sentence_label"),
}


def places_of(batch: PretrainingBatch) -> tuple[torch.Tensor, int, int]:
    """Give where each packed token stands in a padded batch in the caller's order, and the shape of that."""
    columns = max(batch.clean.lengths)
    ranks = torch.searchsorted(batch.clean.cumulative_lengths[:-1].long(), batch.clean.starts).tolist()
    owner = np.repeat(np.argsort(ranks), batch.clean.lengths)
    return torch.from_numpy(owner) * columns + batch.clean.position_ids, len(ranks), columns


def padded(values: torch.Tensor, batch: PretrainingBatch) -> torch.Tensor:
    places, rows, columns = places_of(batch)
    return to_padded(values, places, rows=rows, columns=columns)


def stock_inputs(batch: PretrainingBatch, part: MaskedTokens) -> dict[str, torch.Tensor]:
    """Give what a stock class wants to see of a batch with hidden tokens: padded, -100 where nothing is predicted."""
    shifted = torch.zeros_like(batch.clean.input_ids).index_copy(0, part.positions, part.targets + 1)  # 0: no label
    labels = padded(shifted, batch) - 1
    return {
        "input_ids": padded(part.packed.input_ids, batch),
        "attention_mask": padded(torch.ones_like(shifted), batch),
        "token_type_ids": padded(batch.clean.token_type_ids, batch),
        "labels": torch.where(labels < 0, -100, labels),
    }


@pytest.mark.parametrize("family", STOCK)
@pytest.mark.parametrize("pattern", ["none", "all", "ffn"])
def test_loss_and_gradients_are_those_of_the_stock_class(family: str, pattern: str, tmp_path: Any) -> None:
    class_name, pairs, label = STOCK[family]
    model = tiny_model(family, [MaskedLM(rate=0.3), pairs], pattern=pattern)
    batch = model.make_batch(examples(), seed=1)
    part = batch.parts["mlm"]
    inputs = stock_inputs(batch, part)
    stock = getattr(transformers, class_name).from_pretrained(save(model.encoder, tmp_path / "out")).eval()
    given = stock(**inputs, **{label: batch.parts[pairs.name].labels})
    terms = model.terms(batch)
    assert given.loss.item() == pytest.approx((terms["mlm"].mean + terms[pairs.name].mean).item(), abs=1e-5)
    assert loss_of(terms).item() == pytest.approx(given.loss.item(), abs=1e-5)
    chosen = inputs["labels"] != -100
    right = (given.prediction_logits.argmax(-1) == inputs["labels"])[chosen]
    assert terms["mlm_accuracy"].mean.item() == pytest.approx(right.float().mean().item())
    given.loss.backward()
    loss_of(terms).backward()
    ours, theirs = model.encoder.embeddings, getattr(stock, family).embeddings
    assert torch.allclose(ours.word_embeddings.weight.grad, theirs.word_embeddings.weight.grad, atol=1e-5)
    assert torch.allclose(ours.LayerNorm.weight.grad, theirs.LayerNorm.weight.grad, atol=1e-5)
    assert ours.word_embeddings.weight.grad.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("family", "objectives", "expected"),
    [
        ("albert", [MaskedLM(), SentenceOrder()], "AlbertForPreTraining"),
        ("albert", [MaskedLM()], "AlbertForMaskedLM"),
        ("bert", [MaskedLM(), NextSentence()], "BertForPreTraining"),
        ("bert", [NextSentence()], "BertForNextSentencePrediction"),
        ("roberta", [MaskedLM()], "RobertaForMaskedLM"),
        ("electra", [MaskedLM()], "ElectraForMaskedLM"),
    ],
)
def test_what_was_trained_loads_by_name_where_thrice_is_not(
    family: str, objectives: list[Any], expected: str, tmp_path: Any
) -> None:
    model = tiny_model(family, objectives, pattern="ffn")
    assert list(model.stock_encoders()) == [""]
    folder = save(model.stock_encoders()[""], tmp_path / "out")
    batch = model.make_batch(examples(1), seed=1)
    with torch.no_grad():
        states = model.encoder(batch.clean)
        logits = model.encoder.predict_tokens(states) if "mlm" in model.encoder.heads else None
    found = run_without_thrice(
        """
import torch, transformers
config = transformers.AutoConfig.from_pretrained(arguments["folder"])
name = config.architectures[0]
model, info = getattr(transformers, name).from_pretrained(arguments["folder"], output_loading_info=True)
with torch.no_grad():
    types = {} if config.type_vocab_size == 1 else {"token_type_ids": torch.tensor([arguments["types"]])}
    given = model.eval()(torch.tensor([arguments["ids"]]), **types)
logits = given.get("prediction_logits", given.get("logits"))
result = {"name": name, "missing": sorted(info["missing_keys"]), "logits": logits[0].tolist()}
""",
        folder=str(folder),
        ids=batch.clean.input_ids.tolist(),
        types=batch.clean.token_type_ids.tolist(),
    )
    assert found["name"] == expected
    assert found["missing"] == []
    if logits is not None:
        assert torch.allclose(torch.tensor(found["logits"]), logits, atol=1e-5)
    names = set(load_file(folder / "model.safetensors"))
    assert any("pooler" in name for name in names) == any(o.pairs is not None for o in objectives)


class Known(nn.Module):
    """An encoder whose states are given, on tokens of width 3."""

    def __init__(self, states: torch.Tensor) -> None:
        super().__init__()
        self.given, self.heads = states, nn.ModuleDict()

    def forward(self, batch: Any, *, rows: torch.Tensor | None = None) -> torch.Tensor:
        return self.given if rows is None else self.given[rows]

    def predict_tokens(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


def test_the_loss_of_three_tokens_worked_out_by_hand() -> None:
    # Three tokens are hidden in five; the states are the logits of a vocabulary of three.
    states = torch.tensor([[9.0, 0, 0], [math.log(2), 0, 0], [0, 0, math.log(6)], [0, math.log(3), 0], [9, 9, 9]])
    model = PretrainingModel(Known(states), [MaskedLM(weight=2.0)], vocabulary=vocabulary())  # type: ignore[arg-type]
    part = MaskedTokens(None, torch.tensor([1, 2, 3]), torch.tensor([0, 1, 1]))  # type: ignore[arg-type]
    terms = model.terms(PretrainingBatch(None, {"mlm": part}))  # type: ignore[arg-type]
    # p = 2/4, 1/8 and 3/5.
    assert terms["mlm"].total.item() == pytest.approx(math.log(2) + math.log(8) + math.log(5 / 3), abs=1e-5)
    assert terms["mlm"].count == 3
    assert terms["mlm_accuracy"].mean.item() == pytest.approx(2 / 3)
    assert loss_of(terms).item() == pytest.approx(2 * math.log(16 * 5 / 3) / 3, abs=1e-5)


def test_the_loss_of_three_pairs_worked_out_by_hand() -> None:
    pairs = SentenceOrder()
    encoder = Known(torch.tensor([[math.log(3), 0.0], [0.0, math.log(4)], [5.0, 5.0]]))
    encoder.heads["pooler"] = encoder.heads["sentence_pair"] = nn.Identity()
    model = PretrainingModel(encoder, [pairs], vocabulary=vocabulary())  # type: ignore[arg-type]
    clean = tiny_model("bert", [pairs]).make_batch([example([7], number=i) for i in range(3)], seed=1).clean
    clean = dataclasses.replace(clean, starts=torch.arange(3))
    terms = model.terms(PretrainingBatch(clean, {"sop": Labels(torch.tensor([0, 0, -100]), 2)}))
    assert terms["sop"].mean.item() == pytest.approx((math.log(4 / 3) + math.log(5)) / 2, abs=1e-5)
    assert terms["sop_accuracy"].mean.item() == 0.5


def test_a_batch_without_pairs_adds_nothing_to_the_loss() -> None:
    model = tiny_model("albert", [SentenceOrder()])
    terms = model.terms(model.make_batch(examples(pairs=False), seed=1))
    assert terms["sop"].count == 0
    assert loss_of(terms).item() == 0


def test_pairs_read_the_states_of_the_masked_text_and_alone_the_clean_one() -> None:
    model = tiny_model("bert", [NextSentence(), MaskedLM(rate=0.5, mask_share=1.0, random_share=0.0)])
    calls: list[torch.Tensor] = []
    model.encoder.register_forward_pre_hook(lambda _, given: calls.append(given[0].input_ids))
    model.terms(model.make_batch(examples(), seed=1))
    model.terms(model.make_batch(examples(), seed=1, objectives=["nsp"]))
    masked, clean = calls
    assert (masked == MASK).any()
    assert not (clean == MASK).any()
    assert (clean == CLS).sum() == 6


def test_a_head_that_no_objective_trains_is_dropped_and_trained_ones_are_kept() -> None:
    old = tiny_model("albert", [MaskedLM(), SentenceOrder()]).encoder
    bias = old.heads["mlm"].bias.clone()
    old.add_head("sequence")
    model = build_pretraining_model(old.config, [MaskedLM()], vocabulary=vocabulary(), seed=1, encoder=old)
    assert list(model.encoder.heads) == ["mlm"]
    assert torch.equal(model.encoder.heads["mlm"].bias, bias)


def test_another_objective_leaves_the_fresh_weights_of_the_first_as_they_were() -> None:
    alone = tiny_model("albert", [MaskedLM()], fill=None, initializer_range=0.1)
    both = tiny_model("albert", [SentenceOrder(), MaskedLM()], fill=None, initializer_range=0.1)
    held = both.state_dict()
    assert all(torch.equal(value, held[name]) for name, value in alone.state_dict().items())
    assert not torch.equal(held["encoder.heads.mlm.dense.weight"], held["encoder.heads.pooler.dense.weight"][:4])
    other = tiny_model("albert", [MaskedLM()], fill=None, seed=2).state_dict()
    assert not torch.equal(other["encoder.heads.mlm.dense.weight"], held["encoder.heads.mlm.dense.weight"])


@pytest.mark.parametrize(
    ("objectives", "changes", "expected"),
    [
        ([MaskedLM(), MaskedLM()], {}, "mlm is there 2 times"),
        ([], {}, "no objective is given"),
        ([SentenceOrder()], {"family": "electra"}, "sop wants a model of the family albert or bert"),
        ([MaskedLM()], {"vocab_size": 12}, "the vocabulary has 20 tokens, the word table 12 rows"),
    ],
)
def test_a_model_that_cannot_be_is_refused(objectives: Any, changes: dict[str, Any], expected: str) -> None:
    config: EncoderConfig = tiny_model("albert", [MaskedLM()]).config
    with pytest.raises(ConfigError) as caught:
        build_pretraining_model(config.replace(**changes), objectives, vocabulary=vocabulary(), seed=1)
    assert expected in str(caught.value)


def test_cross_entropy_is_computed_at_the_chosen_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    plain = F.cross_entropy
    monkeypatch.setattr(F, "cross_entropy", lambda logits, *a, **k: seen.append(logits.shape) or plain(logits, *a, **k))
    model = tiny_model("bert", [MaskedLM()])
    batch = model.make_batch(examples(), seed=1)
    model.terms(batch)
    assert seen == [(batch.parts["mlm"].count, 20)]
    assert batch.parts["mlm"].count < batch.num_tokens / 3
