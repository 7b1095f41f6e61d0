"""A number for a text: train on ratings of one to five stars, and read stars from the folder in stock transformers.

Run it: python examples/regression.py        (CPU, well under a minute)

Training standardises the numbers, saving folds their mean and spread into the last layer: what the stock class gives is
stars. So few sentences show the steps and nothing more; likeness of two sentences works alike, with a second text
column: `thrice finetune MODEL --task regression --train train.tsv --dev dev.tsv --label-column score --out OUT`.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import thrice
from thrice.finetune import DataSource, finetune

THINGS = ("房间", "早餐", "服务", "位置", "电影", "手机", "这本书", "味道")
WORDS = {"糟透了": 1, "很差": 2, "一般": 3, "不错": 4, "棒极了": 5}


def main() -> None:
    rows = [f"{thing}{word},{stars}" for thing, (word, stars) in itertools.product(THINGS, WORDS.items())]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "train.csv").write_text("\n".join(["text,label", *rows[:30]]) + "\n", encoding="utf-8")
        (place / "dev.csv").write_text("\n".join(["text,label", *rows[30:]]) + "\n", encoding="utf-8")
        result = finetune(
            "zoo:albert-nano-zh+none",
            place / "model",
            source=DataSource(train=str(place / "train.csv"), dev=str(place / "dev.csv")),
            task_name="regression",
            options={"max_length": 16},
            training={"epochs": 15, "batch_size": 8, "learning_rate": 5e-4},
        )
        print(f"mean of Pearson's and Spearman's correlation on other things: {result['best_dev']:.2f}")

        texts = ["手机很差", "味道棒极了"]
        ours = [answer["prediction"] for answer in thrice.load_model(place / "model").predict(texts)]
        stock = AutoModelForSequenceClassification.from_pretrained(place / "model").eval()
        tokenizer = AutoTokenizer.from_pretrained(place / "model")
        with torch.no_grad():
            theirs = stock(**tokenizer(texts, padding=True, return_tensors="pt")).logits.squeeze(-1).tolist()
        for text, one, other in zip(texts, ours, theirs, strict=True):
            print(f"{text}: {one:.3f} stars, in stock transformers {other:.3f}")


if __name__ == "__main__":
    main()
