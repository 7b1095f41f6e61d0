"""A few examples per class: a checkpoint prompted with the head it came with, and the same prompts for an ELECTRA.

    python examples/fewshot.py

Takes under a minute on a CPU. The pattern turns a review into a sentence with a gap, the verbalizer names the word of
each class, and the word that fits the gap best is the answer: first without any training, then after training on eight
reviews. A replaced-token head, such as ELECTRA's discriminator has, judges the same words put into the gap; the ELECTRA
here is made up and random, since none is at hand without a network, so its answers mean nothing. Everything is written
to a temporary folder.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

from thrice.checkpoints import resolve, save
from thrice.data.tokenizer import Tokenizer
from thrice.finetune import DataSource, finetune
from thrice.model.encoder import Encoder
from thrice.model.presets import PRESETS
from thrice.predict import load_model

GOOD = ("质量很好，物超所值", "物流很快，包装完好", "服务热情，值得推荐", "味道不错，下次再来", "房间干净，非常安静")
BAD = ("质量太差，用了一天就坏", "物流太慢，等了两周", "服务冷淡，不会再来", "味道难吃，很失望", "房间很脏，又吵")

PROMPTS = {
    "pattern": ["{text}。真{mask}！", "很{mask}，{text}。"],
    "verbalizer": {"good": ["好", "棒"], "bad": ["差", "烂"]},
    "max_length": 32,
}


def main() -> None:
    """Answer without training, after training, and by a replaced-token head."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        parts = {"train": (GOOD[:4], BAD[:4]), "dev": (GOOD[2:], BAD[2:])}
        for part, (good, bad) in parts.items():
            with open(place / f"{part}.csv", "w", encoding="utf-8", newline="") as file:
                rows = [("text", "label"), *((t, "good") for t in good), *((t, "bad") for t in bad)]
                csv.writer(file).writerows(rows)
        source = DataSource(train=str(place / "train.csv"), dev=str(place / "dev.csv"))
        discriminator = make_discriminator(place / "electra")
        for model, epochs in (("zoo:albert-nano-zh", 0), ("zoo:albert-nano-zh", 8), (str(discriminator), 8)):
            folder = place / f"out-{Path(model).name.partition(':')[2] or Path(model).name}-{epochs}"
            training = {"epochs": epochs, "batch_size": 4, "learning_rate": 3e-4}
            result = finetune(model, folder, source=source, task_name="fewshot", options=PROMPTS, training=training)
            tuned = load_model(folder)
            answer = tuned.predict(["屏幕很清楚，喜欢"])[0]
            head = tuned.model.task.settings()["method"]
            print(f"{Path(model).name}, {head} head, {epochs} epochs: dev accuracy {result['best_dev']:.2f}, {answer}")


def make_discriminator(folder: Path) -> Path:
    """Write a random ELECTRA with a replaced-token head, as ElectraForPreTraining has it; give its folder."""
    zoo = resolve("zoo:albert-nano-zh").folder
    assert zoo is not None
    shape = PRESETS["electra-small"].replace(vocab_size=21128, attention_map=(0, 1), ffn_map=(0, 1))
    return save(Encoder(shape, heads=("rtd",)), folder, tokenizer=Tokenizer.from_folder(zoo))


if __name__ == "__main__":
    main()
