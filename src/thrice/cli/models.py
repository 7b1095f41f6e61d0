"""Commands on one model: fine-tune, predict, un-share, share, look in; and the names that thrice knows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thrice.cli import screen
from thrice.cli.app import app, resumable
from thrice.cli.options import (
    Columns,
    Format,
    Json,
    LayerwiseDecay,
    MaxGradNorm,
    Model,
    OutFolder,
    Restart,
    RunOptions,
    set_threads,
    split_names,
    takes_run_options,
    typed_options,
)
from thrice.errors import ConfigError, nearest
from thrice.launcher import is_main

if TYPE_CHECKING:
    from thrice.predict import FineTuned


@app.command()
@takes_run_options
def finetune(
    model: Model,
    folder: Annotated[Path, typer.Option("--out", help="Stock folder of the best epoch; a second start goes on.")],
    options: RunOptions,
    max_grad_norm: MaxGradNorm = 1.0,
    layerwise_decay: LayerwiseDecay = None,
    seed: Annotated[int, typer.Option(help="Draws head, order and dropout.", rich_help_panel="Training")] = 0,
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads; a result repeats bit for bit at one count.", rich_help_panel="Running"),
    ] = None,
    restart: Restart = False,
    as_json: Json = False,
) -> None:
    """Fine-tune one model and write a stock folder that transformers loads without thrice.

    Layer-wise decay is 0.8 for ELECTRA (0.9 from 24 layers) and off for the others, unless it is given.
    """
    from thrice.finetune import finetune as run
    from thrice.training.distributed import leave

    if threads is not None:
        set_threads(threads)
    extra = {"max_grad_norm": max_grad_norm, "layerwise_decay": layerwise_decay, "seed": seed}
    with resumable():
        result = run(
            model,
            folder,
            source=options.source(),
            task_name=options.task,
            options=options.task_options(),
            metric=options.metric,
            training=options.training() | extra,
            tokenizer=options.tokenizer,
            restart=restart,
            say=None if as_json else lambda line: screen.err.print(line, markup=False, highlight=False, soft_wrap=True),
        )
    if as_json and is_main():
        print(json.dumps(result, ensure_ascii=False))
    leave()


@app.command()
def predict(
    model: Annotated[
        Path,
        typer.Argument(help="Folder written by thrice finetune; with --task any checkpoint.", show_default=False),
    ],
    texts: Annotated[str, typer.Argument(help="jsonl, csv, tsv or parquet with the text column.", show_default=False)],
    target: Annotated[
        Path | None, typer.Option("--out", help="jsonl, csv or tsv \\[default: jsonl to the screen]")
    ] = None,
    columns: Columns = None,
    format: Format = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of a batch.")] = 4096,
    task: Annotated[str | None, typer.Option(help="Answer without training (zero-shot): fewshot")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Of that task: pattern=..., verbalizer=...")
    ] = None,
) -> None:
    """Answer every row of a file: its own columns are kept, the answer and all probabilities are added."""
    from rich.progress import Progress

    from thrice.predict import predict_file

    # Answers go to the screen as they come, where a bar would stand in their way.
    hidden = not screen.err.is_terminal or (target is None and screen.out.is_terminal)
    with Progress(console=screen.err, transient=True, disable=hidden, redirect_stdout=False) as bar:
        line = bar.add_task("predicting", total=None)
        predict_file(
            model if task is None else _untuned(model, task, option or (), texts, split_names(columns), format),
            texts,
            target,
            columns=split_names(columns),
            format=format,
            max_tokens=max_tokens,
            on_total=lambda total: bar.update(line, total=total),
            on_batch=lambda done: bar.advance(line, done),
            on_line=print,
        )


@app.command()
def unshare(
    model: Model,
    folder: OutFolder,
    pattern: Annotated[str, typer.Option(help="What stays shared: none, attention, ffn, groups=K, cycle=K.")] = "none",
    as_json: Json = False,
) -> None:
    """Give every depth its own copy of the layer: writes a stock folder, proves equal outputs, says the cost."""
    _transform("unshare", model, folder, pattern=pattern, method=None, as_json=as_json)


@app.command()
def share(
    model: Model,
    folder: OutFolder,
    pattern: Annotated[str, typer.Option(help="What is shared: all, attention, ffn, groups=K, cycle=K.")] = "all",
    method: Annotated[str, typer.Option(help="mean of the layers that become one, or the first of them.")] = "mean",
    as_json: Json = False,
) -> None:
    """Make layers share one set of weights; writes a stock folder and prints the error that this introduces."""
    _transform("share", model, folder, pattern=pattern, method=method, as_json=as_json)


@app.command()
def inspect(
    model: Annotated[str, typer.Argument(help="A folder, a hub id, zoo:NAME or preset:NAME.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show a checkpoint's family, shape, sharing and heads, and what becomes of each of its tensors."""
    from thrice.checkpoints import inspect as look
    from thrice.terminal import inspection

    found = look(model)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        inspection(found, screen.out)


@app.command("list")
def list_names(
    kind: Annotated[
        str, typer.Argument(help="tasks, objectives, recipes, families, presets, patterns or zoo", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Print the names that thrice knows, with a line about each."""
    from thrice.terminal import LISTS

    if kind not in LISTS:
        raise ConfigError(f"nothing called {kind!r} to list; {nearest(kind, LISTS)} - there are {', '.join(LISTS)}")
    names = LISTS[kind]()
    if as_json:
        print(json.dumps(sorted(names), ensure_ascii=False))
        return
    if not names:
        screen.err.print(f"no {kind} so far")
    width = max((20, *map(len, names)))
    for name, sentence in names.items():
        screen.out.print(f"[bold]{name:{width}}[/] ", end="")
        screen.out.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _untuned(
    model: Path, task: str, said: Iterable[str], texts: str, columns: tuple[str, ...] | None, format: str | None
) -> FineTuned:
    """Give a checkpoint as it is, to answer by a task that needs no training; its columns are those of the texts."""
    from thrice.data.readers import read_table
    from thrice.finetune import build
    from thrice.predict import FineTuned, device
    from thrice.registry import plugin, plugins

    kind = plugin("tasks", task)
    if not kind.zero_shot:
        able = ", ".join(name for name, other in plugins("tasks").items() if other.zero_shot)
        raise ConfigError(f"--task {task} has weights that must be trained first; without training works: {able}")
    options = typed_options(task, said)
    built, words = build(str(model), kind.learn(read_table(texts, columns=columns, format=format), **options), seed=0)
    return FineTuned(model=built.eval().to(device()), tokenizer=words)


def _transform(verb: str, model: str, folder: Path, *, pattern: str, method: str | None, as_json: bool) -> None:
    from thrice.terminal import transformed, write_transformed

    result = write_transformed(verb, model, folder, pattern=pattern, method=method)
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        transformed(result, screen.out)
