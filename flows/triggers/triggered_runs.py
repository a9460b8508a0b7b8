"""Runs of `compile-model` that events of registries ask for: each once, whoever asks and however often."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from plansmith.config.service.service import SERVED
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.flows.deploy.pool_deployments import find_deployment
from plansmith.flows.prefect_api.api import asking, fault_from
from plansmith.flows.runs.findings import Findings
from plansmith.flows.runs.numbered_runs import (
    newest_of,
    numbered,
    read_keyed,
    read_later,
    read_unfinished,
    run_group_of,
)
from plansmith.flows.runs.submitting import SubmittedRun, WantedCompile, check_parameters, submit, submitted_run

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

    from plansmith.flows.runs.endings import RunEnded


TRIGGERED = "plansmith-trigger:"
"""Begins the keys of runs that events ask for."""


@dataclass(frozen=True)
class Order:
    """A compile that is to be run once.

    Args:
        wanted: what to compile.
        pool: the work pool that builds it.
        key: of what is built; two with the same key are one.
    """

    wanted: WantedCompile
    pool: str
    key: str


@dataclass(frozen=True)
class Blocked:
    """An order that waits for the end of a run of the same model: what comes first is published first."""

    run: SubmittedRun


@dataclass(frozen=True)
class RunOutcome:
    """A run that has ended.

    Args:
        run: how.
        findings: what it left beside that; nothing where it could not.
        is_last: no event has had another version of its model published since.
    """

    run: RunEnded
    findings: Findings
    is_last: bool = True


class TriggeredRuns:
    """Starts runs at a Prefect API, without patience of its own: whoever asks asks again later. For several threads.

    Args:
        shown: the URL of the API, from `configured_api`.
    """

    are_inline = False

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def start(
        self, order: Order, before: Collection[str], is_so: Callable[[], bool] | None
    ) -> SubmittedRun | Blocked | None:
        """The run of an order: the newest that was started for it, or else a new one.

        Args:
            order: what is to be built, and where.
            before: ids of runs that a person found wanting: where the newest run is one of these and ended without
                success, it is no answer, and the next one is started. Asked again with the same ids, that one is the
                answer.
            is_so: whether what the event told is still so, asked before something is started. A run after which another
                one of the model went well is no answer then: what is served may be something else. None where what
                the event told stays so for good.

        Returns:
            the run; the one that it waits for; or None where the registry says otherwise.

        Raises:
            UsageError: its deployment takes no such parameters.
            EnvironmentFault: there is no deployment for it yet, or the API cannot be reached or does not answer as it
                should; or what `is_so` raises.
        """
        from plansmith.flows.runs.outcomes import tags_of

        wanted = order.wanted
        with self._asking() as client:
            number, newest = newest_of(partial(read_keyed, client), order.key)
            deployment = _deployment(client, order.pool)
            kin = run_group_of([*tags_of(wanted.model, wanted.target), *deployment.tags], deployment.id)
            is_answer = newest is not None and not _is_wanting(newest, before)
            if newest is not None and is_answer and (is_so is None or not read_later(client, newest, kin)):
                return submitted_run(newest)
            if is_so is not None and not is_so():
                return None
            if unfinished := read_unfinished(client, kin):
                return Blocked(submitted_run(unfinished[0]))
            check_parameters(wanted, deployment)
            free = number if newest is None else number + 1
            return submit(client, wanted, deployment, numbered(order.key, free))

    def ended(self, run: str) -> RunOutcome | None:
        """How a run ended, and what it found out; None while it goes on or waits.

        Args:
            run: its id.

        Raises:
            EnvironmentFault: the API cannot be reached, or does not answer as it should; or what the run left cannot be
                read.
        """
        from prefect.exceptions import ObjectNotFound

        from plansmith.flows.runs.endings import DELETED, RunEnded, ended_run
        from plansmith.flows.runs.outcomes import read_findings

        number = UUID(run)
        with self._asking() as client:
            try:
                found = client.read_flow_run(number)
            except ObjectNotFound:
                return RunOutcome(RunEnded(SubmittedRun(number, "", ""), DELETED, ""), Findings())
            if found.state is None or not found.state.is_final():
                return None
            ended, findings = ended_run(submitted_run(found), found.state), read_findings(number) or Findings()
            later = read_later(client, found, run_group_of(found.tags, found.deployment_id))
            return RunOutcome(ended, findings, is_last=not any(_is_of_another_order(run, found) for run in later))

    @contextmanager
    def _asking(self) -> Iterator[SyncPrefectClient]:
        try:
            with asking(self._shown, retries=0) as client:
                yield client
        except RuntimeError as error:
            from plansmith.flows.prefect_api.patience import is_away

            # Prefect's client says in one that there is no API.
            if not is_away(error):
                raise
            raise fault_from(error, self._shown) from error


def _is_of_another_order(run: FlowRun, than: FlowRun) -> bool:
    """Whether a run was asked for by an event that told of something else."""
    key = str(run.idempotency_key)
    return key.startswith(TRIGGERED) and key.rpartition(":")[0] != str(than.idempotency_key).rpartition(":")[0]


def _is_wanting(run: FlowRun, before: Collection[str]) -> bool:
    ended_badly = run.state is not None and run.state.is_final() and not run.state.is_completed()
    return ended_badly and str(run.id) in before


def _deployment(client: SyncPrefectClient, pool: str) -> DeploymentResponse:
    """The deployment of a pool; where one process serves all flows and the pool has none, that of this process.

    Raises:
        EnvironmentFault: there is none yet.
    """
    try:
        return find_deployment(client, pool)
    except UsageError as missing:
        try:
            return find_deployment(client, SERVED)
        except UsageError:
            raise EnvironmentFault(missing.message, remedy=missing.remedy) from None
