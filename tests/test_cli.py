"""The command line: what people type works, errors are short and leave with code 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from thrice import cli
from thrice.cli import screen

COMMANDS = (
    "compare",
    "corpus",
    "demo",
    "fewshot",
    "finetune",
    "inspect",
    "list",
    "predict",
    "pretrain",
    "report",
    "share",
    "unshare",
    "vocabulary",
)


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the command line in this process; give exit code, output and messages."""
    monkeypatch.setattr(sys, "argv", ["thrice", *words])
    monkeypatch.setattr(screen, "out", Console(width=200))
    monkeypatch.setattr(screen, "err", Console(stderr=True, width=400))
    with pytest.raises(SystemExit) as caught:  # typer leaves by SystemExit even where all went well
        cli.main()
    said = capsys.readouterr()
    return int(caught.value.code or 0), said.out, said.err


def test_help_names_every_command_and_teaches_the_patterns() -> None:
    done = subprocess.run([sys.executable, "-m", "thrice", "--help"], capture_output=True, text=True, check=True)
    for command in COMMANDS:
        assert f" {command} " in done.stdout
    assert "groups=K" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, command, "--help")
    assert code == 0
    assert "Usage" in out


@pytest.mark.parametrize("kind", ["tasks", "objectives", "recipes", "families", "presets", "patterns", "zoo"])
def test_lists_print_their_names_as_json(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, "list", kind, "--json")
    names = json.loads(out)
    assert code == 0
    assert names == sorted(names)
    known = {
        "tasks": "classification",
        "objectives": "mlm",
        "recipes": "electra-nano",
        "families": "roberta",
        "presets": "albert-tiny-zh",
        "patterns": "attention",
        "zoo": "albert-nano-zh",
    }
    assert known[kind] in names


def test_inspect_accounts_for_every_tensor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(monkeypatch, capsys, "inspect", "zoo:albert-nano-zh", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["family"], found["sharing"]) == ("albert", "all")
    assert found["parameters_called"] > found["parameters_stored"]
    assert all(set(t) == {"name", "shape", "fate"} for t in found["tensors"])
    code, out, _ = run(monkeypatch, capsys, "inspect", "zoo:albert-nano-zh")
    assert code == 0
    assert "embedding_hidden_mapping_in" in out


def test_unshare_writes_a_folder_and_proves_that_nothing_moved(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, "unshare", str(tiny_checkpoint), str(tmp_path / "own"), "--json")
    result = json.loads(out)
    assert code == 0
    assert result["max_difference"] == 0
    assert result["max_difference_in_transformers"] < 1e-5
    assert result["sharing_after"] == "none"
    assert result["parameters_stored_after"] > result["parameters_stored_before"]
    code, out, _ = run(monkeypatch, capsys, "unshare", str(tiny_checkpoint), str(tmp_path / "again"))
    assert code == 0
    assert "all -> none" in out
    code, _, err = run(monkeypatch, capsys, "unshare", str(tiny_checkpoint), str(tmp_path / "own"))
    assert code == 2
    assert "not empty" in err, "a folder that is there is never written over"
    config = json.loads((tmp_path / "own" / "config.json").read_text(encoding="utf-8"))
    assert config["num_hidden_groups"] == 3


