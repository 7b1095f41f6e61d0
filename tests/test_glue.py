"""The real files of GLUE, read as they are published, with the columns named on the command line."""

from __future__ import annotations

from pathlib import Path

import contracts
import pytest
import torch

from thrice.checkpoints import load
from thrice.data.readers import read_table
from thrice.data.tokenizer import Tokenizer
from thrice.errors import DataError
from thrice.tasks.base import TaskModel
from thrice.tasks.classification import Classification, Example

COLA = ("source", "label", "mark", "sentence")
PAIRS = {"text_column": "#1 String", "text_pair_column": "#2 String", "label_column": "Quality"}


@pytest.mark.parametrize(
    ("task", "part", "rows", "columns", "options", "labels"),
    [
        ("MRPC", "dev.tsv", 408, None, PAIRS, ("0", "1")),
        ("MRPC", "train.tsv.gz", 3667, None, PAIRS, ("0", "1")),
        ("RTE", "dev.tsv", 277, None, {}, ("entailment", "not_entailment")),
        ("RTE", "train.tsv.gz", 2490, None, {}, ("entailment", "not_entailment")),
        ("QNLI", "dev.tsv.gz", 5463, None, {}, ("entailment", "not_entailment")),
        ("SST-2", "dev.tsv", 872, None, {}, ("0", "1")),
        ("WNLI", "dev.tsv", 71, None, {}, ("0", "1")),
        ("CoLA", "dev.tsv", 1043, COLA, {"label_column": "label", "text_column": "sentence"}, ("0", "1")),
        ("CoLA", "train.tsv.gz", 8551, COLA, {"label_column": "label", "text_column": "sentence"}, ("0", "1")),
    ],
)
def test_every_row_of_the_published_files_is_read(
    task: str, part: str, rows: int, columns: tuple[str, ...] | None, options: dict, labels: tuple, shared_data: Path
) -> None:
    table = read_table(shared_data / "glue_small" / task / part, columns=columns)
    assert len(table.rows) == rows
    learned = Classification.learn(table, **options)
    assert learned.labels == labels
    examples = learned.read(table)
    assert (examples[0].text_pair is None) == (task in ("CoLA", "SST-2"))
    answers = [{"prediction": labels[example.labels[0]]} for example in examples]
    scores = learned.score(answers, examples)
    assert [scores[name] for name in ("accuracy", "macro_f1", "matthews", "f1")] == [1, 1, 1, 1]
    if rows < 1000:
        contracts.counts_contract(learned, [{"prediction": labels[1]}] * rows, examples)


def test_mrpc_keeps_its_quotes_and_its_order(shared_data: Path) -> None:
    table = read_table(shared_data / "glue_small" / "MRPC" / "dev.tsv")
    first = Classification.learn(table, **PAIRS).read(table)[0]
    assert first == Example(
        text="He said the foodservice pie business doesn 't fit the company 's long-term growth strategy .",
        text_pair='" The foodservice pie business does not fit our long-term growth strategy .',
        labels=(1,),
    )


def test_rows_without_labels_are_read_to_be_answered(shared_data: Path) -> None:
    folder = shared_data / "glue_small" / "MRPC"
    task = Classification.learn(read_table(folder / "dev.tsv"), **PAIRS)
    unlabelled = read_table(folder / "test.tsv.gz")
    assert "Quality" not in unlabelled.columns
    assert len(task.read(unlabelled, gold=False)) == 1725
    with pytest.raises(DataError, match="no column Quality"):
        task.read(unlabelled)


def test_paraphrases_are_learned_from_the_published_file(shared_data: Path, minilm: Path) -> None:
    table = read_table(shared_data / "glue_small" / "MRPC" / "train.tsv.gz")
    task = Classification.learn(table, **PAIRS, max_length=48)
    short = sorted(task.read(table), key=lambda e: len(e.text) + len(e.text_pair or ""))
    chosen = [e for label in (0, 1) for e in [e for e in short if e.labels == (label,)][:16]]
    encoder = load(str(minilm))
    model = TaskModel(encoder, task)
    data = task.encode(chosen, Tokenizer.from_folder(minilm, vocab_size=encoder.config.vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model.train()
    for _ in range(8):
        model.loss(data.batch(range(32))).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert task.score(model.eval().predict(data), chosen)["matthews"] > 0.8
