"""Step runner: cache key, cache, lock, timing, worker and error location, shared by all compile steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from plansmith.errors import PlansmithError
from plansmith.records.model import SCHEMA_VERSION, Record
from plansmith.records.release import StepRecord
from plansmith.steps.cache import toolchain
from plansmith.steps.cache.local import ENTRY_FILE, CacheEntry, StageCache
from plansmith.system.digest import Digester, digest_of
from plansmith.system.files import storage_errors
from plansmith.system.libraries import require_library
from plansmith.system.process import Worker

if TYPE_CHECKING:
    from plansmith.steps.cache.shared import SharedCache
    from plansmith.system.tasks import Task

R = TypeVar("R", bound=Record)
Q = TypeVar("Q", bound=Record)
A = TypeVar("A", bound=Record)

WORKER_MODULE = "plansmith.steps.worker"
# What a worker spends its first seconds importing; none of it starts a thread or asks for a GPU when it is imported.
WORKER_LIBRARIES = (
    *("huggingface_hub", "numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "PIL", "plansmith", "polygraphy"),
    *("safetensors", "scipy", "sklearn", "sympy", "timm", "tokenizers", "torch", "torchvision", "transformers"),
)


def shared_imports() -> AbstractContextManager[object]:
    """Have the workers of all compiles in a block import their libraries once; each compile has its own worker."""
    from plansmith.system.fork_server import forked_workers

    return forked_workers(WORKER_MODULE, WORKER_LIBRARIES)


@dataclass(frozen=True)
class StepResult(Generic[R]):
    """Step result: its record, the base folder of the record's paths, and a digest of both.

    `files`: those of a user's own that the step found to belong together.
    """

    record: R
    folder: Path
    digest: str
    cached: bool
    files: tuple[Path, ...] = ()


@dataclass
class StepTimer:
    """Step status: whether a step found its work done, or found work to do.

    Attributes:
        cached: whether it found its work done.
        is_missing: whether it only looked, and found something to do.
    """

    cached: bool = False
    is_missing: bool = False


class Listener:
    """Progress listener of a compile; this base class ignores all events."""

    def progress(self, step: str, text: str) -> None:
        """Called when a step starts (empty text) or reports an activity."""

    def moving(self, step: str, text: str, share: float) -> None:
        """Called while a step uploads or downloads data of a known size; `share` is the fraction done, from 0 to 1."""
        del share
        self.progress(step, text)

    def waiting(self, step: str, text: str) -> None:
        """Called when a step waits for another process."""

    def result(self, record: Record) -> None:
        """Called when a step has its result, new or cached; whether it may be used is not decided yet."""

    def finished(self, record: StepRecord) -> None:
        """Called when a step succeeded."""

    def notice(self, text: str) -> None:
        """Called when something unusual was detected and repaired."""


def companion_label(model: str, name: str) -> str:
    """Return the label of a companion model for error messages."""
    return f"{model}, {name} beside it"


class _NestedListener(Listener):
    """Nested listener: forwards activities, but no results.

    Args:
        listener: told.
        step: named as the one that does it; the one that does when empty.
        of: whom notices are about; then what is done is named by the step that does it.
    """

    def __init__(self, listener: Listener, step: str = "", of: str = "") -> None:
        self._listener = listener
        self._step = step
        self._of = of

    def progress(self, step: str, text: str) -> None:
        self._listener.progress(self._step or step, self._full_text(step, text))

    def moving(self, step: str, text: str, share: float) -> None:
        self._listener.moving(self._step or step, self._full_text(step, text), share)

    def waiting(self, step: str, text: str) -> None:
        self._listener.waiting(self._step or step, self._full_text(step, text))

    def notice(self, text: str) -> None:
        self._listener.notice(f"{self._of}: {text}" if self._of else text)

    def _full_text(self, step: str, text: str) -> str:
        return ", ".join(filter(None, (step, text))) if self._of else text


class StageRunner:
    """Stage runner: runs the steps of one compile, with caching, progress and error context.

    Args:
        model: the model's name, for errors and logs.
        artifacts: holds the cache and the logs.
        listener: told how it goes.
        force: never look into the cache.
        dry: look only; a step gives None where something would have to be done.
        digester: hashes files; one of its own, with the memo of the artifacts, when None.
        shared: what other machines have done; one that only looks tells a dry run of it, another is fetched from.
        isolated: keep the worker from the network and its user's credentials: it will run code of somebody else.

    Attributes:
        started: when the compile began.
        records: how the steps went so far.
        results: of the steps so far, by step; also what was refused.
        step: the current step.
        dry: whether it only looks.
        is_shared: whether another machine has done what a look found missing.
    """

    def __init__(
        self,
        model: str,
        artifacts: Path,
        *,
        listener: Listener,
        force: bool,
        dry: bool,
        digester: Digester | None = None,
        shared: SharedCache | None = None,
        isolated: bool = False,
    ) -> None:
        self.started = datetime.now(UTC)
        self.records: list[StepRecord] = []
        self.results: dict[str, Record] = {}
        self.step = ""
        self.dry = dry
        self.is_shared = False
        self.shared = shared
        self.digester = digester or Digester(artifacts / "cache" / "digests.sqlite", read_only=dry)
        self._model = model
        self._artifacts = artifacts
        self._force = force
        self._listener = listener
        self._cache = StageCache(artifacts / "cache", self.digester, listener.notice)
        self._stamp = f"{model}-{self.started:%Y%m%dT%H%M%S.%f}"
        self._isolated = isolated
        self._isolation_problem = ""
        self._worker: Worker | None = None
        self._cache_held: ExitStack | None = None

    def stage(
        self,
        step: str,
        kind: type[R],
        inputs: Sequence[str],
        parameters: Mapping[str, Any],
        build: Callable[[Path], R],
        *,
        require: Callable[[R], None] = lambda _: None,
        tools: str = "",
    ) -> StepResult[R] | None:
        """Return a step's result from the cache, or build and cache it; None on a cache miss in a dry run.

        Args:
            step: the step's name.
            kind: the record that the step makes.
            inputs: digests of what the step works on.
            parameters: everything else that decides the result, as JSON values.
            build: does the work into a folder.
            require: raises when a record, new or cached, must not be used.
            tools: whose toolchain the result depends on, where not the step's own (see `toolchain`).
        """
        with self.timed(step) as clock:
            outcome = self.entry(step, inputs, parameters, build, tools=tools)
            if outcome is None:
                clock.is_missing = True
                return None
            entry, clock.cached = outcome
            record = self.results[step] = kind.model_validate(entry.record)
            self._listener.result(record)
            try:
                require(record)
            except PlansmithError as error:
                raise error.located(log=entry.folder / ENTRY_FILE) from None
            return StepResult(record, entry.folder, entry.digest, clock.cached)

    def entry(
        self,
        step: str,
        inputs: Sequence[str],
        parameters: Mapping[str, Any],
        build: Callable[[Path], Record],
        *,
        tools: str = "",
    ) -> tuple[CacheEntry, bool] | None:
        """Like `stage`, for a part of a step: return the cache entry and whether it was a hit."""
        key = digest_of([SCHEMA_VERSION, step, list(inputs), parameters, toolchain.step_toolchain(tools or step)])

        def make() -> CacheEntry:
            with self._cache.staging() as staged:
                return self._cache.publish(step, key, staged, build(staged).model_dump(mode="json"))

        if self.dry:
            result = self._find_entry(step, key)
            return None if result is None else (result, True)
        with storage_errors(self._artifacts):
            self._hold_cache()
            with self._cache.exclusive(step, key, self._waits_for_builder):
                self.progress("")  # no longer waiting
                entry = None if self._force else self._cache.lookup(step, key, touch=True)
                if self.shared is not None and entry is None and not self._force:
                    return self.shared.bring_or_make(step, key, self._cache, make, self._waits_for_machine)
                cached, entry = entry is not None, entry or make()
                if self.shared is not None:
                    self.shared.give(step, key, entry, anew=self._force)
                return entry, cached

    def _find_entry(self, step: str, key: str) -> CacheEntry | None:
        """Return a cache entry for a dry run; for a later real run, shared entries are fetched first."""
        self._hold_cache()
        entry = None if self._force else self._cache.lookup(step, key)
        if entry is not None or self._force or self.shared is None:
            return entry
        if self.shared.place.only_looks:
            self.is_shared = self.shared.holds(step, key)
            return None
        with storage_errors(self._artifacts), self._cache.exclusive(step, key, self._waits_for_builder):
            return self.shared.bring(step, key, self._cache)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Dry run for the block: no work is done, reported or recorded."""
        records, results, step = list(self.records), dict(self.results), self.step
        listener, self._listener = self._listener, Listener()
        was_dry, self.dry, self.is_shared = self.dry, True, False
        try:
            yield
        finally:
            self.records[:] = records
            self.results, self.step, self.dry, self._listener = results, step, was_dry, listener

    @contextmanager
    def timed(self, step: str) -> Iterator[StepTimer]:
        """Context of a step: records its time in `records` and adds the step's name to its errors."""
        self.step = step
        self.progress("")
        clock, started = StepTimer(), time.monotonic()
        try:
            yield clock
        except PlansmithError as error:
            raise error.located(model=self._model, step=step) from error.__cause__
        if clock.is_missing:
            return
        self.records.append(StepRecord(name=step, seconds=round(time.monotonic() - started, 3), cached=clock.cached))
        self._listener.finished(self.records[-1])

    @contextmanager
    def nested(self, of: str = "") -> Iterator[None]:
        """Context of steps nested in the current one, whose results are not the compile's own.

        Args:
            of: the model that they are about, where it is not the compile's.
        """
        records, results, listener = list(self.records), dict(self.results), self._listener
        model, step = self._model, self.step
        self._listener = _NestedListener(listener, step, of) if of else _NestedListener(listener)
        self._model = companion_label(model, of) if of else model
        try:
            yield
        finally:
            self.records[:] = records
            self.results, self._listener = results, listener
            self._model, self.step = model, step

    def progress(self, text: str, share: float | None = None) -> None:
        """Report the current step's activity and, where known, the fraction done, from 0 to 1."""
        if share is None:
            self._listener.progress(self.step, text)
        else:
            self._listener.moving(self.step, text, share)

    def notice(self, text: str) -> None:
        """Report something unusual that does not end the compile."""
        self._listener.notice(text)

    def waits_for_publisher(self, process: int | None) -> None:
        """Report that another process is publishing or garbage-collecting versions of the same model."""
        self._waits("that publishes this model", process)

    def waits_for_gpu(self, process: int | None) -> None:
        """Report that another process is building a plan on the same GPU."""
        self._waits("that builds on this GPU", process)

    def _waits_for_builder(self, process: int | None) -> None:
        self._waits("that builds the same step", process)

    def _waits_for_machine(self, owner: str) -> None:
        self._listener.waiting(self.step, f"waiting for another machine that builds the same step ({owner})")

    def _waits_for_collector(self, process: int | None) -> None:
        self._waits("that collects garbage (plansmith gc)", process)

    def _waits(self, activity: str, process: int | None) -> None:
        owner = f" (process {process})" if process is not None else ""
        self._listener.waiting(self.step, f"waiting for another plansmith {activity}{owner}")

    def _hold_cache(self) -> None:
        """Hold a lock that protects all cache entries from garbage collection until `close`."""
        if self._cache_held is None:
            with ExitStack() as stack:
                writes = not self.dry or (self.shared is not None and not self.shared.place.only_looks)
                hold = self._cache.lock if writes else self._cache.held_to_look
                stack.enter_context(hold(self._waits_for_collector))
                self._cache_held = stack.pop_all()

    def run_in_worker(self, task: Task[Q, A], request: Q) -> A:
        """Run a task in the worker process; start one if none is running or the last one died."""
        if self._worker is not None and self._worker.is_dead:
            self.end_worker()
        if self._worker is None:
            require_library("numpy", "compile")  # which the worker imports when it starts
            self._worker = Worker(WORKER_MODULE, self.log_file("worker"), self.progress, isolated=self._isolated)
        answer = task.run(self._worker, request)
        isolation = getattr(answer, "isolation", None)
        if isolation is not None and not isolation.complete and isolation.problem != self._isolation_problem:
            self._isolation_problem = isolation.problem
            self.notice(f"code that is not plansmith's ran with network and credentials: {isolation.problem}")
        return answer

    def end_worker(self) -> None:
        """Stop the worker process, if there is one, to free its memory."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def close(self) -> None:
        """Stop the worker, release the cache entries, and report what came from the shared cache."""
        self.end_worker()
        if self._cache_held is not None:
            self._cache_held.close()
            self._cache_held = None
        if self.shared is not None and not self.dry:
            self.shared.close()

    def worker_log(self) -> str:
        """Return the worker's output of this run, or a note if all its steps were cached."""
        log = self.log_file("worker")
        return log.read_text(errors="replace") if log.exists() else "every heavy step came from the cache\n"

    def log_file(self, label: str) -> Path:
        """Return the path of the log file for a tool's output in this run."""
        return self._artifacts / "logs" / f"{self._stamp}-{label}.log"
