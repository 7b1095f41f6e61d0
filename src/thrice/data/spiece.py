"""ALBERT's sentencepiece file, read without protobuf."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any


def read_spiece(data: bytes) -> dict[str, Any]:
    """Read pieces, scores and character map of a sentencepiece unigram model, as arguments of AlbertTokenizer.

    Read here and not by stock code because that needs protobuf, and because it makes added tokens of the file's
    user-defined pieces ( ) " - . and then puts a word start after each: "play-offs" becomes - ▁offs, which ALBERT never
    saw in pre-training. This way the ids are those of the sentencepiece library.
    Raises ValueError for bytes that are no such model, whole.
    """
    pieces: list[tuple[str, float]] = []
    unknown: list[int] = []
    charsmap, normaliser = None, False
    for field, value in _fields(data):
        if field == 1:  # pieces: piece = 1, score = 2, type = 3 (2 is the unknown piece)
            parts = dict(_fields(value))
            piece, score = _bytes(parts.get(1)).decode("utf-8"), _float(parts.get(2, bytes(4)))
            unknown += [len(pieces)] if parts.get(3) == 2 else []
            # Google's code splits "2014," into "2014" and ",": such pieces are never chosen.
            pieces.append((piece, score - 100 if piece[-1:] == "," and piece[-2:-1].isdigit() else score))
        elif field == 2 and dict(_fields(value)).get(3) == 2:  # trainer: model_type = 3 (2 is BPE)
            raise ValueError("a BPE model, whose scores are ranks; ALBERT's is a unigram model")
        elif field == 3:  # normaliser: precompiled_charsmap = 2
            charsmap, normaliser = dict(_fields(value)).get(2), True
    if not normaliser:
        raise ValueError("it ends before its normaliser, which comes after the pieces; is it cut short?")
    if unknown != [1]:
        raise ValueError(f"not laid out like ALBERT's: the unknown piece should be number 1 and is {unknown}")
    return {"vocab": pieces, "_spm_precompiled_charsmap": charsmap or None}


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a piece without its text")
    return value


def _float(value: Any) -> float:
    if len(_bytes(value)) != 4 or not math.isfinite(number := struct.unpack("<f", value)[0]):
        raise ValueError("a piece whose score is no number")
    return float(number)


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Give the (field number, value) pairs of a protobuf message; values are int or bytes."""
    place = 0
    if not isinstance(data, bytes):
        raise ValueError("not a protobuf message")

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            if place >= len(data) or shift > 63:
                raise ValueError("not a protobuf message")
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or (varint() if key & 7 == 2 else -1)
        if size < 0 or place + size > len(data):
            raise ValueError("not a protobuf message")
        yield key >> 3, data[place : place + size]
        place += size
