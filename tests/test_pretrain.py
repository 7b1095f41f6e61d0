"""Pre-training from a recipe to stock folders: what is spent, written, resumed, refused and said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from no_thrice import run_without_thrice
from pretraining_parts import RESHARING, content_of, stopping_after_a_step, tiny_recipe, write_stories
from test_benchmarks import benchmark
from test_cli import run as run_command
from test_pretrain_killed import without_times

from thrice.checkpoints import load, save
from thrice.data.corpus import prepare_corpus
from thrice.data.corpus_file import named_counts
from thrice.data.tokenizer import Tokenizer
from thrice.errors import CheckpointError, ConfigError, DataError, Interrupted, ThriceError, TrainingError
from thrice.model.packing import pack
from thrice.pretraining import pretrain, recipe_of
from thrice.pretraining import run as running
from thrice.pretraining.resharing import reshare
from thrice.training import budget_loop
from thrice.training.budget import BudgetConfig
from thrice.training.optim import carried

ELECTRA = {
    "model": {"family": "electra", "hidden_size": 64, "intermediate_size": 64},
    "stages": [{"max_length": 32, "objectives": ["rtd"]}],
}


def train(place: Path, out: str = "out", *, say: Callable[[str], None] | None = None, **changes: Any) -> dict[str, Any]:
    content = content_of(place, **changes)
    return pretrain(recipe_of(content, name="tiny.toml"), place / out, content=content, say=say)


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "pretrain.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def albert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with a tiny ALBERT, and what its run gave."""
    place = tmp_path_factory.mktemp("albert")
    return place, train(place, budget={"tokens": 60_000})


