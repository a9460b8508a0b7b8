"""Compile history on this machine: one record per run, whatever its outcome.

Each run is a small file of its own, `<artifacts>/history/<number>.json`, written in a staging folder and
moved into place by one rename, under a lock that gives out the numbers. Compared with lines appended to one
file, a kill or a full disk in the middle leaves no half record for others to trip over, old records go one
by one, and the numbers keep the order of writing when the clock does not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from plansmith import __version__
from plansmith.config.spec import ModelSpec
from plansmith.errors import EXIT_INTERRUPTED, EnvironmentFault, GateError, PlansmithError
from plansmith.records.destination import Publication
from plansmith.records.model import SCHEMA_VERSION, EngineKind, LoweredModel, Precision, Record, SourceModel
from plansmith.records.release import PublishedVersion, StepRecord
from plansmith.records.validation import ValidationReport
from plansmith.steps.runner import StageRunner
from plansmith.system.files import fsync_tree, locked, make_folder, move_into_place, staging_folder, sweep

HISTORY = "history"

_SUFFIX = ".json"

Outcome = Literal["published", "unchanged", "failed", "interrupted"]
"""How a compile ended."""


class Failure(Record):
    """Failure: why a run ended without a published version; `exit_code` is that of the command line."""

    step: str
    error: str
    message: str
    exit_code: int


class RunRecord(Record):
    """Run record of one compile: its request, its progress and its outcome.

    `source` is as typed; `revision` and `source_digest` are known once it was fetched, `verdict` and
    `largest_error` (of all outputs, relative to the output's magnitude) once the gate was run; a lowering whose recipes
    are all too inaccurate has failed it without an engine. `precision` is what was
    asked for, `made` what came of it, where a graph did. A run that failed has a `version` where that stands and could
    not be brought to all its destinations; `publications` are those that it was.
    """

    schema_version: int = SCHEMA_VERSION
    plansmith: str
    started: str
    seconds: float
    model: str
    source: str
    revision: str | None
    source_digest: str | None
    target: str
    engine: EngineKind
    precision: Precision | Literal["auto"]
    made: Precision | None = None  # of runs older than this field
    repository: str
    outcome: Outcome
    version: int | None
    failure: Failure | None
    verdict: Literal["passed", "failed"] | None
    largest_error: float | None
    log: str | None
    steps: tuple[StepRecord, ...]
    publications: tuple[Publication, ...] = ()  # of runs older than this field

    @property
    def outcome_text(self) -> str:
        """The outcome in brief: "published 3", "failed in validate, int8"; for auto, with the chosen precision."""
        where = f"in {self.failure.step}" if self.failure is not None else str(self.version)
        if self.precision == "auto":
            return f"{self.outcome} {where}, auto{f': {self.made}' if self.made else ''}"
        return f"{self.outcome} {where}" + ("" if self.precision == Precision.FP32 else f", {self.precision}")

    @property
    def gate_text(self) -> str:
        """The gate's verdict and the largest relative error of any output: "passed 2e-05"; "-" without a verdict."""
        if self.verdict is None:
            return "-"
        largest = self.largest_error
        return self.verdict if largest is None else f"{self.verdict} {largest:{'.0e' if largest < 0.1 else '.2g'}}"


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of the command line for this exception.

    Args:
        error: a text in `SystemExit` is printed and ends with 1, as Python does it; None is no failure.
    """
    match error:
        case PlansmithError():
            return error.exit_code
        case OSError():
            return EnvironmentFault.exit_code
        case KeyboardInterrupt():
            return EXIT_INTERRUPTED
        case SystemExit(code=int(code)):
            return code
        case SystemExit(code=None):
            return 0
    return 1


def _record_from_json(text: bytes) -> RunRecord:
    """Parse a record, ignoring fields that another version of plansmith added.

    Raises:
        ValueError: it is none.
    """
    try:
        return RunRecord.model_validate_json(text)
    except ValidationError as refused:
        unknown = [problem["loc"] for problem in refused.errors() if problem["type"] == "extra_forbidden"]
        if not unknown:
            raise
    fields = json.loads(text)
    for *above, name in unknown:
        place = fields
        for step in above:
            place = place[step]
        del place[name]
    return RunRecord.model_validate_json(json.dumps(fields))


class History:
    """Compile history of one artifacts folder; safe to share between processes.

    Args:
        root: the folder of the records; made when the first is written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.staging = root / "staging"

    def add(self, run: RunRecord) -> None:
        """Write a record as the newest one.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        make_folder(self.staging)
        sweep(self.staging)
        with locked(self.root / ".lock"), staging_folder(self.staging) as staged:
            (staged / "run").write_text(run.model_dump_json())
            fsync_tree(staged)
            newest = max(self.numbers(), default=0)
            move_into_place(staged / "run", self.file(newest + 1))

    def numbers(self) -> list[int]:
        """Return the numbers of all records in the order they were written."""
        files = self.root.glob(f"*{_SUFFIX}") if self.root.is_dir() else ()
        return sorted(int(path.stem) for path in files if path.stem.isdecimal())

    def file(self, number: int) -> Path:
        """Return the path of a record."""
        return self.root / f"{number:06}{_SUFFIX}"

    def read(self, number: int) -> RunRecord | None:
        """Read a record; None if it is damaged or has just been collected."""
        try:
            return _record_from_json(self.file(number).read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def unreadable(self) -> int:
        """Count the records that cannot be read."""
        return sum(self.read(number) is None and self.file(number).exists() for number in self.numbers())

    def newest_first(self) -> Iterator[RunRecord]:
        """Yield all readable records, newest first."""
        for number in reversed(self.numbers()):
            run = self.read(number)
            if run is not None:
                yield run


class Run:
    """Run: a compile in progress.

    Args:
        stages: its steps.
        spec: what was asked for.
        model: the model's name.
        repository: where it is published.
    """

    def __init__(self, stages: StageRunner, spec: ModelSpec, model: str, repository: Path) -> None:
        self._stages = stages
        self._spec = spec
        self._model = model
        self._repository = repository
        self._started = datetime.now(UTC)
        self._clock = time.monotonic()

    def record(self, error: BaseException | None) -> RunRecord:
        """Return the record at the end of the run, with or without an error."""
        source, report = self._stages.results.get("fetch"), self._stages.results.get("validate")
        lowered = self._stages.results.get("lower")
        result = self._stages.results.get("publish")
        published = result if isinstance(result, PublishedVersion) else None
        worst = report.worst().values() if isinstance(report, ValidationReport) else ()
        verdict = report.verdict if isinstance(report, ValidationReport) else None
        if verdict is None and isinstance(error, GateError):
            verdict = "failed"
        return RunRecord(
            plansmith=__version__,
            started=self._started.isoformat(timespec="milliseconds"),
            seconds=round(time.monotonic() - self._clock, 3),
            model=self._model,
            source=self._spec.source,
            revision=source.revision if isinstance(source, SourceModel) else None,
            source_digest=source.digest if isinstance(source, SourceModel) else None,
            target=self._spec.target,
            engine=self._spec.engine,
            precision=self._spec.precision,
            made=lowered.precision if isinstance(lowered, LoweredModel) and lowered.components else None,
            repository=str(self._repository),
            outcome=_outcome(published, error),
            version=published.version if published else None,
            publications=published.publications if published else (),
            failure=None if error is None else self._failure(error),
            verdict=verdict,
            largest_error=max((row["max_relative"] for row in worst), default=None),
            log=self._log(error),
            steps=tuple(self._stages.records),
        )

    def notice(self, text: str) -> None:
        """Report an event that does not end the compile."""
        self._stages.notice(text)

    def _failure(self, error: BaseException) -> Failure:
        step, message = (error.step, error.message) if isinstance(error, PlansmithError) else ("", str(error))
        return Failure(
            step=step or self._stages.step,
            error=type(error).__name__,
            message=message,
            exit_code=exit_code_of(error),
        )

    def _log(self, error: BaseException | None) -> str | None:
        if isinstance(error, PlansmithError) and error.log is not None:
            return str(error.log)
        log = self._stages.log_file("worker")
        return str(log) if log.exists() else None


def _outcome(published: PublishedVersion | None, error: BaseException | None) -> Outcome:
    if error is not None:
        return "failed" if isinstance(error, Exception) else "interrupted"
    return "unchanged" if published and published.unchanged else "published"


@contextmanager
def recorded(run: Run, history: History) -> Iterator[None]:
    """Record the run of the block; if writing fails, only a notice is given."""
    try:
        yield
    except BaseException as error:
        _write(run, history, error)
        raise
    _write(run, history, None)


def _write(run: Run, history: History, error: BaseException | None) -> None:
    try:
        history.add(run.record(error))
    except OSError as problem:
        run.notice(f"this run is missing in the history: {problem.strerror}: {problem.filename or history.root}")
