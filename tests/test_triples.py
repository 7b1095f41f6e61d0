"""Relation triples: the contract with both heads, shapes of input, spans, scores by hand, and all of DuIE's dev set."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import contracts
import pytest
import tiny_stock
import torch
from conftest import NEGATIVE, POSITIVE
from no_thrice import run_without_thrice

from thrice import cli
from thrice.checkpoints import load, load_any
from thrice.data.readers import Table, read_table
from thrice.data.tokenizer import Tokenizer
from thrice.errors import ConfigError, DataError
from thrice.finetune import DataSource, cut_note, save_model
from thrice.model.conditional import ConditionalHead
from thrice.model.pointer import PairScores, Rows, link
from thrice.predict import predict_file
from thrice.tasks.base import TaskModel
from thrice.tasks.triples import HEADS, Example, Triples, TriplesBatch

WORDS = (*POSITIVE, *NEGATIVE)


def sentences(count: int = 24) -> list[dict[str, Any]]:
    """Give sentences with no, one, several, overlapping and nested triples."""
    rows = []
    for number in range(count):
        one, other = WORDS[number % 12], WORDS[(5 * number + 3) % 12]
        text = f"{one}{number}{other}"
        triples = [[one, "先", other]] if one != other else []
        if number % 3 == 0:
            triples = [*triples, [one, "号", str(number)], [one[:2], "含", one]]  # one subject, and one inside it
        if number % 8 == 7:
            triples = []
        rows.append({"text": text, "triples": triples})
    return rows


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return read_table(write(tmp_path / "rows.jsonl", sentences()))


def perfect(example: Example) -> dict[str, Any]:
    return {
        "prediction": [dict(zip(("subject", "predicate", "object"), t, strict=True)) for t in example.triples or ()]
    }


@pytest.mark.parametrize("head", HEADS)
def test_triples_keep_the_task_contract(head: str, table: Table, tiny_checkpoint: Path, tmp_path: Path) -> None:
    task = Triples.learn(table, head=head, max_length=32)
    contracts.task_contract(task, table, tiny_checkpoint, tmp_path, perfect=perfect)


def trained(task: Triples, table: Table, checkpoint: Path) -> tuple[TaskModel, Tokenizer]:
    """Give a model that has learned the table, so that it has triples to say."""
    encoder = load(str(checkpoint))
    tokenizer = Tokenizer.from_folder(checkpoint, vocab_size=encoder.config.vocab_size)
    torch.manual_seed(0)
    model = TaskModel(encoder, task)
    data = task.encode(task.read(table), tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()
    for _ in range({"pointer": 120, "conditional": 200}[task.head]):
        model.loss(data.batch(range(len(data)))).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), tokenizer


@pytest.mark.parametrize("head", HEADS)
def test_a_trained_model_says_the_triples_of_its_sentences_however_they_are_batched(
    head: str, table: Table, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    task = Triples.learn(table, head=head, max_length=32)
    model, tokenizer = trained(task, table, tiny_checkpoint)
    examples = task.read(table)
    data = task.encode(examples, tokenizer)
    alone = model.predict(data, max_tokens=1)
    assert sum(len(answer["prediction"]) for answer in alone) >= 20
    # The essay's head takes one end for each start, so of a subject inside another it has one.
    assert task.score(alone, examples)["f1"] > {"pointer": 0.9, "conditional": 0.6}[head]
    for max_tokens in (50, 10_000):
        contracts.assert_close(alone, model.predict(data, max_tokens=max_tokens))
    for example, answer in zip(examples, alone, strict=True):
        for triple in answer["prediction"]:
            for part in ("subject", "object"):
                start, end = triple[f"{part}_span"]
                assert example.text[start:end] == triple[part]


def test_the_essays_head_draws_its_subjects_from_the_generator_that_a_run_saves(
    table: Table, tiny_checkpoint: Path
) -> None:
    task = Triples.learn(table, head="conditional", max_length=32)
    model = TaskModel(load(str(tiny_checkpoint)), task)
    tokenizer = Tokenizer.from_folder(tiny_checkpoint)
    batch = task.encode(task.read(table), tokenizer).batch(range(12))
    model.head.norm.gain.weight.data.normal_(generator=torch.Generator().manual_seed(1))
    model.train()
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(model.loss(batch).item())
    assert losses[0] == losses[1] != losses[2]
    model.eval()
    state = torch.get_rng_state()
    assert model.loss(batch).item() == model.loss(batch).item()
    assert torch.equal(torch.get_rng_state(), state)


# Shapes of input


def learned(tmp_path: Path, rows: Sequence[dict[str, Any]], **options: Any) -> tuple[Triples, list[Example]]:
    table = read_table(write(tmp_path / "rows.jsonl", rows))
    task = Triples.learn(table, **options)
    return task, task.read(table)


def test_all_shapes_of_triples_are_read_alike(tmp_path: Path) -> None:
    duie = {"predicate": "作者", "subject": "书", "object": {"@value": "人", "inWork": "x"}, "subject_type": "图书"}
    lic = {"predicate": "作者", "subject": "书", "object": "人", "object_type": "人物"}
    want = (("书", "作者", "人"),)
    for name, entry in (("spo_list", duie), ("spo_list", lic), ("triples", ["书", "作者", "人"]), ("relations", lic)):
        task, examples = learned(tmp_path, [{"text": "书的人", name: [entry, entry]}])
        assert examples == [Example(text="书的人", triples=want)]
        assert task.num_slots == (2 if entry is duie else 0)
    # as text in a csv file
    (tmp_path / "rows.csv").write_text('text,triples\n书的人,"[[""书"", ""作者"", ""人""]]"\n', encoding="utf-8")
    table = read_table(tmp_path / "rows.csv")
    assert Triples.learn(table).read(table)[0].triples == want


def test_numbers_are_the_text_they_were_written_as(tmp_path: Path) -> None:
    _, examples = learned(tmp_path, [{"text": "a 1.50", "triples": [["a", "costs", 1.50], ["a", "n", "1.50"]]}])
    assert examples[0].triples == (("a", "costs", "1.5"), ("a", "n", "1.50"))


def test_bad_rows_are_named_all_at_once(tmp_path: Path) -> None:
    rows = [
        {"text": "a", "triples": [["a", "r", "a"]]},
        {"text": "a", "triples": [["a", "r"]]},
        {"text": "a"},
        {"text": "a", "triples": ["a", "r", "a"]},
        {"text": "a", "triples": [{"subject": "a", "predicate": "", "object": {"value": "a"}}]},
        {"text": "a", "triples": "a|r|a"},
    ]
    with pytest.raises(DataError, match="null or missing"):
        learned(tmp_path, rows)
    with pytest.raises(DataError) as caught:
        learned(tmp_path, [row for row in rows if "triples" in row])
    message = str(caught.value)
    for part in ("(4)", "line 2", "line 3", "line 4", "predicate and object", "line 5", "JSON list"):
        assert part in message


def test_what_cannot_be_learned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no triple at all"):
        learned(tmp_path, [{"text": "a", "triples": []}])
    with pytest.raises(DataError, match=r"which column holds the triples.*--label-column"):
        learned(tmp_path, [{"text": "a", "facts": []}])
    with pytest.raises(DataError, match="no column 'triplse'"):
        learned(tmp_path, [{"text": "a", "triples": []}], label_column="triplse")
    with pytest.raises(ConfigError, match=r"--head is 'point'.*--max-length is 2"):
        learned(tmp_path, [{"text": "a", "triples": [["a", "r", "a"]]}], head="point", max_length=2)
    task, _ = learned(tmp_path, [{"text": "a", "triples": [["a", "r", "a"]]}], max_length=64)
    with pytest.raises(DataError, match="entries \\[1\\]"):
        task.from_texts(["a", 1])


def test_what_is_not_in_the_text_is_counted_told_and_kept_for_scoring(tmp_path: Path, nano: Path) -> None:
    rows = [
        {"text": "书的作者是2019年的人", "triples": [["书", "作者", "人"], ["书", "作者", "王"], ["书", "年", "19"]]}
    ]
    task, examples = learned(tmp_path, rows)
    assert task.num_absent == 1
    assert "1 of them not in their text" in task.describe()
    data = task.encode(examples, Tokenizer.from_folder(nano))
    assert data.num_lost == 2  # 19 is a part of the token 2019
    assert cut_note(data) == [
        "2 of 3 training triples are not learned from: no run of tokens kept is the subject or the object"
    ]
    scores = task.score([perfect(Example(text="", triples=(("书", "作者", "人"),)))], examples)
    assert (scores["precision"], scores["recall"], scores["gold_not_in_text"]) == (1.0, pytest.approx(1 / 3), 1)


def test_scores_are_the_ones_counted_by_hand(tmp_path: Path) -> None:
    task, _ = learned(tmp_path, [{"text": "a b c", "triples": [["a", "r", "b"], ["a", "q", "c"]]}])
    gold = [
        Example(text="a b c", triples=(("a", "r", "b"), ("a", "q", "c"))),
        Example(text="b a", triples=(("b", "s", "a"),)),
        Example(text="c", triples=()),
    ]
    said = [Example(text="", triples=t) for t in ((("a", "r", "b"), ("a", "r", "c")), (), (("c", "q", "c"),))]
    answers = [perfect(example) for example in said]
    scores = task.score(answers, gold)
    assert (scores["precision"], scores["recall"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert scores["per_predicate"]["r"] == {"f1": 2 / 3, "precision": 0.5, "recall": 1.0, "gold": 1, "predicted": 2}
    assert scores["per_predicate"]["q"]["f1"] == 0.0
    assert scores["gold_of_unseen_predicates"] == 1
    assert not scores["collapsed"]
    contracts.counts_contract(task, answers, gold)
    nothing = task.score([{"prediction": []}] * 3, gold)
    assert (nothing["f1"], nothing["precision"], nothing["collapsed"]) == (0.0, 0.0, True)
    assert task.shown(gold[0]) == {"text": "a b c", "gold": "a | r | b; a | q | c"}


def test_a_long_text_is_cut_aloud(tmp_path: Path, nano: Path) -> None:
    task, examples = learned(tmp_path, [{"text": "书" * 40 + "人", "triples": [["书", "作者", "人"]]}], max_length=20)
    data = task.encode(examples, Tokenizer.from_folder(nano))
    assert (data.num_cut, data.num_lost, data.lengths.tolist()) == (1, 1, [20])
    assert len(cut_note(data)) == 2


def test_an_empty_text_has_no_triples(table: Table, tiny_checkpoint: Path) -> None:
    for head in HEADS:
        task = Triples.learn(table, head=head, max_length=32)
        model = TaskModel(load(str(tiny_checkpoint)), task)
        data = task.encode([Example(text=""), Example(text="  ")], Tokenizer.from_folder(tiny_checkpoint))
        assert model.predict(data) == [{"prediction": []}] * 2
        assert torch.isfinite(model.loss(data.batch([0, 1])))


# Real data


def gold_answers(task: Triples, batch: TriplesBatch) -> list[dict[str, Any]]:
    """Give what the pointers would answer, were every gold score 1 and every other -1."""
    size = batch.rows.real.shape[1]
    parts = []
    for gold, kinds in zip(batch.pairs, (2, len(task.predicates), len(task.predicates)), strict=True):
        dense = torch.full((batch.num_examples, kinds, size, size), -1.0)
        dense[gold.owner[gold.pair], gold.kind, gold.first[gold.pair], gold.second[gold.pair]] = 1.0
        parts.append(Dense(dense))
    return task.answers_of(link(*parts), batch)


class Dense(PairScores):
    """Scores that are given whole."""

    def __init__(self, whole: torch.Tensor) -> None:
        self.whole = whole

    @property
    def dense(self) -> torch.Tensor:  # type: ignore[override]
        return self.whole

    def at(self, owner: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.whole[owner, :, first, second]


def duie(shared_data: Path, name: str) -> Table:
    return read_table(shared_data / "duie_subset" / f"{name}.json.gz")


def wrong_answers(answers: Sequence[dict[str, Any]], examples: Sequence[Example]) -> tuple[list[Any], list[Any]]:
    """Give the triples that were said and are not gold, and those that are gold and were not said."""
    more, less = [], []
    for answer, example in zip(answers, examples, strict=True):
        said = {(t["subject"], t["predicate"], t["object"]) for t in answer["prediction"]}
        more += [(example.text, triple) for triple in said - set(example.triples or ())]
        less += [(example.text, triple) for triple in set(example.triples or ()) - said]
    return more, less


class GoldHead(ConditionalHead):
    """A head of the essay that is sure of gold."""

    def __init__(self, batch: TriplesBatch, predicates: int) -> None:
        super().__init__(4, predicates, eps=1e-6)
        self.gold = batch.gold

    def subject_logits(self, states: torch.Tensor, rows: Rows) -> torch.Tensor:
        logits = torch.full((*rows.real.shape, 2), -20.0)
        for b, own in enumerate(self.gold):
            logits[b, own[:, 0], 0] = logits[b, own[:, 1], 1] = 20.0
        return logits

    def object_logits(self, before: torch.Tensor, rows: Rows, places: torch.Tensor) -> torch.Tensor:
        logits = torch.full((len(places), rows.real.shape[1], self.predicates, 2), -20.0)
        for k, (b, first, last) in enumerate(places.tolist()):
            own = self.gold[b][(self.gold[b][:, 0] == first) & (self.gold[b][:, 1] == last)]
            logits[k, own[:, 3], own[:, 2], 0] = logits[k, own[:, 4], own[:, 2], 1] = 20.0
        return logits


def test_gold_scores_give_all_triples_of_duie_but_those_that_are_explained(shared_data: Path, nano: Path) -> None:
    table = duie(shared_data, "duie_dev")
    task = Triples.learn(table, max_length=300)
    assert (len(task.predicates), task.num_triples, task.num_absent) == (45, 3655, 0)
    examples = task.read(table)
    data = task.encode(examples, Tokenizer.from_folder(nano))
    assert data.num_cut == 0
    pointed, conditional = [], []
    for start in range(0, len(data), 50):
        batch = data.batch(range(start, start + 50))
        pointed += gold_answers(task, batch)
        head, nothing = GoldHead(batch, len(task.predicates)), torch.zeros(1)
        conditional += task.answers_of(head.link(nothing, nothing, batch.rows), batch)
    # Three gold arguments begin or end with a blank, which no token has: no head can say them.
    more, less = wrong_answers(pointed, examples)
    assert data.num_lost == len(less) == 3
    assert all(subject != subject.strip() or object_ != object_.strip() for _, (subject, _, object_) in less)
    # Three triples too many, each of two nested subjects and two nested objects of one predicate: where one pair shares
    # its head with a triple and its tail with another, pointers cannot tell the two apart.
    assert len(more) == 3
    for text, (subject, predicate, object_) in more:
        own = [t for example in examples if example.text == text for t in example.triples or () if t[1] == predicate]
        assert any(t[0] != subject and (t[0] in subject or subject in t[0]) and t[2] == object_ for t in own) or any(
            t[2] != object_ and (t[2] in object_ or object_ in t[2]) and t[0] == subject for t in own
        )
    scores = task.score(pointed, examples)
    assert scores["f1"] == pytest.approx(2 * 3652 / (3655 + 3655))
    # The essay's head ends a start at the next end, so an argument with the end of another inside is said cut short:
    # "2008年9月" beside "2008年".
    more, less = wrong_answers(conditional, examples)
    assert (len(more), len(less)) == (0, 9)
    for text, triple in less:
        parts = {part for example in examples if example.text == text for t in example.triples or () for part in t[::2]}
        blank = any(part != part.strip() for part in triple)
        assert blank or any(whole != part and part in whole for whole in triple[::2] for part in parts), triple


def conll(path: Path) -> list[dict[str, Any]]:
    """Give text and triples of a file in the column format of CoNLL04, whose relations join the last tokens."""
    rows = []
    for block in path.read_text(encoding="utf-8").split("#doc")[1:]:
        tokens = [line.split("\t") for line in block.strip().split("\n")[1:]]
        words = [token[1] for token in tokens]

        def entity(last: int, tokens: list[list[str]] = tokens, words: list[str] = words) -> str:
            first = last
            while tokens[first][2].startswith("I-"):
                first -= 1
            return " ".join(words[first : last + 1])

        triples = []
        for i, token in enumerate(tokens):
            for name, other in zip(ast.literal_eval(token[3]), ast.literal_eval(token[4]), strict=True):
                if name != "N":
                    triples.append([entity(i), name, entity(other)])
        rows.append({"text": " ".join(words), "triples": triples})
    return rows


def test_gold_scores_give_all_triples_of_english_too(shared_data: Path, nano: Path, tmp_path: Path) -> None:
    rows = conll(shared_data / "conll04" / "dev.txt")
    table = read_table(write(tmp_path / "conll04.jsonl", rows))
    task = Triples.learn(table, max_length=512)
    assert task.predicates == ("Kill", "Live_In", "Located_In", "OrgBased_In", "Work_For")
    assert task.num_absent == 0
    (tmp_path / "vocab.txt").write_bytes((shared_data / "vocabs" / "bert-base-uncased-vocab.txt").read_bytes())
    examples = task.read(table)
    data = task.encode(examples, Tokenizer.from_folder(tmp_path))
    parts = [range(len(data))[start : start + 20] for start in range(0, len(data), 20)]
    answers = [answer for part in parts for answer in gold_answers(task, data.batch(part))]
    assert sum(len(answer["prediction"]) for answer in answers) > 300
    more, less = wrong_answers(answers, examples)
    assert (more, less, data.num_lost, data.num_cut) == ([], [], 0, 0)


# The whole way


def stock_states(folder: Path, ids: list[int]) -> list[Any]:
    code = """