@pytest.fixture(scope="module")
def electra(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with two tiny towers, and what their run gave."""
    place = tmp_path_factory.mktemp("electra")
    return place, train(place, **ELECTRA)


def test_the_loss_falls_and_the_budget_is_what_is_spent(albert: tuple[Path, dict[str, Any]]) -> None:
    place, result = albert
    first, last = result["evaluations"][0]["held_out"], result["evaluations"][-1]["held_out"]
    assert last["mlm"] < first["mlm"] - 0.4
    assert last["mlm"] < result["baseline"]["unigram_entropy"] - 0.2, "it has learned more than frequencies"
    assert 60_000 <= result["spent"]["tokens"] < 60_200
    assert not (place / "out.run").exists()
    steps = [line for line in log_of(place / "out") if line["event"] == "step"]
    assert steps[-1]["tokens"] == result["spent"]["tokens"]
    assert [line["step"] for line in steps] == sorted({line["step"] for line in steps})
    assert steps[-1]["wait_seconds"] >= 0
    assert {"sop", "sop_accuracy"} <= steps[-1].keys() - steps[0].keys()


def test_the_rate_rises_over_the_warm_up_and_ends_near_zero(albert: tuple[Path, dict[str, Any]]) -> None:
    rates = [line["lr"] for line in log_of(albert[0] / "out") if line["event"] == "step"]
    assert rates[0] == pytest.approx(5e-3 * 3 / 4, rel=0.02)  # step 3 of 4 of the warm-up
    assert max(rates) == rates[1]
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert rates[-1] < 1e-4


def test_the_factor_of_the_rate_by_hand() -> None:
    config = BudgetConfig(unit="steps", amount=100, warmup_steps=4, schedule="linear")
    assert config.factor(1, 0.0) == 0.25
    assert config.factor(2, 0.5) == 0.25
    assert config.factor(9, 0.75) == 0.25
    assert BudgetConfig(unit="steps", amount=1, schedule="cosine").factor(1, 0.5) == pytest.approx(0.5)
    assert BudgetConfig(unit="steps", amount=1, schedule="constant").factor(1, 0.9) == 1.0


def test_a_saved_albert_loads_in_stock_transformers_with_all_its_heads(albert: tuple[Path, dict[str, Any]]) -> None:
    folder = albert[0] / "out"
    found = run_without_thrice(
        """
import torch, transformers
model, told = transformers.AlbertForPreTraining.from_pretrained(arguments["folder"], output_loading_info=True)
words = transformers.AutoTokenizer.from_pretrained(arguments["folder"])
batch = words("老人看见月亮。", "月亮寻找小船。", return_tensors="pt")
with torch.no_grad():
    out = model.eval()(**batch)
result = {
    "ids": batch["input_ids"][0].tolist(), "types": batch["token_type_ids"][0].tolist(),
    "mlm": out.prediction_logits[0].tolist(), "sop": out.sop_logits[0].tolist(),
    "left": [list(map(str, told[key])) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")],
}
""",
        folder=str(folder),
    )
    assert found["left"] == [[], [], []]
    encoder = load(str(folder))
    batch = pack([found["ids"]], [found["types"]])
    with torch.no_grad():
        states = encoder(batch)
        mlm = encoder.predict_tokens(states)
        sop = encoder.heads["sentence_pair"](encoder.heads["pooler"](states[batch.starts]))
    assert torch.allclose(mlm, torch.tensor(found["mlm"]), atol=1e-5)
    assert torch.allclose(sop[0], torch.tensor(found["sop"]), atol=1e-5)


def test_both_towers_load_in_stock_transformers_by_their_names(electra: tuple[Path, dict[str, Any]]) -> None:
    folder, result = electra[0] / "out", electra[1]
    assert set(result["parameters"]) == {"encoder", "generator"}
    found = run_without_thrice(
        """
import transformers
result = []
for kind, folder in (("ElectraForPreTraining", arguments["folder"]), ("ElectraForMaskedLM", arguments["generator"])):
    model, told = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    words = transformers.AutoTokenizer.from_pretrained(folder)
    shape = model(**words("老人看见月亮。", return_tensors="pt")).logits.shape
    result.append([kind, list(shape), *[list(map(str, told[key])) for key in ("missing_keys", "unexpected_keys")]])
""",
        folder=str(folder),
        generator=str(folder / "generator"),
    )
    entries = load(str(folder)).config.vocab_size
    assert found == [["ElectraForPreTraining", [1, 9], [], []], ["ElectraForMaskedLM", [1, 9, entries], [], []]]
    tables = [load(str(path)).embeddings.word_embeddings.weight for path in (folder, folder / "generator")]
    assert torch.equal(*tables)


def test_passes_over_the_text_leave_special_tokens_out(
    albert: tuple[Path, dict[str, Any]], electra: tuple[Path, dict[str, Any]]
) -> None:
    for _, result in (albert, electra):
        frames = [3 if "sop" in stage["name"] else 2 for stage in result["stages"]]
        ends = [0, *(stage["examples"] for stage in result["stages"])]
        special = sum(frame * (ends[i + 1] - ends[i]) for i, frame in enumerate(frames))
        text = result["spent"]["tokens"] - special
        assert result["spent"]["passes"] == pytest.approx(text / result["data"]["train"]["tokens"])


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_other_families_are_saved_as_their_stock_classes(family: str, tmp_path: Path) -> None:
    objectives = ["mlm", "nsp"] if family == "bert" else ["mlm"]
    model = {"family": family, "embedding_size": 16}
    train(tmp_path, model=model, stages=[{"max_length": 40, "objectives": objectives}], budget={"tokens": 1000})
    kind = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"]
    assert kind == ["BertForPreTraining" if family == "bert" else "RobertaForMaskedLM"]
    missing = run_without_thrice(
        f"""
import transformers
_, told = transformers.{kind[0]}.from_pretrained(arguments["folder"], output_loading_info=True)
result = [list(map(str, told[key])) for key in ("missing_keys", "unexpected_keys")]
""",
        folder=str(tmp_path / "out"),
    )
    assert missing == [[], []]


def test_the_card_counts_what_the_stages_left_out(tmp_path: Path) -> None:
    stage = {"max_length": 14, "objectives": ["mlm", "sop"]}  # less than two sentences of the stories
    result = train(tmp_path, stages=[stage], budget={"tokens": 12_000}, model={"max_position_embeddings": 16})
    (told,) = result["left_out"]
    behind = result["stages"][0]["position"]
    assert behind["pass_number"] >= 1
    assert told["documents_of_one_sentence"] == 0 < told["tokens_cut"] == behind["tokens_cut"]
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"Not used in stage 1: {named_counts(told)}." in card


def test_counts_are_named_in_words() -> None:
    counts = {"documents_of_one_sentence": 1, "sentences_left_over": 1200, "tokens_cut": 1, "documents_too_short": 0}
    assert named_counts(counts) == "1 document of one sentence, 1,200 sentences left over, 1 token cut"


def test_a_warm_up_that_takes_most_of_the_budget_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    train(tmp_path, say=said.append, budget={"tokens": 1000}, optimizer={"warmup_steps": 4})
    assert sum(line.startswith("note: the rate rises over 4 steps and the budget is about 5:") for line in said) == 1
    said.clear()
    train(tmp_path, "long", say=said.append, budget={"tokens": 2000}, optimizer={"warmup_steps": 4})
    assert not any("the rate rises" in line for line in said)


def test_the_card_says_what_was_spent_and_what_came_out(albert: tuple[Path, dict[str, Any]]) -> None:
    place, result = albert
    card = (place / "out" / "README.md").read_text(encoding="utf-8")
    for part in (
        f"| tokens | {result['spent']['tokens']:,} |",
        f"{result['spent']['flops']:.3e}",
        f"| optimiser steps | {result['spent']['steps']:,} |",
        "| train | 60 |",
        "| held-out | 12 |",
        "train.txt",
        "arXiv 1810.04805",
        "arXiv 1909.11942",
        f"**Verdict: {result['verdict']}.**",
        "| stages[2].max_length | 48 |",
    ):
        assert part in card, part
    assert str(place) not in card, "a card goes to other people"
    bound = 0.85 * result["baseline"]["unigram_entropy"]
    below = next((r for r in result["evaluations"] if r["held_out"]["mlm"] < bound), None)
    when = "never" if below is None else f"after {below['tokens']:,} tokens and {below['flops']:.2e} FLOPs"
    assert f"The mlm loss left the plateau of such models, {bound:.2f} and above, {when}." in card
    last = result["evaluations"][-1]
    assert f"| 2 | {last['tokens']:,} | {last['flops']:.2e} | {last['held_out']['mlm']:.3f} |" in card


def test_a_sidecar_and_a_recipe_lie_beside_the_model(albert: tuple[Path, dict[str, Any]]) -> None:
    folder, result = albert[0] / "out", albert[1]
    sidecar = json.loads((folder / "thrice.json").read_text(encoding="utf-8"))
    assert sidecar["pretraining"]["spent"] == result["spent"]
    content = content_of(albert[0], budget={"tokens": 60_000})
    from thrice.pretraining import read_recipe

    assert recipe_of(read_recipe(str(folder / "recipe.toml")), name="r") == recipe_of(content, name="r")


def test_two_runs_of_one_recipe_are_the_same_bit_for_bit_and_another_seed_is_another(tmp_path: Path) -> None:
    results = [train(tmp_path, out, budget={"tokens": 1500}, seed=seed) for out, seed in (("a", 0), ("b", 0), ("c", 1))]
    files = [(tmp_path / out / "model.safetensors").read_bytes() for out in "abc"]
    assert files[0] == files[1] != files[2]
    assert without_times(results[0]) == without_times(results[1])


def test_a_run_that_is_asked_to_stop_is_saved_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = train(tmp_path, "quiet", stages=RESHARING)
    right, calls = budget_loop._train_step, iter(range(1000))

    def step(run: Any, state: Any, feed: Any) -> None:
        right(run, state, feed)
        if next(calls) in (5, 18, 19):
            run.request.signum = 15

    monkeypatch.setattr(budget_loop, "_train_step", step)
    said: list[str] = []
    for _ in range(3):
        with pytest.raises(
            Interrupted, match=r"stopped after step \d+ \([\d.]+% of the budget\) and saved in .*resume"
        ):
            train(tmp_path, stages=RESHARING, say=said.append)
    again = train(tmp_path, stages=RESHARING, say=said.append)
    assert sum("going on with the run" in line for line in said) == 3
    assert without_times(again) == without_times(quiet)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (
        tmp_path / "quiet" / "model.safetensors"
    ).read_bytes()


def test_a_changed_recipe_is_told_and_refused_and_a_restart_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stopping_after_a_step(monkeypatch):
        train(tmp_path)
    with pytest.raises(TrainingError) as caught:
        train(tmp_path, optimizer={"learning_rate": 1e-3}, objectives={"mlm": {"rate": 0.3}})
    said = str(caught.value)
    assert "learning_rate was 0.005, is 0.001" in said
    assert "objectives.mlm.rate was absent, is 0.3" in said
    assert "choose a new folder, or restart (--restart)" in said
    train(tmp_path, run={"log_every_steps": 1, "save_seconds": 1.0})  # what moves no weight may change
    with pytest.raises(TrainingError, match="holds a finished model"):
        train(tmp_path)
    recipe = tiny_recipe(tmp_path, optimizer={"learning_rate": 1e-3})
    pretrain(recipe, tmp_path / "out", restart=True)
    assert json.loads((tmp_path / "out" / "thrice.json").read_text())["pretraining"]["recipe"][
        "optimizer.learning_rate"
    ] == pytest.approx(1e-3)


def test_changed_text_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = content_of(tmp_path)
    with stopping_after_a_step(monkeypatch):
        pretrain(recipe_of(content, name="r"), tmp_path / "out")
    source = write_stories(tmp_path / "more.txt", first=500, count=40)
    tokenizer = Tokenizer.from_folder(content["tokenizer"])
    prepare_corpus([source], tokenizer, tmp_path / "more")
    content["corpus"]["train"] = str(tmp_path / "more")
    with pytest.raises(TrainingError, match=r"corpus\.train was [0-9a-f]{64}, is [0-9a-f]{64}"):
        pretrain(recipe_of(content, name="r"), tmp_path / "out")
    content["corpus"]["train"] = shutil.copytree(tmp_path / "train", tmp_path / "moved").as_posix()
    pretrain(recipe_of(content, name="r"), tmp_path / "out")  # the same text in another folder is the same


def test_a_run_begins_with_a_checkpoint_and_its_head_and_goes_on_from_there(
    albert: tuple[Path, dict[str, Any]],
) -> None:
    place, before = albert
    content = content_of(place, stages=[{"max_length": 48, "objectives": ["mlm", "sop"]}], budget={"tokens": 800})
    content["model"] = {"from": str(place / "out")}
    del content["tokenizer"]
    said: list[str] = []
    result = pretrain(recipe_of(content, name="r"), place / "further", say=said.append)
    assert not any("fresh" in line for line in said), "it has all heads"
    begun = result["evaluations"][0]["held_out"]["mlm"]
    assert begun < before["evaluations"][0]["held_out"]["mlm"] - 0.5, "the head it was pre-trained with is kept"
    assert begun == pytest.approx(before["evaluations"][-1]["held_out"]["mlm"], abs=0.4)
    assert "begun from `" in (place / "further" / "README.md").read_text(encoding="utf-8")


def test_heads_that_the_checkpoint_lacks_are_said_to_be_fresh(tmp_path: Path) -> None:
    train(tmp_path, "plain", stages=[{"max_length": 24, "objectives": ["mlm"]}], budget={"tokens": 400})
    content = content_of(tmp_path, stages=[{"max_length": 48, "objectives": ["mlm", "sop"]}], budget={"tokens": 400})
    content["model"] = {"from": str(tmp_path / "plain")}
    del content["tokenizer"]
    said: list[str] = []
    pretrain(recipe_of(content, name="r"), tmp_path / "out", say=said.append)
    (line,) = [line for line in said if line.startswith("encoder:")]
    assert "fresh, for it has none: pooler and sentence_pair;" in line


def test_towers_are_written_and_taken_over_by_a_run_that_begins_with_them(
    electra: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    mpn = {"stages": [{"max_length": 32, "objectives": ["mpn"]}], "budget": {"tokens": 4000}}
    train(tmp_path, **mpn)
    assert "folder" not in json.loads((tmp_path / "out" / "thrice.json").read_text())["pretraining"]
    for place, tower, changes in ((electra[0], "generator", ELECTRA), (tmp_path, "proposal", mpn)):
        content = content_of(place, **changes) | {"model": {"from": str(place / "out")}}
        one = running.prepare(recipe_of(content, name="r"))
        two = running.prepare(recipe_of(content | {"seed": 7}, name="r"))
        assert one.taken == {tower: True}
        assert all(map(torch.equal, one.model.state_dict().values(), two.model.state_dict().values()))
    measured = {"rate": 0.2, "texts": 3, "draws": 2, "max_length": 32, "seed": 0}
    row = benchmark("mask_variance").measure(tmp_path / "out", tmp_path / "train", **measured)
    assert [float(cell) for cell in row.split("|")[1:3]] == [pytest.approx(28, abs=4), pytest.approx(6, abs=1)]
    content["objectives"] = {"mpn": {"hidden_size": 32}}
    lines = list(running._introduction(running.prepare(recipe_of(content, name="r")), []))
    assert any(line.startswith("proposal: beside it, fresh;") for line in lines)
    (tmp_path / "out" / "proposal.safetensors").write_bytes(b"12345678 no tensors")
    with pytest.raises(CheckpointError, match=r"proposal\.safetensors cannot be read"):
        running.prepare(recipe_of(content, name="r"))


def test_a_generator_with_tables_of_its_own_does_not_become_the_discriminators(tmp_path: Path) -> None:
    train(tmp_path, **ELECTRA, objectives={"rtd": {"embeddings": "none", "size": 1.0}})
    content = content_of(tmp_path, **ELECTRA) | {"model": {"from": str(tmp_path / "out")}}
    content["objectives"] = {"rtd": {"size": 1.0}}
    materials = running.prepare(recipe_of(content, name="r"))
    assert materials.taken == {"generator": False}
    table = materials.model.encoder.embeddings.word_embeddings.weight
    assert torch.equal(table, load(str(tmp_path / "out")).embeddings.word_embeddings.weight)


def test_a_checkpoint_that_the_stages_do_not_fit_is_refused(albert: tuple[Path, dict[str, Any]]) -> None:
    place = albert[0]
    stages = [{"max_length": 80, "objectives": ["mlm"], "sharing": "cycle=7"}]
    content = content_of(place, stages=stages) | {"model": {"from": str(place / "out")}}
    with pytest.raises(ConfigError, match=r"80 is more than the model's 64 positions; stages\[1\]\.sharing: .*cycle=K"):
        pretrain(recipe_of(content, name="r"), place / "never")


def test_unsharing_midway_changes_no_output_and_carries_the_moments(tmp_path: Path) -> None:
    materials = running.prepare(tiny_recipe(tmp_path))
    model = materials.model
    stored = model.encoder.parameter_counts()[0]
    examples, _ = next(running.stream_of(materials.train, materials.recipe, 1).batches())
    batch = model.make_batch(examples, seed=0)
    before = model.eval().loss(batch)
    sources = reshare(model, "none")
    assert sources is not None
    assert torch.equal(model.loss(batch), before)
    assert model.encoder.parameter_counts()[0] > stored
    assert sources["encoder.ffn.2.output.weight"] == ["encoder.ffn.0.output.weight"]
    assert reshare(model, "none") is None
    back = reshare(model, "all")
    assert back is not None
    assert back["encoder.ffn.0.output.weight"] == [f"encoder.ffn.{i}.output.weight" for i in range(3)]
    assert torch.equal(model.loss(batch), before)

    moments = {f"{i}": {"step": torch.tensor(4.0), "exp_avg": torch.full((2,), float(i))} for i in range(3)}
    found = carried(moments, {"a": ["1"], "b": ["0", "1", "2"], "c": ["absent"]})
    assert found["a"]["exp_avg"].tolist() == [1.0, 1.0]
    assert (found["b"]["exp_avg"].tolist(), found["b"]["step"].item()) == ([1.0, 1.0], 4.0)
    assert found["2"] == moments["2"]
    assert "c" not in found


def test_a_run_that_is_unshared_midway_ends_unshared_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    result = train(tmp_path, stages=RESHARING, say=said.append)
    assert result["sharing"] == "attention"
    assert load(str(tmp_path / "out")).config.ffn_map == (0, 1, 2)
    assert sum(line.startswith("un-shared: all becomes none") and "each copy begins" in line for line in said) == 1
    assert sum(line.startswith("shared: none becomes attention") and "mean" in line for line in said) == 1
    assert [stage["name"] for stage in result["stages"]] == ["mlm", "mlm+sop", "mlm+sop"]


@pytest.mark.parametrize(("unit", "amount"), [("steps", 7), ("flops", 5e8)])
def test_a_budget_may_be_steps_or_operations(unit: str, amount: float, tmp_path: Path) -> None:
    result = train(tmp_path, budget={"tokens": None, unit: amount})
    spent = result["spent"]
    assert spent[unit] >= amount
    assert spent["steps"] == 7 if unit == "steps" else spent["flops"] < 1.2 * amount


def test_minutes_become_tokens_once_and_a_run_that_goes_on_keeps_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    budget = {"tokens": None, "minutes": 0.01}
    with stopping_after_a_step(monkeypatch):
        train(tmp_path, budget=budget, say=said.append)
    path = tmp_path / "out.run" / "budget.json"
    kept = json.loads(path.read_text())
    assert kept["tokens"] > 0
    with pytest.raises(TrainingError, match=r"minutes was 0\.01, is 0\.02 - choose a new folder, or restart"):
        train(tmp_path, budget={"tokens": None, "minutes": 0.02}, say=said.append)
    path.write_text("{")
    with pytest.raises(TrainingError, match=r"budget\.json is damaged"):
        train(tmp_path, budget=budget, say=said.append)
    path.write_text(json.dumps(kept))
    result = train(tmp_path, budget=budget, say=said.append)
    assert sum("timing a few steps" in line for line in said) == 1
    assert result["budget"] == {"unit": "tokens", "amount": kept["tokens"], "asked": {"minutes": 0.01}}


def test_bad_text_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    content = content_of(tmp_path, corpus={"train": None})
    with pytest.raises(ConfigError, match=r"no text to learn from: .*--train; thrice corpus"):
        pretrain(recipe_of(content, name="r"), tmp_path / "out")
    content = content_of(tmp_path, corpus={"train": str(tmp_path / "absent")})
    with pytest.raises(DataError, match=r"absent holds no corpus"):
        pretrain(recipe_of(content, name="r"), tmp_path / "out")

    tokenizer = Tokenizer.from_folder(content["tokenizer"])
    lines = [f"{text}看见青山和大雨灯火。" for text in ("老人", "孩子", "书生", "渔夫")]
    (tmp_path / "lonely.txt").write_text("\n\n".join(lines), encoding="utf-8")
    prepare_corpus([tmp_path / "lonely.txt"], tokenizer, tmp_path / "lonely")
    content["corpus"] = {"train": str(tmp_path / "lonely")}
    with pytest.raises(DataError, match=r"nothing for sop: 4 documents of one sentence"):
        pretrain(recipe_of(content, name="r"), tmp_path / "out")
    content = content_of(tmp_path, corpus={"held_out": str(tmp_path / "lonely")})
    with pytest.raises(DataError, match=r"lonely has nothing for sop: 4 documents of one sentence"):
        pretrain(recipe_of(content, name="r"), tmp_path / "out")
    content = content_of(tmp_path)
    shard = next((tmp_path / "train").glob("*.ids.npy"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    try:
        with pytest.raises(ThriceError, match=shard.name):
            pretrain(recipe_of(content, name="r"), tmp_path / "out")
    finally:
        shard.write_bytes(whole)
    assert not (tmp_path / "out.run").exists()


def test_without_held_out_text_the_evaluation_says_on_what_it_was(tmp_path: Path) -> None:
    said: list[str] = []
    result = train(tmp_path, corpus={"held_out": None}, budget={"tokens": 900}, say=said.append)
    assert result["evaluated_on"] == "a sample of the training text"
    assert any("no held-out text" in line for line in said)


def test_the_command_prepares_trains_and_prints_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def type_in(*words: str) -> tuple[int, str, str]:
        return run_command(monkeypatch, capsys, *words)

    source = str(write_stories(tmp_path / "stories.txt", first=0, count=40))
    code, out, err = type_in("vocabulary", source, "--size", "100", "--out", str(tmp_path / "words"), "--json")
    assert code == 0, err
    assert json.loads(out)["tokens"] > 20
    words = ("--tokenizer", str(tmp_path / "words"))
    code, out, err = type_in("corpus", source, *words, "--out", str(tmp_path / "text"))
    assert code == 0, err
    assert "40 documents" in out
    shape = ("--set", "model.hidden_size=12", "--set", "model.intermediate_size=24", "--set", "budget.tokens=3000")
    command = ("pretrain", "albert-nano", "--train", str(tmp_path / "text"), *words, *shape, "--out")
    code, out, err = type_in(*command, str(tmp_path / "model"), "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["spent"]["tokens"] >= 3000
    assert result["recipe"]["model.hidden_size"] == 12
    stages = (
        "--set",
        'stages=[{max_length=40,objectives=["mlm"]}]',
        "--set",
        "budget.steps=5",
    )  # of another unit than the recipe's
    where = ("--from", str(tmp_path / "model"), "--train", str(tmp_path / "text"), "--out", str(tmp_path / "more"))
    code, out, err = type_in("pretrain", "bert-nano", *where, *stages)
    assert code == 0, err
    assert "saved to" in err
    assert json.loads((tmp_path / "more" / "thrice.json").read_text())["pretraining"]["spent"]["steps"] == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("no-such-recipe",), "no recipe is called that"),
        (("albert-nano", "--set", "budget.token=3"), "budget.token is no key; did you mean tokens?"),
        (("albert-nano", "--set", "seed"), "expected KEY=VALUE, such as budget.tokens=5_000_000"),
        (("albert-nano", "--from", "zoo:albert-nano-zh", "--set", "model.hidden_size=64"), "leave out hidden_size"),
        (("albert-nano", "--train", "text", "--set", "corpus=3"), "corpus is 3, expected "),
        (("albert-nano",), "no text to learn from"),
        (("albert-nano", "--train", "nowhere"), "nowhere holds no corpus"),
    ],
)
def test_mistakes_are_one_message_and_code_2(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run_command(monkeypatch, capsys, "pretrain", *words, "--out", str(tmp_path / "out"))
    assert code == 2
    assert err.startswith("error: ")
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_a_budget_spent_before_the_last_stage_cannot_be_told(tmp_path: Path) -> None:
    said: list[str] = []
    result = train(tmp_path, budget={"tokens": 1}, say=said.append)
    assert result["verdict"] == "cannot tell at this scale"
    assert result["reasons"][0].startswith("the budget was spent in stage 1 of 2")
    assert any("was never trained" in line for line in said)


def test_a_stage_that_no_budget_is_left_for_changes_no_model(tmp_path: Path) -> None:
    result = train(tmp_path, stages=RESHARING, budget={"tokens": 1})
    assert len(result["stages"]) == 1
    assert result["sharing"] == "all"
    assert load(str(tmp_path / "out")).parameter_counts()[0] == result["parameters"]["encoder"][0]


def test_a_checkpoint_is_known_by_its_weights_and_not_by_its_folder(
    albert: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    def materials(folder: Path) -> Any:
        content = content_of(tmp_path) | {"model": {"from": str(folder)}}
        return running.prepare(recipe_of(content, name="r"))

    one, two = albert[0] / "out", tmp_path / "moved"
    shutil.copytree(one, two)
    assert materials(one).identity == materials(two).identity
    encoder = load(str(two))
    with torch.no_grad():
        encoder.ffn[0].output.bias += 1
    save(encoder, two)
    assert materials(one).identity["model.from"] != materials(two).identity["model.from"]


def test_another_precision_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate import Accelerator

    with stopping_after_a_step(monkeypatch):
        train(tmp_path)
    monkeypatch.setattr(Accelerator, "mixed_precision", "bf16")
    with pytest.raises(TrainingError, match="mixed_precision was no, is bf16"):
        train(tmp_path)


def test_what_no_folder_could_hold_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "fit_budget", lambda *_, **__: pytest.fail("it was trained"))
    monkeypatch.setattr(import_module("thrice.checkpoints.save"), "_unsayable", lambda *_: ["its width is odd"])
    with pytest.raises(ThriceError, match=r"cannot be written as AlbertForPreTraining: its width is odd"):
        train(tmp_path)


def test_held_out_text_of_the_same_file_is_told(tmp_path: Path) -> None:
    content = content_of(tmp_path)
    words = Tokenizer.from_folder(tmp_path / "words")
    prepare_corpus([tmp_path / "train.txt"], words, tmp_path / "again", shard_characters=700, min_tokens=9)
    content["corpus"]["held_out"] = str(tmp_path / "again")
    said: list[str] = []
    pretrain(recipe_of({**content, "budget": {"tokens": 300}}, name="t"), tmp_path / "out", say=said.append)
    assert "note: training and held-out text were both made of train.txt, which flatters" in said
