"""Replaced tokens: the generator's samples, who gets which gradient, and the stock ELECTRA classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from no_thrice import run_without_thrice
from pretraining import examples, tiny_model, vocabulary
from sklearn.metrics import roc_auc_score
from test_mlm import padded, stock_inputs

from thrice.checkpoints import save
from thrice.data.segments import generator_of
from thrice.errors import ConfigError
from thrice.model.presets import PRESETS
from thrice.objectives.all_token_mlm import AllTokenMLM
from thrice.objectives.base import loss_of
from thrice.objectives.generator import TABLES, generator_config
from thrice.objectives.mlm import MaskedLM
from thrice.objectives.model import PretrainingBatch, PretrainingModel
from thrice.objectives.nsp import NextSentence
from thrice.objectives.rtd import ReplacedTokenDetection
from thrice.objectives.sampling import blocks_of, ordered_pairs, sample_tokens, sampling_noise
from thrice.sharing import unshare


def built(pattern: str = "none", **options: Any) -> tuple[PretrainingModel, PretrainingBatch]:
    objective = ReplacedTokenDetection(**{"rate": 0.3, "size": 0.75, **options})
    model = tiny_model("electra", [objective], pattern=pattern)
    return model, model.make_batch(examples(), seed=1)


def replaced_ids(model: PretrainingModel, batch: PretrainingBatch) -> torch.Tensor:
    return model.objectives[0].replace(model, batch.parts[model.objectives[0].name], batch.clean).packed.input_ids


@pytest.mark.parametrize("embeddings", ["tied", "none"])
def test_losses_are_those_of_the_stock_classes(embeddings: str, tmp_path: Any) -> None:
    model, batch = built(embeddings=embeddings)
    part = batch.parts["rtd"]
    encoders = model.stock_encoders()
    assert list(encoders) == ["", "generator"]
    inputs = stock_inputs(batch, part.masked)
    generator = transformers.ElectraForMaskedLM.from_pretrained(save(encoders["generator"], tmp_path / "g")).eval()
    stock = transformers.ElectraForPreTraining.from_pretrained(save(encoders[""], tmp_path / "d")).eval()
    terms = model.terms(batch)
    given = generator(**inputs).loss
    assert terms["generator_mlm"].mean.item() == pytest.approx(given.item(), abs=1e-5)
    ids = replaced_ids(model, batch)
    labels = padded((ids != batch.clean.input_ids).long(), batch)
    found = stock(**{**inputs, "input_ids": padded(ids, batch), "labels": labels}).loss
    assert terms["rtd"].mean.item() == pytest.approx(found.item(), abs=1e-5)
    assert loss_of(terms).item() == pytest.approx((given + 50 * found).item(), abs=1e-4)
    assert 0 < labels.sum() <= part.masked.count
    assert terms["replaced_fraction"].mean.item() == pytest.approx(labels.sum().item() / part.masked.count)


def test_the_generator_gets_no_gradient_from_the_discriminator() -> None:
    model, batch = built(embeddings="none")
    terms = model.terms(batch)
    terms["rtd"].mean.backward(retain_graph=True)
    assert all(p.grad is None for p in model.towers["generator"].parameters())
    assert model.encoder.embeddings.word_embeddings.weight.grad is not None
    terms["generator_mlm"].mean.backward()
    assert all(p.grad is not None for p in model.towers["generator"].parameters())


def test_tied_tables_are_one_tensor_and_only_they() -> None:
    model, batch = built()
    generator: Any = model.towers["generator"]
    for table in TABLES:
        assert getattr(generator.embeddings, table) is getattr(model.encoder.embeddings, table)
    assert generator.embeddings.projection is not model.encoder.embeddings.projection
    names = [name for name, _ in model.named_parameters()]
    assert not any(name.startswith(f"towers.generator.embeddings.{t}.") for name in names for t in TABLES)
    assert "towers.generator.embeddings.projection.weight" in names
    terms = model.terms(batch)
    terms["generator_mlm"].mean.backward(retain_graph=True)
    table = model.encoder.embeddings.word_embeddings.weight
    first = table.grad.clone()
    terms["rtd"].mean.backward()
    assert not torch.equal(first, table.grad)
    apart, _ = built(embeddings="none")
    assert len(list(apart.parameters())) == len(list(model.parameters())) + 5


def test_tables_stay_tied_where_sharing_changes_midway() -> None:
    model, batch = built(pattern="all")
    generator: Any = model.towers["generator"]
    unshare(model.encoder)
    assert model.encoder.config.num_ffn_blocks == 4
    assert generator.embeddings.word_embeddings is model.encoder.embeddings.word_embeddings
    model.loss(batch).backward()


def test_samples_stand_at_all_chosen_places_and_replaced_means_different() -> None:
    model, batch = built(mask_share=0.0)  # the generator sees the text as it is
    with torch.no_grad():
        model.towers["generator"].heads["mlm"].dense.weight.zero_()
        # What it says then hangs on the bias alone: half of the samples are token 7.
        model.towers["generator"].heads["mlm"].LayerNorm.bias.zero_()
        bias = model.towers["generator"].heads["mlm"].bias.fill_(-30.0)
        bias[7], bias[9] = 1.0, 1.0
    part, clean = batch.parts["rtd"], batch.clean
    found = model.objectives[0].replace(model, part, clean)
    ids, old = found.packed.input_ids, clean.input_ids
    chosen = torch.zeros_like(old, dtype=torch.bool)
    chosen[part.masked.positions] = True
    assert torch.equal(ids[~chosen], old[~chosen])
    assert set(ids[chosen].tolist()) == {7, 9}
    assert torch.equal(found.replaced, ids != old)
    assert torch.equal(part.masked.packed.input_ids, old)


def test_a_generator_that_is_always_right_replaces_nothing() -> None:
    model, batch = built(mask_share=0.0, size=1.0, embeddings="tied")
    part = batch.parts["rtd"]
    part.noise.fill_(1.0)
    generator = model.towers["generator"]
    generator.predict_tokens = lambda rows: 50 * torch.nn.functional.one_hot(part.masked.targets, 20).float()
    terms = model.terms(batch)
    assert terms["replaced_fraction"].mean.item() == 0
    assert terms["rtd_auc"].mean.item() == 0
    assert math.isfinite(loss_of(terms).item())


@pytest.mark.parametrize("size", [2, 3, 7, 16, 17, 20, 101])
def test_samples_have_the_probabilities_of_the_softmax(size: int) -> None:
    logits = torch.linspace(-2, 1.5, size)[torch.randperm(size, generator=torch.Generator().manual_seed(1))]
    rows = 40_000
    noise = torch.from_numpy(sampling_noise(generator_of(1, (0,)), rows, size))
    assert noise.shape == (rows, sum(blocks_of(size)))
    counts = torch.bincount(sample_tokens(logits.expand(rows, size), noise), minlength=size)
    expected = logits.double().softmax(0) * rows
    assert len(counts) == size
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < size - 1 + 5 * math.sqrt(2 * size)


def test_half_precision_logits_are_drawn_from_in_full() -> None:
    logits = torch.full((200, 400), -20.0, dtype=torch.float16)
    logits[:, 3] = 20.0
    noise = torch.from_numpy(sampling_noise(generator_of(1, (0,)), 200, 400))
    noise[0] = 0.0  # a draw that float16 would make infinite
    assert set(sample_tokens(logits, noise).tolist()[1:]) == {3}
    assert 0 <= int(sample_tokens(logits, noise)[0]) < 400


def test_noise_is_far_less_than_a_number_for_every_token() -> None:
    assert blocks_of(21128) == (145, 146)
    for size in range(1, 300):
        blocks, width = blocks_of(size)
        assert (blocks - 1) * width < size <= blocks * width


def test_ordered_pairs_within_texts_make_up_the_area_under_the_curve() -> None:
    random = np.random.Generator(np.random.PCG64(1))
    scores = random.integers(0, 8, size=60) / 8  # with many ties
    positive = random.random(60) < 0.4
    owner = np.sort(random.integers(0, 3, size=60))
    given = [torch.from_numpy(values) for values in (scores, positive, owner)]
    won, pairs = ordered_pairs(*given, owners=3)
    expected_won = expected_pairs = 0.0
    for number in range(3):
        own = owner == number
        count = positive[own].sum() * (~positive[own]).sum()
        expected_won += count * roc_auc_score(positive[own], scores[own])
        expected_pairs += count
    assert won.item() == pytest.approx(expected_won)
    assert pairs.item() == expected_pairs
    same = ordered_pairs(torch.zeros(60), given[1], given[2], owners=3)
    assert (same[0] / same[1]).item() == 0.5


@pytest.mark.parametrize(
    ("name", "size", "shape"),
    [
        ("electra-small", 0.25, (64, 256, 1, 128)),
        ("electra-base", 1 / 3, (256, 1024, 4, 768)),
        ("electra-large", 0.25, (256, 1024, 4, 1024)),
        ("albert-tiny-zh", 0.25, (78, 312, 1, 128)),
        ("electra-base", 0.5, (384, 1536, 6, 768)),
        ("electra-small", 0.51, (131, 524, 1, 128)),
    ],
)
def test_generators_have_the_shapes_of_the_paper(name: str, size: float, shape: tuple[int, ...]) -> None:
    config = generator_config(PRESETS[name], size)
    assert (
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads,
        config.embedding_size,
    ) == shape
    assert config.attention_map == PRESETS[name].attention_map


def test_both_towers_load_by_name_where_thrice_is_not(tmp_path: Any) -> None:
    model = tiny_model("electra", [ReplacedTokenDetection(size=0.5)], pattern="all")
    batch = model.make_batch(examples(1), seed=1)
    folders = {name: str(save(e, tmp_path / (name or "main"))) for name, e in model.stock_encoders().items()}
    found = run_without_thrice(
        """
