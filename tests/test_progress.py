"""The progress bar of a run."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from test_loop import Toy, fit_ramp, fit_toy, toy_config, without_times
from torch import Tensor

from thrice.model.packing import PackedBatch, pack
from thrice.training import TrainingConfig, training_progress
from thrice.training.progress import budget_progress, count_tokens, drawing_budget


def test_the_bar_shows_loss_rate_and_speed_and_changes_no_result(tmp_path: Path) -> None:
    shown: list[str] = []
    with training_progress(Console(file=io.StringIO(), force_terminal=True)) as bar:

        def look(record: dict[str, Any]) -> None:
            task = bar.tasks[0]
            shown.append(f"{task.description} {task.completed:.0f}/{task.total:.0f} {task.fields['status']}")

        result = fit_toy(tmp_path / "bar", Toy(), toy_config(), progress=bar, on_epoch=look)
        assert bar.tasks == []
    assert re.fullmatch(r"epoch 2/3 12/18 loss \d\.\d{4}  lr \d\.\d\de-03  [\d,]+ examples/s", shown[1])
    assert without_times(result) == without_times(fit_toy(tmp_path / "none", Toy(), toy_config()))


def test_tokens_are_counted_in_packed_batches_at_any_depth() -> None:
    @dataclasses.dataclass
    class Batch:
        packed: PackedBatch
        labels: Tensor

    packed = pack([[1, 2, 3], [4]])
    assert count_tokens({"texts": [packed, Batch(packed, torch.zeros(2))], "labels": torch.zeros(2)}) == 8
    assert count_tokens(torch.zeros(5)) == 0


def test_no_bar_is_drawn_where_standard_error_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Progress, "add_task", lambda *_, **__: pytest.fail("a bar was drawn"))
    fit_ramp(tmp_path, TrainingConfig(epochs=1), [1.0], progress=None)
    assert capsys.readouterr().err == ""


def test_a_narrow_terminal_still_shows_stage_share_and_loss() -> None:
    text = io.StringIO()
    bar = budget_progress(Console(file=text, force_terminal=True, width=80))
    with bar, drawing_budget(bar, unit="tokens", total=4000) as draw:
        spent, terms = (1_500_000, 2.5e12), {"mlm": 9.5, "mlm_accuracy": 0.1, "sop": 0.7, "sop_accuracy": 0.5}
        draw(stage="stage 1/2 mlm+sop", done=2000, terms=terms, lr=1e-3, tokens=100, spent=spent, seconds=0.5)
        bar.refresh()
        last = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue()))[-1]
    assert last.startswith("stage 1/2 mlm+sop ")
    assert " 50% " in last
    assert "mlm 9.500" in last
    assert len(last) <= 80


def test_the_bar_of_a_budget_shows_what_is_spent_each_term_and_the_speed() -> None:
    text = io.StringIO()
    with budget_progress(Console(file=text, force_terminal=True, width=240)) as bar:
        with drawing_budget(bar, unit="tokens", total=4000) as draw:
            draw(done=1000)
            task = bar.tasks[0]
            assert (task.completed, task.total) == (1000, 4000)
            for loss in (6.0, 4.0):
                draw(
                    stage="stage 1/2 mlm",
                    done=2000,
                    terms={"mlm": loss},
                    lr=1e-3,
                    tokens=100,
                    spent=(1_500_000, 2.5e12),
                    seconds=0.5,
                )
            assert task.description == "stage 1/2 mlm"
            for part in ("1.50M tokens", "2.5e+12 FLOPs", "mlm 5.900", "lr 1.0e-03", "200 tokens/s"):
                assert part in task.fields["status"], part
            draw(stage="s", done=3000, terms={"rtd": 0.5}, lr=1e-3, tokens=1, spent=(1, 1.0), seconds=0.5)
            assert "mlm" not in task.fields["status"]
        assert not bar.tasks
