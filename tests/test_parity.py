"""Stock transformers and thrice give the same numbers: read from stock folders, and written to them.

Every parameter is random, norms and biases too: with fresh ones, two LayerNorms could change places unnoticed.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from no_thrice import run_without_thrice
from safetensors.torch import load_file, save_file
from torch import Tensor

from thrice.checkpoints import load, save
from thrice.checkpoints.name_map import apart, bits_equal
from thrice.errors import CheckpointError
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.packing import from_padded, to_padded
from thrice.registry import plugins
from thrice.sharing.patterns import parse, stock_albert_layout

LENGTHS = (9, 6, 6, 2)
PAD = {"roberta": 1}

TINY: dict[str, dict[str, Any]] = {
    "bert": {"num_hidden_layers": 3},
    "roberta": {"num_hidden_layers": 3, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "albert": {"num_hidden_layers": 6, "embedding_size": 8, "hidden_act": "gelu_new"},
    "electra": {"num_hidden_layers": 3, "embedding_size": 8},
}
SIZES = {"vocab_size": 50, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}

# Stock class -> heads it carries.
HEADS = {
    "BertModel": ["pooler"],
    "BertForPreTraining": ["pooler", "mlm", "sentence_pair"],
    "BertForMaskedLM": ["mlm"],
    "BertForNextSentencePrediction": ["pooler", "sentence_pair"],
    "BertForSequenceClassification": ["sequence"],
    "BertForTokenClassification": ["token"],
    "BertForQuestionAnswering": ["span"],
    "RobertaModel": ["pooler"],
    "RobertaForMaskedLM": ["mlm"],
    "RobertaForSequenceClassification": ["sequence"],
    "RobertaForTokenClassification": ["token"],
    "RobertaForQuestionAnswering": ["span"],
    "AlbertModel": ["pooler"],
    "AlbertForPreTraining": ["pooler", "mlm", "sentence_pair"],
    "AlbertForMaskedLM": ["mlm"],
    "AlbertForSequenceClassification": ["sequence"],
    "AlbertForTokenClassification": ["token"],
    "AlbertForQuestionAnswering": ["span"],
    "ElectraModel": [],
    "ElectraForPreTraining": ["rtd"],
    "ElectraForMaskedLM": ["mlm"],
    "ElectraForSequenceClassification": ["sequence"],
    "ElectraForTokenClassification": ["token"],
    "ElectraForQuestionAnswering": ["span"],
}

READ_CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {"num_labels": 3} if name.endswith("Classification") else {}) for name in HEADS),
    *((name, {"hidden_act": "gelu_new"}) for name in HEADS if not name.startswith("Albert")),
    *((name, {"tie_word_embeddings": False}) for name in HEADS if "MaskedLM" in name or name == "AlbertForPreTraining"),
    *(("AlbertModel", {"num_hidden_groups": g, "inner_group_num": i}) for g in (1, 2, 3, 4, 6) for i in (1, 2)),
    ("AlbertForPreTraining", {"num_hidden_groups": 2, "inner_group_num": 2, "num_labels": 4}),
    ("AlbertModel", {"embedding_size": 24, "hidden_act": "gelu"}),
    ("ElectraModel", {"embedding_size": 24}),
    ("ElectraForMaskedLM", {"embedding_size": 24}),
    ("RobertaModel", {"pad_token_id": 3}),
]


def case_name(value: object) -> str:
    return "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def stock_model(class_name: str, changes: dict[str, Any]) -> Any:
    """Give a tiny stock model in eval mode with every parameter filled at random."""
    family = class_name.partition("For")[0].removesuffix("Model").lower()
    stock_class = getattr(transformers, class_name)
    config = stock_class.config_class(**{**SIZES, "max_position_embeddings": 16, **TINY[family], **changes})
    model = stock_class(config).eval()
    fill(model)
    return model


def fill(model: torch.nn.Module, std: float = 0.3) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, std, generator=generator)


def padded_inputs(config: Any) -> dict[str, Tensor]:
    """Give input_ids, attention_mask and token_type_ids (B, S), padded on the right."""
    generator = torch.Generator().manual_seed(2)
    shape = (len(LENGTHS), max(LENGTHS))
    mask = torch.arange(shape[1])[None] < torch.tensor(LENGTHS)[:, None]
    ids = torch.randint(5, config.vocab_size, shape, generator=generator)
    types = torch.randint(0, config.type_vocab_size, shape, generator=generator)
    return {
        "input_ids": torch.where(mask, ids, config.pad_token_id),
        "attention_mask": mask.long(),
        "token_type_ids": torch.where(mask, types, 0),
    }


@torch.no_grad()
def our_outputs(encoder: Encoder, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give hidden states and the output of every head, spread to (B, S, ...) where there is one for each token."""
    batch, places = from_padded(**inputs)
    rows, columns = inputs["input_ids"].shape

    def spread(values: Tensor) -> Tensor:
        return to_padded(values, places, rows=rows, columns=columns)

    hidden = encoder(batch)
    first, heads = hidden[batch.starts], encoder.heads
    outputs = {"hidden": spread(hidden)}
    assert torch.allclose(encoder.padded(**inputs), outputs["hidden"], atol=1e-6)
    if "pooler" in heads:
        outputs["pooler"] = heads["pooler"](first)
    if "sentence_pair" in heads:
        outputs["sentence_pair"] = heads["sentence_pair"](outputs["pooler"])
    if "sequence" in heads:
        outputs["sequence"] = heads["sequence"](first)
    for name in {"token", "span", "rtd"} & set(heads):
        outputs[name] = spread(heads[name](hidden))
    if "mlm" in heads:
        outputs["mlm"] = spread(encoder.predict_tokens(hidden))
    return outputs


