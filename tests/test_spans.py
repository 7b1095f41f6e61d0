"""Span extraction: the task contract, windows and offsets on real passages, and the same answers in stock code."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import contracts
import numpy as np
import pytest
import torch
from conftest import NEGATIVE, POSITIVE
from hypothesis import given
from hypothesis import strategies as st
from no_thrice import run_without_thrice
from tiny_checkpoints import tiny_encoder
from tiny_stock import stock_folder

from thrice.checkpoints import load
from thrice.data.answers import best_threshold
from thrice.data.questions import Question
from thrice.data.readers import Table, read_table
from thrice.data.squad import Answer
from thrice.data.tokenizer import Tokenizer
from thrice.data.windows import Pieces, best_spans, pieces_of, windows_of
from thrice.errors import ConfigError, DataError
from thrice.finetune import DataSource, finetune, save_model
from thrice.predict import load_model, predict_file
from thrice.tasks.base import TaskModel
from thrice.tasks.spans import Spans

SHORT: dict[str, Any] = {"max_length": 32, "max_question": 8, "stride": 6, "max_answer": 10}


def table_of(rows: list[dict[str, Any]], columns: tuple[str, ...] = ("context", "question", "answers")) -> Table:
    lines = list(range(1, len(rows) + 1))
    return Table(columns=columns, rows=rows, lines=lines, source="here", fingerprint="0")


def reviews_asked(number: int, *, unanswerable: bool) -> list[dict[str, Any]]:
    """Give rows whose question is the beginning of the phrase that answers it; every fourth perhaps has no answer."""
    words = (*POSITIVE, *NEGATIVE)
    rows = []
    for i in range(number):
        chosen = [words[(i + step * (1 + i % 5)) % len(words)] for step in range(2 + i % 7)]
        absent = unanswerable and i % 4 == 3
        phrase = next(w for w in words if w not in chosen) if absent else chosen[i % len(chosen)]
        context = "".join(chosen)
        answer = {"text": phrase[2:], "answer_start": context.find(phrase) + 2}
        rows.append({"context": context, "question": phrase[:2], "answers": json.dumps([] if absent else [answer])})
    return rows


def perfect(example: Question) -> dict[str, Any]:
    return {"prediction": example.golds[0] if example.answers else ""}


@pytest.mark.parametrize("unanswerable", [False, True])
def test_spans_keep_the_task_contract(unanswerable: bool, tiny_checkpoint: Path, tmp_path: Path) -> None:
    table = table_of(reviews_asked(24, unanswerable=unanswerable))
    task = Spans.learn(table, **SHORT)
    assert task.unanswerable is unanswerable
    assert any(len(windows) > 1 for windows in task.encode(task.read(table), words_of(tiny_checkpoint)).windows)
    contracts.task_contract(task, table, tiny_checkpoint, tmp_path, perfect=perfect)


def words_of(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


# Windows


@given(st.integers(0, 80), st.integers(1, 20), st.integers(0, 25))
def test_windows_cover_everything_and_hold_every_short_span(length: int, room: int, stride: int) -> None:
    windows = windows_of(length, room=room, stride=stride)
    assert windows[0][0] == 0
    assert windows[-1][1] == length
    assert all(stop - start <= room for start, stop in windows)
    assert all(stop - start == room for start, stop in windows[:-1])
    shared = min(stride, room - 1)
    assert all(one[1] - other[0] == shared for one, other in itertools.pairwise(windows))
    for size in range(1, min(shared + 1, length) + 1):
        for start in range(length - size + 1):
            assert any(first <= start and start + size <= stop for first, stop in windows)


def test_labels_point_to_the_answer_or_to_the_first_token(tiny_checkpoint: Path) -> None:
    table = table_of(reviews_asked(60, unanswerable=True))
    task, words = Spans.learn(table, **SHORT), words_of(tiny_checkpoint)
    examples = task.read(table)
    data = task.encode(examples, words)
    batch = data.batch(range(len(data)))
    found = [0] * len(data)
    pairs = list(zip(batch.windows, batch.packed.starts.tolist(), batch.targets.tolist(), strict=True))
    for window, place, (start, end) in pairs:
        ids = batch.packed.input_ids[place:].tolist()
        assert ids[0] == words.cls_token_id
        assert ids[window.prefix - 1] == words.sep_token_id
        if (start, end) == (0, 0):
            continue
        found[window.example] += 1
        said = words.hf.decode(ids[start : end + 1]).replace(" ", "")
        assert said == examples[window.example].golds[0]
        assert batch.packed.token_type_ids[place + start] == words.second_type
    assert [count > 0 for count in found] == [bool(example.answers) for example in examples]
    assert max(found) > 1
    assert data.num_cut == 0
    assert data.lengths.tolist() == [
        sum(w.prefix + w.stop - w.first + 1 for w in batch.windows if w.example == i) for i in range(len(data))
    ]


def test_what_is_cut_is_counted(tiny_checkpoint: Path) -> None:
    long = "".join(POSITIVE + NEGATIVE)
    rows = [
        {"context": long, "question": "喜欢", "answers": POSITIVE[0]},
        {"context": long, "question": long[:9], "answers": POSITIVE[0]},  # the question is too long
        {"context": long, "question": "", "answers": long},  # the answer fits no window
    ]
    task = Spans.learn(table_of(rows), **SHORT)
    assert task.encode(task.read(table_of(rows)), words_of(tiny_checkpoint)).num_cut == 2


# Offsets


def misaligned(file: Path, words: Tokenizer) -> tuple[int, int, list[tuple[str, str]]]:
    """Send every gold answer to tokens and back: how many are the same, are not in the passage, and what came else."""
    questions = Spans.learn(table := read_table(file)).read(table)
    contexts = list(dict.fromkeys(q.context for q in questions))
    pieces = dict(zip(contexts, pieces_of(words, contexts), strict=True))
    same, absent, others = 0, 0, []
    for question in questions:
        passage = pieces[question.context]
        for answer in question.answers:
            place = Question(context=question.context, question="", answers=(answer,)).place()
            if place is None:
                absent += 1
                continue
            assert question.context[slice(*place)] == answer.text.strip()
            tokens = passage.tokens_of(*place)
            assert tokens is not None
            back = passage.characters_of(*tokens)
            if back == place:
                same += 1
            else:
                others.append((question.context[slice(*place)], question.context[slice(*back)]))
    return same, absent, others


@pytest.fixture
def uncased(shared_data: Path, tmp_path: Path) -> Tokenizer:
    """The tokenizer of BERT's English uncased models."""
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vocab.txt").write_bytes((shared_data / "vocabs/bert-base-uncased-vocab.txt").read_bytes())
    return Tokenizer.from_folder(tmp_path / "words")


