"""Commands on studies: plan and run one, and show what came out."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thrice.cli import screen
from thrice.cli.app import app, resumable, typed
from thrice.cli.options import (
    MODEL_HELP,
    Address,
    EngineName,
    Json,
    LayerwiseDecay,
    MaxGradNorm,
    Restart,
    RunOptions,
    cores,
    set_threads,
    takes_run_options,
)
from thrice.errors import ConfigError

if TYPE_CHECKING:
    from thrice.compare.cells import Copies
    from thrice.compare.grid import Study
    from thrice.compare.runner import Engine


def _running(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Running")


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder of the study.")] = Path("demo"),
    jobs: Annotated[int | None, typer.Option(help="Cells at once \\[default: one per core, 3 at most]")] = None,
    restart: Restart = False,
    as_json: Json = False,
) -> None:
    """The first essay on real text: one ALBERT, its layer shared, half shared and un-shared, three seeds each."""
    from thrice.compare.runner import Engine
    from thrice.demo import prepare

    study, command = prepare(folder)
    engine = Engine(jobs=min(3, cores()) if jobs is None else jobs)
    _run_study(study, folder, engine=engine, restart=restart, command=command, as_json=as_json)
    if not as_json:
        here = command if shutil.which("thrice") else f"{sys.argv[0]}{command.removeprefix('thrice')}"
        screen.err.print("\nThe same with your own file and checkpoint:", style="bold")
        screen.err.print(f"  {here}", markup=False, highlight=False, soft_wrap=True)


@app.command()
@takes_run_options
def compare(
    models: Annotated[
        list[str],
        typer.Argument(help=f"STUDY.toml, or models: {MODEL_HELP}; or tfidf, the control.", show_default=False),
    ],
    options: RunOptions,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the study; a second start goes on. \\[default: STUDY of STUDY.toml]"),
    ] = None,
    max_grad_norm: MaxGradNorm = 0.0,
    layerwise_decay: LayerwiseDecay = None,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds per arm: 0, 1, ... \\[default: 3]", rich_help_panel="Training")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="Tried by every arm, the best on dev counts: learning_rate=1e-4,3e-4", rich_help_panel="Training"
        ),
    ] = None,
    changes: Annotated[
        list[str] | None, _running("Change STUDY.toml: training.epochs=5, tasks.NAME.data=b.csv", "--set")
    ] = None,
    dry_run: Annotated[bool, _running("Print the plan and stop.", "--dry-run")] = False,
    minutes: Annotated[
        float | None, _running("Budget of the cells: save and stop then; a second start goes on.")
    ] = None,
    jobs: Annotated[int, _running("Cells at once, each a process.")] = 1,
    threads: Annotated[int | None, _running("Threads per cell \\[default: cores / jobs]")] = None,
    engine: EngineName = "local",
    address: Address = None,
    gpus: Annotated[float, _running("GPUs that Ray reserves for a cell.")] = 0,
    store: Annotated[str | None, _running("URL where finished cells are kept a second time: s3://...")] = None,
    track: Annotated[list[str] | None, _running("tensorboard, wandb or trackio, told of every finished cell.")] = None,
    project: Annotated[str, _running("Under which trackers file them.")] = "thrice",
    save_models: Annotated[bool, _running("Keep each cell's best model.", "--save-models")] = False,
    restart: Restart = False,
    as_json: Json = False,
) -> None:
    """Fine-tune several models under the same conditions and say which is better, by how much and at what cost.

    Same examples, order, head and budget for every arm; paired seeds. Clipping and layer-wise decay are off unless
    asked for: they treat a shared layer differently from its copies. Kill it when you like; the same command goes on.
    """
    from thrice.compare.cells import Copies
    from thrice.compare.grid import threads_of
    from thrice.compare.runner import Engine
    from thrice.compare.study_file import read_study_file, settings, study_of

    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds is {seeds}, it must be at least 1")
    where = Engine(kind=engine, jobs=jobs, address=address, gpus=gpus)
    extra = {"max_grad_norm": max_grad_norm, "layerwise_decay": 1.0 if layerwise_decay is None else layerwise_decay}
    if any(name.lower().endswith(".toml") for name in models):
        if len(models) > 1:
            raise ConfigError(f"one study file and nothing beside it, got {' '.join(models)}")
        path = Path(models[0])
        _refuse_beside_file(path, options, {**extra, "grid": grid})
        value, name, folder = read_study_file(path), str(path), folder or Path(path.stem)
    else:
        if folder is None:
            raise ConfigError("name the folder of the study: --out study")
        value, name = _as_file(models, options, extra, grid or []), "study"
    threads_before = None if restart else threads_of(folder)
    value = settings(value, changes or [])
    given = {"seeds": seeds, "threads": threads, "save_models": save_models or None}
    value |= {key: entry for key, entry in given.items() if entry is not None}
    value.setdefault("threads", threads_before or max(1, cores() // jobs))
    study = study_of(value, name=name)
    minutes = value.get("budget_minutes") if minutes is None else minutes
    copies = Copies(store=store, trackers=tuple(track or ()), project=project)
    for line in _described(study):
        screen.err.print(line, markup=False, highlight=False, soft_wrap=True)
    if dry_run:
        _show_plan(study, folder, where, restart=restart, as_json=as_json)
        return
    _run_study(
        study,
        folder,
        engine=where,
        restart=restart,
        command=typed(),
        as_json=as_json,
        copies=copies,
        minutes=minutes,
        plans=True,
    )


@app.command()
def report(
    study: Annotated[Path, typer.Argument(help="Folder of a study, finished or not.", show_default=False)],
    charts: Annotated[bool, typer.Option("--charts", help="Write every picture as PNG and SVG too.")] = False,
    as_json: Json = False,
) -> None:
    """Print a study's tables; write report.html, a page that opens offline, report.md, rows.csv and rows.parquet."""
    _show_study(study, as_json=as_json, charts=charts)


