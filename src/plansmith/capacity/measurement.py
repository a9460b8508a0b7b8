"""Capacity measurement: loads copies until memory is used up or a load fails, invokes all, and unloads all."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

from plansmith.capacity.results import CapacityPlan, CapacityReport, Ending, Eviction, LoadedCopy, MemoryPool, spread_of
from plansmith.capacity.server import CopyServer, DiskFull
from plansmith.errors import EnvironmentFault, PlansmithError, UsageError, in_one_line
from plansmith.formatting import format_bytes

_Result = TypeVar("_Result")

_ZIPF = re.compile(r"zipf(?::(\d+(?:\.\d+)?))?")


@dataclass(frozen=True)
class Progress:
    """Progress callbacks of a running measurement.

    Attributes:
        activity: told what is being done, and how much of it is done, from 0 to 1, where that is known.
        copy: told of each copy once it is loaded and has answered, and of the memory then.
    """

    activity: Callable[[str, float | None], None] = lambda _text, _share: None
    copy: Callable[[LoadedCopy, Sequence[MemoryPool]], None] = lambda _copy, _pools: None


class ServerLost(Exception):
    """Server failure: the server ended or does not respond; the message says why."""


@dataclass
class CopyLoader:
    """Copy loader: loads, invokes and unloads copies, and holds the measurements so far.

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
        """Write the files of a copy; raises DiskFull if they do not fit."""
        self.written.add(number)
        self.server.write(number)

    def remove(self, number: int) -> None:
        """Remove the files of a copy that is not loaded."""
        self.server.remove(number)
        self.written.discard(number)

    def load(self, number: int) -> float:
        """Load a copy whose files are written, and return the seconds it took.

        Raises:
            PlansmithError: it does not load.
            ServerLost: the server ended.
        """
        began = time.monotonic()
        self._guard(lambda: self.server.load(number))
        self.loaded.append(number)
        return time.monotonic() - began

    def unload(self, number: int) -> float:
        """Unload a copy and return the seconds it took. Errors as of `load`."""
        began = time.monotonic()
        self._guard(lambda: self.server.unload(number))
        self.loaded.remove(number)
        return time.monotonic() - began

    def invoke(self, number: int) -> float:
        """Invoke a loaded copy, which becomes the most recently used, and return the milliseconds.

        Errors as of `load`.
        """
        seconds = self._guard(lambda: self.server.invoke(number))
        self.loaded.remove(number)
        self.loaded.append(number)
        return round(seconds * 1000, 1)

    def discard(self, number: int) -> None:
        """Discard a copy that does not load or answer, as far as the server allows."""
        try:
            self.server.unload(number)
        except PlansmithError as error:
            if number in self.loaded:
                self.notes.append(f"{self.server.name(number)} was not unloaded: {in_one_line(error.message)}")
        if number in self.loaded:
            self.loaded.remove(number)
        self.remove(number)

    def free_memory_problem(self, number: int) -> str:
        """Return why the next copy would not fit into the share of memory; empty if it would.

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
        """Load copies until the next one does not fit or fails to load; errors as of `load`."""
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
        """Load one more copy and send it a request; return whether both succeeded."""
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
            memory_bytes={
                pool.name: _pool_bytes(pool) - _pool_bytes(pools[pool.name]) for pool in self.full if pool.name in pools
            },
        )
        self.copies.append(copy)
        self.progress.copy(copy, self.full)
        return True

    def invoke_all(self) -> None:
        """Invoke each copy while all others are loaded."""
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
        """Call a function and return its result; distinguish a lost server from one that refuses the request."""
        try:
            return call()
        except PlansmithError as error:
            death = self.server.death()
            if death is None and not isinstance(error, EnvironmentFault):
                raise
            raise ServerLost(in_one_line((death or error).message)) from error


def _pool_bytes(pool: MemoryPool) -> int:
    return pool.used_bytes if pool.server_bytes is None else pool.server_bytes


@dataclass(frozen=True)
class Popularity:
    """Popularity distribution: how often each model is invoked.

    Attributes:
        exponent: of Zipf's law, by which the model of rank r is invoked in proportion to 1/r^exponent; 0 is uniform.
    """

    exponent: float = 0.0

    @classmethod
    def read(cls, text: str) -> Popularity:
        """Parse the name of a popularity distribution: uniform, zipf or zipf:1.2.

        Raises:
            UsageError: it names none.
        """
        match = _ZIPF.fullmatch(text)
        if match is None and text != "uniform":
            raise UsageError(f"--popularity {text!r} is unknown", remedy="choose uniform, zipf or zipf:1.2")
        return cls(float(match[1] or 1) if match else 0.0)

    def __str__(self) -> str:
        return f"zipf:{self.exponent:g}" if self.exponent else "uniform"

    def sequence(self, models: int, count: int, seed: int) -> list[int]:
        """Draw the sequence of models to invoke, numbered from 1, and which of them are popular."""
        draw = random.Random(seed)  # noqa: S311 - a load that can be repeated, and no secret
        order = list(range(1, models + 1))
        draw.shuffle(order)
        weights = list(itertools.accumulate(rank**-self.exponent for rank in range(1, models + 1)))
        return draw.choices(order, cum_weights=weights, k=count)


@dataclass
class EvictionRun:
    """Eviction run: random invocations, in progress.

    Attributes:
        loader: has some copies loaded, as many as fit.
        popularity: of the models.
    """

    loader: CopyLoader
    popularity: Popularity
    hit_ms: list[float] = field(default_factory=list)
    miss_ms: list[float] = field(default_factory=list)
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = self.loader.plan
        self.slots = len(self.loader.loaded)
        self.models = plan.models or 2 * self.slots
        self.sequence: Sequence[int] = self.popularity.sequence(self.models, plan.invocations, plan.seed)

    def run(self) -> None:
        """Invoke one model after another and count errors.

        Raises:
            ServerLost: the server ended, or cannot be asked.
        """
        try:
            for done, number in enumerate(self.sequence, 1):
                try:
                    self._invoke(number)
                except (PlansmithError, DiskFull) as error:
                    self.errors.append(in_one_line(error.message if isinstance(error, PlansmithError) else str(error)))
                    if number not in self.loader.loaded:
                        self.loader.discard(number)
                share = done / len(self.sequence)
                self.loader.progress.activity(f"invocation {done} of {len(self.sequence)}, {self.hits} hits", share)
        finally:
            self.loader.eviction = self.result()

    def result(self) -> Eviction:
        """Return the measurements so far."""
        return Eviction(
            models=self.models,
            slots=self.slots,
            popularity=str(self.popularity),
            seed=self.loader.plan.seed,
            hits=self.hits,
            misses=self.misses,
            evictions=self.evictions,
            hit_ms=spread_of(self.hit_ms),
            miss_ms=spread_of(self.miss_ms),
            errors=len(self.errors),
            first_error=self.errors[0] if self.errors else "",
        )

    def _invoke(self, number: int) -> None:
        loader = self.loader
        if number in loader.loaded:
            self.hits += 1
            self.hit_ms.append(loader.invoke(number))
            return
        self.misses += 1
        loader.write(number)  # SageMaker has fetched it by then: that is not counted
        began = time.monotonic()
        while loader.loaded and (len(loader.loaded) >= self.slots or loader.free_memory_problem(number)):
            self._evict()
        loader.load(number)
        loader.invoke(number)
        self.miss_ms.append(round((time.monotonic() - began) * 1000, 1))

    def _evict(self) -> None:
        oldest = self.loader.loaded[0]
        self.loader.unload(oldest)
        self.loader.remove(oldest)
        self.evictions += 1


def measure(
    opening: AbstractContextManager[CopyServer],
    plan: CapacityPlan,
    progress: Progress,
    popularity: Popularity = Popularity(),
) -> CapacityReport:
    """Measure how many copies fit into memory.

    A server that ends, a copy that does not load, and KeyboardInterrupt are results: the report has what was measured.
    What is loaded is unloaded in any case, as far as the server lets it be.

    Args:
        opening: gives the server.
        plan: how far memory is filled.
        progress: told how it goes.
        popularity: of models in random invocations.

    Raises:
        PlansmithError: there is no server, or it tells nothing of its memory.
        KeyboardInterrupt: before there was a server.
    """
    began = time.monotonic()
    loader: CopyLoader | None = None
    try:
        with opening as server:
            loader = CopyLoader(server, plan, progress)
            try:
                _run(loader, popularity)
            finally:
                _release(loader)
    except KeyboardInterrupt:  # a second one, while it ended
        if loader is None:
            raise
    return _report(loader, plan, time.monotonic() - began)


def _run(loader: CopyLoader, popularity: Popularity) -> None:
    try:
        loader.before = loader.full = loader.server.meter.read()
        loader.load_all()
        loader.invoke_all()
        if loader.plan.invocations and loader.loaded:
            EvictionRun(loader, popularity).run()
        loader.unload_all()
    except KeyboardInterrupt:
        if loader.ending != "interrupted":
            loader.notes.append(f"loading ended before: {loader.reason}")
        loader.ending, loader.reason = "interrupted", "it was interrupted"
    except (ServerLost, PlansmithError) as error:
        if not loader.before:
            raise
        message = in_one_line(error.message if isinstance(error, PlansmithError) else str(error))
        if loader.ending != "interrupted":
            loader.notes.append(f"loading ended before: {loader.reason}")
        loader.ending = "server-lost"
        loader.reason = f"after {len(loader.copies)} copies the server was lost: {message}"


def _release(loader: CopyLoader) -> None:
    """Unload the copies that are still loaded; record those left on a server that cannot be reached."""
    server = loader.server
    names = {number: server.name(number) for number in loader.loaded}
    try:  # one whose load was interrupted is written, and not among the loaded
        for number in sorted(loader.written) if not server.is_started else ():
            loader.progress.activity(f"unloading copy {number}", None)
            try:
                server.unload(number)
            except EnvironmentFault:
                break
            except PlansmithError:
                continue
            if number in loader.loaded:
                loader.loaded.remove(number)
    finally:
        if not server.is_started:
            loader.still_loaded += [names[number] for number in loader.loaded]
        for number in list(loader.written):
            loader.remove(number)


def _report(loader: CopyLoader, plan: CapacityPlan, seconds: float) -> CapacityReport:
    server = loader.server
    return CapacityReport(
        releases=tuple(release.release for release in server.releases),
        server=server.description,
        device=server.device,
        share=plan.share,
        file_bytes=tuple(release.file_bytes for release in server.releases),
        memory_before=loader.before,
        memory_full=loader.full,
        memory_after=loader.after,
        copies=tuple(loader.copies),
        ending=loader.ending,
        reason=loader.reason,
        answers_ms=spread_of(loader.answers_ms),
        failed_answers=loader.failed_answers,
        unload_seconds=spread_of(loader.unload_seconds),
        eviction=loader.eviction,
        still_loaded=tuple(loader.still_loaded),
        seconds=round(seconds, 1),
        notes=(*server.notes, *loader.notes),
    )
