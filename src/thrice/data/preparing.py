"""The work on one shard of a corpus: its documents cut into sentences, tokenised, written; in one process or many."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from thrice.data.sentences import sentence_spans
from thrice.data.shards import Shard, ShardRecord, dtype_for, write_shard
from thrice.data.words import WordStarts
from thrice.errors import DataError
from thrice.files import write_json

BLOCK = 1024
"""Sentences tokenised at once."""
_OWN = re.compile(r"\.|shard-|corpus\.json")
"""How the names in a corpus begin; hidden files are locks and halves."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The text of one shard."""

    number: int
    """Of the shard."""
    documents: tuple[str, ...]
    """In order; each is its paragraphs, one a line."""
    text: str
    """blake2b of the documents, see `digest_of`."""


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What a process needs to make shards."""

    folder: Path
    """Where they are written."""
    settings: str
    """Hash of all settings on which they depend, written beside each."""
    pipeline: str
    """The tokenizer, as its library writes it."""
    vocab_size: int
    """Largest id + 1."""
    min_tokens: int
    """Documents with fewer tokens are left out."""


def refuse_foreign(folder: Path) -> None:
    """Raise DataError where a corpus cannot be written: under a file's name, or among other things."""
    file = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
    if file is not None:
        raise DataError(f"{file} is a file, expected the name of a folder")
    foreign = [path.name for path in folder.iterdir() if not _OWN.match(path.name)] if folder.is_dir() else []
    if foreign and not (folder / "corpus.json").exists():
        raise DataError(f"{folder} holds other things than a corpus, such as {min(foreign)}; name a new folder")


def digest_of(documents: Iterable[str]) -> str:
    """Give blake2b (hex, 32 digits) of documents and the borders between them."""
    digest = hashlib.blake2b(digest_size=16)
    for document in documents:
        content = document.encode("utf-8")
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def record_path(folder: Path, number: int) -> Path:
    """Give where the record of a finished shard lies until the corpus is finished."""
    return folder / f"shard-{number:05d}.json"


class Maker:
    """Makes shards of text and writes them."""

    def __init__(self, preparation: Preparation) -> None:
        import tokenizers

        self.preparation = preparation
        # From its text in every process, this one too: unigram scores lose a last digit on the way.
        self.backend = tokenizers.Tokenizer.from_str(preparation.pipeline)
        self.word_starts = WordStarts(self.backend)
        # Inside a text a byte-level vocabulary has other tokens for words than at its beginning.
        self.joint = " " if '"ByteLevel"' in preparation.pipeline else ""

    def write(self, work: Work) -> ShardRecord:
        """Write the files of a shard and, last, its record."""
        shard, characters, too_short = self.tokenised(work.documents)
        record = ShardRecord(
            text=work.text,
            tokens=len(shard.ids),
            sentences=len(shard.sentences) - 1,
            documents=len(shard.documents) - 1,
            characters=characters,
            too_short=too_short,
            files=write_shard(self.preparation.folder, work.number, shard),
        )
        content = {"settings": self.preparation.settings, "record": dataclasses.asdict(record)}
        write_json(record_path(self.preparation.folder, work.number), content)
        return record

    def tokenised(self, documents: Iterable[str]) -> tuple[Shard, int, int]:
        """Give the shard of some documents, its characters, and the number of documents that were too short."""
        sentences: list[str] = []
        owners: list[int] = []
        count = 0
        for count, document in enumerate(documents, start=1):
            for paragraph in document.split("\n"):
                for start, stop in sentence_spans(paragraph):
                    inside = start > 0 and paragraph[start - 1].isspace()
                    sentences.append((self.joint if inside else "") + paragraph[start:stop])
                    owners.append(count - 1)
        pieces, lengths = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for start in range(0, len(sentences), BLOCK):
            found = self.backend.encode_batch_fast(sentences[start : start + BLOCK], add_special_tokens=False)
            ids = [encoding.ids for encoding in found]
            lengths.append(np.array([len(one) for one in ids], dtype=np.int64))
            pieces.append(np.fromiter(itertools.chain.from_iterable(ids), np.int64, int(lengths[-1].sum())))
        flat, sizes = np.concatenate(pieces), np.concatenate(lengths)
        owner = np.array(owners, dtype=np.int64)
        tokens = np.bincount(owner, weights=sizes, minlength=count).astype(np.int64)
        long_enough = tokens >= self.preparation.min_tokens
        kept = long_enough[owner] & (sizes > 0)
        characters = sum(len(sentence.strip()) for sentence, good in zip(sentences, kept, strict=True) if good)
        return (
            self._shard(flat[np.repeat(kept, sizes)], sizes[kept], owner[kept]),
            characters,
            int((~long_enough).sum()),
        )

    def _shard(self, ids: np.ndarray, sizes: np.ndarray, owner: np.ndarray) -> Shard:
        borders = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        per_document = np.unique(owner, return_counts=True)[1]
        return Shard(
            ids=ids.astype(dtype_for(self.preparation.vocab_size)),
            sentences=borders,
            documents=np.concatenate([[0], np.cumsum(per_document)]).astype(np.int64),
            words=np.packbits(self.word_starts.find(ids, borders[:-1])),
        )


def in_processes(
    preparation: Preparation, works: Iterator[Work], *, processes: int
) -> Generator[tuple[int, ShardRecord], None, None]:
    """Write the shard of every work; gives (number, record) in the order of the works.

    processes: 1 works in this one, on as many threads as the tokenizer takes. Of several, each has one thread; twice as
    many texts as processes wait in memory.
    Raises DataError where a process was killed.
    """
    if processes == 1:
        maker = Maker(preparation)
        for work in works:
            yield work.number, maker.write(work)
        return
    context = multiprocessing.get_context("spawn")  # a forked process would lack the threads of the tokenizer
    pool = ProcessPoolExecutor(
        processes, mp_context=context, initializer=_become_worker, initargs=(os.getpid(), preparation)
    )
    others = multiprocessing.active_children()
    waiting: deque[tuple[int, Future[ShardRecord]]] = deque()
    try:
        for work in works:
            waiting.append((work.number, pool.submit(_write, work)))
            if len(waiting) >= 2 * processes:
                number, future = waiting.popleft()
                yield number, future.result()
        while waiting:
            number, future = waiting.popleft()
            yield number, future.result()
    except BrokenProcessPool as error:
        raise DataError(
            "a process that prepared the corpus was killed, perhaps for memory; finished shards are kept. - start "
            "again, with fewer processes"
        ) from error
    finally:
        # After an error or Ctrl-C nobody waits for shards in work; what they wrote so far is cleared by the next start.
        for process in multiprocessing.active_children() if sys.exc_info()[0] else ():
            if process not in others:
                process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


_MAKER: list[Maker] = []


def _become_worker(parent: int, preparation: Preparation) -> None:
    """Make ready to write shards, and do not outlive the process that asks for them."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and says what becomes of this process

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    _MAKER.append(Maker(preparation))


def _write(work: Work) -> ShardRecord:
    return _MAKER[0].write(work)
