"""What models cost: shapes counted by hand, times taken in turns beside a control, memory that adds up."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from thrice.checkpoints.inspect import config_of, stock_shapes
from thrice.cli import app
from thrice.cli.cost_table import print_costs
from thrice.compare import cost
from thrice.compare.grid import Arm, Study, StudyTask, arms_of
from thrice.compare.memory import in_own_process, memory_split
from thrice.compare.results import COST_OF_ARM, read_cost
from thrice.compare.timing import in_turn
from thrice.errors import CheckpointError, ConfigError, SharingError, TrainingError
from thrice.finetune import DataSource
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.flops import forward_flops, parameter_counts, tensor_bytes, training_flops
from thrice.model.packing import pack
from thrice.model.presets import PRESETS
from thrice.sharing.patterns import parse
from thrice.tasks.classification import Classification
from thrice.training import TrainingConfig
from thrice.training.optim import build_optimizer


def shared(name: str, pattern: str) -> EncoderConfig:
    attention_map, ffn_map = parse(pattern, PRESETS[name].num_calls)
    return PRESETS[name].replace(attention_map=attention_map, ffn_map=ffn_map)


# Millions of stored parameters, pooler included, by what is shared: all, attention, feed-forward, nothing.
STORED = {
    "albert-tiny-zh": ("4.08", "6.42", "5.25", "7.60"),
    "albert-small-zh": ("4.74", "10.65", "7.70", "13.61"),
    "albert-base": ("11.7", "63.7", "37.7", "89.7"),
    "albert-large": ("17.7", "211", "114", "307"),
    "albert-xlarge": ("58.7", "831", "445", "1217"),
    "albert-xxlarge": ("222.6", "1699", "961", "2438"),
}


@pytest.mark.parametrize("name", STORED)
def test_stored_parameters_are_those_of_the_papers_for_every_sharing(name: str) -> None:
    called = set()
    for pattern, millions in zip(("all", "attention", "ffn", "none"), STORED[name], strict=True):
        counts = parameter_counts(shared(name, pattern), pooler=True)
        decimals = len(millions.partition(".")[2])
        # 63.647 was printed as 63.7, the sum of two rounded numbers; all others are rounded to the digits printed.
        most = 0.5 if millions != "63.7" else 0.6
        assert abs(counts[0] / 1e6 - float(millions)) <= most * 10**-decimals
        called.add(counts[1])
    assert called == {counts[0]}, "sharing saves nothing of what is called"


@pytest.mark.parametrize("name", ["albert-xxlarge", "bert-tiny", "electra-small", "roberta-base"])
@pytest.mark.parametrize("pattern", ["all", "attention", "ffn", "none", "groups=2"])
def test_parameters_counted_from_the_shape_are_those_of_the_encoder(name: str, pattern: str) -> None:
    config = shared(name, pattern)
    with torch.device("meta"):
        encoder = Encoder(config, draw=False)
    assert parameter_counts(config) == encoder.parameter_counts()
    stored, called = parameter_counts(config, classes=3)
    hidden = config.hidden_size
    head = hidden * hidden + hidden + 3 * hidden + 3
    assert (stored - head, called - head) == encoder.parameter_counts()


# Per token of a sequence of 128: 2 E H of the projection, then N times 2 (4 H H + 2 H I) and 4 S H.
FORWARD = {
    "albert-tiny-zh": 2 * 128 * 312 + 4 * (2 * (4 * 312 * 312 + 2 * 312 * 1248) + 4 * 128 * 312),
    "albert-small-zh": 2 * 128 * 384 + 6 * (2 * (4 * 384 * 384 + 2 * 384 * 1536) + 4 * 128 * 384),
    "albert-base": 2 * 128 * 768 + 12 * (2 * (4 * 768 * 768 + 2 * 768 * 3072) + 4 * 128 * 768),
    "albert-large": 2 * 128 * 1024 + 24 * (2 * (4 * 1024 * 1024 + 2 * 1024 * 4096) + 4 * 128 * 1024),
    "albert-xlarge": 2 * 128 * 2048 + 24 * (2 * (4 * 2048 * 2048 + 2 * 2048 * 8192) + 4 * 128 * 2048),
    "albert-xxlarge": 2 * 128 * 4096 + 12 * (2 * (4 * 4096 * 4096 + 2 * 4096 * 16384) + 4 * 128 * 4096),
    "bert-base": 12 * (2 * (4 * 768 * 768 + 2 * 768 * 3072) + 4 * 128 * 768),
}


@pytest.mark.parametrize("name", FORWARD)
def test_operations_are_those_counted_by_hand_whatever_is_shared(name: str) -> None:
    for pattern in ("all", "attention", "ffn", "none"):
        assert forward_flops(shared(name, pattern), tokens=128) == FORWARD[name]
        assert training_flops(shared(name, pattern), tokens=128) == 3 * FORWARD[name]
    assert FORWARD["albert-tiny-zh"] == 10_063_872


def test_matrix_products_that_run_are_those_counted() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config = PRESETS["albert-tiny-zh"].replace(vocab_size=64)
    encoder = Encoder(config).train()
    with FlopCounterMode(display=False) as forward:
        hidden = encoder(pack([list(range(32))] * 3))
    with FlopCounterMode(display=False) as backward:
        hidden.sum().backward()
    scores_and_values = 4 * 4 * 32 * 312  # torch does not count those of its fused attention on a CPU
    assert forward.get_total_flops() == 3 * 32 * (forward_flops(config, tokens=32) - scores_and_values)
    assert forward.get_total_flops() + backward.get_total_flops() == 3 * forward.get_total_flops()


def test_bytes_of_a_matrix_and_a_vector_are_those_counted_by_hand() -> None:
    shapes = [(3, 4), (5,)]
    assert tensor_bytes(shapes, "float32") == 4 * 12 + 4 * 5
    assert tensor_bytes(shapes, "float16") == 2 * 12 + 2 * 5
    assert tensor_bytes(shapes, "int8") == 12 + 4 * 3 + 4 * 5


@pytest.mark.parametrize("pattern", ["all", "attention", "none"])
def test_the_file_is_as_large_as_was_said(tiny_checkpoint: Path, tmp_path: Path, pattern: str) -> None:
    from thrice.checkpoints import load, save
    from thrice.checkpoints.name_map import apart

    encoder = load(f"{tiny_checkpoint}+{pattern}")
    shapes = {name: tuple(tensor.shape) for name, tensor in apart(encoder.state_dict()).items()}
    said = tensor_bytes(stock_shapes(encoder.config, shapes).values(), "float32")
    file = save(encoder, tmp_path / "model") / "model.safetensors"
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    assert file.stat().st_size == header + said
    assert (said > 4 * encoder.parameter_counts()[0]) == (pattern == "attention"), "a stock config cannot say it"


def test_the_config_of_a_name_is_that_of_its_encoder(tiny_checkpoint: Path, tmp_path: Path) -> None:
    from thrice.checkpoints import load, save

    for name in (str(tiny_checkpoint), f"{tiny_checkpoint}+attention", "preset:bert-tiny+all"):
        assert config_of(name) == load(name).config
    save(load(f"{tiny_checkpoint}+none"), tmp_path / "apart")
    with pytest.raises(SharingError, match="would make calls share"):
        config_of(f"{tmp_path / 'apart'}+all")
    with pytest.raises(CheckpointError, match="no preset"):
        config_of("preset:bert-tinny")


def test_calls_take_turns_and_the_first_turn_does_not_count() -> None:
    order: list[str] = []

    def called(name: str) -> Any:
        return lambda turn: order.append(name) or [float(turn)]

    values = in_turn({"a": called("a"), "b": called("b")}, least=1, most=3, seconds=60)
    assert order == ["a", "b"] * 4
    assert values == {"a": [1, 2, 3], "b": [1, 2, 3]}
    assert in_turn({"a": called("a")}, least=2, most=9, seconds=0) == {"a": [1, 2]}


def test_the_split_of_memory_is_exact_where_it_can_be_counted(tiny_checkpoint: Path) -> None:
    model = cost._with_two_classes(str(tiny_checkpoint))
    data = cost.random_texts(model.encoder.config.vocab_size, tokens=24)
    optimizer = build_optimizer(model, TrainingConfig())
    batch = data.batch(range(8))
    model.loss(batch).backward()
    optimizer.step()
    optimizer.zero_grad()
    numbers = sum(p.numel() for p in model.parameters())
    tensors = len(list(model.parameters()))
    small, large = (memory_split(model, optimizer, part, TrainingConfig()) for part in (batch, data.batch(range(64))))
    assert small["weights"] == large["weights"] == 4 * numbers
    assert small["optimizer"] == 2 * 4 * numbers + 4 * tensors, "two running means, and a count of steps for each"
    assert 0 <= large["gradients"] <= 4 * numbers
    assert large["activations"] > 4 * small["activations"]


def test_gradients_are_told_apart_at_the_peak() -> None:
    class Plain(torch.nn.Module):
        device = torch.device("cpu")

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1000, 1000))

        def loss(self, batch: torch.Tensor) -> torch.Tensor:
            return (batch @ self.weight).exp().sum()

    model: Any = Plain()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    rows = torch.ones(10, 1000)
    model.loss(rows).backward()
    optimizer.step()
    optimizer.zero_grad()
    split = memory_split(model, optimizer, rows, TrainingConfig())
    assert split["gradients"] == split["weights"] == 4_000_000
    assert split["activations"] < 200_000
    split = memory_split(model, optimizer, torch.ones(5000, 1000), TrainingConfig())
    assert split["gradients"] == 0, "at the peak the gradient is not there yet"
    assert 40_000_000 <= split["activations"] < 41_000_000, "a product of 20 MB and its exponential"


def test_memory_adds_up_to_what_a_process_of_its_own_holds() -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the kernel's high-water mark is read from /proc")
    question = {"model": "preset:bert-mini", "tokens": 32, "threads": 1, "training": {"batch_size": 16}}
    ballast = bytearray(os.urandom(1000)) * 600_000
    found = in_own_process(question, module="thrice.compare.cost", name="preset:bert-mini")
    assert found["memory"]["weights"] > 40e6
    assert sum(found["memory"].values()) == pytest.approx(found["peak_memory_bytes"], rel=0.05)
    assert found["peak_memory_bytes"] < 300e6 < len(ballast), "its own memory, not that of the process that asks"


def test_a_measurement_that_fails_says_whose() -> None:
    with pytest.raises(TrainingError, match=r"memory of m failed: .*KeyError"):
        in_own_process({}, module="thrice.compare.cost", name="m")


@pytest.fixture(scope="module")
def cards(tiny_checkpoint: Path) -> list[dict[str, Any]]:
    arguments = ["cost", f"{tiny_checkpoint}+all", f"{tiny_checkpoint}+none", "--json", "--threads", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_the_command_gives_every_cost_of_every_model(cards: list[dict[str, Any]], tiny_checkpoint: Path) -> None:
    all_, none = cards
    assert [card["model"] for card in cards] == [f"{tiny_checkpoint}+all", f"{tiny_checkpoint}+none"]
    for card in cards:
        assert set(COST_OF_ARM) <= set(card)
        assert all(card[key] is not None for key in COST_OF_ARM)
        assert 0 < card["latency_short_ms"]["p50"] <= card["latency_short_ms"]["p95"]
        assert card["latency_short_ms"]["tokens"] == 16
        assert card["latency_long_ms"]["tokens"] == card["flops_tokens"] == 40, "the positions of these models"
    assert all_["parameters_stored"] < none["parameters_stored"] == none["parameters_called"]
    assert all_["flops_per_token"] == none["flops_per_token"]
    control = all_["control"]
    times = {"latency_short_ms", "latency_long_ms", "step_ms", "prediction_tokens_per_second"}
    assert set(control["ratios"]) == times
    ratio = control["latency_long_ms"]["p50"] / all_["latency_long_ms"]["p50"]
    assert control["ratios"]["latency_long_ms"] == pytest.approx(ratio)
    assert none["control"] is None


def test_without_timing_nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "load_any", lambda name: pytest.fail(f"{name} is built"))
    done = CliRunner().invoke(app, ["cost", "preset:albert-xxlarge+none", "--no-timing"])
    assert done.exit_code == 0, done.output
    assert "2,437.78 M" in done.stdout
    assert "Stored parameters make the file" in done.stdout
    assert "latency" not in done.stdout


def test_a_model_of_another_family_has_no_flops_and_all_other_costs(tmp_path: Path) -> None:
    from tiny_stock import stock_folder

    folder = str(stock_folder("distilbert", tmp_path / "distilbert"))
    models = {name: cost._with_two_classes(folder) for name in ("a", "")}
    data = dict.fromkeys(models, cost.random_texts(models["a"].encoder.config.vocab_size, tokens=16))
    found = cost.cost_card(models, data, dict.fromkeys(models, TrainingConfig(batch_size=4)))["arms"]["a"]
    assert found["flops_per_token"] is None
    assert found["packed"] is False
    assert found["parameters_stored"] == sum(p.numel() for p in models["a"].parameters())
    assert found["file_bytes"] == 4 * found["parameters_stored"]
    assert found["latency_long_ms"]["p50"] > 0
    assert cost.model_costs([folder], timing=False)["arms"][folder]["packed"] is False


def test_tables_are_readable_at_80_columns(cards: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    arms = {f"some/organisation/model-{i}+attention": {**cards[0], "flops_per_token": None} for i in range(4)}
    found = {"arms": arms, "tokens": 40, "threads": 1, "control": cards[0]["control"]}
    print_costs(found, Console(file=text, width=80))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "\u2026" not in text.getvalue(), "nothing is cut"
    assert sum(line.startswith("parameters stored") for line in lines) == 2, "three models, then the fourth"
    assert not any(line.startswith("forward") for line in lines), "a row that nobody has is left out"
    assert "The same model measured twice differs by" in text.getvalue()


def test_what_cannot_be_measured_is_refused(tiny_checkpoint: Path) -> None:
    name = str(tiny_checkpoint)
    with pytest.raises(ConfigError, match="named twice"):
        cost.model_costs([name, name])
    with pytest.raises(ConfigError, match="--max-length is 41, it must lie between 3 and 40"):
        cost.model_costs([name], max_length=41)
    with pytest.raises(ConfigError, match="--max-length is 2, it must"):
        cost.model_costs([name], max_length=2, timing=False)
    with pytest.raises(ConfigError, match="tfidf has no such costs"):
        cost.model_costs(["tfidf"])


def test_a_study_measures_all_arms_on_all_tasks_once(
    tiny_checkpoint: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thrice.compare.data import read_task

    def study_of(*names: str) -> Study:
        source = DataSource(data=str(reviews))
        named = [StudyTask(name=n, metric="accuracy", options={"max_length": 24}, source=source) for n in names]
        larger = Arm(model=f"{tiny_checkpoint}+none", name="larger", training={"batch_size": 16})
        arms = (*arms_of("tfidf", str(tiny_checkpoint)), larger)
        return Study(arms=arms, tasks=tuple(named), seeds=(0,), training=TrainingConfig(batch_size=8))

    def measured(study: Study) -> dict[str, Any]:
        return cost.measure_cost(study, tmp_path, {task.name: read_task(task) for task in study.tasks})

    memory = {"memory": {"weights": 1, "gradients": 1, "optimizer": 2, "activations": 3}, "peak_memory_bytes": 7}
    monkeypatch.setattr(cost, "in_own_process", lambda *_, **__: dict(memory))
    monkeypatch.setattr("thrice.compare.timing.CALLS", 1)
    trained: list[Any] = []
    right = Classification.loss
    monkeypatch.setattr(Classification, "loss", lambda *given: trained.append(given[2].targets) or right(*given))
    before = measured(study_of("one"))
    small, larger = str(tiny_checkpoint), "larger"
    assert set(before["arms"]) == {small, larger}
    assert set(before["arms"][small]) == {*COST_OF_ARM, "packed"}
    assert before["control"]["arm"] == small
    assert before["arms"][small]["latency_short_ms"]["tokens"] <= 24
    assert {len(batch) for batch in trained} == {8, 16}, "each arm in its own batches"
    assert read_cost(tmp_path)["tasks"] == before["tasks"]

    with monkeypatch.context() as patch:
        patch.setattr(cost, "cost_card", lambda *_, **__: pytest.fail("measured again"))
        assert measured(study_of("one")) == before
    after = measured(study_of("one", "two"))
    assert set(after["tasks"]) == {"one", "two"}
    assert set(after["tasks"]["two"]) == {small, larger}
    (tmp_path / "cost.json").write_text('{"arms": {}, "tasks": {}, "format": 1}', encoding="utf-8")
    assert set(measured(study_of("one"))["arms"]) == {small, larger}
