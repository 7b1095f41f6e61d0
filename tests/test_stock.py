"""Un-sharing of transformers' ALBERT objects: same object, same outputs, gradients and files of its own."""

from __future__ import annotations

import copy
import logging
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from no_thrice import run_without_thrice
from tiny_albert import BERT_SIZES, STEPS, backward, config, equal, groups_of, inputs_for, outputs_of, stock
from torch import Tensor, nn
from transformers import (
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
)

from thrice.errors import SharingError
from thrice.sharing import share, unshare

CLASSES = [
    AlbertModel,
    AlbertForPreTraining,
    AlbertForMaskedLM,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertForQuestionAnswering,
    AlbertForMultipleChoice,
]

every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


@every_class
@pytest.mark.parametrize(("groups", "inner"), [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)])
def test_unshared_albert_gives_identical_outputs(cls: type[nn.Module], groups: int, inner: int) -> None:
    model = stock(cls, groups=groups, inner=inner)
    before, shared_group = outputs_of(model), groups_of(model)[0]
    assert unshare(model) is model
    assert equal(before, outputs_of(model))
    assert (model.config.num_hidden_groups, model.config.num_hidden_layers) == (STEPS, STEPS)
    assert model.config.inner_group_num == inner
    assert len(groups_of(model)) == STEPS
    assert groups_of(model)[0] is shared_group
    parameters = list(groups_of(model).parameters())
    assert len({parameter.data_ptr() for parameter in parameters}) == len(parameters) == STEPS * inner * 16


@every_class
@pytest.mark.parametrize(("groups", "inner"), [(1, 1), (3, 1), (2, 2)])
def test_shared_gradient_is_the_sum_over_the_copies(cls: type[nn.Module], groups: int, inner: int) -> None:
    shared = stock(cls, groups=groups, inner=inner)
    own = unshare(copy.deepcopy(shared))
    backward(shared)
    backward(own)
    scale = max(p.grad.abs().max() for p in shared.parameters() if p.grad is not None)
    steps_of = [[i for i in range(STEPS) if int(i / (STEPS / groups)) == g] for g in range(groups)]
    for group, steps in zip(groups_of(shared), steps_of, strict=True):
        for name, parameter in group.named_parameters():
            gradients = [groups_of(own)[step].get_parameter(name).grad for step in steps]
            torch.testing.assert_close(sum(gradients), parameter.grad, rtol=1e-6, atol=1e-6 * scale.item())
            if "key.bias" not in name:  # softmax ignores it: its gradient is rounding noise
                assert all(gradient.any() for gradient in gradients)
                assert len({gradient.norm().item() for gradient in gradients}) == len(steps)
    outside = dict(shared.named_parameters())
    for name, parameter in own.named_parameters():
        if "albert_layer_groups" not in name and parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, outside[name].grad, rtol=1e-6, atol=1e-6 * scale.item())


STOCK_PROCESS = """
import pathlib, torch, transformers
torch.set_num_threads(1)
result = []
for folder in sorted(pathlib.Path(arguments["root"]).iterdir()):
    kept = torch.load(folder / "kept.pt", weights_only=True)
    model, loading = getattr(transformers, kept["class"]).from_pretrained(folder, output_loading_info=True)
    state = model.eval().state_dict()
    same = state.keys() == kept["state"].keys() and all(torch.equal(state[name], kept["state"][name]) for name in state)
    with torch.no_grad():
        outputs = model(**kept["inputs"]).to_tuple()
    off = max((output - wanted).abs().max().item() for output, wanted in zip(outputs, kept["outputs"], strict=True))
    result.append([folder.name, not any(loading.values()), same, off])
"""


def test_saved_folders_load_in_a_process_that_cannot_import_thrice(tmp_path: Path) -> None:
    folders = []
    for cls in CLASSES:
        for groups, inner in ((1, 1), (2, 2)):
            model = unshare(stock(cls, groups=groups, inner=inner))
            folder = tmp_path / f"{cls.__name__}-{groups}-{inner}"
            model.save_pretrained(folder)
            with torch.no_grad():
                outputs = outputs_of(model)
            kept = {"class": cls.__name__, "inputs": inputs_for(model), "outputs": outputs, "state": model.state_dict()}
            torch.save(kept, folder / "kept.pt")
            folders.append(folder.name)
    loaded = run_without_thrice(STOCK_PROCESS, root=str(tmp_path))
    assert [row[:3] for row in loaded] == [[folder, True, True] for folder in sorted(folders)]
    assert max(row[3] for row in loaded) <= 1e-6


