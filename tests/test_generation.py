"""Writing behind sources: the cache gives what encoding anew gives; beams, votes and pieces worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from rewriting import Rewriting

from thrice.model.encoder import Encoder
from thrice.model.generation import Continuation
from thrice.model.packing import pack
from thrice.model.presets import PRESETS
from thrice.model.search import Written, write

VOCABULARY, END = 40, 3
SHAPE = {
    "vocab_size": VOCABULARY,
    "embedding_size": 12,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "initializer_range": 0.6,
    "attention_map": (0, 1, 0),
    "ffn_map": (0, 0, 1),
}


def encoder_of(preset: str) -> Encoder:
    model = Encoder(PRESETS[preset].replace(**SHAPE), heads=("mlm",)).eval()
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=draw)
    return model


def sources_of(count: int, *, seed: int = 0) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(4, VOCABULARY, size=draw.integers(3, 12)).tolist() for _ in range(count)]


def cached(model: Encoder, sources: list[list[int]], *, token_type: int = 1, longest: int = 8) -> Continuation:
    return Continuation(model, pack(sources), token_type=token_type, longest=longest)


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("owner", [[0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 2, 2]])
@pytest.mark.parametrize("preset", ["albert-tiny-zh", "bert-mini", "electra-small", "roberta-base"])
def test_the_cache_writes_what_encoding_anew_writes(preset: str, owner: list[int], width: int, pieces: bool) -> None:
    model, sources = encoder_of(preset), sources_of(6)
    kind = 0 if model.config.type_vocab_size == 1 else 1
    options = {"width": width, "end": END, "longest": 8, "never": (0, 1, 2)}
    if pieces:
        options["pieces"] = [np.array(source) for source in sources]
    ours = write(cached(model, sources, token_type=kind), owner, **options)
    plain = write(Rewriting(model, sources, token_type=kind), owner, **options)
    assert [w.tokens for w in ours] == [w.tokens for w in plain]
    assert [w.place for w in ours] == [w.place for w in plain]
    assert max(abs(a.log_score - b.log_score) for a, b in zip(ours, plain, strict=True)) < 1e-4
    assert len({w.tokens for w in ours}) > 1


@pytest.mark.parametrize("preset", ["albert-tiny-zh", "roberta-base"])
def test_logits_of_every_step_are_those_of_encoding_anew(preset: str) -> None:
    model, sources = encoder_of(preset), sources_of(5, seed=3)
    ours, plain = cached(model, sources, token_type=0), Rewriting(model, sources, token_type=0)
    torch.testing.assert_close(ours.logits, plain.logits, atol=1e-5, rtol=1e-5)
    draw = torch.Generator().manual_seed(0)
    before = 1
    for width in (1, 3, 3, 2):
        if width == 2:
            ours.keep(torch.tensor([4, 1]))
            plain.keep(torch.tensor([4, 1]))
        count = len(plain.sources)
        tokens = torch.randint(4, VOCABULARY, (count, width), generator=draw)
        parents = torch.randint(0, before, (count, width), generator=draw)
        both = ours.advance(tokens, parents), plain.advance(tokens, parents)
        torch.testing.assert_close(*both, atol=1e-5, rtol=1e-5)
        before = width


def test_a_question_is_answered_alike_alone_and_among_others() -> None:
    model, sources = encoder_of("bert-mini"), sources_of(9, seed=5)
    together = write(cached(model, sources), range(9), width=2, end=END, longest=8)
    for i, source in enumerate(sources):
        (alone,) = write(cached(model, [source]), [0], width=2, end=END, longest=8)
        assert alone.tokens == together[i].tokens
        assert abs(alone.log_score - together[i].log_score) < 1e-5


class Table:
    """A writer whose probabilities of the next token are looked up by what was written; (source, tokens) -> row."""

    def __init__(self, rows: dict[tuple[int, tuple[int, ...]], list[float]], count: int) -> None:
        self.rows, self.numbers = rows, list(range(count))
        self.said: list[list[tuple[int, ...]]] = [[()] for _ in range(count)]
        self.logits = self._next()

    def _next(self) -> torch.Tensor:
        other = [0.25] * 4
        found = [[self.rows.get((n, h), other) for h in own] for n, own in zip(self.numbers, self.said, strict=True)]
        return torch.tensor(found).log()

    def advance(self, tokens: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        self.said = [
            [(*own[p], t) for p, t in zip(ps, ts, strict=True)]
            for own, ps, ts in zip(self.said, parents.tolist(), tokens.tolist(), strict=True)
        ]
        return self._next()

    def keep(self, chosen: torch.Tensor) -> None:
        self.numbers, self.said = ([values[i] for i in chosen.tolist()] for values in (self.numbers, self.said))


def test_a_beam_finds_what_greedy_misses() -> None:
    # Token 0 looks best and leads nowhere; 1 and then the end, 3, is likelier as a whole.
    rows = {(0, ()): [0.5, 0.4, 0.05, 0.05], (0, (1,)): [0.02, 0.02, 0.01, 0.95]}
    (greedy,) = write(Table(rows, 1), [0], width=1, end=3, longest=2)
    (beam,) = write(Table(rows, 1), [0], width=2, end=3, longest=2)
    assert (greedy.tokens, beam.tokens) == ((0,), (1,))
    assert beam.log_score == pytest.approx(math.log(0.4 * 0.95), abs=1e-6)
    assert greedy.log_score == pytest.approx(math.log(0.5 * 0.25), abs=1e-6)
    assert beam.score == pytest.approx((0.4 * 0.95) ** 0.5, abs=1e-6)


def test_sources_vote_and_one_that_says_nothing_first_is_dropped() -> None:
    rows = {
        (0, ()): [0.6, 0.3, 0.0, 0.1],
        (1, ()): [0.1, 0.7, 0.0, 0.2],
        (2, ()): [0.3, 0.1, 0.0, 0.6],  # the end is likeliest: dropped, or token 0 would win
        **{(s, (t,)): [0.0, 0.0, 0.0, 1.0] for s in range(3) for t in range(2)},
    }
    (found,) = write(Table(rows, 3), [0, 0, 0], width=1, end=3, longest=3)
    assert found.tokens == (1,)
    assert found.log_score == pytest.approx(math.log((0.3**2 + 0.7**2) / 2) + math.log(2 / 3), abs=1e-6)


def test_one_source_left_counts_as_it_is_and_none_is_no_answer() -> None:
    rows = {
        (0, ()): [0.6, 0.3, 0.0, 0.1],
        (1, ()): [0.1, 0.1, 0.1, 0.7],
        (2, ()): [0.1, 0.1, 0.2, 0.6],
        (0, (0,)): [0.0, 0.2, 0.0, 0.8],
    }
    one, none = write(Table(rows, 3), [0, 0, 1], width=1, end=3, longest=3)
    assert one.tokens == (0,)
    assert one.log_score == pytest.approx(math.log(0.6 * 0.8), abs=1e-6)
    assert none == Written(tokens=(), log_score=pytest.approx(math.log(0.6), abs=1e-6))
    assert write(Table(rows, 3), [0, 0, 1], width=1, end=3, longest=3)[1].place is None


def test_where_every_question_has_an_answer_the_least_silent_source_speaks() -> None:
    rows = {
        (0, ()): [0.2, 0.1, 0.0, 0.7],
        (1, ()): [0.1, 0.3, 0.0, 0.6],
        (2, ()): [0.3, 0.1, 0.1, 0.5],
        **{(s, (t,)): [0.0, 0.0, 0.0, 1.0] for s in range(3) for t in range(2)},
    }
    first, second = write(Table(rows, 3), [0, 0, 1], width=1, end=3, longest=3, answer_all=True)
    assert (first.tokens, second.tokens) == ((1,), (0,))
    assert first.log_score == pytest.approx(math.log(0.3), abs=1e-6)
    pieces = [np.array([0]), np.array([]), np.array([])]
    first, second = write(Table(rows, 3), [0, 0, 1], width=1, end=3, longest=3, answer_all=True, pieces=pieces)
    assert (first.tokens, second.tokens) == ((0,), ())


def test_a_piece_of_a_source_is_all_that_may_be_written() -> None:
    uniform = {(0, ()): [0.1, 0.3, 0.5, 0.1]}
    # 2 is likeliest and no part of the source; 1 is followed by 0 alone.
    (found,) = write(Table(uniform, 1), [0], width=1, end=3, longest=4, pieces=[np.array([0, 0, 1, 0])])
    assert found.tokens[0] == 1
    assert found.tokens in ((1,), (1, 0))
    assert found.place == (0, 2)
    model, sources = encoder_of("roberta-base"), sources_of(8, seed=7)
    pieces = [np.array(source) for source in sources]
    for width in (1, 4):
        written = write(cached(model, sources, token_type=0), range(8), width=width, end=END, longest=8, pieces=pieces)
        for i, w in enumerate(written):
            if w.tokens:
                assert w.place is not None
                source, start = w.place
                assert source == i
                assert tuple(sources[i][start : start + len(w.tokens)]) == w.tokens
        assert any(len(w.tokens) > 1 for w in written)
    (nothing,) = write(
        cached(model, sources[:1], token_type=0), [0], width=1, end=END, longest=8, pieces=[np.array([])]
    )
    assert nothing.tokens == ()


def test_the_last_place_is_for_the_end_alone() -> None:
    never_ends = {(0, ()): [0.9, 0.1, 0.0, 0.0]} | {(0, (0,) * n): [0.98, 0.01, 0.0, 0.01] for n in range(1, 9)}
    (found,) = write(Table(never_ends, 1), [0], width=1, end=3, longest=4)
    assert found.tokens == (0, 0, 0)
    assert found.log_score == pytest.approx(math.log(0.9 * 0.98**2 * 0.01), abs=1e-5)
