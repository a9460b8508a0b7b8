"""A capacity measurement: copies are loaded until memory is used or a load fails, all answer, and all are unloaded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

from plansmith.capacity.copies import DiskFull
from plansmith.capacity.plan import CapacityPlan
from plansmith.capacity.results import CapacityReport, Ending, LoadedCopy, MemoryPool, spread_of
from plansmith.capacity.server import CopyServer
from plansmith.errors import EnvironmentFault, PlansmithError, in_one_line
from plansmith.formatting import bytes_in_words

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
class Measurement:
    """A measurement under way: what was measured so far.

    Attributes:
        server: takes the copies.
        plan: how far.
        progress: told how it goes.
        loaded: the numbers of copies that are loaded now, the least recently used first.
        copies: that were loaded in the first place.
        ending: why there is no further one.
        reason: the same in words.
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
    notes: list[str] = field(default_factory=list)

    def run(self) -> None:
        """All of it, as far as the server lives.

        Raises:
            ServerLost: it does not any more.
        """
        self.before = self.full = self.server.meter.read()
        self._load_all()
        self._invoke_all()
        self._unload_all()

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
        self.server.remove(number)

    def free_memory_problem(self, number: int) -> str:
        """Why the next copy would not fit into the share of memory; empty where it would.

        It is expected to take what the largest copy of its release took; before there is one, what its files take.
        """
        release = self.server.source(number)
        for pool in self.server.meter.read():
            growth = [
                copy.memory_bytes[pool.name]
                for copy in self.copies
                if copy.release == release.release and pool.name in copy.memory_bytes
            ]
            expected = max(growth) if growth else release.file_bytes * (pool.name == "host")
            if expected > pool.free_bytes(self.plan.share):
                total = bytes_in_words(pool.total_bytes) + (", as stated," if pool.is_stated else "")
                return (
                    f"copy {number} would take about {bytes_in_words(max(0, expected))}, and {pool.name} memory has"
                    f" {bytes_in_words(pool.used_bytes)} of {total} in use"
                )
        return ""

    def _load_all(self) -> None:
        while self.plan.max_copies is None or len(self.copies) < self.plan.max_copies:
            number = len(self.copies) + 1
            self.progress.activity(f"loading copy {number}", None)
            if problem := self.free_memory_problem(number):
                self.ending, self.reason = "share", problem
                return
            try:
                self.server.write(number)
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

    def _invoke_all(self) -> None:
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

    def _unload_all(self) -> None:
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


def measure(opening: AbstractContextManager[CopyServer], plan: CapacityPlan, progress: Progress) -> CapacityReport:
    """Measure how many copies fit.

    A server that ends, a copy that does not load, and KeyboardInterrupt are results: the report has what was measured.
    What is loaded is unloaded in any case, as far as the server lets it be.

    Args:
        opening: gives the server.
        plan: how far memory is filled.
        progress: told how it goes.

    Raises:
        PlansmithError: there is no server, or it tells nothing of its memory.
        KeyboardInterrupt: before there was a server.
    """
    began = time.monotonic()
    measurement: Measurement | None = None
    try:
        with opening as server:
            measurement = Measurement(server, plan, progress)
            try:
                _run(measurement)
            finally:
                _release(measurement)
    except KeyboardInterrupt:  # a second one, while it ended
        if measurement is None:
            raise
    return _report(measurement, plan, time.monotonic() - began)


def _run(measurement: Measurement) -> None:
    try:
        measurement.run()
    except KeyboardInterrupt:
        if measurement.ending != "interrupted":
            measurement.notes.append(f"loading ended before: {measurement.reason}")
        measurement.ending, measurement.reason = "interrupted", "it was interrupted"
    except (ServerLost, PlansmithError) as error:
        if not measurement.before:
            raise
        message = in_one_line(error.message if isinstance(error, PlansmithError) else str(error))
        if measurement.ending != "interrupted":
            measurement.notes.append(f"loading ended before: {measurement.reason}")
        measurement.ending = "server-lost"
        measurement.reason = f"after {len(measurement.copies)} copies the server was lost: {message}"


def _release(measurement: Measurement) -> None:
    """Unload what is still loaded; of a server that cannot be asked, note what that is."""
    server = measurement.server
    names = {number: server.name(number) for number in measurement.loaded}
    try:
        for number in list(measurement.loaded) if server.death() is None and not server.is_started else ():
            measurement.progress.activity(f"unloading copy {number}", None)
            try:
                server.unload(number)
            except EnvironmentFault:
                break
            except PlansmithError:
                continue
            measurement.loaded.remove(number)
    finally:
        if not server.is_started:
            measurement.still_loaded += [names[number] for number in measurement.loaded]
        for number in range(1, len(measurement.copies) + 2):
            server.remove(number)


def _report(measurement: Measurement, plan: CapacityPlan, seconds: float) -> CapacityReport:
    server = measurement.server
    return CapacityReport(
        releases=tuple(release.release for release in server.releases),
        server=server.description,
        device=server.device,
        share=plan.share,
        file_bytes=tuple(release.file_bytes for release in server.releases),
        memory_before=measurement.before,
        memory_full=measurement.full,
        memory_after=measurement.after,
        copies=tuple(measurement.copies),
        ending=measurement.ending,
        reason=measurement.reason,
        answers_ms=spread_of(measurement.answers_ms),
        failed_answers=measurement.failed_answers,
        unload_seconds=spread_of(measurement.unload_seconds),
        still_loaded=tuple(measurement.still_loaded),
        seconds=round(seconds, 1),
        notes=(*server.notes, *measurement.notes),
    )


def _held(pool: MemoryPool) -> int:
    return pool.used_bytes if pool.server_bytes is None else pool.server_bytes