def test_share_says_the_error_it_introduces(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(
        monkeypatch, capsys, "share", "preset:albert-tiny-zh+none", str(tmp_path / "all"), "--pattern", "all"
    )
    assert code == 0
    assert "largest error introduced" in out
    code, out, _ = run(monkeypatch, capsys, "inspect", str(tmp_path / "all"), "--json")
    assert json.loads(out)["sharing"] == "all"


def test_compare_and_report_print_the_table_and_write_the_page(
    tiny_checkpoint: Path,
    reviews: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["compare", f"{tiny_checkpoint}+all", f"{tiny_checkpoint}+none", "--data", str(reviews)]
    options = ["--out", str(tmp_path / "study"), "--epochs", "1", "--seeds", "2", "--max-length", "24"]
    code, out, err = run(monkeypatch, capsys, *words, *options, "--threads", "1")
    assert code == 0, err
    assert "after epoch 1" in " ".join(out.split())
    assert err.count("best dev") == 4
    page = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert "vegaEmbed" in page
    (tmp_path / "study" / "report.html").unlink()
    code, out, _ = run(monkeypatch, capsys, "report", str(tmp_path / "study"), "--json")
    assert code == 0
    assert json.loads(out)["cells"]["done"] == 4
    assert (tmp_path / "study" / "report.html").exists()
    command = json.loads((tmp_path / "study" / "study.json").read_text(encoding="utf-8"))["command"]
    assert command.startswith("thrice compare ")


def test_finetune_and_predict_work_from_the_command_line(
    tiny_checkpoint: Path,
    reviews: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["finetune", str(tiny_checkpoint), "--data", str(reviews), "--out", str(tmp_path / "out")]
    code, out, err = run(monkeypatch, capsys, *words, "--epochs", "1", "--max-length", "24", "--json")
    assert code == 0, err
    assert json.loads(out)["best_epoch"] == 1
    code, out, _ = run(monkeypatch, capsys, "predict", str(tmp_path / "out"), str(reviews))
    assert code == 0
    assert len(out.splitlines()) == 120
    assert json.loads(out.splitlines()[3])["id"] == "r003"


def test_ctrl_c_says_that_the_same_command_goes_on(
    tiny_checkpoint: Path,
    reviews: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    words = ["finetune", str(tiny_checkpoint), "--data", str(reviews), "--out", str(tmp_path / "out")]
    monkeypatch.setattr("thrice.finetune.train", interrupted)
    code, _, err = run(monkeypatch, capsys, *words, "--max-length", "24")
    assert code == 130
    assert "the same command (without --restart) goes on" in err


def test_a_second_start_keeps_the_threads_of_the_first(
    tiny_checkpoint: Path,
    reviews: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list = []
    monkeypatch.setattr(cli.studies, "_run_study", lambda study, *_, **__: asked.append(study.threads))
    monkeypatch.setattr(cli.studies, "cores", lambda: 8)
    words = ["compare", str(tiny_checkpoint), "--data", str(reviews), "--out", str(tmp_path), "--max-length", "24"]
    run(monkeypatch, capsys, *words, "--jobs", "2")
    (tmp_path / "study.json").write_text('{"threads": 4}', encoding="utf-8")
    run(monkeypatch, capsys, *words)
    run(monkeypatch, capsys, *words, "--threads", "3")
    assert asked == [4, 4, 3]


BAD = [
    (["inspect", "zoo:albert-nano"], "did you mean albert-nano-zh"),
    (["inspect", "preset:albert-tinny-zh"], "did you mean"),
    (["inspect", "./nowhere/"], "no such folder"),
    (["list", "task"], "did you mean tasks"),
    (["unshare", "zoo:albert-nano-zh", "x", "--pattern", "nonne"], "none"),
    (["unshare", "zoo:albert-nano-zh", "x", "--pattern", "groups=7"], "groups=7"),
    (["compare", "zoo:albert-nano-zh", "--out", "x"], "--data"),
    (["compare", "zoo:albert-nano-zh", "--out", "x", "--data", "missing.csv"], "missing.csv"),
    (["finetune", "zoo:albert-nano-zh", "--out", "x", "--data", "reviews.csv", "--schedule", "linnear"], "linear"),
    (
        ["finetune", "zoo:albert-nano-zh", "--out", "x", "--data", "reviews.csv", "--task", "clasification"],
        "classification",
    ),
    (["report", "."], "holds no study"),
    (["predict", ".", "reviews.csv"], "thrice finetune"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words[:3]) for words, _ in BAD])
def test_wrong_input_is_one_short_message_and_exit_code_2(
    words: list[str],
    message: str,
    reviews: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews.csv").write_text(reviews.read_text(encoding="utf-8"), encoding="utf-8")
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in out + err
    assert len(err.strip().splitlines()) <= 3
    assert [p.name for p in tmp_path.iterdir()] == ["reviews.csv"], "nothing is left behind"


def test_a_real_folder_with_a_plus_in_its_name_wins_over_the_pattern(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model+none").symlink_to(tiny_checkpoint)
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(monkeypatch, capsys, "inspect", "model+none", "--json")
    assert code == 0
    assert json.loads(out)["sharing"] == "all"


def test_advice_is_given_under_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from studies import ARMS, full_study

    folder = full_study(tmp_path / "study")
    code, out, _ = run(monkeypatch, capsys, "advise", str(folder), "--max-size-mb", "20", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["pick"] in ARMS[:2]
    assert [failed["arm"] for failed in found["fails"]] == [ARMS[2]]
    code, out, _ = run(monkeypatch, capsys, "advise", str(folder), "--max-size-mb", "1")
    assert "nothing fits; nearest: tfidf" in out
    code, _, err = run(monkeypatch, capsys, "advise", str(folder), "--max-size-mb", "-1")
    assert code == 2
    assert "max" in err


def test_help_names_what_each_task_offers_for_heads_and_long_texts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from thrice.tasks import classification, tagging, triples

    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("TERMINAL_WIDTH", "250")
    for command in ("finetune", "compare"):
        _, out, _ = run(monkeypatch, capsys, command, "--help")
        words = " ".join(out.replace("│", " ").split())
        for flag, offers in (
            ("--head", {"classification": classification.HEADS, "triples": triples.HEADS}),
            ("--long-texts", {"classification": classification.LONG_TEXTS, "tagging": tagging.LONG_TEXTS}),
        ):
            said = words.partition(f"{flag} ")[2][:220]
            for task, names in offers.items():
                assert all(name in said.partition(f"{task}: ")[2] for name in names), (flag, task, said)
