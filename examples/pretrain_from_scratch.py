"""A model of your own from texts alone: vocabulary, corpus, pre-training, and the folder in stock transformers.

    python examples/pretrain_from_scratch.py

Takes under a minute on a CPU. The texts are made up: whoever is seen in a sentence is the one who sees in the next, and
each of them always does the same, so there is something to learn. A vocabulary is trained on them, the texts become two
corpora, a tiny ALBERT is pre-trained on masked tokens, its layers un-shared midway, and the folder that comes out fills
gaps in transformers. Real runs need millions of tokens: the recipes of `thrice list recipes` say how many.
Everything is written to a temporary folder.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

from thrice.data.corpus import prepare_corpus
from thrice.data.vocabulary_training import train_vocabulary
from thrice.pretraining import pretrain, recipe_of

WHO = ("Anna", "Boris", "Clara", "David", "Emma", "Frank", "Greta", "Henry")
DOES = ("sees", "helps", "calls", "meets", "thanks", "follows", "teaches", "invites")


def story(number: int) -> str:
    """Give six sentences, each beginning with the one that the sentence before ended with."""
    draw = random.Random(number)
    sentences, who = [], draw.choice(WHO)
    for _ in range(6):
        whom = draw.choice(WHO)
        sentences.append(f"{who} {DOES[WHO.index(who)]} {whom}.")
        who = whom
    return " ".join(sentences)


def recipe(place: Path, tokens: int) -> dict[str, Any]:
    """Give what a recipe file says, as values."""
    return {
        "name": "stories",
        "tokenizer": str(place / "words"),
        "model": {"family": "albert", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
        | {"embedding_size": 32, "initializer_range": 0.15, "max_position_embeddings": 64},
        "corpus": {"train": str(place / "train"), "held_out": str(place / "held-out")},
        "budget": {"tokens": tokens},
        "batch": {"tokens": 512},
        "optimizer": {"learning_rate": 5e-3, "warmup_steps": 20},
        "stages": [
            {"share": 0.6, "max_length": 16, "objectives": ["mlm"]},
            {"share": 0.4, "max_length": 32, "objectives": ["mlm"], "sharing": "none"},
        ],
        "evaluation": {"times": 5, "tokens": 2000},
    }


def main() -> None:
    """Train a vocabulary, prepare texts, pre-train, fill a gap."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=150_000, help="budget of the pre-training")
    tokens = parser.parse_args().tokens
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for part, numbers in (("train", range(600)), ("held-out", range(1000, 1040))):
            (place / f"{part}.txt").write_text("\n\n".join(map(story, numbers)) + "\n", encoding="utf-8")
        words = train_vocabulary(place / "train.txt", place / "words", vocab_size=120)
        for part in ("train", "held-out"):
            print(prepare_corpus(place / f"{part}.txt", words, place / part).facts["counts"])
        content = recipe(place, tokens)
        result = pretrain(recipe_of(content, name="stories"), place / "model", content=content, say=print)
        print(f"shared: {result['sharing']}; {result['verdict']}")
        fill(place / "model")


def fill(folder: Path) -> None:
    """Fill a gap with stock transformers alone."""
    from transformers import pipeline

    model = pipeline("fill-mask", model=str(folder))
    for sentence in ("Anna [MASK] Clara.", "Anna sees Frank. [MASK] follows David."):
        print(sentence, [(guess["token_str"], round(guess["score"], 2)) for guess in model(sentence, top_k=3)])


if __name__ == "__main__":
    main()
