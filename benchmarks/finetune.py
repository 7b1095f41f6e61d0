"""One fine-tuning step: thrice's packed encoder against transformers' own class on the same weights and texts.

    python benchmarks/finetune.py albert-tiny-zh albert-small-zh
    python benchmarks/finetune.py albert-base --batch-size 16
    python benchmarks/finetune.py albert-tiny-zh --one-length 128      nothing is padded
    python benchmarks/finetune.py albert-tiny-zh --dropout 0.1
    python benchmarks/finetune.py albert-tiny-zh --profile

Three sides: *thrice*; *stock*, the class as most people use it, texts in arrival order, each batch padded to its
longest text; *careful*, the same class as an expert uses it, with the native tanh GELU (hidden_act "gelu_pytorch_tanh")
and the same texts sorted by length into batches of about the same tokens a step. All have sdpa, fused AdamW and fp32.

Losses and gradients are checked equal before anything is timed. Then the sides take turns, A B A B. thrice and stock
take the same batches: the median of the ratios. The careful side has other batches of the same texts: the ratio is that
of the whole times, so per real token. Read the padding ratio first: nearly all that is won over stock is padding.
"control" is thrice against itself. The floor is the matrix products of thrice's step over the rate that this machine
reaches on such products. With --dropout both sides draw the same number of masks (`pairs.same_weights` says how).
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pairs import Loss, Sequences, check_equal, dropout_sites, packed_loss, padded_loss, same_weights
from texts import one_length, sequences_for
from timing import (
    arguments_for,
    forward_flops,
    gemm_rate,
    interleave,
    padding_ratio,
    ratio,
    seconds,
    show,
    times,
    total_ratio,
)

from thrice.model.presets import PRESETS

Step = Callable[[Sequences], float]


def main(words: list[str] | None = None) -> None:
    """Print one table per preset, or JSON."""
    parser = arguments_for(__doc__)
    parser.add_argument("presets", nargs="*", default=["albert-tiny-zh"], help="names from `thrice list presets`")
    parser.add_argument("--texts", help="tsv of Chinese text and label without header (default: beside the repository)")
    parser.add_argument("--max-length", type=int, default=512, help="tokens a text is cut to (default 512)")
    parser.add_argument("--one-length", type=int, metavar="N", help="sequences of N tokens each: nothing is padded")
    parser.add_argument("--batch-size", type=int, default=32, help="texts a step (default 32)")
    parser.add_argument("--dropout", type=float, default=0.0, help="of hidden states, attention and classifier")
    parser.add_argument("--profile", action="store_true", help="print where a step's time goes, by operator, and end")
    arguments = parser.parse_args(words)
    torch.set_num_threads(arguments.threads)
    for preset in arguments.presets:
        if arguments.profile:
            profile(preset, arguments)
        else:
            show(measure(preset, arguments), as_json=arguments.json, text=table)


def measure(preset: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give medians, ratios, controls and the floor for one preset."""
    config, rounds = PRESETS[preset], arguments.rounds
    batches = read_batches(config.vocab_size, arguments)
    models = checked_models(preset, batches[0], dropout=arguments.dropout)
    sorted_batches = by_length(batches)
    steps = {name: stepper(model, loss) for name, (model, loss) in models.items()}

    def careful(turn: int) -> float:
        # Its batches are dealt out over the rounds: all of them, and so all texts, are seen once.
        return sum(steps["careful"](batch) for batch in sorted_batches[turn::rounds])

    # The two of one model stand side by side, so that neither follows its own weights, warm in the cache, alone.
    sides = {
        "stock": lambda turn: steps["stock"](batches[turn]),
        "careful": careful,
        "thrice": lambda turn: steps["thrice"](batches[turn]),
        "thrice again": lambda turn: steps["thrice"](batches[turn]),
    }
    spent = interleave(sides, rounds=rounds)
    tokens = [sum(map(len, batch)) for batch in batches]
    rate = gemm_rate(int(statistics.median(tokens)), config.hidden_size, config.intermediate_size)
    floors = [3 * forward_flops(config, [len(s) for s in batch]) / rate for batch in batches]
    return {
        "preset": preset,
        "threads": arguments.threads,
        "rounds": rounds,
        "dropout": arguments.dropout,
        "padding_ratio": padding_ratio(batches),
        "careful_padding_ratio": padding_ratio(sorted_batches),
        "steps": {"thrice": len(batches), "careful": len(sorted_batches)},
        "tokens_per_step": statistics.median(tokens),
        "thrice_ms": 1000 * statistics.median(spent["thrice"]),
        "stock_ms": 1000 * statistics.median(spent["stock"]),
        "stock": ratio(spent["thrice"], spent["stock"]),
        "careful": total_ratio(spent["thrice"], spent["careful"]),
        "control": ratio(spent["thrice"], spent["thrice again"]),
        "gemm_gflops": rate / 1e9,
        "floor_ms": 1000 * statistics.median(floors),
        "share_of_floor": statistics.median(f / s for f, s in zip(floors, spent["thrice"], strict=True)),
    }


