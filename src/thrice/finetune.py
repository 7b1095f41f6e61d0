"""One fine-tuning run, from names and files to a saved folder: `thrice finetune` does it once, a study many times."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thrice.checkpoints import load_any, resolve, save, save_stock
from thrice.data.batching import training_batches
from thrice.data.tokenizer import Tokenizer
from thrice.errors import CheckpointError, ConfigError
from thrice.model.config import EncoderConfig
from thrice.model.stock import StockConfig, StockEncoder
from thrice.run_folder import begin_anew, clear_away, place_of_run, run_folder
from thrice.source import DataSource, Splits, read_splits
from thrice.tasks.base import TASK_HEAD, Prediction, Task, TaskData, TaskModel
from thrice.training import FitResult, TrainingConfig, fit
from thrice.training.distributed import Ranks, join, join_accelerator
from thrice.training.faults import disk_errors


def tokenizer_for(model: str, config: EncoderConfig | StockConfig, *, tokenizer: str | None = None) -> Tokenizer:
    """Give the tokenizer that belongs to a model's name, or the named one.

    A preset has none of its own: Chinese shapes (21,128 entries) take that of the bundled checkpoint.
    Raises CheckpointError where there is none to take.
    """
    if tokenizer is not None:
        folder = resolve(tokenizer).folder
    else:
        source = resolve(model)
        folder = source.folder
        if source.kind == "preset" and config.vocab_size == 21128:
            folder = resolve("zoo:albert-nano-zh").folder
    if folder is None:
        raise CheckpointError(f"{model} has no tokenizer of its own; name the folder of one with --tokenizer")
    return Tokenizer.from_folder(folder, vocab_size=config.vocab_size, type_vocab_size=config.type_vocab_size)


def build(model: str, task: Task, *, seed: int, tokenizer: str | None = None) -> tuple[TaskModel, Tokenizer]:
    """Give the named model equipped for the task, its head drawn from the seed, and its tokenizer."""
    encoder = load_any(model)
    words = tokenizer_for(model, encoder.config, tokenizer=tokenizer)
    return TaskModel(encoder, task, seed=seed), words


def check_metric(task: Task, metric: str | None) -> str:
    """Give the metric that chooses the best epoch; raises ConfigError for one the task does not give."""
    if metric is not None and metric not in task.metrics:
        raise ConfigError(f"--metric {metric!r}: this task gives {', '.join(task.metrics)}")
    return metric or task.metrics[0]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run; the model holds the weights of the best epoch."""

    fit: FitResult
    """What training gave."""
    test: dict[str, Any] | None
    """Scores of the test examples at the best dev epoch; None without test examples."""
    test_predictions: list[Prediction] | None
    """Answers to the test examples, in their order."""


def train(
    model: TaskModel,
    tokenizer: Tokenizer,
    splits: Splits,
    config: TrainingConfig,
    *,
    name: str,
    metric: str,
    folder: Path,
    progress: bool | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
) -> Outcome:
    """Train on the training examples, keep the best epoch on dev, score test once; resumable in `folder`.

    name: of the model; a run that began with another one is not resumed. Of several processes all call this alike.
    With 0 epochs nothing is trained: the model is scored as it is, and its one record is that of epoch 0.
    """
    task, ranks = model.task, join()
    with ranks.main_first():
        data, dev = task.encode(splits.train, tokenizer), task.encode(splits.dev, tokenizer)
        test_data = task.encode(splits.test, tokenizer) if splits.test else None

    def evaluate() -> dict[str, Any]:
        return task.score(predict_together(model, dev, ranks), splits.dev)

    result = (
        _untrained(model, evaluate, metric)
        if config.epochs == 0
        else fit(
            model,
            config,
            num_examples=len(data),
            batches=batches_of(data, config),
            make_batch=data.batch,
            evaluate=evaluate,
            metric=metric,
            folder=folder,
            lengths=data.lengths,
            identity={
                "model": name,
                "tokenizer": tokenizer.fingerprint,
                "data": splits.facts,
                "task": task.name,
                "settings": task.settings(),
            },
            progress=progress,
            on_epoch=on_epoch,
        )
    )
    model.task = task = task.tuned(lambda: predict_together(model, dev, ranks), splits.dev)
    test, answers = None, None
    if test_data is not None:
        answers = predict_together(model, test_data, ranks)
        test = task.score(answers, splits.test)
        test.pop("collapsed")
    return Outcome(fit=result, test=test, test_predictions=answers)