def test_every_gold_answer_in_chinese_comes_back_from_its_tokens(shared_data: Path, nano: Path) -> None:
    words = Tokenizer.from_folder(nano)
    assert misaligned(shared_data / "xquad/xquad.zh.json.gz", words) == (1190, 0, [])
    same, absent, others = misaligned(shared_data / "cmrc2018/cmrc2018_dev.json.gz", words)
    # The file says of 193 answers, all of them second or third ones, that they start at -1: they are in no passage.
    assert (same, absent) == (9461, 193)
    # The other three begin inside a number, which is one token.
    assert sorted(set(others)) == [("30米", "4530米"), ("4个", "34个")]
    assert len(others) == 3


def test_every_gold_answer_in_english_comes_back_from_its_tokens(shared_data: Path, uncased: Tokenizer) -> None:
    same, absent, others = misaligned(shared_data / "xquad/xquad.en.json.gz", uncased)
    assert (same, absent, len(others)) == (1189, 0, 1)
    same, absent, more = misaligned(shared_data / "squad2_half_dev/dev-v2.0.json.gz", uncased)
    assert (same, absent, len(more)) == (10037, 0, 15)
    # These gold answers begin or end inside a word or a number that is one token: "Japan" in "Japanese".
    for gold, said in others + more:
        start = said.index(gold)
        before, after = said[:start], said[start + len(gold) :]
        assert not before or (before[-1].isalnum() and gold[0].isalnum())
        assert not after or (after[0].isalnum() and gold[-1].isalnum())


