"""One pre-training run, from a recipe and prepared text to stock folders with a card."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from thrice.checkpoints import resolve, save
from thrice.data.corpus import Corpus
from thrice.data.segments import Position, PretrainingExample, SegmentStream
from thrice.data.tokenizer import Tokenizer
from thrice.errors import CheckpointError, ConfigError
from thrice.files import read_json, write_atomically, write_json
from thrice.model.encoder import Encoder
from thrice.model.presets import PRESETS
from thrice.objectives.base import Vocabulary
from thrice.objectives.model import PretrainingModel, build_pretraining_model
from thrice.pretraining import evaluation, timing, watch
from thrice.pretraining.card import card
from thrice.pretraining.recipe import Recipe, StageRecipe
from thrice.pretraining.recipe_file import to_toml
from thrice.pretraining.resharing import reshare
from thrice.run_folder import begin_anew, clear_away, place_of_run, run_folder
from thrice.sharing.patterns import describe
from thrice.training import BudgetResult, Stage, fit_budget
from thrice.training.budget_loop import LOG
from thrice.training.distributed import Ranks, join, join_accelerator
from thrice.training.faults import disk_errors

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

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on, beside the model's tensors and the training's numbers."""
        held_out = None if self.held_out is None else self.held_out.fingerprint
        texts = {"corpus.train": self.train.fingerprint, "corpus.held_out": held_out}
        return {**self.recipe.facts(), **texts, "tokenizer": self.tokenizer.fingerprint}


