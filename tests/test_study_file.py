"""A study written as TOML, or said by options: the same study, everything misunderstood told at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import run

from thrice.compare.study_file import read_study_file, settings, study_of
from thrice.errors import ConfigError, DataError

STUDY = """
seeds = 2
threads = 1

[arms]
shared = "model+all"
unshared = {model = "model+none", grid = {learning_rate = [1e-4, 3e-4]}}
control = "tfidf"

[tasks.reviews]
data = "reviews.csv"
max_length = 24

[tasks.again]
data = "reviews.csv"
metric = "macro_f1"
max_length = 24
training = {epochs = 1}

[training]
epochs = 2
batch_size = 8
"""


@pytest.fixture
def room(tiny_checkpoint: Path, reviews: Path, tmp_path: Path) -> Path:
    """A folder with a model, its data and a study of both."""
    (tmp_path / "model").symlink_to(tiny_checkpoint)
    (tmp_path / "reviews.csv").write_bytes(reviews.read_bytes())
    (tmp_path / "study.toml").write_text(STUDY, encoding="utf-8")
    return tmp_path


def test_a_file_says_arms_tasks_seeds_and_training(room: Path) -> None:
    study = study_of(read_study_file(room / "study.toml"), name="study.toml")
    assert [arm.name for arm in study.arms] == ["shared", "unshared", "control"]
    assert study.arms[0].model == f"{room}/model+all", "found beside the file, wherever the command is typed"
    assert study.arms[1].grid == {"learning_rate": (1e-4, 3e-4)}
    assert [(task.name, task.metric) for task in study.tasks] == [("reviews", "accuracy"), ("again", "macro_f1")]
    assert study.tasks[0].source.data == str(room / "reviews.csv")
    assert study.tasks[0].options == {"max_length": 24}
    assert study.seeds == (0, 1)
    assert (study.training.epochs, study.training.max_grad_norm) == (2, 0.0)
    assert len(study.cells) == (1 + 2 + 1) * 2 * 2


def test_settings_change_a_study_and_take_what_is_no_toml_as_text(room: Path) -> None:
    said = [
        "training.epochs=5",
        "seeds=[7, 9]",
        "tasks.reviews.max_length=12",
        "tasks.reviews.train=other.csv",
        "arms.shared.training.epochs=1",
        'arms."a/b+none".model=a/b+none',
    ]
    value = settings(read_study_file(room / "study.toml"), said)
    assert value["training"] == {"epochs": 5, "batch_size": 8}
    assert value["seeds"] == [7, 9]
    assert value["tasks"]["reviews"]["max_length"] == 12
    assert value["tasks"]["reviews"]["train"] == "other.csv"
    assert value["tasks"]["again"]["training"] == {"epochs": 1}
    assert value["arms"]["shared"] == {"model": f"{room}/model+all", "training": {"epochs": 1}}
    assert value["arms"]["a/b+none"] == {"model": "a/b+none"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["trainin.epochs=5"], "trainin is no key; did you mean training?"),
        (["training.epoch=5"], "no training field 'epoch'; did you mean epochs?"),
        (["arms.shared.grid.learning_rat=[1]"], "did you mean learning_rate?"),
        (["arms.shared.modle=a"], "arms.shared.modle is no key; did you mean model?"),
        (["arms.unshared.model=7"], "arms.unshared.model is 7, expected text"),
        (["tasks.reviews.max_lenght=3"], "tasks.reviews.max_lenght is no key; did you mean max_length?"),
        (["tasks.reviews.task=clasification"], "did you mean classification"),
        (["tasks.reviews.metric=f2"], "this task gives accuracy, macro_f1"),
        (["seeds=0"], "seeds is 0"),
        (["seeds=[1, 1]"], "seeds named twice: 1"),
        (["training.learning_rate=-1"], "learning_rate is -1"),
        (["threads=0"], "threads is 0"),
        (["epochs"], "expected KEY=VALUE"),
        (["a+b=1"], "stands in quotes"),
        (["arms.unshared.grid.epochs=[-1]"], "unshared on reviews epochs=-1 learning_rate=0.0001 seed 0: "),
    ],
)
def test_what_is_not_understood_is_told_with_what_would_be(room: Path, changes: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study_of(settings(read_study_file(room / "study.toml"), changes), name="study.toml")
    assert expected in str(caught.value)


def test_all_that_is_wrong_is_told_at_once(room: Path) -> None:
    changes = ["seed=3", "tasks.again.lenght=5", "training.lr=1"]
    with pytest.raises(ConfigError) as caught:
        study_of(settings(read_study_file(room / "study.toml"), changes), name="study.toml")
    assert str(caught.value).startswith("study.toml: seed is no key; did you mean seeds?")
    changes = ["tasks.again.lenght=5", "training.lr=1", "arms.shared.training.lr=1"]
    with pytest.raises(ConfigError) as caught:
        study_of(settings(read_study_file(room / "study.toml"), changes), name="study.toml")
    for part in ("training: no training field 'lr'", "arms.shared: no training field 'lr'", "tasks.again.lenght"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"arms = [", "is no TOML"), (b"\xff\xfe", "cannot be read"), (b'arms = ["a", "a"]', "arms named twice: a")],
)
def test_a_file_that_is_no_study_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "x.toml").write_bytes(content)
    with pytest.raises((DataError, ConfigError), match=expected):
        study_of(read_study_file(tmp_path / "x.toml"), name="x.toml")


def test_a_study_file_and_options_that_say_the_same_are_the_same_study(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from thrice import cli

    asked: list = []
    monkeypatch.setattr(cli.studies, "_run_study", lambda study, *_, **__: asked.append(study))
    monkeypatch.chdir(room)
    words = ["compare", "model+all", "model+none", "tfidf", "--data", "reviews.csv", "--max-length", "24"]
    words += ["--epochs", "2", "--batch-size", "8", "--seeds", "2", "--threads", "1", "--out", "out"]
    assert run(monkeypatch, capsys, *words)[0] == 0
    content = STUDY.replace("shared = ", '"model+all" = ', 1).replace("unshared = ", '"model+none" = ')
    content = content.replace(", grid = {learning_rate = [1e-4, 3e-4]}", "").replace("control = ", "tfidf = ")
    content = content.replace("[tasks.reviews]", "[tasks.classification]")
    content = content[: content.index("[tasks.again]")] + content[content.index("[training]") :]
    (room / "same.toml").write_text(content, encoding="utf-8")
    assert run(monkeypatch, capsys, "compare", "same.toml")[0] == 0
    by_options, by_file = (study.to_json() for study in asked)
    for study in (by_options, by_file):
        for arm in study["arms"]:
            arm["model"] = Path(arm["model"]).name
        for task in study["tasks"]:
            task["source"]["data"] = Path(task["source"]["data"]).name
            task["options"] = {"max_length": task["options"]["max_length"]}
    assert by_options == by_file


def test_options_that_a_study_file_says_are_refused_beside_it(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(monkeypatch, capsys, "compare", str(room / "study.toml"), "--epochs", "9", "--lr", "0.1")
    assert code == 2
    assert "--epochs, --learning-rate: say it in" in err
    assert "--set training.epochs=5" in err


def test_a_dry_run_plans_and_writes_nothing(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(room)
    before = sorted(path.name for path in room.iterdir())
    code, out, err = run(monkeypatch, capsys, "compare", "study.toml", "--dry-run", "--json")
    assert code == 0, err
    plan = json.loads(out)
    assert (plan["cells"], plan["missing"]) == (16, 16)
    # 96 of 120 reviews train, 12 steps an epoch; two epochs of one task and one of the other, 3 points, 2 seeds.
    assert plan["steps"] == 12 * (2 + 1) * 3 * 2
    assert plan["seconds"] > 0
    assert plan["disk_bytes"] > 0
    code, out, err = run(monkeypatch, capsys, "compare", "study.toml", "--dry-run")
    assert "plan: 16 cells (3 arms at 4 points x 2 tasks x 2 seeds); about" in out
    assert "unshared on again learning_rate=0.0003 seed 1" in out
    assert sorted(path.name for path in room.iterdir()) == before


def test_a_grid_takes_the_rate_by_the_name_of_its_option(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(room)
    words = ["compare", "model+all", "--data", "reviews.csv", "--grid", "lr=1e-4,3e-4", "--seeds", "1", "--dry-run"]
    code, out, err = run(monkeypatch, capsys, *words, "--max-length", "24", "--out", "new")
    assert code == 0, err
    assert "learning_rate=0.0003 seed 0" in out
