"""The stock side of benchmarks/commands.py: what a user of transformers writes to fine-tune a classifier.

    python benchmarks/trainer_side.py MODEL OUT --train a.tsv --dev b.tsv --test c.tsv

Trainer, DataCollatorWithPadding, evaluation and saving each epoch, the best epoch kept; texts are tokenised once by the
fast tokenizer. The files are tsv with a header: text, label. Prints one JSON line with the accuracies.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)


def main() -> None:
    """Train, choose the best epoch on dev, score test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="stock folder")
    parser.add_argument("out", help="new folder")
    for part in ("train", "dev", "test"):
        parser.add_argument(f"--{part}", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = AutoModelForSequenceClassification.from_pretrained(arguments.model, num_labels=2)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    data = {
        part: encoded(getattr(arguments, part), tokenizer, arguments.max_length) for part in ("train", "dev", "test")
    }
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=arguments.out,
            num_train_epochs=arguments.epochs,
            per_device_train_batch_size=arguments.batch_size,
            per_device_eval_batch_size=arguments.batch_size,
            learning_rate=arguments.learning_rate,
            lr_scheduler_type="linear",
            warmup_steps=0.1,
            optim="adamw_torch_fused",
            adam_epsilon=1e-6,
            weight_decay=0.01,
            max_grad_norm=1.0,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            load_best_model_at_end=True,
            metric_for_best_model="accuracy",
            seed=arguments.seed,
            report_to="none",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
        ),
        train_dataset=data["train"],
        eval_dataset=data["dev"],
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda given: {"accuracy": float((given[0].argmax(-1) == given[1]).mean())},
    )
    trainer.train()
    best = trainer.evaluate()["eval_accuracy"]
    test = trainer.evaluate(data["test"])["eval_accuracy"]
    trainer.save_model(str(Path(arguments.out) / "best"))
    print(json.dumps({"best_dev": best, "test": test}))


def encoded(path: str, tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    """Give one dict of ids and label a row."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    ids = tokenizer([row["text"] for row in rows], truncation=True, max_length=max_length)
    return [
        {name: np.asarray(values[i]) for name, values in ids.items()} | {"labels": int(row["label"])}
        for i, row in enumerate(rows)
    ]


if __name__ == "__main__":
    main()
