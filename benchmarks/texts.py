"""Real texts as token ids, for benchmarks: Chinese reviews of shops, English reviews of films.

The Chinese vocabulary is that of the bundled checkpoint. For English shapes the lengths are those of BERT's uncased
WordPiece, and ids beyond the word table are moved into it: which rows are looked up does not move the time.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from thrice.checkpoints import resolve
from thrice.data.readers import read_table
from thrice.data.tokenizer import Tokenizer

DATA = Path(__file__).parents[2] / "shared" / "data"
SENTIMENT = DATA / "sentiment_bojone" / "sentiment.train.data.gz"
CHINESE_ROWS = 21128
ENDINGS = (".txt", ".neg", ".pos")
LONG_SHARE = 0.4
"""Whole reviews among the English texts; the others are single sentences."""


def sequences_for(vocab_size: int, *, count: int, max_length: int, texts: str | None = None) -> list[list[int]]:
    """Give token ids of texts in random order: Chinese ones for a Chinese vocabulary, else English ones.

    texts: a tsv of text and label without a header, in place of the Chinese ones beside the repository.
    """
    chinese = texts is not None or vocab_size == CHINESE_ROWS
    tokenizer = chinese_tokenizer() if chinese else english_tokenizer()
    strings = chinese_texts(texts) if chinese else english_texts()
    chosen = (strings * (1 + count // len(strings)))[:count]
    encoded = tokenizer.encode(chosen, max_length=max_length)
    return [[i if i < vocab_size else i - 1000 for i in ids] for ids, _ in encoded]


def chinese_texts(path: str | None = None) -> list[str]:
    """Give reviews of shops and goods in random order."""
    table = read_table(path or str(SENTIMENT), columns=("text", "label"), format="tsv")
    return _shuffled(table.texts("text"))


def english_texts() -> list[str]:
    """Give reviews of films in random order: two of five a whole review, the others one sentence."""
    reviews = _zipped("nltk_movie_reviews/movie_reviews.zip")
    sentences = [line for text in _zipped("nltk_sentence_polarity/sentence_polarity.zip") for line in text.split("\n")]
    whole = [" ".join(text.split()) for text in reviews]
    short = [line.strip() for line in sentences if line.strip()]
    return _shuffled(whole + _shuffled(short)[: round(len(whole) * (1 - LONG_SHARE) / LONG_SHARE)])


def chinese_tokenizer() -> Tokenizer:
    """Give the tokenizer of the bundled checkpoint."""
    folder = resolve("zoo:albert-nano-zh").folder
    assert folder is not None
    return Tokenizer.from_folder(folder)


def english_tokenizer() -> Tokenizer:
    """Give BERT's uncased WordPiece."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copy(DATA / "vocabs" / "bert-base-uncased-vocab.txt", Path(place) / "vocab.txt")
        return Tokenizer.from_folder(place)


def one_length(sequences: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """Give the same tokens in sequences of one length, so that nothing is padded."""
    stream = [token for sequence in sequences for token in sequence]
    return [stream[start : start + length] for start in range(0, len(stream) - length + 1, length)]


def _zipped(name: str) -> list[str]:
    with zipfile.ZipFile(DATA / name) as archive:
        members = sorted(n for n in archive.namelist() if Path(n).suffix in ENDINGS and "README" not in n)
        return [archive.read(member).decode("latin-1") for member in members]


def _shuffled(texts: Sequence[str]) -> list[str]:
    return random.Random(0).sample(list(texts), len(texts))