def byte_tokenizer(folder: Path) -> Tokenizer:
    """Give RoBERTa's kind of tokenizer: bytes, pairs framed by four special tokens, spaces part of words."""
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir()
    trained = ByteLevelBPETokenizer()
    texts = ["".join((*POSITIVE, *NEGATIVE)), "who asked what was there and when was that there"] * 4
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(texts, vocab_size=380, special_tokens=special, show_progress=False)
    trained.save_model(str(folder))
    return Tokenizer.from_folder(folder)


@functools.cache  # no fixture: hypothesis would print all of it
def every_kind() -> dict[str, Tokenizer]:
    """Give WordPiece, bytes and sentencepiece; the last where the real file lies beside the repository."""
    root = Path(__file__).parents[1]
    real = root.parent / "shared/data/vocabs/albert-de-30k-clean.model"
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        found = {
            "wordpiece": Tokenizer.from_folder(root / "src/thrice/zoo/albert-nano-zh"),
            "bytes": byte_tokenizer(place / "bytes"),
        }
        if real.exists():
            (place / "pieces").mkdir()
            (place / "pieces/spiece.model").write_bytes(real.read_bytes())
            found["sentencepiece"] = Tokenizer.from_folder(place / "pieces")
    return found


CHINESE = ("质量", "很好", "，", "１２Ａ", "日本ノ", "한국", "ไทย", "𠀀", "—")
LATIN = ("ABC", "don't", "3.5", "é", "e\u0301", "ß", "½", "ﬁ", "İ", "\ufffd")
OTHER = (" ", "  ", "\n", "\u3000", "\u00a0", "\u200b", "😀", "\U0001f468\u200d\U0001f469")


@given(st.lists(st.sampled_from(CHINESE + LATIN + OTHER), max_size=14).map("".join))
def test_tokens_and_characters_of_mixed_scripts_agree(text: str) -> None:
    for kind, words in every_kind().items():
        passage = pieces_of(words, [text])[0]
        assert passage.ids.tolist() == words.content_ids([text])[0]
        visible = np.flatnonzero(passage.starts < passage.stops)
        for first in visible:
            for last in visible[visible >= first]:
                start, stop = passage.characters_of(first, last)
                assert text[start:stop] == text[start:stop].strip(), "no white space at its ends"
                # To tokens and back is the identity on what tokens can say.
                tokens = passage.tokens_of(start, stop)
                assert tokens is not None
                back = passage.characters_of(*tokens)
                # Tokens of other kinds share characters: bytes of two of them, the mark of a beginning and the word.
                assert back == (start, stop) or (kind != "wordpiece" and back[0] <= start < stop <= back[1])
        for start in range(len(text)):
            tokens = passage.tokens_of(start, start + 1)
            if tokens is None:  # white space, and what the tokenizer drops: accents, marks, invisible characters
                assert not text[start].isalnum() or kind != "bytes"
                continue
            back = passage.characters_of(*tokens)
            assert back[0] <= start < back[1]


def test_a_whole_file_of_gold_answers_scores_one(shared_data: Path) -> None:
    for name in ("cmrc2018/cmrc2018_dev.json.gz", "squad2_half_dev/dev-v2.0.json.gz"):
        table = read_table(shared_data / name)
        task = Spans.learn(table)
        questions = task.read(table)
        scores = task.score([perfect(question) for question in questions], questions)
        assert {metric: scores[metric] for metric in task.metrics} == {"score": 1, "exact_match": 1, "f1": 1}
        assert scores["collapsed"] is False
        contracts.counts_contract(task, [perfect(q) for q in questions[:200]], questions[:200])
    assert task.unanswerable
    nothing = task.score([{"prediction": ""}] * len(questions), questions)
    assert nothing["collapsed"] is True
    assert nothing["exact_match"] == nothing["f1"] == 3168 / 6078
    assert nothing["unanswerable"] == {"questions": 3168, "exact_match": 1.0, "f1": 1.0}
    assert nothing["answered"] == {"questions": 2910, "exact_match": 0.0, "f1": 0.0}


# Rows


