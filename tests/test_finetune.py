"""One run from files to a folder: scores, resuming, prediction, and stock transformers reading what was saved."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from thrice.errors import CheckpointError, ConfigError, DataError, TrainingError
from thrice.finetune import DataSource, build, finetune, read_splits, tokenizer_for, train
from thrice.model.presets import PRESETS
from thrice.predict import load_model, predict_file
from thrice.tasks.classification import Classification
from thrice.training import TrainingConfig

TRAINING = {"epochs": 2, "batch_size": 8, "learning_rate": 5e-3, "seed": 1}


def run(name: str, folder: Path, reviews: Path, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "source": DataSource(data=str(reviews)),
        "task_name": "classification",
        "options": {"max_length": 24},
        "training": TRAINING,
    }
    return finetune(name, folder, **(arguments | changes))


class StoppedLoss:
    """The loss of the task, interrupted once: in the second epoch's fifth step."""

    def __init__(self) -> None:
        self.calls = 0
        self.right = Classification.loss

    @property
    def of(self) -> Any:
        """Give the function that takes the place of the task's."""

        def loss(task: Classification, model: Any, batch: Any) -> torch.Tensor:
            self.calls += 1
            if self.calls == 17:
                raise KeyboardInterrupt
            return self.right(task, model, batch)

        return loss


