"""The command on few examples: models by prompts, by plain fine-tuning and without training, and their table."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from thrice.cli import screen
from thrice.cli.app import app, resumable, typed
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


def _option(help: str, *names: str, panel: str = "Few-shot") -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel)


_running = functools.partial(_option, panel="Running")


@app.command()
@takes_run_options
def fewshot(
    models: Annotated[list[str], typer.Argument(help=f"Models: {MODEL_HELP}", show_default=False)],
    options: RunOptions,
    folder: Annotated[Path, typer.Option("--out", help="Folder of the study; a second start goes on.")],
    pattern: Annotated[
        list[str] | None, _option("A text with {text} and {mask}; of several, scores are averaged.")
    ] = None,
    verbalizer: Annotated[
        str | None, _option("class=word|word,class=word \\[default: the names of the classes]")
    ] = None,
    per_class: Annotated[str, _option("Training examples per class: 8,16", "--per-class", "-k")] = "8,16",
    splits: Annotated[int, _option("Samples of each size, the same ones for all models and methods.")] = 3,
    methods: Annotated[str, _option("prompt, plain (a new classifier), zero-shot.")] = "prompt,plain,zero-shot",
    seeds: Annotated[int, _option("Seeds per sample.")] = 1,
    max_grad_norm: MaxGradNorm = 1.0,
    layerwise_decay: LayerwiseDecay = None,
    jobs: Annotated[int, _running("Cells at once, each a process.")] = 1,
    threads: Annotated[int | None, _running("Threads per cell \\[default: cores / jobs]")] = None,
    restart: Restart = False,
    as_json: Json = False,
) -> None:
    """Learn from a few examples per class: prompts against plain fine-tuning and no training at all.

    Prompts use the head a checkpoint was pre-trained with: masked-language, or ELECTRA's replaced-token head. Training
    options hold for both; a few examples want many epochs and small batches: --epochs 20 --batch-size 8.
    """
    from thrice.compare.cost import model_costs
    from thrice.compare.fewshot import fewshot_study, fewshot_table
    from thrice.compare.grid import threads_of
    from thrice.compare.runner import Engine, run_study
    from thrice.terminal import fewshot_result, study_progress
    from thrice.training import TrainingConfig

    if options.task != RunOptions.task:
        raise ConfigError(f"--task {options.task}: the methods of fewshot are its tasks; say --methods")
    threads_before = None if restart else threads_of(folder)
    extra: dict[str, Any] = {
        "max_grad_norm": max_grad_norm,
        "layerwise_decay": 1.0 if layerwise_decay is None else layerwise_decay,
    }
    asked = dataclasses.replace(options, task="fewshot").task_options()
    asked |= {name: given for name, given in (("pattern", pattern), ("verbalizer", verbalizer)) if given is not None}
    study = fewshot_study(
        models,
        options.source(),
        options=asked,
        shots=_numbers(per_class),
        training=TrainingConfig(**options.training(), **extra),
        methods=[name.strip() for name in methods.split(",") if name.strip()],
        splits=splits,
        seeds=seeds,
        metric=options.metric or "accuracy",
        tokenizer=options.tokenizer,
        threads=threads or threads_before or max(1, cores() // jobs),
    )
    with resumable(), study_progress(study, screen.err) as callbacks:
        run_study(
            study,
            folder,
            engine=Engine(jobs=jobs),
            restart=restart,
            command=typed(),
            minutes=None,
            cost=False,
            copies=None,
            **callbacks,
        )
    found = fewshot_table(folder) | {"cost": model_costs(models, timing=False)["arms"]}
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        fewshot_result(found, screen.out)


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"--per-class {text!r}: expected numbers of examples, such as 8,16") from None
