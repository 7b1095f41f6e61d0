"""Regression: the task contract, correlations by hand, and numbers in their own scale in stock transformers."""

from __future__ import annotations

import math
from pathlib import Path

import contracts
import numpy as np
import pytest
import torch
from conftest import NEGATIVE, POSITIVE
from no_thrice import run_without_thrice
from tiny_checkpoints import HEADS, tiny_config
from tiny_stock import stock_folder, write_tokenizer

from thrice.checkpoints import load, load_any, save
from thrice.data.readers import Table, read_table
from thrice.data.tokenizer import Tokenizer
from thrice.errors import ConfigError, DataError
from thrice.finetune import save_model
from thrice.model.encoder import Encoder
from thrice.predict import load_model
from thrice.tasks.base import TaskModel
from thrice.tasks.regression import Example, Regression

TEXTS = (*POSITIVE, *NEGATIVE)


def table_of(rows: list[dict], columns: tuple[str, ...] = ("text", "label")) -> Table:
    lines = list(range(1, len(rows) + 1))
    return Table(columns=columns, rows=rows, lines=lines, source="here", fingerprint="0")


def prices(scale: float = 1000.0) -> Table:
    """Twelve texts with numbers far from standard ones."""
    return table_of([{"text": t, "label": f"{scale * (3 + i % 2 + i / 20)}"} for i, t in enumerate(TEXTS)])


def perfect(example: Example) -> dict:
    return {"prediction": example.number}


@pytest.mark.parametrize("scale", [0.001, 1.0, 1000.0])
def test_regression_keeps_the_task_contract_in_any_scale(scale: float, tiny_checkpoint: Path, tmp_path: Path) -> None:
    table = prices(scale)
    task = Regression.learn(table, max_length=32)
    # Of numbers of 4000 float32 keeps 5e-4, so a batch may move an answer by its last digit.
    moved = max(1e-5, 1e-6 * scale * 4)
    contracts.task_contract(task, table, tiny_checkpoint, tmp_path, perfect=perfect, tolerance=moved)


def test_pairs_keep_the_task_contract(tiny_checkpoint: Path, tmp_path: Path) -> None:
    rows = [{"sentence1": text, "sentence2": TEXTS[-i - 1], "score": f"{i % 3}.5"} for i, text in enumerate(TEXTS)]
    table = table_of(rows, ("sentence1", "sentence2", "score"))
    task = Regression.learn(table, label_column="score", max_length=32)
    contracts.task_contract(task, table, tiny_checkpoint, tmp_path, perfect=perfect)
    assert len(load_model(tmp_path / "saved").predict([("好", "质量")])) == 1
    with pytest.raises(DataError, match=r"answers pairs \(text, text\)"):
        load_model(tmp_path / "saved").predict(["好"])


STOCK = """
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

result = {}
for family in arguments["families"]:
    folder = arguments["place"] + "/" + family
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = model(**tokenizer(arguments["texts"], padding=True, return_tensors="pt")).logits
    rate = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    result[family] = {
        "numbers": logits.squeeze(-1).tolist(),
        "piped": [answer["score"] for answer in rate(arguments["texts"])],
        "config": [model.config.problem_type, model.config.num_labels, model.config.id2label[0]],
    }
"""
FAMILIES = ("albert", "bert", "electra", "roberta", "distilbert", "modernbert")


def test_stock_transformers_gives_the_numbers_in_their_own_scale(tmp_path: Path) -> None:
    task = Regression.learn(prices(), max_length=14)
    ours = {}
    for family in FAMILIES:
        start = tmp_path / "start" / family
        if family in HEADS:
            save(Encoder(tiny_config(family, vocab_size=320), heads=HEADS[family][:1]), start)
            write_tokenizer("distilbert", start)
        else:
            stock_folder(family, start)
        encoder = load_any(str(start))
        tokenizer = Tokenizer.from_folder(start, vocab_size=encoder.config.vocab_size)
        model = TaskModel(encoder, task, seed=2)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.empty_like(parameter).normal_(0, 0.2, generator=generator))
        answers = model.eval().predict(task.encode(task.from_texts(TEXTS), tokenizer))
        folder = save_model(model, tmp_path / family, tokenizer)
        assert load_model(folder).predict(TEXTS) == answers
        ours[family] = [answer["prediction"] for answer in answers]
        assert np.mean(ours[family]) == pytest.approx(task.mean, abs=5 * task.spread)
        assert np.std(ours[family]) > 1, "they differ, in the scale of prices"
    stock = run_without_thrice(STOCK, place=str(tmp_path), families=FAMILIES, texts=list(TEXTS))
    for family, numbers in ours.items():
        assert stock[family]["config"] == ["regression", 1, "label"]
        np.testing.assert_allclose(stock[family]["numbers"], numbers, rtol=1e-5)
        np.testing.assert_allclose(stock[family]["piped"], numbers, rtol=1e-5)


