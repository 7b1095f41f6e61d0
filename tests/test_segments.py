"""Segments are stretches of documents, pairs say the truth, and a stream goes on from any position exactly."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from corpora import corpus_of, numbered, word_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from thrice.data.corpus import Corpus, prepare_corpus
from thrice.data.cutting import IN_ORDER, OUT_OF_ORDER, Text, cut_pairs, cut_singles
from thrice.data.drawing import Draws, shuffled
from thrice.data.segments import Position, PretrainingExample, SegmentStream, generator_of
from thrice.data.shards import shard_path
from thrice.data.tokenizer import Tokenizer
from thrice.errors import ConfigError, DataError

CLS, SEP = 2, 3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A corpus of 60 documents in several shards."""
    return corpus_of(tmp_path_factory.mktemp("corpus"), numbered(60), shard_characters=1500)


def stream_of(corpus: Corpus, **options: object) -> SegmentStream:
    given_ones: dict = {"max_length": 24, "batch_tokens": 60, "seed": 1} | options
    return SegmentStream(corpus, **given_ones)


def one_pass(stream: SegmentStream, pass_number: int = 0) -> list[list[PretrainingExample]]:
    batches = []
    for batch, behind in stream.batches(Position(pass_number=pass_number)):
        batches.append(batch)
        if behind.pass_number > pass_number:
            return batches
    raise AssertionError("a stream ended")


def halves(example: PretrainingExample) -> list[list[int]]:
    """The texts of an example, without special tokens."""
    ends = np.flatnonzero(example.input_ids == SEP).tolist()
    starts = [1, *(end + 1 for end in ends)]
    return [example.input_ids[start:end].tolist() for start, end in zip(starts, ends, strict=False)]


def flat(corpus: Corpus) -> list[list[int]]:
    """The ids of every document."""
    found = []
    for number in range(corpus.num_shards):
        shard = corpus.shard(number)
        borders = shard.sentences[shard.documents]
        found += [shard.ids[start:stop].tolist() for start, stop in itertools.pairwise(borders)]
    return found


def same(first: Sequence[PretrainingExample], second: Sequence[PretrainingExample]) -> bool:
    return len(first) == len(second) and all(
        a.key == b.key
        and a.pair_label == b.pair_label
        and all(
            np.array_equal(getattr(a, name), getattr(b, name))
            for name in ("input_ids", "token_type_ids", "special", "word_starts")
        )
        for a, b in zip(first, second, strict=True)
    )


# Draws


def test_an_example_has_draws_of_its_own() -> None:
    keys = [(0, (1, 2), 0), (0, (1, 2), 1), (0, (2, 1), 0), (1, (1, 2), 0), (0, (1, 2, 0), 0), (0, (12,), 0)]
    drawn = [generator_of(seed, key, purpose).random(4).tolist() for seed, key, purpose in keys]
    assert len({tuple(numbers) for numbers in drawn}) == len(keys)
    assert drawn[0] == generator_of(0, np.array([1, 2]), 0).random(4).tolist()


def test_draws_are_those_of_today() -> None:
    # They decide what a resumed run sees: a change here breaks runs that were begun before.
    assert shuffled(8, 1, 2, 3).tolist() == [7, 5, 0, 2, 4, 1, 6, 3]
    draws = Draws(1, 2)
    assert [draws.below(100) for _ in range(6)] == [52, 36, 41, 92, 22, 92]


def test_draws_are_spread_evenly() -> None:
    draws = Draws(7)
    counts = Counter(draws.below(5) for _ in range(50_000))
    assert all(abs(counts[number] - 10_000) < 450 for number in range(5))  # five deviations


# Single segments


def test_without_pairs_every_token_is_in_one_segment(corpus: Corpus) -> None:
    batches = one_pass(stream_of(corpus, short=0.3))
    examples = sorted((example for batch in batches for example in batch), key=lambda example: example.key)
    assert [token for example in examples for token in halves(example)[0]] == [
        token for document in flat(corpus) for token in document
    ]
    assert len({example.key for example in examples}) == len(examples)