@pytest.mark.parametrize("cls", [AlbertForPreTraining, AlbertForMaskedLM], ids=lambda cls: cls.__name__)
def test_masked_language_heads_stay_tied_to_the_word_table(cls: type[nn.Module], tmp_path: Path) -> None:
    model = unshare(stock(cls))
    assert model.predictions.decoder.weight is model.albert.embeddings.word_embeddings.weight
    assert model.predictions.decoder.bias is model.predictions.bias
    model.save_pretrained(tmp_path)
    again = cls.from_pretrained(tmp_path)
    assert again.predictions.decoder.weight is again.albert.embeddings.word_embeddings.weight


def test_stock_trainer_trains_every_layer_of_a_model_from_model_init(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    stock(AlbertForSequenceClassification).save_pretrained(tmp_path / "shared")
    initial = stock(AlbertForSequenceClassification).state_dict()
    rows = [{"input_ids": [i + 1, 2 * i + 2, 3], "labels": i % 2} for i in range(8)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=3,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        use_cpu=True,
        dataloader_pin_memory=False,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        seed=1,
    )
    trainer = Trainer(
        model_init=lambda: unshare(AlbertForSequenceClassification.from_pretrained(tmp_path / "shared")),
        args=arguments,
        train_dataset=rows,
    )
    trainer.train()
    trained = groups_of(trainer.model)
    assert len(trained) == STEPS
    name = "albert_layers.0.ffn.weight"
    moves = [group.state_dict()[name] - initial[f"albert.encoder.albert_layer_groups.0.{name}"] for group in trained]
    assert all(move.abs().max() > 1e-3 for move in moves)
    assert all(not torch.equal(moves[i], moves[j]) for i in range(STEPS) for j in range(i))
    trainer.save_model(str(tmp_path / "out"))
    again = AlbertForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert equal(outputs_of(trainer.model.eval().cpu()), outputs_of(again))


class Towers(nn.Module):
    """A user's own module around two ALBERTs that were built from one config object."""

    def __init__(self) -> None:
        super().__init__()
        one = config(groups=2)
        self.query, self.passage = AlbertModel(one), AlbertModel(one)

    def forward(self, **inputs: Tensor) -> Any:
        hidden = self.query(**inputs).last_hidden_state + self.passage(**inputs).last_hidden_state
        return types.SimpleNamespace(to_tuple=lambda: (hidden,))


def test_a_users_module_is_unshared_in_every_albert_it_holds() -> None:
    model = Towers().eval()
    before = outputs_of(model)
    assert unshare(model) is model
    assert equal(before, outputs_of(model))
    assert [len(groups_of(tower)) for tower in (model.query, model.passage)] == [STEPS, STEPS]


def test_every_config_around_the_layers_is_updated() -> None:
    from transformers import BertLMHeadModel, EncoderDecoderModel

    decoder = BertLMHeadModel(BertConfig(is_decoder=True, add_cross_attention=True, **BERT_SIZES))
    model = EncoderDecoderModel(encoder=stock(), decoder=decoder)
    assert model.encoder.config is not model.encoder.encoder.config  # the composite gives its parts configs of its own
    unshare(model)
    assert model.config.encoder.num_hidden_groups == model.encoder.encoder.config.num_hidden_groups == STEPS


def test_a_list_that_holds_one_group_several_times_counts_as_shared() -> None:
    model = stock()
    groups_of(model).extend([groups_of(model)[0]] * (STEPS - 1))
    model.config.num_hidden_groups = STEPS
    before = outputs_of(model)
    assert equal(before, outputs_of(unshare(model)))
    assert len({id(group) for group in groups_of(model)}) == STEPS


@pytest.mark.parametrize(
    ("groups", "inner", "pattern", "stored"),
    [
        (1, 1, "groups=2", 2),
        (1, 1, "0,0,1,1", 2),
        (1, 1, "groups=3", None),  # thrice says 0,0,1,2, and so does stock code
        (2, 1, "groups=4", 4),
        (1, 2, "0,1,0,1,2,3,2,3", 2),
    ],
)
def test_patterns_that_a_stock_config_can_say(groups: int, inner: int, pattern: str, stored: int | None) -> None:
    model = stock(AlbertForMaskedLM, groups=groups, inner=inner)
    before = outputs_of(model)
    assert equal(before, outputs_of(unshare(model, pattern)))
    assert model.config.num_hidden_groups == len(groups_of(model)) == (stored or 3)
    assert equal(before, outputs_of(unshare(model)))


@pytest.mark.parametrize(
    ("groups", "inner", "pattern", "message"),
    [
        (1, 1, "attention", "no stock ALBERT config .* can say 'attention'.*thrice.load"),
        (1, 1, "cycle=2", "no stock ALBERT config .* can say 'cycle=2'.*thrice.load"),
        (1, 1, "0,1,1,1", "no stock ALBERT config"),
        (3, 1, "groups=2", "'groups=2' would make layers share that differ now .'groups=3'.*thrice.share"),
        (4, 1, "all", "would make layers share that differ now .'none'.*thrice.share"),
        (1, 2, "groups=4", "thrice.share"),
        (1, 1, "groups=9", "from 1 to 4"),
        (1, 1, "nonne", "did you mean none"),
    ],
)
def test_patterns_that_do_not_fit_leave_the_model_alone(groups: int, inner: int, pattern: str, message: str) -> None:
    model = stock(groups=groups, inner=inner)
    before = outputs_of(model)
    with pytest.raises(SharingError, match=message):
        unshare(model, pattern)
    assert model.config.num_hidden_groups == len(groups_of(model)) == groups
    assert equal(before, outputs_of(model))


def test_groups_follow_the_floating_point_formula_of_stock_code() -> None:
    model = AlbertModel(config(num_hidden_layers=18))
    with pytest.raises(SharingError, match=r"int\(i / \(layers / groups\)\)"):
        unshare(model, "groups=14")  # whole numbers put step 9 into group 7, stock code into group 6
    model = stock(num_hidden_layers=18, num_hidden_groups=14)
    before = outputs_of(model)
    assert equal(before, outputs_of(unshare(model)))
    assert torch.equal(groups_of(model)[9].albert_layers[0].ffn.weight, groups_of(model)[8].albert_layers[0].ffn.weight)


def says(caplog: pytest.LogCaptureFixture, action: Callable[[], Any]) -> str:
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="thrice"):
        action()
    return caplog.text


