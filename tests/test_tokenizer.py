"""The vocabulary file decides; what is saved gives the same ids in a stock installation."""

from __future__ import annotations

import io
import json
import logging
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from thrice.data import Tokenizer
from thrice.data.spiece import read_spiece
from thrice.data.tokenizer import longest_first
from thrice.errors import DataError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = [*SPECIAL, "the", "cat", "sat", "on", "mat", "Cat", "a", "##s", "##é", "é", *"好不很.,!"]
CORPUS = [
    "the cat sat on the mat, and the play-offs were well-known.",
    "In 2014, (as in 2013, or 3.5 years before) the price was 10,000 - not more!",
    'He said: "the mat - is it the cat\'s?" and the dog sat on a log.',
] * 20
TEXTS = [
    "The cat sat on the mat.",
    "",
    "a [SEP] b [MASK] <unk> </s>",
    "很好不好 CATS Café naïve",
    'play-offs (2014, 2013) "x".',
    "🙂 zzz \u3000 tab\there",
    "the " * 30,
]
PAIRS = ["the mat", "a cat", "", "不好", "on 3.5", "cats", "sat " * 20]
FAMILIES = ("bert", "roberta", "albert", "electra")


def sentencepiece_model() -> bytes:
    """A small unigram model laid out like ALBERT's, trained here."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.lower() for text in CORPUS),
        model_writer=model,
        vocab_size=80,
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        pad_piece="<pad>",
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["(", ")", '"', "-", "."],
        minloglevel=2,
    )
    return model.getvalue()


SMALL_MODEL = sentencepiece_model()


def folder_with(parent: Path, **files: str | bytes | dict[str, Any]) -> Path:
    """A new folder; a name such as vocab_txt stands for vocab.txt."""
    folder = parent / f"folder-{len(list(parent.iterdir()))}"
    folder.mkdir()
    for name, content in files.items():
        stem, _, ending = name.rpartition("_")
        data = json.dumps(content) if isinstance(content, dict) else content
        (folder / f"{stem}.{ending}").write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


def bpe_folder(parent: Path) -> Path:
    trainer = tokenizers.ByteLevelBPETokenizer()
    trainer.train_from_iterator(
        CORPUS, vocab_size=350, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], show_progress=False
    )
    folder = folder_with(parent)
    trainer.save_model(str(folder))
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One source folder for each kind of vocabulary."""
    parent = tmp_path_factory.mktemp("sources")
    vocab = "\n".join(WORDS) + "\n"
    # A file that stock classes would not rebuild: cased, although the settings say nothing.
    pipeline = tokenizers.BertWordPieceTokenizer({word: place for place, word in enumerate(WORDS)}, lowercase=False)
    return {
        "vocab.txt": folder_with(parent, vocab_txt=vocab, config_json={"model_type": "bert"}),
        "vocab.txt, cased": folder_with(parent, vocab_txt=vocab, tokenizer_config_json={"do_lower_case": False}),
        "vocab.txt, albert": folder_with(
            parent,
            vocab_txt=vocab,
            config_json={"model_type": "albert"},
            tokenizer_config_json={"tokenizer_class": "AlbertTokenizer"},
        ),
        "spiece.model": folder_with(parent, spiece_model=SMALL_MODEL, config_json={"model_type": "albert"}),
        "other.model, cased": folder_with(
            parent,
            **{"30k-clean_model": SMALL_MODEL},
            tokenizer_config_json={
                "do_lower_case": False,
                "keep_accents": True,
                "mask_token": {"__type": "AddedToken", "content": "[MASK]", "lstrip": True, "normalized": False},
            },
        ),
        "vocab.json": bpe_folder(parent),
        "tokenizer.json": folder_with(parent, tokenizer_json=pipeline.to_str()),
    }


