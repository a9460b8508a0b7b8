"""The results of a capacity measurement as records. Sizes are in bytes, latencies in milliseconds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from plansmith.errors import PlansmithError, ServedCheckError
from plansmith.records.model import Device, Record

Ending = Literal["share", "max-copies", "disk", "load-failed", "answer-failed", "server-lost", "interrupted"]
"""Why no further copy was loaded: the share of memory is used, the number is reached, the disk is full, a copy does not
load or does not answer, the server ended or cannot be asked, or somebody interrupted."""


class Spread(Record):
    """Median, least and largest of some values; zeros of none."""

    count: int = 0
    median: float = 0
    min: float = 0
    max: float = 0


class MemoryPool(Record):
    """Memory that copies use.

    Attributes:
        name: "host", or a GPU such as "gpu 0".
        total_bytes: all of it, or what was stated with `--memory`.
        used_bytes: of it now.
        server_bytes: that the server holds; None where that is unknown.
        is_stated: whether its size was stated.
    """

    name: str
    total_bytes: int
    used_bytes: int
    server_bytes: int | None = None
    is_stated: bool = False

    def free_bytes(self, share: float) -> int:
        """What may still be used of a share of it."""
        return int(share * self.total_bytes) - self.used_bytes


class LoadedCopy(Record):
    """A copy that was loaded and has answered.

    Attributes:
        number: from 1.
        release: of which it is a copy, MODEL@VERSION.
        name: on the server.
        load_seconds: until it was loaded.
        first_ms: until its first answer.
        memory_bytes: by which each memory grew with it, by the name of the memory.
    """

    number: int
    release: str
    name: str
    load_seconds: float
    first_ms: float
    memory_bytes: dict[str, int]


class Eviction(Record):
    """Random invocations of more models than fit, of which the least recently used is unloaded for another.

    Attributes:
        models: that were invoked.
        slots: that were loaded at a time at most.
        popularity: of the models, such as zipf:1.
        seed: of their order.
        hits: invocations of a model that was loaded.
        misses: of one that was not.
        evictions: unloads for another model.
        hit_ms: until the answer.
        miss_ms: likewise, with the unloads and the load.
        errors: invocations without an answer.
        first_error: the first of them.
    """

    models: int
    slots: int
    popularity: str
    seed: int
    hits: int
    misses: int
    evictions: int
    hit_ms: Spread = Spread()
    miss_ms: Spread = Spread()
    errors: int = 0
    first_error: str = ""


class CapacityReport(Record):
    """A measurement.

    Attributes:
        releases: that were copied in turn, as MODEL@VERSION.
        server: in words.
        device: on which the copies run.
        share: of the memory that may be used.
        file_bytes: of one copy of each release.
        memory_before: with no copy loaded.
        memory_full: with all copies loaded.
        memory_after: when all were unloaded; empty where that was not seen.
        copies: in the order in which they were loaded.
        ending: why there is no further one.
        reason: the same in words.
        answers_ms: of all copies, once all were loaded.
        failed_answers: copies that did not answer then, and why.
        unload_seconds: of each copy.
        eviction: random invocations; None where there were none.
        still_loaded: copies that a running server did not unload.
        seconds: duration of everything.
        notes: what a reader has to know to read the figures correctly.
    """

    releases: tuple[str, ...]
    server: str
    device: Device
    share: float
    file_bytes: tuple[int, ...]
    memory_before: tuple[MemoryPool, ...] = ()
    memory_full: tuple[MemoryPool, ...] = ()
    memory_after: tuple[MemoryPool, ...] = ()
    copies: tuple[LoadedCopy, ...] = ()
    ending: Ending = "interrupted"
    reason: str = ""
    answers_ms: Spread = Spread()
    failed_answers: dict[str, str] = Field(default_factory=dict)
    unload_seconds: Spread = Spread()
    eviction: Eviction | None = None
    still_loaded: tuple[str, ...] = ()
    seconds: float = 0
    notes: tuple[str, ...] = ()

    @property
    def load_seconds(self) -> Spread:
        """Of all copies."""
        return spread_of([copy.load_seconds for copy in self.copies])

    def bytes_per_copy(self, pool: str) -> int | None:
        """By how much a memory grows with a copy: the median, without the first copy, which brings its backend."""
        growth = [copy.memory_bytes[pool] for copy in self.copies if pool in copy.memory_bytes]
        return round(statistics.median(growth[1:] or growth)) if growth else None

    def estimated_copies(self) -> int | None:
        """How many would fit by the memory per copy, where something else ended the loading; None if it is unknown."""
        if self.ending == "share":
            return None
        more = []
        for pool in self.memory_full:
            per_copy = self.bytes_per_copy(pool.name)
            if per_copy is not None and per_copy > 0:
                more.append(max(0, pool.free_bytes(self.share)) // per_copy)
        return len(self.copies) + min(more) if more and len(self.copies) > 1 else None

    def failure(self) -> PlansmithError | None:
        """What is wrong with the release or the server, beyond that memory has an end; None where nothing is."""
        if self.still_loaded:
            return ServedCheckError(
                f"{self.server} did not unload {', '.join(self.still_loaded)}",
                remedy="unload them: POST v2/repository/models/NAME/unload",
            )
        if self.ending == "answer-failed":
            return ServedCheckError(self.reason, remedy="see that the release passes its gate: plansmith verify")
        if not self.copies and self.ending in {"load-failed", "server-lost"}:
            return ServedCheckError(f"not one copy loads: {self.reason}", remedy="read the log")
        return None


def spread_of(values: Sequence[float]) -> Spread:
    """Median, least and largest."""
    if not values:
        return Spread()
    return Spread(count=len(values), median=round(statistics.median(values), 3), min=min(values), max=max(values))
