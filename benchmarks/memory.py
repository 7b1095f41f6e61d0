"""Peak memory of a training step: stock ALBERT and BERT of transformers against thrice's encoder, shared and not.

    python benchmarks/memory.py

Every arm runs in a process of its own: it imports everything, makes one optimiser step on a single number so that all
that torch loads on the way is there, notes what it holds, and then builds the model and takes steps. The peak is the
kernel's high-water mark (VmHWM) less what was held before, so it counts weights, gradients, AdamW's two moments and
what the forward pass keeps. All arms: random weights, dropout 0, fused AdamW, texts of one length without padding,
sdpa. Linux only. --rounds N adds the time of steps with checkpointing over that of steps without, taken in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AlbertConfig, AlbertForSequenceClassification, BertConfig, BertForSequenceClassification

from thrice.compare import cost
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.packing import pack
from thrice.model.presets import PRESETS

Loss = Callable[[], Tensor]
REFERENCE = "stock ALBERT"
TARGETS = {"thrice shared": 0.55, "thrice shared, checkpointing": 0.3}
"""Arm -> what its peak should be at most, as a part of stock ALBERT's."""
DROPOUT = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob"), 0.0)


def main() -> None:
    """Print one table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--albert", default="albert-base", help="preset of the ALBERT arms")
    parser.add_argument("--bert", default="bert-base", help="preset of the BERT arm")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="tokens of every text")
    parser.add_argument("--steps", type=int, default=2, help="steps of each arm; the moments are there from the second")
    parser.add_argument("--rounds", type=int, default=0, help="steps with and without checkpointing, timed in turn")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.arm:
        print(json.dumps(peak_here(arguments)))
        return
    peaks = {arm: peak_elsewhere(arm) for arm in ARMS}
    result = {
        "shape": f"{arguments.albert} and {arguments.bert}, batch {arguments.batch_size} x {arguments.length}",
        "arms": {arm: found | {"ratio": found["peak"] / peaks[REFERENCE]["peak"]} for arm, found in peaks.items()},
        "time_ratio": time_ratio(arguments) if arguments.rounds else None,
    }
    print(json.dumps(result) if arguments.json else table(result))


def stock(kind: type, config_kind: type, preset: str, **more: Any) -> nn.Module:
    """Give a stock sequence classifier of the preset's shape with random weights."""
    config = PRESETS[preset]
    names = ("vocab_size", "embedding_size", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act")
    values = {name: getattr(config, name) for name in (*names, "max_position_embeddings")}
    model: nn.Module = kind(config_kind(**values, **DROPOUT, num_hidden_layers=config.num_calls, **more))
    return model


def encoder(preset: str, *, shared: bool, checkpointing: bool = False) -> Encoder:
    """Give thrice's encoder of the preset's shape with a stock head and random weights."""
    config: EncoderConfig = PRESETS[preset].replace(**DROPOUT)
    if not shared:
        own = tuple(range(config.num_calls))
        config = config.replace(attention_map=own, ffn_map=own)
    model = Encoder(config, heads=("sequence",))
    model.gradient_checkpointing = checkpointing
    return model


def stock_bert(arguments: argparse.Namespace, *, checkpointing: bool = False) -> nn.Module:
    """Give stock BERT, with its own checkpointing or without; stock ALBERT refuses to be checkpointed."""
    model: Any = stock(BertForSequenceClassification, BertConfig, arguments.bert)
    if checkpointing:
        model.activation_checkpointing_enable()
    return model


ARMS: dict[str, Callable[[argparse.Namespace], nn.Module]] = {
    "stock BERT": stock_bert,
    "stock BERT, checkpointing": lambda a: stock_bert(a, checkpointing=True),
    REFERENCE: lambda a: stock(AlbertForSequenceClassification, AlbertConfig, a.albert),
    "thrice un-shared": lambda a: encoder(a.albert, shared=False),
    "thrice shared": lambda a: encoder(a.albert, shared=True),
    "thrice shared, checkpointing": lambda a: encoder(a.albert, shared=True, checkpointing=True),
}


def loss_of(model: nn.Module, arguments: argparse.Namespace) -> Loss:
    """Give the loss of one batch: equal lengths, so that stock code has no padding to carry."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 30, (arguments.batch_size, arguments.length), generator=generator)
    labels = ids.sum(1) % 2
    if isinstance(model, Encoder):
        batch = pack(ids.numpy())
        return lambda: F.cross_entropy(model.heads["sequence"](model(batch)[batch.starts]), labels)
    mask = torch.ones_like(ids)
    return lambda: model(input_ids=ids, attention_mask=mask, labels=labels).loss


def stepper(model: nn.Module, arguments: argparse.Namespace) -> Callable[[], float]:
    """Give a function that takes one step and gives its seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    loss = loss_of(model.train(), arguments)

    def step() -> float:
        started = time.perf_counter()
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - started

    return step


def kept_bytes(model: nn.Module, arguments: argparse.Namespace) -> int:
    """Give the bytes that one forward pass keeps for the way back, weights aside, each piece of memory once."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss_of(model.train(), arguments)()
    return sum(kept.values())


def peak_here(arguments: argparse.Namespace) -> dict[str, int]:
    """Give the bytes of this process's arm at their most, and what makes them up."""
    number = nn.Parameter(torch.ones(1))
    number.square().backward()
    torch.optim.AdamW([number], fused=True).step()
    cost._forget_peak()
    before = cost._status_bytes("VmRSS")
    model = ARMS[arguments.arm](arguments)
    step = stepper(model, arguments)
    for _ in range(arguments.steps):
        step()
    peak = cost._status_bytes("VmHWM")
    if peak is None or before is None:
        raise SystemExit("/proc/self/status tells no peak here; this benchmark wants Linux")
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"peak": peak - before, "weights": weights, "kept": kept_bytes(model, arguments)}


def peak_elsewhere(arm: str) -> dict[str, int]:
    """Give what `peak_here` gives in a process of the arm's own."""
    answer = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--arm", arm], capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(f"{arm} failed: {answer.stderr.strip()}")
    found: dict[str, int] = json.loads(answer.stdout.splitlines()[-1])
    return found


def time_ratio(arguments: argparse.Namespace) -> list[float]:
    """Give, per round, the time of a step with checkpointing over that of one without."""
    plain, twice = (stepper(encoder(arguments.albert, shared=True, checkpointing=c), arguments) for c in (False, True))
    return [twice() / plain() for _ in range(arguments.rounds + 1)][1:]  # the first round warms up


def table(result: dict[str, Any]) -> str:
    """Give the result for a reader, in MB of 10^6 bytes."""
    lines = [
        f"{result['shape']}; MB",
        "| arm | peak | of stock ALBERT | weights, gradients, moments | kept for the way back |",
        "|---|---|---|---|---|",
    ]
    for arm, found in result["arms"].items():
        target = f" (target {TARGETS[arm]:.2f})" if arm in TARGETS else ""
        cells = (f"{found['peak'] / 1e6:.0f}", f"{found['ratio']:.2f}{target}", f"{4 * found['weights'] / 1e6:.0f}")
        lines.append(f"| {arm} | {' | '.join(cells)} | {found['kept'] / 1e6:.0f} |")
    if result["time_ratio"]:
        ratios = result["time_ratio"]
        middle = statistics.median(ratios)
        lines.append(f"checkpointing: {middle:.2f}x the time, from {min(ratios):.2f} to {max(ratios):.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
