"""The card of a pre-trained model, written from its run: what was read, what was spent, what came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from thrice.data.corpus_file import named_counts
from thrice.pretraining import watch

ROWS = 12
"""Rows of the curve at most."""


def card(outcome: Mapping[str, Any]) -> str:
    """Give README.md of a model; outcome: as `pretrain` gives it."""
    return "\n".join(_lines(outcome)) + "\n"


def _lines(outcome: Mapping[str, Any]) -> Iterator[str]:
    yield from ("---", "library_name: transformers", "tags:", "- thrice", f"- {outcome['family']}", "---", "")
    yield from (f"# {outcome['name']}", "")
    start = f", begun from `{outcome['from']}`" if outcome["from"] else ", begun from random weights"
    yield f"A small text encoder of the {outcome['family']} family, pre-trained with thrice{start}."
    yield f"Layers share: {outcome['sharing']}. It loads in stock transformers."
    if "rtd" in outcome["objectives"]:
        yield "This folder holds the discriminator; the generator lies in `generator/`."
    if "mpn" in outcome["objectives"]:
        yield "The proposal network that chose its masks lies in `proposal.safetensors`; only thrice reads it."
    yield from ("", "```sh", "thrice finetune FOLDER --data reviews.csv --out tuned", "```", "", "```python")
    yield from ("from transformers import AutoModel, AutoTokenizer", "", 'model = AutoModel.from_pretrained("FOLDER")')
    yield from ('tokenizer = AutoTokenizer.from_pretrained("FOLDER")', "```", "")
    yield f"**Verdict: {outcome['verdict']}.**" + "".join(f" {_sentence(reason)}" for reason in outcome["reasons"])
    if outcome["reasons"]:
        yield "It is not to be ranked against other models by how it was pre-trained."
        if outcome["above_chance"]:
            yield f"What it did learn, and fine-tuning begins from: {', '.join(outcome['above_chance'])}."
    yield from ("", "## What was spent", "", "| | |", "|:--|--:|")
    spent = outcome["spent"]
    asked = ", ".join(f"{amount:,g} {unit}" for unit, amount in outcome["budget"]["asked"].items())
    yield f"| budget asked for | {asked} |"
    yield f"| tokens | {spent['tokens']:,} |"
    yield f"| floating-point operations, all towers and heads | {spent['flops']:.3e} |"
    yield f"| optimiser steps | {spent['steps']:,} |"
    yield f"| passes over the text | {spent['passes']:.2f} |"
    yield f"| seconds, evaluation included | {spent['seconds']:,.0f} |"
    for name, (stored, called) in outcome["parameters"].items():
        yield f"| parameters of the {name}: stored, called | {stored:,}, {called:,} |"
    yield from ("", "## Text", "", "| | documents | tokens | sources |", "|:--|--:|--:|:--|")
    for name, data in outcome["data"].items():
        sources = ", ".join(data["sources"][:5]) + (" and more" if len(data["sources"]) > 5 else "")
        yield f"| {name.replace('_', '-')} | {data['documents']:,} | {data['tokens']:,} | {sources} |"
    for number, counts in enumerate(outcome["left_out"], start=1):
        each = named_counts({name: count for name, count in counts.items() if name.startswith("documents")})
        lost = named_counts({name: count for name, count in counts.items() if not name.startswith("documents")})
        if each or lost:
            said = ", ".join(part for part in (each and f"{each} (in each pass)", lost) if part)
            yield from ("", f"Not used in stage {number}: {said}.")
    yield from ("", f"Tokenizer: {outcome['tokenizer']['ids']:,} ids.")
    yield from _curve(outcome)
    if outcome["warnings"]:
        yield from ("", "## Warnings of the run", "")
        yield from (f"- {warning}" for warning in outcome["warnings"])
    yield from ("", "## Recipe", "", "`recipe.toml` beside this file; all that moves weights:", "")
    yield from ("| | |", "|:--|:--|")
    yield from (f"| {name} | {value} |" for name, value in outcome["recipe"].items())
    yield f"| run.mixed_precision | {outcome['mixed_precision']} |"
    yield from ("", "## Sources of the objectives", "")
    yield from (f"- {name}: {source}" for name, source in outcome["objectives"].items())


def _curve(outcome: Mapping[str, Any]) -> Iterator[str]:
    records = outcome["evaluations"]
    if not records:
        return
    names = list(dict.fromkeys(name for record in records for name in record["held_out"]))
    entropy, frequent = outcome["baseline"]["unigram_entropy"], outcome["baseline"]["most_frequent"]
    yield from (
        "",
        "## Curve",
        "",
        f"On {outcome['evaluated_on']}, the same text and masks within a stage; losses in nats. Who",
    )
    yield f"knows the frequency of each token and nothing else has a masked loss of {entropy:.2f} and an accuracy of"
    yield f"{frequent:.1%}."
    for name in [name for name in watch.LOSSES if name in names]:
        bound = watch.NEAR_UNIGRAM * entropy
        left = next((record for record in records if record["held_out"].get(name, bound) < bound), None)
        when = "never" if left is None else f"after {left['tokens']:,} tokens and {left['flops']:.2e} FLOPs"
        yield f"The {name} loss left the plateau of such models, {bound:.2f} and above, {when}."
    yield ""
    yield f"| stage | tokens | FLOPs | {' | '.join(names)} |"
    yield f"|--:|--:|--:|{'--:|' * len(names)}"
    last = len(records) - 1
    step = max(1, -(-last // (ROWS - 1)))
    for number in sorted({*range(0, len(records), step), last}):
        record = records[number]
        values = [f"{record['held_out'][name]:.3f}" if name in record["held_out"] else "" for name in names]
        yield f"| {record['stage']} | {record['tokens']:,} | {record['flops']:.2e} | {' | '.join(values)} |"


def _sentence(text: str) -> str:
    return f"{text}."
