"""Exact match and F1 of answers, against cases worked out by hand and rules of the official scripts."""

from __future__ import annotations

import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thrice.data.answers import exact_match, f1

CASES: list[tuple[str, list[str], float, float]] = [
    # text, gold answers, exact match, F1
    ("The Denver Broncos!", ["denver  broncos"], 1, 1),
    ("Broncos", ["Denver Broncos"], 0, 2 / 3),  # precision 1, recall 1/2
    ("the cat sat", ["cat", "a cat sat down"], 0, 4 / 5),  # the better of 2/3 and 2 * 2 / (2 + 3)
    ("cat cat dog", ["cat dog dog"], 0, 2 / 3),  # a bag: cat once, dog once, of three words each
    ("1,000", ["1000"], 1, 1),
    ("1964–1965", ["1964-1965"], 0, 0),  # only ASCII punctuation goes in English, and it leaves no gap
    ("re-enter", ["re enter"], 0, 0),
    ("", [], 1, 1),  # a question without an answer
    ("Denver", [], 0, 0),
    ("", ["Denver"], 0, 0),
    ("the", [], 1, 1),  # nothing is left of it
    ("", ["the"], 1, 1),  # a gold answer of which nothing is left is none
    ("x", ["the", "x"], 1, 1),
    ("北京大学", ["北京"], 0, 2 / 3),
    ("《红楼梦》", ["红楼梦。"], 1, 1),
    ("1998年3月", ["1998年"], 0, 2 * 2 / (4 + 2)),  # 1998, 年, 3, 月
    ("1998", ["1998年"], 0, 2 / 3),
    ("京北", ["北京"], 0, 1),  # a bag
    ("NBA球队", ["nba 球队"], 1, 1),
    ("(１２)A组", ["12a组"], 1, 1),  # full-width forms are the same characters
    ("东京タワー", ["東京タワー"], 0, 4 / 5),
]


@pytest.mark.parametrize(("text", "golds", "exact", "overlap"), CASES)
def test_answers_are_scored_as_worked_out_by_hand(text: str, golds: list[str], exact: float, overlap: float) -> None:
    assert exact_match(text, golds) == exact
    assert f1(text, golds) == pytest.approx(overlap, abs=1e-12)


def squad_words(text: str) -> list[str]:
    """Give words as `normalize_answer` and `get_tokens` of SQuAD's evaluate-v2.0.py do, step by step."""
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", text).split()).split()


def squad_f1(gold: str, said: str) -> float:
    gold_words, words = squad_words(gold), squad_words(said)
    same = sum((Counter(gold_words) & Counter(words)).values())
    if not gold_words or not words:
        return int(gold_words == words)
    if same == 0:
        return 0
    precision, recall = same / len(words), same / len(gold_words)
    return (2 * precision * recall) / (precision + recall)


english = st.lists(st.sampled_from(["the", "A", "an", "Cat", "cat,", "dog", "–", "3.5", "U.S.", "é", "don't", ""])).map(
    " ".join
)


@given(english, st.lists(english, min_size=1, max_size=3))
def test_english_is_scored_as_the_script_of_squad_does(said: str, golds: list[str]) -> None:
    kept = [gold for gold in golds if squad_words(gold)] or [""]
    assert exact_match(said, golds) == max(squad_words(gold) == squad_words(said) for gold in kept)
    assert f1(said, golds) == pytest.approx(max(squad_f1(gold, said) for gold in kept), abs=1e-12)


@given(st.text(max_size=12), st.lists(st.text(max_size=12), max_size=3))
def test_a_gold_answer_is_right_and_f1_is_never_below_exact_match(said: str, golds: list[str]) -> None:
    assert 0 <= exact_match(said, golds) <= f1(said, golds) <= 1
    assert exact_match(said, [said]) == 1
