"""Prompts: words in the gap of a pattern, scored by the head that a checkpoint was pre-trained with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import contracts
import pytest
import torch
from conftest import NEGATIVE, POSITIVE
from no_thrice import run_without_thrice
from tiny_stock import stock_folder

from thrice.checkpoints import load, load_any, save
from thrice.data.prompts import clozes, words_in_place
from thrice.data.readers import read_table
from thrice.data.tokenizer import Tokenizer
from thrice.errors import ConfigError, DataError
from thrice.finetune import DataSource, finetune, save_model
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.predict import load_model
from thrice.tasks.base import Task, TaskModel
from thrice.tasks.classification import Classification
from thrice.tasks.fewshot import FewShot

WORDS = {"good": ["好", "喜欢"], "bad": "差"}
PATTERNS = ["{text}，很{mask}", "{mask}。{text}"]


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a random ELECTRA: discriminator, generator, and an encoder without a head."""
    place = tmp_path_factory.mktemp("towers")
    characters = sorted(set("".join(POSITIVE + NEGATIVE) + "0123456789"))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
    (place / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    words = Tokenizer.from_folder(place, vocab_size=len(vocabulary))
    shape = EncoderConfig(
        family="electra",
        vocab_size=len(vocabulary),
        embedding_size=8,
        hidden_size=12,
        num_attention_heads=3,
        intermediate_size=24,
        attention_map=(0, 1),
        ffn_map=(0, 1),
        embedding_projection=True,
        max_position_embeddings=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
    )
    heads: dict[str, tuple[str, ...]] = {"discriminator": ("rtd",), "generator": ("mlm",), "bare": ()}
    return {name: save(Encoder(shape, heads=own), place / name, tokenizer=words) for name, own in heads.items()}


@pytest.fixture
def table(reviews: Path) -> Any:
    return read_table(reviews)


def learn(table: Any, **options: Any) -> FewShot:
    return FewShot.learn(table, **{"pattern": PATTERNS, "verbalizer": WORDS, "max_length": 32} | options)


def perfect(task: FewShot) -> Any:
    return lambda example: {"prediction": task.labels[example.label]}


def test_fewshot_keeps_the_task_contract_with_a_masked_language_head(
    table: Any, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    task = learn(table, method="mlm")
    contracts.task_contract(task, table, tiny_checkpoint, tmp_path, perfect=perfect(task))


def test_fewshot_keeps_the_task_contract_with_a_replaced_token_head(
    table: Any, towers: dict[str, Path], tmp_path: Path
) -> None:
    task = learn(table, method="rtd")
    contracts.task_contract(task, table, towers["discriminator"], tmp_path, perfect=perfect(task))


def built(task: Task, checkpoint: Path) -> tuple[TaskModel, Tokenizer]:
    model = TaskModel(load(str(checkpoint)), task).eval()
    return model, Tokenizer.from_folder(checkpoint, vocab_size=model.encoder.config.vocab_size)


STOCK = """
import math, torch, transformers

def value(run, model, ids, text, word):
    tokens = ids.tokenize(word)
    filling = ["[MASK]"] * len(tokens) if run["method"] == "mlm" else tokens
    halves = [ids.tokenize(half) for half in text.split("GAP")]
    sequence = ["[CLS]", *halves[0], *filling, *halves[1], "[SEP]"]
    first = 1 + len(halves[0])
    with torch.no_grad():
        logits = model(torch.tensor([ids.convert_tokens_to_ids(sequence)])).logits[0]
    if run["method"] == "rtd":
        return -logits[first : first + len(tokens)].mean().item()
    rows = logits[first : first + len(tokens)].log_softmax(-1)
    return sum(row[i].item() for row, i in zip(rows, ids.convert_tokens_to_ids(tokens)))

result = []
for run in arguments["runs"]:
    name = "AutoModelForMaskedLM" if run["method"] == "mlm" else "AutoModelForPreTraining"
    model = getattr(transformers, name).from_pretrained(run["folder"]).eval()
    ids = transformers.AutoTokenizer.from_pretrained(run["folder"])
    scores = []
    for words in arguments["words"]:
        by_pattern = [
            sum(value(run, model, ids, text, word) for word in words) / len(words) for text in arguments["texts"]
        ]
        scores.append(sum(by_pattern) / len(by_pattern))
    total = sum(math.exp(score) for score in scores)
    result.append([math.exp(score) / total for score in scores])
"""


def test_scores_are_the_written_formula_computed_by_stock_classes_on_the_saved_folder(
    table: Any, tiny_checkpoint: Path, towers: dict[str, Path], tmp_path: Path
) -> None:
    runs = []
    found = []
    for method, tower in (("mlm", tiny_checkpoint), ("mlm", towers["generator"]), ("rtd", towers["discriminator"])):
        model, words = built(learn(table), tower)
        folder = save_model(model, tmp_path / f"saved-{len(runs)}", words)
        found.append(load_model(folder).predict(["质量很好7书", "物"])[0]["probabilities"])
        runs.append({"method": method, "folder": str(folder)})
    texts = ["质量很好7书，很GAP", "GAP。质量很好7书"]
    for ours, stock in zip(
        found, run_without_thrice(STOCK, runs=runs, texts=texts, words=[["差"], WORDS["good"]]), strict=True
    ):
        assert list(ours) == ["bad", "good"]
        assert list(ours.values()) == pytest.approx(stock, abs=1e-5)
        assert abs(stock[0] - stock[1]) > 1e-3, "a formula that gives halves for everything would pass too"


def test_the_method_follows_from_the_heads_of_the_checkpoint(
    table: Any, tiny_checkpoint: Path, towers: dict[str, Path]
) -> None:
    task = learn(table)
    folders = {"mlm": (tiny_checkpoint, towers["generator"]), "rtd": (towers["discriminator"],)}
    for method, own in folders.items():
        for folder in own:
            model, _ = built(task, folder)
            assert (model.task.method, list(model.encoder.heads)) == (method, [method])  # type: ignore[attr-defined]
    assert task.method == "auto", "one object serves every arm"


@pytest.mark.parametrize(
    ("method", "tower", "works"),
    [
        ("mlm", "discriminator", "carries: rtd - method rtd works with it"),
        ("rtd", "generator", "carries: mlm - method mlm works with it"),
        ("auto", "bare", "carries: none - prompts work with a checkpoint saved with one, such as BertForMaskedLM"),
    ],
)
def test_a_checkpoint_without_the_head_is_refused_with_what_works(
    method: str, tower: str, works: str, table: Any, towers: dict[str, Path]
) -> None:
    with pytest.raises(ConfigError, match=works):
        TaskModel(load(str(towers[tower])), learn(table, method=method))


def test_a_model_of_another_family_is_refused_with_what_works(table: Any, tmp_path: Path) -> None:
    folder = stock_folder("distilbert", tmp_path / "other")
    with pytest.raises(ConfigError, match=r"this distilbert checkpoint carries: none - .* --task classification works"):
        TaskModel(load_any(str(folder)), learn(table))


def test_options_that_cannot_be_are_told_all_at_once(table: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        FewShot.learn(
            table, method="mln", pattern=["{text} {mak}", "{text_pair} {mask} {mask}"], verbalizer="good=好|差,bed=差"
        )
    for part in (
        "method is 'mln'; did you mean mlm",
        "'{text} {mak}': {mak} is no slot",
        "'{text} {mak}' has {mask} 0 times",
        "'{text_pair} {mask} {mask}' has {mask} 2 times",
        "has {text_pair}, and there is one text",
        "no word for 1 classes of these rows: bad",
        "words that stand for two classes, or twice for one: 差",
    ):
        assert part in str(caught.value)
    with pytest.raises(ConfigError, match="pattern is missing"):
        FewShot.learn(table)


def test_a_word_that_the_vocabulary_lacks_is_named(table: Any, tiny_checkpoint: Path) -> None:
    model, words = built(learn(table, verbalizer={"good": "好", "bad": "Schlecht"}), tiny_checkpoint)
    with pytest.raises(ConfigError, match="1 words of the verbalizer are not in the vocabulary: 'Schlecht'"):
        model.task.encode(model.task.read(table), words)


def test_a_label_without_a_word_is_named_with_its_line(table: Any, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("text,label\na,good\nb,middling\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 3: 'middling'"):
        learn(table).read(read_table(tmp_path / "other.csv"))


def test_long_texts_lose_their_end_and_the_pattern_nothing(nano: Path) -> None:
    words = Tokenizer.from_folder(nano)
    names = words.hf.convert_ids_to_tokens
    (long, short) = clozes(words, "说{text}，很{mask}。", ["好书一本 [MASK] 真的", "好"], None, max_length=10, gap=2)
    assert names(long.before) == ["[CLS]", "说", "好", "书", "，", "很"]
    assert names(long.after) == ["。", "[SEP]"]
    assert (long.cut, short.cut) == (True, False)
    pair = clozes(words, "{text}？{mask}，{text_pair}", ["一二三四五"], ["六"], max_length=9, gap=1)[0]
    assert names([*pair.before, *pair.after]) == ["[CLS]", "一", "二", "三", "？", "，", "六", "[SEP]"]
    with pytest.raises(ConfigError, match="takes 7 tokens without the text; --max-length 7 leaves no room"):
        clozes(words, "说{text}，很{mask}。", ["好"], None, max_length=7, gap=1)


def test_a_word_is_tokenised_as_it_stands_in_the_gap(nano: Path) -> None:
    words = Tokenizer.from_folder(nano)
    assert words_in_place(words, "{text}很{mask}。", ["满意"]) == [words.content_ids(["满意"])[0]]
    alone = words.content_ids(["good"])[0]
    assert words_in_place(words, "{text} it was very{mask}", ["good"]) == [alone], "not glued to the pattern's word"


def test_byte_level_words_take_the_space_before_the_gap_along(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    trainer.show_progress = False
    backend.train_from_iterator(["it was great", "great it was great, great"] * 20, trainer)
    vocabulary = json.loads(backend.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary["vocab"]), encoding="utf-8")
    merges = [" ".join(pair) for pair in vocabulary["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    words = Tokenizer.from_folder(tmp_path)
    names = words.hf.convert_ids_to_tokens
    assert [names(ids) for ids in words_in_place(words, "{text} It was {mask}.", ["great"])] == [["Ġgreat"]]
    assert names(words_in_place(words, "{mask}: {text}", ["great"])[0])[0] != "Ġgreat"
    cloze = clozes(words, "{text} it was {mask}.", ["great"], None, max_length=30, gap=1)[0]
    assert names(cloze.before)[-1] == "Ġwas", "the mask takes the space before it along, as the word does"


def test_zero_epochs_score_the_checkpoint_as_it_is_and_save_it(
    tiny_checkpoint: Path, reviews: Path, table: Any, tmp_path: Path
) -> None:
    said: list[str] = []
    result = finetune(
        str(tiny_checkpoint),
        tmp_path / "out",
        source=DataSource(data=str(reviews)),
        task_name="fewshot",
        options={"pattern": PATTERNS, "verbalizer": WORDS, "max_length": 32},
        training={"epochs": 0},
        say=said.append,
    )
    assert (result["best_epoch"], result["epochs"][0]["step"]) == (0, 0)
    assert result["test"]["accuracy"] >= 0
    model, words = built(learn(table), tiny_checkpoint)
    before = model.predict(model.task.encode(model.task.read(table), words))
    assert load_model(tmp_path / "out").answer(model.task.read(table)) == before
    assert not (tmp_path / "out.run").exists()
    with pytest.raises(Exception, match="finished model"):
        finetune(
            str(tiny_checkpoint),
            tmp_path / "out",
            source=DataSource(data=str(reviews)),
            task_name="fewshot",
            options={"pattern": PATTERNS, "verbalizer": WORDS},
            training={"epochs": 0},
        )


def test_prompts_learn_pairs_of_real_sentences(shared_data: Path, nano: Path) -> None:
    table = read_table(shared_data / "fewclue" / "bustm.train_few_all.json.gz")
    task = FewShot.learn(table, pattern="{text}？{mask}的，{text_pair}", verbalizer="0=不,1=是", max_length=48)
    model = TaskModel(load(str(nano)), task)
    examples = task.read(table)
    data = model.task.encode(examples, Tokenizer.from_folder(nano))
    assert task.score([perfect(task)(e) for e in examples], examples)["macro_f1"] == 1.0
    batch = data.batch(range(16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(25):
        loss = model.loss(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert len(model.predict(task_data_of(model, nano, []))) == 0


def task_data_of(model: TaskModel, folder: Path, texts: list[Any]) -> Any:
    return model.task.encode(model.task.from_texts(texts), Tokenizer.from_folder(folder))


def test_classification_and_prompts_split_alike(table: Any) -> None:
    plain = Classification.learn(table)
    assert [plain.split_key(row) for row in table.rows] == [learn(table).split_key(row) for row in table.rows]
