"""A corpus holds what its sources say, whatever the processes and kills, and says which file is damaged."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pytest
import tokenizers
from corpora import corpus_of, numbered, text_of, word_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from thrice.data import seen
from thrice.data.corpus import Corpus, prepare_corpus
from thrice.data.preparing import Maker, Preparation
from thrice.data.seen import Seen
from thrice.data.sentences import sentences_of
from thrice.data.shards import KINDS, shard_path
from thrice.data.tokenizer import Tokenizer
from thrice.data.words import WordStarts, words_of
from thrice.errors import ConfigError, DataError

DOCUMENTS = [["He sat. She ran!", "They ate a bun."], ["的一是了。我不人？"], ["A third one. It is long enough."]]


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def sentences_in(corpus: Corpus) -> list[list[list[int]]]:
    """The ids of every sentence of every document."""
    found = []
    for number in range(corpus.num_shards):
        shard = corpus.shard(number, verify=True)
        for first, last in itertools.pairwise(shard.documents):
            spans = itertools.pairwise(shard.sentences[first : last + 1])
            found.append([shard.ids[start:stop].tolist() for start, stop in spans])
    return found


# What a corpus holds


def test_a_corpus_holds_the_ids_of_every_sentence_and_their_borders(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS, shard_characters=40)
    tokenizer = word_tokenizer(tmp_path / "words")
    wanted = [
        tokenizer.content_ids([sentence for line in paragraphs for sentence in sentences_of(line)])
        for paragraphs in DOCUMENTS
    ]
    assert sentences_in(corpus) == wanted
    assert corpus.num_shards == 2
    assert corpus.num_documents == 3
    assert corpus.num_tokens == sum(len(ids) for sentences in wanted for ids in sentences)
    assert corpus.facts["counts"]["sentences"] == 7
    assert (
        corpus.facts["counts"]["characters"] == sum(len(line.replace("! T", "!T")) for d in DOCUMENTS for line in d) - 2
    )
    assert corpus.special_ids == {"cls": 2, "sep": 3, "unk": 1, "mask": 4, "pad": 0}
    assert (corpus.single, corpus.pair, corpus.second_type) == (tokenizer.single, tokenizer.pair, tokenizer.second_type)
    assert (corpus.vocab_size, corpus.tokenizer_fingerprint) == (tokenizer.vocab_size, tokenizer.fingerprint)
    assert sorted(path.name.partition(".")[2] for path in corpus.folder.glob("shard-00000.*")) == sorted(
        f"{kind}.npy" for kind in KINDS
    )


def test_ids_take_two_bytes_where_the_vocabulary_allows(tmp_path: Path) -> None:
    assert corpus_of(tmp_path, DOCUMENTS).shard(0).ids.dtype == np.uint16
    backend = word_tokenizer(tmp_path / "words").backend
    preparation = Preparation(
        folder=tmp_path, settings="", pipeline=backend.to_str(), vocab_size=(1 << 16) + 1, min_tokens=1
    )
    assert Maker(preparation).tokenised(["he"])[0].ids.dtype == np.uint32


def test_copies_empty_and_short_documents_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("He sat down here.\n\nHe sat down here.\n\nno\n\nShe ran away.\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": " He sat down here. \\n"}\n{"text": ""}\n', encoding="utf-8")
    corpus = prepare_corpus(
        [tmp_path / "a.txt", tmp_path / "b.jsonl"],
        word_tokenizer(tmp_path / "words"),
        tmp_path / "corpus",
        min_tokens=5,
    )
    assert corpus.facts["skipped"] == {"duplicate": 2, "empty": 1, "too_short": 1}
    assert corpus.num_documents == 2


def test_sentences_of_which_the_tokenizer_makes_nothing_are_in_no_corpus(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [["\u200b\ufffd", "He sat. \u200b! She ran."]])
    assert all(len(ids) > 0 for document in sentences_in(corpus) for ids in document)


def test_every_shard_has_a_share_of_every_source(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(text_of([[f"{name} {d}."] for d in range(200)]), encoding="utf-8")
    corpus = prepare_corpus(
        f"{tmp_path}/*.txt", word_tokenizer(tmp_path / "words"), tmp_path / "corpus", shard_characters=400, min_tokens=1
    )
    first = word_tokenizer(tmp_path / "words").content_ids(["one"])[0]
    for number in range(corpus.num_shards - 1):
        documents = [
            document[0][: len(first)] == first for document in sentences_in(corpus)[number * 50 : number * 50 + 50]
        ]
        assert 20 <= sum(documents) <= 30


def test_progress_is_told_up_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text_of(numbered(30)), encoding="utf-8")
    told: list[tuple[int, int]] = []
    prepare_corpus(
        path, word_tokenizer(tmp_path / "w"), tmp_path / "c", progress=lambda done, total: told.append((done, total))
    )
    assert told[-1] == (path.stat().st_size, path.stat().st_size)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 60), max_size=200), st.sampled_from([1, 3, 8]))
def test_a_document_counts_as_seen_exactly_if_it_was(numbers: list[int], recent: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen, "RECENT", recent)
        ours, known = Seen(), set()
        for number in numbers:
            assert ours.add(str(number)) == (number in known)
            known.add(number)
        assert len(ours) == len(known)


# Words


def words_by_position(backend: tokenizers.Tokenizer, text: str) -> list[bool]:
    """Where words begin, by the offsets of the tokenizer and the rule of `data.words`."""
    starts = {start for start, _ in words_of(text)}
    found = []
    for start, end in backend.encode(text, add_special_tokens=False).offsets:
        while start < end and text[start].isspace():
            start += 1
        found.append(start in starts)
        starts.discard(start)  # a space before the word may be a piece of its own
    return found


def by_tables(backend: tokenizers.Tokenizer, text: str) -> list[bool]:
    ids = np.array(backend.encode(text, add_special_tokens=False).ids)
    return WordStarts(backend).find(ids, np.array([0])).tolist()


def byte_level() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    texts = ["the cat, the mat (and play-offs) sat on naïve 2014 cats。的一是"] * 3
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    return backend


def unigram() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    texts = ["the cat, the mat (and play-offs) sat on naïve 2014 cats。的一是", "cat 的一 sat"] * 3
    backend.train_from_iterator(
        texts, trainers.UnigramTrainer(vocab_size=60, show_progress=False, special_tokens=["<unk>"], unk_token="<unk>")
    )
    return backend


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "byte-level"])
@pytest.mark.parametrize("text", ["the cats, (sat) play-offs 2014.", "的一是 the cat。的", "naïve cats", "cat的一sat"])
def test_words_begin_where_they_begin_in_the_text(tmp_path: Path, kind: str, text: str) -> None:
    if kind == "wordpiece":
        backend = word_tokenizer(tmp_path).backend
        text = text.replace("-", " ").replace("(", "").replace(")", "")
    else:
        backend = unigram() if kind == "unigram" else byte_level()
    assert len(backend.encode(text).ids) > 2
    assert by_tables(backend, text) == words_by_position(backend, text)


def test_packed_bits_say_where_words_begin(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [["ab cd, 的一。 efg a."]])
    shard = corpus.shard(0)
    tokens = word_tokenizer(tmp_path / "words").hf.convert_ids_to_tokens(shard.ids.tolist())
    assert shard.word_starts().tolist() == [not token.startswith("##") for token in tokens]
    assert 0 < sum(shard.word_starts()) < len(tokens)


def test_byte_level_words_inside_a_text_keep_their_space(tmp_path: Path) -> None:
    backend = byte_level()
    preparation = Preparation(
        folder=tmp_path, settings="", pipeline=backend.to_str(), vocab_size=backend.get_vocab_size(), min_tokens=1
    )
    shard, _, _ = Maker(preparation).tokenised(["the cat sat. The mat.\nthe cat"])
    sentences = [backend.decode(shard.ids[a:b].tolist()) for a, b in itertools.pairwise(shard.sentences)]
    assert sentences == ["the cat sat.", " The mat.", "the cat"]


# Processes, kills, memory


def test_two_processes_write_what_one_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text_of(numbered(120)), encoding="utf-8")
    tokenizer = word_tokenizer(tmp_path / "words")
    for processes in (1, 2):
        prepare_corpus(path, tokenizer, tmp_path / f"c{processes}", shard_characters=2000, processes=processes)
    one, two = contents(tmp_path / "c1"), contents(tmp_path / "c2")
    assert one == two
    assert len(one) > 4 * 5


SCRIPT = """
import sys, time
from pathlib import Path
from thrice.data import preparing
from thrice.data.corpus import prepare_corpus
from thrice.data.tokenizer import Tokenizer

