"""Shapes of the published encoders, to start from random weights.

Sources: Devlin et al. 2019; Turc et al. 2019 (bert-tiny to bert-medium); Lan et al. 2020, table 1; Clark et al. 2020,
table 6; Liu et al. 2019; brightmart's albert_zh for the two Chinese shapes. Dropout is what the checkpoints were
trained with: 0 for ALBERT version 2, 0.1 for the others.
"""

from __future__ import annotations

from thrice.model.config import EncoderConfig

#            layers hidden heads    E      V
_SHAPES = {
    "albert-tiny-zh": (4, 312, 12, 128, 21128),
    "albert-small-zh": (6, 384, 12, 128, 21128),
    "albert-base": (12, 768, 12, 128, 30000),
    "albert-large": (24, 1024, 16, 128, 30000),
    "albert-xlarge": (24, 2048, 16, 128, 30000),
    "albert-xxlarge": (12, 4096, 64, 128, 30000),
    "bert-tiny": (2, 128, 2, 128, 30522),
    "bert-mini": (4, 256, 4, 256, 30522),
    "bert-small": (4, 512, 8, 512, 30522),
    "bert-medium": (8, 512, 8, 512, 30522),
    "bert-base": (12, 768, 12, 768, 30522),
    "bert-large": (24, 1024, 16, 1024, 30522),
    "electra-small": (12, 256, 4, 128, 30522),
    "electra-base": (12, 768, 12, 768, 30522),
    "electra-large": (24, 1024, 16, 1024, 30522),
    "roberta-base": (12, 768, 12, 768, 50265),
    "roberta-large": (24, 1024, 16, 1024, 50265),
}


def _preset(name: str) -> EncoderConfig:
    layers, hidden, heads, embedding, vocabulary = _SHAPES[name]
    family = name.partition("-")[0]
    dropout = 0.0 if family == "albert" else 0.1
    own = tuple(range(layers))
    sharing = (0,) * layers if family == "albert" else own
    roberta = family == "roberta"
    return EncoderConfig(
        family=family,
        vocab_size=vocabulary,
        embedding_size=embedding,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        attention_map=sharing,
        ffn_map=sharing,
        embedding_projection=family == "albert" or embedding != hidden,
        max_position_embeddings=514 if roberta else 512,
        type_vocab_size=1 if roberta else 2,
        hidden_act="gelu_new" if family == "albert" else "gelu",
        layer_norm_eps=1e-5 if roberta else 1e-12,
        position_offset=2 if roberta else 0,
        pad_token_id=1 if roberta else 0,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        classifier_dropout_prob=0.1,
    )


PRESETS: dict[str, EncoderConfig] = {name: _preset(name) for name in _SHAPES}
