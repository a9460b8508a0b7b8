"""Zoo runs: each entry in its own process, several at a time; finished results are kept."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from plansmith.errors import PlansmithError
from plansmith.fleet.zoo.entries import ZooEntry
from plansmith.fleet.zoo.records import TRY_ENTRY, Limit, TryRequest, Zoo, ZooRow, explained, summarise
from plansmith.formatting import format_bytes, format_seconds
from plansmith.steps.cache.toolchain import step_toolchain
from plansmith.steps.runner import WORKER_LIBRARIES
from plansmith.system.digest import digest_of
from plansmith.system.files import make_folder, write_file
from plansmith.system.fork_server import forked_workers
from plansmith.system.process import Worker
from plansmith.system.worker_pool import WorkerPool, cores_per_job

CHILD = "plansmith.fleet.zoo.child"
_POLL_SECONDS = 0.2
_PAGE_BYTES = 4096
_LONGEST_LOG_NAME = 80


@dataclass(frozen=True)
class ZooOptions:
    """Options of a zoo run.

    Args:
        jobs: entries at a time.
        timeout: seconds that an entry may take.
        memory_bytes: that an entry's process may hold.
        compare_bare: let plain torch.onnx.export try too.
        force: run what is finished again.
        child: the module that is run for an entry.
    """

    jobs: int
    timeout: float
    memory_bytes: int
    compare_bare: bool = False
    force: bool = False
    child: str = CHILD

    @property
    def threads(self) -> int:
        """The number of threads per entry."""
        return cores_per_job(self.jobs)

    def allows_more(self, limit: Limit) -> bool:
        """Whether an entry stopped at a limit may now exceed that limit."""
        return (self.timeout if limit.kind == "time" else self.memory_bytes) > limit.allowed


class Listener:
    """Observer of a zoo run; does nothing by default. May be called from any thread."""

    def doing(self, entry: ZooEntry, text: str) -> None:
        """Report the current activity of an entry."""

    def finished(self, row: ZooRow, *, kept: bool) -> None:
        """Report a finished entry; `kept`: it finished in an earlier run."""


@dataclass
class Runner:
    """Zoo runner: runs entries and keeps their outcomes below one folder.

    Args:
        folder: for results and logs.
        manner: how.
        listener: told of it.
    """

    folder: Path
    manner: ZooOptions
    listener: Listener = field(default_factory=Listener)

    def run(self, entries: Sequence[ZooEntry]) -> list[ZooRow]:
        """Return the outcome of each entry, in order.

        What is finished is kept, unless the machine failed, and so is what was ended at a limit, until it is allowed
        more. On an interrupt the processes end at once.
        """
        make_folder(self.folder)
        pool = WorkerPool(self.manner.jobs)
        with forked_workers(self.manner.child, WORKER_LIBRARIES):
            return pool.map(lambda entry: self._row(entry, pool), entries)

    def _row(self, entry: ZooEntry, pool: WorkerPool) -> ZooRow:
        place = self.folder / f"{self._key(entry)}.json"
        row = None if self.manner.force else _read_row(place)
        if row is not None and row.limit is not None and self.manner.allows_more(row.limit):
            row = None
        is_cached = row is not None
        if row is None:
            row, whole = self._try(entry, pool)
            if whole:
                write_file(place, row.model_dump_json(indent=1), replace=True)
        row = self._with_log(explained(row), entry)
        self.listener.finished(row, kept=is_cached)
        return row

    def _key(self, entry: ZooEntry) -> str:
        """Return the cache key, which covers the entry, the tools' versions and plansmith's code."""
        options = {"bare": self.manner.compare_bare, "child": self.manner.child}
        return digest_of([entry.model_dump(mode="json"), step_toolchain("zoo"), options])

    def _log(self, entry: ZooEntry) -> Path:
        name = re.sub(r"[^\w.-]+", "-", entry.label)[:_LONGEST_LOG_NAME]
        return self.folder / "logs" / f"{name}-{self._key(entry)[:8]}.log"

    def _with_log(self, row: ZooRow, entry: ZooEntry) -> ZooRow:
        log = self._log(entry)
        has_log = row.outcome != "right" and log.is_file()
        return row.model_copy(update={"log": str(log)}) if has_log else row

    def _try(self, entry: ZooEntry, pool: WorkerPool) -> tuple[ZooRow, bool]:
        """Run an entry; return the row and whether the result is reproducible.

        Not where its process died, or the machine failed.
        """
        log = self._log(entry)
        log.unlink(missing_ok=True)
        began = time.monotonic()
        with pool.open(self.manner.child, log, lambda text: self.listener.doing(entry, text)) as worker:
            watch = _Watch(worker, self.manner)
            try:
                threads, compare_bare = self.manner.threads, self.manner.compare_bare
                request = TryRequest(entry=entry, threads=threads, compare_bare=compare_bare)
                row = TRY_ENTRY.run(worker, request)
            except PlansmithError as error:
                if watch.limit is None and pool.is_interrupted():
                    raise CancelledError from error
                problem = watch.verdict or error.message
            else:
                return row, not row.machine
            finally:
                watch.close()
        row = ZooRow(
            name=entry.label,
            scheme=entry.scheme,
            outcome="failed",
            problem=problem,
            limit=watch.limit,
            seconds=round(time.monotonic() - began, 2),
        )
        return row, watch.limit is not None


class _Watch:
    """Watchdog: ends a process that takes too long or uses too much memory.

    Attributes:
        limit: at which it was ended, if it was.
        verdict: the same in words.
    """

    def __init__(self, worker: Worker, manner: ZooOptions) -> None:
        self.limit: Limit | None = None
        self.verdict = ""
        self._worker, self._manner = worker, manner
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        seconds, most = self._manner.timeout, self._manner.memory_bytes
        deadline = time.monotonic() + seconds
        while not self._over.wait(_POLL_SECONDS):
            memory = _resident_bytes(self._worker.number)
            doing = self._worker.doing or "starting"
            if memory > most:
                self.limit = Limit(kind="memory", allowed=most)
                self.verdict = (
                    f"it held {format_bytes(memory)} of memory ({doing}), and may hold {format_bytes(most)};"
                    f" --memory {2 * most / 2**30:.3g} allows it more"
                )
            elif time.monotonic() > deadline:
                self.limit = Limit(kind="time", allowed=seconds)
                self.verdict = (
                    f"it was not finished after {format_seconds(seconds)} ({doing});"
                    f" --timeout {2 * seconds:g} gives it longer"
                )
            if self.limit is not None:
                self._worker.kill()
                return


def _resident_bytes(process: int) -> int:
    """Return a process's resident memory in bytes (Linux proc(5), statm); 0 if it has ended."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def _read_row(place: Path) -> ZooRow | None:
    """Read a finished row; None if it is missing or from another plansmith version."""
    with suppress(OSError, ValidationError):
        return ZooRow.model_validate_json(place.read_text(encoding="utf-8"))
    return None


def run_list(runner: Runner, entries: Sequence[ZooEntry]) -> Zoo:
    """Run entries and return their summary."""
    began = time.monotonic()
    rows = runner.run(entries)
    versions = {name: number for name, number in step_toolchain("zoo").items() if name != "code"}
    return Zoo(versions=versions, summary=summarise(rows, time.monotonic() - began), rows=tuple(rows))
