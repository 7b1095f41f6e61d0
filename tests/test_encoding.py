"""Encoding once: as stock truncation cuts, or head and tail, or chunks; and a cache that never lies."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thrice.data.encoding as encoding_module
from thrice.data import Encoded, Tokenizer, encode_texts, read_table
from thrice.errors import ConfigError

WORDS = [f"w{number}" for number in range(700)]
CLS, SEP = 2, 3
TEXTS = ["w1 w2 w3 w4 w5 w6", "", "w7", "w8 [SEP] w9 unknown", " ".join(WORDS[:40])]
PAIRS = ["w1", "w2 w3", "", "w4 w5 w6 w7 w8 w9", "w10 w11"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    return Tokenizer.from_folder(folder)


def ids_of(numbers: Sequence[int]) -> list[int]:
    """The ids of the words w0, w1, ... of these numbers."""
    return [number + 5 for number in numbers]


def sequences(encoded: Encoded) -> list[list[int]]:
    return [encoded[index].tolist() for index in range(len(encoded))]


def same(a: Encoded, b: Encoded) -> bool:
    names = ("ids", "type_ids", "offsets", "owner")
    arrays = [(getattr(a, name), getattr(b, name)) for name in names]
    return a.num_cut == b.num_cut and all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in arrays)


# The three ways of treating long texts


def test_the_arrays_have_the_stated_types_and_shapes(tokenizer: Tokenizer) -> None:
    encoded = encode_texts(tokenizer, TEXTS, max_length=8)
    assert (encoded.ids.dtype, encoded.type_ids.dtype) == (np.int32, np.uint8)
    assert (encoded.offsets.dtype, encoded.owner.dtype) == (np.int64, np.int64)
    assert encoded.ids.shape == encoded.type_ids.shape == (encoded.offsets[-1],)
    assert encoded.lengths.tolist() == [8, 2, 3, 6, 8]
    assert encoded.owner.tolist() == list(range(len(encoded))) == [0, 1, 2, 3, 4]
    assert encoded.num_cut == 1
    assert sequences(encoded)[:3] == [[CLS, *ids_of([1, 2, 3, 4, 5, 6]), SEP], [CLS, SEP], [CLS, *ids_of([7]), SEP]]


@pytest.mark.parametrize("max_length", [3, 5, 8, 11, 128])
def test_head_cuts_as_stock_truncation_does(tokenizer: Tokenizer, max_length: int) -> None:
    encoded = encode_texts(tokenizer, TEXTS, max_length=max_length)
    assert sequences(encoded) == tokenizer.hf(TEXTS, truncation=True, max_length=max_length)["input_ids"]


@pytest.mark.parametrize("max_length", [5, 6, 9, 12, 128])
def test_pairs_are_cut_longest_first_as_stock_truncation_does(tokenizer: Tokenizer, max_length: int) -> None:
    for firsts, seconds in ((TEXTS, PAIRS), (PAIRS, TEXTS)):
        encoded = encode_texts(tokenizer, firsts, seconds, max_length=max_length)
        stock = tokenizer.hf(firsts, seconds, truncation=True, max_length=max_length)
        ids, types = encoded.take(range(len(firsts)))
        assert [row.tolist() for row in ids] == stock["input_ids"]
        assert [row.tolist() for row in types] == stock["token_type_ids"]
    assert encode_texts(tokenizer, TEXTS, PAIRS, max_length=9).num_cut == 3


def test_head_and_tail_keep_128_and_382_tokens_of_512(tokenizer: Tokenizer) -> None:
    encoded = encode_texts(tokenizer, [" ".join(WORDS), "w1 w2"], max_length=512, truncation="head+tail")
    expected = [CLS, *ids_of(range(128)), *ids_of(range(700 - 382, 700)), SEP]
    assert sequences(encoded) == [expected, [CLS, *ids_of([1, 2]), SEP]]
    small = encode_texts(tokenizer, [TEXTS[4]], max_length=10, truncation="head+tail")
    assert sequences(small) == [[CLS, *ids_of([0, 1, 34, 35, 36, 37, 38, 39]), SEP]]


@given(counts=st.lists(st.integers(0, 60), min_size=1, max_size=6), max_length=st.integers(3, 40))
def test_no_way_of_cutting_exceeds_the_length_or_changes_texts_that_fit(
    tokenizer: Tokenizer, counts: list[int], max_length: int
) -> None:
    texts = [" ".join(WORDS[:count]) for count in counts]
    for truncation in ("head", "head+tail", "chunks"):
        encoded = encode_texts(tokenizer, texts, max_length=max_length, truncation=truncation, cache=False)
        assert encoded.num_cut == sum(count + 2 > max_length for count in counts)
        assert encoded.lengths.max() <= max_length
        assert sorted(set(encoded.owner.tolist())) == list(range(len(texts)))
        for index, count in enumerate(counts):
            own = [row for row, owner in zip(sequences(encoded), encoded.owner, strict=True) if owner == index]
            assert all(row[0] == CLS and row[-1] == SEP for row in own)
            content = [token for row in own for token in row[1:-1]]
            if truncation == "chunks" or count + 2 <= max_length:
                assert content == ids_of(range(count))
            else:
                assert len(own) == 1
                assert len(content) == max_length - 2
            if truncation == "chunks":
                assert all(len(row) == max_length for row in own[:-1])


def test_blocks_do_not_show_in_the_result(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, pairs = TEXTS * 5, PAIRS * 5
    calls: list[tuple[int, int]] = []
    for seconds, truncation in ((None, "chunks"), (pairs, "head")):
        options: dict[str, Any] = {"max_length": 9, "truncation": truncation, "cache": False}
        whole = encode_texts(tokenizer, texts, seconds, **options)
        with monkeypatch.context() as patch:
            patch.setattr(encoding_module, "BLOCK", 7)
            calls.clear()
            blocks = encode_texts(tokenizer, texts, seconds, **options, progress=lambda *done: calls.append(done))
        assert same(whole, blocks)
        assert calls == [(7, 25), (14, 25), (21, 25), (25, 25)]


def test_no_texts_give_no_sequences(tokenizer: Tokenizer) -> None:
    for _ in range(2):  # encoded, then from the cache
        encoded = encode_texts(tokenizer, [], max_length=8)
        assert (len(encoded), encoded.ids.shape, encoded.offsets.tolist()) == (0, (0,), [0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 2}, "2 special tokens and text need at least 3"),
        ({"max_length": 4, "pairs": PAIRS}, "3 special tokens and text need at least 5"),
        ({"max_length": 8, "truncation": "tail"}, "no truncation called 'tail'; known: head, head"),
        ({"max_length": 8, "truncation": "chunks", "pairs": PAIRS}, "for single texts"),
        ({"max_length": 8, "pairs": PAIRS[:2]}, "5 first texts and 2 second texts"),
    ],
)
def test_settings_that_do_not_fit_are_an_error(tokenizer: Tokenizer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encode_texts(tokenizer, TEXTS, options.pop("pairs", None), **options)


# The cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THRICE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every block that is really tokenised."""
    done: list[int] = []
    honest = Tokenizer.content_ids

    def counted(self: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        done.append(len(texts))
        return honest(self, texts)

    monkeypatch.setattr(Tokenizer, "content_ids", counted)
    return done


def test_the_second_time_comes_from_the_cache(tokenizer: Tokenizer, cache: Path, work: list[int]) -> None:
    calls: list[tuple[int, int]] = []
    for pairs, truncation in ((None, "chunks"), (PAIRS, "head")):
        work.clear()
        first = encode_texts(tokenizer, TEXTS, pairs, max_length=8, truncation=truncation)
        assert work
        work.clear()
        calls.clear()
        second = encode_texts(
            tokenizer, TEXTS, pairs, max_length=8, truncation=truncation, progress=lambda *done: calls.append(done)
        )
        assert not work
        assert calls == [(5, 5)]
        assert same(first, second)
        second.ids[:1] = 0  # writeable, as torch.from_numpy wants it
    assert len(list(cache.iterdir())) == 2


def test_everything_that_decides_the_ids_is_part_of_the_key(
    tokenizer: Tokenizer, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS[::-1]]))
    other = Tokenizer.from_folder(tmp_path)
    one_type = Tokenizer.from_folder(tmp_path, type_vocab_size=1)
    for count, (who, texts, pairs, options) in enumerate(
        [
            (tokenizer, ["w1", "w2 w3"], None, {"max_length": 8}),
            (tokenizer, ["w1w2", " w3"], None, {"max_length": 8}),
            (tokenizer, ["w1", "w2 w3", ""], None, {"max_length": 8}),
            (tokenizer, ["w1"], ["w2 w3"], {"max_length": 8}),
            (tokenizer, ["w1", "w2 w3"], None, {"max_length": 9}),
            (tokenizer, ["w1", "w2 w3"], None, {"max_length": 8, "truncation": "chunks"}),
            (tokenizer, ["w1", "w2 w3"], None, {"max_length": 8, "truncation": "head+tail"}),
            (other, ["w1", "w2 w3"], None, {"max_length": 8}),
            (one_type, ["w1", "w2 w3"], None, {"max_length": 8}),
        ],
        start=1,
    ):
        encode_texts(who, texts, pairs, **options)  # type: ignore[arg-type]
        assert len(list(cache.iterdir())) == count
    monkeypatch.setattr(encoding_module, "FORMAT", encoding_module.FORMAT + 1)
    encode_texts(tokenizer, ["w1", "w2 w3"], max_length=8)
    assert len(list(cache.iterdir())) == 10


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other arrays"])
def test_a_damaged_cache_file_is_replaced(
    tokenizer: Tokenizer, cache: Path, work: list[int], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    import safetensors.numpy

    first = encode_texts(tokenizer, TEXTS, max_length=8)
    (path,) = cache.iterdir()
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "flipped":
        data[-1] ^= 1
    elif damage == "empty":
        data.clear()
    else:
        data = bytearray(safetensors.numpy.save({"ids": np.zeros(3)}))
    path.write_bytes(data)
    work.clear()
    with caplog.at_level(logging.WARNING):
        assert same(encode_texts(tokenizer, TEXTS, max_length=8), first)
    assert work
    assert "encoding again" in caplog.text
    work.clear()
    assert same(encode_texts(tokenizer, TEXTS, max_length=8), first)
    assert not work


def test_a_cache_that_cannot_be_written_is_only_a_warning(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("a file, where a folder is wanted")
    monkeypatch.setenv("THRICE_CACHE", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING):
        encoded = encode_texts(tokenizer, TEXTS, max_length=8)
    assert len(encoded) == len(TEXTS)
    assert "cannot write the cache file" in caplog.text


def test_the_cache_lies_where_the_environment_says(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THRICE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    encode_texts(tokenizer, TEXTS, max_length=8)
    assert len(list((tmp_path / "xdg" / "thrice").iterdir())) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    encode_texts(tokenizer, TEXTS, max_length=8, cache=False)
    assert not (tmp_path / "home").exists()
    encode_texts(tokenizer, TEXTS, max_length=8)
    assert len(list((tmp_path / "home" / ".cache" / "thrice").iterdir())) == 1


# Real text


def test_real_chinese_and_english_texts_are_encoded_as_stock_does(
    shared_data: Path, nano: Path, tmp_path: Path
) -> None:
    (tmp_path / "vocab.txt").write_bytes((shared_data / "vocabs" / "bert-base-uncased-vocab.txt").read_bytes())
    reviews = read_table(shared_data / "fewclue" / "bustm.test_public.json.gz")
    english = read_table(shared_data / "glue_small" / "RTE" / "dev.tsv")
    for folder, table in ((nano, reviews), (tmp_path, english)):
        tokenizer = Tokenizer.from_folder(folder)
        firsts = [*table.texts("sentence1")[:300], "[CLS] 很好 [SEP] good [MASK]", "  "]
        seconds = [*table.texts("sentence2")[:300], "", "[SEP]"]
        for max_length in (8, 32):
            stock = tokenizer.hf(firsts, truncation=True, max_length=max_length)
            assert sequences(encode_texts(tokenizer, firsts, max_length=max_length)) == stock["input_ids"]
            stock = tokenizer.hf(firsts, seconds, truncation=True, max_length=max_length)
            ids, types = encode_texts(tokenizer, firsts, seconds, max_length=max_length).take(range(len(firsts)))
            assert [row.tolist() for row in ids] == stock["input_ids"]
            assert [row.tolist() for row in types] == stock["token_type_ids"]


def test_encoded_sequences_can_be_packed(tokenizer: Tokenizer) -> None:
    from thrice.model.packing import pack

    ids, types = encode_texts(tokenizer, TEXTS, PAIRS, max_length=9).take([4, 0, 2])
    batch = pack(ids, types)
    assert batch.lengths == (9, 9, 4)
    assert batch.input_ids.tolist() == [token for row in ids for token in row]
    assert batch.token_type_ids.tolist() == [token for row in types for token in row]
