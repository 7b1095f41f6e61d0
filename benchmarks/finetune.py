"""One fine-tuning step: thrice's packed encoder against transformers' own class on the same weights and texts.

    python benchmarks/finetune.py albert-tiny-zh --texts sentiment.train.data.gz

Both sides: fused AdamW, dropout 0, the same examples per step; transformers pads each batch to its longest text and
uses sdpa. Losses and gradients are checked equal before anything is timed. Then the sides take turns on the same
batches, A B A B, and medians are compared; an A/A control shows what the machine's noise alone would say. The floor is
the matrix products of thrice's step over the rate that this machine reaches on such products.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from thrice.checkpoints import load, resolve, save
from thrice.checkpoints.save import stock_config, stock_tensors
from thrice.data.readers import read_table
from thrice.data.tokenizer import Tokenizer
from thrice.model.encoder import Encoder
from thrice.model.packing import PackedBatch, pack
from thrice.model.presets import PRESETS
from thrice.registry import plugin

HOME = Path(__file__).parents[2] / "shared" / "data" / "sentiment_bojone" / "sentiment.train.data.gz"


def main() -> None:
    """Print one table per preset, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=["albert-tiny-zh"], help="names from `thrice list presets`")
    parser.add_argument("--texts", default=str(HOME), help="tsv of text and label without header")
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = [measure(preset, arguments) for preset in arguments.presets]
    for result in results:
        print(json.dumps(result) if arguments.json else table(result))