def test_rows_of_many_shapes_are_the_same_question(tmp_path: Path) -> None:
    gold = Question(context="质量很好", question="怎样", answers=(Answer("很好", 2),), known=True)
    inside_out = {"context": "质量很好", "question": "怎样", "answers": {"text": ["很好"], "answer_start": [2]}}
    squad = {
        "paragraphs": [
            {"context": "质量很好", "qas": [{"question": "怎样", "answers": [{"text": "很好", "answer_start": 2}]}]}
        ]
    }
    shapes = {
        "a.jsonl": json.dumps(inside_out),
        "b.json": json.dumps({"data": [squad]}),
        "c.csv": "passage,question,answer,answer_start\n质量很好,怎样,很好,2\n",
        "d.jsonl": json.dumps({"文章": "质量很好", "问题": "怎样", "答案": [{"text": "很好", "answer_start": 2}]}),
    }
    for name, text in shapes.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        table = read_table(tmp_path / name)
        task = Spans.learn(table)
        assert task.read(table) == [gold], name
        assert task.read(table, gold=False) == [Question(context="质量很好", question="怎样")]
        assert task.seen == "1 questions"
    assert task.from_texts([("怎样", "质量很好")]) == task.read(table, gold=False)
    assert task.shown(gold) == {"text": "怎样 / 质量很好", "gold": "很好"}


def test_what_is_odd_about_answers_is_told() -> None:
    rows = [
        {"context": "abc abc", "question": "1", "answers": "abc"},
        {"context": "abc abc", "question": "2", "answers": '[{"text": "abc", "answer_start": 5}]'},
        {"context": "abc abc", "question": "3", "answers": '[{"text": "x", "answer_start": -1}, {"text": "bc"}]'},
        {"context": "abc abc", "question": "4", "answers": ["none of it"]},
        {"context": "abc abc", "question": "5", "answers": ""},
        {"context": "abc abc", "question": "6", "answers": []},
    ]
    task = Spans.learn(table := table_of(rows))
    assert task.describe() == (
        "question in 'question', passage in 'context', answer in 'answers'; 6 questions, 2 without an answer, "
        "1 whose answer has no start: its first occurrence is taken, "
        "1 whose answer is not where it is said to start: the nearest occurrence is taken, "
        "1 whose first answer is not in the passage: a later one is taken, "
        "1 whose answer is not in the passage: they are scored, not learned from"
    )
    assert task.unanswerable
    assert [q.place() for q in task.read(table)] == [(0, 3), (4, 7), (1, 3), None, None, None]


def test_bad_rows_are_named_all_at_once() -> None:
    columns = ("context", "question", "answers", "answer_start", "is_impossible")
    rows = [
        {"context": " ", "question": "1", "answers": "a"},
        {"context": "a", "question": "2"},
        {"context": "a", "question": "3", "answers": "a", "is_impossible": "true"},
        {"context": "a", "question": "4", "answers": "a", "answer_start": "first"},
        {"context": "a", "question": "5", "answers": '[{"text": 3}]', "is_impossible": "false"},
        {"context": "a", "question": "6", "answers": "a", "answer_start": "0"},
    ]
    with pytest.raises(DataError) as caught:
        Spans.learn(table_of(rows, columns))
    message = str(caught.value)
    assert (
        "here: rows that are no questions about a passage (5): line 1: an empty passage; line 2: no answer" in message
    )
    assert "line 3: is_impossible is true, and there is an answer, 'a'" in message
    assert "line 4: 1 answers and the starts first; expected whole numbers" in message
    with pytest.raises(DataError, match="which column is the question, the answers"):
        Spans.learn(table_of([{"context": "a", "b": "c"}], ("context", "b")))
    with pytest.raises(DataError, match="no column 'pasage'"):
        Spans.learn(table_of(rows, columns), context_column="pasage")
    with pytest.raises(DataError, match=r"entries \[1\] are none, the first 'a'"):
        Spans.learn(table_of(rows[5:], columns)).from_texts([("q", "c"), "a"])


def test_options_that_cannot_be_are_refused(tiny_checkpoint: Path) -> None:
    table = table_of(reviews_asked(4, unanswerable=False))
    with pytest.raises(ConfigError, match=r"stride is -1.*max_answer is 0.*null_threshold is 'test'"):
        Spans.learn(table, stride=-1, max_answer=0, null_threshold="test")
    with pytest.raises(ConfigError, match="max_length 100 leaves no room for the passage beside 64 tokens"):
        Spans.learn(table, max_length=100)
    with pytest.raises(ConfigError, match="--max-length 384 is more than the 40 positions"):
        TaskModel(load(str(tiny_checkpoint)), Spans.learn(table))


