"""The options that several commands share: one name, one help text, one panel, one default each."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from thrice.errors import ConfigError

if TYPE_CHECKING:
    from thrice.source import DataSource

MODEL_HELP = "A folder, a hub id, zoo:NAME or preset:NAME, then perhaps +PATTERN: albert/albert-base-v2+none"

Model = Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False)]
OutFolder = Annotated[Path, typer.Argument(help="New folder to write.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of tables.")]
Restart = Annotated[bool, typer.Option("--restart", help="Discard what the output folder holds and begin anew.")]


def _option(help: str, *names: str, panel: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel)


_data = functools.partial(_option, panel="Data")
_task = functools.partial(_option, panel="Task")
_training = functools.partial(_option, panel="Training")

Columns = Annotated[str | None, _data("Column names of files without a header row: text,label")]
Format = Annotated[str | None, _data("jsonl, json, csv, tsv, parquet or conll, where the name does not tell.")]
EngineName = Annotated[
    str, _option("local, or ray: a Ray cluster, started here or joined.", "--engine", panel="Running")
]
Address = Annotated[str | None, _option("Of a running Ray cluster.", panel="Running")]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What `finetune` and `compare` ask alike; a field is an option of both."""

    data: Annotated[str | None, _data("One file, or hub set NAME@SPLIT; split 80/10/10 by hash.")] = None
    train: Annotated[str | None, _data("Training rows: jsonl, csv, tsv, parquet, also .gz.")] = None
    dev: Annotated[str | None, _data("Rows that choose the best epoch.")] = None
    test: Annotated[str | None, _data("Rows scored once, at the best dev epoch.")] = None
    columns: Columns = None
    format: Format = None
    split_seed: Annotated[int, _data("Seeds the hash that splits --data, and that of --shots.")] = 0
    shots: Annotated[int | None, _data("Few-shot: so many training rows per class, as many dev rows at most.")] = None

    task: Annotated[str, _task("See: thrice list tasks")] = "classification"
    text_column: Annotated[str | None, _task("Column of the text, if not obvious.")] = None
    text_pair_column: Annotated[str | None, _task("Column of the second text of a pair.")] = None
    label_column: Annotated[str | None, _task("Column of the label, if not obvious.")] = None
    head: Annotated[
        str,
        _task(
            "classification: stock (the family's classifier), first-token (one layer); triples: pointer, conditional."
        ),
    ] = "stock"
    max_length: Annotated[int, _task("Tokens of a sequence, special ones included.")] = 128
    long_texts: Annotated[
        str, _task("Longer texts. classification: head, head+tail, chunks (the whole text); tagging: windows, cut.")
    ] = "head"
    multi_label: Annotated[bool, _task("Several labels per text.", "--multi-label")] = False
    class_weight: Annotated[str | None, _task("balanced, or name=weight,name=weight")] = None
    metric: Annotated[str | None, _task("Chooses the best epoch: accuracy, macro_f1, ...")] = None
    option: Annotated[list[str] | None, _task("Any other option of the task: NAME=VALUE.", "--option", "-o")] = None

    epochs: Annotated[int, _training("Passes over the training rows.")] = 3
    batch_size: Annotated[int, _training("Examples per optimiser step.")] = 32
    learning_rate: Annotated[float, _training("Peak rate.", "--learning-rate", "--lr")] = 1e-4
    schedule: Annotated[str, _training("linear, cosine, constant, or points step:factor as 1000:1,2000:0.1")] = "linear"
    warmup: Annotated[float, _training("Fraction of all steps, or a number of them.")] = 0.1
    weight_decay: Annotated[float, _training("Of matrices, decoupled.")] = 0.01
    ema_decay: Annotated[float | None, _training("Average the weights: 0.999; evaluated beside the raw.")] = None
    mixed_precision: Annotated[
        str | None, _training("bf16: products in half precision, for GPUs. \\[default: float32]")
    ] = None
    gradient_checkpointing: Annotated[
        bool, _training("Less memory, more time, same results.", "--gradient-checkpointing")
    ] = False
    tokenizer: Annotated[str | None, _option("Folder of one, for presets without their own.", panel="Model")] = None

    def source(self) -> DataSource:
        """Give where the examples are; raises ConfigError for contradicting options."""
        from thrice.source import DataSource

        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(DataSource)}
        return DataSource(**given | {"columns": split_names(self.columns)})

    def task_options(self) -> dict[str, Any]:
        """Give the options of the task: all that it has, and those that were asked for though it has none such."""
        names = ("text_column", "text_pair_column", "label_column", "head", "max_length", "long_texts")
        given = {name: getattr(self, name) for name in (*names, "multi_label", "class_weight")}
        usual = {name: getattr(RunOptions, name) for name in given}
        # What was not typed is left to the task, whose default may be another.
        chosen = {name: value for name, value in given.items() if value != usual[name]}
        return chosen | typed_options(self.task, self.option or ())

    def training(self) -> dict[str, Any]:
        """Give the fields of a TrainingConfig."""
        names = (
            "epochs",
            "batch_size",
            "learning_rate",
            "schedule",
            "warmup",
            "weight_decay",
            "ema_decay",
            "mixed_precision",
            "gradient_checkpointing",
        )
        return {name: getattr(self, name) for name in names}


# Their defaults differ: comparisons leave both off, for they treat a shared layer differently from its copies.
MaxGradNorm = Annotated[float, _training("Clip gradients to this norm; 0: never.")]
LayerwiseDecay = Annotated[float | None, _training("Rate factor per layer downwards; 1: none.")]


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command with every field of RunOptions as an option of its own, handed over as `options`."""
    fields = {field.name: field for field in dataclasses.fields(RunOptions)}
    hints = get_type_hints(RunOptions, include_extras=True)
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[name])
        for name, field in fields.items()
    ]
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "options"]

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        command(options=RunOptions(**{name: given.pop(name) for name in fields}), **given)

    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    arguments, others = keyword_only[:2], keyword_only[2:]
    wrapper.__signature__ = inspect.Signature([*arguments, *shared, *others])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in (*arguments, *shared, *others)}
    return wrapper


def split_names(columns: str | None) -> tuple[str, ...] | None:
    """Give the names in "text,label"."""
    return None if columns is None else tuple(name.strip() for name in columns.split(","))


def typed_options(task: str, said: Iterable[str]) -> dict[str, Any]:
    """Give the options of a task that were typed as NAME=VALUE; raises ConfigError for one that it does not have."""
    from thrice.registry import plugin
    from thrice.tasks.base import options_of

    own = options_of(plugin("tasks", task))
    chosen = {}
    for text in said:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in own:
            raise ConfigError(f"--option {text!r}: expected NAME=VALUE; {task} has {', '.join(own)}")
        chosen[name] = toml_value(value)
    return chosen


def toml_value(text: str) -> Any:
    """Give a typed value: a number, true or false, a list as TOML has them; everything else is text."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def cores() -> int:
    """Give the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(threads: int) -> None:
    """Let torch use that many CPU threads; raises ConfigError for fewer than one."""
    if not 1 <= threads <= 1024:
        raise ConfigError(f"--threads is {threads}, it must lie between 1 and 1024")
    import torch

    torch.set_num_threads(threads)
