"""A study: every arm under the same conditions, killed anywhere and finished with the same rows, its cost beside it."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from thrice.compare.cells import Copies
from thrice.compare.grid import Arm, Cell, Study, StudyTask, arms_of, cell_path, slug
from thrice.compare.results import read_rows
from thrice.compare.runner import Engine, run_study
from thrice.compare.summary import summarise
from thrice.errors import ConfigError
from thrice.finetune import DataSource
from thrice.training import TrainingConfig


def study_of(checkpoint: Path, reviews: Path, **changes: Any) -> Study:
    task = StudyTask(
        name="reviews", metric="accuracy", options={"max_length": 24}, source=DataSource(data=str(reviews))
    )
    values: dict[str, Any] = {
        "arms": arms_of(f"{checkpoint}+all", f"{checkpoint}+none", "tfidf"),
        "tasks": (task,),
        "seeds": (0, 1),
        "training": TrainingConfig(epochs=3, batch_size=8, learning_rate=1e-2, max_grad_norm=0.0),
    }
    return Study(**(values | changes))


TIMES = ("seconds", "eval_seconds", "started", "finished", "peak_memory_bytes")


def comparable(value: Any) -> Any:
    """Give a row without what a clock wrote into it."""
    if isinstance(value, dict):
        return {key: comparable(v) for key, v in value.items() if key not in TIMES}
    return [comparable(v) for v in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def finished(tiny_checkpoint: Path, reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "finished"
    run_study(study_of(tiny_checkpoint, reviews), folder, command="thrice compare ...")
    return folder


def test_every_cell_has_a_row_with_every_epoch_and_a_test_score(finished: Path, tiny_checkpoint: Path) -> None:
    rows = read_rows(finished)
    assert len(rows) == 6
    for row in rows:
        assert row["labels"] == ["bad", "good"]
        assert len(row["test"]["confusion"]) == 2
        if row["arm"] != "tfidf":
            assert [e["epoch"] for e in row["epochs"]] == [1, 2, 3]
            assert row["epochs"][0]["clipped_fraction"] == 0
    assert not (finished / "work").exists() or not any((finished / "work").iterdir())
    summary = summarise(finished)
    assert summary["cells"] == {"done": 6, "planned": 6}
    all_, none, tfidf = summary["tasks"][0]["arms"]
    assert tfidf["test"]["mean"] > 0.8, "characters tell these reviews apart"
    assert none["test"]["difference"]["n"] == 2 - len({*all_["collapsed"], *none["collapsed"]})
    assert all_["cost"]["parameters_called"] == none["cost"]["parameters_called"]
    assert none["cost"]["parameters_called"] == none["cost"]["parameters_stored"] > all_["cost"]["parameters_stored"]
    for arm in (all_, none):
        assert arm["cost"]["seconds_per_epoch"] > 0
        assert arm["cost"]["memory"]["optimizer"] > 2 * 4 * arm["cost"]["parameters_stored"]
        assert arm["cost"]["peak_memory_bytes"] >= arm["cost"]["memory"]["weights"]
        assert arm["cost"]["file_bytes"] == 4 * arm["cost"]["parameters_stored"]
    assert summary["study"]["command"] == "thrice compare ..."
    assert sum(summary["study"]["data"]["reviews"][part]["rows"] for part in ("train", "dev")) < 120


def test_arms_of_one_seed_see_the_same_examples_in_the_same_order(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thrice.tasks.classification import ClassificationData

    seen: list[list[int]] = []
    right = ClassificationData.batch

    def spy(self: ClassificationData, indices: Any) -> Any:
        seen.append([int(i) for i in indices])
        return right(self, indices)

    monkeypatch.setattr(ClassificationData, "batch", spy)
    monkeypatch.setattr("thrice.compare.runner.measure_cost", lambda *_: None)
    arms = arms_of(f"{tiny_checkpoint}+all", f"{tiny_checkpoint}+none")
    run_study(study_of(tiny_checkpoint, reviews, arms=arms, seeds=(5,)), tmp_path / "study")
    half = len(seen) // 2
    assert seen[:half] == seen[half:]
    assert len(seen) > 10


def test_a_second_start_computes_only_what_is_missing(finished: Path, tiny_checkpoint: Path, reviews: Path) -> None:
    path = cell_path(finished, Cell(f"{tiny_checkpoint}+none", "reviews", 1))
    before = comparable(json.loads(path.read_text(encoding="utf-8")))
    path.unlink()
    computed: list[dict] = []
    run_study(study_of(tiny_checkpoint, reviews), finished, command="thrice compare ...", on_cell=computed.append)
    assert [(row["arm"], row["seed"]) for row in computed] == [(f"{tiny_checkpoint}+none", 1)]
    assert comparable(json.loads(path.read_text(encoding="utf-8"))) == before


def test_processes_side_by_side_give_the_same_rows(
    finished: Path, tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thrice.compare.runner.measure_cost", lambda *_: None)
    told: list[int] = []
    study = study_of(tiny_checkpoint, reviews)
    run_study(
        study,
        tmp_path / "study",
        engine=Engine(jobs=2),
        on_start=lambda steps, done: told.append(-steps),
        on_steps=told.append,
    )
    assert told[0] == -4 * 3 * 12, "2 arms with 2 seeds of 3 epochs of 12 steps"
    assert all(steps > 0 for steps in told[1:])
    assert comparable(read_rows(tmp_path / "study")) == comparable(read_rows(finished))


KILLED = """
import sys
from test_compare import study_of
from thrice.compare import runner
from pathlib import Path
import torch
torch.set_num_threads(1)
runner.measure_cost = lambda *_: None
if __name__ == "__main__":
    study = study_of(Path(sys.argv[1]), Path(sys.argv[2]))
    runner.run_study(study, Path(sys.argv[3]), engine=runner.Engine(jobs=2), command="thrice compare ...")
