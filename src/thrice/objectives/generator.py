"""What objectives share that let a small generator replace tokens: the tower, its loss, and its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from thrice.data.segments import PretrainingExample, generator_of
from thrice.errors import ConfigError
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.flops import head_flops, packed_flops
from thrice.model.packing import PackedBatch
from thrice.objectives.base import Objective, Term, Vocabulary, corrupted, predicted
from thrice.objectives.masking import (
    MaskedTokens,
    choose_positions,
    mask_tokens,
    number_to_choose,
    packed_starts,
    share_problems,
)
from thrice.objectives.sampling import sample_tokens, sampling_noise

if TYPE_CHECKING:
    from thrice.objectives.model import PretrainingModel

TOWER = "generator"
EMBEDDINGS = ("tied", "none")
TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
"""Modules of the embeddings that a tied generator shares with the main encoder: all but the projection."""
MASKING, SAMPLING = 2, 3
"""Purposes of the example's generators."""


@dataclass(frozen=True)
class Replacement:
    """A batch in which a generator will replace tokens."""

    masked: MaskedTokens
    """What the generator sees."""
    noise: Tensor
    """(N, blocks + W) float32: see `sample_tokens`."""
    owner: Tensor
    """(T,) int64: number of each token's sequence in packed order."""

    def to(self, device: torch.device | str) -> Replacement:
        """Give the same batch on a device."""
        return Replacement(self.masked.to(device), self.noise.to(device), self.owner.to(device))


@dataclass(frozen=True)
class Replaced:
    """Texts with a generator's samples in them."""

    packed: PackedBatch
    """What the main encoder sees."""
    replaced: Tensor
    """(T,) bool: where another token stands than before."""
    terms: dict[str, Term]
    """The generator's own."""


@dataclass(frozen=True, kw_only=True)
class ReplacingObjective(Objective):
    """A small masked language model, the generator, fills masked places; the main encoder reads what comes out.

    Source: Clark et al. 2020, section 2. The generator samples at all chosen places of the original text; it gets no
    gradient through its samples.
    """

    families: ClassVar[tuple[str, ...]] = ("albert", "bert", "electra")
    towers: ClassVar[tuple[str, ...]] = (TOWER,)

    rate: float = 0.15
    """Tokens to replace, as a fraction of a sequence's tokens, 0 < rate < 1; at least one. 0.25 for electra-large."""
    mask_share: float = 0.85
    """Probability that a chosen token is hidden from the generator; it sees the others as they are."""
    size: float = 0.25
    """Width of the generator over the main encoder's, 0 < size <= 1; 1/4, base 1/3 (Clark et al. 2020, table 6)."""
    embeddings: str = "tied"
    """tied: the generator's word, position and type tables and LayerNorm are the main encoder's; none: its own."""

    def problems(self) -> list[str]:
        problems = [*super().problems(), *share_problems(self.rate, self.mask_share, 0.0)]
        if not 0 < self.size <= 1:
            problems.append(f"size is {self.size}, expected a ratio above 0 and up to 1")
        if self.embeddings not in EMBEDDINGS:
            problems.append(f"embeddings is {self.embeddings!r}, expected {' or '.join(EMBEDDINGS)}")
        return problems

    def equip(self, model: PretrainingModel, generator: torch.Generator) -> None:
        config = generator_config(model.config, self.size)
        tower = Encoder(config, heads=("mlm",), generator=generator)
        if self.embeddings == "tied":
            for table in TABLES:
                setattr(tower.embeddings, table, getattr(model.encoder.embeddings, table))
        model.towers[TOWER] = tower

    def corrupt(
        self, examples: Sequence[PretrainingExample], clean: PackedBatch, *, seed: int, vocabulary: Vocabulary
    ) -> Replacement:
        masked = mask_tokens(
            examples,
            clean,
            seed=seed,
            purpose=MASKING,
            choose=lambda e, generator: choose_positions(e, number_to_choose(e, self.rate), generator),
            vocabulary=vocabulary,
            mask_share=self.mask_share,
            random_share=0.0,
        )
        noise = []
        for _, i in packed_starts(examples, clean):
            rows = number_to_choose(examples[i], self.rate)
            noise.append(sampling_noise(generator_of(seed, examples[i].key, SAMPLING), rows, vocabulary.num_tokens))
        owner = np.repeat(np.arange(len(clean.lengths)), clean.lengths)
        return Replacement(masked, torch.from_numpy(np.concatenate(noise)), torch.from_numpy(owner))

    def replace(self, model: PretrainingModel, part: Replacement, clean: PackedBatch) -> Replaced:
        """Run the generator and put its samples into the original text.

        Terms: generator_mlm, the generator's loss; generator_accuracy; replaced_fraction, chosen places at which the
        sample is another token than the original.
        """
        generator, masked = generator_of_model(model), part.masked
        logits = generator.predict_tokens(generator(masked.packed, rows=masked.positions))
        losses, right = predicted(logits, masked.targets)
        samples = sample_tokens(logits[:, : model.vocabulary.num_tokens], part.noise)
        differs = samples != masked.targets
        replaced = torch.zeros_like(clean.input_ids, dtype=torch.bool).index_copy(0, masked.positions, differs)
        count = float(masked.count)
        terms = {
            "generator_mlm": Term(losses.sum(), count, self.weight),
            "generator_accuracy": Term(right.sum().float(), count),
            "replaced_fraction": Term(differs.sum().float(), count),
        }
        packed = corrupted(clean, clean.input_ids.index_copy(0, masked.positions, samples))
        return Replaced(packed, replaced, terms)

    def flops_of_towers(self, model: PretrainingModel, part: Replacement, clean: PackedBatch) -> int:
        """Give floating-point operations of a forward pass of both encoders and of the generator's head."""
        config = generator_of_model(model).config
        rows = part.masked.count
        towers = packed_flops(config, clean.lengths, rows=rows) + packed_flops(model.config, clean.lengths)
        return towers + head_flops(config, "mlm", rows=rows)


def generator_config(config: EncoderConfig, size: float) -> EncoderConfig:
    """Give the shape of a generator of this ratio: as deep as the encoder, with the same layers shared.

    Width round(H size), feed-forward 4 times that, heads max(1, width // 64) or the next smaller number that divides
    the width (Clark et al. 2020, appendix A, and its code). E stays, so that tables can be tied.
    The family is albert where the encoder's is, electra otherwise: the one with a projection in its stock class.
    """
    width = round(config.hidden_size * size)
    if width < 1:
        raise ConfigError(f"a generator of size {size} of {config.hidden_size} has no width; take a larger size")
    heads = max(1, width // 64)
    while width % heads:
        heads -= 1
    family = "albert" if config.family == "albert" else "electra"
    return config.replace(
        family=family,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=heads,
        embedding_projection=family == "albert" or width != config.embedding_size,
    )


def generator_of_model(model: PretrainingModel) -> Encoder:
    """Give the model's generator."""
    tower = model.towers[TOWER]
    assert isinstance(tower, Encoder)
    return tower
