"""One file per checkpoint family: its name table, read in both directions, and its config.json.

The left column of a table names a parameter of `Encoder`, the right one the tensor of a stock folder, spelled as the
classes with a head spell it (`bert.embeddings...`; the bare `BertModel` leaves the prefix out). `{a}` and `{f}` stand
for the stored attention and feed-forward block, `{l}` or `{g}` and `{n}` for the place in the stock model; `.*` stands
for `.weight` and `.bias`. A third column says "when untied" where stock code writes the tensor only for a model whose
output table is its own. A left column of "dropped" or "skipped" says why in the third.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from thrice.errors import ConfigError
from thrice.model.config import EncoderConfig, canonical
from thrice.schema import misfits

Slot = Mapping[str, int]
Maps = tuple[tuple[int, ...], tuple[int, ...]]

LAYER_COUNTS = ("num_hidden_layers", "num_hidden_groups", "inner_group_num")
MOST_LAYERS = 1000
"""Far beyond every published encoder; a damaged number must not fill the memory with names of layers."""

WHEN_UNTIED = "when untied"
NO_PARAMETER = ("dropped", "skipped")

# Stock spellings of one function; written back under thrice's own name of it, which stock code knows too.
SAME_ACTIVATION = {"gelu_python": "gelu", "gelu_fast": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "swish": "silu"}

# What the stock config classes of BERT, RoBERTa and ELECTRA take for a key that config.json leaves out.
BERT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}

# config.json keys that mean the same under the same name in every family.
_SHARED_KEYS = tuple(BERT_DEFAULTS)


@dataclass(frozen=True)
class Row:
    """One line of a name table."""

    ours: str
    """Parameter of Encoder (query, key and value apart), or "dropped" or "skipped"."""
    theirs: str
    """Tensor of a stock folder."""
    note: str = ""
    """"when untied", or the reason why a tensor is dropped or skipped."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """How one family names its tensors and states its shape."""

    name: str
    """The family, and `model_type` in config.json."""
    prefix: str
    """What the bare model's names lack, with its dot."""
    rows: tuple[Row, ...]
    """The name table."""
    classes: Mapping[str, tuple[str, ...]]
    """Stock class -> heads it needs; the first whose heads are all there is named in a saved config.json."""
    slots: Callable[[Mapping[str, Any]], list[Slot]]
    """config.json -> place of each call in the stock model, in the order of the calls."""
    idle_slots: Callable[[Mapping[str, Any]], list[Slot]]
    """config.json -> places that are stored and never called."""
    config_from_stock: Callable[[Mapping[str, Any]], EncoderConfig]
    """config.json -> EncoderConfig; raises ConfigError that lists every value that does not fit."""
    config_to_stock: Callable[[EncoderConfig], dict[str, Any]]
    """EncoderConfig -> shape part of config.json; sharing that it cannot say becomes one stored layer per call."""


def table(text: str, *, prefix: str = "") -> tuple[Row, ...]:
    """Give the rows of an aligned text table; `prefix` goes before every name of the right column."""
    rows = []
    for line in text.strip().splitlines():
        ours, theirs, *note = line.split(maxsplit=2)
        for ending in (".weight", ".bias") if theirs.endswith(".*") else ("",):
            stem = ours.removesuffix(".*") if ours.endswith(".*") else ours
            full = stem if stem in NO_PARAMETER else stem + ending
            rows.append(Row(full, prefix + theirs.removesuffix(".*") + ending, *note))
    return tuple(rows)


def bert_layers(prefix: str) -> tuple[Row, ...]:
    """Give the rows that BERT, RoBERTa and ELECTRA share: embeddings and layers."""
    return table(
        """
embeddings.word_embeddings.weight        embeddings.word_embeddings.weight
embeddings.position_embeddings.weight    embeddings.position_embeddings.weight
embeddings.token_type_embeddings.weight  embeddings.token_type_embeddings.weight
embeddings.LayerNorm.*                   embeddings.LayerNorm.*
attention.{a}.query.*                    encoder.layer.{l}.attention.self.query.*
attention.{a}.key.*                      encoder.layer.{l}.attention.self.key.*
attention.{a}.value.*                    encoder.layer.{l}.attention.self.value.*
attention.{a}.output.*                   encoder.layer.{l}.attention.output.dense.*
attention.{a}.LayerNorm.*                encoder.layer.{l}.attention.output.LayerNorm.*
ffn.{f}.intermediate.*                   encoder.layer.{l}.intermediate.dense.*
ffn.{f}.output.*                         encoder.layer.{l}.output.dense.*
ffn.{f}.LayerNorm.*                      encoder.layer.{l}.output.LayerNorm.*
dropped                                  embeddings.position_ids         a buffer that counts 0, 1, 2, ...
dropped                                  embeddings.token_type_ids       a buffer of zeros
""",
        prefix=prefix,
    )


