"""What a recipe names, opened and built: tokenizer, text and model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thrice.checkpoints import refuse_unsavable, resolve
from thrice.checkpoints.digest import weights_digest
from thrice.data.corpus import Corpus
from thrice.data.segments import SegmentStream
from thrice.data.tokenizer import Tokenizer
from thrice.errors import CheckpointError, ConfigError, SharingError
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.presets import PRESETS
from thrice.objectives.base import Vocabulary
from thrice.objectives.model import PretrainingModel, build_pretraining_model
from thrice.pretraining.recipe import Recipe, StageRecipe
from thrice.pretraining.towers import take_over
from thrice.sharing.patterns import parse

CHINESE = 21128
"""Entries of the vocabulary that a preset without a tokenizer of its own is taken to have: the bundled one's."""


@dataclass(frozen=True, kw_only=True)
class Materials:
    """What a recipe names, opened and built."""

    recipe: Recipe
    """What was asked for."""
    tokenizer: Tokenizer
    """Of the text and of the saved model."""
    train: Corpus
    """The text to learn from."""
    held_out: Corpus | None
    """The text to evaluate on."""
    model: PretrainingModel
    """As before the first stage."""
    begun_with: str | None
    """sha256 of all weights at the start, where they are a checkpoint's."""
    fresh_heads: tuple[str, ...]
    """Heads that the run trains and the checkpoint that it begins with lacks; none where it begins with none."""
    taken: dict[str, bool]
    """Tower -> whether its weights are those of the checkpoint that the run begins with, and not fresh."""

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on, beside the model's tensors and the training's numbers."""
        held_out = None if self.held_out is None else self.held_out.fingerprint
        texts = {"corpus.train": self.train.fingerprint, "corpus.held_out": held_out}
        facts = self.recipe.facts()
        if self.begun_with is not None:  # a folder may have moved, or hold other weights today
            facts["model.from"] = self.begun_with
        return {**facts, **texts, "tokenizer": self.tokenizer.fingerprint}


def prepare(recipe: Recipe) -> Materials:
    """Open the text and build the model; raises DataError, CheckpointError or ConfigError for what does not fit."""
    if recipe.corpus.train is None:
        raise ConfigError(
            "no text to learn from: name a prepared corpus as [corpus] train in the recipe or with --train; "
            "thrice corpus FILES --out FOLDER makes one"
        )
    tokenizer = _tokenizer(recipe)
    train = Corpus.open(recipe.corpus.train, tokenizer=tokenizer)
    held_out = recipe.corpus.held_out
    encoder = recipe.model.encoder()
    config = recipe.model.config(tokenizer) if encoder is None else encoder.config
    assert config is not None
    _check_stages(recipe, config)
    vocabulary = Vocabulary(
        num_tokens=train.vocab_size,
        mask_id=train.special_ids["mask"],
        special_ids=tuple(sorted(set(train.special_ids.values()))),
    )
    held_heads = set() if encoder is None else set(encoder.heads)
    try:
        model = build_pretraining_model(
            config, recipe.built_objectives(), vocabulary=vocabulary, seed=recipe.seed, encoder=encoder
        )
    except (RuntimeError, MemoryError) as error:  # torch's, where the memory does not suffice
        raise ConfigError(f"{recipe.name}: a model of this size cannot be built here: {error}") from error
    fresh_heads = sorted(model.trained_heads - held_heads) if encoder is not None else []
    start = None if recipe.model.start is None else resolve(recipe.model.start).folder
    taken = {} if start is None else take_over(model, start)
    for tower in model.stock_encoders().values():
        refuse_unsavable(tower, tokenizer=tokenizer)
    for part in model.modules():
        if isinstance(part, Encoder):
            part.gradient_checkpointing = recipe.run.gradient_checkpointing
    return Materials(
        recipe=recipe,
        tokenizer=tokenizer,
        train=train,
        held_out=None if held_out is None else Corpus.open(held_out, tokenizer=tokenizer),
        model=model,
        begun_with=None if start is None else weights_digest(model.state_dict()),
        fresh_heads=tuple(fresh_heads),
        taken=taken,
    )


def _check_stages(recipe: Recipe, config: EncoderConfig) -> None:
    """Raise ConfigError, all problems at once, where a stage does not fit a shape that was not known before."""
    problems = []
    for number, stage in enumerate(recipe.stages, start=1):
        if stage.max_length > config.max_length:
            problems.append(
                f"stages[{number}].max_length {stage.max_length} is more than the model's {config.max_length} positions"
            )
        if stage.sharing is not None:
            try:
                parse(stage.sharing, config.num_calls)
            except SharingError as error:
                problems.append(f"stages[{number}].sharing: {error}")
    if problems:
        raise ConfigError(f"{recipe.name}: " + "; ".join(problems))


def _tokenizer(recipe: Recipe) -> Tokenizer:
    name = recipe.tokenizer or recipe.model.start
    if name is None and recipe.model.preset is not None and PRESETS[recipe.model.preset].vocab_size == CHINESE:
        name = "zoo:albert-nano-zh"
    if name is None:
        raise ConfigError("tokenizer is missing: a preset has no vocabulary of its own; name the folder of one")
    return named_tokenizer(name)


def named_tokenizer(name: str) -> Tokenizer:
    """Give the tokenizer of a folder, a hub id or zoo:NAME; raises CheckpointError or DataError where there is none."""
    folder = resolve(name).folder
    if folder is None:
        raise CheckpointError(f"{name} has no tokenizer of its own; expected a folder, a hub id or zoo:NAME")
    return Tokenizer.from_folder(folder)


def stream_of(corpus: Corpus, recipe: Recipe, number: int, *, seed: int | None = None) -> SegmentStream:
    """Give the segments of a stage out of a corpus."""
    stage = recipe.stages[number]
    return SegmentStream(
        corpus,
        max_length=stage.max_length,
        batch_tokens=recipe.batch.tokens,
        pairs=_pairs(recipe, stage),
        short=recipe.batch.short,
        seed=recipe.seed if seed is None else seed,
        stage=number,
    )


def _pairs(recipe: Recipe, stage: StageRecipe) -> str | None:
    kinds = {o.pairs for o in recipe.built_objectives() if o.name in stage.objectives and o.pairs is not None}
    return next(iter(kinds), None)
