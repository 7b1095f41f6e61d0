"""Which positions are predicted, and what stands in their place.

Letters: n tokens of one example, k positions chosen in it, N chosen in a batch, T tokens of a packed batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from thrice.data.segments import PretrainingExample, generator_of
from thrice.model.packing import PackedBatch
from thrice.objectives.base import Vocabulary, corrupted, moved


def share_problems(rate: float, mask_share: float, random_share: float, max_ngram: int = 1) -> list[str]:
    """Give what is wrong with the options of hiding tokens."""
    problems = []
    if not 0 < rate < 1:
        problems.append(f"rate is {rate}, expected a fraction between 0 and 1")
    for name, share in (("mask_share", mask_share), ("random_share", random_share)):
        if not 0 <= share <= 1:
            problems.append(f"{name} is {share}, expected a fraction of 0 to 1")
    if mask_share + random_share > 1 + 1e-9:
        problems.append(f"mask_share {mask_share} and random_share {random_share} add up to more than 1")
    if max_ngram < 1:
        problems.append(f"max_ngram is {max_ngram}, expected at least 1")
    return problems


def number_to_choose(example: PretrainingExample, rate: float) -> int:
    """Give k = max(1, round(rate * n)), or all ordinary tokens where they are fewer.

    n counts special tokens too, as in the code of BERT (`create_masked_lm_predictions`) and ELECTRA (`mask`).
    """
    ordinary = len(example.special) - int(np.count_nonzero(example.special))
    return min(ordinary, max(1, round(rate * len(example.special))))


def choose_positions(
    example: PretrainingExample,
    count: int,
    generator: np.random.Generator,
    *,
    whole_word: bool = False,
    max_ngram: int = 1,
) -> np.ndarray:
    """Give (k,) int64 positions to predict, ascending and never special; k = count for single tokens.

    whole_word: all tokens of a word are chosen together. max_ngram: runs of up to so many words (tokens, without
    whole_word), of n of them with probability proportional to 1 / n. A run ends early before a special token, before a
    run chosen earlier, and where it would lead beyond count; so k is at most count, except that a sequence whose words
    are all longer than count has its shortest one chosen.
    Source: Devlin et al. 2019, section 3.1, for single tokens, every set of k equally likely; Lan et al. 2020, section
    4.1, for n-grams (there, a run that meets an earlier one is given up instead of cut).
    """
    if not whole_word and max_ngram == 1:
        return np.sort(generator.choice(np.flatnonzero(~example.special), count, replace=False, shuffle=False))
    starts = _unit_starts(example, whole_word=whole_word)
    lengths = np.diff(starts, append=len(example.special))
    taken = example.special[starts].copy()
    order = generator.permutation(np.flatnonzero(~taken))
    if count == 0 or len(order) == 0:
        return np.zeros(0, dtype=np.int64)
    sizes = np.arange(1, max_ngram + 1)
    runs = generator.choice(sizes, len(order), p=(1 / sizes) / (1 / sizes).sum())
    chosen = np.zeros(len(starts), dtype=bool)
    left = count
    for first, run in zip(order.tolist(), runs.tolist(), strict=True):
        if left == 0:
            break
        for unit in range(first, min(first + run, len(starts))):
            if taken[unit] or lengths[unit] > left:
                break
            taken[unit] = chosen[unit] = True
            left -= int(lengths[unit])
    if left == count:
        chosen[order[np.argmin(lengths[order])]] = True
    return np.flatnonzero(np.repeat(chosen, lengths))


def _unit_starts(example: PretrainingExample, *, whole_word: bool) -> np.ndarray:
    """Give the first position of each word, or of each token; a special token is always a unit of its own."""
    if not whole_word:
        return np.arange(len(example.special))
    starts = example.word_starts | example.special
    starts[0] = True
    starts[1:] |= example.special[:-1]
    return np.flatnonzero(starts)


def hide(
    ids: np.ndarray,
    generator: np.random.Generator,
    vocabulary: Vocabulary,
    *,
    mask_share: float,
    random_share: float,
) -> np.ndarray:
    """Give what stands in the place of each of these tokens: [MASK], an ordinary token drawn at random, or itself.

    ids: (k,). mask_share, random_share: probabilities of the first two. A drawn token may happen to be the old one.
    Source: Devlin et al. 2019, appendix A.1 (80%, 10%, 10%).
    """
    chance = generator.random(len(ids))
    drawn = vocabulary.ordinary[generator.integers(len(vocabulary.ordinary), size=len(ids))]
    return np.where(chance < mask_share, vocabulary.mask_id, np.where(chance < mask_share + random_share, drawn, ids))


@dataclass(frozen=True)
class MaskedTokens:
    """A batch with some tokens hidden."""

    packed: PackedBatch
    """What the encoder sees; T tokens."""
    positions: Tensor
    """(N,) int64: packed indices of the chosen tokens, ascending."""
    targets: Tensor
    """(N,) int64: the tokens that stood there."""

    @property
    def count(self) -> int:
        """N."""
        return len(self.positions)

    def to(self, device: torch.device | str) -> MaskedTokens:
        """Give the same batch on a device."""
        return moved(self, device)


def packed_starts(examples: Sequence[PretrainingExample], clean: PackedBatch) -> list[tuple[int, int]]:
    """Give (packed index of its first token, number in the caller's order) of each example, in packed order."""
    return sorted((start, i) for i, start in enumerate(clean.starts.tolist()[: len(examples)]))


def mask_tokens(
    examples: Sequence[PretrainingExample],
    clean: PackedBatch,
    *,
    seed: int,
    purpose: int,
    choose: Callable[[PretrainingExample, np.random.Generator], np.ndarray],
    vocabulary: Vocabulary,
    mask_share: float,
    random_share: float,
) -> MaskedTokens:
    """Choose positions in every example and hide them, each example with the generator that is its own.

    choose: gives the positions of one example. purpose: tells apart the generators of several objectives.
    """
    positions, shown = [], []
    for start, i in packed_starts(examples, clean):
        example = examples[i]
        generator = generator_of(seed, example.key, purpose)
        chosen = choose(example, generator)
        old = example.input_ids[chosen]
        positions.append(start + chosen)
        shown.append(hide(old, generator, vocabulary, mask_share=mask_share, random_share=random_share))
    places = torch.from_numpy(np.concatenate(positions))
    ids = clean.input_ids.index_copy(0, places, torch.from_numpy(np.concatenate(shown)))
    return MaskedTokens(corrupted(clean, ids), places, clean.input_ids[places])
