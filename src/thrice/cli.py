"""The command line: parses, calls, prints. Everything heavy is imported inside the command that needs it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from thrice.cli_options import (
    MODEL_HELP,
    Columns,
    Format,
    Json,
    LayerwiseDecay,
    MaxGradNorm,
    Model,
    OutFolder,
    Restart,
    RunOptions,
    cores,
    set_threads,
    split_names,
    takes_run_options,
)
from thrice.errors import ConfigError, Interrupted, ThriceError, nearest
from thrice.launcher import is_main, launched

app = typer.Typer(
    name="thrice",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console()
err = Console(stderr=True)


def main() -> None:
    """Run the command line; errors of thrice are one or two lines and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # answers and tables are Unicode wherever they go
    try:
        app()
    except ThriceError as error:
        if _speaks():
            err.print("[bold red]error:[/] ", end="")
            err.print(str(error), markup=False, highlight=False)
        sys.exit(2)
    except BrokenPipeError:  # whoever read the answers has seen enough
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - the interpreter flushes it on its way out
        sys.exit(1)
    except OSError as error:
        err.print("[bold red]error:[/] ", end="")
        err.print(
            f"{error.filename}: {error.strerror}" if error.filename else str(error), markup=False, highlight=False
        )
        sys.exit(2)
    except Exception:
        if _speaks():
            raise
        sys.exit(2)


def _speaks() -> bool:
    """Whether this process says what went wrong: of several that train together, the first one to fail does."""
    if launched() == 1:
        return True
    from thrice.training.distributed import first_to_fail

    return first_to_fail()


