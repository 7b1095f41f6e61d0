"""Word + token type + position, LayerNorm, dropout, and the projection E -> H where a family has one."""

from __future__ import annotations

from torch import Tensor, nn

from thrice.errors import DataError
from thrice.model.config import EncoderConfig
from thrice.model.dropout import Dropout
from thrice.model.packing import PackedBatch
from thrice.model.parts import Embedding, Linear


class Embeddings(nn.Module):
    """Give hidden states (T, H) of a packed batch before the first call.

    Source: Devlin et al. 2019, section 3; the projection has a bias, no activation and no norm (Lan et al. 2020,
    section 3.1). Dropout acts between LayerNorm and projection, where Google and transformers have it.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.position_offset = config.position_offset
        self.max_length = config.max_length
        self.word_embeddings = Embedding(config.vocab_size, config.embedding_size)
        self.position_embeddings = Embedding(config.max_position_embeddings, config.embedding_size)
        self.token_type_embeddings = Embedding(config.type_vocab_size, config.embedding_size)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.projection: nn.Module | None = None
        if config.embedding_projection:
            self.projection = Linear(config.embedding_size, config.hidden_size)

    def forward(self, batch: PackedBatch) -> Tensor:
        """batch: T tokens. Returns (T, H). Raises DataError where a sequence is longer than the position table."""
        if batch.lengths[0] > self.max_length:
            raise DataError(
                f"a sequence has {batch.lengths[0]} tokens, the position table holds {self.max_length}; shorten the "
                "texts with a smaller max length"
            )
        summed = (
            self.word_embeddings(batch.input_ids)
            + self.token_type_embeddings(batch.token_type_ids)
            + self.position_embeddings(batch.position_ids + self.position_offset)
        )
        hidden = self.dropout(self.LayerNorm(summed))
        return hidden if self.projection is None else self.projection(hidden)