def _untrained(model: TaskModel, evaluate: Callable[[], dict[str, Any]], metric: str) -> FitResult:
    """Give the result of no training at all; the model goes to the device that training would use, in eval mode."""
    model.to(join_accelerator().device).eval()
    started = time.perf_counter()
    dev = evaluate()
    collapsed, seconds = bool(dev.pop("collapsed")), time.perf_counter() - started
    record = {"epoch": 0, "step": 0, "dev": dev, "collapsed": collapsed, "seconds": 0.0, "eval_seconds": seconds}
    return FitResult(
        epochs=[record], best_epoch=0, best_value=dev[metric], collapsed=collapsed, steps=0, seconds=seconds
    )


def predict_together(model: TaskModel, data: TaskData, ranks: Ranks) -> list[Prediction]:
    """Give one prediction per example in every process, each having answered a share of the batches."""
    shares = ranks.gather(model.predict(data, share=(ranks.rank, ranks.size)))
    return [next(filter(None, answers), {}) for answers in zip(*shares, strict=True)]


def cut_note(data: TaskData) -> list[str]:
    """Say how many training examples the maximum length cuts, if any, and what else the task has to say of them."""
    cut = f"{data.num_cut} of {len(data)} training examples are longer than the maximum length and are cut"
    return [*([cut] if data.num_cut else []), *getattr(data, "notes", ())]


def packing_note(model: TaskModel) -> list[str]:
    """Say that a model is not packed; nothing where it is."""
    if model.encoder.packed:
        return []
    return [f"not packed: this {model.encoder.config.family} runs through its own transformers class, with padding"]


def batches_of(data: TaskData, config: TrainingConfig) -> Callable[[int], list[Any]]:
    """Give epoch -> the index arrays of its steps, the same for every model."""
    return lambda epoch: training_batches(len(data), batch_size=config.batch_size, seed=config.seed, epoch=epoch)


def save_model(model: TaskModel, folder: Path, tokenizer: Tokenizer, *, facts: Mapping[str, Any] | None = None) -> Path:
    """Write a stock folder that transformers loads, with a sidecar from which `load_model` restores the task.

    A head that no stock class has is written beside the stock file, as task_head.safetensors.
    Raises CheckpointError where the folder holds something else.
    """
    sidecar = {"task": {"name": model.task.name, "settings": model.task.settings()}, **(facts or {})}
    config = model.task.stock_config()
    with model.task.as_saved(model):
        own = {} if model.head is None else {TASK_HEAD: model.head.state_dict()}
        more: dict[str, Any] = {"tokenizer": tokenizer, "extra_config": config, "sidecar": sidecar, "beside": own}
        if isinstance(model.encoder, StockEncoder):
            return save_stock(model.encoder, folder, **more)
        return save(model.encoder, folder, **more)


def default_training(config: EncoderConfig | StockConfig, changes: Mapping[str, Any]) -> TrainingConfig:
    """Give the training config for one encoder: the field's recipe, with ELECTRA's layer-wise decay unless it is given.

    changes: field -> value; None stands for the default. Source: Clark et al. 2020, table 7: 0.8 for small and base,
    0.9 for large.
    """
    given = _given(changes)
    if config.family == "electra":
        given.setdefault("layerwise_decay", 0.9 if config.num_calls >= 24 else 0.8)
    return TrainingConfig(**given)