def test_unsharing_what_is_not_shared_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = stock()
    assert says(caplog, lambda: unshare(model)) == ""
    held = list(model.parameters())
    assert "nothing to un-share: the sharing of this AlbertModel is 'none'" in says(caplog, lambda: unshare(model))
    assert all(a is b for a, b in zip(held, model.parameters(), strict=True))
    bert = BertModel(BertConfig(**BERT_SIZES))
    assert "every layer of this BertModel has its own weights already" in says(caplog, lambda: unshare(bert))
    assert unshare(bert) is bert
    with pytest.raises(SharingError, match="BertModel shares nothing"):
        unshare(bert, "all")


def test_groups_that_are_never_called_are_nothing_to_unshare(caplog: pytest.LogCaptureFixture) -> None:
    model = stock(groups=7)
    before = outputs_of(model)
    assert "nothing to un-share" in says(caplog, lambda: unshare(model))
    assert equal(before, outputs_of(model))


def test_what_is_no_albert_is_refused_with_what_is_accepted() -> None:
    distilbert = DistilBertModel(DistilBertConfig(vocab_size=9, dim=8, n_heads=2, hidden_dim=8, n_layers=1))
    with pytest.raises(SharingError, match=r"distilbert.*unshare takes AlbertModel"):
        unshare(distilbert)
    with pytest.raises(SharingError, match="Linear holds no transformers ALBERT: unshare takes"):
        unshare(nn.Linear(2, 2))
    with pytest.raises(SharingError, match="expected a model, got str"):
        unshare("albert/albert-base-v2")  # type: ignore[type-var]
    with pytest.raises(SharingError, match="share takes thrice's own models, got AlbertModel"):
        share(stock(), "all")


def test_two_models_on_one_config_object_are_told_apart() -> None:
    one = config()
    first, second = AlbertModel(one), AlbertModel(one)
    unshare(first)
    with pytest.raises(SharingError, match=r"num_hidden_groups=4, the model has 1 groups.*copy.deepcopy"):
        unshare(second)


class DistributedDataParallel(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class PretendLoraLayer(nn.Linear):
    __module__ = "peft.tuners.lora.layer"


class Packed(nn.Parameter):
    """Stands for the parameter classes of quantisation packages."""


def test_wrapped_adapted_and_quantised_models_are_refused_before_anything_changes() -> None:
    model = stock()
    layer = groups_of(model)[0].albert_layers[0]
    with pytest.raises(SharingError, match=r"wrapped by DistributedDataParallel. - un-share the plain model first"):
        unshare(DistributedDataParallel(model))
    layer.ffn = PretendLoraLayer(24, 40)
    layer.ffn_output.weight = Packed(torch.zeros(24, 40))
    with pytest.raises(
        SharingError, match=r"peft.tuners.lora.layer.PretendLoraLayer is .*; weight of Linear is .* but Packed"
    ):
        unshare(model)
    assert len(groups_of(model)) == 1