@pytest.fixture(scope="module")
def stock_answers(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What AutoTokenizer of every saved folder says, in a process that cannot import thrice."""
    parent = tmp_path_factory.mktemp("saved")
    folders = {}
    for place, (kind, source) in enumerate(sources.items()):
        for family in FAMILIES:
            folder = parent / f"{place}-{family}"
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps({"model_type": family}))
            Tokenizer.from_folder(source).save(folder)
            folders[f"{kind} + {family}"] = str(folder)
    script = """
import json, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "thrice":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocker())
try:
    import thrice
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("thrice could be imported")
from transformers import AutoTokenizer
folders, texts, pairs = json.load(sys.stdin)
answers = {}
for name, folder in folders.items():
    stock = AutoTokenizer.from_pretrained(folder)
    single, pair, cut = stock(texts), stock(texts, pairs), stock(texts, pairs, truncation=True, max_length=12)
    answers[name] = {"class": type(stock).__name__, "single": dict(single), "pair": dict(pair), "cut": dict(cut)}
json.dump(answers, sys.stdout)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script],
        input=json.dumps([folders, TEXTS, PAIRS]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


# Saving


def test_stock_auto_tokenizer_gives_the_same_ids_and_segments_beside_every_config(
    sources: dict[str, Path], stock_answers: dict[str, Any]
) -> None:
    for kind, source in sources.items():
        tokenizer = Tokenizer.from_folder(source)
        ours = {
            "single": tokenizer.encode(TEXTS),
            "pair": tokenizer.encode(TEXTS, PAIRS),
            "cut": tokenizer.encode(TEXTS, PAIRS, max_length=12),
        }
        for family in FAMILIES:
            for call, encoded in ours.items():
                stock = stock_answers[f"{kind} + {family}"][call]
                assert stock["input_ids"] == [ids for ids, _ in encoded], (kind, family, call)
                if kind == "vocab.json":
                    assert "token_type_ids" not in stock
                    assert not any(any(types) for _, types in encoded)
                else:
                    assert stock["token_type_ids"] == [types for _, types in encoded], (kind, family, call)
                    assert any(any(types) for _, types in encoded) == (call != "single")


def test_the_saved_class_is_the_one_that_rebuilds_the_file(stock_answers: dict[str, Any]) -> None:
    classes = {name: answer["class"] for name, answer in stock_answers.items()}
    assert {classes[f"vocab.txt, albert + {family}"] for family in FAMILIES} == {"BertTokenizer"}
    assert {classes[f"spiece.model + {family}"] for family in FAMILIES} == {"AlbertTokenizer"}
    assert {classes[f"vocab.json + {family}"] for family in FAMILIES} == {"RobertaTokenizer"}
    # BertTokenizer would lower-case what this tokenizer.json keeps.
    assert {classes[f"tokenizer.json + {family}"] for family in FAMILIES} == {"TokenizersBackend"}


def test_read_after_save_is_the_identity_and_vocabulary_files_travel_along(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    for kind, source in sources.items():
        tokenizer = Tokenizer.from_folder(source)
        folder = tmp_path / kind
        assert tokenizer.save(folder) == folder
        again = Tokenizer.from_folder(folder)
        assert again.fingerprint == tokenizer.fingerprint, kind
        assert again.encode(TEXTS, PAIRS) == tokenizer.encode(TEXTS, PAIRS), kind
        assert again.vocabulary_files == tokenizer.vocabulary_files
        again.save(tmp_path / "twice")  # over the files of the kind before: none of them may be left
        assert Tokenizer.from_folder(tmp_path / "twice").fingerprint == tokenizer.fingerprint, kind
    assert len({Tokenizer.from_folder(source).fingerprint for source in sources.values()}) == len(sources) - 1


def test_settings_of_the_source_machine_are_not_saved(sources: dict[str, Path], tmp_path: Path) -> None:
    Tokenizer.from_folder(sources["vocab.txt"]).save(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert not {"is_local", "local_files_only", "name_or_path", "vocab_file"} & set(settings)
    assert settings["tokenizer_class"] == "BertTokenizer"


def test_a_model_with_one_token_type_gets_no_segments(sources: dict[str, Path], tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(sources["vocab.txt"], type_vocab_size=1)
    assert not any(any(types) for _, types in tokenizer.encode(TEXTS, PAIRS))
    tokenizer.save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_input_names"] == [
        "input_ids",
        "attention_mask",
    ]


# Which file decides


def test_an_albert_config_beside_vocab_txt_gets_wordpiece_where_stock_code_gives_unknown_tokens(
    sources: dict[str, Path],
) -> None:
    from transformers import AutoTokenizer

    source = sources["vocab.txt, albert"]
    tokenizer = Tokenizer.from_folder(source, vocab_size=len(WORDS))
    assert tokenizer.hf.convert_ids_to_tokens(tokenizer.content_ids(["很好 cats"])[0]) == ["很", "好", "cat", "##s"]
    stock = AutoTokenizer.from_pretrained(source)
    assert set(stock("很好 cats", add_special_tokens=False)["input_ids"]) == {stock.unk_token_id}


def test_lower_casing_follows_the_settings_and_is_the_default(
    sources: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    word = WORDS.index
    assert Tokenizer.from_folder(sources["vocab.txt"]).content_ids(["Cat"]) == [[word("cat")]]
    assert Tokenizer.from_folder(sources["vocab.txt, cased"]).content_ids(["Cat"]) == [[word("Cat")]]
    assert Tokenizer.from_folder(sources["tokenizer.json"]).content_ids(["Cat"]) == [[word("Cat")]]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        Tokenizer.from_folder(folder_with(tmp_path, vocab_txt="\n".join([*SPECIAL, "the", "cat"])))
        assert not caplog.records
        Tokenizer.from_folder(folder_with(tmp_path, vocab_txt="\n".join([*SPECIAL, "The", "cat"])))
    assert "do_lower_case" in caplog.text


def test_truncation_and_padding_of_a_tokenizer_file_are_switched_off(tmp_path: Path) -> None:
    pipeline = tokenizers.BertWordPieceTokenizer({word: place for place, word in enumerate(WORDS)})
    pipeline.enable_truncation(4)
    pipeline.enable_padding(length=4)
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, tokenizer_json=pipeline.to_str()))
    for call in (
        lambda: tokenizer.content_ids(["the cat sat on the mat"]),
        lambda: tokenizer.encode(["the cat sat on the mat"], max_length=3),
    ):
        call()
        assert tokenizer.backend.truncation is None
        assert tokenizer.backend.padding is None
    # A stock call leaves its settings in the backend.
    tokenizer.hf(["the cat sat on the mat"], truncation=True, max_length=3, padding="max_length")
    assert [len(ids) for ids in tokenizer.content_ids(["the cat sat on the mat", "a"])] == [6, 1]


# Sentencepiece


def reference_ids(model: sentencepiece.SentencePieceProcessor, text: str) -> list[int]:
    """ALBERT's own preprocessing, then the sentencepiece library."""
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    letters = unicodedata.normalize("NFKD", text)
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter)).lower()
    ids: list[int] = model.encode(plain)
    return ids


