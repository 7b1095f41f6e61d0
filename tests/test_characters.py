"""From characters to tokens and back: a span that tokens can say is the same characters, whatever the script."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from thrice.data.characters import Aligner, characters, encode_with_places, occurrences
from thrice.data.tokenizer import Tokenizer
from thrice.errors import ConfigError

ZOO = Path(__file__).parents[1] / "src" / "thrice" / "zoo" / "albert-nano-zh"
SCRIPTS = st.text(
    st.one_of(
        st.sampled_from("爱情公寓的作者是周星驰《》，。年月日"),
        st.sampled_from("abcXYZ éüßİıﬁ0123456789 .-'\t\n\u3000\u00a0"),
        st.sampled_from("ＡＢｃ１２％＄ｶﾞ"),
        st.sampled_from("👍🏽👩\u200d👩\u200d👧🇨🇳😀\ufe0f"),
        st.sampled_from("e\u0301n\u0303각ก็हि\u0644\u0627\u202e\ufeff\x00"),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=40,
)


@pytest.fixture(scope="module")
def wordpiece() -> Tokenizer:
    return Tokenizer.from_folder(ZOO)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A byte-level BPE, which parts one character into several tokens."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the cat the hat that 公寓公寓"] * 5, trainer)
    folder = tmp_path_factory.mktemp("bytes")
    backend.model.save(str(folder))
    return Tokenizer.from_folder(folder)


def round_trip(tokenizer: Tokenizer, text: str) -> int:
    """Check every span of a text, and give how many of them tokens can say."""
    encoded, (places,) = encode_with_places(tokenizer, [text], max_length=1000)
    assert len(places) == len(encoded[0]) - len(tokenizer.single)
    assert encoded[0].tolist() == tokenizer.encode([text])[0][0]
    aligner, said = Aligner(text, places), 0
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            tokens = aligner.tokens(start, end)
            if tokens is not None:
                said += 1
                assert characters(places, *tokens) == (start, end)
            found = aligner.find(text[start:end])
            assert tokens is None or found is not None
            if found is not None:
                first, last = characters(places, *found)
                assert text[first:last] == text[start:end]
    return said


@given(SCRIPTS)
@settings(max_examples=60)
def test_any_span_is_the_same_characters_again_or_cannot_be_said(wordpiece: Tokenizer, text: str) -> None:
    round_trip(wordpiece, text)


@given(SCRIPTS)
@settings(max_examples=40)
def test_the_same_where_one_character_is_several_tokens(byte_level: Tokenizer, text: str) -> None:
    round_trip(byte_level, text)


def test_what_can_be_said_is_what_begins_and_ends_with_tokens(wordpiece: Tokenizer, byte_level: Tokenizer) -> None:
    assert round_trip(wordpiece, "爱情公寓") == 10
    assert round_trip(wordpiece, "在 2019 年") == 6  # 在, 2019 and 年: no part of the number, no edge that is a blank
    assert round_trip(byte_level, "👍公") == 3
    text = "ＡＢ 👍🏽 公寓"
    _, (places,) = encode_with_places(wordpiece, [text], max_length=20)
    tokens = Aligner(text, places).find("👍🏽")
    assert tokens is not None
    assert text[slice(*characters(places, *tokens))] == "👍🏽"
    assert Aligner(text, places).find(" 公寓") is None
    assert Aligner(text, places).find("公寓")


def test_tokens_beyond_the_maximum_length_have_no_place(wordpiece: Tokenizer) -> None:
    encoded, places = encode_with_places(wordpiece, ["爱情公寓", "爱", ""], max_length=4)
    assert encoded.lengths.tolist() == [4, 3, 2]
    assert [len(p) for p in places] == [2, 1, 0]
    assert encoded.num_cut == 1
    assert Aligner("爱情公寓", places[0]).find("公寓") is None
    empty, none = encode_with_places(wordpiece, [], max_length=4)
    assert len(empty) == len(none) == 0
    with pytest.raises(ConfigError, match="max_length is 2"):
        encode_with_places(wordpiece, ["a"], max_length=2)


def test_the_first_occurrence_that_tokens_can_say_is_taken(wordpiece: Tokenizer) -> None:
    text = "2019 年 19 日"
    _, (places,) = encode_with_places(wordpiece, [text], max_length=20)
    tokens = Aligner(text, places).find("19")
    assert tokens is not None
    assert characters(places, *tokens) == (7, 9)


def test_occurrences_overlap_and_nothing_occurs_nowhere() -> None:
    assert list(occurrences("aaaa", "aa")) == [0, 1, 2]
    assert list(occurrences("aaaa", "")) == []
    assert list(occurrences("", "a")) == []


def test_places_are_kept_apart_from_ids(wordpiece: Tokenizer) -> None:
    encoded, places = encode_with_places(wordpiece, ["甲乙", "丙"], max_length=9)
    assert encoded.ids.dtype == np.int32
    assert encoded.owner.tolist() == [0, 1]
    assert [p.tolist() for p in places] == [[[0, 1], [1, 2]], [[0, 1]]]
