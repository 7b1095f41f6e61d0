"""Tagging: the task contract, CoNLL files, windows, spans of texts, scores by hand, the saved folder in stock code."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import contracts
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from no_thrice import run_without_thrice

from thrice.checkpoints import load
from thrice.data.entities import cells, entities_in, spans_of, tags_of
from thrice.data.readers import Table, read_table
from thrice.data.tagged import TaggedText, of_text, of_tokens, word_tags
from thrice.data.tokenizer import Tokenizer
from thrice.data.words import pieces_of_words, windows, words_of
from thrice.errors import ConfigError, DataError
from thrice.finetune import save_model
from thrice.predict import load_model, predict_file
from thrice.tasks.base import TaskModel
from thrice.tasks.tagging import Tagging


def table_of(rows: list[dict], columns: tuple[str, ...] = ("tokens", "tags")) -> Table:
    lines = list(range(1, len(rows) + 1))
    return Table(columns=columns, rows=rows, lines=lines, source="here", fingerprint="0")


CHARACTERS = [
    {"tokens": list("质量很好"), "tags": ["B-A", "I-A", "O", "O"]},
    {"tokens": list("物流太慢服务热情"), "tags": ["B-A", "I-A", "O", "O", "B-A", "I-A", "B-B", "I-B"]},
    {"tokens": list("值得推荐"), "tags": ["O"] * 4},
    {"tokens": ["书"], "tags": ["B-B"]},
] * 4
TEXTS = [
    {"text": "质量很好 123", "entities": json.dumps([{"start": 0, "end": 2, "label": "A"}])},
    {"text": "物流太慢，服务热情", "entities": json.dumps([[0, 2, "A"], [5, 7, "A"], [7, 9, "B"]])},
    {"text": "值得推荐", "entities": []},
    {"text": "", "entities": []},
] * 4


def perfect(example: TaggedText) -> dict:
    return {"prediction": [{"start": a, "end": b, "label": kind} for a, b, kind in example.entities]}


@pytest.mark.parametrize("options", [{"max_length": 32}, {"max_length": 6}, {"max_length": 6, "stride": 0}])
def test_tokens_with_tags_keep_the_task_contract(options: dict, tiny_checkpoint: Path, tmp_path: Path) -> None:
    task = Tagging.learn(table_of(CHARACTERS), **options)
    assert task.between == "", "tokens are single characters"
    contracts.task_contract(task, table_of(CHARACTERS), tiny_checkpoint, tmp_path, perfect=perfect)


@pytest.mark.parametrize("max_length", [32, 6])
def test_texts_with_entities_keep_the_task_contract(max_length: int, tiny_checkpoint: Path, tmp_path: Path) -> None:
    table = table_of(TEXTS, ("text", "entities"))
    task = Tagging.learn(table, max_length=max_length)
    assert task.answers == ("prediction",)
    contracts.task_contract(task, table, tiny_checkpoint, tmp_path, perfect=perfect)


def taught(task: Tagging, examples: list[TaggedText], checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Give the answers of a model that says of every tagged word what it was taught: the whole way there and back."""
    encoder = load(str(checkpoint))
    words = Tokenizer.from_folder(checkpoint, vocab_size=encoder.config.vocab_size)
    data = task.encode(examples, words)
    sure = torch.eye(len(task.tags)) * 20
    monkeypatch.setattr(Tagging, "logits", lambda self, model, batch: sure[batch.targets])
    return TaskModel(encoder, task).eval().predict(data)


