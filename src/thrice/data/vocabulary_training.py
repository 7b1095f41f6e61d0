"""A vocabulary trained on documents: WordPiece as BERT has it, or unigram pieces as ALBERT has them."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thrice.data.documents import Source, documents_of, find_sources
from thrice.data.sentences import sentences_of
from thrice.data.tokenizer import Tokenizer, has_vocabulary
from thrice.errors import ConfigError, DataError, nearest
from thrice.files import write_atomically

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

KINDS = ("unigram", "wordpiece")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Ids 0 to 4 of every trained vocabulary."""
LEAST = 100
"""Tokens of the smallest vocabulary."""
MOST = 1_000_000
"""Of the largest; the trainer takes memory for all it is asked for at once."""


def train_vocabulary(
    sources: Sequence[str | Path] | str | Path,
    folder: str | Path,
    *,
    kind: str = "wordpiece",
    vocab_size: int = 21_128,
    lowercase: bool = True,
    min_frequency: int = 2,
    column: str | None = None,
    most_characters: int = 100_000_000,
    progress: Callable[[int, int], None] | None = None,
) -> Tokenizer:
    """Train a vocabulary and write its folder, which stock AutoTokenizer reads too.

    sources, column, progress: see `documents.find_sources` and `documents.documents_of`.
    kind: "wordpiece" makes every Chinese character a word, and pieces of other words; "unigram" (Kudo 2018, arXiv
        1804.10959) makes pieces that may reach over several characters of a text without spaces.
    vocab_size: tokens at most, special ones included; a small text has fewer. At most four fifths of a wordpiece
        vocabulary are single characters, the most frequent ones.
    lowercase: letters in small, their accents taken off, as BERT's and ALBERT's uncased vocabularies have them.
    min_frequency: of a wordpiece that is put together.
    most_characters: of text that are read, of every source its share. The memory that training takes grows with the
        distinct words in them, which for unigram and texts without spaces are sentences.
    WordPiece gives the same vocabulary for the same texts. Of unigram pieces the rare ones, and the last digits of all
    scores, differ from one training to the next: `tokenizers` adds up in the order of its threads.
    Raises ConfigError for arguments that do not fit or a folder with another vocabulary, DataError for no text.
    """
    folder = Path(folder)
    problems = []
    if kind not in KINDS:
        problems.append(f"no vocabulary called {kind!r}; {nearest(kind, KINDS)}")
    if not LEAST <= vocab_size <= MOST:
        problems.append(f"vocab_size is {vocab_size}, expected at least {LEAST} and at most {MOST}")
    if min_frequency < 1 or most_characters < 1:
        problems.append(f"min_frequency {min_frequency} and most_characters {most_characters} must be at least 1")
    file = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
    if file is not None:
        problems.append(f"{file} is a file, expected the name of a folder")
    elif folder.is_dir() and has_vocabulary(folder):
        problems.append(f"{folder} holds a vocabulary already; choose another folder")
    elif folder.is_dir() and any(folder.iterdir()):
        problems.append(f"{folder} holds other things than a vocabulary; name a new folder")
    if problems:
        raise ConfigError("; ".join(problems))
    found = find_sources(sources, column=column)

    def texts(told: Callable[[int, int], None] | None = None) -> Iterator[str]:
        return _texts(found, most_characters, told)

    if kind == "wordpiece":
        hf = _wordpiece(texts, progress, vocab_size, lowercase, min_frequency)
    else:
        hf = _unigram(texts(progress), vocab_size, lowercase)
    if len(hf) <= len(SPECIAL):
        raise DataError(f"{', '.join(source.name for source in found)}: no text to train a vocabulary on")
    with tempfile.TemporaryDirectory() as name:
        stage = Path(name)
        hf.save_pretrained(stage)
        if kind == "wordpiece":
            tokens = sorted(hf.get_vocab(), key=hf.get_vocab().__getitem__)
            write_atomically(stage / "vocab.txt", "".join(f"{token}\n" for token in tokens))
        return Tokenizer.from_folder(Tokenizer.from_folder(stage).save(folder))


def _texts(sources: list[Source], most: int, progress: Callable[[int, int], None] | None) -> Iterator[str]:
    """Give sentences, up to a number of characters."""
    read = 0
    for document in documents_of(sources, progress):
        for paragraph in document.split("\n"):
            yield from sentences_of(paragraph)
        read += len(document)
        if read >= most:
            return


def _wordpiece(
    texts: Callable[..., Iterator[str]],
    progress: Callable[[int, int], None] | None,
    vocab_size: int,
    lowercase: bool,
    min_frequency: int,
) -> PreTrainedTokenizerFast:
    from tokenizers.trainers import WordPieceTrainer
    from transformers import BertTokenizer

    def stock(tokens: Sequence[str]) -> PreTrainedTokenizerFast:
        vocabulary = {token: index for index, token in enumerate(tokens)}
        return BertTokenizer(vocab=vocabulary, do_lower_case=lowercase)

    backend = stock(SPECIAL).backend_tokenizer
    counts: Counter[str] = Counter()
    for text in texts(progress):
        counts.update(backend.normalizer.normalize_str(text))
    characters = sorted((character for character in counts if not character.isspace()), key=lambda c: (-counts[c], c))
    alphabet = sorted(characters[: 4 * vocab_size // 5 - len(SPECIAL)])
    # The trainer numbers the characters that go on with a word in an order of its own, another one each time, and by
    # these numbers decides between pieces that are equally frequent. Those it is given as special have their numbers.
    inside = [f"##{character}" for character in alphabet if _goes_on(character, backend)]
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[*SPECIAL, *inside],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    backend.train_from_iterator(texts(), trainer)
    trained: dict[str, int] = backend.get_vocab()
    return stock(sorted(trained, key=trained.__getitem__))


def _goes_on(character: str, backend: tokenizers.Tokenizer) -> bool:
    """Say whether a character may stand inside a word."""
    text = backend.normalizer.normalize_str(f"a{character}")
    return len(backend.pre_tokenizer.pre_tokenize_str(text)) == 1


def _unigram(texts: Iterator[str], vocab_size: int, lowercase: bool) -> PreTrainedTokenizerFast:
    from tokenizers.trainers import UnigramTrainer
    from transformers import AlbertTokenizer

    def stock(pieces: Sequence[tuple[str, float]]) -> PreTrainedTokenizerFast:
        return AlbertTokenizer(
            vocab=list(pieces),
            do_lower_case=lowercase,
            keep_accents=not lowercase,
            unk_token="[UNK]",
            pad_token="[PAD]",
            bos_token="[CLS]",
            eos_token="[SEP]",
        )

    backend = stock([(token, 0.0) for token in SPECIAL]).backend_tokenizer
    trainer = UnigramTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL), unk_token="[UNK]", show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return stock([(piece, score) for piece, score in json.loads(backend.to_str())["model"]["vocab"]])
