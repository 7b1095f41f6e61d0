"""Small vocabularies and corpora for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from thrice.data.corpus import Corpus, prepare_corpus
from thrice.data.tokenizer import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def word_tokenizer(folder: Path, *, mask: bool = True) -> Tokenizer:
    """A WordPiece vocabulary of letters, alone and going on with a word, digits, marks and a few Chinese characters."""
    special = SPECIAL if mask else SPECIAL[:-1]
    words = [
        *special,
        *LETTERS,
        *(f"##{letter}" for letter in LETTERS),
        *"0123456789.,!?。！？，的一是了我不人在他有这",
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return Tokenizer.from_folder(folder)


def text_of(documents: Sequence[Sequence[str]]) -> str:
    """The text of documents given as paragraphs."""
    return "\n".join("\n".join(paragraphs) + "\n" for paragraphs in documents)


def numbered(count: int, sentences: int = 6) -> list[list[str]]:
    """Documents of which no two, and no two sentences, are the same: each holds its document and its number."""
    return [[f"D {digits(number)} s {digits(place)} the end." for place in range(sentences)] for number in range(count)]


def digits(number: int) -> str:
    return " ".join(f"{number:03d}")


def corpus_of(place: Path, documents: Sequence[Sequence[str]], *, shard_characters: int = 400) -> Corpus:
    """The corpus of documents given as paragraphs."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "text.txt").write_text(text_of(documents), encoding="utf-8")
    tokenizer = word_tokenizer(place / "words")
    return prepare_corpus(
        place / "text.txt", tokenizer, place / "corpus", shard_characters=shard_characters, min_tokens=2
    )