def test_a_run_learns_and_its_folder_answers_in_stock_transformers(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    training = TRAINING | {"epochs": 4}
    result = run(f"{tiny_checkpoint}+none", tmp_path / "out", reviews, training=training, say=said.append)
    assert result["best_dev"] > 0.9
    assert result["test"]["accuracy"] > 0.8
    assert any("dropout hidden 0" in line for line in said), "dropout is printed"
    assert "text in column 'text', label in 'label'; 2 classes: 'bad', 'good'" in said
    assert not (tmp_path / "out.run").exists()
    assert (tmp_path / "out" / "train.jsonl").read_text(encoding="utf-8").count('"event": "epoch"') == 4

    lines = predict_file(tmp_path / "out", str(reviews), None)
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert model.config.num_hidden_groups == 3
    texts = [json.loads(line)["text"] for line in lines]
    with torch.no_grad():
        logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    for line, row in zip(lines, logits.softmax(-1).tolist(), strict=True):
        ours = json.loads(line)["probabilities"]
        assert [ours[model.config.id2label[i]] for i in range(2)] == pytest.approx(row, abs=1e-5)


def test_a_run_stopped_in_the_middle_ends_like_one_that_was_not(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(str(tiny_checkpoint), tmp_path / "whole", reviews)
    loss = StoppedLoss()
    monkeypatch.setattr(Classification, "loss", loss.of)
    with pytest.raises(KeyboardInterrupt):
        run(str(tiny_checkpoint), tmp_path / "stopped", reviews)
    assert (tmp_path / "stopped.run").is_dir()
    again = run(str(tiny_checkpoint), tmp_path / "stopped", reviews)
    assert loss.calls < 2 * 24, "the first epoch was not trained again"
    assert [e["dev"] for e in again["epochs"]] == [e["dev"] for e in whole["epochs"]]
    one, other = (load_model(tmp_path / name).model.state_dict() for name in ("whole", "stopped"))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_run_is_not_resumed_from_another_model(tiny_checkpoint: Path, reviews: Path, tmp_path: Path) -> None:
    loss = StoppedLoss()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Classification, "loss", loss.of)
        with pytest.raises(KeyboardInterrupt):
            run(str(tiny_checkpoint), tmp_path / "out", reviews)
    with pytest.raises(TrainingError, match="another"):
        run(f"{tiny_checkpoint}+all", tmp_path / "out", reviews)


def test_a_run_is_not_resumed_on_another_split(tiny_checkpoint: Path, reviews: Path, tmp_path: Path) -> None:
    run(str(tiny_checkpoint), tmp_path / "done", reviews, training=TRAINING | {"epochs": 1})
    model, tokenizer = build(str(tiny_checkpoint), *_task(reviews, 0)[:1], seed=1)
    arguments = {"name": "tiny", "metric": "accuracy", "folder": tmp_path / "run", "progress": False}
    config = TrainingConfig(**TRAINING | {"epochs": 1})
    train(model, tokenizer, _task(reviews, 0)[1], config, **arguments)
    with pytest.raises(TrainingError, match="another"):
        train(model, tokenizer, _task(reviews, 1)[1], config, **arguments)


def _task(reviews: Path, split_seed: int) -> Any:
    source = DataSource(data=str(reviews), split_seed=split_seed)
    return read_splits("classification", source, {"max_length": 24})


def test_a_run_killed_between_saving_and_clearing_away_is_cleared_away_by_the_next(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("thrice.finetune.shutil.copyfile", killed)
        with pytest.raises(KeyboardInterrupt):
            run(str(tiny_checkpoint), tmp_path / "out", reviews, training=TRAINING | {"epochs": 1})
    assert (tmp_path / "out" / "config.json").exists()
    assert (tmp_path / "out.run").exists()
    run(str(tiny_checkpoint), tmp_path / "out", reviews, training=TRAINING | {"epochs": 1})
    assert not (tmp_path / "out.run").exists()
    assert (tmp_path / "out" / "train.jsonl").exists()


def test_a_finished_folder_is_not_trained_over_unless_asked(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    training = TRAINING | {"epochs": 1}
    run(str(tiny_checkpoint), tmp_path / "out", reviews, training=training)
    with pytest.raises(TrainingError, match="--restart"):
        run(str(tiny_checkpoint), tmp_path / "out", reviews, training=training)
    run(str(tiny_checkpoint), tmp_path / "out", reviews, training=training, restart=True)


def test_a_run_begun_anew_and_stopped_goes_on_without_being_asked_again(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(str(tiny_checkpoint), tmp_path / "out", reviews)
    loss = StoppedLoss()
    monkeypatch.setattr(Classification, "loss", loss.of)
    with pytest.raises(KeyboardInterrupt):
        run(str(tiny_checkpoint), tmp_path / "out", reviews, restart=True)
    run(str(tiny_checkpoint), tmp_path / "out", reviews)
    assert loss.calls < 2 * 24, "the first epoch was not trained again"
    assert not (tmp_path / "out.run").exists()


def test_a_mistyped_restart_costs_nothing(tiny_checkpoint: Path, reviews: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Classification, "loss", StoppedLoss().of)
        with pytest.raises(KeyboardInterrupt):
            run(str(tiny_checkpoint), tmp_path / "out", reviews)
    held = sorted(path.name for path in (tmp_path / "out.run").iterdir())
    with pytest.raises(DataError, match="no such file"):
        run(str(tiny_checkpoint), tmp_path / "out", reviews, source=DataSource(data="typo.csv"), restart=True)
    assert sorted(path.name for path in (tmp_path / "out.run").iterdir()) == held


def test_a_folder_that_holds_other_things_is_refused_before_training(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work", encoding="utf-8")
    said: list[str] = []
    with pytest.raises(CheckpointError, match="other things"):
        run(str(tiny_checkpoint), tmp_path, reviews, say=said.append)
    assert not said


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_predictions_keep_every_column_of_the_input(
    suffix: str, tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    run(str(tiny_checkpoint), folder, reviews, training=TRAINING | {"epochs": 1})
    predict_file(folder, str(reviews), tmp_path / f"answers.{suffix}")
    text = (tmp_path / f"answers.{suffix}").read_text(encoding="utf-8")
    if suffix == "jsonl":
        rows = [json.loads(line) for line in text.splitlines()]
    else:
        rows = list(csv.DictReader(text.splitlines(), delimiter="\t" if suffix == "tsv" else ","))
    before = list(csv.DictReader(reviews.read_text(encoding="utf-8").splitlines()))
    assert [[row[key] for key in ("id", "text", "label")] for row in rows] == [list(row.values()) for row in before]
    assert {row["prediction"] for row in rows} <= {"good", "bad"}


def test_a_missing_value_moves_no_cell_of_a_table(tiny_checkpoint: Path, reviews: Path, tmp_path: Path) -> None:
    run(str(tiny_checkpoint), tmp_path / "out", reviews, training=TRAINING | {"epochs": 1})
    (tmp_path / "new.jsonl").write_text(
        '{"note": "x", "text": "质量很好"}\n{"note": null, "text": "物流太慢"}\n{"text": "物流太慢"}\n',
        encoding="utf-8",
    )
    predict_file(tmp_path / "out", str(tmp_path / "new.jsonl"), tmp_path / "new.csv")
    rows = list(csv.DictReader((tmp_path / "new.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["note"], row["text"]) for row in rows] == [("x", "质量很好"), ("", "物流太慢"), ("", "物流太慢")]
    assert {row["prediction"] for row in rows} <= {"good", "bad"}


def test_a_model_answers_a_list_of_texts_as_it_answers_a_file(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    run(str(tiny_checkpoint), tmp_path / "out", reviews, training=TRAINING | {"epochs": 1})
    rows = [json.loads(line) for line in predict_file(tmp_path / "out", str(reviews), None)]
    answers = load_model(tmp_path / "out").predict([row["text"] for row in rows])
    assert [answer["probabilities"] for answer in answers] == [row["probabilities"] for row in rows]
    with pytest.raises(DataError, match="answers strings"):
        load_model(tmp_path / "out").predict([("a", "b")])


def test_rows_without_a_label_can_be_predicted(tiny_checkpoint: Path, reviews: Path, tmp_path: Path) -> None:
    run(str(tiny_checkpoint), tmp_path / "out", reviews, training=TRAINING | {"epochs": 1})
    (tmp_path / "new.jsonl").write_text('{"key": 7, "text": "质量很好"}\n{"key": 8, "text": ""}\n', encoding="utf-8")
    answers = [json.loads(line) for line in predict_file(tmp_path / "out", str(tmp_path / "new.jsonl"), None)]
    assert [answer["key"] for answer in answers] == ["7", "8"]
    assert all(sum(answer["probabilities"].values()) == pytest.approx(1) for answer in answers)


def test_contradicting_ways_to_name_the_data_are_refused() -> None:
    for arguments in ({}, {"data": "a", "train": "b"}, {"data": "a", "test": "b"}, {"train": "a"}):
        with pytest.raises(ConfigError, match=r"--data|--dev"):
            DataSource(**arguments)


def test_given_splits_are_used_and_shared_texts_are_told(tmp_path: Path) -> None:
    rows = ["text\tlabel", "好\t1", "差\t0"]
    for name, extra in (("train", "新\t1"), ("dev", "旧\t0"), ("test", "中\t1")):
        (tmp_path / f"{name}.tsv").write_text("\n".join([*rows, extra]) + "\n", encoding="utf-8")
    source = DataSource(**{name: str(tmp_path / f"{name}.tsv") for name in ("train", "dev", "test")})
    _, splits = read_splits("classification", source, {})
    assert (len(splits.train), len(splits.dev), len(splits.test)) == (3, 3, 3)
    assert splits.facts["notes"] == [
        f"2 of the 3 distinct {part} texts are training texts too" for part in ("dev", "test")
    ]


def test_texts_that_are_cut_are_counted_aloud(tiny_checkpoint: Path, reviews: Path, tmp_path: Path) -> None:
    for long_texts, told in (("head", True), ("chunks", False)):
        said: list[str] = []
        options = {"max_length": 8, "long_texts": long_texts}
        training = TRAINING | {"epochs": 1}
        run(str(tiny_checkpoint), tmp_path / long_texts, reviews, options=options, training=training, say=said.append)
        assert any("are cut" in line for line in said) is told


def test_unknown_task_options_and_metrics_are_named(tiny_checkpoint: Path, reviews: Path, tmp_path: Path) -> None:
    source = DataSource(data=str(reviews))
    with pytest.raises(ConfigError, match="no option colour"):
        read_splits("classification", source, {"colour": "red"})
    with pytest.raises(ConfigError, match="did you mean classification"):
        read_splits("classifcation", source, {})
    with pytest.raises(ConfigError, match="accuracy, macro_f1"):
        run(str(tiny_checkpoint), tmp_path / "out", reviews, metric="f2")


def test_presets_borrow_the_chinese_vocabulary_or_want_one_named() -> None:
    assert tokenizer_for("preset:albert-tiny-zh", PRESETS["albert-tiny-zh"]).vocab_size == 21128
    with pytest.raises(CheckpointError, match="--tokenizer"):
        tokenizer_for("preset:bert-tiny", PRESETS["bert-tiny"])


def test_a_folder_that_thrice_did_not_fine_tune_is_no_model_to_predict_with(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="thrice finetune"):
        load_model(tiny_checkpoint)
    with pytest.raises(DataError, match=r"\.jsonl, \.csv or \.tsv"):
        predict_file(tiny_checkpoint, str(reviews), tmp_path / "answers.txt")


def test_electra_gets_layerwise_decay_unless_told_otherwise() -> None:
    from thrice.finetune import default_training

    assert default_training(PRESETS["electra-small"], {}).layerwise_decay == 0.8
    assert default_training(PRESETS["electra-large"], {}).layerwise_decay == 0.9
    assert default_training(PRESETS["electra-small"], {"layerwise_decay": 1.0}).layerwise_decay == 1.0
    assert default_training(PRESETS["albert-base"], {"layerwise_decay": None}).layerwise_decay == 1.0


def test_every_file_of_a_saved_folder_is_as_readable_as_its_config(tiny_checkpoint: Path) -> None:
    modes = {path.name: path.stat().st_mode for path in tiny_checkpoint.iterdir()}
    assert set(modes.values()) == {modes["config.json"]}


@pytest.mark.parametrize("seed", [2**32, 10**23, -1])
def test_a_seed_that_cannot_be_is_told_before_anything_is_read(
    tiny_checkpoint: Path, tmp_path: Path, seed: int
) -> None:
    with pytest.raises(ConfigError, match="seed is"):
        finetune(
            str(tiny_checkpoint),
            tmp_path / "out",
            source=DataSource(data=str(tmp_path / "absent.csv")),
            task_name="classification",
            options={},
            training={"seed": seed},
        )
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_name_is_refused(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="expected the name of a new folder"):
        run(str(tiny_checkpoint), Path(""), reviews)
    assert not list(tmp_path.iterdir())
