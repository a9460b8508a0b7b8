"""Fleet run: plans, shows the plan, builds stale models, and shows the outcome."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import create_progress_artifact, create_table_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled

from plansmith.errors import UsageError
from plansmith.fleet import records
from plansmith.fleet.build import outcome_unbuilt
from plansmith.fleet.members import SpecOverrides
from plansmith.fleet.plan import plan_fleet
from plansmith.fleet.records import FleetSummary, ModelOutcome, PlannedModel
from plansmith.flows.deploy.automations import crash_silent_runs
from plansmith.flows.fleet.awaiting import build_on_pools
from plansmith.flows.fleet.pool_runs import Dispatch, PoolRuns
from plansmith.flows.local.fleet import build_here
from plansmith.flows.prefect_api.cancelling import passing_on
from plansmith.flows.prefect_api.patience import UNTAKEN
from plansmith.flows.prefect_api.run_log import failed_state
from plansmith.flows.runs.outcomes import server_time

PLAN_KEY, PROGRESS_KEY, SUMMARY_KEY = "fleet-plan", "fleet-progress", "fleet-summary"

_WHOLE = 100
_MOST_NAMED = 10


@dataclass(frozen=True)
class FleetOrder:
    """A fleet run as requested; the fields are the parameters of `compile_fleet`."""

    specs: Sequence[str]
    overrides: SpecOverrides
    models: Sequence[str] = ()
    resolve: bool = False
    force: bool = False
    folder: str = "."
    dispatch: Dispatch = field(default_factory=Dispatch)


def run_fleet(order: FleetOrder) -> Any:
    """Plan and build a fleet, inside a flow run.

    Returns:
        The summary as JSON values; a state that holds it, Failed where a model failed or was refused, Cancelled after
        an interrupt.

    Raises:
        UsageError: there is no such folder.
        EnvironmentFault: the Prefect API was away for too long.
    """
    if not Path(order.folder).is_dir():
        raise UsageError(f"there is no folder {order.folder}", remedy="correct the parameter `folder`")
    with contextlib.chdir(order.folder), passing_on(UUID(flow_run.get_id())):
        return _run(order, _Shown())


def _run(order: FleetOrder, shown: _Shown) -> Any:
    started, began = time.monotonic(), server_time()
    shown.show_crashed()
    overrides, places = order.overrides.values, [Path(place).absolute() for place in order.specs]
    how: dict[str, Any] = {"models": order.models, "resolve": order.resolve, "force": order.force}
    how |= {"refuse_unknown": True, "elsewhere": bool(order.dispatch.pools)}
    planned = list(plan_fleet(places, overrides, **how, tell=shown.notice))
    shown.show_plan(planned)
    outcomes: list[ModelOutcome] = []
    try:
        for outcome in _build(order, planned, overrides, began, shown):
            outcomes.append(outcome)
            shown.show_outcome(outcome, len(outcomes), len(planned))
    except KeyboardInterrupt:
        ended = {_identity(item) for item in outcomes}
        left = [outcome_unbuilt(item) for item in planned if _identity(item) not in ended]
        shown.show_summary(_summary(planned, [*outcomes, *left], started))
        return Cancelled(message="It was interrupted; what is published stays, and the next run goes on after it.")
    summary = _summary(planned, outcomes, started)
    shown.show_summary(summary)
    document = summary.model_dump(mode="json")
    return failed_state(_describe_failure(summary), document) if summary.failed else document


def _build(
    order: FleetOrder, planned: Sequence[PlannedModel], overrides: dict[str, Any], began: datetime, shown: _Shown
) -> Iterator[ModelOutcome]:
    if order.dispatch.pools:
        runs = PoolRuns(UUID(flow_run.get_id()), began, shown.notice)
        dispatch = replace(order.dispatch, folder=order.folder)
        return build_on_pools(planned, overrides, dispatch, runs, shown.notice)
    return build_here(planned, overrides, shown.notice)


def _summary(planned: Sequence[PlannedModel], outcomes: Sequence[ModelOutcome], started: float) -> FleetSummary:
    """The summary in the order of the plan, not in the order of completion."""
    places = {_identity(item): number for number, item in enumerate(planned)}
    ordered = sorted(outcomes, key=lambda item: places[_identity(item)])
    return FleetSummary(outcomes=tuple(ordered), seconds=round(time.monotonic() - started, 3))


def _identity(entry: PlannedModel | ModelOutcome) -> tuple[str, str, str, str]:
    return entry.file, entry.model, entry.target, entry.repository


def _describe_failure(summary: FleetSummary) -> str:
    names = [outcome.model or Path(outcome.file).name for outcome in summary.failed]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{records.summary_counts(summary)}: {', '.join(names[:_MOST_NAMED])}{more}"


class _Shown:
    """The output of a fleet run: its log, a table of the plan, its progress, and a table of results."""

    def __init__(self) -> None:
        self._log = get_run_logger()
        self._progress: UUID | None = None

    def notice(self, text: str) -> None:
        self._log.warning("%s", text)

    def show_crashed(self) -> None:
        """Mark the service's silently dead runs as crashed: this run would wait for them, or queue behind them."""
        try:
            with get_client(sync_client=True) as client:
                for name in crash_silent_runs(client, flow_run.get_tags() or []):
                    self.notice(f"{name} had not been heard of for too long, and counts as crashed now")
        except UNTAKEN as error:
            self.notice(f"dead runs were not looked for: {error or type(error).__name__}")

    def show_plan(self, planned: Sequence[PlannedModel]) -> None:
        counts = records.plan_counts(planned)
        self._log.info("%s", counts)
        for model in planned:
            if model.state != "fresh":
                self._log.info("%s is %s: %s", records.label_of(model), model.state, records.why(model))
        self._try(lambda: create_table_artifact(records.plan_rows(planned), key=PLAN_KEY, description=counts))
        self._try(self._begin_progress)

    def _begin_progress(self) -> None:
        artifact: Any = create_progress_artifact(0.0, key=PROGRESS_KEY, description="How many of the models are done")
        self._progress = artifact

    def show_outcome(self, outcome: ModelOutcome, done: int, of: int) -> None:
        message = f"{records.label_of(outcome)}: {records.describe_outcome(outcome)}"
        if outcome.failure:
            self._log.error("%s: %s", message, records.outcome_reason(outcome))
        elif outcome.ended != "fresh":
            self._log.info("%s", message)
        if self._progress is not None and (outcome.ended != "fresh" or done == of):
            artifact = self._progress
            self._try(lambda: update_progress_artifact(artifact, progress=_WHOLE * done / of))

    def show_summary(self, summary: FleetSummary) -> None:
        counts = records.summary_counts(summary)
        self._log.info("%s", counts)
        rows = [_in_pages(row) for row in records.summary_rows(summary)]
        self._try(lambda: create_table_artifact(rows, key=SUMMARY_KEY, description=counts))

    def _try(self, give: Callable[[], Any]) -> None:
        """Send something to Prefect; a failure is reported and does not stop the builds."""
        try:
            give()
        except UNTAKEN as error:
            self.notice(f"Prefect did not take an artifact of {flow_run.get_name()}: {error or type(error).__name__}")


def _in_pages(row: dict[str, str]) -> dict[str, str]:
    """A row of the summary for Prefect's pages: cells are Markdown, and a long one hides those after it."""
    shown = {name: cell for name, cell in row.items() if name not in {"run", "why"}}
    shown["took"] = row["took"].strip("-")
    shown["run"] = f"[{row['model']}]({row['run']})" if row.get("run", "").startswith("http") else row.get("run", "")
    return shown | {"why": row["why"]}