def measure(preset: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give medians, ratios and controls for one preset."""
    batches = read_batches(arguments)
    encoder, stock = same_weights(preset)
    config = PRESETS[preset]
    check_equal(encoder, stock, batches[0])
    packed, padded_side = stepper(encoder, packed_loss(encoder)), stepper(stock, padded_loss(stock))
    sides = {"thrice": packed, "transformers": padded_side, "thrice again": packed}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-1, arguments.rounds):
        for name, step in sides.items():
            seconds = step(batches[turn % len(batches)])
            if turn >= 0:
                times[name].append(seconds)
    ratios = [b / a for a, b in zip(times["thrice"], times["transformers"], strict=True)]
    control = [b / a for a, b in zip(times["thrice"], times["thrice again"], strict=True)]
    used = [batches[turn % len(batches)] for turn in range(arguments.rounds)]
    tokens = [sum(map(len, batch)) for batch in used]
    padded = [len(batch) * max(map(len, batch)) for batch in used]
    rate = gemm_rate(config.hidden_size, config.intermediate_size, tokens=int(statistics.median(tokens)))
    floor = statistics.median(step_flops(config, [len(s) for s in batch]) for batch in used) / rate
    return {
        "preset": preset,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "padding_ratio": sum(padded) / sum(tokens),
        "tokens_per_step": statistics.median(tokens),
        "thrice_ms": 1000 * statistics.median(times["thrice"]),
        "transformers_ms": 1000 * statistics.median(times["transformers"]),
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "control": statistics.median(control),
        "gemm_gflops": rate / 1e9,
        "floor_ms": 1000 * floor,
    }


def read_batches(arguments: argparse.Namespace) -> list[list[list[int]]]:
    """Give batches of token ids in random order, as a shuffled epoch has them."""
    table = read_table(arguments.texts, columns=("text", "label"), format="tsv")
    folder = resolve("zoo:albert-nano-zh").folder
    assert folder is not None
    tokenizer = Tokenizer.from_folder(folder)
    order = np.random.default_rng(0).permutation(len(table.rows))[: arguments.batch_size * 16]
    sequences = [tokenizer.backend.encode(str(table.rows[i]["text"])).ids for i in order]
    end = [tokenizer.sep_token_id]
    cut = [s if len(s) <= arguments.max_length else s[: arguments.max_length - 1] + end for s in sequences]
    size = arguments.batch_size
    return [cut[start : start + size] for start in range(0, len(cut), size)]


def same_weights(preset: str) -> tuple[Encoder, Any]:
    """Give a random encoder with a sequence head, and the stock model of the folder it is saved to."""
    encoder = Encoder(PRESETS[preset].replace(hidden_dropout_prob=0, attention_probs_dropout_prob=0))
    encoder.config = encoder.config.replace(classifier_dropout_prob=0.0)
    encoder.add_head("sequence")
    with tempfile.TemporaryDirectory() as place:
        folder = save(encoder, Path(place) / "model")
        logging.disable_progress_bar()
        stock = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="sdpa")
        encoder = load(str(folder))
    return encoder.train(), stock.train()


Loss = Callable[[list[list[int]]], torch.Tensor]


def packed_loss(encoder: Encoder) -> Loss:
    """Give the loss of a batch through thrice, packing included."""

    def loss(sequences: list[list[int]]) -> torch.Tensor:
        batch: PackedBatch = pack(sequences)
        logits = encoder.heads["sequence"](encoder(batch)[batch.starts])
        return torch.nn.functional.cross_entropy(logits, targets(sequences))

    return loss


def padded_loss(stock: Any) -> Loss:
    """Give the loss of a batch through transformers, padding included."""

    def loss(sequences: list[list[int]]) -> torch.Tensor:
        width = max(map(len, sequences))
        ids = torch.zeros(len(sequences), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = torch.tensor(sequence)
            mask[row, : len(sequence)] = 1
        return stock(input_ids=ids, attention_mask=mask, labels=targets(sequences)).loss

    return loss


def targets(sequences: list[list[int]]) -> torch.Tensor:
    """Give labels that depend on the texts alone."""
    return torch.tensor([sum(s) % 2 for s in sequences])


def check_equal(encoder: Encoder, stock: Any, sequences: list[list[int]]) -> None:
    """Compare the loss and every gradient, matched by the checkpoint's name table; exit where they differ."""
    losses = []
    for loss in (packed_loss(encoder), padded_loss(stock)):
        value = loss(sequences)
        value.backward()
        losses.append(value.item())
    twin = copy.deepcopy(encoder)
    for parameter, original in zip(twin.parameters(), encoder.parameters(), strict=True):
        parameter.data = torch.zeros_like(original) if original.grad is None else original.grad
    form = plugin("checkpoints.formats", encoder.config.family)
    ours = stock_tensors(twin, form, stock_config(twin, form, {}))
    worst = 0.0
    for name, parameter in stock.named_parameters():
        theirs = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        worst = max(worst, float((ours.pop(name) - theirs).abs().max() / theirs.abs().max().clamp_min(1e-3)))
    if ours or abs(losses[0] - losses[1]) > 1e-5 or worst > 1e-4:
        raise SystemExit(
            f"the sides do not compute the same: losses {losses}, largest gradient difference {worst:.2e} of the "
            f"parameter's largest, without a partner: {sorted(ours)}"
        )
    for model in (encoder, stock):
        model.zero_grad(set_to_none=True)


def stepper(model: torch.nn.Module, loss: Loss) -> Callable[[list[list[int]]], float]:
    """Give a function that takes one step and gives its seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def step(sequences: list[list[int]]) -> float:
        started = time.perf_counter()
        loss(sequences).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - started

    return step


def step_flops(config: Any, lengths: list[int]) -> float:
    """Give the floating-point operations of a step's matrix products: forward, and twice that backward."""
    hidden, tokens = config.hidden_size, sum(lengths)
    per_token = 2 * (4 * hidden * hidden + 2 * hidden * config.intermediate_size)
    attention = sum(4 * n * n * hidden for n in lengths)
    projection = 2 * config.embedding_size * hidden * tokens
    return 3 * (config.num_calls * (per_token * tokens + attention) + projection)


def gemm_rate(hidden: int, width: int, *, tokens: int) -> float:
    """Give the floating-point operations per second of (tokens, hidden) x (hidden, width), the best of 20."""
    a, b = torch.randn(tokens, hidden), torch.randn(hidden, width)
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - started)
    return 2 * tokens * hidden * width / min(seconds)


def table(result: dict[str, Any]) -> str:
    """Give the result for a reader."""
    low, high = result["ratio_range"]
    share = 100 * result["floor_ms"] / result["thrice_ms"]
    return (
        f"{result['preset']}: {result['ratio']:.2f}x (from {low:.2f} to {high:.2f} over {result['rounds']} rounds)\n"
        f"  transformers {result['transformers_ms']:.1f} ms, thrice {result['thrice_ms']:.1f} ms a step of "
        f"{result['tokens_per_step']:.0f} tokens, {result['threads']} threads\n"
        f"  padding ratio {result['padding_ratio']:.2f}; thrice against itself {result['control']:.2f}x\n"
        f"  floor {result['floor_ms']:.1f} ms at {result['gemm_gflops']:.0f} GFLOP/s: {share:.0f}% of thrice's step"
    )


if __name__ == "__main__":
    main()
