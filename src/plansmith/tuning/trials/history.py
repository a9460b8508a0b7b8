"""Trial history: each finished trial is written to disk at once, and reused by later runs.

A file of one JSON line per record that is only appended to. What a killed process left of a line is cut off before the
next one is written; a line that cannot be read is skipped, and its trial is run again.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, Literal, Protocol, TypeVar

from plansmith.errors import RepositoryError
from plansmith.records.model import Record
from plansmith.system.digest import digest_of
from plansmith.system.files import HeldByAnother, fsync_path, locked, make_folder, not_waiting, storage_errors
from plansmith.tuning.configuration import Configuration

_RATIOS = ("throughput", "p50_ms", "p90_ms", "p95_ms", "p99_ms")
_OPTIONAL = ("memory_bytes", "batch_size", "queue_ms", "cores")

Phase = Literal["screening", "halving", "confirmation"]
FOLDER_OPTION = "folder of artifacts (`artifacts` in the spec)"
"""The folder of a search, as a person chooses it."""

HISTORY_FILE = "trials.jsonl"
_LOCK = "search.lock"
_VERSION = 1
"""Of the meaning of a measurement: raised when earlier trials must not be used again."""

_BLOCK_BYTES = 64 * 1024


class Measurement(Record):
    """Measurement of a load test with one stage.

    Attributes:
        seconds: over which requests were counted.
        requests: answered or failed.
        failed: of these.
        throughput: inferences (samples) per second.
        p50_ms: latency of the answered requests in milliseconds; likewise the other percentiles.
        memory_bytes: largest memory of the server, or of its GPUs; None where unknown.
        batch_size: mean achieved batch; None where unknown.
        queue_ms: mean time of a request in the queue; None where unknown.
        cores: CPU seconds of the server per second; None where unknown.
        notes: what a reader has to know to read the figures correctly.
    """

    seconds: float
    requests: int
    failed: int = 0
    throughput: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    memory_bytes: int | None = None
    batch_size: float | None = None
    queue_ms: float | None = None
    cores: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def error_rate(self) -> float:
        """The fraction of the requests that failed."""
        return self.failed / self.requests if self.requests else 1.0

    @property
    def answered(self) -> int:
        """The number of successful requests."""
        return self.requests - self.failed

    @property
    def is_answered(self) -> bool:
        """Whether any request succeeded in the measured time."""
        return self.answered > 0 and self.throughput > 0


class TrialFailed(Exception):
    """Failed trial: a configuration cannot be served, or its server died or hung; the reason in one line.

    It is the result of a trial, and does not end the search.
    """


class Benchmark(Protocol):
    """Benchmark: measures configurations."""

    def __call__(self, configuration: Configuration, seconds: float, /) -> Measurement:
        """Serve a configuration and load-test it for so many seconds.

        Raises:
            TrialFailed: the configuration cannot be served.
            PlansmithError: the machine is at fault, which ends the search.
        """
        ...


def mean_measurement(measurements: Sequence[Measurement]) -> Measurement:
    """Return the mean of measurements: the geometric mean for rates and latencies, as they are compared by ratio.

    Requests and failures are added up; a measurement in which a figure is unknown does not count for it.
    """
    means: dict[str, Any] = {
        name: _geometric_mean([getattr(measurement, name) for measurement in measurements]) for name in _RATIOS
    }
    for name in _OPTIONAL:
        if values := [value for measurement in measurements if (value := getattr(measurement, name)) is not None]:
            means[name] = fmean(values)
    if "memory_bytes" in means:
        means["memory_bytes"] = round(means["memory_bytes"])
    return Measurement(
        seconds=sum(measurement.seconds for measurement in measurements),
        requests=sum(measurement.requests for measurement in measurements),
        failed=sum(measurement.failed for measurement in measurements),
        notes=tuple(dict.fromkeys(note for measurement in measurements for note in measurement.notes)),
        **means,
    )


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, values))) if min(values) > 0 else 0.0


class TrialContext(Record):
    """Trial context: what must be equal for a cached trial to be reused.

    Attributes:
        builds: by label of the build, the digest of its files.
        load: digest of the load and the requests.
        host: machine and server in words.
    """

    builds: dict[str, str]
    load: str
    host: str


class KeyedRecord(Record):
    """A history record with a key.

    Attributes:
        key: identifies it.
    """

    key: str


class Trial(KeyedRecord):
    """A finished trial of a configuration.

    Attributes:
        key: from `trial_key`.
        configuration: that was served.
        seconds: of load that were to be counted.
        round_number: of a confirmation, from 1; 0 otherwise.
        measurement: None where the configuration could not be served.
        problem: why not.
        duration_seconds: with starting the server.
        began_at: UTC.
        session: of the process that ran it.
    """

    configuration: Configuration
    seconds: float
    round_number: int = 0
    measurement: Measurement | None = None
    problem: str = ""
    duration_seconds: float = 0.0
    began_at: str = ""
    session: str = ""


def trial_key(
    context: TrialContext,
    configuration: Configuration,
    seconds: float,
    round_number: int = 0,
    candidate: Configuration | None = None,
) -> str:
    """Return the cache key of a trial: model, configuration, load, length, host and confirmation round.

    Args:
        context: model, load and host.
        configuration: that is served.
        seconds: of load.
        round_number: of a confirmation.
        candidate: of that confirmation.
    """
    identity = {
        "version": _VERSION,
        "build": context.builds[configuration.build.label],
        "configuration": configuration.model_dump(mode="json"),
        "load": context.load,
        "host": context.host,
        "seconds": seconds,
        "round": round_number,
        "candidate": candidate.model_dump(mode="json") if candidate is not None else None,
    }
    return digest_of(identity)


R = TypeVar("R", bound=KeyedRecord)


class History(Generic[R]):
    """History file: the records of one model.

    Args:
        folder: made with the first record.
        name: of the file.
        kind: of the records.
    """

    def __init__(self, folder: Path, name: str, kind: type[R]) -> None:
        self.folder = folder
        self.file = folder / name
        self._kind = kind
        self._records: dict[str, R] | None = None

    def find(self, key: str) -> R | None:
        """Return the record of a key; None if there is none."""
        return self._read().get(key)

    def add(self, record: R) -> None:
        """Append a record durably: on return it survives the end of the process and a power failure.

        Raises:
            RepositoryError: the disk is full or cannot be written.
        """
        with storage_errors(self.folder, alternative=FOLDER_OPTION):
            make_folder(self.folder)
            is_new = not self.file.exists()
            with self.file.open("w+b" if is_new else "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(_end_of_lines(file.fileno()))
                file.truncate()
                file.write(record.model_dump_json().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                fsync_path(self.folder)
        self._read()[record.key] = record

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock out other searches of the model, as both would affect each other's measurements.

        Raises:
            RepositoryError: another one is running.
        """
        with storage_errors(self.folder, alternative=FOLDER_OPTION):
            make_folder(self.folder)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.folder / _LOCK, not_waiting))
            except HeldByAnother:
                raise RepositoryError(
                    f"another search or comparison in {self.folder} is running, and both would measure each other",
                    remedy="wait for its end, or stop it; what it has measured is used again",
                ) from None
            yield

    def _read(self) -> dict[str, R]:
        if self._records is None:
            self._records = {record.key: record for record in read_records(self.file, self._kind)}
        return self._records


class TrialHistory(History[Trial]):
    """Trial history of one model.

    Args:
        folder: made with the first trial.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, HISTORY_FILE, Trial)


def read_records(file: Path, kind: type[R]) -> Iterator[R]:
    """Yield the complete, readable records of a file, oldest first."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return
    for line in content.split(b"\n")[:-1]:
        try:
            yield kind.model_validate_json(line)
        except ValueError:
            continue


def _end_of_lines(descriptor: int) -> int:
    """The offset after the last complete line of a file."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