@app.command()
def cost(
    models: Annotated[list[str], typer.Argument(help=MODEL_HELP, show_default=False)],
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of the long text \\[default: 128, or what all models take]")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads \\[default: all cores]")] = None,
    timing: Annotated[bool, typer.Option("--timing/--no-timing", help="Measure times and memory too.")] = True,
    as_json: Json = False,
) -> None:
    """Say what models cost: parameters, file, operations, and measured in turns latency, speed and memory.

    No data is needed: texts are random token ids, the head has two classes. Batches of training have 32 texts.
    """
    from thrice.cli.cost_table import print_costs
    from thrice.compare.cost import model_costs

    set_threads(cores() if threads is None else threads)
    with screen.err.status("measuring every model in turn, about half a minute each"):
        found = model_costs(models, max_length=max_length, timing=timing)
    if not as_json:
        print_costs(found, screen.out)
        return
    shared = {"threads": found["threads"], "method": found["method"]}
    control = found["control"] or {}
    cards = [
        {"model": name, **costs, "control": control if control.get("arm") == name else None, **shared}
        for name, costs in found["arms"].items()
    ]
    print(json.dumps(cards, ensure_ascii=False))


@app.command()
def advise(
    study: Annotated[Path, typer.Argument(help="Folder of a study.", show_default=False)],
    max_latency_ms: Annotated[float | None, typer.Option(help="Most time for one long text, median.")] = None,
    max_size_mb: Annotated[float | None, typer.Option(help="Largest file; 1 MB is a million bytes.")] = None,
    max_memory_mb: Annotated[float | None, typer.Option(help="Most memory of a training step.")] = None,
    min_score: Annotated[float | None, typer.Option(help="Lowest score; above 1: per cent.")] = None,
    task: Annotated[str | None, typer.Option(help="The task that decides, of several.")] = None,
    as_json: Json = False,
) -> None:
    """Say which arm of a study to take within your limits, which comes second, and why."""
    from thrice.compare.advise import advise as advice
    from thrice.compare.summary import summarise
    from thrice.terminal import advised

    limits = {"max_latency_ms": max_latency_ms, "max_size_mb": max_size_mb, "max_memory_mb": max_memory_mb}
    found = advice(summarise(study), task=task, min_score=min_score, **limits)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        advised(found, screen.out)


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="A study, or a folder that finetune wrote.", show_default=False)],
    repo: Annotated[str, typer.Argument(help="OWNER/NAME on the model hub.", show_default=False)],
    public: Annotated[bool, typer.Option("--public", help="Let everybody read it.")] = False,
) -> None:
    """Put a study's report or a trained model on the hub, with a card; the token is the hub's own, or HF_TOKEN."""
    from thrice.hub import push as upload

    screen.out.print(upload(folder, repo, private=not public), markup=False, highlight=False, soft_wrap=True)


