"""The loader of a measurement: loads copies until memory is used or a load fails, invokes them, and unloads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from plansmith.capacity.folders import DiskFull
from plansmith.capacity.plan import CapacityPlan
from plansmith.capacity.results import Ending, Eviction, LoadedCopy, MemoryPool
from plansmith.capacity.server import CopyServer
from plansmith.errors import EnvironmentFault, PlansmithError, in_one_line
from plansmith.formatting import format_bytes

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Progress:
    """What is told of a measurement under way.

    Attributes:
        activity: told what is being done, and how much of it is done, from 0 to 1, where that is known.
        copy: told of each copy once it is loaded and has answered, and of the memory then.
    """

    activity: Callable[[str, float | None], None] = lambda _text, _share: None
    copy: Callable[[LoadedCopy, Sequence[MemoryPool]], None] = lambda _copy, _pools: None


class ServerLost(Exception):
    """The server ended, or cannot be asked; the text says why."""


@dataclass
class CopyLoader:
    """Loads, invokes and unloads copies, and holds what was measured so far.

    Attributes:
        server: takes the copies.
        plan: how far.
        progress: told how it goes.
        loaded: the numbers of copies that are loaded now, the least recently used first.
        copies: that were loaded in the first place.
        ending: why there is no further one.
        reason: the same in words.
        before: memory with no copy loaded; `full` with all, `after` when all were unloaded.
        written: the numbers of copies whose files are there.
    """

    server: CopyServer
    plan: CapacityPlan
    progress: Progress
    loaded: list[int] = field(default_factory=list)
    copies: list[LoadedCopy] = field(default_factory=list)
    ending: Ending = "interrupted"
    reason: str = "it was interrupted"
    before: tuple[MemoryPool, ...] = ()
    full: tuple[MemoryPool, ...] = ()
    after: tuple[MemoryPool, ...] = ()
    answers_ms: list[float] = field(default_factory=list)
    failed_answers: dict[str, str] = field(default_factory=dict)
    unload_seconds: list[float] = field(default_factory=list)
    still_loaded: list[str] = field(default_factory=list)
    eviction: Eviction | None = None
    written: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def write(self, number: int) -> None:
        """Write the files of a copy; raises DiskFull where they do not fit."""
        self.written.add(number)
        self.server.write(number)

    def remove(self, number: int) -> None:
        """Remove the files of a copy that is not loaded."""
        self.server.remove(number)
        self.written.discard(number)

    def load(self, number: int) -> float:
        """Load a copy, whose files are written; the seconds that it took.

        Raises:
            PlansmithError: it does not load.
            ServerLost: the server ended.
        """
        began = time.monotonic()
        self._guard(lambda: self.server.load(number))
        self.loaded.append(number)
        return time.monotonic() - began

    def unload(self, number: int) -> float:
        """Unload a copy; the seconds that it took. Errors as of `load`."""
        began = time.monotonic()
        self._guard(lambda: self.server.unload(number))
        self.loaded.remove(number)
        return time.monotonic() - began

    def invoke(self, number: int) -> float:
        """Milliseconds until a loaded copy has answered; it is the most recently used then. Errors as of `load`."""
        seconds = self._guard(lambda: self.server.invoke(number))
        self.loaded.remove(number)
        self.loaded.append(number)
        return round(seconds * 1000, 1)

    def discard(self, number: int) -> None:
        """Take back a copy that does not load or answer, as far as the server lets it be."""
        try:
            self.server.unload(number)
        except PlansmithError as error:
            if number in self.loaded:
                self.notes.append(f"{self.server.name(number)} was not unloaded: {in_one_line(error.message)}")
        if number in self.loaded:
            self.loaded.remove(number)
        self.remove(number)

    def free_memory_problem(self, number: int) -> str:
        """Why the next copy would not fit into the share of memory; empty where it would.

        It is expected to take what the largest copy of its release took, without the first, which brings its backend;
        before there is one, what its files take.
        """
        release = self.server.source(number)
        for pool in self.server.meter.read():
            growth = [
                copy.memory_bytes[pool.name]
                for copy in self.copies
                if copy.release == release.release and pool.name in copy.memory_bytes
            ]
            expected = max(growth[1:] or growth) if growth else release.file_bytes * (pool.name == "host")
            if expected > pool.free_bytes(self.plan.share):
                total = format_bytes(pool.total_bytes) + (", as stated," if pool.is_stated else "")
                return (
                    f"copy {number} would take about {format_bytes(max(0, expected))}, and {pool.name} memory has"
                    f" {format_bytes(pool.used_bytes)} of {total} in use"
                )
        return ""

    def load_all(self) -> None:
        """Load copies until the next one would not fit or does not load; errors as of `load`."""
        while self.plan.max_copies is None or len(self.copies) < self.plan.max_copies:
            number = len(self.copies) + 1
            self.progress.activity(f"loading copy {number}", None)
            if problem := self.free_memory_problem(number):
                self.ending, self.reason = "share", problem
                return
            try:
                self.write(number)
            except DiskFull as error:
                self.ending, self.reason = "disk", f"the files of copy {number} do not fit: {error}"
                return
            if not self._load_next(number):
                return
        self.ending, self.reason = "max-copies", f"{len(self.copies)} copies were asked for (--max-copies)"

    def _load_next(self, number: int) -> bool:
        """Load one more copy, and have it answer; whether it did."""
        pools = {pool.name: pool for pool in self.full}
        try:
            load_seconds = self.load(number)
        except PlansmithError as error:
            self.ending, self.reason = "load-failed", f"copy {number} does not load: {in_one_line(error.message)}"
            self.discard(number)
            return False
        try:
            first_ms = self.invoke(number)
        except PlansmithError as error:
            self.ending, self.reason = "answer-failed", f"copy {number} fails to answer: {in_one_line(error.message)}"
            self.discard(number)
            return False
        self.full = self.server.meter.read()
        copy = LoadedCopy(
            number=number,
            release=self.server.source(number).release,
            name=self.server.name(number),
            load_seconds=round(load_seconds, 3),
            first_ms=first_ms,
            memory_bytes={pool.name: _held(pool) - _held(pools[pool.name]) for pool in self.full if pool.name in pools},
        )
        self.copies.append(copy)
        self.progress.copy(copy, self.full)
        return True

    def invoke_all(self) -> None:
        """Have each copy answer beside all others."""
        for copy in self.copies:
            self.progress.activity(f"invoking copy {copy.number} of {len(self.copies)}", copy.number / len(self.copies))
            try:
                self.answers_ms.append(self.invoke(copy.number))
            except PlansmithError as error:
                self.failed_answers[copy.name] = in_one_line(error.message)
        if self.failed_answers:
            name, message = next(iter(self.failed_answers.items()))
            self.notes.append(f"loading ended before: {self.reason}")
            self.ending, self.reason = "answer-failed", f"{name} fails to answer beside the others: {message}"

    def unload_all(self) -> None:
        """Unload all copies, the least recently used first; errors as of `load`."""
        for number in list(self.loaded):
            self.progress.activity(f"unloading copy {number}", None)
            try:
                self.unload_seconds.append(round(self.unload(number), 3))
            except PlansmithError as error:
                self.notes.append(f"copy {number} was not unloaded: {in_one_line(error.message)}")
        self.after = self.server.meter.read()

    def _guard(self, call: Callable[[], _Result]) -> _Result:
        """What a call returns; a server that is gone is told apart from one that refuses."""
        try:
            return call()
        except PlansmithError as error:
            death = self.server.death()
            if death is None and not isinstance(error, EnvironmentFault):
                raise
            raise ServerLost(in_one_line((death or error).message)) from error


def _held(pool: MemoryPool) -> int:
    return pool.used_bytes if pool.server_bytes is None else pool.server_bytes
