"""Writing stock folders: read after write is the identity, and nothing that was there is lost."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tiny_checkpoints import HEADS, change_tensors, outputs, same_bits, shard, tiny_encoder

from thrice.checkpoints import carried_config, load, read_sidecar, save
from thrice.errors import CheckpointError
from thrice.model.packing import pack
from thrice.sharing.patterns import describe


@pytest.mark.parametrize("family", sorted(HEADS))
@pytest.mark.parametrize("pattern", ["none", "all", "attention", "ffn", "groups=2", "cycle=2", "groups=3"])
def test_read_after_write_is_the_identity(family: str, pattern: str, tmp_path: Path) -> None:
    encoder = tiny_encoder(
        family,
        pattern,
        heads=[head for head in HEADS[family] if head != "token"],
        hidden_dropout_prob=0.25,
        attention_probs_dropout_prob=0.125,
        classifier_dropout_prob=0.5,
        hidden_act="relu",
        layer_norm_eps=1e-7,
    )
    if "pooler" in encoder.heads and family != "roberta":
        del encoder.heads["pooler"]  # in these folders its place is the sequence head's
    back = load(str(save(encoder, tmp_path / "out")))
    assert back.config == encoder.config
    assert not back.training
    assert same_bits(encoder, back)
    assert torch.equal(outputs(encoder), outputs(back))
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.mark.parametrize("heads", [["token"], ["pooler", "mlm", "sentence_pair"], ["sequence"], ["pooler"], []])
def test_head_widths_and_untied_tables_come_back(heads: list[str], tmp_path: Path) -> None:
    encoder = tiny_encoder("albert", "all")
    for head in heads:
        encoder.add_head(head, num_labels=5, tied=False)
    back = load(str(save(encoder, tmp_path / "out")))
    assert same_bits(encoder, back)
    assert ("num_labels" in json.loads((tmp_path / "out/config.json").read_text())) is False


def test_stock_files_share_nothing_and_say_what_wrote_them(tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert", "all", heads=["mlm"]), tmp_path / "out")
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        names = set(file.keys())
    assert "cls.predictions.decoder.weight" not in names
    assert sum(name.endswith("query.weight") for name in names) == 4
    assert read_sidecar(folder) == {"format": 1, "attention_map": [0] * 4, "ffn_map": [0] * 4}


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("all", (4, 1, 1)),
        ("none", (4, 4, 1)),
        ("groups=2", (4, 2, 1)),
        ("cycle=2", (2, 1, 2)),
        ("attention", (4, 4, 1)),
    ],
)
def test_albert_says_its_sharing_in_its_own_numbers(pattern: str, numbers: tuple[int, ...], tmp_path: Path) -> None:
    folder = save(tiny_encoder("albert", pattern), tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    assert tuple(config[k] for k in ("num_hidden_layers", "num_hidden_groups", "inner_group_num")) == numbers
    assert (read_sidecar(folder) is not None) == (pattern == "attention")


def test_a_callers_sidecar_travels_along(tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert"), tmp_path / "out", sidecar={"task": "classification"})
    assert read_sidecar(folder) == {
        "format": 1,
        "attention_map": [0, 1, 2, 3],
        "ffn_map": [0, 1, 2, 3],
        "task": "classification",
    }
    assert read_sidecar(save(tiny_encoder("bert"), tmp_path / "plain")) is None


def test_saving_refuses_what_it_would_destroy(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/dear.txt").write_text("x")
    with pytest.raises(CheckpointError, match="holds other things than a checkpoint"):
        save(tiny_encoder("bert"), tmp_path / "letters")
    with pytest.raises(CheckpointError, match="is a file"):
        save(tiny_encoder("bert"), tmp_path / "letters/dear.txt")
    (tmp_path / "empty").mkdir()
    save(tiny_encoder("bert"), tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "letters"]


def test_saving_again_replaces_the_model_and_keeps_other_files(tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert", "all"), tmp_path / "out")
    shard(folder, ending="safetensors")
    (folder / "README.md").write_text("mine")
    encoder = tiny_encoder("albert", "none")
    save(encoder, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert same_bits(load(str(folder)), encoder)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_save_that_fails_leaves_the_old_folder_and_nothing_beside(tmp_path: Path) -> None:
    class Full:
        vocab_size = 20

        def save(self, folder: Path) -> None:
            raise OSError("no space left on device")

    old = tiny_encoder("bert")
    folder = save(old, tmp_path / "out")
    for target in (folder, tmp_path / "new"):
        with pytest.raises(OSError, match="no space left"):
            save(tiny_encoder("bert", "all"), target, tokenizer=Full())
    assert same_bits(load(str(folder)), old)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_tokenizer_travels_along_unless_it_has_ids_beyond_the_table(tmp_path: Path) -> None:
    class Words:
        def __init__(self, vocab_size: int) -> None:
            self.vocab_size = vocab_size

        def save(self, folder: Path) -> None:
            (folder / "vocab.txt").write_text("[PAD]\n")

    folder = save(tiny_encoder("bert"), tmp_path / "out", tokenizer=Words(20))
    assert (folder / "vocab.txt").is_file()
    with pytest.raises(CheckpointError, match="the tokenizer has 21 ids, the word table 20 rows"):
        save(tiny_encoder("bert"), tmp_path / "out", tokenizer=Words(21))


@pytest.mark.parametrize(
    ("family", "heads", "changes", "expected"),
    [
        ("bert", ["rtd"], {}, "bert's stock classes have no rtd head"),
        ("electra", ["pooler"], {}, "electra's stock classes have no pooler head"),
        ("roberta", ["sequence", "token"], {}, "both want the name classifier"),
        ("bert", [], {"position_offset": 2}, "position_offset is 2, its config.json says 0"),
        ("electra", [], {"embedding_size": 8}, "embedding_projection is True, its config.json says False"),
    ],
)
def test_what_stock_classes_cannot_say_is_not_written(
    family: str, heads: list[str], changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        save(tiny_encoder(family, heads=heads, **changes), tmp_path / "out")
    assert expected in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("family", "heads", "expected"),
    [
        ("bert", [], "BertModel"),
        ("bert", ["pooler", "mlm"], "BertForMaskedLM"),
        ("bert", ["pooler", "mlm", "sentence_pair", "sequence"], "BertForSequenceClassification"),
        ("electra", ["rtd", "mlm"], "ElectraForMaskedLM"),
        ("albert", ["pooler", "sentence_pair"], "AlbertModel"),
    ],
)
def test_the_class_named_is_the_one_for_the_heads(family: str, heads: list[str], expected: str, tmp_path: Path) -> None:
    folder = save(tiny_encoder(family, heads=heads), tmp_path / "out")
    assert json.loads((folder / "config.json").read_text())["architectures"] == [expected]
    assert set(load(str(folder)).heads) == set(heads) - ({"pooler"} if "sequence" in heads else set())


def test_a_pooler_beside_a_classifier_gives_way_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    encoder = tiny_encoder("bert", heads=["pooler", "sequence"])
    with caplog.at_level(logging.WARNING, logger="thrice"):
        back = load(str(save(encoder, tmp_path / "out")))
    assert "heads.pooler.dense.weight is not written" in caplog.text
    assert torch.equal(back.heads["sequence"].dense.weight, encoder.heads["sequence"].dense.weight)


def test_labels_travel_and_must_be_as_many_as_the_head_has(tmp_path: Path) -> None:
    encoder = tiny_encoder("albert", "all")
    encoder.add_head("sequence", num_labels=3)
    folder = save(encoder, tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    extra = {"id2label": {0: "bad", 1: "so-so", 2: "good"}, "problem_type": "single_label_classification"}
    folder = save(encoder, folder, extra_config=extra)
    config = json.loads((folder / "config.json").read_text())
    assert config["label2id"] == {"bad": 0, "so-so": 1, "good": 2}
    assert carried_config(folder) == {**extra, "id2label": config["id2label"], "label2id": config["label2id"]}
    save(load(str(folder)), tmp_path / "again", extra_config=carried_config(folder))
    assert json.loads((tmp_path / "again/config.json").read_text()) == config
    with pytest.raises(CheckpointError, match="names 2 labels, the sequence head has 3"):
        save(encoder, folder, extra_config={"id2label": {0: "no", 1: "yes"}})
    with pytest.raises(CheckpointError, match="hidden_size = 9, the encoder 8"):
        save(encoder, folder, extra_config={"hidden_size": 9})


def test_a_loaded_encoder_learns(tmp_path: Path) -> None:
    encoder = load(str(save(tiny_encoder("bert", "all", heads=["sequence"]), tmp_path / "out")))
    assert all(parameter.requires_grad for parameter in encoder.parameters())
    batch = pack([[2, 5, 3], [2, 6, 7, 3]])
    encoder.heads["sequence"](encoder(batch)[batch.starts]).sum().backward()
    assert encoder.attention[0].qkv.weight.grad is not None


def test_ties_that_still_hold_are_restored(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert", "attention=0,0,1,1;ffn=all")
    folder = save(encoder, tmp_path / "out")
    assert load(str(folder)).config == encoder.config
    (folder / "thrice.json").unlink()
    assert describe(load(str(folder)).config.attention_map, load(str(folder)).config.ffn_map) == "none"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            lambda f: change_tensors(f, lambda t: t["encoder.layer.2.output.dense.bias"].mul_(1.001)),
            "output.dense.bias differ",
        ),
        (lambda f: (f / "thrice.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "thrice.json").write_text("[1]"), "expected a JSON object"),
        (lambda f: (f / "thrice.json").write_text('{"attention_map": [0], "ffn_map": [0]}'), "no map of 4 calls"),
        (lambda f: (f / "thrice.json").write_text('{"attention_map": 3}'), "expected a list of whole numbers"),
    ],
)
def test_a_stale_sidecar_is_ignored_aloud(
    spoil: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save(tiny_encoder("bert", "all"), tmp_path / "out")
    spoil(folder)
    with caplog.at_level(logging.WARNING, logger="thrice"):
        encoder = load(str(folder))
    assert describe(encoder.config.attention_map, encoder.config.ffn_map) == "none"
    assert len(caplog.records) == 1
    assert "thrice.json is ignored: " in caplog.text
    assert reason in caplog.text


def test_a_sidecar_that_unties_what_config_ties_is_ignored_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save(tiny_encoder("albert", "all"), tmp_path / "out", sidecar={"attention_map": [0, 1, 2, 3]})
    with caplog.at_level(logging.WARNING, logger="thrice"):
        assert describe(load(str(folder)).config.attention_map, load(str(folder)).config.ffn_map) == "all"
    assert "no tie between the layers" in caplog.text