# Loss and answers from given logits


class Given:
    """An encoder whose hidden states are the logits themselves."""

    def __init__(self, logits: list[list[float]]) -> None:
        self.logits = torch.tensor(logits, dtype=torch.float32, requires_grad=True)
        self.heads = {"span": torch.nn.Identity()}

    def __call__(self, packed: Any) -> torch.Tensor:
        return self.logits[: packed.num_tokens]


class Model:
    """What a task asks of a model."""

    def __init__(self, logits: list[list[float]]) -> None:
        self.encoder = Given(logits)


def test_the_loss_is_that_worked_out_by_hand(tiny_checkpoint: Path) -> None:
    """Packed: [CLS] 喜 [SEP] 很 好 [SEP], then [CLS] [SEP] 很 [SEP]; the second has no answer."""
    rows = [
        {"context": "很", "question": "", "answers": ""},
        {"context": "很好", "question": "喜", "answers": "好"},
    ]
    task = Spans.learn(table := table_of(rows), **SHORT)
    batch = task.encode(task.read(table), words_of(tiny_checkpoint)).batch([0, 1])
    assert batch.packed.lengths == (6, 4)
    assert batch.targets.tolist() == [[0, 0], [4, 4]]
    model: Any = Model([[0, 0], [0, 0], [0, 0], [0, 0], [2, 0], [0, 0], [1, 0], [0, 0], [0, 0], [0, 0]])
    first = -math.log(math.e**2 / (5 + math.e**2)) - math.log(1 / 6)  # start at 好, end at 好
    second = -math.log(math.e / (3 + math.e)) - math.log(1 / 4)  # both at [CLS]
    loss = task.loss(model, batch)
    assert loss.item() == pytest.approx((first + second) / 4, abs=1e-6)
    assert task.loss_weight(batch) == 2
    loss.backward()
    # d loss / d logit = (probability - 1 at the target) / (2 * windows)
    assert model.encoder.logits.grad[4, 0].item() == pytest.approx((math.e**2 / (5 + math.e**2) - 1) / 4, abs=1e-6)
    unknown = task.encode(task.read(table, gold=False), words_of(tiny_checkpoint)).batch([0, 1])
    assert task.loss(model, unknown).item() == task.loss_weight(unknown) == 0


@torch.no_grad()
def test_windows_are_compared_by_score_and_none_by_the_lowest_of_them(tiny_checkpoint: Path) -> None:
    """Two windows of three tokens that share one, then the answers at several thresholds."""
    rows = [{"context": "很好热情", "question": "", "answers": ""}]
    table = table_of(rows)
    task = Spans.learn(table, max_length=8, max_question=1, stride=1, n_best=3, null_threshold=0.0)
    words = words_of(tiny_checkpoint)
    data = task.encode(task.read(table), words)
    data.windows = [[(0, 3), (2, 4)]]  # 很好热, 热情
    batch = data.batch([0])
    assert batch.packed.lengths == (6, 5)
    low = [-9.0, -9.0]
    # [CLS] [SEP] 很 好 热 [SEP], [CLS] [SEP] 热 情 [SEP]
    logits = [[1.2, 1], low, [0, -9], [-9, 1], [2, 0], low, [3, 1], low, [1, -9], [-9, 1.5], low]
    spans = [("热情", 2.5), ("热", 2.0), ("很好", 1.0)]
    for threshold, expected in ((0.0, ["热情", "", "热"]), (-1.5, ["", "热情", "热"]), (3.0, ["热情", "热", "很好"])):
        chosen: Any = Spans(**{**vars(task), "null_threshold": threshold})
        (answer,) = chosen.predict(Model(logits), batch)
        listed = [entry["text"] for entry in answer["n_best"]]
        assert listed[:3] == expected
        said = {e["text"]: e["score"] for e in answer["n_best"]}
        assert said == pytest.approx({"": 2.2, **dict(spans)})
        assert answer["prediction"] == expected[0]
        assert sum(entry["probability"] for entry in answer["n_best"]) == pytest.approx(1)
    assert (answer["start"], answer["end"]) == (2, 4)
    assert answer["probability"] == pytest.approx(
        math.e**2.5 / (math.e**2.5 + math.e**2.2 + math.e**2 + math.e), abs=1e-6
    )
    never: Any = Spans(**{**vars(task), "unanswerable": False})
    assert [entry["text"] for entry in never.predict(Model(logits), batch)[0]["n_best"]] == ["热情", "热", "很好"]


