"""Is thrice right on this GPU, and how fast? Needs no data; made to fit into four minutes.

    python benchmarks/gpu_check.py --json > gpu.json
    python benchmarks/gpu_check.py --device cpu --checks parity attention

Checks, each with its figures; the exit code is 0 where all hold, 1 where one does not, 2 where there is no GPU:

    parity      hidden states and gradients in float32 against the CPU in float64: every family, all parameters random
    attention   bf16 attention of every path against float32, output and gradient: the varlen kernel for head sizes that
                are multiples of 8, runs of equal length for others
    training    the loss curve of a small ALBERT under bf16 autocast beside that in float32: it must learn as well
    throughput  training steps of albert-tiny-zh and albert-base under bf16 autocast against transformers' class (sdpa,
                padded batches in arrival order): no target, figures only. Lengths are drawn (log-normal, median 60,
                cut to 8 to 512), so the padding ratio is printed beside
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from pairs import Loss, Sequences, packed_loss, padded_loss, same_weights
from timing import arguments_for, interleave, padding_ratio, ratio, seconds, show, times

from thrice.model import attention
from thrice.model.config import FAMILIES, EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.packing import pack
from thrice.model.presets import PRESETS

LENGTHS = (33, 17, 17, 9, 4, 1)
HEAD_SIZES = (8, 16, 32, 64, 128, 12, 26)
SPEED_PRESETS = ("albert-tiny-zh", "albert-base")
SPEED_TEXTS = 64
"""Texts a step."""

Figures = dict[str, Any]


def main(words: list[str] | None = None) -> int:
    """Run the checks, print them, and give the exit code."""
    parser = arguments_for(__doc__)
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:1, ... or cpu, to try the script")
    parser.add_argument("--checks", nargs="+", default=list(CHECKS), choices=list(CHECKS))
    parser.add_argument("--steps", type=int, default=120, help="steps of the loss curves (default 120)")
    arguments = parser.parse_args(words)
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no GPU here: torch finds no CUDA device; --device cpu tries the script without one", file=sys.stderr)
        return 2
    torch.set_num_threads(arguments.threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    found = {name: CHECKS[name](device, arguments) for name in arguments.checks}
    result = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "ok": all(row["ok"] for rows in found.values() for row in rows),
        "checks": found,
    }
    show(result, as_json=arguments.json, text=table)
    return 0 if result["ok"] else 1


# Parity


def parity(device: torch.device, arguments: Any) -> list[Figures]:
    """Compare hidden states and gradients of every family with float64 on the CPU."""
    return [_parity(family, device) for family in FAMILIES]


def _parity(family: str, device: torch.device) -> Figures:
    encoder = filled(small_config(family))
    batch = pack(drawn(LENGTHS, encoder.config.vocab_size))
    weights = torch.randn(batch.num_tokens, encoder.config.hidden_size, generator=torch.Generator().manual_seed(1))
    outcomes = []
    for place, dtype in ((torch.device("cpu"), torch.float64), (device, torch.float32)):
        twin = Encoder(encoder.config)
        twin.load_state_dict(encoder.state_dict())
        twin.to(place, dtype).train()  # dropout is 0; eval mode might take another path
        hidden = twin(batch.to(place))
        (hidden * weights.to(place, dtype)).sum().backward()
        gradients = {name: p.grad.cpu().double() for name, p in twin.named_parameters() if p.grad is not None}
        outcomes.append((hidden.detach().cpu().double(), gradients))
    (states, wanted), (ours, gradients) = outcomes
    state_error = _error(ours, states)
    # Relative to the largest gradient of all: some parameters (a key's bias) have a gradient of exactly 0.
    largest = max(float(g.abs().max()) for g in wanted.values())
    gradient_error = max(float((gradients[name] - wanted[name]).abs().max()) for name in wanted) / largest
    ok = wanted.keys() == gradients.keys() and state_error < 1e-4 and gradient_error < 1e-4
    return {"what": family, "ok": ok, "hidden_states": state_error, "gradients": gradient_error}


def small_config(family: str) -> EncoderConfig:
    """Give a small shape of a family, with sharing where the family has it."""
    name = {"albert": "albert-tiny-zh", "bert": "bert-tiny", "electra": "electra-small", "roberta": "roberta-base"}[
        family
    ]
    calls = (0, 0, 0) if family == "albert" else (0, 1, 2)
    embedding = 32 if PRESETS[name].embedding_projection else 64
    return PRESETS[name].replace(
        vocab_size=100,
        embedding_size=embedding,
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=128,
        attention_map=calls,
        ffn_map=calls,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
    )


def filled(config: EncoderConfig) -> Encoder:
    """Give an encoder with every parameter random, norms and biases too."""
    encoder = Encoder(config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(0.05, 0.2, generator=generator)
    return encoder


# Attention


def attend_in_bf16(device: torch.device, arguments: Any) -> list[Figures]:
    """Compare bf16 attention with float32 for head sizes that the varlen kernel takes and others."""
    return [_attend(size, device) for size in HEAD_SIZES]


def _attend(head_size: int, device: torch.device) -> Figures:
    heads = 4
    batch = pack(drawn(LENGTHS, 100)).to(device)
    generator = torch.Generator().manual_seed(5)
    qkv = torch.randn(batch.num_tokens, 3 * heads * head_size, generator=generator).bfloat16()
    weights = torch.randn(batch.num_tokens, heads * head_size, generator=generator)
    fused: list[int] = []
    right = attention._attend_varlen

    def watched(*arguments: Any, **options: Any) -> torch.Tensor:
        fused.append(1)
        return right(*arguments, **options)

    outcomes = []
    attention._attend_varlen = watched
    try:
        for dtype in (torch.float32, torch.bfloat16):
            own = qkv.to(device, dtype).requires_grad_()
            context = attention.attend(own, batch, num_heads=heads, dropout=0.0)
            (context * weights.to(device, dtype)).sum().backward()
            assert own.grad is not None
            outcomes.append((context.detach().double().cpu(), own.grad.double().cpu()))
    finally:
        attention._attend_varlen = right
    (wanted, slope), (ours, our_slope) = outcomes
    errors = {"output": _error(ours, wanted), "gradient": _error(our_slope, slope)}
    path = "varlen" if fused else "runs"
    expected = "varlen" if device.type == "cuda" and head_size % 8 == 0 else "runs"
    ok = max(errors.values()) < 0.03 and path == expected
    return {"what": f"head size {head_size}", "ok": ok, "path": path, **errors}


def _error(ours: torch.Tensor, wanted: torch.Tensor) -> float:
    """Give the largest difference over the largest value wanted."""
    return float((ours - wanted).abs().max() / wanted.abs().max())


# Training


def train_in_bf16(device: torch.device, arguments: Any) -> list[Figures]:
    """Compare the loss curves in float32 and under bf16 autocast; the task is to tell the first token."""
    curves = {name: _curve(device, arguments.steps, half=name == "bf16") for name in ("float32", "bf16")}
    first = {name: float(np.mean(curve[:10])) for name, curve in curves.items()}
    last = {name: float(np.mean(curve[-10:])) for name, curve in curves.items()}
    ok = all(np.isfinite(c).all() for c in curves.values()) and abs(last["bf16"] - last["float32"]) < 0.1
    ok = ok and all(last[name] < 0.7 * first[name] for name in curves)
    return [{"what": "loss", "ok": bool(ok), "first": first, "last": last, "steps": arguments.steps}]


def _curve(device: torch.device, steps: int, *, half: bool) -> list[float]:
    config = small_config("albert").replace(initializer_range=0.1)
    encoder = Encoder(config, heads=("sequence",)).to(device).train()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3, fused=True)
    draw = np.random.default_rng(0)
    losses = []
    for _ in range(steps):
        sequences = drawn(draw.integers(4, 24, 32), 25, draw=draw)
        labels = torch.tensor([int(s[0] < 15) for s in sequences], device=device)
        batch = pack(sequences).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            logits = encoder.heads["sequence"](encoder(batch)[batch.starts])
        loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# Throughput


def throughput(device: torch.device, arguments: Any) -> list[Figures]:
    """Measure training steps beside transformers' class."""
    return [_throughput(preset, device, arguments.rounds) for preset in SPEED_PRESETS]


