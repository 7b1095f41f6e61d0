"""Pre-training: one step against transformers' classes, what its parts take, how shards are read, how cost grows.

    python benchmarks/pretrain.py --threads 1 --cpu-time
    python benchmarks/pretrain.py --parts steps --cases albert-tiny electra-small
    python benchmarks/pretrain.py --parts profile stream growth

The text are Chinese technical articles, with the bundled vocabulary of 21,128 entries.

steps: forward, backward and fused AdamW in float32, dropout 0, on the same sequences with the same tokens hidden, all
drawn before the clock starts. Two kinds of text: *segments*, as thrice's stream cuts documents, whole sentences up to
the length; and *lines*, every paragraph a sequence, cut to the length, as transformers' example script reads text line
by line. *stock* is transformers' class with sdpa, padded to the longest sequence of the batch, logits of all places.
*careful* is the same class on rows filled to the length under a block-diagonal mask, with a head that sees the chosen
rows alone. *careful, native* has the native tanh GELU too, where the shape has that activation. For ELECTRA both stock
towers share their tables and are given thrice's samples, while thrice draws them within its step.
Losses and the norms of the gradients are checked equal before anything is timed. Read the padding ratio beside each.

rows: thrice's step against itself with the last call done for all tokens, not for those alone that a head reads.
profile: thrice's step part by part, both ways, and the floor: the products that `model.flops` counts over the rate that
this machine reaches on large ones. stream: tokens a second that come out of the shards, what making a batch takes, and
for how long the steps of a real run wait for batches, which are made in a thread. growth: the time a token of steps of
one, two and four times as many tokens.

Sides take turns, A B A B; "control" is thrice against itself. --cpu-time counts the seconds that a core worked for a
side, for a machine that others use too; waiting for batches is always counted by the clock.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import gzip
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stock_pretraining import StockElectra, StockMaskedLM, filled, padded, same_electra, same_masked_lm
from texts import DATA, chinese_tokenizer
from timing import arguments_for, gemm_rate, interleave, median, padding_ratio, ratio, show, times

from thrice.data.corpus import Corpus, prepare_corpus
from thrice.data.segments import Position, PretrainingExample, SegmentStream
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.packing import PackedBatch
from thrice.model.presets import PRESETS
from thrice.objectives.base import Vocabulary
from thrice.objectives.mlm import MaskedLM
from thrice.objectives.model import PretrainingBatch, PretrainingModel, build_pretraining_model
from thrice.objectives.rtd import ReplacedTokenDetection
from thrice.training.budget import BudgetConfig, Stage
from thrice.training.budget_loop import LOG, fit_budget

TEXT = DATA / "zh_tech_articles" / "train.txt.gz"
PARTS = ("steps", "rows", "profile", "stream", "growth")
TEXTS = ("segments", "lines")
CASES = ("albert-tiny", "albert-small", "bert-tiny", "electra-tiny", "electra-small")
BETWEEN = "loss, samples, metrics"
"""The part of a step that is in no module."""
Stock = StockMaskedLM | StockElectra


def main(words: list[str] | None = None) -> None:
    """Print the parts, or JSON."""
    parser = arguments_for(__doc__)
    parser.add_argument("--text", default=str(TEXT), help="paragraph a line (default: articles beside the repository)")
    parser.add_argument("--corpus", help="folder of its prepared corpus (default: prepared anew, half a minute)")
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS, help="what is measured (default: all)")
    parser.add_argument("--cases", nargs="*", default=CASES, choices=CASES, help="shapes of the steps (default: all)")
    parser.add_argument("--texts", nargs="*", default=TEXTS, choices=TEXTS, help="of the steps (default: both)")
    parser.add_argument("--batch-tokens", type=int, default=1024, help="tokens a step at most (default 1024)")
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a sequence at most (default 128)")
    parser.add_argument("--run-steps", type=int, default=30, help="of the run whose waiting is shown (default 30)")
    parser.add_argument("--cpu-time", action="store_true", help="seconds of the processor, not of the clock")
    arguments = parser.parse_args(words)
    if arguments.cpu_time and arguments.threads != 1:
        parser.error("--cpu-time adds up what all threads worked: use it with --threads 1")
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    arguments.clock = clock
    with tempfile.TemporaryDirectory() as place:
        corpus = prepare_corpus(arguments.text, chinese_tokenizer(), arguments.corpus or Path(place) / "corpus")
        show(measure(corpus, arguments), as_json=arguments.json, text=table)


def measure(corpus: Corpus, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give the parts that were asked for."""
    result: dict[str, Any] = {
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "clock": "processor" if arguments.cpu_time else "wall",
        "corpus_tokens": corpus.num_tokens,
    }
    if "steps" in arguments.parts:
        result["steps"] = {
            f"{case}, {kind}": steps(case, kind, corpus, arguments)
            for case, kind in itertools.product(arguments.cases, arguments.texts)
        }
    if "rows" in arguments.parts:
        result["rows"] = {case: rows_read(case, corpus, arguments) for case in arguments.cases}
    if "profile" in arguments.parts:
        result["profile"] = {case: profile(case, corpus, arguments) for case in arguments.cases}
    if "stream" in arguments.parts:
        result["stream"] = stream(arguments.cases[0], corpus, arguments)
    if "growth" in arguments.parts:
        result["growth"] = growth(arguments.cases[0], corpus, arguments)
    return result


