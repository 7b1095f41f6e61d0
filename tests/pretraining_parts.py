"""What the tests of pre-training share: a tiny corpus of literal text and a tiny recipe."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thrice.data.corpus import prepare_corpus
from thrice.data.tokenizer import Tokenizer
from thrice.errors import Interrupted
from thrice.model.encoder import Encoder
from thrice.pretraining import Recipe, recipe_of
from thrice.training import budget_loop

SUBJECTS = ("老人", "孩子", "书生", "渔夫", "将军", "商人", "农夫", "和尚")
VERBS = ("看见", "寻找", "想起", "带走", "喜欢", "忘记")
THINGS = ("月亮", "小船", "旧书", "白马", "青山", "大雨", "灯火", "桃花")


def story(number: int, sentences: int) -> str:
    """Give a document of one paragraph in which each sentence begins with what the one before ended with."""
    said, subject = [], SUBJECTS[number % 8]
    for i in range(sentences):
        thing = THINGS[(number // 48 + i * 3) % 8]
        said.append(f"{subject}{VERBS[(number // 8 + i) % 6]}{thing}。")
        subject = thing
    return "".join(said)


def write_stories(path: Path, *, first: int, count: int, sentences: int = 6) -> Path:
    """Write documents, an empty line between them."""
    path.write_text("\n\n".join(story(n, sentences) for n in range(first, first + count)) + "\n", encoding="utf-8")
    return path


def tokenizer_folder(place: Path) -> Path:
    """Write a vocabulary of the characters of the stories."""
    place.mkdir(parents=True, exist_ok=True)
    characters = sorted(set("".join((*SUBJECTS, *VERBS, *THINGS))) | {"。"})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
    (place / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return place


@functools.cache
def _texts(place: Path) -> dict[str, str]:
    words = place / "words"
    tokenizer = Tokenizer.from_folder(words if words.exists() else tokenizer_folder(words))
    found = {"tokenizer": str(words)}
    for name, first, count in (("train", 0, 60), ("held_out", 1000, 12)):
        if not (place / name / "corpus.json").exists():  # by another process of the same test
            source = write_stories(place / f"{name}.txt", first=first, count=count)
            prepare_corpus([source], tokenizer, place / name, shard_characters=1500)
        found[name] = str(place / name)
    return found


def content_of(place: Path, **changes: Any) -> dict[str, Any]:
    """Give the content of a tiny recipe over texts in a folder, its sections updated by `changes`."""
    texts = _texts(place)
    content: dict[str, Any] = {
        "name": "tiny",
        "tokenizer": texts["tokenizer"],
        "model": {
            "family": "albert",
            "num_hidden_layers": 3,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "embedding_size": 8,
            "initializer_range": 0.1,
            "max_position_embeddings": 64,
            "dropout": 0.1,
        },
        "corpus": {"train": texts["train"], "held_out": texts["held_out"]},
        "budget": {"tokens": 6000},
        "batch": {"tokens": 200},
        "optimizer": {"learning_rate": 5e-3, "warmup_steps": 4},
        "stages": [
            {"share": 0.5, "max_length": 24, "objectives": ["mlm"]},
            {"share": 0.5, "max_length": 48, "objectives": ["mlm", "sop"]},
        ],
        "evaluation": {"times": 4, "tokens": 400},
        "run": {"log_every_steps": 3},
    }
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(content.get(key), dict):
            content[key] = {**content[key], **value}
        else:
            content[key] = value
    return copy.deepcopy(content)


def tiny_recipe(place: Path, **changes: Any) -> Recipe:
    """Give the recipe of `content_of`."""
    return recipe_of(content_of(place, **changes), name="tiny.toml")


RESHARING = [
    {"share": 0.4, "max_length": 24, "objectives": ["mlm"]},
    {"share": 0.3, "max_length": 48, "objectives": ["mlm", "sop"], "sharing": "none"},
    {"share": 0.3, "max_length": 48, "objectives": ["mlm", "sop"], "sharing": "attention"},
]
"""Stages of an ALBERT that is un-shared midway, and whose attention is shared again at the end."""


@contextlib.contextmanager
def stopping_after_a_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a signal come during the first step of the run that is started inside."""
    right = budget_loop._train_step

    def stop(run: Any, state: Any, feed: Any) -> None:
        right(run, state, feed)
        run.request.signum = 15

    with monkeypatch.context() as patch:
        patch.setattr(budget_loop, "_train_step", stop)
        with pytest.raises(Interrupted):
            yield


def watch_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the list to which every pass of an encoder adds its number of tokens."""
    seen: list[int] = []
    right = Encoder.forward

    def watched(encoder: Encoder, packed: Any, **more: Any) -> Any:
        seen.append(packed.num_tokens)
        return right(encoder, packed, **more)

    monkeypatch.setattr(Encoder, "forward", watched)
    return seen
