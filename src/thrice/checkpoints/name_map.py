"""Which tensor of a checkpoint becomes which parameter: one plan, from names and shapes, before anything is read.

Letters: V vocabulary, E embedding, H hidden, I feed-forward, P positions, Y token types, C classes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thrice.checkpoints.formats import NO_PARAMETER, WHEN_UNTIED, Format, Maps, Row, Slot, table
from thrice.errors import CheckpointError
from thrice.model.config import EncoderConfig
from thrice.registry import plugins

WORDS, DECODER = "embeddings.word_embeddings.weight", "heads.mlm.decoder.weight"

# Two heads that claim one tensor: the earlier one has it. The pooler of BERT and ALBERT is part of the sequence head.
_CLAIMS = ("sequence", "token", "span", "mlm", "sentence_pair", "rtd", "pooler")

# Where config.json names a class, that class says what `classifier` is.
_CLASSIFIERS = {
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForMultipleChoice": "multiple-choice",
}

_SHAPES = table("""
embeddings.word_embeddings.weight        V,E
embeddings.position_embeddings.weight    P,E
embeddings.token_type_embeddings.weight  Y,E
embeddings.LayerNorm.*                   E.*
embeddings.projection.*                  H,E.*
attention.{a}.query.*                    H,H.*
attention.{a}.key.*                      H,H.*
attention.{a}.value.*                    H,H.*
attention.{a}.output.*                   H,H.*
attention.{a}.LayerNorm.*                H.*
ffn.{f}.intermediate.*                   I,H.*
ffn.{f}.output.*                         H,I.*
ffn.{f}.LayerNorm.*                      H.*
heads.sequence.dense.*                   H,H.*
heads.sequence.classifier.*              C,H.*
heads.token.classifier.*                 C,H.*
heads.span.qa_outputs.*                  2,H.*
heads.mlm.dense.*                        E,H.*
heads.mlm.LayerNorm.*                    E.*
heads.mlm.bias                           V
heads.mlm.decoder.weight                 V,E
heads.sentence_pair.classifier.*         C,H.*
heads.rtd.dense.*                        H,H.*
heads.rtd.prediction.*                   1,H.*
heads.pooler.dense.*                     H,H.*
""")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor of a checkpoint file: what its header says, and a way to read it."""

    shape: tuple[int, ...]
    """As stored."""
    dtype: str
    """As the file names it."""
    floating: bool
    """Whether it is a float32, float64, float16 or bfloat16 tensor."""
    read: Callable[[], Tensor]
    """Gives the tensor; its memory may be mapped from the file and start at any address."""


class Pair(NamedTuple):
    """A row of the name table with its places filled in."""

    ours: str
    theirs: str
    note: str


