"""Names of sharing: parse, describe, refine, and what a stock ALBERT config can say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thrice.errors import SharingError
from thrice.model.config import canonical
from thrice.sharing.patterns import (
    PATTERNS,
    describe,
    parse,
    refines,
    stock_albert_layout,
    stock_albert_map,
)


@st.composite
def two_maps(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two maps of one length: half of them from familiar names, since random maps seldom have one."""
    calls = draw(st.integers(1, 13))
    familiar = ["all", "none", "attention", "ffn", *(f"{w}={k}" for w in ("groups", "cycle") for k in (1, calls))]
    familiar += [f"{word}={draw(st.integers(1, calls))}" for word in ("groups", "cycle")]
    if draw(st.booleans()):
        return parse(draw(st.sampled_from(familiar)), calls)
    entries = st.lists(st.integers(0, calls - 1), min_size=calls, max_size=calls)
    return canonical(tuple(draw(entries))), canonical(tuple(draw(entries)))


@pytest.mark.parametrize(
    ("pattern", "attention", "ffn"),
    [
        ("all", (0, 0, 0, 0, 0), (0, 0, 0, 0, 0)),
        ("none", (0, 1, 2, 3, 4), (0, 1, 2, 3, 4)),
        ("attention", (0, 0, 0, 0, 0), (0, 1, 2, 3, 4)),
        ("ffn", (0, 1, 2, 3, 4), (0, 0, 0, 0, 0)),
        ("groups=2", (0, 0, 0, 1, 1), (0, 0, 0, 1, 1)),
        ("cycle=2", (0, 1, 0, 1, 0), (0, 1, 0, 1, 0)),
        ("attention=0,0,1,2,1;ffn=0,1,1,1,0", (0, 0, 1, 2, 1), (0, 1, 1, 1, 0)),
        (" ffn = all ; attention = 0, 1, 1, 1, 1 ", (0, 1, 1, 1, 1), (0, 0, 0, 0, 0)),
        ("0,0,1,1,0", (0, 0, 1, 1, 0), (0, 0, 1, 1, 0)),
    ],
)
def test_a_pattern_names_the_two_maps(pattern: str, attention: tuple[int, ...], ffn: tuple[int, ...]) -> None:
    assert parse(pattern, 5) == (attention, ffn)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("atention", "'atention'; did you mean attention"),
        ("shared", "known: all, attention, cycle=K, ffn, groups=K, none"),
        ("", "known: all"),
        ("lora=2", "nobody knows 'lora=2'"),
        ("groups=0", "from 1 to 4, got 'groups=0'"),
        ("groups=5", "from 1 to 4, got 'groups=5'"),
        ("cycle=2.0", "whole number K from 1 to 4, got 'cycle=2.0'"),
        ("cycle=-1", "got 'cycle=-1'"),
        ("groups=٢", "whole number"),
        ("groups", "groups=K wants"),
        ("groups=" + "9" * 5000, "whole number"),
        ("0,0,1", "3 entries, expected one for each of the 4 calls"),
        ("0,x,1,1", "whole numbers with commas, got '0,x,1,1'"),
        ("attention=1,1,0,0;ffn=0,0,2,2", "attention: .*write 0,0,1,1 for 1,1,0,0; ffn: .*write 0,0,1,1 for 0,0,2,2"),
        ("attention=0,0,1,1", "both sides once"),
        ("attention=all;attention=none", "both sides once"),
        ("attention=all;ffn=attention", "ffn: nobody knows 'attention'"),
    ],
)
def test_a_pattern_that_does_not_fit_says_what_does(pattern: str, message: str) -> None:
    with pytest.raises(SharingError, match=message):
        parse(pattern, 4)


def test_no_calls_cannot_be_shared() -> None:
    with pytest.raises(SharingError, match="at least one call"):
        parse("all", 0)


