"""The stock heads of the four families, on gathered rows of hidden states.

Every head takes the rows it needs and nothing else: first tokens (B, H), predicted positions (N, H) or all tokens
(T, H). Which family a head belongs to decides its activation, as transformers hard-codes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from thrice.errors import ConfigError, nearest
from thrice.model.activations import ACTIVATION
from thrice.model.config import EncoderConfig
from thrice.model.dropout import Dropout
from thrice.model.parts import Linear


class HeadConfig(Protocol):
    """What the token head asks of a config, ours or that of a stock class."""

    @property
    def hidden_size(self) -> int:
        """Width of a row."""

    @property
    def classifier_dropout_prob(self) -> float:
        """Probability of dropping an entry before the classifier."""


class Pooler(nn.Module):
    """dense + tanh on the first token (Devlin et al. 2019)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(self, first: Tensor) -> Tensor:
        """first: (B, H). Returns (B, H)."""
        return torch.tanh(self.dense(first))


class MaskedLMHead(nn.Module):
    """dense H -> E, activation, LayerNorm, then the word table and a bias.

    The table is the encoder's own unless the checkpoint kept a separate one (`decoder`). RoBERTa and ELECTRA
    hard-code erf GELU in their stock classes; BERT and ALBERT follow hidden_act.
    """

    def __init__(self, config: EncoderConfig, *, tied: bool = True) -> None:
        super().__init__()
        self.activation = F.gelu if config.family in ("electra", "roberta") else ACTIVATION[config.hidden_act]
        self.dense = Linear(config.hidden_size, config.embedding_size)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.decoder = None if tied else Linear(config.embedding_size, config.vocab_size, bias=False)

    def forward(self, rows: Tensor, word_table: Tensor) -> Tensor:
        """rows: (N, H), gathered first. word_table: (V, E). Returns logits (N, V)."""
        table = word_table if self.decoder is None else self.decoder.weight
        return F.linear(self.LayerNorm(self.activation(self.dense(rows))), table, self.bias)


class SentencePairHead(nn.Module):
    """dropout + linear on the pooler's output: next sentence (BERT) or sentence order (ALBERT, 1 = swapped)."""

    def __init__(self, config: EncoderConfig, *, num_labels: int = 2) -> None:
        super().__init__()
        # Stock BertOnlyNSPHead has no dropout, AlbertSOPHead has.
        self.dropout = Dropout(config.classifier_dropout_prob if config.family == "albert" else 0.0)
        self.classifier = Linear(config.hidden_size, num_labels)

    def forward(self, pooled: Tensor) -> Tensor:
        """pooled: (B, H). Returns logits (B, num_labels)."""
        return self.classifier(self.dropout(pooled))


class ReplacedTokenHead(nn.Module):
    """dense + activation + one logit per token: was it replaced (Clark et al. 2020, section 2)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.activation = ACTIVATION[config.hidden_act]
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.prediction = Linear(config.hidden_size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (T, H). Returns logits (T,)."""
        return self.prediction(self.activation(self.dense(hidden))).squeeze(-1)


class TokenClassificationHead(nn.Module):
    """dropout + linear on each row; every family's stock token classifier.

    On first tokens alone it is the head of the first essay: first token -> softmax, no pooler.
    """

    def __init__(self, config: HeadConfig, *, num_labels: int = 2) -> None:
        super().__init__()
        self.dropout = Dropout(config.classifier_dropout_prob)
        self.classifier: nn.Linear = Linear(config.hidden_size, num_labels)

    def forward(self, rows: Tensor) -> Tensor:
        """rows: (N, H). Returns logits (N, num_labels)."""
        return self.classifier(self.dropout(rows))


class SpanHead(nn.Module):
    """One linear layer, two logits per token: the answer starts here, it ends here (Devlin et al. 2019, 4.2)."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.qa_outputs: nn.Linear = Linear(config.hidden_size, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (T, H). Returns logits (T, 2), start and end."""
        return self.qa_outputs(hidden)


class SequenceClassificationHead(nn.Module):
    """dense + activation + linear on the first token, each family's stock sequence classifier.

    BERT and ALBERT: the pooler (dense, tanh), dropout, classifier. RoBERTa: dropout, dense, tanh, dropout, out_proj.
    ELECTRA: the same with erf GELU, whatever hidden_act says; Google's ELECTRA had no dense layer here.
    """

    def __init__(self, config: EncoderConfig, *, num_labels: int = 2) -> None:
        super().__init__()
        pools = config.family in ("albert", "bert")
        self.first_dropout = Dropout(0.0 if pools else config.classifier_dropout_prob)
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = F.gelu if config.family == "electra" else torch.tanh
        self.dropout = Dropout(config.classifier_dropout_prob)
        self.classifier = Linear(config.hidden_size, num_labels)

    def forward(self, first: Tensor) -> Tensor:
        """first: (B, H). Returns logits (B, num_labels)."""
        return self.classifier(self.dropout(self.activation(self.dense(self.first_dropout(first)))))


HEADS: dict[str, Callable[..., nn.Module]] = {
    "pooler": Pooler,
    "mlm": MaskedLMHead,
    "sentence_pair": SentencePairHead,
    "rtd": ReplacedTokenHead,
    "token": TokenClassificationHead,
    "sequence": SequenceClassificationHead,
    "span": SpanHead,
}
_WITH_LABELS = ("sentence_pair", "token", "sequence")


def build_head(config: EncoderConfig, name: str, *, num_labels: int = 2, tied: bool = True) -> nn.Module:
    """Give an uninitialised head of that name; num_labels counts for heads with classes, tied for the MLM head.

    Raises ConfigError for an unknown name.
    """
    if name not in HEADS:
        raise ConfigError(f"no head called {name!r}; {nearest(name, HEADS)}")
    if name in _WITH_LABELS:
        return HEADS[name](config, num_labels=num_labels)
    return HEADS[name](config, tied=tied) if name == "mlm" else HEADS[name](config)