def test_spiece_gives_the_ids_of_the_sentencepiece_library(sources: dict[str, Path]) -> None:
    tokenizer = Tokenizer.from_folder(sources["spiece.model"])
    model = sentencepiece.SentencePieceProcessor(model_proto=SMALL_MODEL)
    texts = [text for text in [*CORPUS[:3], *TEXTS] if "[" not in text]
    assert not any(model.id_to_piece(piece).endswith("3,") for piece in range(len(model)))
    assert tokenizer.content_ids(texts) == [reference_ids(model, text) for text in texts]
    offs = model.encode("play-offs")
    assert tokenizer.content_ids(["play-offs"]) == [offs]  # stock code puts a word start after the hyphen


def test_real_spiece_models_give_the_ids_of_the_sentencepiece_library(shared_data: Path, tmp_path: Path) -> None:
    lines = (shared_data / "glue_small" / "SST-2" / "dev.tsv").read_text(encoding="utf-8").split("\n")[1:450]
    texts = [line.split("\t")[0] for line in lines]
    texts += [*TEXTS[3:], "Der Preis: 3.5 Euro (inkl. MwSt.) - sofort!", "ＡＢＣ ﬁ é Ü ß"]
    # Google's code never uses pieces such as "2014,", which its vocabulary has.
    plain = [text for text in texts if not any(f"{digit}," in text for digit in range(10))]
    assert len(plain) > 400
    for name, known in (
        ("albert-de-30k-clean.model", plain),
        ("keras-hub-albert_test_vocab.spm", ["The quick brown fox", "the earth is\u3000round"]),
    ):
        folder = folder_with(tmp_path)
        shutil.copy(shared_data / "vocabs" / name, folder / "spiece.model")
        tokenizer = Tokenizer.from_folder(folder, vocab_size=30_000)
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
        assert tokenizer.content_ids(known) == [reference_ids(model, text) for text in known]
    german = Tokenizer.from_folder(tmp_path / "folder-0")
    pieces = german.hf.convert_ids_to_tokens(german.content_ids(["2014, und 2012,"])[0])
    assert [piece for piece in pieces if "," in piece] == [",", ","]
    for name, message in (("xlnet-en-32000-spiece.model", "number 1 and is \\[0\\]"), ("SOURCE.txt", "cannot be read")):
        folder = folder_with(tmp_path)
        shutil.copy(shared_data / "vocabs" / name, folder / "spiece.model")
        with pytest.raises(DataError, match=message):
            Tokenizer.from_folder(folder)


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_cut_spiece_model_is_an_error_or_plainly_shorter(share: float) -> None:
    cut = SMALL_MODEL[: int(share * len(SMALL_MODEL))]
    try:
        arguments = read_spiece(cut)
    except (ValueError, KeyError, IndexError):
        return
    assert arguments != read_spiece(SMALL_MODEL)