@given(two_maps())
def test_parse_reads_back_what_describe_writes(maps: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    assert parse(describe(*maps), len(maps[0])) == maps


@pytest.mark.parametrize(
    ("pattern", "calls", "name"),
    [
        ("groups=1", 4, "all"),
        ("cycle=1", 4, "all"),
        ("groups=4", 4, "none"),
        ("0,1,2,2", 4, "attention=0,1,2,2;ffn=0,1,2,2"),
        ("0,0,1,1", 4, "groups=2"),
        ("cycle=3", 4, "cycle=3"),
        ("attention=all;ffn=none", 4, "attention"),
        ("attention=none;ffn=all", 4, "ffn"),
        ("attention=groups=2;ffn=none", 4, "attention=0,0,1,1;ffn=0,1,2,3"),
        ("all", 1, "none"),  # one call has nobody to share with
    ],
)
def test_describe_prefers_the_familiar_name(pattern: str, calls: int, name: str) -> None:
    assert describe(*parse(pattern, calls)) == name


@pytest.mark.parametrize("maps", [((0, 1), (0,)), ((), ()), ((1, 0), (0, 1)), ((0, 0), (0, 2)), ((0, -1), (0, 1))])
def test_describe_refuses_what_is_no_pair_of_maps(maps: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(SharingError):
        describe(*maps)


@given(two_maps())
def test_a_map_refines_another_where_its_sharing_calls_share_there(maps: tuple[tuple[int, ...], ...]) -> None:
    fine, coarse = maps
    calls = range(len(fine))
    by_pairs = all(coarse[i] == coarse[j] for i in calls for j in calls if fine[i] == fine[j])
    assert refines(fine, coarse) == by_pairs


@given(two_maps())
def test_none_refines_everything_and_everything_refines_all(maps: tuple[tuple[int, ...], ...]) -> None:
    calls = len(maps[0])
    assert refines(range(calls), maps[0])
    assert refines(maps[0], (0,) * calls)
    assert refines(maps[0], maps[0])


def test_maps_of_different_depth_cannot_be_compared() -> None:
    with pytest.raises(SharingError, match="2 and 3 calls"):
        refines((0, 1), (0, 1, 2))


def test_the_stock_formula_divides_in_floating_point() -> None:
    stock = stock_albert_map(18, 14, 1)
    assert stock[9] == 6
    assert 9 * 14 // 18 == 7
    wanted = parse("groups=14", 18)
    assert wanted[0][9] == 7
    assert not stock_albert_layout(*wanted).exact
    assert stock_albert_layout(stock, stock).exact


def test_the_stock_formula_is_the_one_that_transformers_runs() -> None:
    import inspect

    from transformers.models.albert.modeling_albert import AlbertTransformer

    source = inspect.getsource(AlbertTransformer.forward)
    assert "int(i / (self.config.num_hidden_layers / self.config.num_hidden_groups))" in source


@given(st.integers(1, 24), st.integers(1, 24), st.integers(1, 4))
def test_every_stock_config_without_unused_groups_is_found_again(steps: int, groups: int, inner: int) -> None:
    if groups > steps:
        groups = steps
    stock = stock_albert_map(steps, groups, inner)
    layout = stock_albert_layout(stock, stock)
    assert layout.exact
    assert stock_albert_map(layout.num_hidden_layers, layout.num_hidden_groups, layout.inner_group_num) == stock
    assert layout.num_hidden_groups * layout.inner_group_num == max(stock) + 1
    assert layout.inner_group_num <= inner


@given(two_maps())
def test_a_stock_layout_is_exact_or_has_a_copy_for_every_call(maps: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    layout = stock_albert_layout(*maps)
    said = stock_albert_map(layout.num_hidden_layers, layout.num_hidden_groups, layout.inner_group_num)
    if layout.exact:
        assert maps == (said, said)
    else:
        assert said == tuple(range(len(maps[0])))


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("all", (6, 1, 1, True)),
        ("none", (6, 6, 1, True)),
        ("groups=4", (6, 4, 1, True)),
        ("cycle=3", (2, 1, 3, True)),
        ("0,1,0,1,2,3", (3, 2, 2, True)),
        ("0,1,0,1,0,2", (6, 6, 1, False)),
        ("attention", (6, 6, 1, False)),
        ("0,1,2,3,4,0", (6, 6, 1, False)),
    ],
)
def test_stock_layouts_of_six_calls(pattern: str, numbers: tuple[int, int, int, bool]) -> None:
    layout = stock_albert_layout(*parse(pattern, 6))
    assert (layout.num_hidden_layers, layout.num_hidden_groups, layout.inner_group_num, layout.exact) == numbers


def test_every_listed_pattern_can_be_typed() -> None:
    for name, sentence in PATTERNS.items():
        assert len(parse(name.replace("K", "2"), 4)[0]) == 4
        assert sentence
