"""Batches made one ahead in a thread, so that a step need not wait for its batch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from thrice.training.budget import Stage
from thrice.training.distributed import Ranks

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Fed:
    """A batch, and the place behind it."""

    batches: list[Any]
    """This process's share in parts of `micro_tokens`; of a process without one the batch's first example, which weighs
    nothing."""
    own: int
    """Examples of this process's share."""
    examples: int
    """Examples of the whole batch."""
    tokens: int
    """Real tokens of the whole batch."""
    position: dict[str, Any]
    """Place in the stream behind the batch."""


def in_parts(examples: Sequence[T], lengths: Sequence[int], most: int | None) -> list[list[T]]:
    """Give the examples in their order, parted where one more would make it more than `most` tokens; None: in one."""
    parts: list[list[T]] = []
    used = 0
    for example, length in zip(examples, lengths, strict=True):
        if not parts or (most is not None and used + length > most):
            parts.append([])
            used = 0
        parts[-1].append(example)
        used += length
    return parts


class Feed:
    """Gives the batches of a stage from a position on, the next one made while the one given is used."""

    def __init__(
        self, stage: Stage, position: dict[str, Any] | None, ranks: Ranks, *, micro_tokens: int | None
    ) -> None:
        self.wait = 0.0
        """Seconds for which the last batch was waited for."""
        self._stage, self._ranks, self._micro_tokens = stage, ranks, micro_tokens
        self._stream: Iterator[tuple[Sequence[Any], dict[str, Any]]] = stage.batches(position)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next: Future[Fed] = self._pool.submit(self._make)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def take(self) -> Fed:
        """Give the next batch; raises what making it raised."""
        started = time.perf_counter()
        fed = self._next.result()
        self.wait = time.perf_counter() - started
        self._next = self._pool.submit(self._make)
        return fed

    def _make(self) -> Fed:
        examples, position = next(self._stream)
        lengths = self._stage.lengths(examples)
        own = self._ranks.share(range(len(examples)), lengths)
        share = [examples[i] for i in own] if len(own) else [examples[0]]
        parts = in_parts(share, self._stage.lengths(share), self._micro_tokens)
        return Fed(
            batches=[self._stage.make_batch(part) for part in parts],
            own=len(own),
            examples=len(examples),
            tokens=int(sum(lengths)),
            position=position,
        )