"""


def test_a_study_whose_processes_are_killed_finishes_with_the_same_rows(
    finished: Path, tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    (tmp_path / "killed.py").write_text(KILLED, encoding="utf-8")
    arguments = [sys.executable, str(tmp_path / "killed.py"), str(tiny_checkpoint), str(reviews)]
    arguments += [str(tmp_path / "study")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    draw = random.Random(3)
    kills, done = 0, False
    while not done:
        process = subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True)
        # Kill once after a number of files drawn at random has been written, so that machines of any speed are hit.
        wanted = _written(tmp_path / "study") + draw.randint(1, 40)
        while not kills and process.poll() is None and _written(tmp_path / "study") < wanted:
            time.sleep(0.005)
        if not kills and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        _, errors = process.communicate()
        done = process.returncode == 0
        assert done or process.returncode == -signal.SIGKILL, errors
    assert kills > 0
    assert comparable(read_rows(tmp_path / "study")) == comparable(read_rows(finished))


def _written(folder: Path) -> int:
    """Count finished cells and logged steps."""
    logs = sum(path.read_bytes().count(b"\n") for path in folder.glob("work/*/train.jsonl") if path.exists())
    return 20 * len(list(folder.glob("cells/*.json"))) + logs


def test_another_study_is_not_mixed_into_a_folder(finished: Path, tiny_checkpoint: Path, reviews: Path) -> None:
    other = TrainingConfig(epochs=4, batch_size=8, learning_rate=1e-2, max_grad_norm=0.0)
    with pytest.raises(ConfigError, match=r"training.epochs was 3 and is 4 - .*--restart"):
        run_study(study_of(tiny_checkpoint, reviews, training=other), finished)


def test_a_folder_that_holds_something_else_is_left_alone(tiny_checkpoint: Path, reviews: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no study"):
        run_study(study_of(tiny_checkpoint, reviews), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_arms_that_cannot_be_built_are_all_named_before_anything_runs(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path
) -> None:
    arms = arms_of(str(tiny_checkpoint), f"{tiny_checkpoint}+groups=9", "zoo:albert-nan-zh", "preset:bert-tiny")
    with pytest.raises(ConfigError) as caught:
        run_study(study_of(tiny_checkpoint, reviews, arms=arms), tmp_path / "study")
    assert "3 of 4 arms" in str(caught.value)
    assert "did you mean albert-nano-zh" in str(caught.value)
    assert not (tmp_path / "study").exists()


def test_a_restart_forgets_a_study_and_touches_nothing_else(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thrice.compare.runner.measure_cost", lambda *_: None)
    (tmp_path / "project" / "models").mkdir(parents=True)
    (tmp_path / "project" / "models" / "mine.bin").write_text("years of work", encoding="utf-8")
    tiny = study_of(tiny_checkpoint, reviews, arms=arms_of("tfidf"), seeds=(0,))
    with pytest.raises(ConfigError, match="holds no study"):
        run_study(tiny, tmp_path / "project", restart=True)
    assert (tmp_path / "project" / "models" / "mine.bin").exists()

    run_study(tiny, tmp_path / "study")
    before = read_rows(tmp_path / "study")
    with pytest.raises(ConfigError, match="cannot be built"):
        run_study(study_of(tiny_checkpoint, reviews, arms=arms_of("zoo:typo")), tmp_path / "study", restart=True)
    assert read_rows(tmp_path / "study") == before, "a typo costs nothing"
    computed: list[dict] = []
    run_study(tiny, tmp_path / "study", restart=True, on_cell=computed.append)
    assert len(computed) == 1


def test_an_arm_whose_weights_changed_is_not_mixed_with_its_old_rows(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from thrice.checkpoints import load, save

    monkeypatch.setattr("thrice.compare.runner.measure_cost", lambda *_: None)
    model = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, model)
    study = study_of(model, reviews, arms=arms_of(str(model)), seeds=(0,))
    run_study(study, tmp_path / "study")
    encoder = load(str(model))
    with torch.no_grad():
        encoder.ffn[0].output.bias[0] += 1
    save(encoder, model)
    with pytest.raises(ConfigError, match="weights or the tokenizer"):
        run_study(study, tmp_path / "study")


def test_the_control_arm_answers_several_labels_and_says_what_it_cannot_do(tmp_path: Path) -> None:
    from thrice.compare.baseline import run_tfidf
    from thrice.errors import DataError
    from thrice.finetune import read_splits

    lines = ['{"text": "很好很快", "label": ["good", "fast"]}', '{"text": "很差很慢", "label": ["bad"]}'] * 4
    (tmp_path / "several.jsonl").write_text("\n".join(lines), encoding="utf-8")
    source = DataSource(train=str(tmp_path / "several.jsonl"), dev=str(tmp_path / "several.jsonl"))
    task, splits = read_splits("classification", source, {"multi_label": True})
    assert run_tfidf(task, splits, seed=0)[0]["epochs"][0]["dev"]["micro_f1"] == 1

    (tmp_path / "empty.csv").write_text("text,label\n,a\n,b\n", encoding="utf-8")
    source = DataSource(train=str(tmp_path / "empty.csv"), dev=str(tmp_path / "empty.csv"))
    with pytest.raises(DataError, match="nothing to learn from"):
        run_tfidf(*read_splits("classification", source, {}), seed=0)


def test_different_tokenizers_are_told(tiny_checkpoint: Path, reviews: Path, tmp_path: Path) -> None:
    from thrice.compare.facts import made_of, study_facts

    study = study_of(tiny_checkpoint, reviews, arms=arms_of(str(tiny_checkpoint), "zoo:albert-nano-zh"))
    facts = study_facts(study, made_of(study), None)
    assert any("not the same tokenizer" in note and "zoo:albert-nano-zh" in note for note in facts["notes"])


def test_a_study_survives_json() -> None:
    study = Study(
        arms=(Arm(model="a"), Arm(model="a", name="hot", training={"epochs": 2}, grid={"learning_rate": [1e-4, 1e-3]})),
        tasks=(
            StudyTask(name="t", metric="accuracy", source=DataSource(train="x", dev="y", columns=("text", "label"))),
        ),
        training=TrainingConfig(epochs=7),
    )
    assert Study.from_json(json.loads(json.dumps(study.to_json() | {"machine": {}}))) == study


def test_cells_of_a_grid_are_trained_at_its_points_and_last_words_hold() -> None:
    source = DataSource(data="x")
    study = Study(
        arms=(Arm(model="a", training={"warmup": 5}, grid={"learning_rate": [1e-4, 1e-3], "epochs": [1, 2]}),),
        tasks=(StudyTask(name="t", metric="accuracy", source=source, training={"epochs": 9, "batch_size": 2}),),
        seeds=(3,),
        training=TrainingConfig(epochs=7, batch_size=8),
    )
    configs = [study.training_of(cell) for cell in study.cells]
    assert [(c.learning_rate, c.epochs) for c in configs] == [(1e-4, 1), (1e-4, 2), (1e-3, 1), (1e-3, 2)]
    assert {(c.batch_size, c.warmup, c.seed) for c in configs} == {(2, 5, 3)}
    assert len({cell_path(Path(), cell) for cell in study.cells}) == 4


def test_slugs_are_file_names_and_differ() -> None:
    names = ["a/b+none", "a-b+none", "../../etc", "zoo:x+attention=0,0;ffn=0,1", "词"]
    assert len({slug(name) for name in names}) == len(names)
    for name in names:
        assert "/" not in slug(name)
        assert not slug(name).startswith(".")


def test_what_keeps_a_study_from_being_one_is_said_at_once() -> None:
    task = StudyTask(name="t", metric="accuracy", source=DataSource(data="x"))
    with pytest.raises(ConfigError, match="arms named twice: a; seeds named twice: 1; threads is 0"):
        Study(arms=arms_of("a", "a"), tasks=(task,), seeds=(1, 1), threads=0, training=TrainingConfig())
    with pytest.raises(ConfigError, match=r"at least one of tasks; .*at least one of seeds"):
        Study(arms=arms_of("a"), tasks=(), seeds=(), training=TrainingConfig())
    arms = (Arm(model="a", grid={"epoch": [1]}), Arm(model="tfidf", training={"epochs": 1}))
    with pytest.raises(ConfigError, match=r"did you mean epochs.*tfidf has no training"):
        Study(arms=arms, tasks=(task,), training=TrainingConfig())
    with pytest.raises(ConfigError, match=r"a on t learning_rate=-1 seed 0: .*above 0"):
        Study(arms=(Arm(model="a", grid={"learning_rate": [-1]}),), tasks=(task,), training=TrainingConfig())


def test_arms_tasks_and_seeds_may_be_added_to_a_study_and_nothing_else_changed(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thrice.compare.runner.measure_cost", lambda *_: None)
    study = study_of(tiny_checkpoint, reviews, arms=arms_of("tfidf"), seeds=(0,))
    run_study(study, tmp_path / "study")
    (first,) = study.tasks
    both = (first, dataclasses.replace(first, name="again", metric="macro_f1"))
    computed: list[dict] = []
    more = dataclasses.replace(study, tasks=both, seeds=(0, 1))
    run_study(more, tmp_path / "study", on_cell=computed.append)
    assert [(row["task"], row["seed"]) for row in computed] == [("again", 0), ("reviews", 1), ("again", 1)]
    assert [part["metric"] for part in summarise(tmp_path / "study")["tasks"]] == ["accuracy", "macro_f1"]
    other = dataclasses.replace(study, tasks=(dataclasses.replace(first, options={"max_length": 12}),))
    with pytest.raises(ConfigError, match=r"tasks.reviews.options.max_length was 24 and is 12"):
        run_study(other, tmp_path / "study")


def test_a_spent_budget_saves_and_the_next_start_finishes_with_the_same_rows(
    finished: Path, tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thrice.compare.runner.measure_cost", lambda *_: None)
    study = study_of(tiny_checkpoint, reviews)
    assert not run_study(study, tmp_path / "study", minutes=0.2 / 60)
    assert len(read_rows(tmp_path / "study")) < 6
    assert run_study(study, tmp_path / "study", minutes=60)
    assert comparable(read_rows(tmp_path / "study")) == comparable(read_rows(finished))


def test_test_items_are_compared_when_all_cells_are_done(finished: Path) -> None:
    part = summarise(finished)["tasks"][0]
    first, none, tfidf = part["arms"]
    assert first["test"]["difference"] is None
    for arm in (none, tfidf):
        items, difference = arm["test"]["difference"]["items"], arm["test"]["difference"]
        assert items["n"] == summarise(finished)["study"]["data"]["reviews"]["test"]["rows"]
        assert items["mean"] == pytest.approx(difference["mean"])
        assert items["low"] <= items["mean"] <= items["high"]
    assert all(set(item["answers"]) == {arm["arm"] for arm in part["arms"]} for item in part["disagreements"])


def test_a_study_lost_with_its_machine_is_fetched_from_its_store_and_trackers_know_its_cells(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thrice.compare.runner.measure_cost", lambda *_: None)
    study = study_of(tiny_checkpoint, reviews, arms=arms_of(f"{tiny_checkpoint}+all", "tfidf"), seeds=(0,))
    copies = Copies(store=(tmp_path / "store").as_uri(), trackers=("tensorboard",))
    run_study(study, tmp_path / "study", copies=copies)
    assert len(list((tmp_path / "study" / "tensorboard").rglob("events.out.*"))) >= 2
    before = read_rows(tmp_path / "study")
    shutil.rmtree(tmp_path / "study")
    computed: list[dict] = []
    run_study(study, tmp_path / "study", copies=copies, on_cell=computed.append)
    assert computed == []
    assert read_rows(tmp_path / "study") == before
    with pytest.raises(ConfigError, match="no tracker is called 'tensorbord'"):
        run_study(study, tmp_path / "other", copies=Copies(trackers=("tensorbord",)))
    assert not (tmp_path / "other").exists()
