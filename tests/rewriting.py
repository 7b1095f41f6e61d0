"""A writer without a cache, for comparison: for each token it encodes source and hypothesis anew."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thrice.model.encoder import Encoder
from thrice.model.packing import pack


class Rewriting:
    """Hypotheses as plain lists of tokens, put behind their sources and encoded as sequences with a prefix."""

    def __init__(self, encoder: Encoder, sources: Sequence[Sequence[int]], *, token_type: int) -> None:
        self.encoder, self.token_type = encoder, token_type
        self.sources = [list(source) for source in sources]
        self.hypotheses: list[list[list[int]]] = [[[]] for _ in sources]
        self.logits = self._next()

    def advance(self, tokens: Tensor, parents: Tensor) -> Tensor:
        self.hypotheses = [
            [[*own[p], t] for p, t in zip(*both, strict=True)]
            for own, both in zip(self.hypotheses, zip(parents.tolist(), tokens.tolist(), strict=True), strict=True)
        ]
        return self._next()

    def keep(self, chosen: Tensor) -> None:
        self.sources = [self.sources[i] for i in chosen.tolist()]
        self.hypotheses = [self.hypotheses[i] for i in chosen.tolist()]

    @torch.no_grad()
    def _next(self) -> Tensor:
        pairs = [(s, h) for s, own in zip(self.sources, self.hypotheses, strict=True) for h in own]
        batch = pack(
            [s + h for s, h in pairs],
            [[0] * len(s) + [self.token_type] * len(h) for s, h in pairs],
            prefix_lengths=[len(s) for s, _ in pairs],
        )
        last = batch.starts + torch.tensor([len(s) + len(h) - 1 for s, h in pairs])
        logits = self.encoder.predict_tokens(self.encoder(batch)[last])
        return logits.view(len(self.sources), -1, logits.shape[-1])