# Also run in the process without thrice.
STOCK_OUTPUTS = """
def stock_outputs(model, inputs):
    import torch

    named = {
        "ForPreTraining": {
            "prediction_logits": "mlm",
            "sop_logits": "sentence_pair",
            "seq_relationship_logits": "sentence_pair",
        },
        "ForMaskedLM": {"logits": "mlm"},
        "ForNextSentencePrediction": {"logits": "sentence_pair"},
        "ForSequenceClassification": {"logits": "sequence"},
        "ForTokenClassification": {"logits": "token"},
    }
    with torch.no_grad():
        given = model(**inputs)
        base = model.base_model(**inputs)
    outputs = {"hidden": base.last_hidden_state}
    if getattr(base, "pooler_output", None) is not None:
        outputs["pooler"] = base.pooler_output
    head = type(model).__name__.partition("For")
    for theirs, ours in named.get("".join(head[1:]), {}).items():
        if theirs in given:
            outputs[ours] = given[theirs]
    if type(model).__name__ == "ElectraForPreTraining":
        outputs["rtd"] = given.logits
    real = inputs["attention_mask"]
    if type(model).__name__.endswith("ForQuestionAnswering"):
        outputs["span"] = torch.stack((given.start_logits, given.end_logits), -1)
    for name in {"hidden", "mlm", "token", "span", "rtd"} & set(outputs):
        outputs[name] = outputs[name] * real.view(*real.shape, *[1] * (outputs[name].dim() - 2))
    return {name: value.contiguous() for name, value in outputs.items()}
"""
_scope: dict[str, Any] = {}
exec(STOCK_OUTPUTS, _scope)
stock_outputs = _scope["stock_outputs"]


def largest_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def read_difference(class_name: str, changes: dict[str, Any], folder: Path) -> float:
    model = stock_model(class_name, changes)
    model.save_pretrained(folder)
    encoder = load(str(folder))
    assert sorted(encoder.heads) == sorted(HEADS[class_name])
    inputs = padded_inputs(model.config)
    return largest_difference(our_outputs(encoder, inputs), stock_outputs(model, inputs))


