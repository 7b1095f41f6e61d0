"""Entities of Chinese sentences: train a tagger on characters with BIO tags, read its answers, use it in stock code.

Run it: python examples/tagging.py        (CPU, well under a minute)

The sentences are made from a few names and places, so the tagger finds names it has seen in sentences it has not. For a
score that means something take a real corpus: `thrice finetune zoo:albert-nano-zh+none --task tagging --train
train.conll --dev dev.conll --out OUT` reads CoNLL files, and `--columns` says which field is which.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path

from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

import thrice
from thrice.finetune import DataSource, finetune

PEOPLE = ("王小明", "李丽", "张伟", "陈静")
PLACES = ("北京", "上海", "广州", "成都")
PATTERNS = ("{p}昨天去了{l}。", "{l}的天气，{p}很喜欢。", "我和{p}住在{l}。", "明天{p}从{l}回来。", "今天没有人来。")


def tagged(pattern: str, person: str, place: str) -> dict[str, list[str]]:
    """Give a sentence as characters with a BIO tag each."""
    tokens, tags = [], []
    for part in pattern.replace("{", "|{").replace("}", "}|").split("|"):
        kind, text = {"{p}": ("PER", person), "{l}": ("LOC", place)}.get(part, ("", part))
        tokens += list(text)
        tags += [f"{'I' if i else 'B'}-{kind}" if kind else "O" for i in range(len(text))]
    return {"tokens": tokens, "tags": tags}


def main() -> None:
    rows = [tagged(*parts) for parts in itertools.product(PATTERNS, PEOPLE, PLACES)]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for part, chosen in (("train", rows[::2]), ("dev", rows[1::4])):
            lines = [json.dumps(row, ensure_ascii=False) for row in chosen]
            (place / f"{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        result = finetune(
            "zoo:albert-nano-zh+none",
            place / "model",
            source=DataSource(train=str(place / "train.jsonl"), dev=str(place / "dev.jsonl")),
            task_name="tagging",
            options={"max_length": 32},
            training={"epochs": 25, "batch_size": 8, "learning_rate": 1e-3},
        )
        print(f"F1 of entities on sentences it has not seen: {result['best_dev']:.2f}")

        text = "张伟明天从广州回来。"
        for entity in thrice.load_model(place / "model").predict([text])[0]["prediction"]:
            print(f"{entity['label']}: {entity['text']} (characters {entity['start']} to {entity['end']})")

        tagger = pipeline(
            "token-classification",
            model=AutoModelForTokenClassification.from_pretrained(place / "model"),
            tokenizer=AutoTokenizer.from_pretrained(place / "model"),
            aggregation_strategy="first",
            device="cpu",
        )
        print("stock transformers:", [(e["entity_group"], text[e["start"] : e["end"]]) for e in tagger(text)])


if __name__ == "__main__":
    main()
