"""Reading comprehension by writing: the task contract, targets and windows on real passages, the loss in stock code."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import contracts
import numpy as np
import pytest
import torch
from conftest import NEGATIVE, POSITIVE
from no_thrice import run_without_thrice
from tiny_checkpoints import tiny_encoder
from tiny_stock import stock_folder

from thrice.checkpoints import load, load_any
from thrice.data.passages import Example
from thrice.data.readers import Table, read_table
from thrice.data.squad import Answer
from thrice.data.tokenizer import Tokenizer
from thrice.errors import ConfigError, DataError
from thrice.finetune import DataSource, finetune, save_model
from thrice.model.packing import pack
from thrice.predict import load_model, predict_file
from thrice.tasks.base import TaskModel
from thrice.tasks.reading import Reading, ReadingData

SHORT: dict[str, Any] = {"max_passage": 20, "max_question": 6, "max_answer": 8, "stride": 7}


def table_of(rows: list[dict[str, Any]], columns: tuple[str, ...] = ("context", "question", "answers")) -> Table:
    lines = list(range(1, len(rows) + 1))
    return Table(columns=columns, rows=rows, lines=lines, source="here", fingerprint="0")


def rows_of(number: int, *, several: bool = False) -> list[dict[str, Any]]:
    """Give rows whose question is the beginning of the phrase that answers it; every fifth has no answer."""
    words = (*POSITIVE, *NEGATIVE)
    rows = []
    for i in range(number):
        chosen = [words[(i + step * (1 + i % 5)) % len(words)] for step in range(2 + i % 7)]
        phrase = next(w for w in words if w not in chosen) if i % 5 == 4 else chosen[i % len(chosen)]
        half = len(chosen) // 2
        context: Any = ["".join(chosen[:half]), "".join(chosen[half:])] if several else "".join(chosen)
        rows.append({"context": context, "question": phrase[:2], "answers": "" if i % 5 == 4 else phrase[2:]})
    return rows


def perfect(example: Example) -> dict[str, Any]:
    return {"prediction": example.golds[0] if example.answers else ""}


def words_of(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    ("options", "several"),
    [({}, False), ({"beam": 3}, True), ({"extractive": False}, False), ({"long_passages": "head"}, False)],
)
def test_reading_keeps_the_task_contract(
    options: dict[str, Any], several: bool, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    table = table_of(rows_of(20, several=several))
    task = Reading.learn(table, **SHORT, **options)
    data = task.encode(task.read(table), words_of(tiny_checkpoint))
    assert any(len(windows) > 1 for windows in data.windows) is ("long_passages" not in options)
    contracts.task_contract(task, table, tiny_checkpoint, tmp_path, perfect=perfect)


def test_a_tiny_model_learns_to_write_pieces_of_the_passage(tiny_checkpoint: Path) -> None:
    table = table_of([row for row in rows_of(16) if row["answers"]])
    task = Reading.learn(table, **SHORT)
    torch.manual_seed(0)
    model = TaskModel(load(str(tiny_checkpoint)), task)
    examples = task.read(table)
    data = task.encode(examples, words_of(tiny_checkpoint))
    before = task.score(model.predict(data), examples)["score"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()
    for _ in range(150):
        model.loss(data.batch(range(len(data)))).backward()
        optimizer.step()
        optimizer.zero_grad()
    scores = task.score(found := model.predict(data), examples)
    assert not task.unanswerable
    assert all(answer["prediction"] for answer in found)
    assert scores["score"] > max(0.9, before + 0.3)
    assert not scores["collapsed"]


# Targets and windows


def test_targets_are_the_answer_and_the_end_behind_passage_and_question(tiny_checkpoint: Path) -> None:
    table = table_of([{"context": "质量很好服务热情", "question": "质量", "answers": "很好"}])
    task, words = Reading.learn(table, **SHORT), words_of(tiny_checkpoint)
    batch = task.encode(task.read(table), words).batch([0])
    assert batch.learned is not None
    said = words.hf.decode(batch.learned.input_ids.tolist()).replace(" ", "")
    assert said == "[CLS]质量很好服务热情[SEP]质量[SEP]很好[SEP]"
    assert batch.learned.token_type_ids.tolist() == [0] * 13 + [1] * 3
    assert batch.learned.prefix_lengths == (13,)
    assert words.hf.decode(batch.targets.tolist()).replace(" ", "") == "很好[SEP]"
    assert batch.rows.tolist() == [12, 13, 14]
    assert task.loss_weight(batch) == 3


def test_the_loss_is_the_mean_over_tokens_worked_out_one_by_one(tiny_checkpoint: Path) -> None:
    table = table_of(rows_of(7))
    task, words = Reading.learn(table, **SHORT), words_of(tiny_checkpoint)
    model = TaskModel(load(str(tiny_checkpoint)), task).eval()
    data = task.encode(task.read(table), words)
    batch = data.batch(range(7))
    losses = []
    for i in range(7):
        for window, target in data.learned[i]:
            source, answer = batch.sources[i][window].tolist(), [*target.tolist(), words.sep_token_id]
            for n, token in enumerate(answer):
                # What is written so far sees itself only causally, so a shorter sequence says the same.
                ids, types = source + answer[:n], [0] * len(source) + [1] * n
                hidden = model.encoder(pack([ids], [types], prefix_lengths=[len(source)]))
                losses.append(-model.encoder.predict_tokens(hidden[-1:]).log_softmax(-1)[0, token])
    assert len(losses) == task.loss_weight(batch)
    torch.testing.assert_close(model.loss(batch), torch.stack(losses).mean(), atol=1e-5, rtol=1e-5)


def test_what_is_learned_of_long_passages(tiny_checkpoint: Path) -> None:
    long = "".join(POSITIVE + NEGATIVE)
    rows = [
        {"context": long, "question": "质量", "answers": POSITIVE[0]},  # in the first window
        {"context": long, "question": "质量", "answers": NEGATIVE[-1]},  # in the last
        {"context": long, "question": "质量", "answers": ""},
        {"context": long, "question": "质量", "answers": "不在"},  # nowhere: scored, not learned from
        {"context": long, "question": "质量" * 4, "answers": long},  # question and answer too long
    ]
    table = table_of(rows)
    words = words_of(tiny_checkpoint)

    def learned(**options: Any) -> tuple[list[list[tuple[int, int]]], int]:
        task = Reading.learn(table, **SHORT, **options)
        data = task.encode(task.read(table), words)
        return [[(window, len(target)) for window, target in own] for own in data.learned], data.num_cut

    (first, last, none, nowhere, _), cut = learned()
    assert first[0] == (0, 5)
    assert [length for _, length in first] == [5, 0]
    assert [length for _, length in last] == [0, 4]
    assert [length for _, length in none] == [0]
    assert nowhere == []
    assert cut == 1
    assert learned(negatives=0)[0][0] == [(0, 5)]
    assert len(learned(negatives=9)[0][0]) == len(learned(negatives=9)[0][2]) > 3
    heads, cut = learned(long_passages="head")
    assert heads[:3] == [[(0, 5)], [], [(0, 0)]]
    assert cut == 5


def test_every_gold_answer_is_learned_from_and_comes_back_from_its_tokens(shared_data: Path, nano: Path) -> None:
    table = read_table(shared_data / "cmrc2018/cmrc2018_dev.json.gz")
    task = Reading.learn(table)
    examples = task.read(table)
    scores = task.score([perfect(example) for example in examples], examples)
    assert {metric: scores[metric] for metric in task.metrics} == {"score": 1.0, "exact_match": 1.0, "f1": 1.0}
    data = task.encode(examples, words_of(nano))
    kinds = Counter(_round_trip(data, i) for i in range(len(data)))
    assert kinds == {
        "same": 3054,
        "longer than an answer may be": 162,  # 31 tokens; neighbouring windows share 32, so that shorter ones are whole
        "in no window": 1,  # and one is longer than that
        "30米以上 -> 4530米": 1,  # these begin inside a number, which is one token
        "4个 -> 34个": 1,
    }
    assert task.encode(task.read(table, gold=False), words_of(nano)).batch([0]).learned is None


def test_gold_answers_in_two_languages_come_back_from_their_tokens(shared_data: Path, nano: Path) -> None:
    chinese = {"same": 1189, "longer than an answer may be": 1}
    english = {
        "same": 1182,
        "same but for case": 7,
        "7,000,000 square kilometres (2,70 -> 7,000,000 square kilometres (2,700": 1,
    }
    for name, expected in (("zh", chinese), ("en", english)):
        table = read_table(shared_data / f"xquad/xquad.{name}.json.gz")
        task = Reading.learn(table, max_answer=64, stride=63)
        data = task.encode(task.read(table), words_of(nano))
        assert Counter(_round_trip(data, i) for i in range(len(data))) == expected


def _round_trip(data: ReadingData, i: int) -> str:
    """Say what becomes of a gold answer that is cut into tokens, learned, and put together again."""
    example, learned = data.examples[i], [pair for pair in data.learned[i] if len(pair[1])]
    if not learned:
        return "in no window"
    ((number, target),) = learned
    window = data.windows[i][number]
    if len(target) > data.room:
        return "longer than an answer may be"
    places = [p for p in range(len(window)) if np.array_equal(window.ids[p : p + len(target)], target)]
    start, stop = window.pieces.characters_of(window.first + places[0], window.first + places[0] + len(target) - 1)
    text = example.passages[window.passage][start:stop]
    if text in [gold.strip() for gold in example.golds]:
        return "same"
    # The tokens of lower-casing vocabularies stand in several places, and the first of them counts.
    same = text.lower() in [gold.lower() for gold in example.golds]
    return "same but for case" if same else f"{example.golds[0]} -> {text}"


# Checkpoints and options


def test_a_checkpoint_that_cannot_write_is_told_what_can(tmp_path: Path) -> None:
    task = Reading.learn(table_of(rows_of(4)), max_passage=8, max_question=4, max_answer=3, stride=2)
    with pytest.raises(
        ConfigError, match=r"carries: rtd.*an ELECTRA generator; mask filling or generation from an ELECTR"
    ):
        TaskModel(tiny_encoder("electra", heads=["rtd"]), task)
    TaskModel(tiny_encoder("electra", heads=["mlm"]), task)
    with pytest.raises(ConfigError, match=r"cannot write.*are 352 tokens, more than the 16 positions"):
        TaskModel(tiny_encoder("bert", heads=["pooler"]), Reading.learn(table_of(rows_of(4))))
    with pytest.raises(ConfigError, match="distilbert runs through its own transformers class"):
        TaskModel(load_any(str(stock_folder("distilbert", tmp_path / "stock"))), task)


def test_options_that_cannot_be_are_refused() -> None:
    table = table_of(rows_of(4))
    with pytest.raises(
        ConfigError, match=r"max_answer is 1, .*beam is 0, .*long_passages is 'tail'.*extractive is 'yes'"
    ):
        Reading.learn(table, max_answer=1, beam=0, long_passages="tail", extractive="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="stride is 30, more than half"):
        Reading.learn(table, max_passage=40, stride=30)


def test_the_saved_folders_give_the_same_loss_in_stock_transformers(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A masked-language model of each family with a 4-D mask, in a process that cannot import thrice."""
    words, losses, cases = words_of(tiny_checkpoint), [], []
    task = Reading.learn(table := table_of(rows_of(6)), **SHORT)
    for family in ("albert", "bert", "electra", "roberta"):
        encoder = tiny_encoder(family, heads=["mlm"], vocab_size=words.vocab_size, max_position_embeddings=42)
        model = TaskModel(encoder, task).eval()
        batch = task.encode(task.read(table), words).batch(range(6))
        assert batch.learned is not None
        losses.append(model.loss(batch).item() * task.loss_weight(batch))
        folder = save_model(model, tmp_path / family, words)
        ids = [part.tolist() for part in batch.learned.input_ids.split(batch.learned.lengths)]
        cases.append({"folder": str(folder), "ids": ids, "prefixes": batch.learned.prefix_lengths})
    stock = run_without_thrice(
        """
import torch, transformers
result = []
for case in arguments["cases"]:
    model = transformers.AutoModelForMaskedLM.from_pretrained(case["folder"], attn_implementation="eager").eval()
    result.append(0.0)
    for ids, prefix in zip(case["ids"], case["prefixes"]):
        ids = torch.tensor(ids)
        types = torch.tensor([0] * prefix + [1] * (len(ids) - prefix))
        c = types.cumsum(0)
        hidden = (c[None] > c[:, None])[None, None]
        mask = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
        with torch.no_grad():
            logits = model(input_ids=ids[None], attention_mask=mask, token_type_ids=types[None]).logits[0]
        result[-1] += torch.nn.functional.cross_entropy(logits[prefix - 1 : -1], ids[prefix:], reduction="sum").item()
""",
        cases=cases,
    )
    assert stock == pytest.approx(losses, rel=1e-5)


