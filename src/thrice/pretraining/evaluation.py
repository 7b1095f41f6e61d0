"""The curve of a run: the losses of a stage's objectives on the same text with the same masks, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from thrice.data.corpus import Corpus
from thrice.data.segments import SegmentStream
from thrice.errors import DataError
from thrice.objectives.model import PretrainingBatch, PretrainingModel
from thrice.training.distributed import Ranks
from thrice.training.feed import in_parts

SEED = 20_000_000
"""Of the sample's order and masks: no run's own, so that runs of several seeds are evaluated on the same."""
COUNTED_TOKENS = 5_000_000
"""Tokens of the training text from which frequencies are counted, shard by shard."""


@dataclass(kw_only=True)
class Sample:
    """Batches of a stage that are evaluated, made when they are first asked for."""

    stream: SegmentStream
    """Cuts the text as the stage does."""
    objectives: Sequence[str]
    """Those of the stage."""
    tokens: int
    """To evaluate at least, where the text has so many."""
    micro_tokens: int | None = None
    """To compute at once at most; None for a batch of the stream."""
    batches: list[PretrainingBatch] = field(default_factory=list)
    """On the CPU."""

    def ready(self, model: PretrainingModel) -> list[PretrainingBatch]:
        """Give the batches: one pass over the text at most."""
        if not self.batches:
            total = 0
            for examples, position in self.stream.batches():
                lengths = [len(example.input_ids) for example in examples]
                for part in in_parts(examples, lengths, self.micro_tokens):
                    self.batches.append(model.make_batch(part, seed=SEED, objectives=self.objectives))
                total += sum(lengths)
                if total >= self.tokens or position.pass_number > 0:
                    break
        return self.batches


def evaluate(model: PretrainingModel, sample: Sample, ranks: Ranks, device: Any) -> dict[str, Any]:
    """Give the means of all terms over a sample, and of how many each is the mean.

    Of several processes each answers a share; all call this. The model is in eval mode and gradients are off.
    """
    batches = sample.ready(model)
    own: dict[str, tuple[float, float]] = {}
    for batch in batches[ranks.rank :: ranks.size]:
        for name, term in model.terms(batch.to(device)).items():
            total, count = own.get(name, (0.0, 0.0))
            own[name] = (total + float(term.total), count + float(term.count))
    sums: dict[str, tuple[float, float]] = {}
    for part in ranks.gather(own):
        for name, (total, count) in part.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + total, before[1] + count)
    return {
        "held_out": {name: total / count for name, (total, count) in sums.items() if count},
        "counts": {name: count for name, (_, count) in sums.items()},
        "eval_tokens": sum(batch.num_tokens for batch in batches),
    }


def frequencies(corpus: Corpus) -> dict[str, float]:
    """Give what can be predicted without any context, from the first shards of the training text.

    unigram_entropy: in nats, the masked-language loss of a model that knows the frequency of each token and nothing
    else; most_frequent: the accuracy of one that always says the most frequent token.
    """
    counts = np.zeros(corpus.vocab_size, dtype=np.int64)
    for number in range(corpus.num_shards):
        counted = np.bincount(np.asarray(corpus.shard(number, verify=True).ids), minlength=corpus.vocab_size)
        if len(counted) > len(counts):
            raise DataError(f"{corpus.folder}: shard {number} has ids beyond its vocabulary; prepare it again")
        counts += counted
        if counts.sum() >= COUNTED_TOKENS:
            break
    shares = counts[counts > 0] / counts.sum()
    return {
        "unigram_entropy": float(-(shares * np.log(shares)).sum()),
        "most_frequent": float(shares.max()),
    }