@pytest.mark.parametrize("max_length", [128, 16])
def test_the_gold_tags_of_the_whole_weibo_corpus_come_back_as_they_were(
    max_length: int, shared_data: Path, nano: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shared_data / "weibo_ner"
    train = read_table(folder / "weiboNER_2nd_conll.train.gz", format="conll")
    assert (len(train.rows), train.columns) == (1350, ("tokens", "tags", "segment"))
    task = Tagging.learn(train, max_length=max_length)
    assert task.between == ""
    task.read(train)
    assert "10 I- tags follow no entity of their type" in caplog.text
    caplog.clear()
    table = read_table(folder / "weiboNER_2nd_conll.dev", format="conll")
    examples = task.read(table)
    assert (len(examples), sum(len(e.entities) for e in examples)) == (270, 389)
    answers = taught(task, examples, nano, monkeypatch)
    scores = task.score(answers, examples)
    assert [scores[name] for name in task.metrics] == [1, 1, 1]
    assert [answer["tags"] for answer in answers] == [row["tags"] for row in table.rows]
    contracts.counts_contract(task, answers, examples)
    assert not caplog.records
    task.read(read_table(folder / "weiboNER_2nd_conll.test", format="conll"))
    assert "4 I- tags follow no entity of their type and are read as its beginning" in caplog.text


@pytest.mark.parametrize("max_length", [128, 16])
def test_the_gold_tags_of_the_whole_conll04_dev_set_come_back_as_they_were(
    max_length: int, shared_data: Path, minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = read_table(shared_data / "conll04" / "dev.txt", format="conll")
    assert table.columns == ("column_1", "tokens", "tags", "column_4", "column_5")
    task = Tagging.learn(table, max_length=max_length)
    assert (task.types, task.between) == (("Loc", "Org", "Other", "Peop"), " ")
    examples = task.read(table)
    answers = taught(task, examples, minilm, monkeypatch)
    scores = task.score(answers, examples)
    assert [scores[name] for name in task.metrics] == [1, 1, 1]
    assert {kind: found["entities"] for kind, found in scores["types"].items()} == {
        "Loc": 337,
        "Org": 190,
        "Other": 125,
        "Peop": 225,
    }
    assert [answer["tags"] for answer in answers] == [row["tags"] for row in table.rows]
    first = answers[0]["prediction"][0]
    assert examples[0].text[first["start"] : first["end"]] == first["text"] == "Dennis DeConcini"


def test_entities_of_whole_texts_come_back_as_they_were(
    shared_data: Path, minilm: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = read_table(shared_data / "conll04" / "dev.txt", format="conll")
    texts = [of_text(e.text, e.entities) for e in Tagging.learn(table).read(table)]
    rows = [{"text": e.text, "entities": json.dumps(e.entities)} for e in texts]
    task = Tagging.learn(table_of(rows, ("text", "entities")))
    answers = taught(task, task.read(table_of(rows, ("text", "entities"))), minilm, monkeypatch)
    found = task.counts(answers, texts).sum(axis=0)
    # Three entities of 877 end inside a word there: "Grandma" in "Grandma_s", ... see the warning.
    inexact = int(found[2] - found[0])
    assert inexact == (int(caplog.records[0].args[0]) if caplog.records else 0)
    assert inexact <= 3


# Tags and entities


def test_tags_are_read_as_conlleval_reads_them() -> None:
    from seqeval.metrics.sequence_labeling import get_entities

    tags = ["I-A", "I-A", "B-A", "I-B", "O", "I-B", "B-B", "I-A", "O"]
    spans, stray = spans_of(tags)
    assert spans == [(0, 2, "A"), (2, 3, "A"), (3, 4, "B"), (5, 6, "B"), (6, 7, "B"), (7, 8, "A")]
    assert stray == [0, 3, 5, 7]
    assert [(a, b - 1) for a, b, _ in spans] == [(a, b) for _, a, b in get_entities(tags)]


@given(st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"]), max_size=12))
def test_spans_and_legal_tags_say_the_same(tags: list[str]) -> None:
    spans, stray = spans_of(tags)
    legal = tags_of(spans, len(tags))
    assert spans_of(legal) == (spans, [])
    assert sum(one != other for one, other in zip(tags, legal, strict=True)) == len(stray)


def test_other_schemes_are_read_as_bio() -> None:
    rows = [{"tokens": list("abcdef"), "tags": ["B-A", "M-A", "E-A", "S-B", "U-B", "O"]}]
    task = Tagging.learn(table_of(rows))
    assert task.read(table_of(rows))[0].entities == ((0, 3, "A"), (3, 4, "B"), (4, 5, "B"))


def test_an_entity_is_right_where_its_type_and_both_ends_are() -> None:
    task = Tagging.learn(table_of(CHARACTERS))
    example = TaggedText(text="0123456789", entities=((0, 2, "A"), (4, 6, "A"), (7, 8, "B")))
    said = [(0, 2, "A"), (4, 5, "A"), (7, 8, "A"), (8, 9, "B")]
    answers = [{"prediction": [{"start": a, "end": b, "label": kind} for a, b, kind in said]}]
    scores = task.score(answers, [example])
    assert (scores["precision"], scores["recall"]) == (1 / 4, 1 / 3)
    assert scores["f1"] == pytest.approx(2 / 7)
    assert scores["types"] == {
        "A": {"f1": pytest.approx(2 / 5), "precision": 1 / 3, "recall": 1 / 2, "entities": 2},
        "B": {"f1": 0.0, "precision": 0.0, "recall": 0.0, "entities": 1},
    }
    assert task.counts(answers, [example]).tolist() == [[1, 4, 3]]
    nothing = task.score([{"prediction": []}], [example])
    assert (nothing["f1"], nothing["collapsed"]) == (0, True)
    assert task.score([{"prediction": []}], [TaggedText(text="")])["collapsed"] is False
    with pytest.raises(ConfigError, match="known: f1, precision, recall"):
        task.from_counts("accuracy", np.ones(3))


spans_in_ten = st.lists(st.integers(0, 10), max_size=8, unique=True).map(sorted)


@given(spans_in_ten, spans_in_ten, st.lists(st.sampled_from("AB"), min_size=8, max_size=8))
def test_random_answers_are_scored_as_they_are_counted(said: list[int], gold: list[int], kinds: list[str]) -> None:
    task = Tagging.learn(table_of(CHARACTERS))
    one, other = (
        tuple((ends[i], ends[i + 1], kinds[i // 2 + shift]) for i in range(0, len(ends) - 1, 2))
        for ends, shift in ((said, 0), (gold, 4))
    )
    answers = [perfect(TaggedText(text="x" * 10, entities=one)), {"prediction": []}]
    contracts.counts_contract(task, answers, [TaggedText(text="x" * 10, entities=other), TaggedText(text="")])
    assert len(spans_of(cells(one, other)[0])[0]) == len(one)


# Words, pieces and windows


def test_words_part_at_spaces_punctuation_and_chinese_characters() -> None:
    text = "U.N. vote:  在Iraq的café3 don't 😀ok ありがとう"
    shown = [text[start:stop] for start, stop in words_of(text)]
    assert shown == [*"U.N.", "vote", ":", "在", "Iraq", "的", "café3", "don", "'", "t", "😀", "ok", *"ありがとう"]


@given(st.text(alphabet="ab1.,'好书 \n\té\u0301\u200b😀あไ\U00020000", max_size=30))
def test_every_piece_belongs_to_one_word_in_their_order(text: str) -> None:
    words = words_of(text)
    assert all(not character.isspace() for start, stop in words for character in text[start:stop])
    covered = "".join(text[start:stop] for start, stop in words)
    assert covered == "".join(text.split())
    pieces = pieces_of_words(_nano_words(), [text], [words])[0]
    assert len(pieces) == len(words)
    if words:
        assert [i for own in pieces for i in own] == _nano_words().content_ids([text])[0]


_CACHED: list[Tokenizer] = []


def _nano_words() -> Tokenizer:
    if not _CACHED:
        _CACHED.append(Tokenizer.from_folder(Path(__file__).parents[1] / "src/thrice/zoo/albert-nano-zh"))
    return _CACHED[0]


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 8), st.integers(0, 7))
def test_every_word_is_owned_by_one_window_that_holds_it(sizes: list[int], room: int, stride: int) -> None:
    stride = min(stride, room - 1)
    found = windows(sizes, room=room, stride=stride)
    owned = [word for _, _, start, stop in found for word in range(start, stop)]
    assert owned == list(range(len(sizes)))
    for start, stop, own_start, own_stop in found:
        assert start <= own_start <= own_stop <= stop
        assert sum(sizes[start:stop]) <= room or stop - start == 1
    for (_, before, _, _), (start, _, _, _) in itertools.pairwise(found):
        assert sum(sizes[start:before]) <= stride


def test_a_word_is_tagged_where_it_sees_most_around_it() -> None:
    assert windows([1] * 10, room=6, stride=2) == [(0, 6, 0, 5), (4, 10, 5, 10)]
    with pytest.raises(ConfigError, match="cannot share 6"):
        windows([1], room=6, stride=6)


def test_cut_texts_are_counted_and_nothing_is_found_in_their_rest(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Tagging.learn(table_of(CHARACTERS), max_length=6, long_texts="cut")
    examples = task.read(table_of(CHARACTERS))
    words = Tokenizer.from_folder(tiny_checkpoint)
    assert task.encode(examples, words).num_cut == 4
    assert Tagging.learn(table_of(CHARACTERS), max_length=6).encode(examples, words).num_cut == 0
    answers = taught(task, examples, tiny_checkpoint, monkeypatch)
    assert answers[1]["tags"] == ["B-A", "I-A", "O", "O", "O", "O", "O", "O"]
    assert task.score(answers, examples)["recall"] == pytest.approx(12 / 20)


def test_a_token_without_pieces_is_tagged_all_the_same(tiny_checkpoint: Path) -> None:
    task = Tagging.learn(table_of(CHARACTERS))
    data = task.encode([of_tokens(["\u200b", "好", "\x00"], between="")], Tokenizer.from_folder(tiny_checkpoint))
    assert data.laid[0].words.tolist() == [0, 1, 2]
    assert data.lengths.tolist() == [5]


def test_an_entity_inside_a_word_is_counted_and_told(
    nano: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": "in Germany today", "entities": '[[3, 9, "A"]]'}]
    task = Tagging.learn(table_of(rows, ("text", "entities")))
    examples = task.read(table_of(rows, ("text", "entities")))
    assert word_tags(examples[0]) == ["O", "B-A", "O"]
    answers = taught(task, examples, nano, monkeypatch)
    assert answers[0]["prediction"][0]["text"] == "Germany"
    assert task.score(answers, examples)["f1"] == 0
    assert "1 entities begin or end inside a word" in caplog.text


# Files


CONLL = """-DOCSTART- -X- O O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

# id 7
Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


def test_conll_files_are_read_by_their_last_tag_column(tmp_path: Path) -> None:
    path = tmp_path / "eng.conll"
    path.write_text(CONLL, encoding="utf-8")
    table = read_table(path)
    assert table.columns == ("tokens", "column_2", "column_3", "tags")
    assert [row["tokens"] for row in table.rows] == [["EU", "rejects"], ["Peter", "Blackburn"]]
    assert table.rows[1]["tags"] == ["B-PER", "I-PER"]
    assert table.lines == [3, 7]
    named = read_table(path, columns=("tokens", "pos", "chunk", "tags"))
    assert named.rows[0]["chunk"] == ["B-NP", "B-VP"]
    with pytest.raises(DataError, match="names 2 columns"):
        read_table(path, columns=("tokens", "tags"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tO\nb\n\nc\tO\td\n", r"bad rows \(2\): line 2: 1 fields, not 2; line 4: 3 fields, not 2"),
        ("a\tO\n\tO\n", "line 2: field 1 is empty"),
        ("\n\n", "is empty"),
        ("# a comment\n", "has no rows"),
    ],
)
def test_broken_conll_files_are_refused_with_their_lines(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bio"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_table(path)


def test_a_hash_is_a_token_where_it_has_all_fields(tmp_path: Path) -> None:
    path = tmp_path / "x.bio"
    path.write_text("#\tO\n#tag\tB-A\n#doc 3\nx\tO\n", encoding="utf-8")
    assert [row["tokens"] for row in read_table(path).rows] == [["#", "#tag"], ["x"]]


def test_bad_rows_and_options_say_what_to_do() -> None:
    rows = [
        {"tokens": ["a", "b"], "tags": ["O"]},
        {"tokens": ["a"], "tags": ["PER"]},
        {"tokens": ["a", ""], "tags": ["O", "B-A"]},
        {"tags": []},
        {"tokens": ["a"], "tags": ["1"]},
    ]
    with pytest.raises(DataError) as caught:
        Tagging.learn(table_of(rows))
    for part in ("(5)", "2 tokens and 1 tags", "the tag 'PER'", "token 2 is empty", "null", "-o tag_names=O,B-PER"):
        assert part in str(caught.value)
    with pytest.raises(DataError, match="no entity at all"):
        Tagging.learn(table_of([{"tokens": ["a"], "tags": ["O"]}]))
    with pytest.raises(DataError, match="which column holds the tags"):
        Tagging.learn(table_of([{"tokens": ["a"], "x": ["O"]}], ("tokens", "x")))
    with pytest.raises(ConfigError, match="windows"):
        Tagging.learn(table_of(CHARACTERS), long_texts="window", stride=90)
    with pytest.raises(DataError, match="types that never occur in the training rows: C"):
        Tagging.learn(table_of(CHARACTERS)).read(table_of([{"tokens": ["a"], "tags": ["B-C"]}]))
    with pytest.raises(DataError, match="entries \\[1\\] are neither"):
        Tagging.learn(table_of(CHARACTERS)).from_texts(["a", 7])


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ('[[0, 9, "A"]]', "outside of the text of 4"),
        ('[[0, 2, "A"], [1, 3, "B"]]', "overlap"),
        ('[{"start": 0, "end": 1, "label": "A", "text": "ab"}]', "says 'ab'"),
        ('[{"start": 0, "label": "A"}]', "is no entity"),
        ("A", "no JSON list"),
        (None, "null or missing"),
    ],
)
def test_entities_that_cannot_be_are_refused(cell: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        entities_in(cell, "abcd")


def test_numbers_are_tags_once_they_are_named() -> None:
    rows = [{"words": '["a", "b"]', "ner_tags": ["1", "2"]}]
    task = Tagging.learn(table_of(rows, ("words", "ner_tags")), tag_names="O,B-A,I-A")
    assert task.read(table_of(rows, ("words", "ner_tags")))[0].entities == ((0, 2, "A"),)


def test_a_hub_set_gives_the_names_of_its_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    names = datasets.ClassLabel(names=["O", "B-PER", "I-PER"])
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(names)})
    rows = {"tokens": [["Ann", "Lee", "ran"], []], "ner_tags": [[1, 2, 0], []]}
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_dict(rows, features=features))
    table = read_table("owner/people@train")
    assert Tagging.learn(table).read(table)[0].entities == ((0, 7, "PER"),)


def test_a_file_is_answered_with_entities_and_tags(tiny_checkpoint: Path, tmp_path: Path) -> None:
    task = Tagging.learn(table_of(CHARACTERS), max_length=16)
    encoder = load(str(tiny_checkpoint))
    words = Tokenizer.from_folder(tiny_checkpoint, vocab_size=encoder.config.vocab_size)
    save_model(TaskModel(encoder, task), tmp_path / "saved", words)
    (tmp_path / "in.conll").write_text("质\n量\n\n好\n", encoding="utf-8")
    lines = [json.loads(line) for line in predict_file(tmp_path / "saved", str(tmp_path / "in.conll"), None)]
    assert [line["tokens"] for line in lines] == [["质", "量"], ["好"]]
    assert [len(line["tags"]) for line in lines] == [2, 1]
    (tmp_path / "in.csv").write_text("id,text\n1,质量好\n", encoding="utf-8")
    predict_file(tmp_path / "saved", str(tmp_path / "in.csv"), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text(encoding="utf-8").startswith("id,text,prediction,tags\n1,质量好,")
    tuned = load_model(tmp_path / "saved")
    assert tuned.predict([["质", "量"]])[0] == {key: lines[0][key] for key in ("prediction", "tags")}


STOCK = """
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

model = AutoModelForTokenClassification.from_pretrained(arguments["folder"])
tokenizer = AutoTokenizer.from_pretrained(arguments["folder"])
tag = pipeline("token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="first", device="cpu")
result = {
    "labels": [model.config.id2label[i] for i in range(model.config.num_labels)],
    "found": [
        [(e["start"], e["end"], e["entity_group"], float(e["score"])) for e in tag(text)] for text in arguments["texts"]
    ],
}
"""


def test_stock_transformers_finds_the_same_entities(shared_data: Path, nano: Path, tmp_path: Path) -> None:
    table = read_table(shared_data / "weibo_ner" / "weiboNER_2nd_conll.dev", format="conll")
    task = Tagging.learn(table)
    encoder = load(str(nano))
    words = Tokenizer.from_folder(nano, vocab_size=encoder.config.vocab_size)
    model = TaskModel(encoder, task)
    with torch.no_grad():  # a head that says everything now and then shows more than a good one, which mostly says "O"
        model.encoder.heads["token"].classifier.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    folder = save_model(model.eval(), tmp_path / "saved", words)
    texts = [example.text for example in task.read(table) if example.entities][:20]
    ours = load_model(folder).predict(texts)
    stock = run_without_thrice(STOCK, folder=str(folder), texts=texts)
    assert tuple(stock["labels"]) == task.tags
    assert sum(len(answer["prediction"]) for answer in ours) > 100
    for mine, theirs in zip(ours, stock["found"], strict=True):
        said = [(e["start"], e["end"], e["label"]) for e in mine["prediction"]]
        assert said == [tuple(entity[:3]) for entity in theirs]
        for one, other in zip(mine["prediction"], theirs, strict=True):
            assert one["score"] == pytest.approx(other[3], abs=1e-5)