@given(st.integers(0, 9), st.integers(1, 5), st.integers(1, 60), st.integers(0, 3), st.integers(0, 2**20))
def test_the_best_spans_are_those_that_trying_all_finds(
    size: int, most: int, count: int, first: int, seed: int
) -> None:
    drawn = np.random.default_rng(seed)
    logits = drawn.normal(size=(size, 2))
    starts = np.arange(first + size)
    passage = Pieces(ids=starts, starts=starts, stops=starts + drawn.integers(0, 2, size=first + size))
    found = best_spans(logits, passage, first, most=most, count=count)
    visible = [passage.starts[first + i] < passage.stops[first + i] for i in range(size)]
    every = [
        (float(logits[i, 0] + logits[j, 1]), first + i, first + j)
        for i in range(size)
        for j in range(i, min(size, i + most))
        if visible[i] and visible[j]
    ]
    assert sorted(found) == sorted(sorted(every, reverse=True)[:count])


@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([-2.0, -0.5, 0.0, 1.0, 2.0])), max_size=8))
def test_the_best_threshold_is_the_one_that_trying_all_finds(rows: list[tuple[int, float]]) -> None:
    def total(threshold: float) -> float:
        return sum(gain for difference, gain in rows if difference <= threshold)

    threshold = best_threshold([float(d) for d, _ in rows], [g for _, g in rows])
    assert total(threshold) == max(total(step / 2) for step in range(-9, 10))


# Whole runs


def squad_file(rows: list[dict[str, Any]], path: Path) -> Path:
    paragraphs = [
        {
            "context": row["context"],
            "qas": [
                {
                    "id": str(i),
                    "question": row["question"],
                    "answers": json.loads(row["answers"]),
                    "is_impossible": row["answers"] == "[]",
                }
            ],
        }
        for i, row in enumerate(rows)
    ]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"version": "v2.0", "data": [{"title": "", "paragraphs": paragraphs}]}, file)
    return path


def test_a_run_tunes_its_threshold_on_dev_and_its_folder_answers_files(tiny_checkpoint: Path, tmp_path: Path) -> None:
    rows = reviews_asked(96, unanswerable=True)
    files = {
        part: str(squad_file(chosen, tmp_path / f"{part}.json.gz"))
        for part, chosen in (("train", rows[:64]), ("dev", rows[64:]), ("test", rows[::2]))
    }
    result = finetune(
        str(tiny_checkpoint),
        tmp_path / "out",
        source=DataSource(**files),
        task_name="spans",
        options=SHORT,
        training={"epochs": 2, "learning_rate": 5e-3, "batch_size": 8},
    )
    assert result["metric"] == "score"
    tuned = load_model(tmp_path / "out")
    task = tuned.model.task
    assert isinstance(task, Spans)
    assert task.null_threshold != 0
    dev = task.read(read_table(files["dev"]))
    answers = tuned.answer(dev)
    # No threshold does better on the questions that chose it.
    chosen = task.score(answers, dev)["score"]
    assert chosen >= result["best_dev"] - 1e-9
    for other in (-100.0, 0.0, 100.0):
        model = TaskModel(tuned.model.encoder, Spans(**{**vars(task), "null_threshold": other}))
        model.encoder.heads["span"].load_state_dict(load(str(tmp_path / "out")).heads["span"].state_dict())
        assert chosen >= task.score(model.eval().predict(task.encode(dev, tuned.tokenizer)), dev)["score"] - 1e-9
    test = task.read(read_table(files["test"]))
    assert task.score(tuned.answer(test), test)["score"] == result["test"]["score"]
    for target in (tmp_path / "said.jsonl", tmp_path / "said.csv"):
        predict_file(tmp_path / "out", files["dev"], target)
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["prediction"] for line in said] == [answer["prediction"] for answer in answers]
    for line in said:
        for entry in line["n_best"]:
            assert entry["text"] == ("" if entry["start"] is None else line["context"][entry["start"] : entry["end"]])


