"""How well a text answers a question: exact match and F1 against its gold answers, in English and in Chinese.

English, and every language written in words, is compared as the official scripts of SQuAD 1.1 and 2.0 do it (Rajpurkar
et al. 2016 and 2018, `evaluate-v2.0.py`): lower case, without ASCII punctuation, the articles "a", "an" and "the", and
surplus white space; F1 counts words. Where the text or a gold answer holds Chinese, Japanese or Korean characters, each
of them is a word of its own and other characters run together, and all punctuation goes, as the official scripts of
CMRC 2018 and MLQA have it. F1 is that of bags of words, as in SQuAD and MLQA; CMRC's own takes the longest common
piece, and gives less to words in another order.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from thrice.data.scores import COLLAPSED_SHARE, ratio
from thrice.errors import ConfigError, nearest

METRICS = ("score", "exact_match", "f1")
"""Of answers to questions: the first is the mean of the two others."""

# Ideographs with their extensions and compatibility forms, kana, hangul.
_CHARACTER = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_HAS_CHARACTER = re.compile(f"[{_CHARACTER}]")
_PIECES = re.compile(rf"[{_CHARACTER}]|[^\s{_CHARACTER}]+")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_SYMBOLS = "$+<=>^`|~"  # ASCII punctuation that Unicode files elsewhere
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact_match(text: str, golds: Sequence[str]) -> float:
    """Give 1.0 where the text says the same as one of the gold answers, else 0.0.

    golds: none, or only what normalising leaves nothing of, is a question without an answer: the empty text is right.
    """
    characters = _written_in_characters(text, golds)
    words = answer_words(text, characters=characters)
    return float(any(words == gold for gold in _gold_words(golds, characters)))


def f1(text: str, golds: Sequence[str]) -> float:
    """Give the best F1 over the gold answers, of words or, in Chinese, of characters; 0 <= F1 <= 1.

    golds: as for `exact_match`. Of two texts of which one is empty, F1 is 1.0 where both are, else 0.0.
    """
    characters = _written_in_characters(text, golds)
    words = answer_words(text, characters=characters)
    return max(_overlap(words, gold) for gold in _gold_words(golds, characters))


def answer_words(text: str, *, characters: bool) -> list[str]:
    """Give the normalised words of an answer; characters: whether it is compared as Chinese is."""
    if not characters:
        return _ARTICLES.sub(" ", text.lower().translate(_ASCII_PUNCTUATION)).split()
    plain = unicodedata.normalize("NFKC", text).lower()  # full-width letters and digits are the same characters
    kept = (c for c in plain if not unicodedata.category(c).startswith("P") and c not in _SYMBOLS)
    return _PIECES.findall("".join(kept))


def answer_counts(texts: Sequence[str], golds: Sequence[Sequence[str]]) -> np.ndarray:
    """Give (n, 3) float64: exact match, F1, and 1; golds: of every text, none for a question without an answer."""
    rows = [(exact_match(text, own), f1(text, own), 1.0) for text, own in zip(texts, golds, strict=True)]
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def score_of_counts(metric: str, sums: np.ndarray) -> np.ndarray:
    """Give one of `METRICS`, (...), from summed counts (..., 3); 0 without a question. Raises ConfigError."""
    if metric not in METRICS:
        raise ConfigError(f"metric is {metric!r}; {nearest(metric, METRICS)}")
    exact, overlap, count = (sums[..., i] for i in range(3))
    part = {"exact_match": exact, "f1": overlap, "score": (exact + overlap) / 2}[metric]
    return ratio(part, count)


def answer_scores(texts: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Give exact match, F1 and their mean, each a mean over the questions, 0 to 1.

    With questions without an answer also how the two kinds do. "collapsed" where at least 99% of the answers are one
    answer, be it the empty one, and the gold answers are not.
    """
    rows = answer_counts(texts, golds)
    answered = np.array([bool(own) for own in golds])
    scores: dict[str, Any] = {metric: float(score_of_counts(metric, rows.sum(axis=0))) for metric in METRICS}
    if not answered.all():
        for kind, chosen in (("answered", answered), ("unanswerable", ~answered)):
            scores[kind] = {
                "questions": int(chosen.sum()),
                **{metric: float(score_of_counts(metric, rows[chosen].sum(axis=0))) for metric in METRICS[1:]},
            }
    said = Counter(texts).most_common(1)
    same = bool(said) and said[0][1] >= COLLAPSED_SHARE * len(texts)
    varied = len({own[0] if own else "" for own in golds}) > 1
    return {**scores, "collapsed": same and varied}


def best_threshold(differences: Sequence[float], gains: Sequence[float]) -> float:
    """Give the threshold at which the summed gains of the differences up to it are highest; 0.0 without any.

    differences: how much better "no answer" scores than the best span, one a question. gains: how much better the span
    is as an answer. The threshold lies halfway between two neighbouring differences, or 1 beyond the outermost.
    """
    if not len(differences):
        return 0.0
    order = np.argsort(differences, kind="stable")
    ordered = np.asarray(differences, dtype=np.float64)[order]
    # Entry k: the k questions least like "no answer" keep their span, which needs a border between them and the rest.
    totals = np.concatenate(([0.0], np.cumsum(np.asarray(gains, dtype=np.float64)[order])))
    borders = np.concatenate(([ordered[0] - 2], ordered, [ordered[-1] + 2]))
    best = int(np.argmax(np.where(borders[:-1] < borders[1:], totals, -np.inf)))
    return float((borders[best] + borders[best + 1]) / 2)


def _written_in_characters(text: str, golds: Sequence[str]) -> bool:
    return any(_HAS_CHARACTER.search(part) for part in (text, *golds))


def _gold_words(golds: Sequence[str], characters: bool) -> list[list[str]]:
    """Give the words of every gold answer that has any; one answer without words where none has."""
    return [words for gold in golds if (words := answer_words(gold, characters=characters))] or [[]]


def _overlap(words: list[str], gold: list[str]) -> float:
    if not words or not gold:
        return float(words == gold)
    common = sum((Counter(words) & Counter(gold)).values())
    return 2 * common / (len(words) + len(gold))