if __name__ == "__main__":
    source, words, folder, pause, processes = sys.argv[1:]
    write = preparing.Maker.write
    def slow(self, work):
        time.sleep(float(pause))
        return write(self, work)
    preparing.Maker.write = slow
    prepare_corpus(source, Tokenizer.from_folder(words), folder, shard_characters=2000, processes=int(processes))
"""


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_preparation_goes_on_and_keeps_finished_shards(tmp_path: Path, processes: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text_of(numbered(120)), encoding="utf-8")
    tokenizer = word_tokenizer(tmp_path / "words")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    whole = prepare_corpus(path, tokenizer, tmp_path / "whole", shard_characters=2000)
    folder = tmp_path / "killed"
    pause = 0.3 if processes == 1 else 0
    arguments = [str(path), str(tmp_path / "words"), str(folder), str(pause), str(processes)]
    for _ in range(2):
        before = set(folder.glob("shard-*.json"))
        process = subprocess.Popen([sys.executable, str(tmp_path / "script.py"), *arguments])
        until(lambda known=before: bool(set(folder.glob("shard-*.json")) - known))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        workers = children.read_text(encoding="ascii").split() if children.exists() else []
        assert processes == 1 or len(workers) >= 2 or not children.exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda those=workers: not any(_lives(Path(f"/proc/{pid}")) for pid in those))
    until(lambda: not any(_alive(path) for path in folder.glob(".*.partial")))
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("shard-*.npy")}
    records = [path.name.partition(".")[0] for path in folder.glob("shard-*.json")]
    assert processes == 2 or 2 <= len(records) < whole.num_shards
    (folder / ".shard-00007.ids.npy.999999999.partial").write_bytes(b"half")
    corpus = prepare_corpus(path, tokenizer, folder, shard_characters=2000)
    assert contents(folder) == contents(tmp_path / "whole")
    assert corpus.fingerprint == whole.fingerprint
    for path, changed in finished.items():
        if path.name.partition(".")[0] in records:
            assert path.stat().st_mtime_ns == changed


def _lives(process: Path) -> bool:
    """Whether a process runs, and does not only wait to be buried."""
    try:
        return "State:\tZ" not in (process / "status").read_text(encoding="ascii")
    except OSError:
        return False


def _alive(partial: Path) -> bool:
    """Whether the process that writes a half-written file still runs."""
    return _lives(Path(f"/proc/{partial.name.split('.')[-2]}"))


def test_a_killed_process_is_told_and_the_next_start_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text_of(numbered(120)), encoding="utf-8")
    tokenizer = word_tokenizer(tmp_path / "words")

    killed = []

    def kill(done: int, total: int) -> None:
        if workers := [] if killed else multiprocessing.active_children():
            killed.append(workers[0].pid)
            os.kill(workers[0].pid or 0, signal.SIGKILL)
            time.sleep(0.5)  # Python's pool may break itself on a text that is given to it while it learns of the death

    with pytest.raises(DataError, match="was killed, perhaps for memory"):
        prepare_corpus(path, tokenizer, tmp_path / "c", shard_characters=2000, processes=2, progress=kill)
    assert killed
    assert not multiprocessing.active_children()
    assert prepare_corpus(path, tokenizer, tmp_path / "c", shard_characters=2000).num_documents == 120


def test_a_bad_source_stops_the_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text_of(numbered(60)).encode() + b"\n\xff\xff\n")
    with pytest.raises(DataError, match="is not UTF-8"):
        prepare_corpus(path, word_tokenizer(tmp_path / "w"), tmp_path / "c", shard_characters=2000, processes=2)
    assert not multiprocessing.active_children()


MEMORY = """
import sys, tracemalloc
from thrice.data.corpus import prepare_corpus
from thrice.data.tokenizer import Tokenizer