def read_batches(vocab_size: int, arguments: argparse.Namespace) -> list[Sequences]:
    """Give one batch a round, in random order, as a shuffled epoch has them."""
    size, count = arguments.batch_size, arguments.batch_size * arguments.rounds
    sequences = sequences_for(vocab_size, count=count, max_length=arguments.max_length, texts=arguments.texts)
    if arguments.one_length:
        cut = one_length(sequences, arguments.one_length)
        sequences = (cut * (1 + count // len(cut)))[:count]
    return [sequences[start : start + size] for start in range(0, count, size)]


def by_length(batches: list[Sequences]) -> list[Sequences]:
    """Give the same texts sorted by length, in batches with as many tokens, padding included, as a step has now."""
    budget = sum(len(s) for batch in batches for s in batch) / len(batches)
    made: list[Sequences] = [[]]
    for sequence in sorted((s for batch in batches for s in batch), key=len, reverse=True):
        if made[-1] and (len(made[-1]) + 1) * len(made[-1][0]) > budget:
            made.append([])
        made[-1].append(sequence)
    return random.Random(0).sample(made, len(made))


def checked_models(preset: str, sequences: Sequences, *, dropout: float) -> dict[str, tuple[Any, Loss]]:
    """Give every side's model and loss, after a check that all compute the same and drop at the same places."""
    config = PRESETS[preset]
    native = {"hidden_act": "gelu_pytorch_tanh"} if config.hidden_act == "gelu_new" else {}
    few = sequences[:8]
    for changes in ({}, native):
        check_equal(*same_weights(config, **changes), few)
    encoder, stock = same_weights(config, dropout=dropout)
    careful = same_weights(config, dropout=dropout, **native)[1]
    models = {"thrice": packed_loss(encoder), "stock": padded_loss(stock), "careful": padded_loss(careful)}
    modules = {"thrice": encoder, "stock": stock, "careful": careful}
    sites = {name: dropout_sites(modules[name], lambda loss=loss: loss(few[:1])) for name, loss in models.items()}
    if any(site != sites["thrice"] for site in sites.values()):
        raise SystemExit(f"the sides do not drop at the same number of places: {sites}")
    return {name: (modules[name], loss) for name, loss in models.items()}


def stepper(model: torch.nn.Module, loss: Loss) -> Step:
    """Give a function that takes one step and gives its seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def step(sequences: Sequences) -> None:
        loss(sequences).backward()
        optimizer.step()
        optimizer.zero_grad()

    return lambda sequences: seconds(lambda: step(sequences))


def profile(preset: str, arguments: argparse.Namespace) -> None:
    """Print the operators in which thrice's and the stock step spend their own time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watched

    batches = read_batches(PRESETS[preset].vocab_size, arguments)
    models = checked_models(preset, batches[0], dropout=arguments.dropout)
    for name in ("thrice", "stock"):
        step = stepper(*models[name])
        step(batches[0])
        with watched(activities=[ProfilerActivity.CPU]) as watch:
            step(batches[0])
        rows = sorted(watch.key_averages(), key=lambda row: -row.self_cpu_time_total)
        whole = sum(row.self_cpu_time_total for row in rows)
        print(f"{preset}, {name}: share of a step's own time by operator, {arguments.threads} threads")
        for row in rows[:12]:
            print(f"  {100 * row.self_cpu_time_total / whole:5.1f}%  {row.count:5} calls  {row.key[:70]}")


def table(result: Mapping[str, Any]) -> str:
    """Give the result for a reader."""
    return (
        f"{result['preset']}: {times(result['stock'])} over stock, {times(result['careful'])} over careful\n"
        f"  stock {result['stock_ms']:.1f} ms, thrice {result['thrice_ms']:.1f} ms a step of "
        f"{result['tokens_per_step']:.0f} tokens; {result['rounds']} rounds, {result['threads']} threads, dropout "
        f"{result['dropout']:g}\n"
        f"  padding ratio {result['padding_ratio']:.2f}, of the careful side {result['careful_padding_ratio']:.2f}; "
        f"control {times(result['control'])}\n"
        f"  floor {result['floor_ms']:.1f} ms at {result['gemm_gflops']:.0f} GFLOP/s: "
        f"{100 * result['share_of_floor']:.0f}% of thrice's step"
    )


if __name__ == "__main__":
    main()