@pytest.mark.parametrize(("class_name", "changes"), READ_CASES, ids=case_name)
def test_a_stock_folder_gives_the_same_outputs_here(class_name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    assert read_difference(class_name, changes, tmp_path) <= 1e-5


@pytest.mark.parametrize(
    ("class_name", "one", "other"),
    [
        ("BertModel", "attention.{a}.LayerNorm", "ffn.{f}.LayerNorm"),
        ("RobertaModel", "attention.{a}.query", "attention.{a}.key"),
        ("AlbertModel", "attention.{a}.value", "attention.{a}.output"),
        ("AlbertModel", "attention.{a}.LayerNorm", "ffn.{f}.LayerNorm"),
        ("ElectraModel", "attention.{a}.query", "attention.{a}.key"),
        ("ElectraForPreTraining", "attention.{a}.output", "heads.rtd.dense"),
        ("AlbertForQuestionAnswering", "ffn.{f}.output", "heads.span.qa_outputs"),
    ],
)
def test_two_swapped_rows_of_a_name_table_are_noticed(
    class_name: str, one: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    formats = plugins("checkpoints.formats")
    form = formats[class_name.partition("For")[0].removesuffix("Model").lower()]

    def swapped(name: str) -> str:
        stem, _, ending = name.rpartition(".")
        return f"{({one: other, other: one}).get(stem, stem)}.{ending}"

    rows = tuple(dataclasses.replace(row, ours=swapped(row.ours)) for row in form.rows)
    assert rows != form.rows
    monkeypatch.setitem(formats, form.name, dataclasses.replace(form, rows=rows))
    if "heads" in other:  # one tensor for three layers, or one of another shape
        with pytest.raises(CheckpointError, match=r"discriminator_predictions|qa_outputs"):
            read_difference(class_name, {}, tmp_path)
    else:
        assert read_difference(class_name, {}, tmp_path) > 1e-3


def test_a_start_taken_for_an_end_is_noticed(tmp_path: Path) -> None:
    model = stock_model("BertForQuestionAnswering", {})
    model.save_pretrained(tmp_path)
    inputs = padded_inputs(model.config)
    ours, theirs = our_outputs(load(str(tmp_path)), inputs), stock_outputs(model, inputs)
    assert float((ours["span"].flip(-1) - theirs["span"]).abs().max()) > 1e-3


def test_the_wrong_gelu_is_noticed(tmp_path: Path) -> None:
    model = stock_model("BertModel", {"hidden_act": "gelu"})
    model.save_pretrained(tmp_path)
    config_file = tmp_path / "config.json"
    config_file.write_text(config_file.read_text().replace('"gelu"', '"gelu_new"'))
    inputs = padded_inputs(model.config)
    assert largest_difference(our_outputs(load(str(tmp_path)), inputs), stock_outputs(model, inputs)) > 2e-5


@pytest.mark.parametrize("case", ["another output table", "the output table alone", "the output bias alone"])
def test_untold_ties_are_read_as_stock_code_reads_them(case: str, tmp_path: Path) -> None:
    stock_model("BertForMaskedLM", {}).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    words, decoder, bias = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder", "cls.predictions.bias"
    if case == "another output table":
        tensors[f"{decoder}.weight"] = tensors[words].flip(0).contiguous()
    elif case == "the output table alone":
        tensors[f"{decoder}.weight"] = tensors.pop(words)
    else:
        tensors[f"{decoder}.bias"] = tensors.pop(bias)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = transformers.BertForMaskedLM.from_pretrained(tmp_path).eval()
    encoder = load(str(tmp_path))
    assert ("heads.mlm.decoder.weight" in encoder.state_dict()) == (case == "another output table")
    inputs = padded_inputs(model.config)
    assert largest_difference(our_outputs(encoder, inputs), stock_outputs(model, inputs)) <= 1e-5


@pytest.mark.parametrize("name", ["hf_tiny_bert_jammi", "hf_tiny_bert_coldfire"])
def test_real_small_folders_give_the_same_outputs(name: str, shared_data: Path) -> None:
    folder = shared_data / "tiny_ckpts" / name
    logging.getLogger("transformers").setLevel(logging.ERROR)  # it says, rightly, that the pooler is missing
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    inputs = padded_inputs(model.config)
    encoder = load(str(folder))
    assert list(encoder.heads) == []
    assert largest_difference(our_outputs(encoder, inputs), stock_outputs(model, inputs)) <= 1e-5


def test_the_bundled_checkpoint_gives_the_same_outputs(nano: Path) -> None:
    model = transformers.AlbertForMaskedLM.from_pretrained(nano, dtype=torch.float32).eval()
    inputs = padded_inputs(model.config)
    ours, theirs = our_outputs(load("zoo:albert-nano-zh"), inputs), stock_outputs(model, inputs)
    assert float((ours["hidden"] - theirs["hidden"]).abs().max()) <= 1e-5
    # Trained logits reach 10, where neighbouring float32 numbers lie 1e-6 apart and each logit sums 128 products.
    assert float((ours["mlm"] - theirs["mlm"]).abs().max()) <= 2e-5


def tiny_encoder(family: str, pattern: str, heads: tuple[str, ...], changes: dict[str, Any]) -> Encoder:
    """Give an encoder in eval mode with every parameter filled at random."""
    num_labels, tied = changes.pop("num_labels", 2), changes.pop("tied", True)
    embedding = changes.pop("embedding_size", 8 if family in ("albert", "electra") else SIZES["hidden_size"])
    attention_map, ffn_map = parse(pattern, 6 if family == "albert" else 3)
    config = EncoderConfig(
        family=family,
        embedding_size=embedding,
        embedding_projection=family == "albert" or embedding != SIZES["hidden_size"],
        attention_map=attention_map,
        ffn_map=ffn_map,
        max_position_embeddings=16,
        type_vocab_size=TINY[family].get("type_vocab_size", 2),
        layer_norm_eps=TINY[family].get("layer_norm_eps", 1e-12),
        pad_token_id=PAD.get(family, 0),
        position_offset=2 if family == "roberta" else 0,
        **SIZES,
        **changes,
    )
    encoder = Encoder(config).eval()
    for head in heads:
        encoder.add_head(head, num_labels=num_labels, tied=tied)
    fill(encoder.eval(), std=0.15)
    return encoder


# family, pattern, heads, changes, class that stock code is told
WRITE_CASES: list[tuple[str, str, tuple[str, ...], dict[str, Any], str]] = [
    ("bert", "none", ("pooler",), {}, "BertModel"),
    ("bert", "all", ("pooler",), {}, "BertModel"),
    ("bert", "none", ("pooler", "mlm", "sentence_pair"), {"hidden_act": "gelu_new"}, "BertForPreTraining"),
    ("bert", "none", ("mlm",), {"tied": False}, "BertForMaskedLM"),
    ("bert", "none", ("pooler", "sentence_pair"), {}, "BertForNextSentencePrediction"),
    ("bert", "attention", ("sequence",), {"num_labels": 5}, "BertForSequenceClassification"),
    ("bert", "none", ("token",), {"num_labels": 1}, "BertForTokenClassification"),
    ("bert", "attention", ("span",), {}, "BertForQuestionAnswering"),
    ("roberta", "none", ("pooler",), {}, "RobertaModel"),
    ("roberta", "none", ("mlm",), {}, "RobertaForMaskedLM"),
    ("roberta", "none", ("mlm",), {"tied": False}, "RobertaForMaskedLM"),
    ("roberta", "groups=2", ("sequence",), {"num_labels": 3}, "RobertaForSequenceClassification"),
    ("roberta", "none", ("token",), {}, "RobertaForTokenClassification"),
    ("roberta", "none", ("span",), {}, "RobertaForQuestionAnswering"),
    ("albert", "all", ("pooler",), {}, "AlbertModel"),
    ("albert", "none", ("pooler",), {"hidden_act": "gelu_new"}, "AlbertModel"),
    ("albert", "groups=2", ("mlm",), {}, "AlbertForMaskedLM"),
    ("albert", "groups=4", ("mlm",), {"tied": False}, "AlbertForMaskedLM"),
    ("albert", "cycle=2", ("pooler", "mlm", "sentence_pair"), {"num_labels": 3}, "AlbertForPreTraining"),
    ("albert", "cycle=4", ("pooler",), {}, "AlbertModel"),
    ("albert", "attention", ("sequence",), {"num_labels": 3}, "AlbertForSequenceClassification"),
    ("albert", "ffn", ("token",), {"embedding_size": 24}, "AlbertForTokenClassification"),
    ("albert", "ffn", ("span",), {"embedding_size": 24}, "AlbertForQuestionAnswering"),
    ("electra", "none", (), {"embedding_size": 24}, "ElectraModel"),
    ("electra", "none", ("rtd",), {"hidden_act": "gelu_new"}, "ElectraForPreTraining"),
    ("electra", "all", ("mlm",), {}, "ElectraForMaskedLM"),
    ("electra", "none", ("mlm",), {"tied": False, "hidden_act": "gelu_new"}, "ElectraForMaskedLM"),
    ("electra", "none", ("sequence",), {"num_labels": 4}, "ElectraForSequenceClassification"),
    ("electra", "none", ("token",), {"num_labels": 3}, "ElectraForTokenClassification"),
    ("electra", "all", ("span",), {}, "ElectraForQuestionAnswering"),
]

LOAD_IN_STOCK_CODE = (
    STOCK_OUTPUTS
    + """
import json, transformers
from pathlib import Path
from safetensors.torch import load_file, save_file

result = []
for folder in map(Path, arguments["folders"]):
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    inputs = load_file(folder.with_suffix(".inputs"))
    save_file(stock_outputs(model.eval(), inputs), folder.with_suffix(".outputs"))
    model.save_pretrained(folder.with_suffix(".again"))
    result.append({"class": name, **{key: sorted(map(str, value)) for key, value in info.items()}})
"""
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Save every case, load all of them in one process without thrice, and give what came back."""
    home = tmp_path_factory.mktemp("written")
    cases = []
    for number, (family, pattern, heads, changes, class_name) in enumerate(WRITE_CASES):
        encoder, folder = tiny_encoder(family, pattern, heads, dict(changes)), home / str(number)
        save(encoder, folder)
        inputs = padded_inputs(encoder.config)
        save_file(inputs, folder.with_suffix(".inputs"))
        cases.append(
            {"encoder": encoder, "folder": folder, "outputs": our_outputs(encoder, inputs), "wanted": class_name}
        )
    infos = run_without_thrice(LOAD_IN_STOCK_CODE, folders=[str(case["folder"]) for case in cases])
    return [{**case, **info} for case, info in zip(cases, infos, strict=True)]


@pytest.mark.parametrize(
    "number", range(len(WRITE_CASES)), ids=lambda i: "-".join((*WRITE_CASES[i][:2], WRITE_CASES[i][4]))
)
def test_a_saved_folder_is_the_same_model_without_thrice(number: int, written: list[dict[str, Any]]) -> None:
    case = written[number]
    assert case["class"] == case["wanted"]
    assert {key: case[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")} == {
        "missing_keys": [],
        "unexpected_keys": [],
        "mismatched_keys": [],
        "error_msgs": [],
    }
    theirs = load_file(case["folder"].with_suffix(".outputs"))
    assert set(case["outputs"]) <= set(theirs)
    assert largest_difference(case["outputs"], theirs) <= 1e-6
    # What stock code writes again is bit for bit what the encoder holds.
    again = apart(load(str(case["folder"].with_suffix(".again"))).state_dict())
    stored = apart(load(str(case["folder"])).state_dict())
    ours = apart(case["encoder"].state_dict())
    assert set(ours) == set(stored)
    assert all(bits_equal(ours[name], stored[name]) for name in ours)
    config = case["encoder"].config
    for name, tensor in again.items():
        assert bits_equal(tensor, ours[_shared_name(name, config)]), name


def _shared_name(name: str, config: EncoderConfig) -> str:
    """Give the encoder's name for a parameter of what stock code wrote, where layers may stand apart."""
    room, block, *rest = name.split(".")
    exact = config.family == "albert" and stock_albert_layout(config.attention_map, config.ffn_map).exact
    if room not in ("attention", "ffn") or exact:
        return name
    used = {"attention": config.attention_map, "ffn": config.ffn_map}[room]
    return ".".join((room, str(used[int(block)]), *rest))
