"""Classification: the task contract, both heads, chunks, several labels, weights, scores by hand."""

from __future__ import annotations

import math
from pathlib import Path

import contracts
import numpy as np
import pytest
import torch

from thrice.checkpoints import load
from thrice.data.readers import Table, read_table
from thrice.data.tokenizer import Tokenizer
from thrice.errors import ConfigError, DataError
from thrice.model.encoder import Encoder
from thrice.tasks import classification
from thrice.tasks.base import TaskModel
from thrice.tasks.classification import Classification, ClassificationBatch, Example


def table_of(rows: list[dict], columns: tuple[str, ...] = ("text", "label")) -> Table:
    lines = list(range(1, len(rows) + 1))
    return Table(columns=columns, rows=rows, lines=lines, source="here", fingerprint="0")


def equipped(checkpoint: Path, task: Classification) -> tuple[TaskModel, Tokenizer]:
    encoder = load(str(checkpoint))
    return TaskModel(encoder, task).eval(), Tokenizer.from_folder(checkpoint, vocab_size=encoder.config.vocab_size)


@pytest.mark.parametrize("options", [{}, {"head": "first-token"}, {"long_texts": "chunks", "max_length": 6}])
def test_classification_keeps_the_task_contract(
    options: dict, reviews: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    table = read_table(str(reviews))
    task = Classification.learn(table, **{"max_length": 32, **options})

    def perfect(example: Example) -> dict:
        return {"prediction": task.labels[example.labels[0]]}

    contracts.task_contract(task, table, tiny_checkpoint, tmp_path, perfect=perfect)


def test_several_labels_keep_the_task_contract(tiny_checkpoint: Path, tmp_path: Path) -> None:
    rows = [
        {"text": "质量很好", "label": ["good", "goods"]},
        {"text": "物流太慢", "label": ["bad"]},
        {"text": "房间很脏服务热情", "label": ["bad", "good"]},
    ] * 4
    task = Classification.learn(table_of(rows), multi_label=True, max_length=32)
    assert task.labels == ("bad", "good", "goods")
    assert task.metrics[0] == "micro_f1"

    def perfect(example: Example) -> dict:
        return {"prediction": [task.labels[i] for i in example.labels]}

    contracts.task_contract(task, table_of(rows), tiny_checkpoint, tmp_path, perfect=perfect)


def test_several_labels_are_one_stratum_in_any_order() -> None:
    rows = [{"text": "x", "label": ["b", "a"]}, {"text": "y", "label": "a, b"}, {"text": "z", "label": []}]
    task = Classification.learn(table_of(rows), multi_label=True)
    assert [task.split_key(row)[1] for row in rows] == [["b", "a"], ["a", "b"], []]


class OwnHead(Classification):
    """A task that brings a head no stock class has."""

    def build_head(self, encoder: Encoder, generator: torch.Generator) -> torch.nn.Module:
        super().build_head(encoder, generator)
        return torch.nn.Linear(2, 2)

    def logits(self, model: TaskModel, batch: ClassificationBatch) -> torch.Tensor:
        return model.head(super().logits(model, batch))


def test_a_head_that_no_stock_class_has_is_trained_saved_and_read_back(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": words, "label": "ab"[i % 2]} for i, words in enumerate(("质量很好", "物流太慢") * 4)]
    task = OwnHead.learn(table_of(rows), max_length=16)
    monkeypatch.setattr("thrice.predict.plugin", lambda *_: OwnHead)
    torch.manual_seed(0)

    def perfect(example: Example) -> dict:
        return {"prediction": task.labels[example.labels[0]]}

    contracts.task_contract(task, table_of(rows), tiny_checkpoint, tmp_path, perfect=perfect)
    assert (tmp_path / "saved" / "task_head.safetensors").exists()


def test_a_text_with_no_label_is_legal_with_several_labels() -> None:
    rows = [{"text": "a", "label": "x, y"}, {"text": "b", "label": '["x"]'}, {"text": "c", "label": "[]"}]
    task = Classification.learn(table_of(rows), multi_label=True)
    assert [e.labels for e in task.read(table_of(rows))] == [(0, 1), (0,), ()]


def test_chunks_cover_the_whole_text_and_average_their_logits(tiny_checkpoint: Path) -> None:
    rows = [{"text": "质量很好" * 5, "label": "1"}, {"text": "慢", "label": "0"}]
    task = Classification.learn(table_of(rows), max_length=10, long_texts="chunks")
    model, tokenizer = equipped(tiny_checkpoint, task)
    data = task.encode(task.read(table_of(rows)), tokenizer)
    assert len(data.encoded) == 3 + 1, "20 characters in windows of 8"
    inside = [i for ids in data.encoded.take(range(3))[0] for i in ids[1:-1]]
    assert inside == tokenizer.backend.encode(rows[0]["text"]).ids[1:-1]
    both = task.logits(model, data.batch([1, 0]))
    each = [task.logits(model, _only(data, [s])).mean(0) for s in range(4)]
    torch.testing.assert_close(both, torch.stack([each[3], sum(each[:3]) / 3]), atol=1e-6, rtol=0)


def test_a_book_is_computed_in_parts_with_the_same_loss_and_gradients(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": "质量很好" * n, "label": str(n % 2)} for n in (40, 1, 7, 2)]
    task = Classification.learn(table_of(rows), max_length=10, long_texts="chunks")
    model, tokenizer = equipped(tiny_checkpoint, task)
    data = task.encode(task.read(table_of(rows)), tokenizer)
    batch = data.batch([2, 0, 3, 1])
    seen: list[int] = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].num_tokens))
    found = []
    for most in (classification.MOST_TOKENS, 64):
        monkeypatch.setattr(classification, "MOST_TOKENS", most)
        model.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        found.append((loss.detach(), model.encoder.ffn[0].output.weight.grad.clone(), task.logits(model, batch)))
        with torch.no_grad():
            torch.testing.assert_close(task.logits(model, batch), found[0][2].detach(), atol=1e-6, rtol=1e-5)
    assert max(seen[:3]) == batch.packed.num_tokens > 200
    assert max(seen[3:]) <= 64
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_the_texts_of_iflytek_are_pooled_over_their_chunks(shared_data: Path, nano: Path) -> None:
    from thrice.data.batching import training_batches

    table = read_table(shared_data / "iflytek" / "train_few_all.json.gz")
    options = {"text_column": "sentence", "label_column": "label_des"}
    task = Classification.learn(table, **options, long_texts="chunks", max_length=128)
    assert (len(task.labels), len(table.rows)) == (119, 3024)
    encoder = load(str(nano))
    tokenizer = Tokenizer.from_folder(nano, vocab_size=encoder.config.vocab_size)
    examples = task.read(table)
    data = task.encode(examples, tokenizer)
    chunks = np.diff(data.borders)
    assert np.bincount(chunks).tolist() == [0, 641, 865, 624, 573, 252, 38, 11, 8, 7, 2, 2, 1]
    assert data.num_cut == 0
    assert Classification.learn(table, **options, max_length=128).encode(examples, tokenizer).num_cut == 3024 - 641
    longest = int(chunks.argmax())
    inside = np.concatenate([data.encoded[s][1:-1] for s in range(*data.borders[longest : longest + 2])])
    assert inside.tolist() == tokenizer.content_ids([examples[longest].text])[0], "the whole text, nothing twice"
    largest = max(data.lengths[step].sum() for step in training_batches(3024, batch_size=32, seed=0, epoch=1))
    assert largest < classification.MOST_TOKENS

    model = TaskModel(encoder, task).eval()
    chosen = [longest, *map(int, np.flatnonzero(chunks == 1)[:2]), *map(int, np.flatnonzero(chunks == 4)[:2])]
    part = task.encode([examples[i] for i in chosen], tokenizer)
    together, alone = model.predict(part), model.predict(part, max_tokens=1)
    for one, other in zip(together, alone, strict=True):
        contracts.assert_close(one, other)
    batch = data.batch(chosen)
    assert torch.bincount(batch.owner).tolist() == [12, 1, 1, 4, 4]
    first = model.task.logits(model, data.batch([longest])).detach()
    each = torch.cat([task.logits(model, _only(data, [s])) for s in range(*data.borders[longest : longest + 2])])
    torch.testing.assert_close(first[0], each.mean(0), atol=1e-5, rtol=0)