import torch, transformers
transformers.logging.set_verbosity_error()
model = transformers.AutoModel.from_pretrained(arguments["folder"]).eval()
with torch.no_grad():
    states = model(torch.tensor([arguments["ids"]])).last_hidden_state[0]
result = [type(model).__name__, states.tolist()]
"""
    return list(run_without_thrice(code, folder=str(folder), ids=ids))


@pytest.mark.parametrize("head", HEADS)
def test_a_saved_folder_is_a_stock_encoder_with_the_head_beside_it(
    head: str, table: Table, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    task = Triples.learn(table, head=head, max_length=32)
    model = TaskModel(load(str(tiny_checkpoint)), task).eval()
    tokenizer = Tokenizer.from_folder(tiny_checkpoint)
    folder = save_model(model, tmp_path / "saved", tokenizer)
    batch = task.encode([Example(text="喜欢这本书")], tokenizer).batch([0])
    name, states = stock_states(folder, batch.packed.input_ids.tolist())
    assert name == "AlbertModel"
    with torch.no_grad():
        assert torch.allclose(torch.tensor(states), model.encoder(batch.packed), atol=1e-5)
    assert (folder / "task_head.safetensors").is_file()


@pytest.mark.parametrize("head", HEADS)
def test_a_run_of_the_command_line_finds_triples_in_a_file(
    head: str,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path / "train.jsonl", sentences(24))
    write(tmp_path / "texts.jsonl", [{"text": row["text"], "id": i} for i, row in enumerate(sentences(9))])
    command = [
        "thrice",
        "finetune",
        str(tiny_checkpoint),
        "--out",
        str(tmp_path / "out"),
        "--task",
        "triples",
        "--head",
        head,
    ]
    command += ["--train", str(tmp_path / "train.jsonl"), "--dev", str(tmp_path / "train.jsonl"), "--max-length", "30"]
    command += ["--ema-decay", "0.9", "--epochs", "2", "--lr", "0.01", "-o", "label_column=triples"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code, capsys.readouterr().err
    assert "not averaged: f1" in capsys.readouterr().err
    predict_file(tmp_path / "out", str(tmp_path / "texts.jsonl"), tmp_path / "answers.jsonl")
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [answer["id"] for answer in answers] == [str(i) for i in range(9)]
    assert all(isinstance(answer["prediction"], list) for answer in answers)


def test_a_comparison_of_triples_goes_the_whole_way(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thrice.compare.grid import Study, StudyTask, arms_of
    from thrice.compare.results import read_rows
    from thrice.compare.runner import run_study
    from thrice.compare.summary import summarise
    from thrice.report.page import render_report
    from thrice.training import TrainingConfig

    monkeypatch.setattr("thrice.compare.runner.measure_cost", lambda *_: None)
    source = DataSource(data=str(write(tmp_path / "rows.jsonl", sentences(60))))
    tasks = tuple(
        StudyTask(name=head, kind="triples", metric="f1", options={"head": head, "max_length": 32}, source=source)
        for head in HEADS
    )
    training = TrainingConfig(epochs=4, learning_rate=0.01, batch_size=8, max_grad_norm=0.0)
    arms = arms_of(f"{tiny_checkpoint}+all", f"{tiny_checkpoint}+none")
    run_study(Study(arms=arms, tasks=tasks, seeds=(0,), training=training), tmp_path / "study")
    summary = summarise(tmp_path / "study")
    assert summary["cells"] == {"done": 4, "planned": 4}
    page = render_report(summary, read_rows(tmp_path / "study"))
    for part in summary["tasks"]:
        assert all(run["test"] is not None for arm in part["arms"] for run in arm["runs"])
        found = part["arms"][1]["test"]["difference"]
        assert found["items"] is None or found["items"]["mean"] == pytest.approx(found["mean"])
        assert part["task"] in page


def test_a_checkpoint_without_states_before_the_last_norm_is_refused_for_the_essays_head(
    table: Table, tmp_path: Path
) -> None:
    encoder = load_any(str(tiny_stock.stock_folder("distilbert", tmp_path / "distilbert")))
    with pytest.raises(ConfigError, match=r"--head conditional.*use --head pointer"):
        TaskModel(encoder, Triples.learn(table, head="conditional", max_length=32))
    model = TaskModel(encoder, Triples.learn(table, max_length=32))
    assert model.head is not None
    with pytest.raises(ConfigError, match="positions"):
        TaskModel(encoder, Triples.learn(table, max_length=9999))
