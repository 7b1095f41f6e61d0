"""Vocabularies as plain files, vocab.txt and vocab.json, and whether they agree with a tokenizer.json beside them."""

from __future__ import annotations

import json
from pathlib import Path

from thrice.errors import DataError
from thrice.schema import misfits


def plain_vocabulary(kind: str, content: bytes) -> dict[str, int]:
    """Give token -> id of a vocab.txt or vocab.json; raises ValueError where it is none."""
    if kind == "vocab.json":
        found = json.loads(content)
        if problems := misfits(found, dict[str, int]):
            raise ValueError(problems[0])
        return dict(found)
    # As the Rust library reads it: the white space tokens of Google's Chinese vocabulary (U+2028) become "".
    lines = content.decode("utf-8").removesuffix("\n").split("\n")
    return {line.rstrip(): index for index, line in enumerate(lines)}


def check_agreement(folder: Path, vocabulary: dict[str, int], files: dict[str, bytes], *, own: int) -> None:
    """Raise DataError where a plain vocabulary beside tokenizer.json numbers a token differently, or lacks some.

    own: tokens of tokenizer.json, added ones aside.
    """
    for kind in ("vocab.txt", "vocab.json"):
        if kind in files:
            try:
                plain = plain_vocabulary(kind, files[kind])
            except (ValueError, RecursionError) as error:
                raise DataError(f"{folder}: {kind} cannot be read: {error}; copy it again, or remove it") from error
            wrong = [token for token, index in plain.items() if vocabulary.get(token) != index]
            if wrong:
                raise DataError(
                    f"{folder}: tokenizer.json ({len(vocabulary)} tokens) and {kind} ({len(plain)}) disagree about "
                    f"{len(wrong)} tokens, such as {wrong[0]!r}; remove the one that is not the model's"
                )
            if (least := max(plain.values(), default=-1) + 1) < own:
                raise DataError(
                    f"{folder}: {kind} ends after {least} tokens, tokenizer.json has {own}; {kind} is cut short: copy "
                    "it again, or remove it"
                )


def looks_cased(vocabulary: dict[str, int]) -> bool:
    """Say whether a vocabulary holds words in capitals, so that texts must not be lower-cased."""
    words = [token for token in vocabulary if token.isascii() and token.isalpha() and len(token) > 2]
    return 10 * sum(word != word.lower() for word in words) > len(words)
