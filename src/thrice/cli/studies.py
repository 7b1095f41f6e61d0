"""Commands on studies: run one, and show what came out."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from thrice.cli import screen
from thrice.cli.app import app, resumable
from thrice.cli.options import (
    MODEL_HELP,
    Json,
    LayerwiseDecay,
    MaxGradNorm,
    Restart,
    RunOptions,
    cores,
    takes_run_options,
)
from thrice.errors import ConfigError


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
        screen.err.print("\nThe same with your own file and checkpoint:", style="bold")
        screen.err.print(f"  {here}", markup=False, highlight=False, soft_wrap=True)


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
    screen.err.print(task.describe(), markup=False, highlight=False, soft_wrap=True)
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


def _run_study(study: Any, folder: Path, *, jobs: int | None, restart: bool, command: str, as_json: bool) -> None:
    from thrice.compare.runner import run_study
    from thrice.terminal import study_progress

    with resumable(), study_progress(study, screen.err) as callbacks:
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
    screen.out.print(terminal_table(summary, width=screen.out.width))
    screen.out.print(seed_table(summary, width=screen.out.width))
    for line in (verdict(summary), *notes(summary), *summary["study"].get("notes", ())):
        screen.out.print(line, markup=False, highlight=False)
    screen.out.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)


def _threads(asked: int | None, jobs: int, before: int | None) -> int:
    """Give the threads per cell: those asked for, those of the study that goes on, or the cores shared out."""
    return asked if asked is not None else before or max(1, cores() // max(1, jobs))


def _typed() -> str:
    return shlex.join(["thrice", *sys.argv[1:]])
