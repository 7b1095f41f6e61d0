"""Tokenised documents on disk: a folder of memory-mapped shards, prepared once and read by every run.

corpus.json      format, tokenizer, counts, sources, and the table of shards; written last
shard-*.npy      the shards, see `data.shards`
shard-*.json     while the corpus is prepared: what is known of each finished shard
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from thrice.data.corpus_file import FORMAT, SKIPPED, SourceRecord, frame_of, named_counts, read_facts, record_of
from thrice.data.documents import Source, documents_of, find_sources
from thrice.data.preparing import Preparation, Work, digest_of, in_processes, refuse_foreign
from thrice.data.seen import Seen
from thrice.data.shards import Shard, ShardRecord, is_whole, open_shard, verify_shard
from thrice.data.tokenizer import Frame, Tokenizer
from thrice.errors import ConfigError, DataError
from thrice.files import clear_partials, read_json, write_json
from thrice.locks import locked
from thrice.ray_cluster import engine_problems
from thrice.schema import misfits

_OTHER = {"settings": "other settings", "sources": "other sources"}
SPECIAL = ("cls", "sep", "unk", "mask", "pad")
"""Tokens whose ids a corpus knows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A prepared corpus; its shards are mapped when they are asked for."""

    folder: Path
    """Where it lies."""
    facts: dict[str, Any]
    """The content of corpus.json, its table of shards aside: counts, skipped, sources, settings, tokenizer."""
    shards: tuple[ShardRecord, ...]
    """The table."""

    @classmethod
    def open(cls, folder: str | Path, *, tokenizer: Tokenizer | None = None) -> Corpus:
        """Open a corpus and check every size, length, offset and border of its files.

        The checksums of a shard are compared when it is first read, see `shard`, or all at once by `verify`.
        tokenizer: that the corpus should have been made with.
        Raises DataError that says which file is absent, cut or damaged, or in what the tokenizers differ.
        """
        folder = Path(folder)
        corpus = cls._of(folder, read_facts(folder))
        for number, record in enumerate(corpus.shards):
            open_shard(folder, number, record, vocab_size=corpus.vocab_size)
        if tokenizer is not None:
            corpus.check_tokenizer(tokenizer)
        return corpus

    @classmethod
    def _of(cls, folder: Path, content: dict[str, Any]) -> Corpus:
        shards = tuple(record_of(record) for record in content["shards"])
        facts = {key: value for key, value in content.items() if key not in ("format", "shards")}
        for name in ("documents", "sentences", "tokens"):
            total = sum(getattr(record, name) for record in shards)
            if facts["counts"][name] != total:
                raise DataError(
                    f"{folder / 'corpus.json'} is damaged: it counts {facts['counts'][name]} {name}, its shards hold "
                    f"{total}"
                )
        return cls(folder=folder, facts=facts, shards=shards)

    @property
    def num_tokens(self) -> int:
        """Tokens, special ones aside."""
        return int(self.facts["counts"]["tokens"])

    @property
    def num_documents(self) -> int:
        """Documents that were kept."""
        return int(self.facts["counts"]["documents"])

    @property
    def num_shards(self) -> int:
        """Shards, some of which may hold nothing."""
        return len(self.shards)

    @property
    def vocab_size(self) -> int:
        """Largest id of the tokenizer + 1."""
        return int(self.facts["tokenizer"]["vocab_size"])

    @property
    def tokenizer_fingerprint(self) -> str:
        """`Tokenizer.fingerprint` of the one that made the corpus."""
        return str(self.facts["tokenizer"]["fingerprint"])

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of the special tokens: "cls", "sep", "unk", "mask", and "pad" where there is one."""
        return dict(self.facts["tokenizer"]["special_ids"])

    @property
    def single(self) -> Frame:
        """Special tokens around one text."""
        return frame_of(self.facts["tokenizer"]["single"])

    @property
    def pair(self) -> Frame:
        """Special tokens around a pair of texts."""
        return frame_of(self.facts["tokenizer"]["pair"])

    @property
    def second_type(self) -> int:
        """token_type_id of the second text of a pair."""
        return int(self.facts["tokenizer"]["second_type"])

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of the tokens and borders, whatever the folder."""
        digest = hashlib.sha256(self.tokenizer_fingerprint.encode())
        for record in self.shards:
            digest.update("".join(record.files[kind].sha256 for kind in sorted(record.files)).encode())
        return digest.hexdigest()

    def shard(self, number: int, *, verify: bool = False) -> Shard:
        """Map one shard; verify: compare its checksums first, which reads it once. Raises DataError if damaged."""
        if verify:
            verify_shard(self.folder, number, self.shards[number])
        return open_shard(self.folder, number, self.shards[number], vocab_size=self.vocab_size)

    def verify(self) -> None:
        """Compare the checksums of all files; raises DataError that names the first which differs."""
        for number, record in enumerate(self.shards):
            verify_shard(self.folder, number, record)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise DataError unless the corpus was made with this tokenizer."""
        if tokenizer.fingerprint != self.tokenizer_fingerprint:
            raise DataError(
                f"{self.folder} was made with another tokenizer: its vocabulary has {self.vocab_size} tokens and "
                f"fingerprint {self.tokenizer_fingerprint[:12]}, the one given {tokenizer.vocab_size} and "
                f"{tokenizer.fingerprint[:12]}. - prepare the corpus with this one, in another folder"
            )
        told, known = self.facts["tokenizer"], _tokenizer_facts(tokenizer)
        if told != known:
            differing = ", ".join(key for key in known if told[key] != known[key])
            raise DataError(
                f"{self.folder / 'corpus.json'} is damaged: {differing} of its tokenizer are not those of the "
                "tokenizer. - copy it again, or prepare the corpus again"
            )


