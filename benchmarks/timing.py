"""What all benchmarks share: sides that take turns, ratios within a round, the interval of a median, the floor.

Nothing here is about thrice. A *side* is a function from the number of a round to its seconds. Every benchmark lets its
sides take turns (A B A B), so that a slow minute of the machine meets all of them; takes ratios inside a round; and
times one side twice (A/A): that ratio says what the order of the turns does, and should be 1.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Side = Callable[[int], float]
CONFIDENCE = 0.95


def arguments_for(doc: str | None) -> argparse.ArgumentParser:
    """Give a parser with the options that every benchmark has; the module's text is its help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=10, help="turns of every side (default 10; 6 or more for a 95%% interval)"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of every side (default: cores)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def show(result: Mapping[str, Any], *, as_json: bool, text: Callable[[Mapping[str, Any]], str]) -> None:
    """Print a result as one line of JSON or for a reader."""
    print(json.dumps(result, ensure_ascii=False) if as_json else text(result), flush=True)


def seconds(work: Callable[[], Any], *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Give how long one call takes on a clock."""
    started = clock()
    work()
    return clock() - started


def interleave(sides: Mapping[str, Side], *, rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Give name -> seconds of every round, the sides taking turns; rounds of the warm-up are numbered from the last."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-warm_up, rounds):
        for name, side in sides.items():
            spent = side(turn % rounds)
            if turn >= 0:
                times[name].append(spent)
    return times


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Give how often `ours` fits into `theirs`: the median over the rounds with its interval."""
    return median([b / a for a, b in zip(ours, theirs, strict=True)])


def median(values: Sequence[float]) -> dict[str, Any]:
    """Give the median and the interval between two order statistics that holds it with at least 95%.

    With fewer than six values no such pair exists: the interval is the range, and `confidence` says what it is worth.
    """
    ordered, size = sorted(values), len(values)

    def coverage(k: int) -> float:
        """Chance that the median lies between the k-th smallest and the k-th largest value."""
        return 1 - 2 * sum(math.comb(size, i) for i in range(k)) / 2**size

    k = max([1, *(k for k in range(1, size // 2 + 1) if coverage(k) >= CONFIDENCE)])
    return {
        "median": statistics.median(ordered),
        "interval": [ordered[k - 1], ordered[-k]],
        "confidence": coverage(k),
        "rounds": size,
    }


def total_ratio(ours: Sequence[float], theirs: Sequence[float], *, draws: int = 2000) -> dict[str, Any]:
    """Give sum(theirs) / sum(ours), for sides that do the same work in other portions, with a bootstrap interval.

    Rounds are drawn with replacement, the two sides of a round together.
    """
    draw = random.Random(0)
    pairs = list(zip(ours, theirs, strict=True))
    drawn = sorted(_total(draw.choices(pairs, k=len(pairs))) for _ in range(draws))
    low = round((1 - CONFIDENCE) / 2 * (draws - 1))
    interval = [drawn[low], drawn[-1 - low]]
    return {"median": _total(pairs), "interval": interval, "confidence": CONFIDENCE, "rounds": len(pairs)}


def _total(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(b for _, b in pairs) / sum(a for a, _ in pairs)


def gemm_rate(rows: int, inner: int, columns: int, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Give the floating-point operations per second of (rows, inner) x (inner, columns), the best of 100."""
    a, b = torch.randn(rows, inner), torch.randn(inner, columns)
    return 2 * rows * inner * columns / min(seconds(lambda: a @ b, clock=clock) for _ in range(100))


def forward_flops(config: Any, lengths: Sequence[int]) -> float:
    """Give the floating-point operations of the matrix products of one forward pass over sequences of these lengths."""
    hidden, tokens = config.hidden_size, sum(lengths)
    per_token = 2 * (4 * hidden * hidden + 2 * hidden * config.intermediate_size)
    attention = sum(4 * n * n * hidden for n in lengths)
    projection = 2 * config.embedding_size * hidden * tokens if config.embedding_projection else 0
    return config.num_calls * (per_token * tokens + attention) + projection


def padding_ratio(batches: Sequence[Sequence[Sequence[int]]]) -> float:
    """Give tokens with padding over real tokens, each batch padded to its longest sequence."""
    padded = sum(len(batch) * max(map(len, batch)) for batch in batches)
    return padded / sum(len(sequence) for batch in batches for sequence in batch)


def times(value: Mapping[str, Any]) -> str:
    """Give a ratio for a reader: 6.41x (6.20 to 6.52)."""
    low, high = value["interval"]
    return f"{value['median']:.2f}x ({low:.2f} to {high:.2f})"
