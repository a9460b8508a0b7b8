"""Notes a compile while it runs, and writes the note into the history when it ends, however it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from plansmith import __version__
from plansmith.config.spec import ModelSpec
from plansmith.errors import PlansmithError
from plansmith.records.model import LoweredModel, SourceModel
from plansmith.records.release import PublishedVersion
from plansmith.records.validation import ValidationReport
from plansmith.steps.provenance.history import Failure, History, Outcome, RunRecord, exit_code_of
from plansmith.steps.runner import StageRunner


class Run:
    """A compile that is going on.

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
        """What there is to tell when it has ended, with an error or without."""
        source, report = self._stages.results.get("fetch"), self._stages.results.get("validate")
        lowered = self._stages.results.get("lower")
        made = self._stages.results.get("publish")
        published = made if isinstance(made, PublishedVersion) else None
        worst = report.worst().values() if isinstance(report, ValidationReport) else ()
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
            verdict=report.verdict if isinstance(report, ValidationReport) else None,
            largest_error=max((row["max_relative"] for row in worst), default=None),
            log=self._log(error),
            steps=tuple(self._stages.records),
        )

    def notice(self, text: str) -> None:
        """Tell of something that does not end the compile."""
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
    """Write one record of what happens inside; where that fails, there is a notice and nothing else."""
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
