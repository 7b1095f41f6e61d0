"""The options that several commands share: one name, one help text, one panel each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODEL_HELP = "A folder, a hub id, zoo:NAME or preset:NAME, then perhaps +PATTERN: albert/albert-base-v2+none"

Model = Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False)]
OutFolder = Annotated[Path, typer.Argument(help="New folder to write.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of tables.")]
Restart = Annotated[bool, typer.Option("--restart", help="Discard what the output folder holds and begin anew.")]

DATA = "Data"
Data = Annotated[
    str | None, typer.Option(help="One file or hub data set; split 80/10/10 by hash.", rich_help_panel=DATA)
]
Train = Annotated[
    str | None, typer.Option(help="Training rows: jsonl, csv, tsv, parquet, also .gz.", rich_help_panel=DATA)
]
Dev = Annotated[str | None, typer.Option(help="Rows that choose the best epoch.", rich_help_panel=DATA)]
Test = Annotated[str | None, typer.Option(help="Rows scored once, at the best dev epoch.", rich_help_panel=DATA)]
Columns = Annotated[
    str | None, typer.Option(help="Column names of files without a header row: text,label", rich_help_panel=DATA)
]
Format = Annotated[
    str | None, typer.Option(help="jsonl, csv, tsv or parquet, where the name does not tell.", rich_help_panel=DATA)
]
SplitSeed = Annotated[int, typer.Option(help="Seeds the hash that splits --data.", rich_help_panel=DATA)]

TASK = "Task"
TaskName = Annotated[str, typer.Option("--task", help="See: thrice list tasks", rich_help_panel=TASK)]
TextColumn = Annotated[str | None, typer.Option(help="Column of the text, if not obvious.", rich_help_panel=TASK)]
PairColumn = Annotated[
    str | None, typer.Option("--text-pair-column", help="Column of the second text of a pair.", rich_help_panel=TASK)
]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the label, if not obvious.", rich_help_panel=TASK)]
Head = Annotated[
    str, typer.Option(help="stock: the family's classifier; first-token: one linear layer.", rich_help_panel=TASK)
]
MaxLength = Annotated[int, typer.Option(help="Tokens of a sequence, special ones included.", rich_help_panel=TASK)]
LongTexts = Annotated[
    str, typer.Option(help="Longer texts: head, head+tail, or chunks (the whole text).", rich_help_panel=TASK)
]
MultiLabel = Annotated[bool, typer.Option("--multi-label", help="Several labels per text.", rich_help_panel=TASK)]
ClassWeight = Annotated[str | None, typer.Option(help="balanced, or name=weight,name=weight", rich_help_panel=TASK)]
Metric = Annotated[
    str | None, typer.Option(help="Chooses the best epoch: accuracy, macro_f1, ...", rich_help_panel=TASK)
]

TRAINING = "Training"
Epochs = Annotated[int, typer.Option(help="Passes over the training rows.", rich_help_panel=TRAINING)]
BatchSize = Annotated[int, typer.Option(help="Examples per optimiser step.", rich_help_panel=TRAINING)]
LearningRate = Annotated[float, typer.Option("--learning-rate", "--lr", help="Peak rate.", rich_help_panel=TRAINING)]
Schedule = Annotated[
    str,
    typer.Option(help="linear, cosine, constant, or points step:factor as 1000:1,2000:0.1", rich_help_panel=TRAINING),
]
Warmup = Annotated[float, typer.Option(help="Fraction of all steps, or a number of them.", rich_help_panel=TRAINING)]
WeightDecay = Annotated[float, typer.Option(help="Of matrices, decoupled.", rich_help_panel=TRAINING)]
MaxGradNorm = Annotated[float, typer.Option(help="Clip gradients to this norm; 0: never.", rich_help_panel=TRAINING)]
LayerwiseDecay = Annotated[
    float | None,
    typer.Option(
        help="Rate factor per layer downwards [default: 0.8 or 0.9 for ELECTRA, else 1]", rich_help_panel=TRAINING
    ),
]
Seed = Annotated[int, typer.Option(help="Draws head, order and dropout.", rich_help_panel=TRAINING)]
Tokenizer = Annotated[
    str | None, typer.Option(help="Folder of a tokenizer, for presets without one.", rich_help_panel="Model")
]
