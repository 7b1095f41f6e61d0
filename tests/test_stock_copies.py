"""What the copies of an un-shared stock layer keep: config, hooks, dtype, device, frozen parameters, modes, places."""

from __future__ import annotations

import functools
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_albert import STEPS, backward, config, equal, groups_of, inputs_for, outputs_of, stock
from torch import Tensor, nn
from transformers import AlbertForMaskedLM, AlbertForSequenceClassification, AlbertModel

from thrice.sharing import unshare
from thrice.sharing.transform import copied


@pytest.mark.parametrize("first", ["set", "unshare"])
@pytest.mark.parametrize("cls", [AlbertModel, AlbertForSequenceClassification], ids=lambda cls: cls.__name__)
def test_attention_implementation_reaches_every_copy(cls: type[nn.Module], first: str) -> None:
    model = stock(cls)
    if first == "set":
        model.set_attn_implementation("eager")
        before = outputs_of(model)
        unshare(model)
    else:
        before = outputs_of(unshare(model))
        model.set_attn_implementation("eager")
    configs = {id(part.config) for part in model.modules() if hasattr(part, "config")}
    assert configs == {id(model.config)}
    attentions = model(**inputs_for(model), output_attentions=True).attentions
    assert len(attentions) == STEPS
    assert all(attention.shape == (2, 3, 7, 7) for attention in attentions)
    torch.testing.assert_close(outputs_of(model), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", ["argument", "config"])
@pytest.mark.parametrize("inner", [1, 2])
@pytest.mark.parametrize("asked", ["output_attentions", "output_hidden_states"])
@pytest.mark.parametrize("cls", [AlbertModel, AlbertForMaskedLM], ids=lambda cls: cls.__name__)
def test_captured_outputs_are_the_same_before_and_after(cls: type[nn.Module], asked: str, inner: int, how: str) -> None:
    def captured(model: nn.Module) -> list[Tensor]:
        if how == "argument":
            return outputs_of(model, **{asked: True})
        setattr(model.config, asked, True)
        outputs = outputs_of(model)
        setattr(model.config, asked, False)
        return outputs

    plain = outputs_of(stock(cls, inner=inner, attn_implementation="eager"))
    asked_before = stock(cls, inner=inner, attn_implementation="eager")
    before = captured(asked_before)  # transformers installs its capturing hooks on the shared layer here
    assert len(before) - len(plain) == STEPS * inner + (asked == "output_hidden_states")
    assert equal(before, captured(unshare(asked_before)))
    asked_after = unshare(stock(cls, inner=inner, attn_implementation="eager"))
    assert equal(before, captured(asked_after))
    assert equal(plain, outputs_of(asked_after))


class Recorder:
    """Counts calls; a deep copy of it would count where nobody looks."""

    def __init__(self) -> None:
        self.seen: list[nn.Module] = []

    def record(self, module: nn.Module, *_: Any, **__: Any) -> None:
        self.seen.append(module)


def note_itself(layer: nn.Module, module: nn.Module, args: Any, output: Any) -> None:
    layer.noted = id(module)


def note_state(layer: nn.Module, module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
    layer.noted = id(module)


def test_hooks_of_a_shared_layer_run_on_every_copy_and_keep_their_recorder() -> None:
    model, recorder = stock(), Recorder()
    layer = groups_of(model)[0].albert_layers[0]
    handle = layer.register_forward_hook(recorder.record)
    layer.register_forward_hook(lambda module, args, kwargs, output: recorder.record(module), with_kwargs=True)
    layer.register_forward_pre_hook(functools.partial(Recorder.record, recorder))
    layer.attention.register_full_backward_hook(recorder.record)
    layer.ffn.register_forward_hook(types.MethodType(note_itself, layer.ffn))
    layer.ffn_output.register_forward_hook(functools.partial(note_itself, layer))
    layer.register_state_dict_post_hook(functools.partial(note_state, layer))
    layer.register_load_state_dict_pre_hook(recorder.record)
    unshare(model)
    layers = [group.albert_layers[0] for group in groups_of(model)]
    backward(model)
    expected = [each for each in layers for _ in range(3)] + [each.attention for each in reversed(layers)]
    assert recorder.seen == expected
    assert all(each.ffn.noted == id(each.ffn) and each.noted == id(each.ffn_output) for each in layers)
    recorder.seen.clear()
    model.load_state_dict(model.state_dict())
    assert recorder.seen == layers
    assert all(each.noted == id(each) for each in layers)
    handle.remove()
    counts = [len(each._forward_hooks) for each in layers]
    assert counts == [1, 2, 2, 2]
    added = layers[2].register_forward_hook(recorder.record)
    recorder.seen.clear()
    outputs_of(model)
    assert recorder.seen.count(layers[2]) == 4
    added.remove()


def test_hooks_on_gradients_of_the_shared_layer_act_on_every_copy() -> None:
    model, seen = stock(), []
    weight = groups_of(model)[0].albert_layers[0].ffn.weight
    weight.register_hook(lambda gradient: gradient * 0)
    weight.register_post_accumulate_grad_hook(seen.append)
    weight.requires_grad_(False)
    weight.note = "kept"
    unshare(model)
    weights = [group.albert_layers[0].ffn.weight for group in groups_of(model)]
    assert [each.requires_grad for each in weights] == [False] * STEPS
    assert [each.note for each in weights] == ["kept"] * STEPS
    for each in weights:
        each.requires_grad_(True)
    backward(model)
    assert all(torch.count_nonzero(each.grad) == 0 for each in weights)
    assert {id(each) for each in seen} == {id(each) for each in weights}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_copies_keep_dtype_frozen_parameters_and_modes(dtype: torch.dtype) -> None:
    model = stock(groups=2).to(dtype).train()
    group = groups_of(model)[1]
    group.albert_layers[0].attention.eval()
    group.albert_layers[0].ffn.weight.requires_grad_(False)
    unshare(model)
    for step, group in enumerate(groups_of(model)):
        layer = group.albert_layers[0]
        assert {parameter.dtype for parameter in group.parameters()} == {dtype}
        assert layer.training
        assert [part.training for part in layer.attention.modules()] == [step < 2] * 8
        frozen = [name for name, parameter in layer.named_parameters() if not parameter.requires_grad]
        assert frozen == (["ffn.weight"] if step >= 2 else [])


def test_no_copy_starts_with_the_gradient_summed_over_the_calls() -> None:
    model = stock(groups=3)  # steps 0 and 1 share, steps 2 and 3 do not
    backward(model)
    kept = [groups_of(model)[g].albert_layers[0].ffn.weight.grad for g in (1, 2)]
    unshare(model)
    gradients = [group.albert_layers[0].ffn.weight.grad for group in groups_of(model)]
    assert gradients[:2] == [None, None]
    assert gradients[2] is kept[0]
    assert gradients[3] is kept[1]
    assert model.embeddings.word_embeddings.weight.grad is not None


def test_models_on_the_meta_device_are_unshared_without_memory() -> None:
    with torch.device("meta"):
        model = AlbertForMaskedLM(config())
    unshare(model)
    assert len(groups_of(model)) == STEPS
    assert all(parameter.is_meta for parameter in model.parameters())


def test_copies_start_where_the_mapped_weights_start_modulo_64_bytes(tmp_path: Path) -> None:
    stock(hidden_size=32, num_attention_heads=2).save_pretrained(tmp_path)
    model = AlbertModel.from_pretrained(tmp_path).eval()
    one_token = torch.tensor([[5]])
    with torch.no_grad():
        before = model(one_token).last_hidden_state
        starts = [parameter.data_ptr() % 64 for parameter in groups_of(model)[0].parameters()]
        assert torch.equal(unshare(model)(one_token).last_hidden_state, before)
    assert any(starts), "transformers copies weights out of the file by now: this test shows nothing"
    for group in groups_of(model):
        assert [parameter.data_ptr() % 64 for parameter in group.parameters()] == starts
    model.save_pretrained(tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").stat().st_size < 4 * model.num_parameters() + 16_384


def test_layers_unshared_in_inference_mode_can_be_trained() -> None:
    model = stock()
    with torch.inference_mode():
        unshare(model)
    backward(model)
    assert all(group.albert_layers[0].ffn.weight.grad is not None for group in groups_of(model))


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def test_parametrised_layers_are_unshared_with_parametrisations_of_their_own() -> None:
    model = stock()
    layer = groups_of(model)[0].albert_layers[0]
    nn.utils.parametrize.register_parametrization(layer.ffn, "weight", Doubled())
    nn.utils.parametrizations.weight_norm(layer.ffn_output)
    before = outputs_of(model)
    assert equal(before, outputs_of(unshare(model)))
    backward(model)
    originals = [group.albert_layers[0].ffn.parametrizations.weight.original for group in groups_of(model)]
    assert len({id(original) for original in originals}) == STEPS
    assert all(original.grad is not None for original in originals)


def test_what_points_into_a_layer_points_into_the_copy_afterwards() -> None:
    layer = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    layer[1].weight = layer[0].weight
    layer.shortcuts = [layer[0], {"last": layer[1]}]
    layer.cache = layer(torch.ones(1, 3))  # has a history: copy.deepcopy raises
    layer.counter = Recorder()
    layer.forward = types.MethodType(lambda self, x: self[0](x) + 1, layer)
    twin = copied(layer)
    assert twin.shortcuts[0] is twin[0]
    assert twin.shortcuts[1]["last"] is twin[1]
    assert twin[1].weight is twin[0].weight
    assert twin[0].weight is not layer[0].weight
    assert twin.cache is layer.cache
    assert twin.counter is layer.counter
    with torch.no_grad():
        twin[0].bias.add_(1)
    assert not torch.equal(twin(torch.ones(1, 3)), layer(torch.ones(1, 3)))