# Models and batches


def shape_of(case: str, *, vocab_size: int) -> EncoderConfig:
    """Give the shape of a case: 4 calls 312 wide or 6 calls 384 wide, of the family in its name, without dropout."""
    family, size = case.split("-")
    base = PRESETS[f"albert-{size}-zh"]
    if family != "albert":
        own = tuple(range(base.num_calls))
        base = base.replace(
            family=family,
            attention_map=own,
            ffn_map=own,
            hidden_act="gelu",
            embedding_size=base.hidden_size if family == "bert" else base.embedding_size,
            embedding_projection=family != "bert",
        )
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob")
    return base.replace(vocab_size=vocab_size, **dict.fromkeys(rates, 0.0))


def model_of(case: str, corpus: Corpus) -> PretrainingModel:
    """Give a case's model with fresh weights."""
    special = corpus.special_ids
    vocabulary = Vocabulary(
        num_tokens=corpus.vocab_size, mask_id=special["mask"], special_ids=tuple(sorted(set(special.values())))
    )
    objective = ReplacedTokenDetection() if case.startswith("electra") else MaskedLM()
    config = shape_of(case, vocab_size=corpus.vocab_size)
    return build_pretraining_model(config, [objective], vocabulary=vocabulary, seed=0).train()


def segments(corpus: Corpus, *, max_length: int, batch_tokens: int) -> Iterator[list[PretrainingExample]]:
    """Yield batches of a stream of segments."""
    made = SegmentStream(corpus, max_length=max_length, batch_tokens=batch_tokens, seed=0)
    return (examples for examples, _ in made.batches())


def lines(corpus: Corpus, *, text: str, max_length: int, batch_tokens: int) -> Iterator[list[PretrainingExample]]:
    """Yield batches of the paragraphs of a text file in random order, each a sequence of its own, cut to the length."""
    read = Path(text).read_bytes()
    written = (gzip.decompress(read) if text.endswith(".gz") else read).decode("utf-8").split("\n")
    paragraphs = [line.strip() for line in written if line.strip()]
    tokenizer = chinese_tokenizer()
    batch: list[PretrainingExample] = []
    used = 0
    for number, line in enumerate(itertools.cycle(random.Random(0).sample(paragraphs, len(paragraphs)))):
        ids = np.array(tokenizer.encode([line], max_length=max_length)[0][0], dtype=np.int64)
        if used + len(ids) > batch_tokens:
            yield batch
            batch, used = [], 0
        special = np.isin(ids, [i for name, i in corpus.special_ids.items() if name != "unk"])
        example = PretrainingExample(
            input_ids=ids,
            token_type_ids=np.zeros_like(ids),
            special=special,
            word_starts=np.ones_like(special),
            pair_label=-100,
            key=(0, 0, 0, number),
        )
        batch.append(example)
        used += len(ids)


