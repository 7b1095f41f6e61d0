"""One pre-training run, from a recipe and prepared text to stock folders with a card."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from thrice.checkpoints import save
from thrice.data.corpus import Corpus
from thrice.data.corpus_file import named_counts
from thrice.data.segments import Position, PretrainingExample, SegmentStream
from thrice.errors import TrainingError
from thrice.files import read_json, write_atomically, write_json
from thrice.pretraining import evaluation, timing, watch
from thrice.pretraining.card import card
from thrice.pretraining.curves import Curves
from thrice.pretraining.materials import Materials, prepare, stream_of
from thrice.pretraining.recipe import Recipe
from thrice.pretraining.recipe_file import to_toml
from thrice.pretraining.resharing import reshare
from thrice.pretraining.towers import tower_files
from thrice.run_folder import begin_anew, clear_away, place_of_run, run_folder
from thrice.sharing.patterns import describe
from thrice.trackers import check_trackers
from thrice.training import BudgetResult, Stage, fit_budget
from thrice.training.budget_loop import LOG, MEMORY_ADVICE
from thrice.training.distributed import Ranks, join, join_accelerator
from thrice.training.faults import disk_errors, memory_errors
from thrice.training.resume import WAY_OUT, check_saved


def pretrain(
    recipe: Recipe,
    folder: Path,
    *,
    content: Mapping[str, Any] | None = None,
    restart: bool = False,
    say: Callable[[str], None] | None = None,
    trackers: Sequence[str] = (),
    project: str = "thrice",
) -> dict[str, Any]:
    """Pre-train as the recipe says, write the model as a stock folder, and give what happened as JSON values.

    content: what the recipe was made of, written beside the model as recipe.toml. say: told each line a reader wants to
    see while it runs; a progress bar is drawn beside where standard error is a terminal. A run that was stopped goes on
    from FOLDER.run, which is gone when the model is written. With replaced-token detection FOLDER holds the
    discriminator and FOLDER/generator the generator. Started in several processes by a launcher, each calls this alike;
    the first one writes and tells.
    trackers: tensorboard, wandb or trackio, which get the curves at every save (see `curves`) and move no weight: a run
    may go on with others. One that fails stops nothing: `say` is told, or else it is a Python warning. project: under
    which W&B and trackio file the run.
    Raises ConfigError, before anything is read, for a tracker that nobody knows or that is not installed; TrainingError
    where the folder holds a finished model or a run of another recipe and `restart` is not given, or another process
    works there; Interrupted on Ctrl-C or SIGTERM, saved; and whatever opening the text raises.
    """
    check_trackers(trackers)
    ranks = join()
    place = Path(folder)
    with run_folder(place, restart=restart) if ranks.main else nullcontext(place_of_run(place)) as run:
        tell = say if ranks.main else None
        track = partial(Curves, trackers, run, folder=place, project=project, tell=say or warnings.warn)
        return _pretrain(recipe, place, run, content, restart=restart, say=tell, ranks=ranks, track=track)


def _pretrain(
    recipe: Recipe,
    folder: Path,
    run: Path,
    content: Mapping[str, Any] | None,
    *,
    restart: bool,
    say: Callable[[str], None] | None,
    ranks: Ranks,
    track: Callable[..., Curves],
) -> dict[str, Any]:
    tell = say or (lambda line: None)
    with ranks.main_first():
        materials = prepare(recipe)
    model = materials.model
    streams = [partial(stream_of, materials.train, recipe, number) for number in range(len(recipe.stages))]
    opened, samples = [stream() for stream in streams], _samples(materials)
    if restart and ranks.main:  # only now: a mistyped file or key costs nothing
        begin_anew(run)
    for line in _introduction(materials, opened):
        tell(line)
    begun = (run / "resume").exists()
    accelerator = join_accelerator()
    unit, amount = _budget(materials, streams, run, ranks, accelerator.device, tell)
    for line in _warm_up(recipe, unit, amount):
        tell(line)
    facts = evaluation.frequencies(materials.train)
    warned: set[str] = set()

    def on_evaluation(records: list[dict[str, Any]]) -> None:
        tell(_line(records[-1]))
        for kind, sentence in watch.warnings_of(records, facts).items():
            if kind not in warned:
                tell(f"warning: {sentence}")
                warned.add(kind)

    def on_stage(number: int) -> None:
        nonlocal begun
        if begun:  # only now: what is saved has been found to be of this recipe
            tell(f"going on with the run in {run}")
            begun = False
        tell(_stage_line(recipe, number))

    config = {"name": recipe.name, **materials.identity}
    with closing(track(group=recipe.name, config=config, device=accelerator.device)) as curves:
        result = fit_budget(
            model,
            recipe.training(unit=unit, amount=amount),
            stages=_stages(materials, streams, tell),
            folder=run,
            evaluate=lambda number: evaluation.evaluate(model, samples[number], ranks, accelerator.device),
            identity=materials.identity,
            accelerator=accelerator,
            progress=None if say else False,
            on_stage=on_stage,
            on_evaluation=on_evaluation,
            on_save=curves.follow,
        )
        outcome = _outcome(
            materials,
            folder,
            result,
            facts,
            unit=unit,
            amount=amount,
            precision=recipe.run.mixed_precision or accelerator.mixed_precision,
        )
        outcome["left_out"] = [_left_out(*pair) for pair in zip(opened, result.stages, strict=False)]
        if ranks.main:
            with disk_errors(run, f"the model in {folder}"):
                write_model(materials, folder, outcome, content, log=run / LOG)
            curves.keep()
            clear_away(run)
    ranks.wait()
    for line in _farewell(folder, outcome):
        tell(line)
    return outcome


def _stages(
    materials: Materials, streams: Sequence[Callable[[], SegmentStream]], tell: Callable[[str], None]
) -> list[Stage]:
    recipe, model = materials.recipe, materials.model
    names = {objective.name for objective in model.objectives}
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
                # A model has the heads and towers that its objectives train, and no others.
                leaves_unused=set(stage.objectives) != names,
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
            stream=stream_of(text, recipe, number, seed=evaluation.SEED),
            objectives=stage.objectives,
            tokens=recipe.evaluation.tokens,
            micro_tokens=recipe.batch.micro_tokens,
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
    kept, begun = ranks.from_main((_kept_budget(path), (run / "resume").exists()) if ranks.main else None)
    if kept is not None and begun and kept["minutes"] != amount:
        raise TrainingError(f"{run} holds another run: minutes was {kept['minutes']:g}, is {amount:g} - {WAY_OUT}")
    if kept is None or kept["minutes"] != amount:
        tell(f"timing a few steps to learn how many tokens {amount:g} minutes are")
        with memory_errors(run, "while timing", batch=[], advice=MEMORY_ADVICE):
            speeds = timing.tokens_per_second(materials.model, materials.recipe, streams, device)
        seconds = sum(share / speed for share, speed in zip(materials.recipe.shares, speeds, strict=True))
        tokens = ranks.from_main(max(1, round(60 * amount * ranks.size / seconds)))
        kept = {"minutes": amount, "tokens": tokens, "tokens_per_second": speeds}
        if ranks.main:
            write_json(path, kept)
    tell(f"budget: {amount:g} minutes, {kept['tokens']:,} tokens by the speed measured at the start")
    return "tokens", int(kept["tokens"])


def _warm_up(recipe: Recipe, unit: str, amount: float) -> Iterator[str]:
    """Say where the rate rises for most of the run; how many steps a budget in operations has is not known yet."""
    steps = {"steps": amount, "tokens": amount / recipe.batch.tokens}.get(unit)
    warm_up = recipe.optimizer.warmup_steps
    if steps is not None and warm_up > steps / 2:
        yield (
            f"note: the rate rises over {warm_up:,} steps and the budget is about {max(1, round(steps)):,}: too few to "
            "learn much; give more, or lower optimizer.warmup_steps"
        )


def _kept_budget(path: Path) -> dict[str, Any] | None:
    """Give what minutes were found to be; raises TrainingError where the file is damaged."""
    try:
        kept: dict[str, Any] = read_json(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise TrainingError(f"{path} is damaged: {error} - {WAY_OUT}") from error
    check_saved(path, kept, {"minutes": float, "tokens": int, "tokens_per_second": list[float]})
    return kept


def write_model(
    materials: Materials, folder: Path, outcome: Mapping[str, Any], content: Mapping[str, Any] | None, *, log: Path
) -> None:
    """Write the stock folders with tokenizer, sidecar, card, recipe and log."""
    encoders = materials.model.stock_encoders()
    said = {key: value for key, value in outcome.items() if key != "folder"}
    for name, encoder in encoders.items():
        sidecar = {"pretraining": said | ({"tower": name} if name else {})}
        beside = None if name else tower_files(materials.model)
        save(encoder, folder / name, tokenizer=materials.tokenizer, sidecar=sidecar, beside=beside)
    stale = folder / "generator"
    if "generator" not in encoders and (stale / "thrice.json").exists():  # of the model that this one replaces
        shutil.rmtree(stale)
    shutil.copyfile(log, folder / LOG)
    if content is not None:
        write_atomically(folder / "recipe.toml", to_toml(content))
    write_atomically(folder / "README.md", card(outcome))


def _outcome(
    materials: Materials,
    folder: Path,
    result: BudgetResult,
    facts: Mapping[str, float],
    *,
    unit: str,
    amount: float,
    precision: str,
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
        "mixed_precision": precision,
        "budget": {"unit": unit, "amount": amount, "asked": recipe.budget.given},
        "spent": {
            "tokens": result.tokens,
            "flops": result.flops,
            "steps": result.steps,
            "examples": result.examples,
            "seconds": result.seconds,
            "wait_seconds": result.wait_seconds,
            "passes": _passes(materials, result),
        },
        "stages": result.stages,
        "evaluations": result.evaluations,
        "evaluated_on": "held-out text" if materials.held_out is not None else "a sample of the training text",
        "baseline": dict(facts),
        "warnings": list(watch.warnings_of(result.evaluations, facts).values()),
        **_verdict(recipe, result, facts),
        "data": {
            name: _corpus_facts(corpus)
            for name, corpus in (("train", materials.train), ("held_out", materials.held_out))
            if corpus is not None
        },
        "tokenizer": {"fingerprint": materials.tokenizer.fingerprint, "ids": materials.tokenizer.vocab_size},
        "objectives": {o.name: o.source for o in recipe.built_objectives()},
        "recipe": recipe.facts(),
    }


def _left_out(stream: SegmentStream, record: Mapping[str, Any]) -> dict[str, int]:
    """Give what a stage could not use: documents of every pass, and what was lost in the blocks that it finished."""
    position = Position(**record["position"])
    lost = {"sentences_left_over": position.sentences_left_over, "tokens_cut": position.tokens_cut}
    return stream.skipped | lost


def _passes(materials: Materials, result: BudgetResult) -> float:
    """Give how often as many tokens of text were read as the corpus has, special tokens aside."""
    read, examples = result.tokens, 0
    for number, record in enumerate(result.stages):
        frame = stream_of(materials.train, materials.recipe, number).frame
        read -= len(frame) * (record["examples"] - examples)
        examples = record["examples"]
    return read / max(materials.train.num_tokens, 1)


def _verdict(recipe: Recipe, result: BudgetResult, facts: Mapping[str, float]) -> dict[str, Any]:
    """Give the verdict of the last evaluation; a run whose budget ended before its last stage cannot be told."""
    found = watch.verdict(result.evaluations, facts)
    done, stages = len(result.stages), len(recipe.stages)
    if done == stages:
        return found
    missed = f"the budget was spent in stage {done} of {stages}: what comes later was never trained; give it more"
    return found | {"verdict": "cannot tell at this scale", "reasons": [missed, *found["reasons"]]}


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
        if name == "encoder" and materials.fresh_heads:
            told += f"; fresh, for it has none: {' and '.join(materials.fresh_heads)}"
        told += ", taken over" if materials.taken.get(name) else ", fresh" if name in materials.taken else ""
        yield f"{name}: {told}; {stored / 1e6:.2f} M parameters stored, {called / 1e6:.2f} M called"
    train = materials.train
    yield f"text: {train.num_documents:,} documents, {train.num_tokens:,} tokens in {train.folder}"
    if materials.held_out is None:
        yield "note: no held-out text (--held-out); evaluated on a sample of the training text, which flatters"
    elif materials.held_out.fingerprint == train.fingerprint:
        yield "note: the held-out text is the training text, which flatters"
    elif common := _sources(train) & _sources(materials.held_out):
        both = ", ".join(sorted(name for name, _ in common))
        yield f"note: training and held-out text were both made of {both}, which flatters"
    else:
        yield f"held out: {materials.held_out.num_documents:,} documents, {materials.held_out.num_tokens:,} tokens"
    for number, stream in enumerate(streams, start=1):
        if left := named_counts(stream.skipped):
            yield f"note: stage {number} leaves out {left}"


def _sources(corpus: Corpus) -> set[tuple[str, int | None]]:
    return {(Path(str(source["name"])).name, source["bytes"]) for source in corpus.facts["sources"]}


def _stage_line(recipe: Recipe, number: int) -> str:
    stage, share = recipe.stages[number], recipe.shares[number]
    what = " + ".join(stage.objectives)
    return f"stage {number + 1} of {len(recipe.stages)}: {what}, at most {stage.max_length} tokens, {share:.0%} of it"


def _line(record: Mapping[str, Any]) -> str:
    means = "  ".join(f"{name} {value:.4f}" for name, value in record["held_out"].items())
    spent = f"{record['tokens']:,} tokens  {record['flops']:.2e} FLOPs  {record['seconds']:.0f} s"
    return f"{min(record['share'], 1):6.1%}  step {record['step']}  evaluated: {means}  {spent}"


def _farewell(folder: Path, outcome: Mapping[str, Any]) -> Iterator[str]:
    spent = outcome["spent"]
    wait = spent["wait_seconds"] / max(spent["seconds"], 1e-9)
    yield (
        f"spent {spent['tokens']:,} tokens, {spent['flops']:.3e} FLOPs, {spent['steps']:,} steps, "
        f"{spent['seconds']:.0f} s ({wait:.1%} waiting for text), {spent['passes']:.2f} passes over the text"
    )
    yield f"verdict: {outcome['verdict']}" + "".join(f"; {reason}" for reason in outcome["reasons"])
    if outcome["reasons"] and outcome["above_chance"]:
        yield f"above chance: {', '.join(outcome['above_chance'])}"
    yield f"saved to {folder}; fine-tune it with: thrice finetune {folder} --data FILE --out NEW"
