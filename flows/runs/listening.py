"""Prefect observer of a compile: writes its log and the artifacts of its run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from plansmith.errors import EnvironmentFault, PlansmithError, first_line
from plansmith.fleet.records import ModelOutcome, model_for
from plansmith.flows.prefect_api.patience import AWAY_SECONDS, UNTAKEN, retry_while_unavailable
from plansmith.flows.prefect_api.run_log import RunLog
from plansmith.flows.runs.outcomes import Findings, findings_of, key_of, leave_outcome, outcome_key, tags_of
from plansmith.records.model import Record
from plansmith.records.release import MANIFEST_FILE, REPORT_FILE, PublishedVersion, StepRecord
from plansmith.records.validation import ValidationReport
from plansmith.steps.runner import Listener

TAIL_LINES = 40


class RunListener(Listener):
    """Compile listener that reports to Prefect and to another listener; create it inside a flow run.

    Downloads report from threads of their own, where Prefect knows of no run: the logger is taken once.

    Args:
        model: its name.
        target: the runtime that it is for.
        listener: told as well.
    """

    def __init__(self, model: str, target: str, listener: Listener) -> None:
        self._label = model_for(model, target)
        self._key = key_of(model, target)
        self._tags = tags_of(model, target)
        self._listener = listener
        self._log = get_run_logger()
        self._run_log = RunLog()
        self._judged: ValidationReport | None = None

    def tag_run(self) -> None:
        """Add the tags by which the run is found, however it was started."""
        missing = set(self._tags) - set(flow_run.get_tags() or [])
        if missing:
            self._try("the run's tags", self._set_tags)

    def _set_tags(self) -> None:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(flow_run.get_id()), tags={*flow_run.get_tags(), *self._tags})

    def show_plan(self, plan: Mapping[str, str]) -> None:
        """Show the plan of the compile, step by step."""
        rows = [{"step": step, "state": state} for step, state in plan.items()]
        states = [state for state in plan.values() if state != "left out"]
        title = f"The steps of {self._label}, of which {states.count('cached')} of {len(states)} are cached"
        self._show(create_table_artifact, rows, key=f"plan-{self._key}", description=title)

    def show_release(self, published: PublishedVersion) -> None:
        """Show the location of the release and its report, or the manifest of a release that predates reports."""
        release = Path(published.release)
        shown = next((file for file in (REPORT_FILE, MANIFEST_FILE) if (release / file).is_file()), MANIFEST_FILE)
        self._show(
            create_link_artifact,
            (release / shown).as_uri(),
            link_text=f"{published.name} version {published.version}",
            key=f"release-{self._key}",
            description=f"The {Path(shown).stem} of the release in {published.release}",
        )

    def show_outcome(self, outcome: ModelOutcome, findings: Findings, *, is_awaited: bool) -> None:
        """Store the outcome of the compile; if a remote process waits for it, retry while the API is unavailable."""
        patience = AWAY_SECONDS if is_awaited else 0
        self._try(
            f"the artifact {outcome_key(outcome.model, outcome.target)}",
            lambda: retry_while_unavailable(lambda: leave_outcome(outcome, findings), self.notice, seconds=patience),
        )

    def findings_of(self, ended: PublishedVersion | BaseException) -> Findings:
        """Return the findings of the compile so far; unreadable ones do not make it fail."""
        try:
            return findings_of(ended, self._judged)
        except (PlansmithError, OSError) as error:
            self.notice(f"the figures of the release are left out: {first_line(error)}")
            return Findings()

    def progress(self, step: str, text: str) -> None:
        """Log the current activity."""
        self._listener.progress(step, text)
        if text:
            self._run_log.now_and_then(f"{step}: {text}")

    def moving(self, step: str, text: str, share: float) -> None:
        """Log the progress of a transfer."""
        self._listener.moving(step, text, share)
        if text:
            self._run_log.now_and_then(f"{step}: {text}")

    def waiting(self, step: str, text: str) -> None:
        """Log what the compile waits for."""
        self._listener.waiting(step, text)
        self._log.info("%s: %s", step, text)

    def result(self, record: Record) -> None:
        """Show the accuracy gate's report, whatever its verdict."""
        self._listener.result(record)
        if isinstance(record, ValidationReport):
            self._judged = record
            self._show(
                create_table_artifact,
                _validation_rows(record),
                key=f"validation-{self._key}",
                description=f"Gate {record.verdict}: {record.candidate} against {record.reference}, on {record.data}",
            )

    def finished(self, record: StepRecord) -> None:
        """Log a finished step."""
        self._listener.finished(record)
        self._log.info("%s: %s", record.name, "cached" if record.cached else f"done in {record.seconds:.1f} s")

    def notice(self, text: str) -> None:
        """Log what was repaired."""
        self._listener.notice(text)
        self._log.warning("%s", text)

    def failed(self, error: BaseException) -> None:
        """Log the error that ended the compile: in full, with its log's path and the end of a tool's log."""
        if not isinstance(error, PlansmithError):
            return  # Prefect logs it with its traceback
        self._log.error("%s", error)
        tail = tail_of(error.log) if error.log is not None and error.log.suffix == ".log" else []
        if tail:
            self._log.info("the last lines of %s:\n%s", error.log, "\n".join(tail))

    def _show(self, create: Callable[..., Any], content: Any, **fields: str) -> None:
        """Create an artifact."""
        self._try(f"the artifact {fields['key']}", lambda: create(content, **fields))

    def _try(self, subject: str, give: Callable[[], Any]) -> None:
        """Send something to Prefect; a failure is reported and does not stop the compile."""
        try:
            give()
        except (*UNTAKEN, EnvironmentFault) as error:
            self.notice(f"Prefect did not take {subject}: {first_line(error)}")


def tail_of(log: Path) -> list[str]:
    """Return the last lines of a log; none if it cannot be read."""
    try:
        with log.open(errors="replace") as lines:
            return [line.rstrip("\n") for line in deque(lines, maxlen=TAIL_LINES)]
    except OSError:
        return []


def _validation_rows(report: ValidationReport) -> list[dict[str, Any]]:
    return [
        {
            "output": row.output,
            "case": row.case,
            "shape": "x".join(map(str, row.shape)),
            "largest error": f"{row.max_relative:.1e}",
            "allowed": f"{report.tolerances[row.output].max_relative:.1e}",
            "cosine": f"{row.min_cosine:.9f}",
            "verdict": "; ".join(row.failures) or "passed",
        }
        for row in report.comparisons
    ]
