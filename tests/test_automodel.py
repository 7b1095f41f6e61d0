"""Models of families that are not ours run as they are: parity with their own classes, training, saving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from no_thrice import run_without_thrice
from safetensors.torch import load_file
from tiny_stock import FAMILIES, fill, stock_config, stock_folder
from torch import Tensor

from thrice.checkpoints import load, load_any, load_stock
from thrice.compare.grid import Arm, Study, StudyTask
from thrice.compare.runner import run_study
from thrice.errors import ConfigError
from thrice.finetune import DataSource, build, finetune, read_splits, save_model
from thrice.model.encoder import Encoder
from thrice.model.packing import pack
from thrice.model.stock import StockEncoder
from thrice.predict import load_model, predict_file
from thrice.tasks.classification import Classification
from thrice.training import TrainingConfig
from thrice.training.optim import build_optimizer

TRAINING = {"epochs": 2, "batch_size": 8, "learning_rate": 5e-3, "seed": 1}
SEQUENCES = [[2, 9, 17, 30, 3], [2, 40, 3], [2, *range(10, 30), 3], [2, 8, 3, 9, 11, 3]]


def stock_of(folder: Path) -> StockEncoder:
    encoder = load_any(str(folder))
    assert isinstance(encoder, StockEncoder)
    return encoder


def padded() -> tuple[Tensor, Tensor]:
    width = max(map(len, SEQUENCES))
    ids = torch.tensor([s + [0] * (width - len(s)) for s in SEQUENCES])
    return ids, torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in SEQUENCES])


def task_of(reviews: Path, **options: Any) -> tuple[Any, Any]:
    return read_splits("classification", DataSource(data=str(reviews)), {"max_length": 24, **options})


def run(name: str, folder: Path, reviews: Path, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "source": DataSource(data=str(reviews)),
        "task_name": "classification",
        "options": {"max_length": 24},
        "training": TRAINING,
    }
    return finetune(name, folder, **(arguments | changes))


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_the_stock_class(family: str, tmp_path: Path) -> None:
    import transformers

    encoder = stock_of(stock_folder(family, tmp_path))
    assert not encoder.packed
    assert not encoder.heads
    assert encoder.config.family == family
    ids, mask = padded()
    with torch.no_grad():
        theirs = transformers.AutoModel.from_pretrained(tmp_path)(input_ids=ids, attention_mask=mask)[0]
        ours = encoder(pack(SEQUENCES))
    starts = pack(SEQUENCES).starts
    for row, (sequence, start) in enumerate(zip(SEQUENCES, starts.tolist(), strict=True)):
        torch.testing.assert_close(ours[start : start + len(sequence)], theirs[row, : len(sequence)], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_the_stock_class_whatever_the_batch(family: str, tmp_path: Path) -> None:
    import transformers

    folder = stock_folder(family, tmp_path, head="AutoModelForSequenceClassification", num_labels=3)
    encoder = stock_of(folder)
    assert list(encoder.heads) == ["sequence"]
    ids, mask = padded()
    with torch.no_grad():
        stock = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        theirs = stock(input_ids=ids, attention_mask=mask).logits
        ours = encoder.classify(pack(SEQUENCES))
        alone = torch.cat([encoder.classify(pack([sequence])) for sequence in SEQUENCES])
    assert theirs.std(dim=0).min() > 0.01
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    torch.testing.assert_close(alone, ours, atol=1e-5, rtol=0)


def test_types_reach_a_class_that_tells_them_apart(tmp_path: Path) -> None:
    import transformers

    folder = stock_folder("deberta-v2", tmp_path, type_vocab_size=2)
    encoder = stock_of(folder)
    assert encoder.config.type_vocab_size == 2
    types = [[0] * (len(s) // 2) + [1] * (len(s) - len(s) // 2) for s in SEQUENCES]
    with torch.no_grad():
        ours = encoder(pack(SEQUENCES, types))
        stock = transformers.AutoModel.from_pretrained(folder)
        alone = stock(input_ids=torch.tensor(SEQUENCES[:1]), token_type_ids=torch.tensor(types[:1]))[0]
        untyped = encoder(pack(SEQUENCES))
    start = int(pack(SEQUENCES).starts[0])
    torch.testing.assert_close(ours[start : start + 5], alone[0], atol=1e-5, rtol=0)
    assert (ours - untyped).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "electra"])
def test_our_families_run_through_their_stock_class_where_it_is_asked_for(name: str, tmp_path: Path) -> None:
    classes = {"bert": "BertConfig", "roberta": "RobertaConfig", "albert": "AlbertConfig", "electra": "ElectraConfig"}
    stock_folder(classes[name], tmp_path, head="AutoModelForSequenceClassification", embedding_size=12)
    packed, stock = load_any(str(tmp_path)), load_any(f"stock:{tmp_path}")
    assert isinstance(packed, Encoder)
    assert packed.packed
    assert isinstance(stock, StockEncoder)
    assert stock.config.family == packed.config.family == name
    assert stock.config.max_length == packed.config.max_length
    assert stock.parameter_counts() == packed.parameter_counts()
    with torch.no_grad():
        torch.testing.assert_close(stock.classify(pack(SEQUENCES)), packed.classify(pack(SEQUENCES)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_one_batch_falls(family: str, tmp_path: Path, reviews: Path) -> None:
    task, splits = task_of(reviews)
    model, words = build(str(stock_folder(family, tmp_path)), task, seed=1)
    data = task.encode(splits.train, words)
    batch = data.batch(range(16))
    torch.manual_seed(0)
    model.train()
    optimizer = build_optimizer(model, TrainingConfig(learning_rate=5e-3, layerwise_decay=0.9))
    losses = []
    for _ in range(60):
        loss = model.loss(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


ANSWER = """
import torch, transformers
result = []
for folder, auto in arguments["outs"]:
    words = transformers.AutoTokenizer.from_pretrained(folder)
    model, account = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True)
    inputs = words(arguments["texts"], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits
    logits = logits[:, 0] if auto.endswith("TokenClassification") else logits
    labels = [model.config.id2label[i] for i in range(2)]
    result.append({"rows": logits.softmax(-1).tolist(), "labels": labels, "account": sum(map(len, account.values()))})
"""
TEXTS = ["喜欢这本书1质量很好", "千万别买7", "服务热情99房间干净物流很快"]


SEQUENCE, TOKEN = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"


def test_runs_end_in_folders_that_stock_code_answers_alike(
    tmp_path: Path, reviews: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = [("deberta-v2", "stock"), ("distilbert", "stock"), ("modernbert", "stock"), ("distilbert", "first-token")]
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    outs, ours = [], []
    for number, (family, head) in enumerate(asked):
        folder = stock_folder(family, tmp_path / f"model{number}", head="AutoModelForMaskedLM")
        out = tmp_path / f"out{number}"
        said: list[str] = []
        capfd.readouterr()
        result = run(str(folder), out, reviews, options={"max_length": 24, "head": head}, say=said.append)
        assert "Writing" not in capfd.readouterr().err
        assert result["epochs"][1]["train_loss"] < result["epochs"][0]["train_loss"]
        assert f"note: not packed: this {family} runs through its own transformers class, with padding" in said

        tuned = load_model(out)
        assert isinstance(tuned.model.encoder, StockEncoder)
        answers = tuned.predict(TEXTS)
        lines = [json.loads(line) for line in predict_file(out, str(texts), None)]
        assert [line["prediction"] for line in lines] == [answer["prediction"] for answer in answers]
        outs.append([str(out), TOKEN if head == "first-token" else SEQUENCE])
        ours.append([list(answer["probabilities"].values()) for answer in answers])
    for one, theirs in zip(ours, run_without_thrice(ANSWER, outs=outs, texts=TEXTS), strict=True):
        assert theirs["labels"] == ["bad", "good"]
        assert theirs["account"] == 0
        torch.testing.assert_close(torch.tensor(one), torch.tensor(theirs["rows"]), atol=1e-5, rtol=0)


def test_a_family_of_ours_trained_through_its_stock_class_is_answered_by_it(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    task, _ = task_of(reviews)
    model, words = build(f"stock:{tiny_checkpoint}", task, seed=1)
    folder = save_model(model, tmp_path / "out", words)
    assert json.loads((folder / "thrice.json").read_text())["packed"] is False
    tuned = load_model(folder)
    assert isinstance(tuned.model.encoder, StockEncoder)
    expected = [a["probabilities"]["good"] for a in tuned.predict(TEXTS)]
    again = load(str(folder))  # and without the prefix the saved folder is one like any other
    assert isinstance(again, Encoder)
    with torch.no_grad():
        data = task.encode(task.from_texts(TEXTS), words)
        ours = again.classify(data.batch(range(3)).packed).softmax(-1)[:, 1]
    torch.testing.assert_close(ours, torch.tensor(expected), atol=1e-5, rtol=0)


def test_a_stopped_run_ends_like_one_that_was_not(
    tmp_path: Path, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stock_folder("distilbert", tmp_path / "model")
    whole = run(str(folder), tmp_path / "whole", reviews)
    right, calls = Classification.loss, iter(range(1000))

    def stopped(task: Classification, model: Any, batch: Any) -> Tensor:
        if next(calls) == 16:
            raise KeyboardInterrupt
        return right(task, model, batch)

    monkeypatch.setattr(Classification, "loss", stopped)
    training = TRAINING | {"save_every_steps": 5}
    with pytest.raises(KeyboardInterrupt):
        run(str(folder), tmp_path / "out", reviews, training=training)
    resumed = run(str(folder), tmp_path / "out", reviews, training=training)
    assert resumed["best_dev"] == whole["best_dev"]
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "out"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_fresh_head_is_drawn_from_the_seed_and_leaves_the_global_generator(tmp_path: Path, reviews: Path) -> None:
    task, _ = task_of(reviews)
    folder = str(stock_folder("distilbert", tmp_path, head="AutoModelForSequenceClassification", num_labels=2))
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    heads = [build(folder, task, seed=seed)[0].encoder.heads["sequence"].state_dict() for seed in (1, 1, 2)]
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(heads[0][key], heads[1][key]) for key in heads[0])
    assert not torch.equal(heads[0]["classifier.weight"], heads[2]["classifier.weight"])
    trained = load_any(folder).heads["sequence"].state_dict()
    assert not torch.equal(trained["classifier.weight"], heads[0]["classifier.weight"])


def test_what_a_masked_language_model_says_of_the_head_is_kept_as_stock_code_keeps_it(tmp_path: Path) -> None:
    folder = stock_folder("modernbert", tmp_path, head="AutoModelForMaskedLM")
    head = stock_of(folder).add_head("sequence", num_labels=5)
    held = load_file(folder / "model.safetensors")
    assert torch.equal(head.state_dict()["head.dense.weight"], held["head.dense.weight"])
    assert head.state_dict()["classifier.weight"].shape == (5, 12)


def test_every_parameter_is_counted_once_and_trained(tmp_path: Path, reviews: Path) -> None:
    import transformers

    task, splits = task_of(reviews)
    model, words = build(str(stock_folder("distilbert", tmp_path)), task, seed=1)
    stock = fill(transformers.AutoModelForSequenceClassification.from_config(stock_config("distilbert")))
    assert model.encoder.parameter_counts() == (stock.num_parameters(), stock.num_parameters())
    assert not any(name.startswith("encoder.model.") for name in model.state_dict())
    model.train()
    assert model.encoder.model.training
    model.loss(task.encode(splits.train, words).batch(range(8))).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_depths_of_layers_follow_the_stock_class(tmp_path: Path, reviews: Path) -> None:
    task, _ = task_of(reviews)
    model, _ = build(str(stock_folder("distilbert", tmp_path)), task, seed=1)
    depths = model.layer_depths()
    assert depths.keys() == {name for name, _ in model.named_parameters()}
    assert depths["encoder.base.embeddings.word_embeddings.weight"] == 0
    assert depths["encoder.base.transformer.layer.2.ffn.lin1.weight"] == 3
    assert depths["encoder.heads.sequence.classifier.weight"] == 4


def test_gradient_checkpointing_changes_no_gradient(tmp_path: Path, reviews: Path) -> None:
    task, splits = task_of(reviews)
    folder = str(stock_folder("deberta-v2", tmp_path))
    gradients = []
    for wanted in (False, True):
        model, words = build(folder, task, seed=1)
        model.gradient_checkpointing = wanted
        assert model.gradient_checkpointing is wanted
        torch.manual_seed(0)
        model.train().loss(task.encode(splits.train, words).batch(range(8))).backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_what_a_stock_class_cannot_do_is_refused_with_what_works(
    tmp_path: Path, tiny_checkpoint: Path, reviews: Path
) -> None:
    task, _ = task_of(reviews, head="first-token")
    with pytest.raises(ConfigError, match=r"more than one linear layer .* \(--head stock\)"):
        build(str(stock_folder("modernbert", tmp_path)), task, seed=1)
    albert = load_stock(tiny_checkpoint)
    with pytest.raises(ConfigError, match="set layerwise_decay to 1"):
        albert.layer_depths()
    with pytest.raises(ConfigError, match="cannot compute its layers twice"):
        albert.gradient_checkpointing = True
    with pytest.raises(ConfigError, match="no head called 'mlm'"):
        albert.add_head("mlm")
    with pytest.raises(ConfigError, match="no sequence head"):
        albert.classify(pack(SEQUENCES))


def test_a_study_compares_packed_and_stock_and_marks_what_is_not_packed(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distilbert = stock_folder("distilbert", tmp_path / "distilbert")
    study = Study(
        arms=(
            Arm(model=str(tiny_checkpoint), name="packed"),
            Arm(model=f"stock:{tiny_checkpoint}", name="unpacked"),
            Arm(model=str(distilbert), name="distilbert"),
        ),
        tasks=(
            StudyTask(
                name="reviews",
                metric="accuracy",
                options={"max_length": 24},
                source=DataSource(data=str(reviews)),
            ),
        ),
        seeds=(0,),
        training=TrainingConfig(epochs=1, batch_size=16, learning_rate=5e-3),
        save_models=True,
    )
    monkeypatch.setattr("thrice.compare.runner.measure_cost", lambda *_: {})
    run_study(study, tmp_path / "study")
    rows = {
        row["arm"]: row for path in (tmp_path / "study" / "cells").iterdir() if (row := json.loads(path.read_text()))
    }
    assert {arm: row["packed"] for arm, row in rows.items()} == {"packed": True, "unpacked": False, "distilbert": False}
    facts = json.loads((tmp_path / "study" / "study.json").read_text())
    assert {arm: parts["family"] for arm, parts in facts["made_of"].items()} == {
        "packed": "albert",
        "unpacked": "albert",
        "distilbert": "distilbert",
    }
    note = next(note for note in facts["notes"] if note.startswith("not packed"))
    assert "unpacked, distilbert;" in note
    assert "its times are those of that class" in note
    models = [load_model(path).model.encoder.packed for path in sorted((tmp_path / "study" / "models").iterdir())]
    assert sorted(models) == [False, False, True]
    run_study(study, tmp_path / "study")  # the arms are still what study.json says they were