def _as_file(models: list[str], options: RunOptions, extra: dict[str, Any], grid: list[str]) -> dict[str, Any]:
    """Give what a study's TOML file would say that asks for the same."""
    source = options.source()
    axes = [_grid_axis(text) for text in grid]
    points = dict(axes)
    if len(points) < len(axes):
        raise ConfigError("--grid names a field twice; give all its values at once: --grid epochs=1,2")
    arms = {model: {"model": model, "grid": points} if points and model != "tfidf" else model for model in models}
    if len(arms) < len(models):
        raise ConfigError(f"arms named twice: {', '.join(sorted({m for m in models if models.count(m) > 1}))}")
    task = {"task": options.task, "metric": options.metric, **options.task_options()}
    columns = None if source.columns is None else list(source.columns)
    data = {"data": source.data, "train": source.train, "dev": source.dev, "test": source.test, "columns": columns}
    task |= data | {"format": source.format, "split_seed": source.split_seed, "shots": source.shots}
    given = {key: entry for key, entry in task.items() if entry is not None}
    tokenizer = {} if options.tokenizer is None else {"tokenizer": options.tokenizer}
    return {"arms": arms, "tasks": {options.task: given}, "training": options.training() | extra, **tokenizer}


def _grid_axis(text: str) -> tuple[str, list[Any]]:
    """Give the training field and its values of "learning_rate=1e-4,3e-4"."""
    import tomllib

    name, _, values = text.partition("=")
    try:
        found = tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--grid {text!r}: expected FIELD=VALUE,VALUE, such as learning_rate=1e-4,3e-4") from error
    field = name.strip().replace("-", "_")
    return {"lr": "learning_rate"}.get(field, field), found  # as the option is spelt


def _refuse_beside_file(path: Path, options: RunOptions, extra: dict[str, Any]) -> None:
    """Raise ConfigError for options that say what the study's file says: what holds would be anybody's guess."""
    usual = {**vars(RunOptions()), "max_grad_norm": 0.0, "layerwise_decay": 1.0, "grid": None}
    given = [name for name, value in {**vars(options), **extra}.items() if value != usual[name]]
    if given:
        shown = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"{shown}: say it in {path}, or by --set, such as --set training.epochs=5")


def _described(study: Study) -> list[str]:
    from thrice.compare.data import read_task

    several = len(study.tasks) > 1
    return [f"{task.name}: " * several + read_task(task)[0].describe() for task in study.tasks]


def _show_plan(study: Study, folder: Path, engine: Engine, *, restart: bool, as_json: bool) -> None:
    from thrice.compare.facts import made_of, study_facts
    from thrice.compare.grid import check_study, refuse_foreign
    from thrice.compare.plan import plan_study

    refuse_foreign(folder)
    facts = study_facts(study, made_of(study), None)
    if not restart and (folder / "study.json").exists():
        check_study(folder, study, facts)
    plan = plan_study(study, folder, engine, restart=restart)
    if as_json:
        print(json.dumps(plan.to_json(), ensure_ascii=False))
        return
    screen.out.print(plan.sentence(study), markup=False, highlight=False, soft_wrap=True)
    for cell in study.cells:
        screen.out.print(f"  {cell}", markup=False, highlight=False, soft_wrap=True)


def _run_study(
    study: Study,
    folder: Path,
    *,
    engine: Engine,
    restart: bool,
    command: str,
    as_json: bool,
    copies: Copies | None = None,
    minutes: float | None = None,
    plans: bool = False,
) -> None:
    from thrice.compare.plan import plan_study
    from thrice.compare.runner import run_study
    from thrice.terminal import study_progress

    def plan() -> None:
        found = plan_study(study, folder, engine, restart=restart)
        if found.missing:
            screen.err.print(found.sentence(study), markup=False, highlight=False, soft_wrap=True)

    with resumable(), study_progress(study, screen.err) as callbacks:
        finished = run_study(
            study,
            folder,
            engine=engine,
            restart=restart,
            command=command,
            copies=copies,
            minutes=minutes,
            cost=True,
            on_plan=plan if plans else None,
            **callbacks,
        )
    if not finished:
        screen.err.print(f"the budget of {minutes:g} minutes is spent; the same command goes on", markup=False)
    _show_study(folder, as_json=as_json)


def _show_study(folder: Path, *, as_json: bool, charts: bool = False) -> None:
    from thrice.compare.results import read_rows
    from thrice.compare.summary import summarise
    from thrice.report.folder import write_all
    from thrice.report.terminal import terminal_report

    summary = summarise(folder)
    written = write_all(summary, read_rows(folder), folder, pictures=charts)
    if as_json:
        print(json.dumps(summary, ensure_ascii=False))
        return
    terminal_report(summary, screen.out)
    for name, path in written.items():
        screen.out.print(f"{name}: {path}", markup=False, highlight=False, soft_wrap=True)