class Fate(NamedTuple):
    """What becomes of one tensor."""

    name: str
    shape: tuple[int, ...]
    fate: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a checkpoint becomes."""

    format: Format
    """The family."""
    config: EncoderConfig
    """Shape and sharing of the encoder."""
    heads: Mapping[str, int]
    """Head -> its number of classes (2 where it has none)."""
    untied: bool
    """Whether the MLM head has an output table of its own."""
    wanted: Mapping[str, tuple[int, ...]]
    """Parameter (query, key and value apart) -> shape."""
    reads: Mapping[str, tuple[str, ...]]
    """Parameter -> tensors of the checkpoint that hold it; the first is read, the others are its copies."""
    fates: tuple[Fate, ...]
    """One for every tensor of the checkpoint and for every one that is missing."""
    problems: tuple[str, ...]
    """Everything that keeps the checkpoint from being loaded."""


def find_format(names: Sequence[str], stock: Mapping[str, Any]) -> Format:
    """Give the one family that both the tensor names and config.json speak of.

    Raises CheckpointError that lists what was seen where they fit no family, several, or contradict each other.
    """
    formats: dict[str, Format] = plugins("checkpoints.formats")
    strangers = {name: count for name, f in formats.items() if (count := _count_strangers(f, names)) is not None}
    fitting = [name for name, count in strangers.items() if count == min(strangers.values())]
    classes = stock.get("architectures") or []
    claimed = stock.get("model_type") or next((n for n, f in formats.items() if set(classes) & set(f.classes)), None)
    if claimed in fitting:
        return formats[claimed]
    if claimed is None and len(fitting) == 1:
        return formats[fitting[0]]
    seen = (
        f"config.json says model_type {stock.get('model_type')!r}, architectures {classes}; its {len(names)} tensors "
    )
    seen += f"look like {' or '.join(fitting) or 'no family'} ({_some(sorted(names), 4)})"
    wanted = f"expected one of {', '.join(formats)}, by config.json and by tensor names"
    raise CheckpointError(f"{wanted}; {seen}. - correct model_type, or is this another kind of model?")


def pairs_of(format: Format, stock: Mapping[str, Any], maps: Maps, *, bare: bool) -> list[Pair]:
    """Give the name table for one config.json, in its own order: every parameter beside every place that holds it.

    maps: the stored attention and feed-forward block of each call. bare: leave the family's prefix out.
    """
    calls = list(zip(format.slots(stock), *maps, strict=True))
    pairs = [pair for row in format.rows for pair in _filled(row, calls)]
    for slot in format.idle_slots(stock):
        place = ", ".join(f"{key} = {value}" for key, value in slot.items())
        note = f"stock code never calls the layer at {place}"
        placed = [row.theirs.format(**slot) for row in format.rows if "{" in row.theirs]
        pairs += [Pair("dropped", name, note) for name in placed]
    if bare:
        pairs = [Pair(ours, theirs.removeprefix(format.prefix), note) for ours, theirs, note in pairs]
    return list(dict.fromkeys(pairs))


def make_plan(
    format: Format, stock: Mapping[str, Any], entries: Mapping[str, Entry], *, maps: Maps | None = None
) -> Plan:
    """Give what each tensor becomes, and every problem at once.

    stock: config.json. entries: name -> tensor of the checkpoint. maps: sharing, where it is known to be coarser than
    config.json can say; the caller has made sure that the tensors agree.
    Raises ConfigError where config.json does not describe an encoder.
    """
    config = format.config_from_stock(stock)
    if maps is not None:
        config = config.replace(attention_map=maps[0], ffn_map=maps[1])
    bare = not any(name.startswith(format.prefix) for name in entries)
    pairs = pairs_of(format, stock, (config.attention_map, config.ffn_map), bare=bare)
    problems: list[str] = []
    stored = _modern_names(entries, problems)
    heads, fates = _heads_found(pairs, stored, stock)
    untied, stand_in = _output_table(pairs, stored, tie=stock.get("tie_word_embeddings", True), mlm="mlm" in heads)
    widths = {head: _width(head, pairs, stored) for head in heads}
    wanted = wanted_shapes(config, widths, untied=untied)

    reads: dict[str, list[str]] = defaultdict(list)
    for ours, theirs, note in [*pairs, *([Pair(WORDS, stand_in, "")] if stand_in else [])]:
        if theirs in stored and ours in wanted:
            fates[theirs] = _fate_of_read(ours, reads[ours])
            reads[ours].append(theirs)
        elif theirs in stored and ours in NO_PARAMETER:
            fates.setdefault(theirs, f"{'skipped' if ours == 'skipped' else 'dropped on purpose'}: {note}")
        elif theirs in stored and ours == DECODER and "mlm" in heads:
            fates.setdefault(theirs, "dropped on purpose: tied to the word table")
    for ours, theirs in [(ours, theirs) for ours, held in reads.items() for theirs in held]:
        if (problem := _misfit(stored[theirs][1], wanted[ours])) is not None:
            problems.append(f"{stored[theirs][0]} {problem}")
            fates[theirs] += f", but {problem}"
    missing: dict[str, str] = {}
    for ours, theirs, note in pairs:
        if ours in wanted and not reads[ours] and (untied or note != WHEN_UNTIED):
            missing.setdefault(ours, theirs)
    problems += [f"{theirs} is missing (for {ours})" for ours, theirs in missing.items()]
    strange = [stored[theirs][0] for theirs in stored if theirs not in fates]
    problems += [f"{name} has no row in the {format.name} table" for name in strange]
    listed = [
        Fate(name, entry.shape, fates.get(theirs, f"unexpected: no row in the {format.name} table"))
        for theirs, (name, entry) in stored.items()
    ]
    listed += [Fate(theirs, wanted[ours], "missing") for ours, theirs in missing.items()]
    return Plan(
        format=format,
        config=config,
        heads=widths,
        untied=untied,
        wanted=wanted,
        reads={ours: tuple(stored[theirs][0] for theirs in held) for ours, held in reads.items() if held},
        fates=tuple(listed),
        problems=tuple(problems),
    )


def wanted_shapes(config: EncoderConfig, heads: Mapping[str, int], *, untied: bool) -> dict[str, tuple[int, ...]]:
    """Give parameter -> shape of an encoder without building it; query, key and value apart.

    heads: head -> number of classes. untied: whether the MLM head has an output table of its own.
    """
    sizes = {
        "V": config.vocab_size,
        "E": config.embedding_size,
        "H": config.hidden_size,
        "I": config.intermediate_size,
        "P": config.max_position_embeddings,
        "Y": config.type_vocab_size,
        "1": 1,
        "2": 2,
    }
    blocks = range(max(config.num_attention_blocks, config.num_ffn_blocks))
    shapes: dict[str, tuple[int, ...]] = {}
    for row in _SHAPES:
        room, part = row.ours.split(".")[:2]
        if room == "heads" and (part not in heads or (row.ours == DECODER and not untied)):
            continue
        if row.ours.startswith("embeddings.projection.") and not config.embedding_projection:
            continue
        letters, _, kind = row.theirs.partition(".")
        sizes["C"] = heads.get(part, 0)
        shape = tuple(sizes[letter] for letter in letters.split(","))
        for block in blocks if "{" in row.ours else range(1):
            if block < {"attention": config.num_attention_blocks, "ffn": config.num_ffn_blocks}.get(room, 1):
                shapes[row.ours.format(a=block, f=block)] = shape[:1] if kind == "bias" else shape
    return shapes


def apart(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give an encoder's tensors with query, key and value apart, as views of the same memory."""
    views: dict[str, Tensor] = {}
    for name, tensor in state.items():
        block, fused, kind = name.partition(".qkv.")
        if not fused:
            views[name] = tensor
            continue
        for part, view in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
            views[f"{block}.{part}.{kind}"] = view
    return views


