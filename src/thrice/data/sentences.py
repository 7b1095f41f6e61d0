"""Paragraphs of Chinese or English text to sentences."""

from __future__ import annotations

import re

# Marks that end a sentence, and what may close a quotation or bracket behind them.
_CLOSING = "”’」』）)\\]】》〉"
_CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ebef"
_END = re.compile(
    rf"(?P<chinese>(?:[。！？｡]|…{{2}}|[!?](?=[{_CJK}“‘「『（《【]))[。！？｡…!?]*[{_CLOSING}]*)(?P<straight>\"?)"
    rf"|[.!?…]+[{_CLOSING}\"']*(?=\s+[^\sa-z,;:.!?])"
)
# Words whose full stop ends no sentence where a capital follows: titles, names cut to a letter, references.
_SHORTENED = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Mme|Dr|Prof|Sr|Jr|St|Mt|Capt|Col|Gen|Lt|Sgt|Rev|Hon|Gov|Sen|Rep|Messrs|vs|cf|Fig|Figs|No|Nos|"
    r"Vol|pp|Eq|Ch|Sec|e\.g|i\.e|viz|al|approx|Jan|Feb|Mar|Apr|Aug|Sept|Oct|Nov|Dec)|\b[A-Z]|\b(?:[A-Za-z]\.)+[A-Za-z])$"
)


def sentences_of(paragraph: str) -> list[str]:
    """Give the sentences of a paragraph, without the white space around them; [] where there is nothing else.

    A sentence ends behind 。！？ or ……, with the quotation marks and brackets that close there; behind . ! ? where
    white space and no small letter follow, unless the word is a known abbreviation or a single capital; and behind ! ?
    where a Chinese character follows. Nothing is lost: joined, the sentences are the paragraph but for white space.
    """
    return [paragraph[start:stop] for start, stop in sentence_spans(paragraph)]


def sentence_spans(paragraph: str) -> list[tuple[int, int]]:
    """Give (start, stop) of every sentence, see `sentences_of`."""
    spans = []
    start = 0
    for found in _END.finditer(paragraph):
        end = found.end()
        if found["straight"] and paragraph.count('"', start, end) % 2:
            end -= 1  # it opens the next quotation
        if found["chinese"] is None and found[0] == "." and _SHORTENED.search(paragraph, start, found.start()):
            continue
        spans.append(_stripped(paragraph, start, end))
        start = end
    spans.append(_stripped(paragraph, start, len(paragraph)))
    return [(start, stop) for start, stop in spans if start < stop]


def _stripped(text: str, start: int, stop: int) -> tuple[int, int]:
    """Give a span without the white space at its ends."""
    sentence = text[start:stop]
    return start + len(sentence) - len(sentence.lstrip()), start + len(sentence.rstrip())
