"""BERT folders of transformers: BertModel and its heads."""

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

# The classifier's own dense layer comes before the pooler: where an encoder carries both, stock code has one place.
ROWS = bert_layers("bert.") + table("""
heads.sequence.dense.*                   bert.pooler.dense.*
heads.sequence.classifier.*              classifier.*
heads.token.classifier.*                 classifier.*
heads.span.qa_outputs.*                  qa_outputs.*
heads.pooler.dense.*                     bert.pooler.dense.*
heads.mlm.dense.*                        cls.predictions.transform.dense.*
heads.mlm.LayerNorm.*                    cls.predictions.transform.LayerNorm.*
heads.mlm.decoder.weight                 cls.predictions.decoder.weight    when untied
heads.mlm.bias                           cls.predictions.decoder.bias      when untied
heads.mlm.bias                           cls.predictions.bias
heads.sentence_pair.classifier.*         cls.seq_relationship.*
""")

CLASSES = {
    "BertForSequenceClassification": ("sequence",),
    "BertForTokenClassification": ("token",),
    "BertForQuestionAnswering": ("span",),
    "BertForPreTraining": ("pooler", "mlm", "sentence_pair"),
    "BertForMaskedLM": ("mlm",),
    "BertForNextSentencePrediction": ("pooler", "sentence_pair"),
    "BertModel": (),
}


def config_from_stock(stock: Mapping[str, Any]) -> EncoderConfig:
    """Give the EncoderConfig of a stock BertConfig as a dict; raises ConfigError where a value does not fit."""
    values = shared_values(stock, BERT_DEFAULTS, counts=("num_hidden_layers",))
    return EncoderConfig(
        family="bert",
        embedding_size=values["hidden_size"],
        embedding_projection=False,
        classifier_dropout_prob=dropout_before_classifier(stock, values["hidden_dropout_prob"]),
        **maps_of(layer_slots(stock)),
        **values,
    )


PLUGIN = Format(
    name="bert",
    prefix="bert.",
    rows=ROWS,
    classes=CLASSES,
    slots=layer_slots,
    idle_slots=no_slots,
    config_from_stock=config_from_stock,
    config_to_stock=bert_config_to_stock,
)
