"""Reading stock folders: nothing skipped in silence, every problem said at once."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoints import HEADS, change_config, change_tensors, outputs, same_bits, shard, tiny_encoder
from torch import Tensor

from thrice.checkpoints import inspect, load, save
from thrice.checkpoints.formats import albert
from thrice.checkpoints.load import open_checkpoint
from thrice.checkpoints.name_map import apart, wanted_shapes
from thrice.errors import CheckpointError, SharingError
from thrice.sharing.patterns import describe


@pytest.mark.parametrize("family", sorted(HEADS))
def test_the_table_of_shapes_is_that_of_the_encoder(family: str) -> None:
    encoder = tiny_encoder(family, "attention", heads=HEADS[family])
    built = {name: tuple(tensor.shape) for name, tensor in apart(encoder.state_dict()).items()}
    assert wanted_shapes(encoder.config, dict.fromkeys(HEADS[family], 2), untied=False) == built


def test_loaded_tensors_lie_in_fresh_aligned_memory(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    folder = save(encoder, tmp_path / "out")
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    for at_odd_address in range(1, 4):
        shifted = json.dumps(header).encode()
        shifted += b" " * ((at_odd_address - len(shifted)) % 4)
        file.write_bytes(struct.pack("<Q", len(shifted)) + shifted + raw[8 + length :])
        entries = open_checkpoint(folder).entries
        assert {entry.read().data_ptr() % 4 for entry in entries.values()} == {at_odd_address}
        back = load(str(folder))
        assert all(parameter.data_ptr() % 64 == 0 for parameter in back.parameters())
        assert torch.equal(outputs(back), outputs(encoder))
    before = file.read_bytes()
    with torch.no_grad():
        for parameter in back.parameters():
            parameter.zero_()
    assert file.read_bytes() == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_float_becomes_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    encoder = tiny_encoder("electra").to(dtype)
    folder = save(encoder, tmp_path / "out")
    assert json.loads((folder / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    back = load(str(folder))
    assert {parameter.dtype for parameter in back.parameters()} == {torch.float32}
    assert same_bits(back, encoder.float())


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert", heads=["mlm"]), tmp_path / "out")

    def spoil(tensors: dict[str, Tensor]) -> None:
        del tensors["bert.encoder.layer.1.output.dense.bias"]
        del tensors["cls.predictions.bias"]
        tensors["bert.embeddings.LayerNorm.weight"] = torch.zeros(5)
        tensors["bert.encoder.layer.0.intermediate.dense.bias"] = torch.zeros(12, dtype=torch.int8)
        tensors["bert.encoder.layer.9.strange"] = torch.zeros(1)

    change_tensors(folder, spoil)
    with pytest.raises(CheckpointError) as caught:
        load(str(folder))
    for expected in (
        "bert checkpoint",
        "5 problems",
        "bert.encoder.layer.1.output.dense.bias is missing",
        "cls.predictions.bias is missing",
        "bert.embeddings.LayerNorm.weight is (5,), the model wants (8,)",
        "intermediate.dense.bias holds I8 numbers",
        "bert.encoder.layer.9.strange has no row",
    ):
        assert expected in str(caught.value)


def test_a_config_of_another_size_is_no_fit(tmp_path: Path) -> None:
    folder = save(tiny_encoder("albert", "all"), tmp_path / "out")
    change_config(folder, hidden_size=16)
    with pytest.raises(CheckpointError) as caught:
        load(str(folder))
    assert "17 problems with 23 tensors" in str(caught.value)
    assert "albert_layers.0.attention.query.weight is (8, 8), the model wants (16, 16)" in str(caught.value)
    assert "and 9 more. - is config.json the one these weights were saved with?" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hidden_size": "wide"}, "hidden_size is 'wide', expected a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None"),
        ({"is_decoder": True}, "is_decoder"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ({"classifier_dropout": "much"}, "classifier_dropout is 'much'"),
        ({"pad_token_id": 20}, "pad_token_id 20 lies beyond the 20 rows"),
        ({"num_attention_heads": 3}, "no multiple of num_attention_heads"),
    ],
)
def test_a_config_that_is_no_encoder_is_refused(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert"), tmp_path / "out")
    change_config(folder, **changes)
    with pytest.raises(CheckpointError, match=r"config\.json: ") as caught:
        load(str(folder))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("bert", {"model_type": "albert"}, "look like bert"),
        ("bert", {"model_type": "distilbert"}, "model_type 'distilbert'"),
        ("electra", {"model_type": "bert", "architectures": ["BertModel"]}, "look like electra"),
        ("roberta", {"model_type": ..., "architectures": ...}, "look like bert or electra or roberta"),
    ],
)
def test_config_and_tensors_must_speak_of_one_family(
    family: str, changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    folder = save(tiny_encoder(family), tmp_path / "out")
    change_config(folder, **changes)
    with pytest.raises(CheckpointError) as caught:
        load(str(folder))
    assert expected in str(caught.value)
    assert "albert, bert, electra, roberta" in str(caught.value)


def test_tensors_of_no_family_are_listed(tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert"), tmp_path / "out")
    save_file({"transformer.wte.weight": torch.zeros(2, 2)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"look like no family \(transformer.wte.weight\)"):
        load(str(folder))


def test_a_folder_without_model_type_is_known_by_its_class_or_its_tensors(tmp_path: Path) -> None:
    roberta = tiny_encoder("roberta", heads=["pooler"])
    folder = save(roberta, tmp_path / "named")
    change_config(folder, model_type=...)
    assert same_bits(load(str(folder)), roberta)
    folder = save(tiny_encoder("roberta", heads=["mlm"]), tmp_path / "spelled")
    change_config(folder, model_type=..., architectures=...)
    assert load(str(folder)).config.family == "roberta"


def test_early_spellings_and_buffers_are_read(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert", heads=["mlm"])
    folder = save(encoder, tmp_path / "out")

    def age(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if "LayerNorm" in name]:
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[old] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = torch.arange(16)[None]
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()

    change_tensors(folder, age)
    assert same_bits(load(str(folder)), encoder)
    fates = {tensor["name"]: tensor["fate"] for tensor in inspect(str(folder))["tensors"]}
    assert fates["bert.embeddings.LayerNorm.gamma"] == "read as embeddings.LayerNorm.weight"
    assert fates["bert.embeddings.position_ids"] == "dropped on purpose: a buffer that counts 0, 1, 2, ..."
    assert fates["cls.predictions.decoder.weight"] == "dropped on purpose: tied to the word table"
    change_tensors(folder, lambda t: t.update({"bert.embeddings.LayerNorm.weight": torch.zeros(8)}))
    with pytest.raises(CheckpointError, match="two names of one tensor"):
        load(str(folder))


@pytest.mark.parametrize(
    ("family", "heads", "architecture", "expected"),
    [
        ("bert", ["token", "pooler"], "BertForTokenClassification", ["pooler", "token"]),
        ("bert", ["token", "pooler"], "BertForSequenceClassification", ["sequence"]),
        ("bert", ["token", "pooler"], "BertForMultipleChoice", ["pooler"]),
        ("bert", ["token", "pooler"], "MyOwnClass", ["sequence"]),
        ("albert", ["token"], "MyOwnClass", ["token"]),
        ("roberta", ["token"], "RobertaForSequenceClassification", ["token"]),
        ("electra", ["sequence"], "ElectraForTokenClassification", ["sequence"]),
    ],
)
def test_the_class_in_config_says_what_a_classifier_is(
    family: str, heads: list[str], architecture: str, expected: list[str], tmp_path: Path
) -> None:
    folder = save(tiny_encoder(family, heads=heads), tmp_path / "out")
    change_config(folder, architectures=[architecture])
    assert sorted(load(str(folder)).heads) == expected
    fates = {tensor["name"]: tensor["fate"] for tensor in inspect(str(folder))["tensors"]}
    if "MultipleChoice" in architecture:
        assert fates["classifier.weight"] == "skipped: multiple-choice head, thrice reads none"


def test_a_missing_pooler_only_means_no_pooler_and_half_a_one_is_missing_its_half(tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert", heads=["pooler"]), tmp_path / "out")
    change_tensors(folder, lambda t: t.pop("pooler.dense.bias"))
    with pytest.raises(
        CheckpointError, match=r"1 problems.*pooler\.dense\.bias is missing \(for heads\.pooler\.dense\.bias\)"
    ):
        load(str(folder))
    change_tensors(folder, lambda t: t.pop("pooler.dense.weight"))
    assert list(load(str(folder)).heads) == []


def test_a_head_that_thrice_has_not_is_skipped_aloud(tmp_path: Path) -> None:
    folder = save(tiny_encoder("electra"), tmp_path / "out")
    change_tensors(
        folder, lambda t: t.update({f"sequence_summary.summary.{k}": torch.zeros(8) for k in ("weight", "bias")})
    )
    assert list(load(str(folder)).heads) == []
    fates = [t["fate"] for t in inspect(str(folder))["tensors"] if t["name"].startswith("sequence_summary")]
    assert fates == ["skipped: multiple-choice head, thrice reads none"] * 2


def test_a_span_head_has_a_start_and_an_end_and_nothing_else(tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert", heads=["span"]), tmp_path / "out")
    assert inspect(str(folder))["heads"] == {"span": None}
    change_tensors(
        folder, lambda t: t.update({"qa_outputs.weight": torch.zeros(3, 8), "qa_outputs.bias": torch.zeros(3)})
    )
    with pytest.raises(CheckpointError, match=r"qa_outputs\.weight is \(3, 8\), the model wants \(2, 8\)"):
        load(str(folder))


def test_groups_that_stock_code_never_calls_are_dropped(tmp_path: Path) -> None:
    encoder = tiny_encoder("albert", "none")
    folder = save(encoder, tmp_path / "out")
    # Two steps over four groups: int(i / (2 / 4)) is 0, 2.
    change_config(folder, num_hidden_layers=2)
    back = load(str(folder))
    assert describe(back.config.attention_map, back.config.ffn_map) == "none"
    assert torch.equal(back.ffn[1].output.weight, encoder.ffn[2].output.weight)
    fates = {tensor["name"]: tensor["fate"] for tensor in inspect(str(folder))["tensors"]}
    dropped = fates["encoder.albert_layer_groups.1.albert_layers.0.ffn.bias"]
    assert dropped == "dropped on purpose: stock code never calls the layer at g = 1, n = 0"


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_sharded_folders_are_read(ending: str, tmp_path: Path) -> None:
    encoder = tiny_encoder("roberta", heads=["mlm"])
    folder = save(encoder, tmp_path / "out")
    shard(folder, ending=ending)
    assert same_bits(load(str(folder)), encoder)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_bin_files_are_read_through_weights_only(zipped: bool, tmp_path: Path) -> None:
    encoder = tiny_encoder("albert", "all", heads=["mlm"])
    folder = save(encoder, tmp_path / "out")
    tensors = load_file(folder / "model.safetensors")
    # As such files do: the tied table twice, in one memory.
    tensors["predictions.decoder.weight"] = tensors["albert.embeddings.word_embeddings.weight"]
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    (folder / "model.safetensors").unlink()
    assert same_bits(load(str(folder)), encoder)


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["THRICE_TEST_BOMB"],)


def test_a_bin_file_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THRICE_TEST_BOMB", str(tmp_path / "gone off"))
    folder = save(tiny_encoder("bert"), tmp_path / "out")
    (folder / "model.safetensors").unlink()
    torch.save({"x": Bomb()}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin .*cannot be read"):
        load(str(folder))
    assert not (tmp_path / "gone off").exists()
    torch.save({"model": {"x": torch.zeros(1)}, "step": 3}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="expected a dict of tensors"):
        load(str(folder))


@pytest.mark.parametrize(
    "name", ["../other/model.safetensors", "/etc/model.safetensors", "a/b.safetensors", "..", "x.py"]
)
def test_an_index_cannot_point_outside_its_folder(name: str, tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert"), tmp_path / "out")
    save(tiny_encoder("bert"), tmp_path / "other")
    index = shard(folder, ending="safetensors")
    index.write_text(json.dumps({"weight_map": {"embeddings.word_embeddings.weight": name}}))
    with pytest.raises(CheckpointError, match="expected names of weight files beside it"):
        load(str(folder))


def test_missing_and_doubled_shards_are_named(tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert"), tmp_path / "out")
    shard(folder, ending="safetensors")
    first, second = sorted(folder.glob("model-*.safetensors"))
    kept = second.read_bytes()
    second.write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match="lies in another shard too"):
        load(str(folder))
    second.unlink()
    with pytest.raises(CheckpointError, match=rf"1 of 2 shards are missing: {second.name}"):
        load(str(folder))
    second.write_bytes(kept)
    load(str(folder))


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_a_truncated_file_is_named(keep: int, tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert"), tmp_path / "out")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"out/model\.safetensors \(\d+ bytes\) cannot be read: .*again"):
        load(str(folder))
    torch.save({"x": torch.zeros(100)}, folder / "pytorch_model.bin")
    file.unlink()
    binary = folder / "pytorch_model.bin"
    binary.write_bytes(binary.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"out/pytorch_model\.bin \(\d+ bytes\) cannot be read"):
        load(str(folder))


def test_a_pointer_file_is_recognised(tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert"), tmp_path / "out")
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        load(str(folder))


def test_a_folder_without_config_or_weights_lists_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(CheckpointError, match=r"expected config\.json; the folder holds notes\.txt"):
        load(str(tmp_path))
    (tmp_path / "config.json").write_text("not json")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        load(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"expected one of model\.safetensors.*holds config\.json; notes\.txt"):
        load(str(tmp_path))


def test_a_pattern_unshares_what_is_loaded(tmp_path: Path) -> None:
    encoder = tiny_encoder("albert", "all")
    folder = str(save(encoder, tmp_path / "out"))
    fine = load(f"{folder}+attention")
    assert describe(fine.config.attention_map, fine.config.ffn_map) == "attention"
    assert torch.equal(outputs(fine), outputs(encoder))
    assert same_bits(load(folder, sharing="attention"), fine)
    assert same_bits(load(f"{folder}+all"), encoder)
    with pytest.raises(SharingError, match="two patterns"):
        load(f"{folder}+attention", sharing="none")
    with pytest.raises(SharingError, match="share"):
        load(str(save(fine, tmp_path / "fine")) + "+all")


def test_a_preset_draws_any_sharing_from_its_generator() -> None:
    one = load("preset:albert-tiny-zh+cycle=2", generator=torch.Generator().manual_seed(5))
    two = load("preset:albert-tiny-zh", sharing="cycle=2", generator=torch.Generator().manual_seed(5))
    other = load("preset:albert-tiny-zh+cycle=2")
    assert one.config.ffn_map == (0, 1, 0, 1)
    assert same_bits(one, two)
    assert not same_bits(one, other)
    assert same_bits(other, load("preset:albert-tiny-zh+cycle=2"))
    assert not torch.equal(one.ffn[0].output.weight, one.ffn[1].output.weight)


def test_loading_leaves_the_global_random_numbers_alone(tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert"), tmp_path / "out")
    before = torch.get_rng_state()
    load(str(folder))
    assert torch.equal(torch.get_rng_state(), before)


def test_albert_groups_are_called_as_stock_code_calls_them() -> None:
    for layers in range(1, 25):
        for groups in range(1, 25):
            stock = {"num_hidden_layers": layers, "num_hidden_groups": groups, "inner_group_num": 2}
            steps = [int(i / (layers / groups)) for i in range(layers)]
            assert albert.slots(stock) == [{"g": step, "n": n} for step in steps for n in (0, 1)]
            assert {slot["g"] for slot in albert.idle_slots(stock)} == set(range(groups)) - set(steps)
    # Google's int(i / L * G) would say 7.
    assert albert.slots({"num_hidden_layers": 18, "num_hidden_groups": 14})[9] == {"g": 6, "n": 0}


def test_an_untied_folder_without_its_output_table_lacks_it(tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert", heads=["mlm"]), tmp_path / "out")
    change_config(folder, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"1 problems.*cls\.predictions\.decoder\.weight is missing"):
        load(str(folder))
