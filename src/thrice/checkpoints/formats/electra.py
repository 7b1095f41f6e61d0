"""ELECTRA folders of transformers, either tower: BERT's layers, a projection where E != H, no pooler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thrice.checkpoints.formats import (
    BERT_DEFAULTS,
    Format,
    bert_config_to_stock,
    bert_layers,
    dropout_before_classifier,
    layer_slots,
    maps_of,
    no_slots,
    shared_values,
    table,
)
from thrice.model.config import EncoderConfig

ROWS = bert_layers("electra.") + table("""
embeddings.projection.*                  electra.embeddings_project.*
heads.rtd.dense.*                        discriminator_predictions.dense.*
heads.rtd.prediction.*                   discriminator_predictions.dense_prediction.*
heads.mlm.dense.*                        generator_predictions.dense.*
heads.mlm.LayerNorm.*                    generator_predictions.LayerNorm.*
heads.mlm.decoder.weight                 generator_lm_head.weight          when untied
heads.mlm.bias                           generator_lm_head.bias
heads.sequence.dense.*                   classifier.dense.*
heads.sequence.classifier.*              classifier.out_proj.*
heads.token.classifier.*                 classifier.*
heads.span.qa_outputs.*                  qa_outputs.*
skipped                                  sequence_summary.summary.*        multiple-choice head, thrice reads none
""")

CLASSES = {
    "ElectraForSequenceClassification": ("sequence",),
    "ElectraForTokenClassification": ("token",),
    "ElectraForQuestionAnswering": ("span",),
    "ElectraForMaskedLM": ("mlm",),
    "ElectraForPreTraining": ("rtd",),
    "ElectraModel": (),
}

DEFAULTS = {**BERT_DEFAULTS, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}


def config_from_stock(stock: Mapping[str, Any]) -> EncoderConfig:
    """Give the EncoderConfig of a stock ElectraConfig as a dict; raises ConfigError where a value does not fit."""
    values = shared_values(stock, DEFAULTS, counts=("num_hidden_layers", "embedding_size"))
    embedding_size = stock.get("embedding_size", 128)
    return EncoderConfig(
        family="electra",
        embedding_size=embedding_size,
        embedding_projection=embedding_size != values["hidden_size"],
        classifier_dropout_prob=dropout_before_classifier(stock, values["hidden_dropout_prob"]),
        **maps_of(layer_slots(stock)),
        **values,
    )


def config_to_stock(config: EncoderConfig) -> dict[str, Any]:
    """Give the shape part of an ElectraConfig; its layers are one per call."""
    return {**bert_config_to_stock(config), "embedding_size": config.embedding_size}


PLUGIN = Format(
    name="electra",
    prefix="electra.",
    rows=ROWS,
    classes=CLASSES,
    slots=layer_slots,
    idle_slots=no_slots,
    config_from_stock=config_from_stock,
    config_to_stock=config_to_stock,
)