tokenizer = Tokenizer.from_folder(sys.argv[1])
for source in sys.argv[2:]:
    tracemalloc.start()
    prepare_corpus(source, tokenizer, source + ".corpus", shard_characters=4000)
    print(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
"""


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    word_tokenizer(tmp_path / "words")
    paths = [tmp_path / f"{count}.txt" for count in (100, 1000)]
    for path in paths:
        path.write_text(text_of(numbered(int(path.stem))), encoding="utf-8")
    # In a process of its own, which has no garbage of other tests to collect.
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "words"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    small, big = map(int, done.stdout.split())
    # A digest that is held as a Python object takes about 100 bytes, a record of a shard 2 kB.
    assert big - small < 900 * 100 + 45 * 4000 < 2 * paths[1].stat().st_size


def test_a_second_start_finds_the_corpus_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS)
    before = {path: path.stat().st_mtime_ns for path in corpus.folder.iterdir()}
    monkeypatch.setattr("thrice.data.corpus.documents_of", lambda *_: pytest.fail("the sources were read"))
    again = prepare_corpus(
        tmp_path / "text.txt", word_tokenizer(tmp_path / "words"), corpus.folder, shard_characters=400, min_tokens=2
    )
    assert again.fingerprint == corpus.fingerprint
    assert {path: path.stat().st_mtime_ns for path in corpus.folder.iterdir()} == before


# Bad input


def again(corpus: Corpus, **other: int) -> Corpus:
    place = corpus.folder.parent
    options = {"shard_characters": 400, "min_tokens": 2} | other
    return prepare_corpus(place / "text.txt", word_tokenizer(place / "words"), corpus.folder, **options)


def test_sources_without_documents_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\nno\n\n \n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.txt: no documents to train on; left out: .*1 too short"):
        prepare_corpus(tmp_path / "a.txt", word_tokenizer(tmp_path / "words"), tmp_path / "corpus")
    with pytest.raises(DataError, match="holds no corpus; prepare one"):
        Corpus.open(tmp_path / "corpus")
    with pytest.raises(DataError, match="holds no corpus; prepare one"):
        Corpus.open(tmp_path)


def test_a_vocabulary_without_a_mask_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("He sat.\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"without \[MASK\]"):
        prepare_corpus(tmp_path / "a.txt", word_tokenizer(tmp_path / "words", mask=False), tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()


def test_numbers_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shard_characters is 0"):
        prepare_corpus(tmp_path / "a.txt", word_tokenizer(tmp_path), tmp_path / "c", shard_characters=0)


def test_a_corpus_of_another_tokenizer_is_refused(tmp_path: Path, minilm: Path) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS)
    other = Tokenizer.from_folder(minilm)
    with pytest.raises(DataError, match=r"made with another tokenizer: its vocabulary has .* the one given 30522"):
        Corpus.open(corpus.folder, tokenizer=other)
    with pytest.raises(DataError, match="holds a corpus with another tokenizer"):
        prepare_corpus(tmp_path / "text.txt", other, corpus.folder, shard_characters=400, min_tokens=2)
    Corpus.open(corpus.folder, tokenizer=word_tokenizer(tmp_path / "words"))


def test_a_folder_with_another_corpus_is_left_alone(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS)
    with pytest.raises(DataError, match="with other settings"):
        again(corpus, min_tokens=3)
    with open(tmp_path / "text.txt", "a", encoding="utf-8") as file:
        file.write("\nOne more of them.\n")
    with pytest.raises(DataError, match="with other sources"):
        again(corpus)
    Corpus.open(corpus.folder).verify()


def test_a_source_of_another_date_is_read_again_and_its_text_compared(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS)
    source = tmp_path / "text.txt"
    os.utime(source, (1, 1))
    assert again(corpus).fingerprint == corpus.fingerprint
    source.write_text(source.read_text(encoding="utf-8").replace("sat", "ran"), encoding="utf-8")
    with pytest.raises(DataError, match="with another text: its sources were changed"):
        again(corpus)


SET = "somebody/texts@train"


def of_hub_set(place: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """Give the corpus of a hub data set of these texts."""
    made = datasets.Dataset.from_dict({"text": texts})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: made)
    return prepare_corpus(SET, word_tokenizer(place / "words"), place / "corpus", shard_characters=40, min_tokens=2)


TEXTS = [f"He sat on {number} of them." for number in range(9)]


def test_a_hub_set_that_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = of_hub_set(tmp_path, TEXTS, monkeypatch)
    (source,) = corpus.facts["sources"]
    assert (source["name"], source["bytes"], source["changed_ns"], source["rows"]) == (SET, None, None, len(TEXTS))
    monkeypatch.setattr("thrice.data.corpus.documents_of", lambda *_: pytest.fail("the set was read"))
    assert of_hub_set(tmp_path, TEXTS, monkeypatch).facts == corpus.facts


def test_a_changed_hub_set_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = of_hub_set(tmp_path, TEXTS, monkeypatch)
    with pytest.raises(DataError, match="with another text: its sources were changed"):
        of_hub_set(tmp_path, [text.replace("sat", "ran") for text in TEXTS], monkeypatch)
    with pytest.raises(DataError, match="with other sources"):
        of_hub_set(tmp_path, TEXTS[:-1], monkeypatch)
    assert Corpus.open(corpus.folder).facts == corpus.facts


@pytest.mark.parametrize("changed", [False, True])
def test_a_corpus_of_a_hub_set_that_knows_nothing_of_it_is_compared_with_its_text(
    changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = of_hub_set(tmp_path, TEXTS, monkeypatch)
    path = corpus.folder / "corpus.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["sources"] = [{"name": SET, "bytes": None, "changed_ns": None}]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert Corpus.open(corpus.folder).fingerprint == corpus.fingerprint
    if changed:
        with pytest.raises(DataError, match="with more text: its sources were cut"):
            of_hub_set(tmp_path, TEXTS[:2], monkeypatch)
    else:
        assert of_hub_set(tmp_path, TEXTS, monkeypatch).facts == corpus.facts


def test_what_is_written_of_a_file_is_what_it_always_was(tmp_path: Path) -> None:
    (source,) = corpus_of(tmp_path, DOCUMENTS).facts["sources"]
    assert source.keys() == {"name", "bytes", "changed_ns"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_file_is_named_and_made_again(tmp_path: Path, kind: str) -> None:
    corpus = corpus_of(tmp_path, numbered(40))
    path = shard_path(corpus.folder, 1, kind)
    whole = contents(corpus.folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=rf"{path.name} is cut short: it has \d+ bytes, expected \d+"):
        Corpus.open(corpus.folder)
    assert again(corpus).num_documents == 40
    assert contents(corpus.folder) == whole
    path.unlink()
    with pytest.raises(DataError, match=rf"{path.name} is not there"):
        Corpus.open(corpus.folder)


@pytest.mark.parametrize("kind", KINDS)
def test_any_changed_byte_is_found_and_its_file_named(tmp_path: Path, kind: str) -> None:
    corpus = corpus_of(tmp_path, numbered(40))
    path = shard_path(corpus.folder, 2, kind)
    data = path.read_bytes()
    for place in (7, 20, len(data) - 8, len(data) - 1):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DataError, match=f"{path.name} is damaged"):
            Corpus.open(corpus.folder).verify()
    path.write_bytes(data)
    Corpus.open(corpus.folder).verify()


@pytest.mark.parametrize("borders", [[0, 5, 5], [0, 9, 3], [1, 3, 9], [0, 3, 8]])
def test_borders_that_do_not_rise_to_the_end_are_found_at_once(tmp_path: Path, borders: list[int]) -> None:
    corpus = corpus_of(tmp_path, [["a b c. D e f g h."]])
    path = shard_path(corpus.folder, 0, "sentences")
    assert np.load(path).tolist() == [0, 4, 10]
    np.save(path, np.array(borders))
    with pytest.raises(DataError, match=r"sentences\.npy is damaged: its borders should rise from 0 to 10 tokens"):
        Corpus.open(corpus.folder)


def test_a_file_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [["a b c. D e f g h."]])
    path = shard_path(corpus.folder, 0, "documents")
    size = path.stat().st_size
    np.save(path, np.array([None], dtype=object), allow_pickle=True)
    path.write_bytes(path.read_bytes().ljust(size, b"\0")[:size])
    with pytest.raises(DataError, match="is damaged"):
        Corpus.open(corpus.folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("shards"), "shards is missing"),
        (lambda content: content["counts"].update(tokens=3), "counts 3 tokens, its shards hold"),
        (lambda content: content["tokenizer"]["special_ids"].pop("mask"), "tokenizer.special_ids.mask is missing"),
        (lambda content: content["shards"][0]["files"].pop("ids"), "files sentences, documents, words, expected"),
        (lambda content: content["shards"][0].update(tokens="x"), r"shards\[0\].tokens is 'x'"),
        (lambda content: content.update(format=9), "written by a newer thrice"),
    ],
)
def test_a_damaged_table_is_told(tmp_path: Path, change: Callable[[dict], object], message: str) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS)
    path = corpus.folder / "corpus.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        Corpus.open(corpus.folder)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"corpus\.json cannot be read"):
        Corpus.open(corpus.folder)


def test_records_of_other_settings_are_not_taken_over(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS)
    words, half = word_tokenizer(tmp_path / "words"), tmp_path / "half"
    # The same text in one shard, of which fewer documents are long enough.
    other = prepare_corpus(tmp_path / "text.txt", words, half, shard_characters=400, min_tokens=12)
    assert 0 < other.num_documents < corpus.num_documents
    record = json.loads((half / "corpus.json").read_text(encoding="utf-8"))["shards"][0]
    (half / "corpus.json").unlink()
    for name, content in (("0", {"settings": "other", "record": record}), ("1", {}), ("x", {})):
        (half / f"shard-0000{name}.json").write_text(json.dumps(content), encoding="utf-8")
    (half / "shard-00007.ids.npy").write_bytes(b"of a longer corpus")
    prepare_corpus(tmp_path / "text.txt", words, half, shard_characters=400, min_tokens=2)
    assert contents(half) == contents(corpus.folder)


def test_the_real_articles_and_novels_become_one_corpus(tmp_path: Path, shared_data: Path) -> None:
    (tmp_path / "words").mkdir()
    vocabulary = (shared_data / "vocabs" / "bert-base-chinese-vocab.txt").read_bytes()
    (tmp_path / "words" / "vocab.txt").write_bytes(vocabulary)
    tokenizer = Tokenizer.from_folder(tmp_path / "words")
    sources = [shared_data / name / "dev.txt.gz" for name in ("zh_tech_articles", "zh_novels")]
    corpus = prepare_corpus(sources, tokenizer, tmp_path / "corpus", shard_characters=100_000)
    assert corpus.num_documents == 60 + 59
    assert corpus.facts["skipped"] == {"duplicate": 0, "empty": 0, "too_short": 0}
    assert 0.8 < corpus.num_tokens / corpus.facts["counts"]["characters"] < 1
    unknown = sum(int((corpus.shard(number).ids == 100).sum()) for number in range(corpus.num_shards))
    assert unknown < 0.005 * corpus.num_tokens


def test_borders_whose_differences_overflow_are_refused(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, DOCUMENTS)
    path = corpus.folder / "shard-00000.documents.npy"
    borders = np.load(path)
    borders[1:3] = (2**62 + 2**61, -(2**62) - 2**61)
    np.save(path, borders)
    with pytest.raises(DataError, match="its borders should rise"):
        Corpus.open(corpus.folder)