def _throughput(preset: str, device: torch.device, rounds: int) -> Figures:
    config = PRESETS[preset]
    draw = np.random.default_rng(0)
    batches = []
    for _ in range(rounds):
        lengths = np.clip(draw.lognormal(np.log(60), 0.8, SPEED_TEXTS), 8, 512).astype(int)
        batches.append(drawn(lengths, config.vocab_size, draw=draw))
    encoder, stock = (model.to(device) for model in same_weights(config))
    steps = {
        "thrice": _step(encoder, packed_loss(encoder), device),
        "stock": _step(stock, padded_loss(stock), device),
    }
    sides = {"thrice": "thrice", "stock": "stock", "thrice again": "thrice"}
    turns = {name: lambda turn, step=steps[which]: step(batches[turn]) for name, which in sides.items()}
    spent = interleave(turns, rounds=rounds, warm_up=min(rounds, 3))
    tokens = sum(len(s) for batch in batches for s in batch)
    return {
        "what": preset,
        "ok": True,
        "padding_ratio": padding_ratio(batches),
        "tokens_per_second": {name: tokens / sum(values) for name, values in spent.items()},
        "ratio": ratio(spent["thrice"], spent["stock"]),
        "control": ratio(spent["thrice"], spent["thrice again"]),
    }


def _step(model: torch.nn.Module, loss: Loss, device: torch.device) -> Callable[[Sequences], float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def step(sequences: Sequences) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            value = loss(sequences)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return lambda sequences: seconds(lambda: step(sequences))


def drawn(lengths: Any, vocab_size: int, *, draw: np.random.Generator | None = None) -> Sequences:
    """Give random token ids in sequences of these lengths; no id is a special one."""
    draw = np.random.default_rng(0) if draw is None else draw
    return [draw.integers(5, vocab_size, int(length)).tolist() for length in lengths]


CHECKS: dict[str, Callable[[torch.device, Any], list[Figures]]] = {
    "parity": parity,
    "attention": attend_in_bf16,
    "training": train_in_bf16,
    "throughput": throughput,
}


def table(result: Mapping[str, Any]) -> str:
    """Give the result for a reader."""
    lines = [f"{result['device']}, torch {result['torch']}, CUDA {result['cuda']}"]
    for name, rows in result["checks"].items():
        for row in rows:
            figures = ", ".join(f"{key} {_shown(value)}" for key, value in row.items() if key not in ("what", "ok"))
            lines.append(f"  {'ok    ' if row['ok'] else 'FAILED'} {name}, {row['what']}: {figures}")
    return "\n".join([*lines, "all checks hold" if result["ok"] else "a check FAILED"])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return times(value) if "interval" in value else "/".join(f"{k} {_shown(v)}" for k, v in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
