"""RoBERTa folders of transformers: BERT's layers, positions counted from pad_token_id + 1, its own heads."""

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

# Stock RobertaModel has a pooler that its classifier does not use.
ROWS = bert_layers("roberta.") + table("""
heads.pooler.dense.*                     roberta.pooler.dense.*
heads.mlm.dense.*                        lm_head.dense.*
heads.mlm.LayerNorm.*                    lm_head.layer_norm.*
heads.mlm.decoder.weight                 lm_head.decoder.weight            when untied
heads.mlm.bias                           lm_head.decoder.bias              when untied
heads.mlm.bias                           lm_head.bias
heads.sequence.dense.*                   classifier.dense.*
heads.sequence.classifier.*              classifier.out_proj.*
heads.token.classifier.*                 classifier.*
heads.span.qa_outputs.*                  qa_outputs.*
""")

CLASSES = {
    "RobertaForSequenceClassification": ("sequence",),
    "RobertaForTokenClassification": ("token",),
    "RobertaForQuestionAnswering": ("span",),
    "RobertaForMaskedLM": ("mlm",),
    "RobertaModel": (),
}

DEFAULTS = {**BERT_DEFAULTS, "vocab_size": 50265, "pad_token_id": 1}


def config_from_stock(stock: Mapping[str, Any]) -> EncoderConfig:
    """Give the EncoderConfig of a stock RobertaConfig as a dict; raises ConfigError where a value does not fit."""
    values = shared_values(stock, DEFAULTS, counts=("num_hidden_layers",))
    return EncoderConfig(
        family="roberta",
        embedding_size=values["hidden_size"],
        embedding_projection=False,
        position_offset=values["pad_token_id"] + 1,
        classifier_dropout_prob=dropout_before_classifier(stock, values["hidden_dropout_prob"]),
        **maps_of(layer_slots(stock)),
        **values,
    )


PLUGIN = Format(
    name="roberta",
    prefix="roberta.",
    rows=ROWS,
    classes=CLASSES,
    slots=layer_slots,
    idle_slots=no_slots,
    config_from_stock=config_from_stock,
    config_to_stock=bert_config_to_stock,
)
