"""Recipes: what the package carries is valid, and a wrong one is told everything at once, before anything is read."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pretraining_parts import content_of, tiny_recipe

from thrice.errors import ConfigError, DataError
from thrice.model.presets import PRESETS
from thrice.pretraining import find_recipe, read_recipe, recipe_names, recipe_of
from thrice.pretraining.recipe_file import to_toml


def problems_of(content: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        recipe_of(content, name="r.toml")
    return str(caught.value)


def test_the_package_carries_five_kinds_in_four_sizes_and_all_are_valid() -> None:
    kinds = ("albert", "bert", "electra", "mpn", "roberta")
    assert recipe_names() == sorted(f"{kind}-{size}" for kind in kinds for size in ("nano", "tiny", "small", "base"))
    for name in recipe_names():
        recipe = recipe_of(read_recipe(name), name=name)
        assert recipe.name == name
        assert recipe.corpus.train is None
        assert recipe.model.config() is not None
        assert find_recipe(name).read_text(encoding="utf-8").startswith("# ")


def test_shapes_of_the_recipes_are_those_of_the_published_models() -> None:
    for name, preset in (
        ("albert-tiny", "albert-tiny-zh"),
        ("albert-small", "albert-small-zh"),
        ("albert-base", "albert-base"),
        ("bert-base", "bert-base"),
        ("roberta-base", "roberta-base"),
        ("electra-small", "electra-small"),
        ("electra-base", "electra-base"),
    ):
        ours, theirs = recipe_of(read_recipe(name), name=name).model.config(), PRESETS[preset]
        assert ours is not None
        own = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "vocab_size")
        assert ours.replace(**{key: getattr(theirs, key) for key in own}) == theirs, name


def test_what_a_recipe_leaves_out_is_as_in_the_family(tmp_path: Path) -> None:
    shape = {"num_hidden_layers": 4, "hidden_size": 192, "num_attention_heads": 3}
    for family, embedding, pattern in (("albert", 128, (0, 0, 0, 0)), ("bert", 192, (0, 1, 2, 3))):
        content = content_of(tmp_path) | {"model": {"family": family, **shape}}
        content["stages"] = [{"objectives": ["mlm"]}]
        config = recipe_of(content, name="r").model.config()
        assert config is not None
        assert (config.embedding_size, config.attention_map) == (embedding, pattern)
        assert config.intermediate_size == 768
        assert config.embedding_projection == (family == "albert")


def test_unknown_keys_are_named_with_their_nearest_neighbours_all_at_once(tmp_path: Path) -> None:
    content = content_of(tmp_path, optimizer={"learning_rat": 1.0}, objectives={"mlm": {"rat": 0.2}}, sed=1)
    content["stages"][1]["lenth"] = 3
    said = problems_of(content)
    assert said.startswith("r.toml: ")
    for part in (
        "sed is no key; did you mean seed?",
        "optimizer.learning_rat is no key; did you mean learning_rate",
        "objectives.mlm.rat is no key; did you mean rate",
        "stages[2].lenth is no key",
    ):
        assert part in said


def test_values_of_the_wrong_kind_are_named_with_their_place(tmp_path: Path) -> None:
    content = content_of(tmp_path, batch={"tokens": "many"}, objectives={"mlm": {"rate": "high"}})
    content["stages"][0]["objectives"] = "mlm"
    said = problems_of(content)
    assert "batch.tokens is 'many', expected a whole number" in said
    assert "stages[1].objectives is 'mlm', expected a list" in said
    assert "objectives.mlm.rate is 'high', expected a number" in said
    assert "there is no [[stages]]" in problems_of({"budget": {"tokens": 1}})
    for stages in ({"objectives": ["mlm"]}, "mlm", 5):
        assert "it must be [[stages]], in two pairs of brackets" in problems_of(
            content_of(tmp_path) | {"stages": stages}
        )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"budget": {"steps": 5}}, "budget gives tokens, steps; expected exactly one of tokens, steps, flops, minutes"),
        ({"budget": {"tokens": -1}}, "budget.tokens is -1, it must be above 0"),
        ({"stages": [{"share": 0.5, "objectives": ["mlm"]}]}, "shares are 0.5: expected parts above 0 that make 1"),
        ({"stages": [{"objectives": ["mlm"]}, {"share": 1.0, "objectives": ["mlm"]}]}, "stages 1 have no share"),
        ({"stages": [{"objectives": ["nsp", "sop", "mlm"], "max_length": 48}]}, "nsp and sop do not go together"),
        (
            {"stages": [{"objectives": ["rtd"], "max_length": 48}]},
            "rtd wants a model of the family electra, this one is",
        ),
        ({"stages": [{"objectives": ["mlm"], "max_length": 65}]}, "65 is more than the model's 64 positions"),
        ({"stages": [{"objectives": ["mlm"], "max_length": 4}]}, "max_length is 4, it must be at least 8"),
        ({"batch": {"tokens": 30}}, "stages[2].max_length 48 is more than batch.tokens 30"),
        ({"stages": [{"objectives": ["mln"], "max_length": 48}]}, "no objective called 'mln'; did you mean"),
        ({"stages": [{"objectives": ["mlm"], "sharing": "groups=9", "max_length": 48}]}, "stages[1].sharing: sharing"),
        ({"batch": {"micro_tokens": 30}}, "stages[2].max_length 48 is more than batch.micro_tokens 30"),
        (
            {"batch": {"micro_tokens": 90}, "stages": [{"objectives": ["mpn"], "max_length": 48}]},
            "batch.micro_tokens: mpn weighs a batch as a whole and computes it at once; lower batch.tokens",
        ),
        ({"objectives": {"nsp": {"weight": 2.0}}}, "objectives.nsp has options, but no stage uses nsp"),
        ({"objectives": {"mlm": {"rate": 1.5}}}, "objective mlm: rate is 1.5"),
        ({"model": {"preset": "albert-base"}}, "model.preset has a family already"),
        ({"model": {"from": "zoo:albert-nano-zh"}}, "model.from brings its own shape; leave out family"),
        ({"model": {"family": "gpt"}}, "model.family is 'gpt'"),
        ({"model": {"num_attention_heads": 3}}, "hidden_size 16 is no multiple of num_attention_heads 3"),
        ({"optimizer": {"schedule": "quadratic"}}, "no schedule called 'quadratic'"),
        ({"optimizer": {"adam_beta1": 1.0}}, "adam_beta1 is 1.0, it must be a number in [0, 1)"),
        ({"seed": 2**32}, "seed is 4294967296, it must be a whole number in [0, 2**32)"),
        ({"tokenizer": None}, "tokenizer is missing"),
    ],
)
def test_contradictions_are_refused_with_what_to_do(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in problems_of(content_of(tmp_path, **changes))


def test_several_contradictions_are_told_together(tmp_path: Path) -> None:
    said = problems_of(content_of(tmp_path, budget={"minutes": 1.0}, batch={"tokens": 30, "short": 2.0}))
    assert said.count(";") >= 2
    for part in ("budget gives tokens, minutes", "more than batch.tokens 30", "batch.short is 2.0"):
        assert part in said


def test_a_recipe_written_as_toml_is_the_same_recipe(tmp_path: Path) -> None:
    content = content_of(tmp_path, name='with "quotes" and \\', objectives={"mlm": {"rate": 0.25, "whole_word": True}})
    again = tomllib.loads(to_toml(content))
    assert again == content
    assert recipe_of(again, name="r") == recipe_of(content, name="r")
    for name in recipe_names():
        assert tomllib.loads(to_toml(read_recipe(name))) == read_recipe(name)


def test_files_beside_a_recipe_are_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "text").mkdir()
    path = tmp_path / "mine" / "r.toml"
    path.write_text('[corpus]\ntrain = "text"\nheld_out = "elsewhere"\n', encoding="utf-8")
    assert read_recipe(str(path))["corpus"] == {"train": str(tmp_path / "mine" / "text"), "held_out": "elsewhere"}


def test_a_recipe_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no recipe is called that; did you mean albert-nano"):
        read_recipe("albert-nan")
    (tmp_path / "r.toml").write_text("stages = [", encoding="utf-8")
    with pytest.raises(DataError, match=r"r\.toml is no TOML"):
        read_recipe(str(tmp_path / "r.toml"))


def test_what_moves_no_weight_is_no_part_of_a_recipes_identity(tmp_path: Path) -> None:
    facts = tiny_recipe(tmp_path).facts()
    assert tiny_recipe(tmp_path, run={"save_seconds": 5.0}, name="other").facts() == facts
    assert facts["stages[2].objectives"] == ["mlm", "sop"]
    changed = tiny_recipe(tmp_path, optimizer={"learning_rate": 1e-3}).facts()
    assert {key for key in facts if facts[key] != changed[key]} == {"optimizer.learning_rate"}