@contextlib.contextmanager
def _resumable() -> Iterator[None]:
    """Say on Ctrl-C or SIGTERM what to do next; typer would leave without a word."""
    from thrice.training.interrupt import orderly_termination

    try:
        with orderly_termination():
            yield
    except KeyboardInterrupt as stop:
        said, code = (str(stop), 128 + stop.signum) if isinstance(stop, Interrupted) else ("stopped", 130)
        way_on = "the same command (without --restart) goes on from the last save"
        way_on += "" if "saved" in said else ", or begins anew where there is none"
        if is_main():
            err.print(f"{said}; {way_on}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(code) from None


def _version(wanted: bool) -> None:
    if wanted:
        import thrice

        print(thrice.__version__)
        raise typer.Exit


@app.callback()
def thrice(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Train, un-share and compare small text encoders: choose by measurement, not by reputation.

    Begin with [bold]thrice demo[/]. Patterns after + name what is shared: all, none, attention, ffn, groups=K, cycle=K.
    """


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder of the study.")] = Path("demo"),
    jobs: Annotated[int | None, typer.Option(help="Cells at once \\[default: one per core, 3 at most]")] = None,
    restart: Restart = False,
    as_json: Json = False,
) -> None:
    """The first essay on real text: one ALBERT, its layer shared, half shared and un-shared, three seeds each."""
    from thrice.demo import prepare

    study, command = prepare(folder)
    _run_study(study, folder, jobs=jobs, restart=restart, command=command, as_json=as_json)
    if not as_json:
        here = command if shutil.which("thrice") else f"{sys.argv[0]}{command.removeprefix('thrice')}"
        err.print("\nThe same with your own file and checkpoint:", style="bold")
        err.print(f"  {here}", markup=False, highlight=False, soft_wrap=True)


@app.command()
@takes_run_options
def compare(
    models: Annotated[list[str], typer.Argument(help=f"{MODEL_HELP}; or tfidf, the control.", show_default=False)],
    folder: Annotated[Path, typer.Option("--out", help="Folder of the study; a second start goes on.")],
    options: RunOptions,
    max_grad_norm: MaxGradNorm = 0.0,
    layerwise_decay: LayerwiseDecay = None,
    seeds: Annotated[int, typer.Option(help="Seeds per arm: 0, 1, ...", rich_help_panel="Training")] = 3,
    jobs: Annotated[int, typer.Option(help="Cells at once, each a process.", rich_help_panel="Running")] = 1,
    threads: Annotated[
        int | None, typer.Option(help="Threads per cell \\[default: cores / jobs]", rich_help_panel="Running")
    ] = None,
    save_models: Annotated[
        bool, typer.Option("--save-models", help="Keep each cell's best model.", rich_help_panel="Running")
    ] = False,
    restart: Restart = False,
    as_json: Json = False,
) -> None:
    """Fine-tune several models under the same conditions and say which is better, by how much and at what cost.

    Same examples, order, head and budget for every arm; paired seeds. Clipping and layer-wise decay are off unless
    asked for: they treat a shared layer differently from its copies. Kill it when you like; the same command goes on.
    """
    from thrice.compare.grid import Study, threads_of
    from thrice.finetune import check_metric, read_splits
    from thrice.training import TrainingConfig

    if seeds < 1:
        raise ConfigError(f"--seeds is {seeds}, it must be at least 1")
    source, asked = options.source(), options.task_options()
    task, _ = read_splits(options.task, source, asked)
    err.print(task.describe(), markup=False, highlight=False, soft_wrap=True)
    decay = 1.0 if layerwise_decay is None else layerwise_decay
    study = Study(
        arms=tuple(models),
        seeds=tuple(range(seeds)),
        task=options.task,
        metric=check_metric(task, options.metric),
        options=asked,
        source=source,
        training=TrainingConfig(**options.training(), max_grad_norm=max_grad_norm, layerwise_decay=decay),
        tokenizer=options.tokenizer,
        threads=_threads(threads, jobs, None if restart else threads_of(folder)),
        save_models=save_models,
    )
    _run_study(study, folder, jobs=jobs, restart=restart, command=_typed(), as_json=as_json)


@app.command()
def report(
    study: Annotated[Path, typer.Argument(help="Folder of a study, finished or not.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Print a study's tables and write its report.html, one page that opens offline."""
    _show_study(study, as_json=as_json)


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
    with _resumable():
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
            say=None if as_json else lambda line: err.print(line, markup=False, highlight=False, soft_wrap=True),
        )
    if as_json and is_main():
        print(json.dumps(result, ensure_ascii=False))
    leave()


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="Folder written by thrice finetune.", show_default=False)],
    texts: Annotated[str, typer.Argument(help="jsonl, csv, tsv or parquet with the text column.", show_default=False)],
    target: Annotated[
        Path | None, typer.Option("--out", help="jsonl, csv or tsv \\[default: jsonl to the screen]")
    ] = None,
    columns: Columns = None,
    format: Format = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of a batch.")] = 4096,
) -> None:
    """Answer every row of a file: its own columns are kept, the answer and all probabilities are added."""
    from rich.progress import Progress

    from thrice.predict import predict_file

    # Answers go to the screen as they come, where a bar would stand in their way.
    hidden = not err.is_terminal or (target is None and out.is_terminal)
    with Progress(console=err, transient=True, disable=hidden, redirect_stdout=False) as bar:
        line = bar.add_task("predicting", total=None)
        predict_file(
            model,
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
        inspection(found, out)


@app.command("list")
def list_names(
    kind: Annotated[
        str, typer.Argument(help="tasks, objectives, families, presets, patterns or zoo", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Print the names that thrice knows, with a line about each."""
    from thrice.terminal import LISTS

    if kind not in LISTS:
        raise ConfigError(f"nothing called {kind!r} to list; {nearest(kind, LISTS)}")
    names = LISTS[kind]()
    if as_json:
        print(json.dumps(sorted(names), ensure_ascii=False))
        return
    if not names:
        err.print(f"no {kind} so far")
    for name, sentence in names.items():
        out.print(f"[bold]{name:20}[/] ", end="")
        out.print(sentence, markup=False, highlight=False)


def _transform(verb: str, model: str, folder: Path, *, pattern: str, method: str | None, as_json: bool) -> None:
    from thrice.terminal import transformed, write_transformed

    result = write_transformed(verb, model, folder, pattern=pattern, method=method)
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        transformed(result, out)


def _run_study(study: Any, folder: Path, *, jobs: int | None, restart: bool, command: str, as_json: bool) -> None:
    from thrice.compare.runner import run_study
    from thrice.terminal import study_progress

    with _resumable(), study_progress(study, err) as callbacks:
        jobs = min(3, cores()) if jobs is None else jobs
        run_study(study, folder, jobs=jobs, restart=restart, command=command, **callbacks)
    _show_study(folder, as_json=as_json)


def _show_study(folder: Path, *, as_json: bool) -> None:
    from thrice.compare.results import read_rows, summarise
    from thrice.report.page import write_report
    from thrice.report.tables import seed_table, terminal_table
    from thrice.report.verdict import notes, verdict

    summary = summarise(folder)
    page = write_report(summary, read_rows(folder), folder / "report.html")
    if as_json:
        print(json.dumps(summary, ensure_ascii=False))
        return
    out.print(terminal_table(summary, width=out.width))
    out.print(seed_table(summary, width=out.width))
    for line in (verdict(summary), *notes(summary), *summary["study"].get("notes", ())):
        out.print(line, markup=False, highlight=False)
    out.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)


def _threads(asked: int | None, jobs: int, before: int | None) -> int:
    """Give the threads per cell: those asked for, those of the study that goes on, or the cores shared out."""
    return asked if asked is not None else before or max(1, cores() // max(1, jobs))


def _typed() -> str:
    return shlex.join(["thrice", *sys.argv[1:]])
