"""Running a list: each entry in a process of its own, several at a time, and what is finished is kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from plansmith.digest import digest_of
from plansmith.durable import make_folder, write_file
from plansmith.errors import PlansmithError
from plansmith.process import Worker
from plansmith.toolchain import step_toolchain
from plansmith.units import bytes_in_words, seconds_in_words
from plansmith.zoo.causes import explained
from plansmith.zoo.entries import Entry
from plansmith.zoo.rows import Row, Zoo
from plansmith.zoo.summary import summarise

CHILD = "plansmith.zoo.child"
_POLL_SECONDS = 0.2
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class Manner:
    """How a list is run.

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


class Listener:
    """Told how a run goes; does nothing by itself. May be called from any thread."""

    def doing(self, entry: Entry, text: str) -> None:
        """What is being done for an entry."""

    def finished(self, row: Row, *, kept: bool) -> None:
        """An entry is finished; `kept`: it was before this run."""


@dataclass
class Runner:
    """Runs entries, and keeps what came of them below one folder.

    Args:
        folder: for results and logs.
        manner: how.
        listener: told of it.
    """

    folder: Path
    manner: Manner
    listener: Listener = field(default_factory=Listener)

    def run(self, entries: Sequence[Entry]) -> list[Row]:
        """What came of each entry, in their order.

        On an interrupt the processes end at once, and what is finished stays.
        """
        make_folder(self.folder)
        workers = _Workers()
        with ThreadPoolExecutor(self.manner.jobs, thread_name_prefix="zoo") as pool:
            try:
                futures: dict[Future[Row], int] = {
                    pool.submit(self._row, entry, workers): place for place, entry in enumerate(entries)
                }
                rows = {futures[done]: done.result() for done in as_completed(futures)}
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                workers.end()
                raise
        return [rows[place] for place in range(len(entries))]

    def _row(self, entry: Entry, workers: _Workers) -> Row:
        place = self.folder / f"{self._key(entry)}.json"
        row = None if self.manner.force else _kept(place)
        kept = row is not None
        if row is None:
            row, whole = self._try(entry, workers)
            if whole:
                write_file(place, row.model_dump_json(indent=1), replace=True)
        row = explained(row)
        self.listener.finished(row, kept=kept)
        return row

    def _key(self, entry: Entry) -> str:
        """Covers everything that a result depends on: the entry, the tools' versions, our code."""
        asked = {"bare": self.manner.compare_bare, "child": self.manner.child}
        return digest_of([entry.model_dump(mode="json"), step_toolchain("zoo"), asked])

    def _try(self, entry: Entry, workers: _Workers) -> tuple[Row, bool]:
        """Run an entry; the row, and whether its process came to its own end."""
        log = self.folder / "logs" / f"{self._key(entry)[:16]}.log"
        log.unlink(missing_ok=True)
        began = time.monotonic()
        with workers.open(self.manner.child, log, lambda text: self.listener.doing(entry, text)) as worker:
            watch = _Watch(worker, self.manner)
            try:
                answer = worker.call(
                    "try_entry",
                    entry=entry.model_dump(mode="json"),
                    threads=1 if self.manner.jobs > 1 else 0,
                    compare_bare=self.manner.compare_bare,
                )
                return Row.model_validate(answer), True
            except PlansmithError as error:
                if workers.ended:
                    raise CancelledError from error
                problem = watch.verdict or error.message
            finally:
                watch.close()
        seconds = round(time.monotonic() - began, 2)
        row = Row(name=entry.label, scheme=entry.scheme, outcome="failed", problem=problem, seconds=seconds)
        return row, False


class _Workers:
    """The processes that run, so that an interrupt ends them all.

    Attributes:
        ended: whether it did.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[Worker] = set()
        self.ended = False

    @contextmanager
    def open(self, module: str, log: Path, progress: Callable[[str], None]) -> Iterator[Worker]:
        with Worker(module, log, progress) as worker:
            with self._lock:
                self._open.add(worker)
                ended = self.ended
            if ended:
                worker.kill()
            try:
                yield worker
            finally:
                with self._lock:
                    self._open.discard(worker)

    def end(self) -> None:
        with self._lock:
            self.ended = True
            for worker in self._open:
                worker.kill()


class _Watch:
    """Ends a process that takes too long or holds too much.

    Attributes:
        verdict: why it was ended; empty where it was not.
    """

    def __init__(self, worker: Worker, manner: Manner) -> None:
        self.verdict = ""
        self._worker, self._manner = worker, manner
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        deadline = time.monotonic() + self._manner.timeout
        while not self._over.wait(_POLL_SECONDS):
            held = _resident_bytes(self._worker.number)
            if held > self._manner.memory_bytes:
                self.verdict = f"it held {bytes_in_words(held)} of memory, and may {self._memory}"
            elif time.monotonic() > deadline:
                self.verdict = f"it was not finished after {seconds_in_words(self._manner.timeout)}"
            if self.verdict:
                self._worker.kill()
                return

    @property
    def _memory(self) -> str:
        return bytes_in_words(self._manner.memory_bytes)


def _resident_bytes(process: int) -> int:
    """What a process holds in memory (Linux proc(5), statm); 0 where it has ended."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def _kept(place: Path) -> Row | None:
    """A finished row; None where there is none, or one that another plansmith wrote."""
    with suppress(OSError, ValidationError):
        return Row.model_validate_json(place.read_text(encoding="utf-8"))
    return None


def run_list(runner: Runner, entries: Sequence[Entry]) -> Zoo:
    """Run entries, and say what they come to."""
    began = time.monotonic()
    rows = runner.run(entries)
    versions = {name: number for name, number in step_toolchain("zoo").items() if name != "code"}
    return Zoo(versions=versions, summary=summarise(rows, time.monotonic() - began), rows=tuple(rows))
