"""Does the cost stay linear and memory within bounds, from a thousand examples to a million?

    python benchmarks/scaling.py --counts 1000 10000 100000 1000000
    python benchmarks/scaling.py --stages predict --counts 1000 100000

Each stage at each count is a process of its own, so that its peak memory (the kernel's high-water mark, less what was
held when the stage began) is its own; rounds take turns over counts. The first count is measured twice in each round:
the control. Texts are real reviews repeated with a counter before them, so that no cache can help and lengths stay
alike.

    encode    texts to ids, with an empty cache, which is written
    cached    the same texts again, out of the cache
    order     what an epoch of training costs beside the model: the order of its examples and all its batches, made
              but not trained on; "first" and "last" are the microseconds a batch at both ends of the epoch
    train     40 optimiser steps of `fit` on albert-tiny-zh out of an epoch of that many examples: seconds a step
    predict   `thrice predict` from file to file, with a model that answers at once: reading twice, tokenising, sorting,
              packing, writing. What grows with the file is here; the model's own time is in benchmarks/predict.py
    answer    the same with a real albert-tiny-zh, at most --model-rows rows

There is no floor of matrix products here: most stages have none. The figure to read is the time an example at the
largest count over that at the smallest ("growth"), which should be near 1 or below.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from texts import chinese_texts, chinese_tokenizer
from timing import arguments_for, median, ratio, show, times

from thrice.compare.memory import forget_peak, status_bytes
from thrice.data.batching import training_batches
from thrice.data.encoding import Encoded, encode_texts
from thrice.predict import predict_file
from thrice.tasks.classification import Classification, ClassificationData
from thrice.training import TrainingConfig, fit
from thrice.training.resume import order_checksum

BATCH = 32
STEPS = 40
ENDS = 20
MAX_LENGTH = 128


def main(words: list[str] | None = None) -> None:
    """Print a table, or JSON."""
    parser = arguments_for(__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=list(STAGES))
    parser.add_argument("--model-rows", type=int, default=10_000, help="most rows of `answer` (default 10,000)")
    parser.add_argument("--child", nargs=2, metavar=("STAGE", "COUNT"), help=argparse.SUPPRESS)
    parser.set_defaults(rounds=3)
    arguments = parser.parse_args(words)
    if arguments.child is not None:
        torch.set_num_threads(arguments.threads)
        print(json.dumps(measure_here(arguments.child[0], int(arguments.child[1]))))
        return
    result: dict[str, Any] = {"threads": arguments.threads, "rounds": arguments.rounds, "stages": {}}
    for stage in arguments.stages:
        counts = [c for c in arguments.counts if stage != "answer" or c <= arguments.model_rows]
        if counts:
            result["stages"][stage] = measure(stage, counts, arguments)
    show(result, as_json=arguments.json, text=table)


def measure(stage: str, counts: list[int], arguments: argparse.Namespace) -> dict[str, Any]:
    """Give time an example and peak memory at every count, the growth between the ends, and the control."""
    found: dict[str, list[dict[str, Any]]] = {str(count): [] for count in counts}
    found["again"] = []
    for _ in range(arguments.rounds):
        for name in found:
            found[name].append(_in_child(stage, counts[0] if name == "again" else int(name), arguments.threads))
    each = {name: [1e6 * run["seconds"] / run["per"] for run in runs] for name, runs in found.items()}
    return {
        "counts": [
            {
                "count": count,
                "microseconds": median(each[str(count)]),
                "peak_bytes": max(run["peak_bytes"] for run in found[str(count)]),
                "more": found[str(count)][-1]["more"],
            }
            for count in counts
        ],
        "growth": ratio(each[str(counts[0])], each[str(counts[-1])]),
        "control": ratio(each[str(counts[0])], each["again"]),
    }


def _in_child(stage: str, count: int, threads: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", stage, str(count), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{stage} of {count} examples failed:\n{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure_here(stage: str, count: int) -> dict[str, Any]:
    """Run one stage in this process: seconds, what they are counted per, peak bytes, and figures of its own."""
    with tempfile.TemporaryDirectory() as place:
        before_cache = os.environ.get("THRICE_CACHE")
        os.environ["THRICE_CACHE"] = str(Path(place) / "cache")
        try:
            work, per = STAGES[stage](Path(place), count)
            forget_peak()
            held = status_bytes("VmRSS") or 0
            started = time.perf_counter()
            more = work()
            spent = time.perf_counter() - started
        finally:
            if before_cache is None:
                del os.environ["THRICE_CACHE"]
            else:
                os.environ["THRICE_CACHE"] = before_cache
    return {
        "seconds": spent,
        "per": per,
        "peak_bytes": max(0, (status_bytes("VmHWM") or 0) - held),
        "more": more or {},
    }


def numbered(count: int) -> Iterator[str]:
    """Give real reviews, each with a number of its own before it."""
    return (f"{number} {text}" for number, text in zip(range(count), itertools.cycle(chinese_texts()), strict=False))


# Stages: (folder, count) -> the work to be timed, and the number of things its time is divided by

Work = Callable[[], dict[str, Any] | None]


def encode(place: Path, count: int) -> tuple[Work, int]:
    """Tokenise with an empty cache."""
    tokenizer, texts = chinese_tokenizer(), list(numbered(count))

    def work() -> None:
        encode_texts(tokenizer, texts, max_length=MAX_LENGTH)

    return work, count


def cached(place: Path, count: int) -> tuple[Work, int]:
    """Take the ids out of the cache."""
    work, per = encode(place, count)
    work()
    return work, per


def order(place: Path, count: int) -> tuple[Work, int]:
    """Make the order of an epoch and all its batches."""
    data = synthetic(count)

    def work() -> dict[str, Any]:
        batches = training_batches(count, batch_size=BATCH, seed=0, epoch=1)
        order_checksum(batches)
        spent = []
        for indices in batches:
            started = time.perf_counter()
            data.batch(indices)
            spent.append(time.perf_counter() - started)
        return {"first": 1e6 * float(np.median(spent[:ENDS])), "last": 1e6 * float(np.median(spent[-ENDS - 1 : -1]))}

    return work, count


def train(place: Path, count: int) -> tuple[Work, int]:
    """Take some steps of `fit` out of an epoch of `count` examples."""
    from thrice.checkpoints import load
    from thrice.tasks.base import TaskModel

    data = synthetic(count)
    model = TaskModel(load("preset:albert-tiny-zh"), task())
    steps = min(STEPS, -(-count // BATCH))

    def work() -> None:
        fit(
            model,
            TrainingConfig(epochs=1, max_steps=steps, batch_size=BATCH),
            num_examples=count,
            batches=lambda epoch: training_batches(count, batch_size=BATCH, seed=0, epoch=epoch),
            make_batch=data.batch,
            evaluate=lambda: {"accuracy": 0.5},
            metric="accuracy",
            folder=place / "run",
            progress=False,
        )

    return work, steps


def predict(place: Path, count: int) -> tuple[Work, int]:
    """Answer a file with a model that says the same of every text, at once."""
    right = Classification.predict

    def at_once(self: Classification, model: Any, batch: Any) -> list[dict[str, Any]]:
        return [{"prediction": "0", "probabilities": {"0": 0.5, "1": 0.5}} for _ in range(batch.num_examples)]

    work, per = answer(place, count)

    def without_model() -> None:
        Classification.predict = at_once  # type: ignore[method-assign]
        try:
            work()
        finally:
            Classification.predict = right  # type: ignore[method-assign]

    return without_model, per


def answer(place: Path, count: int) -> tuple[Work, int]:
    """Answer a file with a model."""
    from thrice.checkpoints import load
    from thrice.finetune import save_model
    from thrice.tasks.base import TaskModel

    save_model(TaskModel(load("preset:albert-tiny-zh"), task()), place / "model", chinese_tokenizer())
    with open(place / "texts.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in numbered(count))

    def work() -> None:
        predict_file(place / "model", str(place / "texts.jsonl"), place / "answers.jsonl")

    return work, count


STAGES: dict[str, Callable[[Path, int], tuple[Work, int]]] = {
    "encode": encode,
    "cached": cached,
    "order": order,
    "train": train,
    "predict": predict,
    "answer": answer,
}


def task() -> Classification:
    """Give a task of two classes."""
    from thrice.data.columns import Columns

    return Classification(labels=("0", "1"), columns=Columns(text="text", label="label"), max_length=MAX_LENGTH)


def synthetic(count: int) -> ClassificationData:
    """Give examples with the lengths of real ones and any ids: for stages that do not look at the ids."""
    known = chinese_tokenizer().encode(chinese_texts()[:1000], max_length=MAX_LENGTH)
    lengths = np.resize([len(ids) for ids, _ in known], count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.resize(np.concatenate([ids for ids, _ in known]), offsets[-1]).astype(np.int32)
    types = np.zeros(len(ids), dtype=np.uint8)
    encoded = Encoded(ids=ids, type_ids=types, offsets=offsets, owner=np.arange(count), num_cut=0)
    return ClassificationData(encoded, np.arange(count) % 2)


def table(result: Mapping[str, Any]) -> str:
    """Give the result for a reader."""
    lines = [f"{result['rounds']} rounds, {result['threads']} threads"]
    for stage, found in result["stages"].items():
        unit = "step" if stage == "train" else "example"
        lines.append(f"{stage}: growth {times(found['growth'])}, control {times(found['control'])}")
        for row in found["counts"]:
            more = "".join(f", {name} {value:.0f}" for name, value in row["more"].items())
            spent, memory = row["microseconds"]["median"], row["peak_bytes"] / 2**20
            lines.append(f"  {row['count']:>9,}: {spent:10.1f} microseconds a {unit}, {memory:8.1f} MiB{more}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
