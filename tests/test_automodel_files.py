"""What is read of folders of families that are not ours, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_checkpoints import change_config, change_tensors, shard
from tiny_stock import stock_folder
from torch import Tensor

from thrice.checkpoints import load, load_any
from thrice.data.tokenizer import Tokenizer
from thrice.errors import CheckpointError, DataError, SharingError, ThriceError
from thrice.model.stock import StockEncoder


def stock_of(folder: Path) -> StockEncoder:
    encoder = load_any(str(folder))
    assert isinstance(encoder, StockEncoder)
    return encoder


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_shards_and_plain_pickles_of_half_precision_are_read(ending: str, tmp_path: Path) -> None:
    stock_folder("distilbert", tmp_path)
    change_tensors(tmp_path, lambda held: held.update({name: t.bfloat16() for name, t in held.items()}))
    whole = stock_of(tmp_path).state_dict()
    shard(tmp_path, ending=ending)
    again = stock_of(tmp_path).state_dict()
    assert all(tensor.dtype == torch.float32 for tensor in again.values())
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_every_tensor_that_does_not_fit_is_named(tmp_path: Path) -> None:
    stock_folder("distilbert", tmp_path, head="AutoModelForMaskedLM")

    def spoil(held: dict[str, Tensor]) -> None:
        del held["distilbert.transformer.layer.1.ffn.lin1.bias"]
        held["distilbert.extra.weight"] = torch.zeros(2)
        held["distilbert.embeddings.LayerNorm.weight"] = torch.ones(7)
        held["some_head.weight"] = torch.zeros(2)

    change_tensors(tmp_path, spoil)
    with pytest.raises(CheckpointError, match="3 problems with") as caught:
        load_any(str(tmp_path))
    for word in ("layer.1.ffn.lin1.bias is missing", "extra.weight has no place", "is (7,), the model wants (12,)"):
        assert word in str(caught.value)
    assert "some_head" not in str(caught.value)


def test_counters_and_tables_of_older_versions_are_no_tensors_without_a_place(tmp_path: Path) -> None:
    stock_folder("deberta-v2", tmp_path, head="AutoModelForMaskedLM")
    whole = stock_of(tmp_path).state_dict()

    def older(held: dict[str, Tensor]) -> None:
        held["deberta.embeddings.position_ids"] = torch.arange(48).unsqueeze(0)
        held["deberta.embeddings.position_embeddings.weight"] = torch.zeros(48, 12)  # as deberta-v3-base has it
        held["deberta.embeddings.LayerNorm.gamma"] = held.pop("deberta.embeddings.LayerNorm.weight")

    change_tensors(tmp_path, older)
    again = stock_of(tmp_path).state_dict()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_a_class_in_which_padding_is_heard_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stock_of(stock_folder("distilbert", tmp_path / "distilbert"))
    assert not caplog.records
    stock_of(stock_folder("ConvBertConfig", tmp_path / "convbert", num_attention_heads=2, embedding_size=12))
    assert "padding moves the hidden states of ConvBertModel" in caplog.text


def test_a_class_that_needs_more_than_ids_is_refused(tmp_path: Path) -> None:
    stock_folder("XmodConfig", tmp_path)
    with pytest.raises(CheckpointError, match="does not run on ids and a mask alone: Input language unknown"):
        load_any(str(tmp_path))


def test_a_number_that_is_none_is_refused(tmp_path: Path) -> None:
    stock_folder("distilbert", tmp_path)
    change_tensors(tmp_path, lambda held: held["embeddings.LayerNorm.bias"].fill_(float("nan")))
    with pytest.raises(CheckpointError, match=r"1 of .* tensors hold NaN"):
        load_any(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"auto_map": {"AutoModel": "code.Model"}}, "runs no code out of a checkpoint"),
        ({"model_type": "gpt2"}, "reads left to right"),
        ({"model_type": "bart"}, "encoder with a decoder"),
        ({"model_type": "vit"}, "no sequence classifier of vit"),
        ({"model_type": "nobody-knows"}, "knows no model_type"),
    ],
)
def test_what_is_no_encoder_of_transformers_is_refused_with_the_reason(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    stock_folder("distilbert", tmp_path)
    change_config(tmp_path, **changes, **({"is_encoder_decoder": True} if "bart" in changes.values() else {}))
    for name in (str(tmp_path), f"stock:{tmp_path}"):
        with pytest.raises(CheckpointError, match=reason):
            load_any(name)
    with pytest.raises(CheckpointError, match=reason):
        load(str(tmp_path))


def test_a_config_that_transformers_refuses_is_an_error_of_ours(tmp_path: Path) -> None:
    stock_folder("distilbert", tmp_path)
    change_config(tmp_path, n_layers="many")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_any(str(tmp_path))


def test_patterns_are_for_our_families_and_the_plain_loader_says_who_takes_the_others(tmp_path: Path) -> None:
    folder = stock_folder("distilbert", tmp_path)
    with pytest.raises(SharingError, match=r"no .*patterns"):
        load_any(f"{folder}+none")
    with pytest.raises(SharingError, match=r"no .*patterns"):
        load_any(f"stock:{folder}+none")
    with pytest.raises(CheckpointError, match="thrice finetune` and `thrice compare` take it as it is"):
        load(str(folder))
    with pytest.raises(CheckpointError, match="without stock:"):
        load(f"stock:{folder}")
    with pytest.raises(SharingError, match="expected stock:zoo:albert-nano-zh, or zoo:albert-nano-zh"):
        load_any("stock:zoo:albert-nano-zh+none")
    with pytest.raises(ThriceError, match="expected stock: and a folder"):
        load_any("stock:preset:bert-tiny")


@pytest.mark.parametrize("file", ["spm.model", "sentencepiece.bpe.model"])
def test_a_sentencepiece_that_is_not_alberts_is_not_read_as_one(file: str, tmp_path: Path) -> None:
    folder = stock_folder("deberta-v2", tmp_path)
    (folder / file).write_bytes(b"\n\x00")
    Tokenizer.from_folder(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"a tokenizer\.json is expected beside it"):
        Tokenizer.from_folder(folder)
