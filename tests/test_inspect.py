"""Looking into a checkpoint: every tensor has a fate, sizes are counted, weights are left on the disk."""

from __future__ import annotations

import io
import json
import math
import struct
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file, save_file
from tiny_checkpoints import change_config, change_tensors, tiny_config, tiny_encoder

from thrice.checkpoints import inspect, load, save
from thrice.checkpoints.name_map import wanted_shapes
from thrice.errors import CheckpointError
from thrice.terminal import inspection


@pytest.mark.parametrize(
    ("family", "pattern", "heads"),
    [
        ("albert", "all", ["pooler", "mlm", "sentence_pair"]),
        ("albert", "attention", ["sequence"]),
        ("bert", "groups=2", ["mlm"]),
        ("roberta", "none", ["pooler"]),
        ("electra", "ffn", ["rtd"]),
    ],
)
def test_every_tensor_has_a_fate_and_parameters_are_counted(
    family: str, pattern: str, heads: list[str], tmp_path: Path
) -> None:
    encoder = tiny_encoder(family, pattern, heads=heads)
    folder = save(encoder, tmp_path / "out")
    report = json.loads(json.dumps(inspect(str(folder))))
    assert (report["family"], report["sharing"], report["problems"]) == (family, pattern, [])
    assert sorted(report["heads"]) == sorted(heads)
    assert sorted(tensor["name"] for tensor in report["tensors"]) == sorted(load_file(folder / "model.safetensors"))
    assert all(tensor["fate"].startswith("read as ") for tensor in report["tensors"])
    stored = sum(parameter.numel() for parameter in encoder.parameters())
    assert report["parameters_stored"] == stored
    attention, ffn = (sum(p.numel() for p in blocks[0].parameters()) for blocks in (encoder.attention, encoder.ffn))
    repeated = (4 - len(encoder.attention)) * attention + (4 - len(encoder.ffn)) * ffn
    assert report["parameters_called"] == stored + repeated


def test_copies_of_a_tied_block_are_told_apart_from_the_one_that_is_read(tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert", "all"), tmp_path / "out")
    fates = {tensor["name"]: tensor["fate"] for tensor in inspect(str(folder))["tensors"]}
    first, last = (f"encoder.layer.{i}.output.dense.weight" for i in (0, 3))
    assert fates[first] == "read as ffn.0.output.weight"
    assert fates[last] == f"read as ffn.0.output.weight, bit-equal to {first}"


def test_a_checkpoint_that_cannot_be_loaded_is_still_shown(tmp_path: Path) -> None:
    folder = save(tiny_encoder("bert"), tmp_path / "out")

    def spoil(tensors: dict) -> None:
        tensors["strange"] = tensors.pop("encoder.layer.0.output.dense.bias")

    change_tensors(folder, spoil)
    change_config(folder, intermediate_size=13)
    report = inspect(str(folder))
    fates = {tensor["name"]: (tensor["shape"], tensor["fate"]) for tensor in report["tensors"]}
    assert fates["strange"] == ([8], "unexpected: no row in the bert table")
    assert fates["encoder.layer.0.output.dense.bias"] == ([8], "missing")
    fate = "read as ffn.3.intermediate.bias, but is (12,), the model wants (13,)"
    assert fates["encoder.layer.3.intermediate.dense.bias"] == ([12], fate)
    assert len(report["problems"]) == 2 + 3 * 4
    with pytest.raises(CheckpointError, match="14 problems with"):
        load(str(folder))


def test_only_headers_are_read(tmp_path: Path) -> None:
    """A folder of 1.2 GB on paper: its tensors lie in a hole of the file that takes no room on the disk."""
    folder = save(tiny_encoder("albert"), tmp_path / "out")
    config = tiny_config("albert", hidden_size=2048, intermediate_size=8192, num_attention_heads=16)
    change_config(folder, hidden_size=2048, intermediate_size=8192, num_attention_heads=16)
    # Names of the small file, shapes of the large config.
    tensors = inspect(str(folder))["tensors"]
    large = wanted_shapes(config, {}, untied=False)
    header, at = {}, 0
    for tensor in tensors:
        ours = tensor["fate"].removeprefix("read as ").partition(",")[0]
        size = 4 * math.prod(large[ours])
        header[tensor["name"]] = {"dtype": "F32", "shape": list(large[ours]), "data_offsets": [at, at + size]}
        at += size
    written = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(written)) + written)
        file.truncate(8 + len(written) + at)
    assert at > 8e8
    report = inspect(str(folder))
    assert report["problems"] == []
    assert report["parameters_stored"] == at // 4
    assert (folder / "model.safetensors").stat().st_blocks * 512 < 1e6


def test_the_bundled_checkpoint_and_presets_can_be_looked_at() -> None:
    report = inspect("zoo:albert-nano-zh")
    assert (report["family"], report["sharing"], list(report["heads"])) == ("albert", "all", ["mlm"])
    assert report["parameters_stored"] == sum(p.numel() for p in load("zoo:albert-nano-zh").parameters())
    # Stored parameters of the size table in millions, encoder without pooler.
    for name, millions in (("albert-tiny-zh", 4.0), ("albert-base", 11.1), ("albert-xxlarge", 206)):
        report = inspect(f"preset:{name}")
        assert report["parameters_stored"] / 1e6 == pytest.approx(millions, rel=0.01)
        assert {tensor["fate"] for tensor in report["tensors"]} == {"drawn at random"}


def test_a_pattern_is_not_stored_and_so_not_looked_at(nano: Path) -> None:
    with pytest.raises(CheckpointError, match=r"without \+none"):
        inspect(f"{nano}+none")


def test_heads_say_their_classes(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert", heads=["mlm"])
    encoder.add_head("token", num_labels=7)
    assert inspect(str(save(encoder, tmp_path / "out")))["heads"] == {"token": 7, "mlm": None}
    save_file({"x": encoder.heads["mlm"].bias.detach()}, tmp_path / "out/model.safetensors")
    with pytest.raises(CheckpointError, match="look like no family"):
        inspect(str(tmp_path / "out"))


def test_every_name_is_printed_whole_however_narrow_the_screen(nano: Path) -> None:
    console = Console(width=60, file=io.StringIO())
    found = inspect(str(nano))
    inspection(found, console)
    printed = "".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "…" not in printed
    assert printed.count("family") == 1
    assert "{" not in printed.partition("tensor")[0]