def _only(data: object, sequences: list[int]) -> ClassificationBatch:
    from thrice.model.packing import pack

    packed = pack(*data.encoded.take(sequences))
    return ClassificationBatch(packed, torch.arange(len(sequences)), torch.zeros(len(sequences)), len(sequences))


def test_the_loss_is_cross_entropy_worked_out_by_hand(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": "好", "label": "a"}] * 3 + [{"text": "差", "label": "b"}]
    for weight, expected in (
        (None, (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(1))) / 2),
        ("b=3", (math.log(1 + math.exp(-2)) + 3 * math.log(1 + math.exp(1))) / 4),
    ):
        task = Classification.learn(table_of(rows), class_weight=weight, max_length=16)
        logits = torch.tensor([[2.0, 0.0], [1.0, 0.0]])
        batch = ClassificationBatch(None, torch.arange(2), torch.tensor([0, 1]), 2)  # type: ignore[arg-type]
        monkeypatch.setattr(Classification, "logits", lambda self, model, batch, logits=logits: logits)
        model, _ = equipped(tiny_checkpoint, task)
        assert model.loss(batch).item() == pytest.approx(expected, abs=1e-6)


def test_balanced_weights_are_n_over_k_times_count() -> None:
    rows = [{"text": "好", "label": "a"}] * 3 + [{"text": "差", "label": "b"}]
    task = Classification.learn(table_of(rows), class_weight="balanced")
    assert task.class_weights == (4 / (2 * 3), 4 / (2 * 1))