# Files


def squad_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    paragraphs = []
    for i, row in enumerate(rows):
        answers = (
            [{"text": row["answers"], "answer_start": row["context"].find(row["answers"])}] if row["answers"] else []
        )
        question = {"id": str(i), "question": row["question"], "answers": answers, "is_impossible": not answers}
        paragraphs.append({"context": row["context"], "qas": [question]})
    return {"data": [{"title": "reviews", "paragraphs": paragraphs}]}


def test_a_squad_file_is_learned_from_and_answered(tiny_checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "reviews.json"
    path.write_text(json.dumps(squad_of(rows_of(40)), ensure_ascii=False), encoding="utf-8")
    result = finetune(
        str(tiny_checkpoint),
        tmp_path / "out",
        source=DataSource(data=str(path)),
        task_name="reading",
        options={**SHORT, "negatives": 0},
        training={"epochs": 1, "learning_rate": 5e-3, "batch_size": 8},
    )
    assert {"score", "exact_match", "f1"} <= result["test"].keys()
    predict_file(tmp_path / "out", str(path), tmp_path / "answers.jsonl", max_tokens=100)
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [answer["id"] for answer in answers] == [str(i) for i in range(40)]
    tuned = load_model(tmp_path / "out")
    for answer in answers:
        start = answer["start"]
        assert (start is None) == (answer["prediction"] == "")
        if start is not None:
            assert answer["context"].startswith(answer["prediction"], start)
    pairs = [(answer["question"], answer["context"]) for answer in answers]
    assert [a["prediction"] for a in tuned.predict(pairs)] == [answer["prediction"] for answer in answers]
    with pytest.raises(DataError, match=r"entries \[0\] are none, the first \('q', \[\]\)"):
        tuned.predict([("q", [])])


def test_passages_come_one_or_several_to_a_row() -> None:
    rows = [
        {"passage": ["质量很好", "物流很快"], "question": "物流", "answer": "很快"},
        {"passage": "质量很好", "question": "质量", "answer": ["很好", "好"]},
        {"passage": ["质量很好", "服务热情"], "question": "物流", "answer": ""},
    ]
    task = Reading.learn(table := table_of(rows, ("passage", "question", "answer")))
    first, second, third = task.read(table)
    assert first == Example(passages=("质量很好", "物流很快"), question="物流", answers=(Answer("很快"),), known=True)
    assert second.golds == ["很好", "好"]
    assert (third.answers, third.known) == ((), True)
    assert task.split_key(rows[0]) == ("质量很好\n物流很快", "")
    assert task.shown(second) == {"text": "质量 / 质量很好", "gold": "很好 | 好"}
    assert task.from_texts([("物流", ["质量很好", "物流很快"])])[0].passages == first.passages
    with pytest.raises(DataError, match="line 1: an empty passage; line 2: no answer"):
        Reading.learn(
            table_of([{"context": [" "], "question": "q", "answers": "a"}, {"context": "c", "question": "q"}])
        )


def test_one_answer_for_everything_is_called_collapsed() -> None:
    task = Reading.learn(table := table_of(rows_of(12)))
    examples = task.read(table)
    for same in ("", "很好"):
        scores = task.score([{"prediction": same}] * 12, examples)
        assert scores["collapsed"]
        assert scores["empty"] == 12 * (same == "")
    assert task.score([{"prediction": ""}] * 12, examples)["unanswerable"] == {
        "questions": 2,
        "exact_match": 1.0,
        "f1": 1.0,
    }


@torch.no_grad()
def test_a_free_answer_is_words_of_the_vocabulary_without_special_ones(nano: Path) -> None:
    table = table_of([{"context": "北京是中国的首都。", "question": "首都是哪里？", "answers": "北京"}] * 2)
    task = Reading.learn(table, extractive=False, max_answer=6)
    model = TaskModel(load(str(nano)), task).eval()
    words = words_of(nano)
    encoder: Any = model.encoder
    encoder.heads["mlm"].bias[words.unk_token_id] = 100.0
    found = model.predict(task.encode(task.read(table), words))
    assert found[0]["prediction"]
    assert found[0]["start"] is None
    assert "[" not in found[0]["prediction"]
    assert " " not in found[0]["prediction"]