def _given(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Give the fields of a training config that are not None, checked; raises ConfigError with all problems."""
    given = {name: value for name, value in changes.items() if value is not None}
    TrainingConfig(**given)
    return given


def finetune(
    name: str,
    folder: Path,
    *,
    source: DataSource,
    task_name: str,
    options: Mapping[str, Any],
    metric: str | None = None,
    training: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
    restart: bool = False,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Fine-tune a named model and write the best epoch as a stock folder; give what happened as JSON values.

    training: fields of TrainingConfig that differ from `default_training`. say: told each line a reader wants to see
    while it runs; a progress bar is drawn beside where standard error is a terminal. A run that was stopped goes on
    from FOLDER.run, which is gone when the model is written. Started in several processes by a launcher, each calls
    this alike; the first one writes and tells.
    Raises TrainingError where the folder holds a finished model and `restart` is not given, or another process works
    there, and Interrupted on Ctrl-C or SIGTERM, see `fit`.
    """
    ranks = join()
    place = Path(folder)
    with run_folder(place, restart=restart) if ranks.main else nullcontext(place_of_run(place)) as run:
        return _finetune(
            name,
            place,
            run,
            source=source,
            task_name=task_name,
            options=options,
            metric=metric,
            training=training or {},
            tokenizer=tokenizer,
            restart=restart,
            say=say if ranks.main else None,
            ranks=ranks,
        )


def _finetune(
    name: str,
    folder: Path,
    run: Path,
    *,
    source: DataSource,
    task_name: str,
    options: Mapping[str, Any],
    metric: str | None,
    training: Mapping[str, Any],
    tokenizer: str | None,
    restart: bool,
    say: Callable[[str], None] | None,
    ranks: Ranks,
) -> dict[str, Any]:
    tell = say or (lambda line: None)
    _given(training)  # before anything is read: a value that cannot be is cheap to tell
    task, splits = read_splits(task_name, source, options)
    chosen = check_metric(task, metric)
    seed = training.get("seed") or 0
    model, words = build(name, task, seed=seed, tokenizer=tokenizer)
    config = default_training(model.encoder.config, training)
    if restart and ranks.main:  # only now: a mistyped file, model or option costs nothing
        begin_anew(run)
    stored, called = model.encoder.parameter_counts()
    tell(f"{name}: {stored / 1e6:.2f} M parameters stored, {called / 1e6:.2f} M called; dropout {_dropout(model)}")
    tell(f"{len(splits.train)} train, {len(splits.dev)} dev, {len(splits.test)} test; choosing by {chosen}")
    tell(task.describe())
    with ranks.main_first():
        cut = cut_note(model.task.encode(splits.train, words))
    for note in (*splits.facts["notes"], *packing_note(model), *cut):
        tell(f"note: {note}")
    if (run / "resume").exists():
        tell(f"going on with the run in {run}")

    def on_epoch(record: dict[str, Any]) -> None:
        scores = "  ".join(f"{key} {record['dev'][key]:.4f}" for key in task.metrics)
        if "dev_raw" in record:
            scores += f"  (not averaged: {task.metrics[0]} {record['dev_raw'][task.metrics[0]]:.4f})"
        collapsed = "  COLLAPSED to one answer" if record["collapsed"] else ""
        loss, seconds = record["train_loss"], record["seconds"]
        tell(f"epoch {record['epoch']}: loss {loss:.4f}  dev {scores}  {seconds:.0f} s{collapsed}")

    outcome = train(
        model,
        words,
        splits,
        config,
        name=name,
        metric=chosen,
        folder=run,
        progress=None if say else False,
        on_epoch=on_epoch,
    )
    result = {
        "model": name,
        "folder": str(folder),
        "metric": chosen,
        "best_epoch": outcome.fit.best_epoch,
        "best_dev": outcome.fit.best_value,
        "collapsed": outcome.fit.collapsed,
        "epochs": outcome.fit.epochs,
        "test": outcome.test,
        "seconds": outcome.fit.seconds,
        "training": dataclasses.asdict(config),
        "data": splits.facts,
    }
    if ranks.main:
        with disk_errors(run, f"the model in {folder}"):
            save_model(model, folder, words, facts={"run": {k: v for k, v in result.items() if k != "folder"}})
            if config.epochs:
                shutil.copyfile(run / "train.jsonl", folder / "train.jsonl")
        clear_away(run)
    ranks.wait()
    if outcome.test is not None:
        scores = "  ".join(f"{key} {outcome.test[key]:.4f}" for key in task.metrics)
        tell(f"test at epoch {outcome.fit.best_epoch}: {scores}")
    if outcome.fit.collapsed and config.epochs:
        tell("this run collapsed to one answer: try a smaller --learning-rate, a longer --warmup or another --seed")
    tell(f"saved to {folder}; transformers loads it, and so does: thrice predict {folder} texts.jsonl")
    return result


def _dropout(model: TaskModel) -> str:
    config = model.encoder.config
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob")
    return ", ".join(f"{name.split('_')[0]} {getattr(config, name):g}" for name in names)