def test_scores_worked_out_by_hand() -> None:
    rows = [{"text": "x", "label": name} for name in ("a", "b", "c")]
    task = Classification.learn(table_of(rows))
    examples = [Example(text="x", labels=(i,)) for i in (0, 0, 1, 2)]
    scores = task.score([{"prediction": name} for name in ("a", "b", "b", "b")], examples)
    assert scores["accuracy"] == 0.5
    # a: P 1, R 1/2, F 2/3; b: P 1/3, R 1, F 1/2; c: 0.
    assert scores["macro_f1"] == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert scores["confusion"] == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    # Gorodkin's R_3: (2 right * 4 - 1 * 2 - 3 * 1) / sqrt((16 - 1 - 9) (16 - 4 - 1 - 1)).
    assert scores["matthews"] == pytest.approx(3 / math.sqrt(6 * 10))
    assert "f1" not in task.metrics, "of two classes only"


def test_of_two_classes_f1_is_that_of_the_positive_one() -> None:
    from sklearn.metrics import f1_score, matthews_corrcoef

    rows = [{"text": "x", "label": name} for name in ("0", "1")]
    truths, answers = "1101001011", "1001011010"
    examples = [Example(text="x", labels=(int(name),)) for name in truths]
    said = [{"prediction": name} for name in answers]
    for positive in (None, "0"):
        task = Classification.learn(table_of(rows), positive_class=positive)
        scores = task.score(said, examples)
        expected = f1_score(list(truths), list(answers), pos_label=positive or "1")
        assert scores["f1"] == pytest.approx(expected)
        assert scores["matthews"] == pytest.approx(matthews_corrcoef(list(truths), list(answers)))
        contracts.counts_contract(task, said, examples)
    with pytest.raises(ConfigError, match="is no class; known: 0, 1"):
        Classification.learn(table_of(rows), positive_class="2")
    with pytest.raises(ConfigError, match="two classes, one per text; here are 3"):
        Classification.learn(table_of([*rows, {"text": "x", "label": "2"}]), positive_class="2")


@pytest.mark.parametrize("multi_label", [False, True])
def test_every_metric_follows_from_counts_of_random_answers(multi_label: bool) -> None:
    names = ("a", "b", "c", "d")
    task = Classification.learn(table_of([{"text": "x", "label": name} for name in names]), multi_label=multi_label)
    generator = np.random.default_rng(4)
    for size in (1, 2, 7, 200):
        if multi_label:  # class d is never said, texts without a label or an answer occur
            sets = generator.uniform(size=(2, size, 4)) < [0.1, 0.5, 0.3, 0.0]
            examples = [Example(text="x", labels=tuple(np.flatnonzero(row).tolist())) for row in sets[0]]
            answers = [{"prediction": [names[i] for i in np.flatnonzero(row)]} for row in sets[1]]
        else:
            examples = [Example(text="x", labels=(i,)) for i in generator.integers(3, size=size).tolist()]
            answers = [{"prediction": names[i]} for i in generator.integers(3, size=size)]
        contracts.counts_contract(task, answers, examples)


def test_counts_of_two_texts_by_hand() -> None:
    task = Classification.learn(table_of([{"text": "x", "label": name} for name in "ab"]))
    examples = [Example(text="x", labels=(0,)), Example(text="x", text_pair="y", labels=(1,))]
    counts = task.counts([{"prediction": "a"}, {"prediction": "a"}], examples)
    assert counts.tolist() == [[1, 0, 1, 0, 1, 0, 1, 1], [0, 0, 1, 0, 0, 1, 0, 1]]
    assert task.shown(examples[1]) == {"text": "x / y", "gold": "b"}
    with pytest.raises(ConfigError, match="did you mean macro_f1"):
        task.from_counts("macro_f2", counts)


@pytest.mark.parametrize(
    ("answers", "truths", "collapsed"),
    [
        ("aaaa", "aaab", True),
        ("aaaa", "aaaa", False),
        ("aaab", "aaab", False),
        ("bbbb", "aaab", True),
    ],
)
def test_a_run_that_gives_one_answer_is_called_collapsed(answers: str, truths: str, collapsed: bool) -> None:
    task = Classification.learn(table_of([{"text": "x", "label": name} for name in "ab"]))
    examples = [Example(text="x", labels=("ab".index(name),)) for name in truths]
    assert task.score([{"prediction": name} for name in answers], examples)["collapsed"] is collapsed