# Encoding


def test_encode_cuts_as_stock_truncation_does(sources: dict[str, Path]) -> None:
    for kind, source in sources.items():
        tokenizer = Tokenizer.from_folder(source)
        for max_length in (5, 6, 7, 8, 11, 16, 64):
            stock = tokenizer.hf(TEXTS, truncation=True, max_length=max_length)
            assert [ids for ids, _ in tokenizer.encode(TEXTS, max_length=max_length)] == stock["input_ids"]
            for firsts, seconds in ((TEXTS, PAIRS), (PAIRS, TEXTS)):
                stock = tokenizer.hf(firsts, seconds, truncation=True, max_length=max_length)
                ours = tokenizer.encode(firsts, seconds, max_length=max_length)
                assert [ids for ids, _ in ours] == stock["input_ids"], (kind, max_length)


@given(first=st.integers(0, 50), second=st.integers(0, 50), room=st.integers(0, 60))
def test_longest_first_fills_the_room_and_cuts_the_longer_text(first: int, second: int, room: int) -> None:
    keep_first, keep_second = longest_first(first, second, room)
    assert 0 <= keep_first <= first
    assert 0 <= keep_second <= second
    assert keep_first + keep_second == min(first + second, room)
    if keep_first < first and keep_second < second:
        assert abs(keep_first - keep_second) <= 1


# What is wrong is said


def test_ids_beyond_the_word_table_are_an_error_that_names_the_token(sources: dict[str, Path], tmp_path: Path) -> None:
    Tokenizer.from_folder(sources["vocab.txt"], vocab_size=len(WORDS))
    with pytest.raises(DataError, match=r"ids up to 20 \('!'\), the model's word table has 20 rows"):
        Tokenizer.from_folder(sources["vocab.txt"], vocab_size=len(WORDS) - 1)
    without_mask = folder_with(tmp_path, vocab_txt="\n".join(word for word in WORDS if word != "[MASK]"))
    with pytest.raises(DataError, match=r"\[MASK\]"):  # stock code adds it as a new token
        Tokenizer.from_folder(without_mask, vocab_size=len(WORDS) - 1)