import torch, transformers
result = {}
for name, folder in arguments["folders"].items():
    called = transformers.AutoConfig.from_pretrained(folder).architectures[0]
    model, info = getattr(transformers, called).from_pretrained(folder, output_loading_info=True)
    with torch.no_grad():
        inputs = {k: torch.tensor([arguments[k]]) for k in ("input_ids", "token_type_ids")}
        given = model.eval()(**inputs).logits[0]
    result[name] = [called, sorted(info["missing_keys"]), given.tolist()]
""",
        folders=folders,
        input_ids=batch.clean.input_ids.tolist(),
        token_type_ids=batch.clean.token_type_ids.tolist(),
    )
    generator: Any = model.towers["generator"]
    with torch.no_grad():
        expected = {
            "": model.encoder.heads["rtd"](model.states(batch.clean)),
            "generator": generator.predict_tokens(generator(batch.clean)),
        }
    assert found[""][:2] == ["ElectraForPreTraining", []]
    assert found["generator"][:2] == ["ElectraForMaskedLM", []]
    for name, logits in expected.items():
        assert torch.allclose(torch.tensor(found[name][2]), logits, atol=1e-5)


@pytest.mark.parametrize("family", ["albert", "bert", "electra"])
def test_the_prediction_of_every_token_is_a_mixture_of_copy_and_head(family: str) -> None:
    model = tiny_model(family, [AllTokenMLM(rate=0.3, size=0.5)])
    batch = model.make_batch(examples(), seed=1)
    terms = model.terms(batch)
    ids, old = replaced_ids(model, batch), batch.clean.input_ids
    with torch.no_grad():
        states = model.encoder(model.objectives[0].replace(model, batch.parts["all_token_mlm"], batch.clean).packed)
        copy = model.towers["copy"](states).sigmoid().unsqueeze(1)
        mixture = (1 - copy) * model.encoder.predict_tokens(states).softmax(1)
        mixture = mixture + copy * torch.nn.functional.one_hot(ids, 20)
    assert torch.allclose(mixture.sum(1), torch.ones(len(ids)))
    expected = -mixture.gather(1, old.unsqueeze(1)).log().mean().item()
    assert terms["all_token_mlm"].mean.item() == pytest.approx(expected, abs=1e-5)
    assert terms["copy_accuracy"].mean.item() == pytest.approx(
        ((copy[:, 0] > 0.5) == (ids == old)).float().mean().item()
    )
    generator_loss = terms["generator_mlm"].mean.item()
    assert loss_of(terms).item() == pytest.approx(expected + generator_loss, abs=1e-5)
    assert model.stock_encoders()["generator"].config.family == ("albert" if family == "albert" else "electra")


def test_the_generator_of_an_ablation_of_bert_can_be_saved(tmp_path: Any) -> None:
    model = tiny_model("bert", [AllTokenMLM(size=0.5)])
    for name, encoder in model.stock_encoders().items():
        save(encoder, tmp_path / (name or "main"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"size": 0.0, "embeddings": "half"},
            "size is 0.0, expected a ratio above 0 and up to 1; embeddings is 'half'",
        ),
        ({"discriminator_weight": -1.0}, "discriminator_weight is -1.0"),
        ({"rate": 2.0}, "rate is 2.0"),
    ],
)
def test_options_of_replacing_that_make_no_sense_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match="objective rtd: ") as caught:
        ReplacedTokenDetection(**options)
    assert expected in str(caught.value)


def test_objectives_that_do_not_go_together_are_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="all_token_mlm and rtd both want a tower called generator"):
        tiny_model("electra", [AllTokenMLM(), ReplacedTokenDetection()])
    with pytest.raises(ConfigError, match="rtd wants a model of the family electra"):
        tiny_model("albert", [ReplacedTokenDetection()])
    both = tiny_model("bert", [MaskedLM(), AllTokenMLM(), NextSentence()])
    with pytest.raises(ConfigError, match="all_token_mlm and mlm do not go together: all_token_mlm predicts"):
        both.make_batch(examples(), seed=1)
    assert set(both.make_batch(examples(), seed=1, objectives=["mlm", "nsp"]).parts) == {"mlm", "nsp"}
    with pytest.raises(ConfigError, match="no objective called 'mln' here; did you mean mlm"):
        both.make_batch(examples(), seed=1, objectives=["mln"])


def test_samples_are_tokens_of_the_vocabulary_even_where_the_table_has_more_rows() -> None:
    model = tiny_model("electra", [ReplacedTokenDetection(rate=0.5)], vocab_size=40)
    model.vocabulary = vocabulary(20)
    batch = model.make_batch(examples(), seed=1)
    assert int(replaced_ids(model, batch).max()) < 20
    model.terms(batch)
