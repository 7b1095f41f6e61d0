"""A fine-tuned folder at work: load it, answer the rows of a file."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from thrice.checkpoints import load, load_stock, read_sidecar
from thrice.data.streaming import stream_rows
from thrice.data.tokenizer import Tokenizer
from thrice.errors import CheckpointError, DataError
from thrice.files import clear_partials, written_beside
from thrice.registry import plugin
from thrice.schema import misfits
from thrice.tasks.base import TASK_HEAD, Prediction, Task, TaskModel


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """A fine-tuned model with the tokenizer it was trained with."""

    model: TaskModel
    """In eval mode, on this machine's GPU where there is one."""
    tokenizer: Tokenizer
    """Its own."""

    def predict(
        self, texts: Sequence[Any], *, max_tokens: int = 4096, on_batch: Callable[[int], None] | None = None
    ) -> list[Prediction]:
        """Give one answer per text (or pair of texts), in order.

        max_tokens, on_batch: see `TaskModel.predict`. Raises DataError for texts of the wrong kind.
        """
        return self.answer(self.model.task.from_texts(texts), max_tokens=max_tokens, on_batch=on_batch)

    def answer(
        self, examples: Sequence[Any], *, max_tokens: int = 4096, on_batch: Callable[[int], None] | None = None
    ) -> list[Prediction]:
        """Give one answer per example of the task, in order."""
        data = self.model.task.encode(examples, self.tokenizer)
        return self.model.predict(data, max_tokens=max_tokens, on_batch=on_batch)


def load_model(folder: str | Path) -> FineTuned:
    """Read what `thrice finetune` wrote; raises CheckpointError where the folder was not fine-tuned by thrice."""
    if not Path(folder).is_dir():
        raise CheckpointError(f"{folder}: no such folder; name one that thrice finetune wrote")
    sidecar = read_sidecar(Path(folder)) or {}
    if sidecar.get("task") is None:
        raise CheckpointError(
            f"{folder} is no fine-tuned model of thrice: no thrice.json names its task; make one with thrice finetune"
        )
    task = _restored(Path(folder), sidecar)
    # A family of ours that was trained through its stock class is answered by that class too.
    encoder = load_stock(Path(folder)) if sidecar.get("packed") is False else load(str(folder))
    trained = dict(encoder.heads.items())
    model = TaskModel(encoder, task)
    for name, head in model.encoder.heads.items():
        if name not in trained:
            raise CheckpointError(f"{folder}: the task's {name} head is missing from the checkpoint")
        _fill(head, trained[name].state_dict(), place=f"{folder}: the {name} head")
    if model.head is not None:
        _fill(model.head, _own_head(Path(folder)), place=f"{Path(folder) / TASK_HEAD}")
    config = encoder.config
    words = Tokenizer.from_folder(folder, vocab_size=config.vocab_size, type_vocab_size=config.type_vocab_size)
    return FineTuned(model=model.eval().to(device()), tokenizer=words)


def device() -> torch.device:
    """Give this machine's GPU, else its CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _restored(folder: Path, sidecar: dict[str, Any]) -> Task:
    """Give the task that a folder's thrice.json describes; raises CheckpointError that lists what is wrong in it."""
    problems = misfits(sidecar, {"task": {"name": str, "settings": dict[str, Any]}})
    try:
        if not problems:
            kind, settings = plugin("tasks", sidecar["task"]["name"]), sidecar["task"]["settings"]
            problems = misfits(settings, kind, place="task.settings") if dataclasses.is_dataclass(kind) else []
        if not problems:
            task: Task = kind.restore(settings)
            return task
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problems = [f"task.settings: {type(error).__name__}: {error}"]
    raise CheckpointError(
        f"{folder / 'thrice.json'} is damaged: {'; '.join(problems[:8])}. - copy it again, or fine-tune again"
    )


def _own_head(folder: Path) -> dict[str, Tensor]:
    try:
        return load_file(folder / TASK_HEAD)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder / TASK_HEAD} cannot be read: {error}. - copy it again?") from error