def test_missing_special_tokens_are_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, vocab_txt="[PAD]\n[CLS]\nthe\n")
    with pytest.raises(DataError, match=r"lacks unk_token \(\[UNK\] or <unk>\), sep_token \(\[SEP\] or </s>\)"):
        Tokenizer.from_folder(folder)
    named = folder_with(
        tmp_path, vocab_txt="\n".join(WORDS), special_tokens_map_json={"cls_token": {"content": "[START]"}}
    )
    with pytest.raises(DataError, match=r"lacks cls_token \(\[START\]\)"):
        Tokenizer.from_folder(named)


def test_a_folder_without_vocabulary_lists_what_was_seen(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, config_json={}, vocab_json="{}")
    with pytest.raises(DataError, match=r"expected tokenizer.json, vocab.txt.*it holds config.json, vocab.json"):
        Tokenizer.from_folder(folder)
    with pytest.raises(DataError, match="empty or no folder"):
        Tokenizer.from_folder(tmp_path / "nowhere")


def test_vocabularies_that_disagree_are_an_error(sources: dict[str, Path], tmp_path: Path) -> None:
    both = folder_with(tmp_path, vocab_txt="\n".join(WORDS), spiece_model=SMALL_MODEL)
    with pytest.raises(DataError, match=r"several vocabularies, vocab.txt and spiece.model"):
        Tokenizer.from_folder(both)
    # What stock code saves after loading an albert config with a vocab.txt: a tokenizer of five tokens.
    shutil.copytree(sources["vocab.txt, albert"], tmp_path / "five")
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(tmp_path / "five").save_pretrained(tmp_path / "five")
    with pytest.raises(DataError, match=r"tokenizer.json \(5 tokens\) and vocab.txt \(21\) disagree about 18 tokens"):
        Tokenizer.from_folder(tmp_path / "five")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer_json": "{"}, "tokenizer.json cannot be read"),
        ({"vocab_txt": b"\xff\xfe"}, "vocab.txt cannot be read"),
        ({"vocab_json": "[1", "merges_txt": ""}, "vocab.json cannot be read"),
        ({"vocab_txt": "\n".join(WORDS), "tokenizer_config_json": "[3]"}, "tokenizer_config.json is no JSON object"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, files: dict[str, str | bytes], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Tokenizer.from_folder(folder_with(tmp_path, **files))


def test_a_tokenizer_file_that_adds_no_special_tokens_is_an_error(tmp_path: Path) -> None:
    bare = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    with pytest.raises(DataError, match=r"makes \['\[UNK\]'\] with types \[0\] of a text; expected \[CLS\] first"):
        Tokenizer.from_folder(folder_with(tmp_path, tokenizer_json=bare.to_str()))


# Real vocabularies


def test_the_tokenizer_of_the_package_is_read(nano: Path) -> None:
    tokenizer = Tokenizer.from_folder(nano, vocab_size=21_128)
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.cls_token_id) == (0, 100, 101)
    assert (tokenizer.sep_token_id, tokenizer.mask_token_id, tokenizer.vocab_size) == (102, 103, 21_128)
    ((ids, types),) = tokenizer.encode(["很好"], ["不好"])
    assert tokenizer.hf.convert_ids_to_tokens(ids) == ["[CLS]", "很", "好", "[SEP]", "不", "好", "[SEP]"]
    assert types == [0, 0, 0, 0, 1, 1, 1]


def test_vocab_txt_alone_is_the_tokenizer_file_of_the_package(nano: Path, tmp_path: Path) -> None:
    shutil.copy(nano / "vocab.txt", tmp_path)
    assert Tokenizer.from_folder(tmp_path).fingerprint == Tokenizer.from_folder(nano).fingerprint
