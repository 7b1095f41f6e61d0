"""A trained vocabulary is a folder that thrice and stock transformers read alike, and fits the text."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from thrice.data.corpus import prepare_corpus
from thrice.data.tokenizer import Tokenizer
from thrice.data.vocabulary_training import KINDS, SPECIAL, train_vocabulary
from thrice.errors import ConfigError, DataError

TEXT = [
    "The cat sat on the mat. The dogs sat on the logs, and the cats were sitting there.",
    "他来了。她走了！猫坐在垫子上，狗坐在木头上。",
    "Café naïve Köln: the sitting cats sat 2014 times.",
]
SAMPLES = ["The cats sat.", "猫走了 the dog", "Café [MASK] 🙂", ""]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(TEXT * 20) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_stock_transformers_and_thrice_read_the_folder_alike(tmp_path: Path, source: Path, kind: str) -> None:
    trained = train_vocabulary(source, tmp_path / "words", kind=kind, vocab_size=160)
    ours = Tokenizer.from_folder(tmp_path / "words")
    stock = transformers.AutoTokenizer.from_pretrained(tmp_path / "words")
    assert trained.fingerprint == ours.fingerprint
    encoded = stock(SAMPLES, SAMPLES[::-1])
    assert ours.encode(SAMPLES, SAMPLES[::-1]) == list(
        zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)
    )
    assert stock.convert_ids_to_tokens(range(5)) == list(SPECIAL)
    assert (ours.pad_token_id, ours.unk_token_id, ours.cls_token_id, ours.sep_token_id, ours.mask_token_id) == (
        *range(5),
    )
    assert 50 < ours.vocab_size <= 160
    assert len(stock) == ours.vocab_size


def test_wordpieces_are_chinese_characters_and_frequent_words(tmp_path: Path, source: Path) -> None:
    hf = train_vocabulary(source, tmp_path / "words", vocab_size=160).hf
    assert hf.tokenize("The cats 猫走了 café") == ["the", "cats", "猫", "走", "了", "cafe"]
    assert hf.tokenize("tac") == ["t", "##a", "##c"]
    assert hf.tokenize("龘") == ["[UNK]"]


def test_cased_vocabularies_keep_capitals_and_accents(tmp_path: Path, source: Path) -> None:
    for kind in KINDS:
        hf = train_vocabulary(source, tmp_path / kind, kind=kind, vocab_size=160, lowercase=False).hf
        assert "é" in "".join(hf.tokenize("Café")).replace("e\u0301", "é")
        assert hf.tokenize("The cat") != hf.tokenize("the cat")


def test_no_more_than_four_fifths_are_single_characters(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(map(chr, range(0x4E00, 0x4E00 + 300))) + " cats cats cats", encoding="utf-8")
    tokenizer = train_vocabulary(path, tmp_path / "words", vocab_size=200)
    tokens = tokenizer.hf.get_vocab()
    assert tokenizer.vocab_size <= 200
    # The most frequent characters first, then by their number.
    assert {"c", "a", "t", "s", "一"} <= set(tokens)
    assert "cats" in tokens
    assert sum(len(token) == 1 for token in tokens) == 4 * 200 // 5 - len(SPECIAL)


def test_wordpieces_are_the_same_in_every_training(tmp_path: Path, shared_data: Path) -> None:
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(gzip.decompress((shared_data / "zh_tech_articles" / "dev.txt.gz").read_bytes())))
    code = (
        "import sys; from thrice.data.vocabulary_training import train_vocabulary; "
        "print(train_vocabulary(sys.argv[1], sys.argv[2], vocab_size=2500).fingerprint)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code, str(path), str(tmp_path / f"words{number}")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()[-1]
        for number in range(2)
    ]
    runs.append(train_vocabulary(path, tmp_path / "here", vocab_size=2500).fingerprint)
    assert len(set(runs)) == 1


def test_a_trained_vocabulary_makes_a_corpus(tmp_path: Path, source: Path) -> None:
    for kind in KINDS:
        tokenizer = train_vocabulary(source, tmp_path / kind, kind=kind, vocab_size=160)
        corpus = prepare_corpus(source, tokenizer, tmp_path / f"{kind}-corpus")
        assert corpus.num_documents == len(TEXT)
        assert not (corpus.shard(0).ids == tokenizer.unk_token_id).any()


def test_only_so_many_characters_are_read_of_every_source_its_share(tmp_path: Path) -> None:
    for name, word in (("a", "apple "), ("b", "berry ")):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(f"{word * 9}{i}" for i in range(200)), encoding="utf-8")
    told = []
    tokenizer = train_vocabulary(
        f"{tmp_path}/*.txt",
        tmp_path / "words",
        vocab_size=120,
        most_characters=2000,
        progress=lambda *n: told.append(n),
    )
    assert tokenizer.hf.tokenize("apple berry") == ["apple", "berry"]
    assert 0 < told[-1][0] < 0.2 * told[-1][1]


def test_arguments_that_do_not_fit_are_told_all_at_once(tmp_path: Path, source: Path) -> None:
    with pytest.raises(ConfigError, match=r"'wordpeice'; did you mean wordpiece\?; vocab_size is 9.*min_frequency 0"):
        train_vocabulary(source, tmp_path / "words", kind="wordpeice", vocab_size=9, min_frequency=0)
    train_vocabulary(source, tmp_path / "words", vocab_size=160)
    with pytest.raises(ConfigError, match="holds a vocabulary already"):
        train_vocabulary(source, tmp_path / "words")


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_makes_no_vocabulary(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.txt").write_text("\n\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.txt: no text to train a vocabulary on"):
        train_vocabulary(tmp_path / "a.txt", tmp_path / "words", kind=kind)
    assert not (tmp_path / "words").exists()