def _fill(head: nn.Module, weights: dict[str, Tensor], *, place: str) -> None:
    """Copy weights into a head; raises CheckpointError where they are not those of the task in thrice.json."""
    ours, theirs = ({name: tuple(t.shape) for name, t in held.items()} for held in (head.state_dict(), weights))
    if ours != theirs:
        shown = ", ".join(
            f"{name} is {theirs.get(name, 'absent')}, the task wants {ours.get(name, 'none')}"
            for name in sorted({*ours, *theirs})
            if ours.get(name) != theirs.get(name)
        )
        raise CheckpointError(f"{place} is not the one of the task in thrice.json: {shown}. - fine-tune again?")
    head.load_state_dict(weights)


def predict_file(
    model: Path | FineTuned,
    texts: str,
    target: Path | None,
    *,
    columns: tuple[str, ...] | None = None,
    format: str | None = None,
    max_tokens: int = 4096,
    on_total: Callable[[int], None] | None = None,
    on_batch: Callable[[int], None] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> list[str]:
    """Answer every row of a file with a fine-tuned model, in the file's order, its own columns kept.

    model: a folder that thrice finetune wrote, or what `load_model` gave. target: .jsonl, .csv or .tsv to write; where
    None, lines of jsonl are given to `on_line` as they come, or without it given back. Answers stand in columns of
    their own, "prediction" and for classes "probabilities" (what is no text is JSON text in csv and tsv).
    The whole file is checked before the first answer; then it is read, answered and written a block of rows at a time
    (see `data.streaming`), so that memory does not grow with the file. The target appears when it is complete.
    Raises DataError where a column is missing, is called like an answer, or the target's kind is unknown; and, before
    anything is predicted, where the target cannot be written.
    """
    kind = "jsonl" if target is None else _check_target(target)
    if target is not None and target.exists() and Path(texts).exists() and os.path.samefile(target, texts):
        raise DataError(f"{target} is the file that is read; expected another name for the answers")
    tuned = model if isinstance(model, FineTuned) else load_model(model)
    task = tuned.model.task
    stream = stream_rows(texts, columns=columns, format=format, check=partial(task.read, gold=False))
    taken = sorted(set(task.answers) & set(stream.columns))
    if taken:
        raise DataError(
            f"{texts} has a column {', '.join(taken)} already, which the answer would hide; rename it, or, in a file "
            "whose columns have no names of their own, give it another with --columns"
        )
    if on_total is not None:
        on_total(stream.num_rows)

    def answered() -> Iterator[Row]:
        for block in stream.blocks():
            answers = tuned.answer(task.read(block, gold=False), max_tokens=max_tokens, on_batch=on_batch)
            for row, answer in zip(block.rows, answers, strict=True):
                yield {column: row.get(column) for column in stream.columns} | answer

    lines: list[str] = []
    if target is None:
        for row in answered():
            (on_line or lines.append)(_json_line(row))
        return lines
    with written_beside(target) as beside, open(beside, "wb") as file:
        header = {name: name for name in (*stream.columns, *task.answers)}
        for row in answered() if kind == "jsonl" else itertools.chain([header], answered()):
            file.write((FORMS[kind](row) + "\n").encode())
    return []


def _check_target(target: Path) -> str:
    """Give the kind of a file to write; raises DataError where it has none or cannot be written, and makes nothing."""
    kind = target.suffix.removeprefix(".")
    if kind not in FORMS:
        raise DataError(f"{target}: expected a file name ending in .jsonl, .csv or .tsv")
    if target.is_dir():
        raise DataError(f"{target} is a folder, expected the name of a file to write")
    room = next(place for place in target.absolute().parents if place.exists())
    if not room.is_dir():
        raise DataError(f"{target} cannot be written: {room} is a file, not a folder")
    if not os.access(room, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise DataError(f"{target} cannot be written: no permission to write in {room}")
    clear_partials(target.parent, target.name)
    return kind


Row = dict[str, Any]


def _json_line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False)


def _csv_line(row: Row) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_cell(value) for value in row.values()])
    return text.getvalue().removesuffix("\n")


def _tsv_line(row: Row) -> str:
    """Give a line of tsv; it has no quoting, so a tab or line break inside a cell becomes a space."""
    return "\t".join(re.sub(r"[\t\r\n]+", " ", _cell(value)) for value in row.values())


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


FORMS: dict[str, Callable[[Row], str]] = {"csv": _csv_line, "jsonl": _json_line, "tsv": _tsv_line}
"""How a row is written, by the ending of the target's name."""