def prepare_corpus(
    sources: Sequence[str | Path] | str | Path,
    tokenizer: Tokenizer,
    folder: str | Path,
    *,
    column: str | None = None,
    shard_characters: int = 2_000_000,
    min_tokens: int = 8,
    processes: int | None = None,
    engine: str = "local",
    address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Corpus:
    """Tokenise the documents of all sources into a corpus; what is finished already is kept.

    sources, column: see `documents.find_sources`; all are read in turn, so that every shard has a share of each.
    shard_characters: of text after which a shard is full; the documents of one shard are shuffled together in training.
    min_tokens: documents with fewer are left out and counted, as are empty ones and exact copies of an earlier one.
    processes: that tokenise; one where None, or with Ray as many as there are CPUs. engine: "local", or "ray", to whose
    address see `ray_preparing.in_ray`. What is written depends on none of them, nor does a second start on the first.
    progress: see `documents.documents_of`.
    Killed at any moment and called again, it reads the text again and tokenises the shards that are not finished yet.
    In a folder with a corpus of the same sources and settings it makes files again that are missing or cut.
    Memory: the texts of 2 * processes + 1 shards (with Ray, 2 * CPUs + 1), the longest document, and 16 bytes a
    document to know copies by (40 while they are sorted).
    Raises DataError for sources without documents, a vocabulary without [MASK], or a folder with another corpus.
    """
    folder = Path(folder)
    given = {"shard_characters": shard_characters, "min_tokens": min_tokens, "processes": processes}
    problems = [
        f"{name} is {value}, it must be at least 1" for name, value in given.items() if value is not None and value < 1
    ]
    problems += engine_problems(engine, {"--address": address is not None})
    if problems:
        raise ConfigError("; ".join(problems))
    settings = {"shard_characters": shard_characters, "min_tokens": min_tokens}
    head = {"format": FORMAT, "tokenizer": _tokenizer_facts(tokenizer), "settings": settings}
    found = find_sources(sources, column=column)
    refuse_foreign(folder)
    with locked(folder):
        clear_partials(folder)
        finished = _finished(folder, head, found)
        if isinstance(finished, Corpus):
            return finished
        write: Writer
        if engine == "ray":
            from thrice.data.ray_preparing import in_ray

            write = partial(in_ray, characters=shard_characters, processes=processes, address=address)
        else:
            write = partial(in_processes, processes=processes or 1)
        return _prepared(folder, head, found, tokenizer, finished, write, progress)


# Preparing

Writer = Callable[[Preparation, Iterator[Work]], Generator[tuple[int, ShardRecord], None, None]]
"""Writes the shards of works."""


def _prepared(
    folder: Path,
    head: dict[str, Any],
    sources: list[Source],
    tokenizer: Tokenizer,
    known: dict[int, ShardRecord],
    write: Writer,
    progress: Callable[[int, int], None] | None,
) -> Corpus:
    settings = head["settings"]
    preparation = Preparation(
        folder=folder,
        settings=_key(head),
        pipeline=tokenizer.backend.to_str(),
        vocab_size=tokenizer.vocab_size,
        min_tokens=settings["min_tokens"],
    )
    skipped = dict.fromkeys(SKIPPED, 0)
    records: dict[int, ShardRecord] = {}
    # Of a finished corpus a file may have to be made again; its text must not be another.
    repairing = (folder / "corpus.json").exists()

    def missing() -> Iterator[Work]:
        for work in _works(documents_of(sources, progress), settings["shard_characters"], skipped):
            record = known.get(work.number)
            if record is not None and record.text == work.text and is_whole(folder, work.number, record):
                records[work.number] = record
            elif repairing and (record is None or record.text != work.text):
                raise _other_corpus(folder, "another text: its sources were changed")
            else:
                yield work

    with closing(write(preparation, missing())) as written:
        for number, record in written:
            records[number] = record
    if repairing and len(records) < len(known):
        raise _other_corpus(folder, "more text: its sources were cut")
    shards = [records[number] for number in range(len(records))]
    skipped["too_short"] = sum(record.too_short for record in shards)
    counts = {
        name: sum(getattr(record, name) for record in shards)
        for name in ("documents", "sentences", "tokens", "characters")
    }
    if not counts["documents"]:
        left = named_counts(skipped)
        _clear_away(folder, len(records) if repairing else 0)
        raise DataError(
            f"{', '.join(source.name for source in sources)}: no documents to train on"
            + (f"; left out: {left}" if left else "")
        )
    content = head | {
        "counts": counts,
        "skipped": skipped,
        "sources": [_stamp(source) for source in sources],
        "shards": [dataclasses.asdict(record) for record in shards],
    }
    write_json(folder / "corpus.json", content)
    _clear_away(folder, len(shards))
    return Corpus.open(folder)


def _works(documents: Iterator[str], characters: int, skipped: dict[str, int]) -> Iterator[Work]:
    """Give the documents without empty ones and copies, a shard's worth at a time; what is left out is counted."""
    seen = Seen()
    held: list[str] = []
    size = 0
    numbers = itertools.count()

    def full() -> Work:
        return Work(number=next(numbers), documents=tuple(held), text=digest_of(held))

    for document in documents:
        if not document:
            skipped["empty"] += 1
        elif seen.add(document):
            skipped["duplicate"] += 1
        else:
            held.append(document)
            size += len(document)
            if size >= characters:
                yield full()
                held, size = [], 0
    if held:
        yield full()


def _finished(folder: Path, head: dict[str, Any], sources: list[Source]) -> Corpus | dict[int, ShardRecord]:
    """Give the corpus of a folder if it is this one, or else the shards that are known, by number.

    Raises DataError where the folder holds another corpus.
    """
    if not (folder / "corpus.json").exists():
        return dict(_records(folder, _key(head)))
    content = read_facts(folder)
    differing = [key for key in head if content[key] != head[key]]
    stamps = [_stamp(source) for source in sources]
    pairs = list(itertools.zip_longest(content["sources"], stamps))
    if not all(then and now and _is_of(then, now) for then, now in pairs):
        differing.append("sources")
    if differing:
        raise _other_corpus(folder, " and ".join(_OTHER.get(key, f"another {key}") for key in differing))
    shards = [record_of(record) for record in content["shards"]]
    whole = all(is_whole(folder, number, record) for number, record in enumerate(shards))
    if whole and all(then.get(key) == now.get(key) for then, now in pairs for key in ("changed_ns", "fingerprint")):
        return Corpus.open(folder)
    return dict(enumerate(shards))


def _other_corpus(folder: Path, what: str) -> DataError:
    return DataError(f"{folder} holds a corpus with {what}. - choose another folder, or remove this one")


def _stamp(source: Source) -> dict[str, Any]:
    size, changed = source.stamp or (None, None)
    rows, fingerprint = source.edition or (None, None)
    record = SourceRecord(name=source.name, bytes=size, changed_ns=changed, rows=rows, fingerprint=fingerprint)
    absent = ("rows", "fingerprint") if source.edition is None else ()
    return {key: value for key, value in dataclasses.asdict(record).items() if key not in absent}


def _is_of(then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether two records may be of one source: its folder and date aside, which a copy need not keep."""
    if then["bytes"] != now["bytes"]:
        return False
    if then["bytes"] is not None:
        return Path(then["name"]).name == Path(now["name"]).name
    # Older corpora do not know the rows of a hub data set.
    return bool(then["name"] == now["name"] and then.get("rows") in (None, now.get("rows")))


def _records(folder: Path, key: str) -> Iterator[tuple[int, ShardRecord]]:
    """Give the records of finished shards that were made with these settings."""
    for path in folder.glob("shard-*.json"):
        try:
            content = read_json(path)
            number = int(path.stem.removeprefix("shard-"))
        except (OSError, ValueError):
            continue
        if not misfits(content, {"settings": str, "record": ShardRecord}) and content["settings"] == key:
            yield number, record_of(content["record"])


def _clear_away(folder: Path, shards: int) -> None:
    """Remove the records of single shards, halves, and the shards of a corpus that was begun here and had more."""
    for path in folder.glob("shard-*.*"):
        number = path.name.removeprefix("shard-").partition(".")[0]
        if path.suffix == ".json" or (path.suffix == ".npy" and number.isdecimal() and int(number) >= shards):
            path.unlink(missing_ok=True)
    for path in folder.glob(".shard-*.partial"):  # of a process that was killed on another machine
        path.unlink(missing_ok=True)


def _tokenizer_facts(tokenizer: Tokenizer) -> dict[str, Any]:
    """Give what training must know of a tokenizer; raises DataError where it cannot mask."""
    if tokenizer.mask_token_id is None:
        raise DataError(
            f"a vocabulary of {tokenizer.vocab_size} tokens without [MASK]: nothing could be hidden in training. - "
            "choose another, or train one with thrice vocabulary"
        )
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in SPECIAL}
    return {
        "fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "special_ids": {name: index for name, index in ids.items() if index is not None},
        "single": {name: list(ids) for name, ids in dataclasses.asdict(tokenizer.single).items()},
        "pair": {name: list(ids) for name, ids in dataclasses.asdict(tokenizer.pair).items()},
        "second_type": tokenizer.second_type,
    }


def _key(head: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()
