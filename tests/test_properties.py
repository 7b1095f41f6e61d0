"""Laws that hold for any input, searched by hypothesis; the laws of one function alone stand beside its other tests."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_checkpoints import HEADS, tiny_encoder

from thrice.checkpoints import load, save
from thrice.checkpoints.formats import maps_of
from thrice.checkpoints.name_map import pairs_of
from thrice.data.readers import read_table
from thrice.data.spiece import read_spiece
from thrice.data.splits import split
from thrice.data.tokenizer import Tokenizer
from thrice.errors import CheckpointError, DataError
from thrice.model.packing import pack
from thrice.registry import plugins

quick = settings(max_examples=60)
UNICODE = st.characters(codec="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any")


@quick
@given(
    data=st.binary(max_size=200), name=st.sampled_from(["a.csv", "a.tsv", "a.jsonl", "a.json", "a.csv.gz", "a.parquet"])
)
def test_any_bytes_are_a_table_or_a_data_error(folder: Path, data: bytes, name: str) -> None:
    (folder / name).write_bytes(data)
    try:
        table = read_table(folder / name)
    except DataError:
        return
    assert table.rows


@quick
@example(place=0.30078125, value=128, cut=False)  # a name of a column that is no UTF-8
@given(place=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_parquet_file_is_a_table_or_a_data_error(folder: Path, place: float, value: int, cut: bool) -> None:
    import pyarrow
    import pyarrow.parquet

    whole = folder / "whole.parquet"
    if not whole.exists():
        pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"] * 9, "label": [0, 1] * 9}), whole)
    data = bytearray(whole.read_bytes())
    data[int(place * len(data))] = value
    (folder / "b.parquet").write_bytes(data[: int(place * len(data))] if cut else data)
    try:
        read_table(folder / "b.parquet")
    except DataError as error:
        assert "b.parquet" in str(error)  # noqa: PT017 - most damage is an error, some is not


@quick
@given(rows=st.lists(st.tuples(st.text(UNICODE), st.text(UNICODE)), min_size=1, max_size=6))
def test_parquet_gives_back_any_text(folder: Path, rows: list[tuple[str, str]]) -> None:
    import pyarrow
    import pyarrow.parquet

    texts, labels = zip(*rows, strict=True)
    pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": labels}), folder / "c.parquet")
    table = read_table(folder / "c.parquet")
    assert [(row["text"], row["label"]) for row in table.rows] == rows


@quick
@given(
    rows=st.lists(st.tuples(st.text("abc ", max_size=4), st.sampled_from("xy")), min_size=30, max_size=60),
    seed=st.integers(0, 9),
)
def test_a_split_is_complete_and_parts_no_text_from_its_copies(rows: list[tuple[str, str]], seed: int) -> None:
    texts, labels = [text for text, _ in rows], [label for _, label in rows]
    try:
        parts = split(texts, labels, seed=seed)
    except DataError:
        return
    assert sorted([*parts.train, *parts.dev, *parts.test]) == list(range(len(rows)))
    sides = [{" ".join(texts[row].split()) for row in part} for part in (parts.train, parts.dev, parts.test)]
    assert not sides[0] & sides[1] | sides[0] & sides[2] | sides[1] & sides[2]


@quick
@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), min_size=1, max_size=8))
def test_packing_keeps_every_sequence(sequences: list[list[int]]) -> None:
    packed = pack(sequences)
    ends = torch.cumsum(torch.tensor(packed.lengths), 0).tolist()
    runs = [packed.input_ids[end - n : end].tolist() for end, n in zip(ends, packed.lengths, strict=True)]
    begin = dict(zip([end - n for end, n in zip(ends, packed.lengths, strict=True)], runs, strict=True))
    assert [begin[start] for start in packed.starts.tolist()] == sequences
    assert list(packed.lengths) == sorted(packed.lengths, reverse=True)


@pytest.mark.parametrize("family", sorted(HEADS))
def test_names_map_there_and_back_and_a_wrong_permutation_is_found(family: str, tmp_path: Path) -> None:
    encoder = tiny_encoder(family)
    form = plugins("checkpoints.formats")[family]
    stock = form.config_to_stock(encoder.config)
    maps = maps_of(form.slots(stock))
    pairs = [pair for pair in pairs_of(form, stock, tuple(maps.values()), bare=False) if "encoder" in pair.theirs]
    assert len({pair.theirs for pair in pairs}) == len(pairs)
    there = {pair.theirs: pair.ours for pair in pairs}
    assert len(set(there.values())) == len(there), "one place for every parameter of an unshared model"
    folder = save(encoder, tmp_path / "out")

    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    names = sorted(name for name in tensors if name.endswith("query.weight"))
    tensors[names[0]], tensors[names[1]] = tensors[names[1]], tensors[names[0]]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    wrong, right = load(str(folder)).state_dict(), encoder.state_dict()
    assert sum(not torch.equal(wrong[name], right[name]) for name in right) == 2


PIECES = [b"<pad>", b"<unk>", b"[CLS]", b"[SEP]", b"[MASK]", "▁the".encode(), b"s"]


def message(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2, len(value)]) + value


MODEL = b"".join(
    message(1, message(1, piece) + b"\x15" + struct.pack("<f", -number) + bytes([0x18, 2 if number == 1 else 3]))
    for number, piece in enumerate(PIECES)
) + message(3, message(1, b"x"))


@quick
@given(places=st.lists(st.tuples(st.integers(0, len(MODEL) - 1), st.integers(0, 255)), max_size=4), cut=st.floats(0, 1))
def test_a_damaged_sentencepiece_model_is_read_or_a_value_error(places: list[tuple[int, int]], cut: float) -> None:
    assert [piece for piece, _ in read_spiece(MODEL)["vocab"]] == [piece.decode() for piece in PIECES]
    data = bytearray(MODEL)
    for place, value in places:
        data[place] = value
    try:
        read_spiece(bytes(data[: int(cut * len(data)) + 1]))
    except ValueError:
        return


@settings(max_examples=40)
@given(places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_weights_are_read_or_a_checkpoint_error(folder: Path, places: list[tuple[float, int]]) -> None:
    if not (folder / "model").exists():
        save(tiny_encoder("bert"), folder / "model")
        (folder / "model" / "model.safetensors").rename(folder / "weights")
    data = bytearray((folder / "weights").read_bytes())
    header = 8 + struct.unpack("<Q", data[:8])[0]
    for place, value in places:
        data[int(place * header)] = value
    (folder / "model" / "model.safetensors").write_bytes(data)
    try:
        load(str(folder / "model"))
    except CheckpointError:
        return


@settings(max_examples=40)
@given(data=st.binary(max_size=60))
def test_any_bytes_as_vocab_txt_are_a_tokenizer_or_a_data_error(folder: Path, data: bytes) -> None:
    (folder / "words").mkdir(exist_ok=True)
    (folder / "words" / "vocab.txt").write_bytes(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + data)
    try:
        Tokenizer.from_folder(folder / "words")
    except DataError:
        return