def test_an_example_has_its_special_tokens_and_says_which_they_are(corpus: Corpus) -> None:
    for pairs, texts in ((None, 1), ("sop", 2), ("nsp", 2)):
        for batch in one_pass(stream_of(corpus, pairs=pairs)):
            for example in batch:
                ids = example.input_ids
                assert (ids[0], ids[-1], int((ids == SEP).sum())) == (CLS, SEP, texts)
                assert len(ids) <= 24
                assert example.special.tolist() == np.isin(ids, [CLS, SEP]).tolist()
                first, *second = map(len, halves(example))
                types = [0] * (first + 2) + ([1] * (second[0] + 1) if second else [])
                assert example.token_type_ids.tolist() == types
                assert (example.pair_label == -100) == (pairs is None)
                assert (ids.dtype, example.token_type_ids.dtype) == (np.int64, np.int64)
                assert (example.special.dtype, example.word_starts.dtype) == (np.bool_, np.bool_)
                assert len(ids) == len(example.word_starts)


def test_words_begin_at_texts_and_where_the_corpus_says(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [["abcdefgh ij, klmnopqrstuvwx yz. The end."] * 3])
    tokens = word_tokenizer(tmp_path / "words").hf
    for pairs in (None, "sop"):
        for batch in one_pass(stream_of(corpus, pairs=pairs, max_length=12)):
            for example in batch:
                names = tokens.convert_ids_to_tokens(example.input_ids.tolist())
                wanted = [
                    not name.startswith("##") or before in ("[CLS]", "[SEP]")
                    for before, name in zip(["[SEP]", *names[:-1]], names, strict=True)
                ]
                assert example.word_starts.tolist() == wanted


def test_special_tokens_that_stand_in_the_text_are_never_masked(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [["ab [MASK] c [SEP] [UNK] d."]])
    (example,) = one_pass(stream_of(corpus))[0]
    assert example.input_ids.tolist().count(SEP) == 2
    assert example.special.tolist() == np.isin(example.input_ids, [2, 3, 4]).tolist()


def test_short_segments_have_their_share_and_are_of_any_length(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [["a b c d e f g h i j k l m n o p."] * 1500], shard_characters=10**6)

    def lengths(short: float) -> np.ndarray:
        stream = stream_of(corpus, max_length=19, short=short, batch_tokens=100)
        return np.array([len(example.input_ids) - 2 for batch in one_pass(stream) for example in batch])

    assert set(lengths(0.0).tolist()) == {17}
    found = lengths(1.0)
    assert set(found.tolist()) >= set(range(2, 18))
    some = lengths(0.1)
    # One segment in ten is cut at 2 to 17 tokens; the rest of its sentence is the next, and the one after is whole.
    cut = (some[:-1] < 17).mean()
    assert 0.05 < cut < 0.25


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), min_size=2, max_size=6),
    st.integers(4, 25),
    st.sampled_from([None, "sop", "nsp"]),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.integers(0, 3),
)
def test_cutting_keeps_its_promises(
    documents: list[list[int]], room: int, pairs: str | None, short: float, seed: int
) -> None:
    """documents: tokens of each sentence."""
    borders = [0, *itertools.accumulate(size for sizes in documents for size in sizes)]
    firsts = [0, *itertools.accumulate(len(sizes) for sizes in documents)]
    text = Text(sentences=borders, documents=firsts, own=len(documents))
    owner = [number for number, sizes in enumerate(documents) for _ in range(sum(sizes))]
    if pairs is None:
        cut = cut_singles(text, room=room, short=short, draws=Draws(seed))
        used = [token for start, stop, _, _ in cut.spans for token in range(start, stop)]
        assert used == sorted(set(used))
        assert len(used) + cut.left["tokens_cut"] == sum(map(sum, documents))
        assert cut.left["tokens_cut"] <= len(documents)
        assert all(2 <= stop - start <= room and owner[start] == owner[stop - 1] for start, stop, _, _ in cut.spans)
        if short == 0 and all(1 < size <= room for sizes in documents for size in sizes):
            assert {place for start, stop, _, _ in cut.spans for place in (start, stop)} <= set(borders)
        return
    cut = cut_pairs(text, pairs, room=room, short=short, draws=Draws(seed))
    assert {owner[a] for a, *_ in cut.spans if pairs == "nsp"} <= {n for n, s in enumerate(documents) if len(s) > 1}
    assert len(cut.spans) >= sum(len(sizes) > 1 for sizes in documents)
    for (a, a_end, b, b_end), label in zip(cut.spans, cut.labels, strict=True):
        assert a < a_end
        assert b < b_end
        assert a_end - a + b_end - b <= room
        assert {a, b} <= set(borders)
        same_document = owner[a] == owner[b]
        if pairs == "nsp":
            assert same_document == (label == IN_ORDER)
            assert label == OUT_OF_ORDER or a_end <= b
        else:
            assert same_document
            assert (a_end <= b) == (label == IN_ORDER)
            assert (b_end <= a) == (label == OUT_OF_ORDER)


