"""Which tokens are hidden, and what stands in their place: counted over a hundred thousand tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pretraining import CLS, MASK, SEP, example, vocabulary

from thrice.data.segments import PretrainingExample, generator_of
from thrice.errors import ConfigError
from thrice.model.packing import pack
from thrice.objectives.base import Vocabulary
from thrice.objectives.masking import choose_positions, hide, mask_tokens, number_to_choose
from thrice.objectives.mlm import MaskedLM

SIZE = 500


def many(count: int, *, seed: int = 0, longest: int = 126) -> list[PretrainingExample]:
    """Give pairs of random tokens whose words have a mean length of 1.4 tokens."""
    generator = np.random.Generator(np.random.PCG64(seed))
    made = []
    for number in range(count):
        length = int(generator.integers(2, longest))
        tokens = generator.integers(5, SIZE, size=length)
        starts = generator.random(length) < 0.7
        cut = int(generator.integers(1, length))
        made.append(example(tokens[:cut].tolist(), tokens[cut:].tolist(), starts=starts.tolist(), number=number))
    return made


def within(count: int, total: int, probability: float, *, deviations: float = 4) -> bool:
    """Say whether a count of successes lies within so many standard deviations of a binomial."""
    return abs(count - total * probability) <= deviations * math.sqrt(total * probability * (1 - probability))


EXAMPLES = many(1700)
LENGTH = sum(len(e.input_ids) for e in EXAMPLES)
CLEAN = pack([e.input_ids for e in EXAMPLES], [e.token_type_ids for e in EXAMPLES])
SPECIAL = np.isin(CLEAN.input_ids.numpy(), (CLS, SEP))


@pytest.mark.parametrize("options", [{}, {"whole_word": True}, {"whole_word": True, "max_ngram": 3}, {"max_ngram": 3}])
def test_rates_and_shares_are_those_asked_for_over_a_hundred_thousand_tokens(options: dict[str, int]) -> None:
    assert LENGTH > 100_000
    objective = MaskedLM(rate=0.15, **options)
    part = objective.corrupt(EXAMPLES, CLEAN, seed=1, vocabulary=vocabulary(SIZE))
    before, after = CLEAN.input_ids.numpy(), part.packed.input_ids.numpy()
    chosen = part.positions.numpy()
    assert len(set(chosen.tolist())) == len(chosen) == part.count
    assert (np.diff(chosen) > 0).all()
    assert not SPECIAL[chosen].any()
    untouched = np.ones(LENGTH, dtype=bool)
    untouched[chosen] = False
    assert (before[untouched] == after[untouched]).all()
    assert (part.targets.numpy() == before[chosen]).all()
    asked = sum(number_to_choose(e, 0.15) for e in EXAMPLES)
    assert within(asked, LENGTH, 0.15)
    assert asked == part.count if not options.get("whole_word") else 0.97 * asked < part.count <= 1.01 * asked
    kept_or_drawn = after[chosen] != MASK
    assert within(int((~kept_or_drawn).sum()), len(chosen), 0.8)
    drawn_anew = kept_or_drawn & (after[chosen] != before[chosen])
    assert within(int(drawn_anew.sum()), len(chosen), 0.1 * (1 - 1 / (SIZE - 5)))
    assert after[chosen][drawn_anew].min() >= 5, "no special token is drawn"
    assert within(int((after[chosen][drawn_anew] < 250).sum()), int(drawn_anew.sum()), 245 / 495)


def test_every_ordinary_token_is_equally_likely() -> None:
    text = example([7, 8, 9, 10], [11, 12])
    counts = np.zeros(9)
    for seed in range(6000):
        counts[choose_positions(text, 2, generator_of(seed, (0,)))] += 1
    assert counts[[0, 5, 8]].sum() == 0
    assert all(within(int(c), 6000, 2 / 6) for c in counts[counts > 0])
    assert (counts > 0).sum() == 6


def test_a_word_is_chosen_whole_or_not_at_all() -> None:
    for number, text in enumerate(EXAMPLES[:300]):
        chosen = np.zeros(len(text.input_ids), dtype=bool)
        chosen[choose_positions(text, number_to_choose(text, 0.3), generator_of(1, (number,)), whole_word=True)] = True
        goes_on = ~text.word_starts & ~text.special
        goes_on[1:] &= ~text.special[:-1]
        places = np.flatnonzero(goes_on)
        assert (chosen[places] == chosen[places - 1]).all()


def test_the_length_of_a_run_has_a_probability_that_falls_as_one_over_it() -> None:
    text = example(list(range(5, 405)))
    lengths = {1: 0, 2: 0, 3: 0}
    for seed in range(4000):
        chosen = choose_positions(text, 3, generator_of(seed, (0,)), max_ngram=3)
        for run in np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1):
            lengths[len(run)] += 1
    # Of three tokens: a run of 3 at once, or a run of 2 first, or after a run of 1 a longer one that is cut to 2; now
    # and then neighbours of several draws look like one run.
    one, two, three = 6 / 11, 3 / 11, 2 / 11
    assert within(lengths[3], 4000, three, deviations=5)
    assert within(lengths[2], 4000, two + one * (two + three), deviations=5)


def test_a_run_crosses_no_special_token() -> None:
    text = example([7, 8], [9, 10])
    for seed in range(200):
        chosen = choose_positions(text, 4, generator_of(seed, (0,)), max_ngram=4).tolist()
        assert chosen == [1, 2, 4, 5]
        two = choose_positions(text, 2, generator_of(seed, (0,)), max_ngram=4).tolist()
        assert not set(two) & {0, 3, 6}


def test_where_every_word_is_longer_than_asked_the_shortest_is_chosen() -> None:
    text = example([7, 8, 9, 10, 11], starts=[True, False, False, True, False])
    assert choose_positions(text, 1, generator_of(1, (0,)), whole_word=True).tolist() == [4, 5]


def test_at_least_one_token_is_chosen_and_never_more_than_there_are() -> None:
    assert number_to_choose(example([7]), 0.15) == 1
    assert number_to_choose(example([7] * 98), 0.15) == 15
    assert number_to_choose(example([7, 8]), 0.9) == 2
    nothing = example([])
    assert number_to_choose(nothing, 0.15) == 0
    for options in ({}, {"whole_word": True}):
        assert len(choose_positions(nothing, 0, generator_of(1, (0,)), **options)) == 0


def test_the_same_seed_hides_the_same_and_another_one_does_not() -> None:
    objective, few = MaskedLM(), EXAMPLES[:20]
    clean = pack([e.input_ids for e in few])
    one, same, other = (objective.corrupt(few, clean, seed=s, vocabulary=vocabulary(SIZE)) for s in (1, 1, 2))
    assert one.packed.input_ids.tolist() == same.packed.input_ids.tolist()
    assert one.packed.input_ids.tolist() != other.packed.input_ids.tolist()


def test_shares_of_all_and_nothing() -> None:
    ids, words = np.arange(5, 20), vocabulary()
    generator = generator_of(1, (0,))
    assert (hide(ids, generator, words, mask_share=1, random_share=0) == MASK).all()
    assert (hide(ids, generator, words, mask_share=0, random_share=0) == ids).all()
    assert (hide(ids, generator, words, mask_share=0, random_share=1) >= 5).all()


def test_a_sequence_of_special_tokens_alone_is_left_as_it_is() -> None:
    both = [example([]), example([7, 8, 9], number=1)]
    clean = pack([e.input_ids for e in both])
    part = mask_tokens(
        both,
        clean,
        seed=1,
        purpose=1,
        choose=lambda e, g: choose_positions(e, number_to_choose(e, 0.4), g),
        vocabulary=vocabulary(),
        mask_share=1.0,
        random_share=0.0,
    )
    assert part.count == 2
    assert part.packed.input_ids[int(clean.starts[0]) :].tolist() == [CLS, SEP]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rate": 0.0}, "rate is 0.0"),
        ({"rate": 1.0, "weight": 0.0}, "weight is 0.0, expected a number above 0; rate is 1.0"),
        ({"mask_share": 0.8, "random_share": 0.3}, "add up to more than 1"),
        ({"mask_share": -0.1}, "mask_share is -0.1"),
        ({"max_ngram": 0}, "max_ngram is 0"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(options: dict[str, float], expected: str) -> None:
    with pytest.raises(ConfigError, match="objective mlm: ") as caught:
        MaskedLM(**options)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"num_tokens": 10, "mask_id": 4, "special_ids": (0, 1)}, "id 4, is not among the special ids"),
        ({"num_tokens": 3, "mask_id": 4, "special_ids": (4,)}, "lie outside 0 to 2"),
        ({"num_tokens": 2, "mask_id": 1, "special_ids": (0, 1)}, "all of its 2 tokens are special"),
    ],
)
def test_a_vocabulary_that_cannot_hide_anything_is_refused(values: dict[str, int], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Vocabulary(**values)