def test_a_pre_trained_pooler_becomes_the_dense_layer_of_the_stock_head(tiny_checkpoint: Path) -> None:
    pooler = load(str(tiny_checkpoint)).heads["pooler"].dense.weight
    task = Classification.learn(table_of([{"text": "x", "label": name} for name in "ab"]), max_length=16)
    model, _ = equipped(tiny_checkpoint, task)
    assert torch.equal(model.encoder.heads["sequence"].dense.weight, pooler)
    assert list(model.encoder.heads) == ["sequence"], "heads without a use are gone"


def test_heads_of_one_seed_are_equal_whatever_the_arm_shares(tiny_checkpoint: Path) -> None:
    task = Classification.learn(table_of([{"text": "x", "label": name} for name in "ab"]), max_length=16)
    heads = []
    for pattern, seed in (("all", 3), ("none", 3), ("none", 4)):
        model = TaskModel(load(f"{tiny_checkpoint}+{pattern}"), task, seed=seed)
        heads.append(model.encoder.heads["sequence"].classifier.weight)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[1], heads[2])


def test_depths_for_layerwise_decay_follow_the_last_call(tiny_checkpoint: Path) -> None:
    task = Classification.learn(table_of([{"text": "x", "label": name} for name in "ab"]), max_length=16)
    depths = TaskModel(load(f"{tiny_checkpoint}+attention"), task).layer_depths()
    assert depths["encoder.embeddings.word_embeddings.weight"] == 0
    assert depths["encoder.attention.0.qkv.weight"] == 3, "shared by all calls: the last one counts"
    assert depths["encoder.ffn.1.output.bias"] == 2
    assert depths["encoder.heads.sequence.classifier.weight"] == 4


def test_the_head_of_the_essays_has_no_dropout_even_where_the_config_has(tiny_checkpoint: Path) -> None:
    task = Classification.learn(
        table_of([{"text": "x", "label": name} for name in "ab"]), head="first-token", max_length=16
    )
    model, _ = equipped(tiny_checkpoint, task)
    assert model.encoder.heads["token"].dropout.p == model.encoder.config.classifier_dropout_prob == 0


def test_bad_options_and_data_say_what_to_do() -> None:
    rows = [{"text": "x", "label": name} for name in "ab"]
    with pytest.raises(ConfigError, match="did you mean first-token"):
        Classification.learn(table_of(rows), head="first-tokn")
    with pytest.raises(ConfigError, match="chunks"):
        Classification.learn(table_of(rows), long_texts="chunk")
    with pytest.raises(ConfigError, match="above 0"):
        Classification.learn(table_of(rows), class_weight="a=-1")
    with pytest.raises(DataError, match="holds 1 class"):
        Classification.learn(table_of(rows[:1]))
    task = Classification.learn(table_of(rows))
    with pytest.raises(DataError, match=r"'c' \(1 rows\)"):
        task.read(table_of([{"text": "x", "label": "c"}]))
    with pytest.raises(DataError, match="no column text"):
        task.read(table_of([{"body": "x", "label": "a"}], ("body", "label")))
    with pytest.raises(DataError, match="--multi-label"):
        Classification.learn(table_of([{"text": "x", "label": ["a", "b"]}]))


def test_more_tokens_than_positions_is_refused(tiny_checkpoint: Path) -> None:
    task = Classification.learn(table_of([{"text": "x", "label": name} for name in "ab"]), max_length=64)
    with pytest.raises(ConfigError, match="40 positions"):
        equipped(tiny_checkpoint, task)


def test_predictions_come_back_in_the_order_of_the_file(tiny_checkpoint: Path) -> None:
    rows = [{"text": "好" * n, "label": "ab"[n % 2]} for n in (9, 1, 5, 0, 7, 3)]
    task = Classification.learn(table_of(rows), max_length=16)
    model, tokenizer = equipped(tiny_checkpoint, task)
    data = task.encode(task.read(table_of(rows)), tokenizer)
    assert data.lengths.tolist() == [11, 3, 7, 2, 9, 5]
    together = model.predict(data, max_tokens=20)
    for i, prediction in enumerate(together):
        contracts.assert_close(prediction, model.predict(_part(task, tokenizer, rows[i]))[0])
    assert np.ptp([p["probabilities"]["a"] for p in together]) > 0, "texts of different lengths score differently"


def _part(task: Classification, tokenizer: Tokenizer, row: dict) -> object:
    return task.encode(task.read(table_of([row])), tokenizer)