# Pairs


def test_the_last_sentence_gets_a_neighbour() -> None:
    # Three of four sentences fit: two and two are taken, so that none is left over.
    text = Text(sentences=[0, 3, 6, 9, 12], documents=[0, 4], own=1)
    cut = cut_pairs(text, "sop", room=9, short=0, draws=Draws(0))
    assert sorted((min(a, b), max(a_end, b_end)) for a, a_end, b, b_end in cut.spans) == [(0, 6), (6, 12)]
    assert cut.left["sentences_left_over"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_what_followed_a_segment_with_a_stranger_begins_the_next_pair(seed: int) -> None:
    text = Text(sentences=list(range(0, 202, 2)), documents=[0, 50, 100], own=2)
    cut = cut_pairs(text, "nsp", room=10, short=0, draws=Draws(seed))
    own = [
        token
        for (a, a_end, b, b_end), label in zip(cut.spans, cut.labels, strict=True)
        for token in [*range(a, a_end), *(range(b, b_end) if label == IN_ORDER else ())]
    ]
    assert own == sorted(set(own))
    assert len(own) + 2 * cut.left["sentences_left_over"] == 200
    assert 0 < sum(cut.labels) < len(cut.labels)


def place_of(document: Sequence[int], piece: Sequence[int]) -> int | None:
    places = (start for start in range(len(document)) if list(document[start : start + len(piece)]) == list(piece))
    return next(places, None)


def test_half_of_the_sentence_orders_are_swapped_and_the_labels_say_which(corpus: Corpus) -> None:
    documents = flat(corpus)
    owner_of = {tuple(document[:4]): document for document in documents}
    labels = []
    for batch in one_pass(stream_of(corpus, pairs="sop")):
        for example in batch:
            first, second = halves(example)
            document = owner_of[tuple(first[:4])]
            places = place_of(document, first), place_of(document, second)
            assert None not in places
            assert (places[0] > places[1]) == (example.pair_label == 1)
            assert owner_of[tuple(second[:4])] is document
            labels.append(example.pair_label)
    assert abs(np.mean(labels) - 0.5) < 4 * 0.5 / len(labels) ** 0.5


def test_half_of_the_next_sentences_are_of_another_document_and_the_labels_say_which(corpus: Corpus) -> None:
    labels = []
    for number in range(3):
        for batch in one_pass(stream_of(corpus, pairs="nsp"), number):
            for example in batch:
                first, second = halves(example)
                assert (first[:4] != second[:4]) == (example.pair_label == 1)
                labels.append(example.pair_label)
    assert abs(np.mean(labels) - 0.5) < 4 * 0.5 / len(labels) ** 0.5


def test_second_segments_are_of_any_other_document(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, numbered(5, sentences=40), shard_characters=10**6)
    found = Counter()
    for number in range(4):
        for batch in one_pass(stream_of(corpus, pairs="nsp"), number):
            for example in batch:
                first, second = halves(example)
                found[tuple(first[:4]), tuple(second[:4])] += example.pair_label
    others = [count for (one, two), count in found.items() if one != two]
    assert len(others) == 5 * 4
    assert min(others) > 0.4 * sum(others) / 20


def test_a_document_that_fills_a_shard_takes_second_segments_from_another_shard(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, numbered(3, sentences=30), shard_characters=10)
    assert corpus.num_shards == 3
    labels = [
        (example.pair_label, halves(example)[0][:4] == halves(example)[1][:4])
        for batch in one_pass(stream_of(corpus, pairs="nsp"))
        for example in batch
    ]
    assert set(labels) == {(0, True), (1, False)}


def test_a_document_of_one_sentence_is_counted_and_in_no_pair(tmp_path: Path) -> None:
    documents = [*numbered(10), *([f"Alone {'x ' * number}."] for number in range(1, 8))]
    corpus = corpus_of(tmp_path, documents)
    x = word_tokenizer(tmp_path / "words").content_ids(["alone"])[0]
    for pairs in ("sop", "nsp"):
        stream = stream_of(corpus, pairs=pairs)
        assert stream.skipped["documents_of_one_sentence"] == 7
        firsts = [halves(example)[0][: len(x)] for batch in one_pass(stream) for example in batch]
        assert x not in firsts
    stream = stream_of(corpus)
    assert stream.skipped["documents_of_one_sentence"] == 0
    assert x in [halves(example)[0][: len(x)] for batch in one_pass(stream) for example in batch]


def test_what_is_left_over_and_cut_off_is_counted(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [["A b c d e f g h i j k l m n. A b c d e f g h i j k l m n. O p."]])
    stream = stream_of(corpus, pairs="sop", max_length=15, batch_tokens=15, short=0)
    places = [Position()]
    for _, behind in stream.batches():
        places.append(behind)
        if behind.pass_number == 2:
            break
    examples = [example for batch in one_pass(stream) for example in batch]
    # Sentences of 15, 15 and 3 tokens, and room for 12: two are a pair that loses 18 tokens, the third stays alone.
    assert [len(example.input_ids) for example in examples] == [15]
    assert [(place.tokens_cut, place.sentences_left_over) for place in places] == [(0, 0), (18, 1), (36, 2)]


# Batches and positions


@settings(max_examples=25)
@given(
    st.integers(8, 40), st.integers(0, 100), st.sampled_from([None, "sop", "nsp"]), st.integers(0, 2), st.integers(0, 9)
)
def test_batches_are_full_and_never_too_big(
    corpus_for_properties: Corpus, max_length: int, more: int, pairs: str | None, stage: int, seed: int
) -> None:
    budget = max_length + more
    stream = stream_of(
        corpus_for_properties, max_length=max_length, batch_tokens=budget, pairs=pairs, stage=stage, seed=seed
    )
    batches = one_pass(stream)
    sizes = [[len(example.input_ids) for example in batch] for batch in batches]
    assert all(0 < sum(batch) <= budget for batch in sizes)
    for before, after in itertools.pairwise(batches):
        if before[0].key[:3] == after[0].key[:3]:
            assert sum(len(example.input_ids) for example in before) + len(after[0].input_ids) > budget


@pytest.fixture(scope="module")
def corpus_for_properties(corpus: Corpus) -> Corpus:
    return corpus


@settings(max_examples=15)
@given(st.integers(0, 60), st.sampled_from([None, "sop", "nsp"]))
def test_going_on_from_any_position_gives_what_would_have_come(
    corpus_for_properties: Corpus, done: int, pairs: str | None
) -> None:
    def stream() -> SegmentStream:
        return stream_of(corpus_for_properties, pairs=pairs, batch_tokens=400)

    whole = list(itertools.islice(stream().batches(), done + 40))
    position = whole[done - 1][1] if done else Position()
    saved = Position(**json.loads(json.dumps(dataclasses.asdict(position))))
    for (batch, behind), (wanted, at) in zip(stream().batches(saved), whole[done:], strict=False):
        assert same(batch, wanted)
        assert behind == at


def test_the_positions_of_a_pass_are_in_order_and_end_at_the_next(corpus: Corpus) -> None:
    places = [Position()]
    for _, behind in stream_of(corpus).batches():
        places.append(behind)
        if behind.pass_number == 2:
            break
    numbers = [(place.pass_number, place.block, place.batch) for place in places]
    assert numbers == sorted(set(numbers))
    assert {place.block for place in places} == set(range(corpus.num_shards))
    assert numbers[-1] == (2, 0, 0)


def test_passes_stages_and_seeds_differ_and_equal_ones_are_equal(corpus: Corpus) -> None:
    def first(seed: int, stage: int, number: int) -> list[list[PretrainingExample]]:
        return one_pass(stream_of(corpus, seed=seed, stage=stage), number)

    base = first(1, 0, 0)
    assert all(same(one, two) for one, two in zip(base, first(1, 0, 0), strict=True))
    for other in (first(2, 0, 0), first(1, 1, 0), first(1, 0, 1)):
        assert not all(same(one, two) for one, two in zip(base, other, strict=False))
        orders = [[example.key[2:] for batch in batches for example in batch] for batches in (base, other)]
        assert orders[0] != orders[1]
    assert {example.key[:2] for batch in first(1, 3, 5) for example in batch} == {(3, 5)}


def test_shards_come_in_another_order_in_every_pass(corpus: Corpus) -> None:
    orders = {
        tuple(dict.fromkeys(example.key[2] for batch in one_pass(stream_of(corpus), number) for example in batch))
        for number in range(4)
    }
    assert len(orders) > 1
    assert all(sorted(order) == list(range(corpus.num_shards)) for order in orders)


# Bad input


def test_nsp_needs_two_documents(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [["He sat. She ran. They ate."]])
    with pytest.raises(DataError, match="has one document: nsp takes half of the second segments from another"):
        stream_of(corpus, pairs="nsp")
    assert one_pass(stream_of(corpus, pairs="sop"))


@pytest.mark.parametrize("pairs", ["sop", "nsp"])
def test_documents_of_one_sentence_alone_make_no_pairs(tmp_path: Path, pairs: str) -> None:
    corpus = corpus_of(tmp_path, [["He sat."], ["She ran."], ["They ate."]])
    with pytest.raises(DataError, match=rf"nothing for {pairs}: 3 documents of one sentence"):
        stream_of(corpus, pairs=pairs)


def test_options_that_do_not_fit_are_told_all_at_once(corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match=r"pairs is 'nps'.*max_length is 4.*batch_tokens is 3.*short is 2.*seed -1"):
        stream_of(corpus, pairs="nps", max_length=4, batch_tokens=3, short=2, seed=-1)
    with pytest.raises(ConfigError, match="max_length is 3; special tokens and text need at least 4"):
        stream_of(corpus, max_length=3)


@pytest.mark.parametrize("position", [Position(block=99), Position(batch=99), Position(pass_number=-1)])
def test_a_position_of_another_corpus_is_refused(corpus: Corpus, position: Position) -> None:
    with pytest.raises(ConfigError, match="is no position in"):
        next(stream_of(corpus).batches(position))


def test_a_damaged_shard_is_found_when_it_is_read(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, numbered(20))
    stream = stream_of(corpus)
    path = shard_path(corpus.folder, 1, "ids")
    data = path.read_bytes()
    path.write_bytes(data[:-2] + b"\x07\x00")
    with pytest.raises(DataError, match=r"shard-00001\.ids\.npy is damaged"):
        one_pass(stream)


# Real text


@pytest.mark.parametrize("pairs", [None, "sop", "nsp"])
def test_real_articles_become_segments_that_use_their_room(
    tmp_path: Path, shared_data: Path, pairs: str | None
) -> None:
    (tmp_path / "words").mkdir()
    vocabulary = (shared_data / "vocabs" / "bert-base-chinese-vocab.txt").read_bytes()
    (tmp_path / "words" / "vocab.txt").write_bytes(vocabulary)
    tokenizer = Tokenizer.from_folder(tmp_path / "words")
    corpus = prepare_corpus(shared_data / "zh_tech_articles" / "dev.txt.gz", tokenizer, tmp_path / "corpus")
    stream = SegmentStream(corpus, max_length=128, batch_tokens=1100, pairs=pairs, seed=0)
    batches = one_pass(stream)
    lengths = [len(example.input_ids) for batch in batches for example in batch]
    assert np.mean(lengths) > 90
    assert np.mean([sum(len(example.input_ids) for example in batch) for batch in batches]) > 980
    behind = next(behind for _, behind in stream.batches() if behind.pass_number == 1)
    assert behind.tokens_cut < 0.02 * corpus.num_tokens
    if pairs != "nsp":
        assert sum(lengths) - len(lengths) * (2 if pairs is None else 3) > 0.97 * corpus.num_tokens