def modern(name: str) -> str:
    """Give today's spelling of a tensor's name: early folders say gamma and beta for a norm's weight and bias."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def bits_equal(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors agree in dtype, shape and every bit (so NaN equals itself and 0.0 is not -0.0)."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(x.contiguous().flatten().view(torch.uint8) for x in (one, other)))


def _filled(row: Row, calls: Sequence[tuple[Slot, int, int]]) -> Iterator[Pair]:
    if "{" not in row.theirs:
        yield Pair(row.ours, row.theirs, row.note)
        return
    for slot, attention, ffn in calls:
        yield Pair(row.ours.format(a=attention, f=ffn), row.theirs.format(**slot), row.note)


def _modern_names(entries: Mapping[str, Entry], problems: list[str]) -> dict[str, tuple[str, Entry]]:
    """Give today's name -> (name in the file, tensor)."""
    stored: dict[str, tuple[str, Entry]] = {}
    for name, entry in entries.items():
        if (today := modern(name)) in stored:
            problems.append(f"{name} and {stored[today][0]} are two names of one tensor")
        stored[today] = (name, entry)
    return stored


def _heads_found(
    pairs: Sequence[Pair], stored: Mapping[str, Any], stock: Mapping[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """Give the heads whose tensors are there, whole ones first, and the fates of tensors of heads thrice has not.

    A head that lacks a tensor counts as there, so that the tensor is reported as missing.
    """
    parts: dict[str, dict[str, list[str]]] = {head: defaultdict(list) for head in _CLAIMS}
    for ours, theirs, _ in pairs:
        if ours.startswith("heads.") and ours != DECODER:
            parts[ours.split(".")[1]][ours].append(theirs)
    held = {h: {t for names in parts[h].values() for t in names if t in stored} for h in _CLAIMS}
    lacking = {h: sum(not held[h] & set(names) for names in parts[h].values()) for h in _CLAIMS}
    classes = [str(name) for name in stock.get("architectures") or []]
    named = {kind for end, kind in _CLASSIFIERS.items() if any(name.endswith(end) for name in classes)}
    ruled_out = {"sequence", "token"} - named if any(held.get(kind, True) for kind in named) else set()
    heads: list[str] = []
    claimed: set[str] = set()
    for head in sorted(_CLAIMS, key=lambda h: (lacking[h], _CLAIMS.index(h))):
        if held[head] and not held[head] & claimed and head not in ruled_out:
            heads.append(head)
            claimed |= held[head]
    note = f"skipped: {' and '.join(sorted(named))} head, thrice reads none"
    return heads, {theirs: note for head in ruled_out for theirs in held[head] - claimed}


def _output_table(
    pairs: Sequence[Pair], stored: Mapping[str, tuple[str, Entry]], *, tie: bool, mlm: bool
) -> tuple[bool, str | None]:
    """Give whether the MLM head has its own table, and the name of a table that stands in for the word table.

    As transformers 5 does: a folder that says tied and holds two different tables is untied; one that holds only the
    output table is read with that one.
    """
    words = next((p.theirs for p in pairs if p.ours == WORDS), "")
    decoder = next((p.theirs for p in pairs if p.ours == DECODER and p.theirs in stored), None)
    if not mlm or not tie or decoder is None:
        return mlm and not tie, None
    if words not in stored:
        return False, decoder
    return not bits_equal(stored[words][1].read(), stored[decoder][1].read()), None


def _width(head: str, pairs: Sequence[Pair], stored: Mapping[str, tuple[str, Entry]]) -> int:
    for ours, theirs, _ in pairs:
        if ours == f"heads.{head}.classifier.weight" and theirs in stored and stored[theirs][1].shape:
            return stored[theirs][1].shape[0]
    return 2


def _fate_of_read(ours: str, before: Sequence[str]) -> str:
    if not before:
        return f"read as {ours}"
    if ours.startswith("heads."):
        return f"dropped on purpose: second name of {ours}, read from {before[0]} as stock code does"
    return f"read as {ours}, bit-equal to {before[0]}"


def _misfit(entry: Entry, wanted: tuple[int, ...]) -> str | None:
    if entry.shape != wanted:
        return f"is {entry.shape}, the model wants {wanted}"
    return None if entry.floating else f"holds {entry.dtype} numbers, the model wants floating point"


def _count_strangers(format: Format, names: Sequence[str]) -> int | None:
    """Count names without a row, or give None where the family's embeddings or layers are not there."""
    bare = not any(name.startswith(format.prefix) for name in names)
    spelled = [(row, row.theirs.removeprefix(format.prefix) if bare else row.theirs) for row in format.rows]
    patterns = {theirs: re.sub(r"\\\{\w\\\}", r"\\d+", re.escape(theirs)) for _, theirs in spelled}
    for ours in ("embeddings.position_embeddings.weight", "attention.{a}.query.weight"):
        marker = next(re.compile(patterns[theirs]) for row, theirs in spelled if row.ours == ours)
        if not any(marker.fullmatch(name) for name in map(modern, names)):
            return None
    anything = re.compile("|".join(patterns.values()))
    return sum(anything.fullmatch(name) is None for name in map(modern, names))


def _some(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
