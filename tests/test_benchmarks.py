"""Every benchmark runs, at toy size; it computes the same on both sides, and notices where it does not."""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import importlib
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thrice import cli
from thrice.data.corpus import prepare_corpus
from thrice.model import layer
from thrice.model.packing import pack
from thrice.model.presets import PRESETS

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = ("finetune", "predict", "commands", "scaling", "gpu_check", "kernels", "tasks", "pretrain")
SMALL = PRESETS["albert-tiny-zh"].replace(
    embedding_size=16, hidden_size=24, num_attention_heads=3, intermediate_size=48, max_position_embeddings=64
)


def benchmark(name: str) -> Any:
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))
    return importlib.import_module(name)


@pytest.fixture(autouse=True)
def small_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "small", SMALL)


def invented(vocab_size: int, *, count: int, **_: Any) -> list[list[int]]:
    """Token ids of `count` texts in place of real ones."""
    draw = np.random.default_rng(0)
    return [draw.integers(5, vocab_size, length).tolist() for length in draw.integers(2, 40, count)]


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


# What all benchmarks share


def test_sides_take_turns_after_a_warm_up() -> None:
    calls: list[tuple[str, int]] = []

    def side(name: str) -> Any:
        return lambda turn: calls.append((name, turn)) or float(len(calls))

    spent = benchmark("timing").interleave({"a": side("a"), "b": side("b")}, rounds=2)
    assert calls == [("a", 1), ("b", 1), ("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert spent == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_the_interval_of_a_median_holds_it_as_often_as_it_says() -> None:
    timing = benchmark("timing")
    found = timing.median([10, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert (found["median"], found["interval"]) == (5.5, [2, 9])
    assert found["confidence"] == pytest.approx(1 - 2 * 11 / 1024)
    assert timing.median([3, 1, 2])["interval"] == [1, 3]
    assert timing.median([3, 1, 2])["confidence"] == pytest.approx(0.75)
    draw = np.random.default_rng(0)
    held = [timing.median(draw.exponential(size=8).tolist())["interval"] for _ in range(500)]
    assert np.mean([low <= np.log(2) <= high for low, high in held]) > 0.95


def test_ratios_are_theirs_over_ours() -> None:
    timing = benchmark("timing")
    assert timing.ratio([1, 2], [3, 6])["median"] == 3
    assert timing.total_ratio([1, 3], [4, 4])["median"] == 2
    assert timing.padding_ratio([[[1], [1, 1, 1]], [[1, 1]]]) == 8 / 6


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_benchmark_teaches_its_use(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        benchmark(name).main(["--help"])
    said = capsys.readouterr().out
    assert f"python benchmarks/{name}.py" in said
    assert {"--rounds", "--threads", "--json"} <= set(said.split())


# Each at toy size


@pytest.mark.parametrize("family", ["albert", "bert"])
def test_both_sides_have_the_same_loss_and_gradients(family: str) -> None:
    pairs = benchmark("pairs")
    preset = PRESETS["albert-tiny-zh" if family == "albert" else "bert-tiny"]
    encoder, stock = pairs.same_weights(preset.replace(vocab_size=40, max_position_embeddings=16))
    sequences = [[2, 5, 6, 3], [2, 7, 3], [2, 8, 9, 10, 11, 3]]
    pairs.check_equal(encoder, stock, sequences)
    with torch.no_grad():
        encoder.ffn[0].output.bias[0] += 1
    with pytest.raises(SystemExit, match="do not compute the same"):
        pairs.check_equal(encoder, stock, sequences)


@pytest.mark.parametrize("family", ["albert", "bert"])
def test_with_dropout_both_sides_draw_as_many_masks(family: str) -> None:
    pairs = benchmark("pairs")
    shape = SMALL if family == "albert" else PRESETS["bert-tiny"].replace(vocab_size=40)
    encoder, stock = pairs.same_weights(shape, dropout=0.1)
    losses = {encoder: pairs.packed_loss(encoder), stock: pairs.padded_loss(stock)}
    ours, theirs = (pairs.dropout_sites(m, lambda loss=loss: loss([[2, 5, 3]])) for m, loss in losses.items())
    assert ours["hidden"] == theirs["hidden"] > 2
    assert ours["attention"] == theirs["attention"] == shape.num_calls


def test_the_step_is_measured_against_a_stock_and_a_careful_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finetune = benchmark("finetune")
    monkeypatch.setattr(finetune, "sequences_for", invented)
    words = ["small", "--rounds", "3", "--batch-size", "4", "--threads", "1"]
    finetune.main([*words, "--json", "--dropout", "0.1"])
    found = printed(capsys)
    assert found["padding_ratio"] > 1.2 > found["careful_padding_ratio"] >= 1
    assert min(found["stock"]["median"], found["careful"]["median"], found["control"]["median"]) > 0
    finetune.main([*words, "--one-length", "8"])
    assert "padding ratio 1.00, of the careful side 1.00" in capsys.readouterr().out
    finetune.main([*words, "--profile"])
    assert "small, stock: share of a step's own time" in capsys.readouterr().out


def test_the_careful_user_sees_every_text_once() -> None:
    batches = [invented(40, count=6)[start : start + 3] for start in (0, 3)]
    made = benchmark("finetune").by_length(batches)
    assert sorted(s for batch in made for s in batch) == sorted(s for batch in batches for s in batch)


def test_prediction_is_measured_against_stock_and_onnx(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("onnxruntime", "onnx", "onnxscript"):
        pytest.importorskip(name)
    predict = benchmark("predict")
    monkeypatch.setattr(predict, "sequences_for", invented)
    words = ["--rounds", "1", "--bulk", "24", "--requests", "2", "--lengths", "8", "--max-length", "40"]
    predict.main(["small", *words, "--threads", "1", "--json"])
    found = printed(capsys)
    assert found["largest_difference"] < 1e-4
    assert found["bulk"]["texts"] == 24
    assert "one text of 8 tokens" in predict.table(found)
    answers = {"stock": lambda s: np.full((len(s), 2), 0.5), "onnx": lambda s: np.full((len(s), 2), 0.5)}
    with pytest.raises(SystemExit, match="do not answer the same"):
        predict.check_equal(answers, invented(40, count=3))


def test_whole_commands_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shared_data: Path
) -> None:
    commands = benchmark("commands")
    monkeypatch.setattr(commands, "STARTS", {"python -c pass": ["-c", "pass"]})
    right, answers = commands.run, {}

    def once(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
        """Run each side once, and thrice in this process, which has loaded all that it needs."""
        side = next((name for name in ("thrice", "-c") if name in command), "trainer")
        if side == "thrice" and side not in answers:
            monkeypatch.setattr(sys, "argv", command[2:])
            with pytest.raises(SystemExit, match="0"):
                cli.main()
            answers[side] = {"seconds": 1.0, "peak_bytes": 1, "output": capsys.readouterr().out}
        elif side not in answers:
            answers[side] = right(command, environment)
        return dict(answers[side])

    monkeypatch.setattr(commands, "run", once)
    words = ["--rows", "32", "--epochs", "1", "--rounds", "1", "--starts", "1", "--max-length", "16", "--threads", "1"]
    commands.main([*words, "--json"])
    found = printed(capsys)
    assert found["finetune"]["peak_bytes"]["trainer"] > 2**20
    assert all(0 <= value <= 1 for values in found["finetune"]["test"].values() for value in values)
    assert "test accuracy" in commands.table(found)
    with pytest.raises(SystemExit, match="failed"):
        right([sys.executable, "-c", "raise SystemExit(3)"], {})


def test_scaling_is_measured_stage_by_stage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scaling = benchmark("scaling")
    monkeypatch.setattr(scaling, "chinese_texts", lambda: ["质量很好", "物流太慢了，千万别买"])
    monkeypatch.setitem(PRESETS, "albert-tiny-zh", SMALL.replace(max_position_embeddings=128))
    monkeypatch.setattr(scaling, "_in_child", lambda stage, count, threads: scaling.measure_here(stage, count))
    words = ["--counts", "40", "80", "--rounds", "1", "--model-rows", "40", "--threads", "1"]
    scaling.main([*words, "--json"])
    found = printed(capsys)
    assert list(found["stages"]) == ["encode", "cached", "order", "train", "predict", "answer"]
    assert [row["count"] for row in found["stages"]["predict"]["counts"]] == [40, 80]
    assert [row["count"] for row in found["stages"]["answer"]["counts"]] == [40]
    assert "microseconds a step" in scaling.table(found)


def test_the_check_of_a_gpu_can_be_tried_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check = benchmark("gpu_check")
    monkeypatch.setattr(check, "SPEED_PRESETS", ("small",))
    monkeypatch.setattr(check, "SPEED_TEXTS", 3)
    monkeypatch.setattr(check, "HEAD_SIZES", (8, 12))
    monkeypatch.setitem(PRESETS, "small", SMALL.replace(max_position_embeddings=512))
    assert check.main(["--device", "cpu", "--steps", "30", "--rounds", "1", "--threads", "1"]) == 0
    said = capsys.readouterr().out
    assert "all checks hold" in said
    assert all(f"parity, {family}" in said for family in ("albert", "bert", "electra", "roberta"))


def test_the_check_of_a_gpu_fails_where_the_device_computes_something_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check = benchmark("gpu_check")
    right = layer.attend

    def wrong(qkv: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        found = right(qkv, *others, **options)
        return found if qkv.dtype == torch.float64 else found * 1.01

    monkeypatch.setattr(layer, "attend", wrong)
    assert check.main(["--device", "cpu", "--checks", "parity", "--json"]) == 1
    assert printed(capsys)["ok"] is False


def test_the_check_of_a_gpu_says_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert benchmark("gpu_check").main([]) == 2
    assert "no GPU here" in capsys.readouterr().err


def test_the_arms_of_the_memory_benchmark_are_what_they_are_called() -> None:
    module = benchmark("memory")
    arguments = argparse.Namespace(albert="albert-tiny-zh", bert="bert-tiny", batch_size=2, length=8)
    sizes, kept = {}, {}
    for arm, build in module.ARMS.items():
        model = build(arguments)
        sizes[arm] = sum(p.numel() for p in model.parameters())
        kept[arm] = module.kept_bytes(model, arguments)
        before = model.state_dict()["embeddings.LayerNorm.weight"].clone() if "thrice" in arm else None
        assert module.stepper(model, arguments)() > 0
        if before is not None:
            assert not torch.equal(before, model.state_dict()["embeddings.LayerNorm.weight"]), "a step was taken"
    assert sizes["thrice shared"] == sizes["thrice shared, checkpointing"] == sizes["stock ALBERT"]
    assert sizes["thrice un-shared"] > sizes["thrice shared"]
    for arm in ("stock BERT", "thrice shared"):
        assert kept[f"{arm}, checkpointing"] < kept[arm]


def test_the_building_blocks_are_measured_and_both_ways_agree(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = benchmark("kernels")
    words = ["--tokens", "9", "--hidden", "24", "--lengths", "5", "--rounds", "2", "--threads", "1"]
    kernels.main([*words, "--json"])
    found = printed(capsys)["blocks"]
    assert {"gelu", "dropout", "attention, 5 tokens"} < set(found)
    kernels.main(words)
    assert "attention, 5 tokens" in capsys.readouterr().out
    for name, sides in {"gelu": kernels.gelu(9, 24), "attention": kernels.attention(5, 24)}.items():
        ours, theirs = (work() for work in sides.values())
        ours = ours[0] if isinstance(ours, tuple) else ours
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5, msg=name)
    for sides in kernels.linear(3, 24).values():
        ours, theirs = (work() for work in sides.values())
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_report_of_a_made_up_study_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["report.py", "--cells", "40", "--json"])
    benchmark("report").main()
    (found,) = printed(capsys)
    assert found["cells"] == 40
    assert found["page_bytes"] > 100_000


TASKS = (
    "classification", "regression", "tagging", "triples-pointer", "triples-conditional", "spans-zh", "spans-en",
    "reading", "fewshot",
)  # fmt: skip


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch, shared_data: Path) -> Any:
    """The benchmark of the tasks on short rows of its files."""
    tasks = benchmark("tasks")
    right = tasks.read_table
    monkeypatch.setattr(tasks, "gemm_rate", lambda *_, **__: 1e11)

    def some(file: Path, **more: Any) -> Any:
        table = right(file, **more)
        short = sorted(table.rows[::29], key=lambda row: len(str(row)))[:40]
        return dataclasses.replace(table, rows=short, lines=table.lines[: len(short)])

    monkeypatch.setattr(tasks, "read_table", some)
    return tasks


@pytest.mark.parametrize("name", TASKS)
def test_a_step_of_every_task_is_measured_against_the_same_head_on_stock_classes(
    name: str, few_rows: Any, minilm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--parts", "training", "--tasks", name, "--rounds", "1", "--batch-size", "2", "--threads", "1"]
    few_rows.main([*words, "--json"])
    found = printed(capsys)["training"][name]
    assert found["stock"]["median"] > 0
    assert found["padding_ratio"] >= 1
    assert ("careful" in found) is (name in ("reading", "fewshot"))


def test_processor_time_leaves_out_what_others_took_and_wants_one_thread(
    few_rows: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert few_rows.seconds(lambda: time.sleep(0.2), clock=time.process_time) < 0.1
    assert few_rows.seconds(lambda: time.sleep(0.2)) >= 0.19
    with pytest.raises(SystemExit, match="2"):
        few_rows.main(["--cpu-time", "--threads", "2"])
    assert "--threads 1" in capsys.readouterr().err
    few_rows.main(
        ["--cpu-time", "--parts", "training", "--tasks", "tagging", "--rounds", "1", "--batch-size", "2", "--threads=1"]
    )
    assert "1 threads, processor time" in capsys.readouterr().out


def test_a_profile_says_what_could_be_won_at_most(few_rows: Any, capsys: pytest.CaptureFixture[str]) -> None:
    few_rows.main(["--profile", "tagging", "--batch-size", "2", "--threads", "1"])
    assert re.search(r"if thrice did nothing but .* \d+% of its step: [\d.]+x", capsys.readouterr().out)


def test_a_stock_side_with_other_weights_is_no_comparison(few_rows: Any) -> None:
    stock_tasks = benchmark("stock_tasks")
    model, words, examples = few_rows.prepared(few_rows.CASES["triples-conditional"])
    batch = model.eval().task.encode(examples[:4], words).batch(range(4))
    sequences = stock_tasks.sequences_of(batch.packed)
    stocks = {"stock": stock_tasks.same_model(model, words)}
    few_rows.check_losses(model, stocks, batch, sequences, pad=0)
    with torch.no_grad():
        stock_tasks.last_norm(stocks["stock"].model).bias[0] += 0.1
    with pytest.raises(SystemExit, match="do not compute the same"):
        few_rows.check_losses(model, stocks, batch, sequences, pad=0)


def test_decoding_and_triples_are_measured_where_both_ways_answer_the_same(
    few_rows: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--parts", "generation", "triples", "--rounds", "1", "--threads", "1", "--questions", "2", "--tokens", "3"]
    few_rows.main([*words, "--sentences", "4", "--train-steps", "2", "--json"])
    found = printed(capsys)
    assert found["generation"]["ratio"]["median"] > 0
    assert all(one["most"] > 0 for one in found["triples"].values())
    answers = [{"prediction": [{"subject": "a", "score": 0.5}]}, {"prediction": []}]
    assert few_rows.check_triples(answers, answers) == 1
    with pytest.raises(SystemExit, match="1 of 2 sentences"):
        few_rows.check_triples(answers, answers[::-1][:1] * 2)
    monkeypatch.setattr(few_rows, "cached", lambda *_, **__: torch.zeros(2, 3, dtype=torch.long) - 1)
    with pytest.raises(SystemExit, match="do not write the same"):
        few_rows.main(words)


@pytest.fixture
def articles(tmp_path: Path, shared_data: Path) -> Path:
    """The first paragraphs of the held-out technical articles."""
    written = gzip.decompress((shared_data / "zh_tech_articles" / "dev.txt.gz").read_bytes()).decode("utf-8")
    (tmp_path / "text.txt").write_text("\n".join(written.split("\n")[:150]), encoding="utf-8")
    return tmp_path / "text.txt"


@pytest.fixture
def dev_corpus(articles: Path) -> Any:
    """Their corpus."""
    return prepare_corpus(articles, benchmark("texts").chinese_tokenizer(), articles.parent / "corpus")


@pytest.fixture
def small_pretraining(monkeypatch: pytest.MonkeyPatch, articles: Path, dev_corpus: Any) -> Any:
    """The benchmark of pre-training on small shapes, and the words that it is called with."""
    pretrain = benchmark("pretrain")
    monkeypatch.setattr(pretrain, "gemm_rate", lambda *_, **__: 1e11)
    for size in ("tiny", "small"):
        monkeypatch.setitem(PRESETS, f"albert-{size}-zh", SMALL)
    sizes = ["--batch-tokens", "240", "--max-length", "48", "--run-steps", "3"]
    return pretrain, [
        "--text",
        str(articles),
        "--corpus",
        str(dev_corpus.folder),
        "--rounds",
        "2",
        "--threads",
        "1",
        "--cpu-time",
        *sizes,
    ]


@pytest.mark.parametrize("case", ["albert-tiny", "bert-tiny", "electra-small"])
def test_a_step_of_pretraining_is_measured_against_padded_and_filled_stock_classes(
    case: str, small_pretraining: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain, words = small_pretraining
    pretrain.main([*words, "--parts", "steps", "--cases", case, "--json"])
    found = printed(capsys)["steps"]
    assert set(found) == {f"{case}, segments", f"{case}, lines"}
    one = found[f"{case}, lines"]
    sides = {"stock", "careful", *(("careful, native",) if case == "albert-tiny" else ())}
    assert set(one["over"]) == sides
    assert one["over"]["stock"]["median"] > 0
    assert 1 <= one["careful_padding_ratio"] <= one["padding_ratio"]


def test_rows_are_filled_with_sequences_that_do_not_see_one_another() -> None:
    packed = pack([[1, 2, 3], [4, 5, 6, 7, 8], [9, 10]])
    laid = benchmark("stock_pretraining").filled(packed, width=5)
    assert laid.inputs["input_ids"].tolist() == [[4, 5, 6, 7, 8], [1, 2, 3, 9, 10]]
    assert laid.inputs["position_ids"].tolist()[1] == [0, 1, 2, 0, 1]
    assert laid.inputs["attention_mask"][1, 0].int().tolist() == [[1, 1, 1, 0, 0]] * 3 + [[0, 0, 0, 1, 1]] * 2
    assert laid.inputs["input_ids"].flatten()[laid.places].tolist() == packed.input_ids.tolist()


def test_parts_of_a_step_reading_and_growth_are_measured(
    small_pretraining: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain, words = small_pretraining
    words = [*words, "--parts", "rows", "profile", "stream", "growth", "--cases", "albert-tiny", "electra-tiny"]
    pretrain.main([*words, "--json"])
    found = printed(capsys)
    parts = found["profile"]["electra-tiny"]["milliseconds"]
    assert {"embeddings", "encoder", "rtd head", "generator encoder", "generator mlm head", "optimiser"} < set(parts)
    assert found["profile"]["albert-tiny"]["gflop"] > 0
    assert set(found["rows"]) == {"albert-tiny", "electra-tiny"}
    assert found["rows"]["albert-tiny"]["ratio"]["median"] > 0
    assert found["stream"]["stream_tokens_per_second"]["median"] > 0
    assert 0 <= found["stream"]["share_waiting"] < 1
    assert set(found["growth"]["growth"]) == {"2", "4"}
    pretrain.main(words)
    assert re.search(r"growth, albert-tiny: .* at 4x", capsys.readouterr().out)


def test_a_profile_parts_the_step_and_leaves_its_gradients_as_they_are(small_pretraining: Any, dev_corpus: Any) -> None:
    pretrain, _ = small_pretraining
    model = pretrain.model_of("albert-tiny", dev_corpus)
    (batch,) = pretrain.batches_of("segments", model, dev_corpus, count=1, max_length=32, batch_tokens=96)
    model.loss(batch).backward()
    whole = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    cuts = pretrain.cut_apart(model, time.perf_counter)
    pretrain.in_parts(model, batch, cuts, lambda: None)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, whole[name], atol=1e-7, rtol=1e-5, msg=name)


def test_a_stock_side_of_pretraining_with_other_weights_is_no_comparison(
    small_pretraining: Any, dev_corpus: Any
) -> None:
    pretrain, _ = small_pretraining
    model = pretrain.model_of("electra-tiny", dev_corpus)
    (batch,) = pretrain.batches_of("segments", model, dev_corpus, count=1, max_length=32, batch_tokens=96)
    stocks = {name: (s, s.prepared(batch)) for name, s in pretrain.stocks_of(model, width=32).items()}
    pretrain.check_equal(model, batch, stocks)
    with torch.no_grad():
        stocks["careful"][0].discriminator.discriminator_predictions.dense.bias[0] += 0.5
    with pytest.raises(SystemExit, match="do not compute the same"):
        pretrain.check_equal(model, batch, stocks)
