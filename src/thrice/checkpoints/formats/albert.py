"""ALBERT folders of transformers: groups of inner layers, each group called for several steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thrice.checkpoints.formats import Format, Slot, maps_of, shared_keys, shared_values, table
from thrice.model.config import EncoderConfig
from thrice.sharing.patterns import stock_albert_layout, stock_albert_map

_LAYERS = table(
    """
attention.{a}.query.*                    attention.query.*
attention.{a}.key.*                      attention.key.*
attention.{a}.value.*                    attention.value.*
attention.{a}.output.*                   attention.dense.*
attention.{a}.LayerNorm.*                attention.LayerNorm.*
ffn.{f}.intermediate.*                   ffn.*
ffn.{f}.output.*                         ffn_output.*
ffn.{f}.LayerNorm.*                      full_layer_layer_norm.*
""",
    prefix="albert.encoder.albert_layer_groups.{g}.albert_layers.{n}.",
)

# The classifier's own dense layer comes before the pooler: where an encoder carries both, stock code has one place.
ROWS = _LAYERS + table("""
embeddings.word_embeddings.weight        albert.embeddings.word_embeddings.weight
embeddings.position_embeddings.weight    albert.embeddings.position_embeddings.weight
embeddings.token_type_embeddings.weight  albert.embeddings.token_type_embeddings.weight
embeddings.LayerNorm.*                   albert.embeddings.LayerNorm.*
embeddings.projection.*                  albert.encoder.embedding_hidden_mapping_in.*
heads.sequence.dense.*                   albert.pooler.*
heads.sequence.classifier.*              classifier.*
heads.token.classifier.*                 classifier.*
heads.span.qa_outputs.*                  qa_outputs.*
heads.pooler.dense.*                     albert.pooler.*
heads.mlm.dense.*                        predictions.dense.*
heads.mlm.LayerNorm.*                    predictions.LayerNorm.*
heads.mlm.decoder.weight                 predictions.decoder.weight        when untied
heads.mlm.bias                           predictions.decoder.bias          when untied
heads.mlm.bias                           predictions.bias
heads.sentence_pair.classifier.*         sop_classifier.classifier.*
dropped                                  albert.embeddings.position_ids    a buffer that counts 0, 1, 2, ...
dropped                                  albert.embeddings.token_type_ids  a buffer of zeros
""")

CLASSES = {
    "AlbertForSequenceClassification": ("sequence",),
    "AlbertForTokenClassification": ("token",),
    "AlbertForQuestionAnswering": ("span",),
    "AlbertForPreTraining": ("pooler", "mlm", "sentence_pair"),
    "AlbertForMaskedLM": ("mlm",),
    "AlbertModel": (),
}

# transformers takes the shape of xxlarge where a config.json leaves it out.
DEFAULTS = {
    "vocab_size": 30000,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.02,
}


def slots(stock: Mapping[str, Any]) -> list[Slot]:
    """Give group g and inner layer n of each call.

    The formula is the one that transformers runs, floating point included; Google's int(i / L * G) differs, for
    (L, G, i) = (18, 14, 9) it gives 7 where transformers calls group 6.
    """
    inner = stock.get("inner_group_num", 1)
    layers = stock_albert_map(stock.get("num_hidden_layers", 12), stock.get("num_hidden_groups", 1), inner)
    return [{"g": layer // inner, "n": layer % inner} for layer in layers]


def idle_slots(stock: Mapping[str, Any]) -> list[Slot]:
    """Give the places of groups that the formula never reaches (more groups than steps)."""
    called = {slot["g"] for slot in slots(stock)}
    idle = [group for group in range(stock.get("num_hidden_groups", 1)) if group not in called]
    return [{"g": group, "n": n} for group in idle for n in range(stock.get("inner_group_num", 1))]


def config_from_stock(stock: Mapping[str, Any]) -> EncoderConfig:
    """Give the EncoderConfig of a stock AlbertConfig as a dict; raises ConfigError where a value does not fit."""
    counts = ("num_hidden_layers", "num_hidden_groups", "inner_group_num", "embedding_size")
    values = shared_values(stock, DEFAULTS, counts=counts)
    dropout = stock.get("classifier_dropout_prob", 0.1)
    return EncoderConfig(
        family="albert",
        embedding_size=stock.get("embedding_size", 128),
        embedding_projection=True,
        classifier_dropout_prob=values["hidden_dropout_prob"] if dropout is None else dropout,
        **maps_of(slots(stock)),
        **values,
    )


def config_to_stock(config: EncoderConfig) -> dict[str, Any]:
    """Give the shape part of an AlbertConfig, with groups where stock code's formula reproduces the maps."""
    layout = stock_albert_layout(config.attention_map, config.ffn_map)
    return {
        **shared_keys(config),
        "embedding_size": config.embedding_size,
        "num_hidden_layers": layout.num_hidden_layers,
        "num_hidden_groups": layout.num_hidden_groups,
        "inner_group_num": layout.inner_group_num,
        "classifier_dropout_prob": config.classifier_dropout_prob,
    }


PLUGIN = Format(
    name="albert",
    prefix="albert.",
    rows=ROWS,
    classes=CLASSES,
    slots=slots,
    idle_slots=idle_slots,
    config_from_stock=config_from_stock,
    config_to_stock=config_to_stock,
)