def pretrain(
    recipe: Recipe,
    folder: Path,
    *,
    content: Mapping[str, Any] | None = None,
    restart: bool = False,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Pre-train as the recipe says, write the model as a stock folder, and give what happened as JSON values.

    content: what the recipe was made of, written beside the model as recipe.toml. say: told each line a reader wants to
    see while it runs; a progress bar is drawn beside where standard error is a terminal. A run that was stopped goes on
    from FOLDER.run, which is gone when the model is written. With replaced-token detection FOLDER holds the
    discriminator and FOLDER/generator the generator. Started in several processes by a launcher, each calls this alike;
    the first one writes and tells.
    Raises TrainingError where the folder holds a finished model or a run of another recipe and `restart` is not given,
    or another process works there; Interrupted on Ctrl-C or SIGTERM, saved; and whatever opening the text raises.
    """
    ranks = join()
    place = Path(folder)
    with run_folder(place, restart=restart) if ranks.main else nullcontext(place_of_run(place)) as run:
        return _pretrain(recipe, place, run, content, restart=restart, say=say if ranks.main else None, ranks=ranks)


def _pretrain(
    recipe: Recipe,
    folder: Path,
    run: Path,
    content: Mapping[str, Any] | None,
    *,
    restart: bool,
    say: Callable[[str], None] | None,
    ranks: Ranks,
) -> dict[str, Any]:
    tell = say or (lambda line: None)
    with ranks.main_first():
        materials = prepare(recipe)
    model = materials.model
    streams = [partial(_stream, materials.train, recipe, number) for number in range(len(recipe.stages))]
    if restart and ranks.main:  # only now: a mistyped file or key costs nothing
        begin_anew(run)
    for line in _introduction(materials, [stream() for stream in streams]):
        tell(line)
    if (run / "resume").exists():
        tell(f"going on with the run in {run}")
    accelerator = join_accelerator(unused=True)
    unit, amount = _budget(materials, streams, run, ranks, accelerator.device, tell)
    samples = _samples(materials)
    facts = evaluation.frequencies(materials.train)
    warned: set[str] = set()

    def on_evaluation(records: list[dict[str, Any]]) -> None:
        tell(_line(records[-1]))
        for kind, sentence in watch.warnings_of(records, facts).items():
            if kind not in warned:
                tell(f"warning: {sentence}")
                warned.add(kind)

    result = fit_budget(
        model,
        recipe.training(unit=unit, amount=amount),
        stages=_stages(materials, streams, tell),
        folder=run,
        evaluate=lambda number: evaluation.evaluate(model, samples[number], ranks, accelerator.device),
        identity=materials.identity,
        accelerator=accelerator,
        progress=None if say else False,
        on_stage=lambda number: tell(_stage_line(recipe, number)),
        on_evaluation=on_evaluation,
    )
    outcome = _outcome(materials, folder, result, facts, unit=unit, amount=amount)
    if ranks.main:
        with disk_errors(run, f"the model in {folder}"):
            write_model(materials, folder, outcome, content, log=run / LOG)
        clear_away(run)
    ranks.wait()
    for line in _farewell(folder, outcome):
        tell(line)
    return outcome


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
    model = build_pretraining_model(
        config,
        recipe.built_objectives(),
        vocabulary=Vocabulary(
            num_tokens=train.vocab_size,
            mask_id=train.special_ids["mask"],
            special_ids=tuple(sorted(set(train.special_ids.values()))),
        ),
        seed=recipe.seed,
        encoder=encoder,
    )
    for part in model.modules():
        if isinstance(part, Encoder):
            part.gradient_checkpointing = recipe.run.gradient_checkpointing
    return Materials(
        recipe=recipe,
        tokenizer=tokenizer,
        train=train,
        held_out=None if held_out is None else Corpus.open(held_out, tokenizer=tokenizer),
        model=model,
    )


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


def _stream(corpus: Corpus, recipe: Recipe, number: int, *, seed: int | None = None) -> SegmentStream:
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


def _stages(
    materials: Materials, streams: Sequence[Callable[[], SegmentStream]], tell: Callable[[str], None]
) -> list[Stage]:
    recipe, model = materials.recipe, materials.model
    stages, end = [], 0.0
    for number, (stage, share) in enumerate(zip(recipe.stages, recipe.shares, strict=True)):
        end = 1.0 if number + 1 == len(recipe.stages) else end + share
        stages.append(
            Stage(
                name="+".join(stage.objectives),
                end=end,
                batches=partial(_batches, streams[number]),
                make_batch=partial(model.make_batch, seed=recipe.seed, objectives=stage.objectives),
                lengths=lambda examples: [len(example.input_ids) for example in examples],
                enter=partial(reshare, model, stage.sharing, tell),
            )
        )
    return stages


def _batches(
    stream: Callable[[], SegmentStream], position: Mapping[str, Any] | None
) -> Iterator[tuple[list[PretrainingExample], dict[str, Any]]]:
    for examples, behind in stream().batches(Position(**position or {})):
        yield examples, asdict(behind)


def _samples(materials: Materials) -> list[evaluation.Sample]:
    recipe, text = materials.recipe, materials.held_out or materials.train
    return [
        evaluation.Sample(
            stream=partial(_stream, text, recipe, number, seed=evaluation.SEED),
            objectives=stage.objectives,
            tokens=recipe.evaluation.tokens,
        )
        for number, stage in enumerate(recipe.stages)
    ]


def _budget(
    materials: Materials,
    streams: Sequence[Callable[[], SegmentStream]],
    run: Path,
    ranks: Ranks,
    device: Any,
    tell: Callable[[str], None],
) -> tuple[str, float]:
    """Give unit and amount; minutes become tokens once, and the number is kept for the run that goes on."""
    ((unit, amount),) = materials.recipe.budget.given.items()
    if unit != "minutes":
        return unit, amount
    path = run / "budget.json"
    kept = ranks.from_main(read_json(path) if path.exists() else None)
    if not (isinstance(kept, dict) and kept.get("minutes") == amount):
        tell(f"timing a few steps to learn how many tokens {amount:g} minutes are")
        speeds = timing.tokens_per_second(materials.model, materials.recipe, streams, device)
        seconds = sum(share / speed for share, speed in zip(materials.recipe.shares, speeds, strict=True))
        tokens = ranks.from_main(round(60 * amount * ranks.size / seconds))
        kept = {"minutes": amount, "tokens": tokens, "tokens_per_second": speeds}
        if ranks.main:
            write_json(path, kept)
    tell(f"budget: {amount:g} minutes, {kept['tokens']:,} tokens by the speed measured at the start")
    return "tokens", int(kept["tokens"])


def write_model(
    materials: Materials, folder: Path, outcome: Mapping[str, Any], content: Mapping[str, Any] | None, *, log: Path
) -> None:
    """Write the stock folders with tokenizer, sidecar, card, recipe and log."""
    encoders = materials.model.stock_encoders()
    for name, encoder in encoders.items():
        sidecar = {"pretraining": dict(outcome) | ({"tower": name} if name else {})}
        save(encoder, folder / name if name else folder, tokenizer=materials.tokenizer, sidecar=sidecar)
    stale = folder / "generator"
    if "generator" not in encoders and (stale / "thrice.json").exists():  # of the model that this one replaces
        shutil.rmtree(stale)
    shutil.copyfile(log, folder / LOG)
    if content is not None:
        write_atomically(folder / "recipe.toml", to_toml(content))
    write_atomically(folder / "README.md", card(materials.recipe, outcome))


def _outcome(
    materials: Materials, folder: Path, result: BudgetResult, facts: Mapping[str, float], *, unit: str, amount: float
) -> dict[str, Any]:
    recipe, config = materials.recipe, materials.model.config
    counts = {name: list(pair) for name, pair in materials.model.parameter_counts().items()}
    return {
        "name": recipe.name,
        "family": config.family,
        "folder": str(folder),
        "from": recipe.model.start,
        "sharing": describe(config.attention_map, config.ffn_map),
        "parameters": counts,
        "budget": {"unit": unit, "amount": amount, "asked": recipe.budget.given},
        "spent": {
            "tokens": result.tokens,
            "flops": result.flops,
            "steps": result.steps,
            "examples": result.examples,
            "seconds": result.seconds,
            "wait_seconds": result.wait_seconds,
            "passes": result.tokens / max(materials.train.num_tokens, 1),
        },
        "stages": result.stages,
        "evaluations": result.evaluations,
        "evaluated_on": "held-out text" if materials.held_out is not None else "a sample of the training text",
        "baseline": dict(facts),
        "warnings": list(watch.warnings_of(result.evaluations, facts).values()),
        **watch.verdict(result.evaluations, facts),
        "data": {
            name: _corpus_facts(corpus)
            for name, corpus in (("train", materials.train), ("held_out", materials.held_out))
            if corpus is not None
        },
        "tokenizer": {"fingerprint": materials.tokenizer.fingerprint, "ids": materials.tokenizer.vocab_size},
        "objectives": {o.name: o.source for o in recipe.built_objectives()},
        "recipe": recipe.facts(),
    }


def _corpus_facts(corpus: Corpus) -> dict[str, Any]:
    return {
        "fingerprint": corpus.fingerprint,
        "tokens": corpus.num_tokens,
        "documents": corpus.num_documents,
        "sources": [Path(str(source["name"])).name for source in corpus.facts["sources"]],
    }


def _introduction(materials: Materials, streams: Sequence[SegmentStream]) -> Iterator[str]:
    recipe, model = materials.recipe, materials.model
    shared = describe(model.config.attention_map, model.config.ffn_map)
    start = f", from {recipe.model.start}" if recipe.model.start else ""
    for name, (stored, called) in model.parameter_counts().items():
        told = f"{model.config.family}, shared: {shared}{start}" if name == "encoder" else "beside it"
        yield f"{name}: {told}; {stored / 1e6:.2f} M parameters stored, {called / 1e6:.2f} M called"
    train = materials.train
    yield f"text: {train.num_documents:,} documents, {train.num_tokens:,} tokens in {train.folder}"
    if materials.held_out is None:
        yield "note: no held-out text (--held-out); evaluated on a sample of the training text, which flatters"
    elif materials.held_out.fingerprint == train.fingerprint:
        yield "note: the held-out text is the training text"
    else:
        yield f"held out: {materials.held_out.num_documents:,} documents, {materials.held_out.num_tokens:,} tokens"
    for number, stream in enumerate(streams, start=1):
        left = [f"{count:,} {name.replace('_', ' ')}" for name, count in stream.skipped.items() if count]
        if left:
            yield f"note: stage {number} leaves out {', '.join(left)}"


def _stage_line(recipe: Recipe, number: int) -> str:
    stage, share = recipe.stages[number], recipe.shares[number]
    what = " + ".join(stage.objectives)
    return f"stage {number + 1} of {len(recipe.stages)}: {what}, at most {stage.max_length} tokens, {share:.0%} of it"


def _line(record: Mapping[str, Any]) -> str:
    means = "  ".join(f"{name} {value:.4f}" for name, value in record["held_out"].items())
    spent = f"{record['tokens'] / 1e6:.2f}M tokens  {record['flops']:.2e} FLOPs  {record['seconds']:.0f} s"
    return f"{record['share']:6.1%}  step {record['step']}  {means}  {spent}"


def _farewell(folder: Path, outcome: Mapping[str, Any]) -> Iterator[str]:
    spent = outcome["spent"]
    wait = spent["wait_seconds"] / max(spent["seconds"], 1e-9)
    yield (
        f"spent {spent['tokens']:,} tokens, {spent['flops']:.3e} FLOPs, {spent['steps']:,} steps, "
        f"{spent['seconds']:.0f} s ({wait:.1%} waiting for text), {spent['passes']:.2f} passes over the text"
    )
    yield f"verdict: {outcome['verdict']}" + "".join(f"; {reason}" for reason in outcome["reasons"])
    yield f"saved to {folder}; fine-tune it with: thrice finetune {folder} --data FILE --out NEW"
