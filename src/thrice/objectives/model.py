"""The model of a pre-training run: the main encoder, the towers beside it, and the objectives that train them."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from thrice.data.segments import PretrainingExample
from thrice.errors import ConfigError, nearest
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.packing import PackedBatch, pack
from thrice.objectives.base import Objective, PairObjective, Term, Vocabulary, loss_of


@dataclass(frozen=True)
class PretrainingBatch:
    """Examples as they are, and what each objective made of them."""

    clean: PackedBatch
    """The examples with nothing hidden; T tokens."""
    parts: dict[str, Any]
    """Objective -> its part, in the order of the model's objectives."""

    @property
    def num_tokens(self) -> int:
        """T: real tokens, counted once however many objectives read them."""
        return self.clean.num_tokens

    @property
    def num_examples(self) -> int:
        """B: sequences."""
        return len(self.clean.lengths)

    def to(self, device: torch.device | str) -> PretrainingBatch:
        """Give the same batch on a device."""
        return PretrainingBatch(self.clean.to(device), {name: part.to(device) for name, part in self.parts.items()})


class PretrainingModel(nn.Module):
    """An encoder under one or several objectives; built by `build_pretraining_model`.

    A token objective (mlm, mpn, rtd, all_token_mlm) runs the encoder on its own corrupted text. An objective on pairs
    reads the states that the first token objective of the batch had, and runs the encoder on the clean text where there
    is none.
    """

    def __init__(self, encoder: Encoder, objectives: Sequence[Objective], *, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.encoder = encoder
        self.towers = nn.ModuleDict()
        self.objectives = tuple(objectives)
        self.vocabulary = vocabulary
        self.trained_heads: set[str] = set()

    @property
    def config(self) -> EncoderConfig:
        """Shape of the main encoder."""
        return self.encoder.config

    def states(self, packed: PackedBatch, *, rows: Tensor | None = None) -> Tensor:
        """Give hidden states (T, H) of the main encoder, or those of the tokens `rows`, see `Encoder.forward`."""
        states = self.encoder(packed, rows=rows)
        assert isinstance(states, Tensor)
        return states

    def states_at(self, packed: PackedBatch, positions: Tensor, *, with_first: bool) -> tuple[Tensor, Tensor | None]:
        """Give (N, H) at packed indices, and (B, H) at first tokens or None: what is not read is not computed."""
        if not with_first:
            return self.states(packed, rows=positions), None
        states = self.states(packed, rows=torch.cat([positions, packed.starts]))
        chosen, first = states.split([len(positions), len(packed.starts)])
        return chosen, first

    def equip_head(self, name: str, generator: torch.Generator) -> None:
        """Give the main encoder a stock head with fresh weights, unless it carries one."""
        self.trained_heads.add(name)
        if name not in self.encoder.heads:
            self.encoder.add_head(name, generator=generator)

    def make_batch(
        self, examples: Sequence[PretrainingExample], *, seed: int, objectives: Iterable[str] | None = None
    ) -> PretrainingBatch:
        """Give the examples as a batch on the CPU, hidden and labelled as the objectives want.

        A pure function of its arguments: weights are not read, and an example's chance is its own. seed: of the run.
        objectives: names of those that a stage uses, all of the model's where None.
        Raises ConfigError for a name that the model does not have, and for objectives that do not go together.
        """
        chosen = self._chosen(objectives)
        clean = pack([e.input_ids for e in examples], [e.token_type_ids for e in examples])
        parts = {o.name: o.corrupt(examples, clean, seed=seed, vocabulary=self.vocabulary) for o in chosen}
        return PretrainingBatch(clean, parts)

    def terms(self, batch: PretrainingBatch) -> dict[str, Term]:
        """Give name -> term of every objective of the batch, in their order; those of pairs last."""
        terms: dict[str, Term] = {}
        first = None
        for i, (objective, followed) in enumerate(self._in_order(batch)):
            outcome = objective.outcome(self, batch.parts[objective.name], batch.clean, first, followed=followed)
            first = outcome.first if i == 0 else first
            terms |= outcome.terms
        return terms

    def counts(self, batch: PretrainingBatch) -> dict[str, float]:
        """Give name -> count of every term of a batch that has a weight, before it is computed.

        Raises ConfigError for an objective that cannot tell, see `Objective.counts`.
        """
        found: dict[str, float] = {}
        for objective, _ in self._in_order(batch):
            counts = objective.counts(batch.parts[objective.name], batch.clean)
            if counts is None:
                raise ConfigError(f"{objective.name} weighs a batch as a whole; it cannot be computed in parts")
            found |= counts
        return found

    def loss(self, batch: PretrainingBatch) -> Tensor:
        """Give the loss of a batch, in nats; see `loss_of`."""
        return loss_of(self.terms(batch))

    forward = loss

    def flops(self, batch: PretrainingBatch) -> int:
        """Give floating-point operations of a training step on this batch: all towers and heads, forth and back.

        Counted as in `model.flops`: matrix products, a multiply-add as two, the way back as twice the way forth.
        """
        return sum(
            objective.flops(self, batch.parts[objective.name], batch.clean, reads=i > 0, followed=followed)
            for i, (objective, followed) in enumerate(self._in_order(batch))
        )

    def layer_depths(self) -> dict[str, int]:
        """Give parameter name -> depth for layer-wise decay: 0 embeddings, 1..N by the last call, N + 1 heads.

        A tower's parameters have their own depths in that tower; what it shares with the encoder is named there.
        """
        depths: dict[str, int] = {}
        for prefix, module in (("encoder", self.encoder), *((f"towers.{n}", t) for n, t in self.towers.items())):
            inner: Callable[[], dict[str, int]] | None = getattr(module, "layer_depths", None)
            if inner is not None:
                depths |= {f"{prefix}.{name}": depth for name, depth in inner().items()}
        top = self.config.num_calls + 1
        return {name: depths.get(name, top) for name, _ in self.named_parameters()}

    def parameter_counts(self) -> dict[str, tuple[int, int]]:
        """Give (stored, called) parameters of "encoder" and of each tower, heads included.

        What a tower shares with the encoder counts in both.
        """
        counts = {"encoder": self.encoder.parameter_counts()}
        for name, tower in self.towers.items():
            own = sum(parameter.numel() for parameter in tower.parameters())
            counts[name] = tower.parameter_counts() if isinstance(tower, Encoder) else (own, own)
        return counts

    def stock_encoders(self) -> dict[str, Encoder]:
        """Give what a stock class can hold, each to be saved as a folder of its own: "" the main encoder, "generator".

        Which class that is follows from the heads: AlbertForPreTraining for mlm with sop, AlbertForMaskedLM for mlm
        alone, BertForPreTraining for mlm with nsp, ElectraForPreTraining for rtd, ElectraForMaskedLM for its generator.
        """
        generator = {name: self.towers[name] for name in ("generator",) if name in self.towers}
        found = {"": self.encoder, **generator}
        return {name: encoder for name, encoder in found.items() if isinstance(encoder, Encoder)}

    def _chosen(self, names: Iterable[str] | None) -> list[Objective]:
        known = {objective.name: objective for objective in self.objectives}
        wanted = list(known) if names is None else list(names)
        problems = [
            f"no objective called {name!r} here; {nearest(name, known)}" for name in wanted if name not in known
        ]
        if problems:
            raise ConfigError("; ".join(problems))
        chosen = [objective for objective in self.objectives if objective.name in wanted]
        check_together(chosen)
        return chosen

    def _in_order(self, batch: PretrainingBatch) -> list[tuple[Objective, bool]]:
        """Give the objectives of a batch, those on tokens first, and whether one on pairs will read what each had."""
        present = [objective for objective in self.objectives if objective.name in batch.parts]
        ordered = sorted(present, key=lambda objective: isinstance(objective, PairObjective))
        return [
            (o, i == 0 < len(ordered) - 1 and isinstance(ordered[-1], PairObjective)) for i, o in enumerate(ordered)
        ]


# What one batch cannot have at once, and why.
_APART = {
    ("nsp", "sop"): "each wants pairs of its own kind, and a batch has one",
    ("mlm", "mpn"): "mpn is mlm with chosen masks, and would predict the same texts twice",
    ("all_token_mlm", "rtd"): "each has a generator of its own that replaces the same tokens",
    ("all_token_mlm", "mlm"): "all_token_mlm predicts the hidden tokens already",
    ("all_token_mlm", "mpn"): "all_token_mlm predicts the hidden tokens already",
}


def check_together(objectives: Sequence[Objective]) -> None:
    """Raise ConfigError, all problems at once, where objectives cannot make one loss: the reason is said."""
    names = [objective.name for objective in objectives]
    problems = [f"{name} is there {count} times" for name, count in Counter(names).items() if count > 1]
    if not names:
        problems.append("none is given, expected at least one")
    problems += [
        f"{one} and {other} do not go together: {_APART[one, other]}; take one of them, or each in a stage of its own"
        for one, other in itertools.combinations(sorted(set(names)), 2)
        if (one, other) in _APART
    ]
    if problems:
        raise ConfigError("objectives: " + "; ".join(problems))


def build_pretraining_model(
    config: EncoderConfig,
    objectives: Sequence[Objective],
    *,
    vocabulary: Vocabulary,
    seed: int,
    encoder: Encoder | None = None,
) -> PretrainingModel:
    """Give a model with all heads and towers that the objectives train.

    config: of the main encoder. objectives: all of a run; stages may use some of them at a time. seed: of all fresh
    weights; each objective draws from a generator of its own, so that adding one leaves the weights of the others as
    they were. encoder: one with trained weights, whose heads are kept where an objective trains them and dropped where
    none does: saved beside trained weights, an untrained head would pass for one.
    Raises ConfigError, all problems at once, where the family has no class for the heads, where the vocabulary is
    larger than the word table, or where two objectives are one.
    """
    names = [objective.name for objective in objectives]
    problems = [f"{name} is there {count} times" for name, count in Counter(names).items() if count > 1]
    problems += [
        f"{o.name} wants a model of the family {' or '.join(o.families)}, this one is {config.family}"
        for o in objectives
        if config.family not in o.families
    ]
    for tower in dict.fromkeys(tower for objective in objectives for tower in objective.towers):
        owners = sorted({o.name for o in objectives if tower in o.towers})
        if len(owners) > 1:
            problems.append(f"{' and '.join(owners)} both want a tower called {tower}; take one of them")
    if not objectives:
        problems.append("no objective is given, expected at least one")
    if vocabulary.num_tokens > config.vocab_size:
        problems.append(f"the vocabulary has {vocabulary.num_tokens} tokens, the word table {config.vocab_size} rows")
    if encoder is not None and encoder.config != config:
        problems.append("the encoder has another config than the one given")
    if problems:
        raise ConfigError("pre-training: " + "; ".join(problems))
    if encoder is None:
        encoder = Encoder(config, generator=_generator(seed, "encoder"))
    model = PretrainingModel(encoder, objectives, vocabulary=vocabulary)
    for objective in objectives:
        objective.equip(model, _generator(seed, objective.name))
    for head in set(encoder.heads) - model.trained_heads:
        del encoder.heads[head]
    return model


def _generator(seed: int, name: str) -> torch.Generator:
    entropy = np.random.SeedSequence((seed, zlib.crc32(name.encode()))).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(entropy[0]) >> 1)
