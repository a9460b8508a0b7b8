"""Tells Prefect how a compile goes: its log, and the artifacts of its run."""

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
from plansmith.fleet.records import ModelOutcome
from plansmith.fleet.text import model_for
from plansmith.flows.prefect_api.patience import AWAY_SECONDS, UNTAKEN, retry_while_unavailable
from plansmith.flows.prefect_api.run_log import RunLog
from plansmith.flows.runs.findings import Findings, findings_of
from plansmith.flows.runs.outcomes import key_of, leave_outcome, outcome_key, tags_of
from plansmith.records.model import Record
from plansmith.records.release import MANIFEST_FILE, PublishedVersion, StepRecord
from plansmith.records.validation import ValidationReport
from plansmith.report import REPORT_FILE
from plansmith.steps.runner import Listener

TAIL_LINES = 40


class RunListener(Listener):
    """Tells Prefect how a compile goes, and another listener; make it inside a flow run.

    Downloads report from threads of their own, where Prefect knows of no run: the logger is taken once.

    Args:
        model: its name.
        target: the runtime that it is for.
        other: told as well.
    """

    def __init__(self, model: str, target: str, other: Listener) -> None:
        self._label = model_for(model, target)
        self._key = key_of(model, target)
        self._tags = tags_of(model, target)
        self._other = other
        self._log = get_run_logger()
        self._run_log = RunLog()
        self._judged: ValidationReport | None = None

    def tag_run(self) -> None:
        """Give the run the tags that it is found by, whoever started it."""
        missing = set(self._tags) - set(flow_run.get_tags() or [])
        if missing:
            self._try("the run's tags", self._set_tags)

    def _set_tags(self) -> None:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(flow_run.get_id()), tags={*flow_run.get_tags(), *self._tags})

    def show_plan(self, plan: Mapping[str, str]) -> None:
        """Show what the compile has to do, step by step."""
        rows = [{"step": step, "state": state} for step, state in plan.items()]
        wanted = [state for state in plan.values() if state != "left out"]
        words = f"The steps of {self._label}, of which {wanted.count('cached')} of {len(wanted)} are cached"
        self._show(create_table_artifact, rows, key=f"plan-{self._key}", description=words)

    def show_release(self, published: PublishedVersion) -> None:
        """Show where the release and its report are; its manifest where it is older than reports."""
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
        """Leave what came of the compile; where a process elsewhere waits for it, also when the API is away now."""
        patience = AWAY_SECONDS if is_awaited else 0
        self._try(
            f"the artifact {outcome_key(outcome.model, outcome.target)}",
            lambda: retry_while_unavailable(lambda: leave_outcome(outcome, findings), self.notice, seconds=patience),
        )

    def findings_of(self, ended: PublishedVersion | BaseException) -> Findings:
        """What was found out until the compile ended; what cannot be read is no reason for it to fail."""
        try:
            return findings_of(ended, self._judged)
        except (PlansmithError, OSError) as error:
            self.notice(f"the figures of the release are left out: {first_line(error)}")
            return Findings()

    def progress(self, step: str, text: str) -> None:
        """Log what is being done."""
        self._other.progress(step, text)
        if text:
            self._run_log.now_and_then(f"{step}: {text}")

    def moving(self, step: str, text: str, share: float) -> None:
        """Log how far something is."""
        self._other.moving(step, text, share)
        if text:
            self._run_log.now_and_then(f"{step}: {text}")

    def waiting(self, step: str, text: str) -> None:
        """Log what has to end first."""
        self._other.waiting(step, text)
        self._log.info("%s: %s", step, text)

    def result(self, record: Record) -> None:
        """Show the gate's report, whatever its verdict."""
        self._other.result(record)
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
        self._other.finished(record)
        self._log.info("%s: %s", record.name, "cached" if record.cached else f"done in {record.seconds:.1f} s")

    def notice(self, text: str) -> None:
        """Log what was mended."""
        self._other.notice(text)
        self._log.warning("%s", text)

    def failed(self, error: BaseException) -> None:
        """Log what ended the compile: the error in full, where its log is, and how a tool's log ends."""
        if not isinstance(error, PlansmithError):
            return  # Prefect logs it with its traceback
        self._log.error("%s", error)
        tail = tail_of(error.log) if error.log is not None and error.log.suffix == ".log" else []
        if tail:
            self._log.info("the last lines of %s:\n%s", error.log, "\n".join(tail))

    def _show(self, create: Callable[..., Any], content: Any, **words: str) -> None:
        """Make an artifact."""
        self._try(f"the artifact {words['key']}", lambda: create(content, **words))

    def _try(self, what: str, give: Callable[[], Any]) -> None:
        """Give something to Prefect; what it does not take is no reason to end a compile."""
        try:
            give()
        except (*UNTAKEN, EnvironmentFault) as error:
            self.notice(f"Prefect did not take {what}: {first_line(error)}")


def tail_of(log: Path) -> list[str]:
    """The last lines of a log; none where it cannot be read."""
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