def batches_of(
    kind: str,
    model: PretrainingModel,
    corpus: Corpus,
    *,
    count: int,
    max_length: int,
    batch_tokens: int,
    text: str = "",
) -> list[PretrainingBatch]:
    """Give so many batches of a kind of text, hidden and labelled; small last ones of a shard are left out."""
    sizes = {"max_length": max_length, "batch_tokens": batch_tokens}
    made = lines(corpus, text=text, **sizes) if kind == "lines" else segments(corpus, **sizes)
    full = (examples for examples in made if sum(len(e.input_ids) for e in examples) >= batch_tokens - max_length)
    return [model.make_batch(examples, seed=0) for examples in itertools.islice(full, count)]


# A step


def steps(case: str, kind: str, corpus: Corpus, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give the ratios of one case's step on one kind of text."""
    model = model_of(case, corpus)
    sizes = {"max_length": arguments.max_length, "batch_tokens": arguments.batch_tokens}
    batches = batches_of(kind, model, corpus, count=arguments.rounds, text=arguments.text, **sizes)
    stocks = stocks_of(model, width=arguments.max_length)
    prepared = {name: [stock.prepared(batch) for batch in batches] for name, stock in stocks.items()}
    check_equal(model, batches[0], {name: (stock, prepared[name][0]) for name, stock in stocks.items()})

    def side(name: str, stock: Stock) -> Callable[[int], float]:
        step = stepper(stock.parameters, arguments.clock)
        return lambda turn: step(lambda: stock.loss(prepared[name][turn]))

    ours = stepper(list(model.parameters()), arguments.clock)

    def thrice(turn: int) -> float:
        return ours(lambda: model.loss(batches[turn]))

    sides = {name: side(name, stock) for name, stock in stocks.items()} | {"thrice": thrice, "thrice again": thrice}
    spent = interleave(sides, rounds=arguments.rounds)
    return {
        "sequences_per_step": statistics.median(batch.num_examples for batch in batches),
        "tokens_per_step": statistics.median(batch.num_tokens for batch in batches),
        "padding_ratio": padding_ratio([[range(n) for n in batch.clean.lengths] for batch in batches]),
        "careful_padding_ratio": sum(stocks["careful"].places(one) for one in prepared["careful"])
        / sum(batch.num_tokens for batch in batches),
        "milliseconds": {name: 1000 * statistics.median(values) for name, values in spent.items()},
        "over": {name: ratio(spent["thrice"], spent[name]) for name in stocks},
        "control": ratio(spent["thrice"], spent["thrice again"]),
        "tokens_per_second": sum(batch.num_tokens for batch in batches) / sum(spent["thrice"]),
    }


def stocks_of(model: PretrainingModel, *, width: int) -> dict[str, Stock]:
    """Give the stock sides of a model; width: of filled rows."""
    in_rows = functools.partial(filled, width=width)
    if model.config.family == "electra":
        return {
            "stock": same_electra(model, padded, gathers=False),
            "careful": same_electra(model, in_rows, gathers=True),
        }
    found: dict[str, Stock] = {
        "stock": same_masked_lm(model, padded, gathers=False),
        "careful": same_masked_lm(model, in_rows, gathers=True),
    }
    if model.config.hidden_act == "gelu_new":
        found["careful, native"] = same_masked_lm(model, in_rows, gathers=True, hidden_act="gelu_pytorch_tanh")
    return found


def check_equal(model: PretrainingModel, batch: PretrainingBatch, stocks: Mapping[str, tuple[Stock, Any]]) -> None:
    """Compare losses and norms of gradients of all sides; exit where they differ by 1e-5 and 1e-4 of their size."""

    def found(loss: torch.Tensor, parameters: list[torch.nn.Parameter]) -> tuple[float, float]:
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        for parameter in parameters:
            parameter.grad = None
        return loss.item(), norm.item()

    ours = found(model.loss(batch), list(model.parameters()))
    theirs = {name: found(stock.loss(prepared), stock.parameters) for name, (stock, prepared) in stocks.items()}
    for loss, norm in theirs.values():
        if abs(loss - ours[0]) > 1e-5 * abs(ours[0]) or abs(norm - ours[1]) > 1e-4 * ours[1]:
            raise SystemExit(f"the sides do not compute the same: loss and norm of thrice {ours}, of others {theirs}")


def stepper(
    parameters: list[torch.nn.Parameter], clock: Callable[[], float]
) -> Callable[[Callable[[], torch.Tensor]], float]:
    """Give a function that takes one step on a loss and gives its seconds."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, fused=True)

    def step(loss: Callable[[], torch.Tensor]) -> float:
        started = clock()
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
        return clock() - started

    return step


# The rows that are read


def rows_read(case: str, corpus: Corpus, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give the ratio of a step whose last call is done for all tokens over thrice's, on segments."""
    model = model_of(case, corpus)
    sizes = {"max_length": arguments.max_length, "batch_tokens": arguments.batch_tokens}
    batches = batches_of("segments", model, corpus, count=arguments.rounds, **sizes)
    whole = copy.deepcopy(model)
    for encoder in whole.stock_encoders().values():
        encoder.forward = functools.partial(all_rows, encoder)  # type: ignore[method-assign]

    def side(own: PretrainingModel) -> Callable[[int], float]:
        step = stepper(list(own.parameters()), arguments.clock)
        return lambda turn: step(lambda: own.loss(batches[turn]))

    with torch.no_grad():
        losses = [float(one.loss(batches[0])) for one in (model, whole)]
    if abs(losses[0] - losses[1]) > 1e-6 * abs(losses[0]):
        raise SystemExit(f"the sides do not compute the same: losses {losses}")
    thrice = side(model)
    spent = interleave({"whole": side(whole), "thrice": thrice, "again": thrice}, rounds=arguments.rounds)
    return {
        "gflop": statistics.median(model.flops(batch) for batch in batches) / 1e9,
        "ratio": ratio(spent["thrice"], spent["whole"]),
        "control": ratio(spent["thrice"], spent["again"]),
    }


def all_rows(encoder: Encoder, packed: PackedBatch, *, rows: torch.Tensor | None = None) -> Any:
    """Give states of tokens after a pass that makes those of all."""
    states = Encoder.forward(encoder, packed)
    assert isinstance(states, torch.Tensor)
    return states if rows is None else states.index_select(0, rows)


# Where the time goes


@dataclass
class Cuts:
    """The graph of a step, parted where a module's result or its input is handed on."""

    clock: Callable[[], float]
    marks: list[tuple[str, float]] = dataclasses.field(default_factory=list)
    ends: list[tuple[str, torch.Tensor, torch.Tensor]] = dataclasses.field(default_factory=list)

    def mark(self, name: str) -> None:
        """Note that a part ends here."""
        self.marks.append((name, self.clock()))

    def cut(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Note that a part ends with this value, and give a new beginning for what follows."""
        begin = value.detach().requires_grad_()
        self.ends.append((name, value, begin))
        self.mark(name)
        return begin

    def spent(self, started: float) -> dict[str, float]:
        """Give part -> seconds up to each mark."""
        found: dict[str, float] = {}
        for name, at in self.marks:
            found[name] = found.get(name, 0.0) + at - started
            started = at
        return found


def cut_apart(model: PretrainingModel, clock: Callable[[], float]) -> Cuts:
    """Let every pass of the model be parted at its embeddings and its heads."""
    cuts = Cuts(clock)
    for prefix, encoder in model.stock_encoders().items():
        who = f"{prefix} " if prefix else ""
        encoder.embeddings.register_forward_pre_hook(lambda *_: cuts.mark(BETWEEN))
        encoder.embeddings.register_forward_hook(lambda _, __, out, who=who: cuts.cut(f"{who}embeddings", out))
        for name, head in encoder.heads.items():
            head.register_forward_pre_hook(lambda _, given, who=who: (cuts.cut(f"{who}encoder", given[0]), *given[1:]))
            head.register_forward_hook(lambda _, __, out, who=who, name=name: cuts.cut(f"{who}{name} head", out))
    return cuts


def in_parts(
    model: PretrainingModel, batch: PretrainingBatch, cuts: Cuts, update: Callable[[], None]
) -> tuple[dict[str, float], dict[str, float]]:
    """Take a step part by part; gives the seconds of each on the way forth and on the way back."""
    cuts.marks.clear()
    cuts.ends.clear()
    started = cuts.clock()
    loss = model.loss(batch)
    cuts.mark(BETWEEN)
    forth = cuts.spent(started)
    cuts.marks.clear()
    started = cuts.clock()
    loss.backward()
    cuts.mark(BETWEEN)
    for name, end, begin in reversed(cuts.ends):
        end.backward(begin.grad)
        cuts.mark(name)
    update()
    cuts.mark("optimiser")
    return forth, cuts.spent(started)


def profile(case: str, corpus: Corpus, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give what each part of thrice's step takes, both ways, and the floor."""
    model = model_of(case, corpus)
    sizes = {"max_length": arguments.max_length, "batch_tokens": arguments.batch_tokens}
    batches = batches_of("segments", model, corpus, count=arguments.rounds, **sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    cuts = cut_apart(model, arguments.clock)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    in_parts(model, batches[-1], cuts, update)
    found = [in_parts(model, batch, cuts, update) for batch in batches]
    parts = {
        name: {
            way: 1000 * statistics.median(one[i].get(name, 0.0) for one in found)
            for i, way in enumerate(("forward", "backward"))
        }
        for name in found[0][1]
    }
    config, tokens = model.config, int(statistics.median(batch.num_tokens for batch in batches))
    rate = gemm_rate(tokens, config.hidden_size, config.intermediate_size, clock=arguments.clock)
    whole = [sum(forth.values()) + sum(back.values()) for forth, back in found]
    floors = [model.flops(batch) / rate for batch in batches]
    return {
        "tokens_per_step": tokens,
        "milliseconds": parts,
        "whole_ms": 1000 * statistics.median(whole),
        "gflop": statistics.median(model.flops(batch) for batch in batches) / 1e9,
        "gemm_gflops": rate / 1e9,
        "floor_ms": 1000 * statistics.median(floors),
        "share_of_floor": statistics.median(f / s for f, s in zip(floors, whole, strict=True)),
    }


# Reading, and growth


def stream(case: str, corpus: Corpus, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give tokens a second out of the shards, milliseconds of making a batch, and a run's share of waiting."""
    model = model_of(case, corpus)
    sizes = {"max_length": arguments.max_length, "batch_tokens": arguments.batch_tokens}
    made = SegmentStream(corpus, seed=0, **sizes)
    rates = []
    for _ in range(arguments.rounds):
        started, tokens = arguments.clock(), 0
        for examples, behind in made.batches():
            tokens += sum(len(example.input_ids) for example in examples)
            if behind.batch == 0:  # a whole shard: cut, shuffled and filled into batches
                break
        rates.append(tokens / (arguments.clock() - started))
    making = []
    for examples in itertools.islice(segments(corpus, **sizes), arguments.rounds):
        started = arguments.clock()
        model.make_batch(examples, seed=0)
        making.append(arguments.clock() - started)

    def batches(position: dict[str, Any] | None) -> Iterator[tuple[Sequence[Any], dict[str, Any]]]:
        for examples, behind in made.batches(Position(**position or {})):
            yield examples, dataclasses.asdict(behind)

    stage = Stage(
        name="benchmark",
        end=1.0,
        batches=batches,
        make_batch=functools.partial(model.make_batch, seed=0),
        lengths=lambda examples: [len(example.input_ids) for example in examples],
        leaves_unused=False,
    )
    config = BudgetConfig(unit="steps", amount=arguments.run_steps, evaluations=0, save_seconds=None, log_every_steps=1)
    with tempfile.TemporaryDirectory() as place:
        fit_budget(model, config, stages=[stage], folder=Path(place), progress=False)
        log = [json.loads(line) for line in (Path(place) / LOG).read_text().splitlines()]
    waits = [line["wait_seconds"] for line in log if line["event"] == "step"]
    ends = [0.0, *(line["seconds"] for line in log if line["event"] == "step")]
    return {
        "case": case,
        "stream_tokens_per_second": median(rates),
        "make_batch_ms": 1000 * statistics.median(making),
        "steps": len(waits),
        "first_wait_ms": 1000 * waits[0],
        "share_waiting": sum(waits[1:]) / (ends[-1] - ends[1]),
        "longest_wait_ms": 1000 * max(waits[1:]),
        "step_ms": 1000 * statistics.median(b - a for a, b in itertools.pairwise(ends[1:])),
    }


def growth(case: str, corpus: Corpus, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give the time a token of steps of one, two and four times as many tokens."""
    model = model_of(case, corpus)
    counts = {str(k): k * arguments.batch_tokens for k in (1, 2, 4)}
    batches = {
        k: batches_of(
            "segments", model, corpus, count=arguments.rounds, max_length=arguments.max_length, batch_tokens=tokens
        )
        for k, tokens in counts.items()
    }
    step = stepper(list(model.parameters()), arguments.clock)

    def side(own: list[PretrainingBatch]) -> Callable[[int], float]:
        return lambda turn: step(lambda: model.loss(own[turn])) / own[turn].num_tokens

    spent = interleave({k: side(own) for k, own in batches.items()}, rounds=arguments.rounds)
    return {
        "case": case,
        "tokens_per_step": {k: statistics.median(b.num_tokens for b in own) for k, own in batches.items()},
        "microseconds_a_token": {k: 1e6 * statistics.median(values) for k, values in spent.items()},
        "growth": {k: ratio(spent["1"], spent[k]) for k in ("2", "4")},
    }


def table(result: Mapping[str, Any]) -> str:
    """Give the result for a reader."""
    found = [
        f"{result['rounds']} rounds, {result['threads']} threads, {result['clock']} time, corpus of "
        f"{result['corpus_tokens']:,} tokens"
    ]
    for name, one in result.get("steps", {}).items():
        spent = one["milliseconds"]
        over = ", ".join(f"{times(value)} over {side}" for side, value in one["over"].items())
        found += [
            f"{name}: {over}; control {times(one['control'])}",
            f"  thrice {spent['thrice']:.0f} ms, {', '.join(f'{s} {spent[s]:.0f} ms' for s in one['over'])} a step of "
            f"{one['tokens_per_step']:.0f} tokens in {one['sequences_per_step']:.0f} sequences; padding ratio "
            f"{one['padding_ratio']:.2f}, of filled rows {one['careful_padding_ratio']:.2f}",
        ]
    for name, one in result.get("rows", {}).items():
        found.append(
            f"{name}: {times(one['ratio'])} over the last call for all tokens; control {times(one['control'])}"
        )
    for name, one in result.get("profile", {}).items():
        found.append(
            f"{name}: {one['whole_ms']:.0f} ms a step of {one['tokens_per_step']} tokens; floor {one['floor_ms']:.0f} "
            f"ms for {one['gflop']:.1f} GFLOP at {one['gemm_gflops']:.0f} GFLOP/s: {100 * one['share_of_floor']:.0f}%"
        )
        for part, ways in one["milliseconds"].items():
            share = 100 * sum(ways.values()) / one["whole_ms"]
            found.append(f"  {share:5.1f}%  {part}: forward {ways['forward']:.1f} ms, backward {ways['backward']:.1f}")
    if "stream" in result:
        one = result["stream"]
        rate = one["stream_tokens_per_second"]
        found.append(
            f"stream: {rate['median'] / 1e6:.2f} M tokens a second ({rate['interval'][0] / 1e6:.2f} to "
            f"{rate['interval'][1] / 1e6:.2f}), making a batch {one['make_batch_ms']:.1f} ms; {one['case']}: first "
            f"wait {one['first_wait_ms']:.0f} ms, then {100 * one['share_waiting']:.2f}% of {one['steps'] - 1} steps "
            f"of {one['step_ms']:.0f} ms, the longest {one['longest_wait_ms']:.1f} ms"
        )
    if "growth" in result:
        one = result["growth"]
        per = one["microseconds_a_token"]
        found.append(
            f"growth, {one['case']}: "
            + "; ".join(f"{one['tokens_per_step'][k]:.0f} tokens {per[k]:.1f} us each" for k in per)
            + f"; cost of a token at 2x {times({**one['growth']['2']})}, at 4x {times(one['growth']['4'])}"
        )
    return "\n".join(found)


if __name__ == "__main__":
    main()
