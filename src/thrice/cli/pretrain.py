"""Commands of pre-training: prepare text, train a vocabulary on it, pre-train a model by a recipe."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from thrice.cli import screen
from thrice.cli.app import app, resumable
from thrice.cli.options import Address, EngineName, Json, Restart, set_threads
from thrice.launcher import is_main, refuse_several


def _option(help: str, *names: str, panel: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel)


@app.command()
def pretrain(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name (thrice list recipes) or its TOML file.", show_default=False)
    ],
    folder: Annotated[Path, typer.Option("--out", help="Stock folder of the model; a second start goes on.")],
    train: Annotated[str | None, _option("Corpus to learn from, made by thrice corpus.", panel="Recipe")] = None,
    held_out: Annotated[str | None, _option("Corpus to evaluate on.", panel="Recipe")] = None,
    tokenizer: Annotated[str | None, _option("Folder of the vocabulary.", panel="Recipe")] = None,
    start: Annotated[
        str | None, _option("Begin with a checkpoint's weights and heads; its shape counts.", "--from", panel="Recipe")
    ] = None,
    seed: Annotated[int | None, _option("Draws weights, order, masks, dropout.", panel="Recipe")] = None,
    change: Annotated[
        list[str] | None,
        _option("Any key: budget.tokens=5_000_000, optimizer.learning_rate=1e-3", "--set", panel="Recipe"),
    ] = None,
    threads: Annotated[
        int | None, _option("CPU threads; a run repeats bit for bit at one count.", panel="Running")
    ] = None,
    track: Annotated[
        list[str] | None, _option("tensorboard, wandb or trackio, told of the curves at every save.", panel="Running")
    ] = None,
    project: Annotated[str, _option("Under which trackers file them.", panel="Running")] = "thrice",
    restart: Restart = False,
    as_json: Json = False,
) -> None:
    """Pre-train a model by a recipe until its budget is spent; writes a stock folder with a card.

    First [bold]thrice corpus articles.txt --tokenizer zoo:albert-nano-zh --out corpus[/], then
    [bold]thrice pretrain albert-nano --train corpus --out model[/]. Stopped or killed, the same command goes on
    from the last save and ends with the same bits. A budget is tokens, steps, FLOPs or minutes.
    """
    from thrice.compare.study_file import settings
    from thrice.pretraining import pretrain as run
    from thrice.pretraining import read_recipe, recipe_of
    from thrice.training.distributed import leave

    if threads is not None:
        set_threads(threads)
    said = read_recipe(recipe)
    if any(setting.startswith("budget.") for setting in change or ()):
        said.pop("budget", None)  # what is typed takes its place: a budget has one unit
    if start is not None:  # shape and tokenizer of the recipe belong together
        said["model"] = {"from": start}
        said.pop("tokenizer", None)
    content = settings(said, change or (), such_as="budget.tokens=5_000_000")
    for name, value in (("train", train), ("held_out", held_out)):
        if value is not None and isinstance(content.setdefault("corpus", {}), dict):
            content["corpus"][name] = value
    content |= {key: value for key, value in (("tokenizer", tokenizer), ("seed", seed)) if value is not None}
    with resumable():
        result = run(
            recipe_of(content, name=recipe),
            folder,
            content=content,
            restart=restart,
            trackers=tuple(track or ()),
            project=project,
            say=None if as_json else lambda line: screen.err.print(line, markup=False, highlight=False, soft_wrap=True),
        )
    if as_json and is_main():
        print(json.dumps(result, ensure_ascii=False))
    leave()


Sources = Annotated[
    list[str],
    typer.Argument(help="Files (.txt, .jsonl, .parquet, .gz), globs, or hub sets NAME@SPLIT.", show_default=False),
]
Column = Annotated[str | None, typer.Option(help="Of the text, in jsonl, parquet and hub sets, if not obvious.")]


@app.command()
def corpus(
    sources: Sources,
    folder: Annotated[Path, typer.Option("--out", help="Folder of the corpus; a second start goes on.")],
    tokenizer: Annotated[str, typer.Option(help="Folder, hub id or zoo:NAME whose vocabulary is used.")],
    column: Column = None,
    min_tokens: Annotated[int, typer.Option(help="Shorter documents are left out and counted.")] = 8,
    processes: Annotated[
        int | None,
        _option(
            "That tokenise; the result does not depend on it. \\[default: 1; with ray, the cluster's CPUs]",
            panel="Running",
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Prepare text for pre-training: one paragraph a line, an empty line between documents.

    Exact copies of a document are left out and counted. Killed and started again, it keeps what is finished.
    With [bold]--engine ray[/], the machines of a cluster that share the folder tokenise.
    """
    from thrice.data.corpus import prepare_corpus
    from thrice.data.corpus_file import named_counts
    from thrice.pretraining import named_tokenizer

    refuse_several("thrice corpus", "say --processes instead")
    words = named_tokenizer(tokenizer)
    with resumable(), _reading() as progress:
        made = prepare_corpus(
            sources,
            words,
            folder,
            column=column,
            min_tokens=min_tokens,
            processes=processes,
            engine=engine,
            address=address,
            progress=progress,
        )
    facts = {**made.facts["counts"], "skipped": made.facts["skipped"], "shards": made.num_shards, "folder": str(folder)}
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    counts = ", ".join(f"{value:,} {name}" for name, value in made.facts["counts"].items())
    left = named_counts(made.facts["skipped"])
    _say(f"{folder}: {counts}" + (f"; left out: {left}" if left else ""))


@app.command()
def vocabulary(
    sources: Sources,
    folder: Annotated[Path, typer.Option("--out", help="New folder of the vocabulary.")],
    kind: Annotated[str, typer.Option(help="wordpiece (BERT) or unigram (ALBERT).")] = "wordpiece",
    size: Annotated[int, typer.Option(help="Tokens at most, special ones included.")] = 21_128,
    lowercase: Annotated[bool, typer.Option(help="Fold case and strip accents, as uncased BERT does.")] = True,
    column: Column = None,
    as_json: Json = False,
) -> None:
    """Train a vocabulary on text; thrice corpus, recipes and stock transformers take its folder as a tokenizer."""
    from thrice.data.vocabulary_training import train_vocabulary

    refuse_several("thrice vocabulary", "start it alone")
    with resumable(), _reading() as progress:
        made = train_vocabulary(
            sources, folder, kind=kind, vocab_size=size, lowercase=lowercase, column=column, progress=progress
        )
    if as_json:
        print(json.dumps({"folder": str(folder), "tokens": made.vocab_size, "fingerprint": made.fingerprint}))
        return
    fewer = "" if made.vocab_size >= size else f", fewer than {size:,}: the text gives no more"
    _say(f"{folder}: {made.vocab_size:,} tokens{fewer}; use it with --tokenizer {folder}")


@contextlib.contextmanager
def _reading() -> Iterator[Callable[[int, int], None]]:
    """Show how much of some files is read; yields the function to call with bytes read and bytes in all."""
    from rich.progress import Progress

    with Progress(console=screen.err, transient=True, disable=not screen.err.is_terminal) as bar:
        line = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(line, completed=done, total=total or None)


def _say(line: str) -> None:
    screen.out.print(line, markup=False, highlight=False, soft_wrap=True)