def layer_slots(stock: Mapping[str, Any]) -> list[Slot]:
    """Give one place per layer: stock code of BERT, RoBERTa and ELECTRA calls each layer once."""
    return [{"l": layer} for layer in range(stock.get("num_hidden_layers", 12))]


def no_slots(stock: Mapping[str, Any]) -> list[Slot]:
    """Give no place: every stored layer is called."""
    return []


def maps_of(slots: list[Slot]) -> dict[str, Any]:
    """Give attention_map and ffn_map of a model that stores one layer per distinct slot."""
    number = {frozenset(slot.items()): i for i, slot in enumerate(slots)}
    entries = canonical(tuple(number[frozenset(slot.items())] for slot in slots))
    return {"attention_map": entries, "ffn_map": entries}


def shared_values(stock: Mapping[str, Any], defaults: Mapping[str, Any], *, counts: tuple[str, ...]) -> dict[str, Any]:
    """Give the EncoderConfig values that every family states alike.

    stock: a config.json. defaults: what the family's stock config class takes for an absent key. counts: the family's
    own keys that must be whole numbers of at least 1. Raises ConfigError that lists every value of the wrong kind, and
    what makes the model something else than an encoder.
    """
    problems = []
    values: dict[str, Any] = {}
    for key in _SHARED_KEYS:
        default = defaults[key]
        value = default if stock.get(key) is None else stock[key]
        problems += misfits(value, type(default), place=key)
        values[key] = float(value) if isinstance(default, float) and not misfits(value, float) else value
    for key in counts:
        value = stock.get(key, 1)
        if misfits(value, int) or not 1 <= value <= (MOST_LAYERS if key in LAYER_COUNTS else value):
            most = f" and at most {MOST_LAYERS}" if key in LAYER_COUNTS else ""
            problems += misfits(value, int, place=key) or [
                f"{key} is {value}, expected a whole number of at least 1{most}"
            ]
    if not problems and "inner_group_num" in counts:
        inner = stock.get("inner_group_num", 1)
        layers = inner * max(stock.get("num_hidden_layers", 12), stock.get("num_hidden_groups", 1))
        if layers > MOST_LAYERS:
            problems.append(f"inner_group_num {inner} makes {layers} layers, expected at most {MOST_LAYERS}")
    for key in ("classifier_dropout", "classifier_dropout_prob"):
        problems += misfits(stock.get(key), float | None, place=key)
    if stock.get("is_decoder"):
        problems.append("is_decoder is true: a left-to-right model, thrice reads encoders")
    if (kind_of_position := stock.get("position_embedding_type", "absolute")) != "absolute":
        problems.append(f"position_embedding_type is {kind_of_position!r}, thrice reads 'absolute'")
    if not problems and values["pad_token_id"] >= values["vocab_size"]:
        problems.append(
            f"pad_token_id {values['pad_token_id']} lies beyond the {values['vocab_size']} rows of the word table"
        )
    if problems:
        raise ConfigError("; ".join(problems))
    values["hidden_act"] = SAME_ACTIVATION.get(values["hidden_act"], values["hidden_act"])
    return values


def shared_keys(config: EncoderConfig) -> dict[str, Any]:
    """Give the config.json keys that every family states alike, `shared_values` turned round."""
    return {"model_type": config.family, **{key: getattr(config, key) for key in _SHARED_KEYS}}


def bert_config_to_stock(config: EncoderConfig) -> dict[str, Any]:
    """Give the shape part of a BertConfig or RobertaConfig; its layers are one per call."""
    return {
        **shared_keys(config),
        "num_hidden_layers": config.num_calls,
        "classifier_dropout": config.classifier_dropout_prob,
    }


def dropout_before_classifier(stock: Mapping[str, Any], hidden_dropout_prob: float) -> float:
    """Give the dropout before a classifier as BERT, RoBERTa and ELECTRA resolve it."""
    own = stock.get("classifier_dropout")
    return hidden_dropout_prob if own is None else own
