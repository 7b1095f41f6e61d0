"""Tables of what models cost: one row per cost, one column per model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from thrice.report.cost import cost_words

Numbers = Mapping[str, Any]

NAMES = 30
"""Characters of the column that names the costs."""
NARROWEST = 15
"""Characters of a model's column below which another table begins."""


def print_costs(found: Numbers, console: Console) -> None:
    """Print what `model_costs` gave, in as many tables as the width needs, and how to read them."""
    arms = list(found["arms"].items())
    many = max(1, (console.width - NAMES) // NARROWEST)
    for start in range(0, len(arms), many):
        console.print(_table(dict(arms[start : start + many]), found["tokens"]))
    lines = ["Stored parameters make the file, called parameters the time: sharing saves the first and not the second."]
    if found["control"] is not None:
        threads = "1 thread" if found["threads"] == 1 else f"{found['threads']} threads"
        arms_of = [{"arm": name, "cost": costs} for name, costs in arms]
        lines += cost_words({"cost_control": found["control"], "arms": arms_of})
        lines += [f"Measured with {threads} on random token ids, a head of two classes."]
    for line in lines:
        console.print(line, markup=False, highlight=False)


def _table(arms: Mapping[str, Numbers], tokens: int) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False, show_edge=False)
    table.add_column("cost", no_wrap=True)
    for name in arms:
        table.add_column(Text(name), justify="right", overflow="fold")
    for label, give in _rows(tokens):
        cells = [_shown(give, costs) for costs in arms.values()]
        if any(cells):
            table.add_row(label, *(cell or "-" for cell in cells))
    return table


def _rows(tokens: int) -> Iterator[tuple[str, Callable[[Numbers], str]]]:
    yield "parameters stored", lambda c: f"{c['parameters_stored'] / 1e6:,.2f} M"
    yield "parameters called", lambda c: f"{c['parameters_called'] / 1e6:,.2f} M"
    for kind, key in (("float32", "file_bytes"), ("float16", "file_bytes_float16"), ("int8", "file_bytes_int8")):
        yield f"file, {kind}", lambda c, key=key: _megabytes(c[key])  # type: ignore[misc]
    yield f"forward a token ({tokens})", lambda c: f"{c['flops_per_token'] / 1e6:,.2f} MFLOP"
    yield f"training a token ({tokens})", lambda c: f"{c['flops_per_token_training'] / 1e6:,.2f} MFLOP"
    yield f"latency, {min(16, tokens)} tokens, p50", lambda c: f"{c['latency_short_ms']['p50']:.2f} ms"
    yield "  p95", lambda c: f"{c['latency_short_ms']['p95']:.2f} ms"
    yield f"latency, {tokens} tokens, p50", lambda c: f"{c['latency_long_ms']['p50']:.2f} ms"
    yield "  p95", lambda c: f"{c['latency_long_ms']['p95']:.2f} ms"
    yield "prediction", lambda c: f"{c['prediction_tokens_per_second']:,.0f} tok/s"
    yield "training", lambda c: f"{c['training_tokens_per_second']:,.0f} tok/s"
    yield "training step, median", lambda c: f"{c['step_ms']['median']:,.1f} ms"
    for part in ("weights", "gradients", "optimizer", "activations"):
        label = f"{'memory: ' if part == 'weights' else '  '}{part}"
        yield label, lambda c, part=part: _megabytes(c["memory"][part])  # type: ignore[misc]
    yield "  peak, measured apart", lambda c: _megabytes(c["peak_memory_bytes"])


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _shown(give: Callable[[Numbers], str], costs: Numbers) -> str:
    """Give the cell; nothing where the cost was not measured or cannot be told."""
    try:
        return give(costs)
    except (KeyError, TypeError):
        return ""