def test_saving_and_answering_leave_the_trained_weights_as_they_were(tiny_checkpoint: Path, tmp_path: Path) -> None:
    task = Regression.learn(prices(), max_length=32)
    encoder = load(str(tiny_checkpoint))
    words = Tokenizer.from_folder(tiny_checkpoint, vocab_size=encoder.config.vocab_size)
    model = TaskModel(encoder, task).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    data = task.encode(task.read(prices()), words)
    model.predict(data)
    save_model(model, tmp_path / "saved", words)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    # A restored model trains on in the scale of the data, with the same loss.
    again = load_model(tmp_path / "saved")
    batch = data.batch(range(8))
    assert again.model.loss(batch).item() == pytest.approx(model.loss(batch).item(), rel=1e-4)


def test_the_loss_is_the_squared_error_of_standard_numbers(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Regression.learn(table_of([{"text": "好", "label": "10"}, {"text": "差", "label": "20"}]))
    assert (task.mean, task.spread) == (15, 5)
    encoder = load(str(tiny_checkpoint))
    data = task.encode(task.read(prices(1)), Tokenizer.from_folder(tiny_checkpoint))
    np.testing.assert_allclose(data.targets[0], (3 - 15) / 5)
    model = TaskModel(encoder, Regression.learn(prices(1), max_length=32)).eval()
    monkeypatch.setattr(type(encoder), "classify", lambda self, batch: torch.tensor([[1.0], [2.0]]))
    batch = data.batch([0, 2])
    expected = ((1 - batch.targets[0].item()) ** 2 + (2 - batch.targets[1].item()) ** 2) / 2
    assert model.loss(batch).item() == pytest.approx(expected)


def test_correlations_worked_out_by_hand() -> None:
    task = Regression.learn(prices())
    examples = [Example(text="x", number=n) for n in (1.0, 2.0, 3.0)]
    scores = task.score([{"prediction": n} for n in (1.0, 4.0, 3.0)], examples)
    # Deviations (-1, 0, 1) and (-5/3, 4/3, 1/3): 2 / sqrt(2 * 42/9); ranks (1, 3, 2): 1 / 2.
    assert scores["pearson"] == pytest.approx(2 / math.sqrt(2 * 42 / 9))
    assert scores["spearman"] == pytest.approx(0.5)
    assert scores["correlation"] == pytest.approx((scores["pearson"] + scores["spearman"]) / 2)
    assert scores["rmse"] == pytest.approx(2 / math.sqrt(3))
    flat = task.score([{"prediction": 7.0}] * 3, examples)
    assert (flat["correlation"], flat["collapsed"]) == (0, True)
    assert task.counts([], []) is None, "a rank correlation is no function of sums"


def test_what_is_no_number_is_refused_with_its_line() -> None:
    rows = [{"text": "x", "label": value} for value in ("1", "much", "nan", "inf", "1e3")]
    with pytest.raises(DataError, match=r"no numbers \(3\): line 2: 'much'; line 3: 'nan'; line 4: 'inf'"):
        Regression.learn(table_of(rows))
    with pytest.raises(DataError, match="all numbers in 'label' are 2, there is nothing to learn"):
        Regression.learn(table_of([{"text": "x", "label": "2"}] * 3))
    with pytest.raises(ConfigError, match="at least 3"):
        Regression.learn(prices(), max_length=2)


# Real files of GLUE


def test_the_likeness_of_two_sentences_is_learned(shared_data: Path, minilm: Path) -> None:
    table = read_table(shared_data / "glue_small" / "STS-B" / "train.tsv.gz")
    assert len(table.rows) == 5749
    task = Regression.learn(table, label_column="score", max_length=48)
    short = [e for e in task.read(table) if len(e.text) + len(e.text_pair or "") < 60 and not 0.5 < e.number < 4.5]
    encoder = load(str(minilm))
    words = Tokenizer.from_folder(minilm, vocab_size=encoder.config.vocab_size)
    model = TaskModel(encoder, task)
    data = task.encode(short[:32], words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model.train()
    for step in range(12):
        model.loss(data.batch(range(16 * (step % 2), 16 * (step % 2) + 16))).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert task.score(model.eval().predict(data), short[:32])["correlation"] > 0.8


def test_sts_b_keeps_the_task_contract_on_every_row(shared_data: Path) -> None:
    table = read_table(shared_data / "glue_small" / "STS-B" / "dev.tsv")
    task = Regression.learn(table, label_column="score")
    assert (task.columns.text, task.columns.text_pair) == ("sentence1", "sentence2")
    examples = task.read(table)
    scores = task.score([perfect(example) for example in examples], examples)
    assert [scores[name] for name in task.metrics] == pytest.approx([1, 1, 1], abs=1e-12)
    assert (min(e.number for e in examples), max(e.number for e in examples)) == (0, 5)