# What transformers' own examples do (run_qa.py, utils_qa.py), with its classes and tokenizers alone.
STOCK_ANSWERS = """
import itertools, torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

result = []
for folder in arguments["folders"]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, info = AutoModelForQuestionAnswering.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    answers = []
    for question, context in arguments["pairs"]:
        inputs = tokenizer(
            question, context, truncation="only_second", max_length=arguments["max_length"], stride=arguments["stride"],
            return_overflowing_tokens=True, return_offsets_mapping=True, padding=True, return_tensors="pt",
        )
        places, _ = inputs.pop("offset_mapping"), inputs.pop("overflow_to_sample_mapping")
        with torch.no_grad():
            outputs = model.eval()(**inputs)
        found = {}
        places, logits = places.tolist(), (outputs.start_logits.tolist(), outputs.end_logits.tolist())
        for window, (starts, ends) in enumerate(zip(*logits)):
            inside = [i for i, s in enumerate(inputs.sequence_ids(window)) if s == 1]
            for first, last in itertools.combinations_with_replacement(inside, 2):
                if last - first < arguments["max_answer"]:
                    span = (places[window][first][0], places[window][last][1])
                    found[span] = max(found.get(span, -1e9), starts[first] + ends[last])
        (start, stop), score = max(found.items(), key=lambda item: item[1])
        null = float((outputs.start_logits[:, 0] + outputs.end_logits[:, 0]).min())
        answers.append([context[start:stop], start, stop, score, null, len(outputs.start_logits)])
    result.append([type(model).__name__, answers])
"""


def test_stock_classes_give_the_same_answers_without_thrice(tiny_checkpoint: Path, tmp_path: Path) -> None:
    table = table_of(reviews_asked(24, unanswerable=True))
    task = Spans.learn(table, **SHORT)
    kinds = {"bert": words_of(tiny_checkpoint), "roberta": byte_tokenizer(tmp_path / "bytes")}
    folders, expected = [], []
    for family in ("bert", "albert", "electra", "roberta"):
        words = kinds.get(family, kinds["bert"])
        encoder = tiny_encoder(family, vocab_size=words.vocab_size, max_position_embeddings=64)
        model = TaskModel(encoder, task, seed=3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0.0, 0.4, generator=torch.Generator().manual_seed(7 + parameter.numel()))
        folders.append(str(save_model(model, tmp_path / family, words)))
        questions = task.read(table, gold=False)
        expected.append(model.eval().predict(data := task.encode(questions, words)))
        assert max(map(len, data.windows)) > 1
    pairs = [[question.question, question.context] for question in questions]
    arguments = {"pairs": pairs, **{key: SHORT[key] for key in ("max_length", "stride", "max_answer")}}
    for ours, (name, theirs) in zip(
        expected, run_without_thrice(STOCK_ANSWERS, folders=folders, **arguments), strict=True
    ):
        assert name.endswith("ForQuestionAnswering")
        assert len({text for text, *_ in theirs}) > 5
        for mine, (text, start, stop, score, null, _) in zip(ours, theirs, strict=True):
            best = next(entry for entry in mine["n_best"] if entry["start"] is not None)
            assert (best["text"], best["start"], best["end"]) == (text, start, stop)
            assert best["score"] == pytest.approx(score, abs=1e-5)
            (none,) = (entry["score"] for entry in mine["n_best"] if entry["start"] is None)
            assert none == pytest.approx(null, abs=1e-5)
            assert mine["prediction"] == ("" if none - best["score"] > task.null_threshold else best["text"])


def test_other_families_answer_through_their_own_class(tmp_path: Path) -> None:
    table = table_of(reviews_asked(24, unanswerable=True))
    task = Spans.learn(table, **SHORT)
    for family in ("distilbert", "deberta-v2"):
        folder = stock_folder(family, tmp_path / family)
        contracts.task_contract(task, table, folder, tmp_path / f"{family}.out", perfect=perfect)
