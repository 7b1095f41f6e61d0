"""What every pre-training objective must keep: the contract, the cost counted by hand, and that it learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from contracts import objective_contract
from pretraining import example, examples, tiny_model
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from thrice.data.segments import PretrainingExample, generator_of
from thrice.model.flops import head_flops, packed_flops
from thrice.objectives.base import Objective, Term, loss_of
from thrice.objectives.mlm import MaskedLM
from thrice.objectives.model import PretrainingModel
from thrice.objectives.sop import SentenceOrder
from thrice.registry import plugins

FAMILY = {
    "rtd": "electra",
    "all_token_mlm": "electra",
    "mpn": "albert",
    "mlm": "albert",
    "nsp": "bert",
    "sop": "albert",
}
RATE = {"rate": 0.3}
OPTIONS = {"rtd": {**RATE, "size": 0.75}, "all_token_mlm": {**RATE, "size": 0.75}, "mpn": RATE, "mlm": RATE}


def objective(name: str, **options: Any) -> Objective:
    made: Objective = plugins("objectives")[name](**{**OPTIONS.get(name, {}), **options})
    return made


def test_every_objective_of_the_essays_is_there() -> None:
    assert set(plugins("objectives")) == {"all_token_mlm", "mlm", "mpn", "nsp", "rtd", "sop"} == set(FAMILY)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("pattern", ["none", "all"])
def test_the_contract_holds(name: str, pattern: str) -> None:
    objective_contract(tiny_model(FAMILY[name], [objective(name)], pattern=pattern), examples(9))


@pytest.mark.parametrize("name", FAMILY)
def test_operations_that_run_are_those_counted(name: str) -> None:
    model = tiny_model(FAMILY[name], [objective(name)]).train()
    batch = model.make_batch(examples(5), seed=1)
    with FlopCounterMode(display=False) as counter:
        model.loss(batch).backward()
    squares = sum(n * n for n in batch.clean.lengths)
    towers = [model.encoder.config]
    if "generator" in model.towers:
        towers.append(model.towers["generator"].config)
    if "proposal" in model.towers:
        towers.append(model.towers["proposal"].encoder.config)
    # torch does not count the scores and sums of its fused attention on a CPU.
    attention = sum(3 * 4 * squares * c.hidden_size * c.num_calls for c in towers)
    assert counter.get_total_flops() + attention == model.flops(batch)


def test_operations_of_masked_tokens_with_pairs_are_those_counted_by_hand() -> None:
    model = tiny_model("albert", [MaskedLM(rate=0.3), SentenceOrder()])
    batch = model.make_batch([example([7, 8, 9], [10, 11])], seed=1)
    # 8 tokens, 2 of them chosen; N = 4 calls, H = 8, E = 4, I = 12, V = 20.
    layers = 4 * (8 * 2 * (4 * 8 * 8 + 2 * 8 * 12) + 4 * 8 * 8 * 8)
    heads = 2 * 2 * (8 * 4 + 4 * 20) + 2 * 8 * 8 + 2 * 8 * 2
    assert batch.parts["mlm"].count == 2
    # Behind the last attention it is 3 of the 8: those chosen and the first.
    unread = 2 * (8 * 8 + 2 * 8 * 12)
    assert model.flops(batch) == 3 * (8 * 2 * 4 * 8 + layers - 5 * unread + heads)
    assert packed_flops(model.config, [8]) == 8 * 2 * 4 * 8 + layers
    assert head_flops(model.config, "mlm", rows=2) == 2 * 2 * (8 * 4 + 4 * 20)
    alone = model.make_batch([example([7, 8, 9], [10, 11])], seed=1, objectives=["sop"])
    assert model.flops(alone) == 3 * (8 * 2 * 4 * 8 + layers - 7 * unread + 2 * 8 * 8 + 2 * 8 * 2)


def test_terms_of_several_objectives_stand_side_by_side_whatever_their_order() -> None:
    both = tiny_model("albert", [SentenceOrder(weight=0.5), MaskedLM(rate=0.3)])
    terms = both.terms(both.make_batch(examples(), seed=1))
    assert list(terms) == ["mlm", "mlm_accuracy", "sop", "sop_accuracy"]
    expected = terms["mlm"].mean + 0.5 * terms["sop"].mean
    assert loss_of(terms).item() == pytest.approx(expected.item())


def test_two_token_objectives_run_a_pass_each() -> None:
    model = tiny_model("electra", [objective("rtd"), MaskedLM(rate=0.3)])
    batch = model.make_batch(examples(), seed=1)
    parts = [model.make_batch(examples(), seed=1, objectives=[name]) for name in ("rtd", "mlm")]
    assert model.loss(batch).item() == pytest.approx(sum(model.loss(p).item() for p in parts), rel=1e-5)
    assert model.flops(batch) == sum(model.flops(part) for part in parts)
    assert model.parameter_counts()["encoder"][0] == sum(p.numel() for p in model.encoder.parameters())
    assert batch.num_tokens == sum(len(e.input_ids) for e in examples())
    assert batch.num_examples == 6
    assert batch.to("meta").clean.input_ids.device.type == "meta"
    assert batch.to("meta").parts["rtd"].noise.device.type == "meta"


def test_a_mean_of_nothing_is_nothing() -> None:
    assert Term(torch.tensor(0.0), 0.0).mean.item() == 0
    assert Term(torch.tensor(0.0), torch.tensor(0.0)).mean.item() == 0
    assert Term(torch.tensor(3.0), torch.tensor(2.0)).mean.item() == 1.5


def test_generators_of_examples_are_apart() -> None:
    drawn = [
        generator_of(seed, key, purpose).random()
        for seed, key, purpose in ((1, (0, 1), 0), (2, (0, 1), 0), (1, (1, 0), 0), (1, (0, 1), 1))
    ]
    assert len(set(drawn)) == 4
    assert generator_of(1, (0, 1)).random() == drawn[0]


# --- it learns: 50 sentences


def sentences(label: bool) -> list[PretrainingExample]:
    generator = np.random.Generator(np.random.PCG64(11))
    made = []
    for number in range(50):
        tokens = generator.integers(5, 30, size=8).tolist()
        made.append(
            example(tokens[:4], tokens[4:], label=int(generator.random() < 0.5) if label else -100, number=number)
        )
    return made


def learner(family: str, objectives: Sequence[Objective]) -> PretrainingModel:
    maps = {"attention_map": (0, 1), "ffn_map": (0, 1)}
    shape = {"vocab_size": 30, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96, **maps}
    narrow = 24 if family in ("albert", "electra") else 48
    return tiny_model(family, objectives, fill=None, **shape, embedding_size=narrow, initializer_range=0.1)


def train(model: PretrainingModel, texts: Sequence[PretrainingExample], *, steps: int, lr: float = 5e-3) -> Any:
    """Train on one batch, hidden in the same way every time; gives its terms at the end."""
    batch = model.make_batch(texts, seed=1)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=lr)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss(batch).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return model.eval().terms(batch)


@pytest.mark.parametrize("name", ["mlm", "nsp", "sop"])
def test_hidden_tokens_and_pairs_of_fifty_sentences_are_learned_by_heart(name: str) -> None:
    terms = train(learner(FAMILY[name], [objective(name)]), sentences(True), steps=100)
    assert terms[name].mean.item() < 0.05
    assert terms[f"{name}_accuracy"].mean.item() == 1


@pytest.mark.parametrize("name", ["rtd", "all_token_mlm"])
def test_the_main_encoder_learns_what_a_generator_that_stays_bad_replaced(name: str) -> None:
    """A generator that learns the sentences by heart replaces nothing; so it is held at its fresh weights here."""
    model = learner("electra", [objective(name, embeddings="none", size=0.5)])
    model.towers["generator"].requires_grad_(False)
    terms = train(model, sentences(False), steps=100)
    assert terms["replaced_fraction"].mean.item() > 0.9
    assert terms[name].mean.item() < 0.05
    if name == "rtd":
        assert terms["rtd_auc"].mean.item() > 0.999
    else:
        # Where the sample is right by chance, copying it is enough.
        assert terms["all_token_mlm_accuracy"].mean.item() > 0.9


@pytest.mark.parametrize("name", ["rtd", "all_token_mlm"])
def test_both_towers_learn_fifty_sentences_together(name: str) -> None:
    steps = 250 if name == "rtd" else 100
    terms = train(learner("electra", [objective(name, size=1.0)]), sentences(False), steps=steps)
    assert terms["generator_mlm"].mean.item() < 0.12
    assert terms[name].mean.item() < 0.05
    assert terms["replaced_fraction"].mean.item() < 0.1, "what the generator knows by heart it gives back"


def test_masked_tokens_are_learned_by_heart_wherever_the_proposal_moves_the_masks() -> None:
    model = learner("albert", [objective("mpn", hidden_size=16, embedding_size=8)])
    terms = train(model, sentences(False), steps=300)
    assert terms["mpn"].mean.item() < 0.2
    assert terms["mpn_accuracy"].mean.item() > 0.95
    assert terms["effective_sample"].mean.item() > 0.3
