"""Prefect automations on the runs of a service: detect crashed runs and notify users.

They are evaluated by the server, so that they work when every worker is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal

from plansmith.config.service import ServiceConfig
from plansmith.errors import UsageError
from plansmith.flows.deploy.deployments import service_tag
from plansmith.records.model import Record

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import OrchestrationResult
    from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger

HEARTBEAT = "prefect.flow-run.heartbeat"
PUBLISHED = "plansmith.release.published"
"""The event that a compile emits when a version was published."""

RELEASES = "plansmith.release."
"""How the resources of these events begin."""

_ENDED = tuple(f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "TimedOut", "Cancelled", "Crashed"))
_BACK = ("Scheduled", "AwaitingConcurrencySlot", "AwaitingRetry", "Late", "Resuming", "Paused", "Suspended")
_PUT_BACK = tuple(f"prefect.flow-run.{state}" for state in _BACK)
"""Nothing carries a run out that waits to be taken up, or to be resumed: it need not say that it lives."""

_RUNS = "prefect.flow-run.*"
_TELLS = "notify"
"""What Prefect calls the ability of a block to send a text to people."""

_DESCRIPTION = "Made by plansmith flows."
_COMPARED = ("description", "tags", "trigger", "actions")
_PAGE = 200


class Change(Record):
    """Change to one object on Prefect's server; `words` lists the differences."""

    what: Literal["work pool", "deployment", "automation"]
    name: str
    outcome: Literal["made", "changed", "left", "removed"]
    words: tuple[str, ...] = ()


class Deployed(Record):
    """Result of deploying a service.

    `unattended`: the pools whose runs nobody takes up now. `crashed`: the names of runs that counted as running, and
    had not been heard of for too long.
    """

    changes: tuple[Change, ...]
    unattended: tuple[str, ...] = ()
    crashed: tuple[str, ...] = ()


_TAKEN_UP, _BEGUN = "prefect.flow-run.Pending", "prefect.flow-run.Running"


@dataclass(frozen=True)
class _Silence:
    """A heartbeat rule: the events due from a run in a state, and the message for one that sends none.

    Args:
        name: of the automation, behind the service's.
        after: the events from which on it is waited for.
        expect: the events that show that somebody carries the run out, or need not.
        description: what the run did not do, before the seconds.
    """

    name: str
    after: tuple[str, ...]
    expect: tuple[str, ...]
    description: str


# As in Prefect's guide to zombie flows (docs.prefect.io, advanced/detect-zombie-flows), which waits for a first
# heartbeat: a run that dies between its beginning and that one would count as running for ever. One that does not begin
# has no heartbeat that could be missed.
_SILENCES = {
    "RUNNING": _Silence(
        "silent runs are crashed",
        after=(_BEGUN, HEARTBEAT),
        expect=(HEARTBEAT, *_PUT_BACK, *_ENDED),
        description="sent no heartbeat for",
    ),
    "PENDING": _Silence(
        "runs that do not begin are crashed",
        after=(_TAKEN_UP,),
        expect=(_BEGUN, *_PUT_BACK, *_ENDED),
        description="was taken up and did not begin within",
    ),
}
SILENT_STATES = tuple(_SILENCES)
"""The types of states in which a run must not stay without a word."""


def silence_automation(service: str, state: str, seconds: float) -> AutomationCore:
    """Return the automation that marks a run as crashed after so long in a state without a sign of life.

    Args:
        service: its name.
        state: one of SILENT_STATES.
        seconds: how long a run may be silent.
    """
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    silence = _SILENCES[state]
    message = silence_message(state, seconds)
    return AutomationCore(
        name=f"{service}: {silence.name}",
        description=f"A run that {silence.description} {seconds:g} s has lost its worker or its machine.",
        tags=[service_tag(service)],
        trigger=EventTrigger(
            after=set(silence.after),
            expect=set(silence.expect),
            match=ResourceSpecification({"prefect.resource.id": [_RUNS]}),
            match_related=ResourceSpecification(_tagged(service)),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=seconds),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", force=False, message=message)],
    )


def silence_message(state: str, seconds: float) -> str:
    """Return the message for a run marked as crashed after so many silent seconds in one of SILENT_STATES."""
    return f"It {_SILENCES[state].description} {seconds:.0f} s: its worker or its machine is gone."


def silence_limit(client: SyncPrefectClient, service: str, state: str) -> float | None:
    """Return how many seconds a service's run may be silent in one of SILENT_STATES, from its automation.

    None where that is not there, or is off. Of several of its name, as two hurried deploys may make, the most patient
    counts.
    """
    automations = client.read_automations_by_name(f"{service}: {_SILENCES[state].name}")
    windows = [getattr(automation.trigger, "within", None) for automation in automations if automation.enabled]
    return max((window.total_seconds() for window in windows if window is not None), default=None)


def failure_automation(service: str, block: str, document: UUID) -> AutomationCore:
    """Return the automation that notifies people through a block when a run of the service failed or crashed."""
    return _notification(
        f"{service}: failures to {block}",
        service,
        document,
        expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
        match={"prefect.resource.id": _RUNS},
        subject="{{ flow.name }} {{ flow_run.state.name }}: {{ flow_run.name }}",
        # The server knows the address of its pages where PREFECT_UI_URL is set.
        body="{{ flow_run.state.message }}\n{{ flow_run | ui_url or flow_run.id }}",
    )


def publication_automation(service: str, block: str, document: UUID) -> AutomationCore:
    """Return the automation that notifies people through a block when a version was published."""
    return _notification(
        f"{service}: publications to {block}",
        service,
        document,
        expect={PUBLISHED},
        match={"prefect.resource.id": f"{RELEASES}*"},
        subject="{{ event.payload.model }} version {{ event.payload.version }} published",
        body="{{ event.payload.model }} version {{ event.payload.version }} for {{ event.payload.target }}"
        " is in {{ event.payload.release }}",
    )


def run_automation(service: str, flow: str, deployment: UUID) -> AutomationCore:
    """Return the automation that runs a deployment of the service when one of its runs has published a version."""
    from prefect.events.actions import RunDeployment
    from prefect.events.schemas.automations import AutomationCore

    return AutomationCore(
        name=f"{service}: {flow} after a publication",
        description=_DESCRIPTION,
        tags=[service_tag(service)],
        trigger=_trigger(service, expect={PUBLISHED}, match={"prefect.resource.id": f"{RELEASES}*"}),
        actions=[RunDeployment(source="selected", deployment_id=deployment, parameters=None, job_variables=None)],
    )


def apply_automations(
    client: SyncPrefectClient, config: ServiceConfig, after_publication: Mapping[str, UUID], *, dry_run: bool
) -> Iterator[Change]:
    """Create, update, keep or remove the automations of a service, and yield the changes.

    One that was switched off in Prefect's pages stays off; those that are not the service's are not looked at.

    Args:
        client: of the server.
        config: the service.
        after_publication: the deployments that run after a publication, by flow.
        dry_run: whether to say only what would be done.

    Raises:
        UsageError: a block is not there, or tells nobody; nothing was changed.
    """
    present = {
        automation.name: automation
        for automation in client.read_automations()
        if service_tag(config.name) in automation.tags
    }
    runs = [run_automation(config.name, flow, deployment) for flow, deployment in after_publication.items()]
    for definition in (*_automations(client, config), *runs):
        outcome = _applied(client, definition, present.pop(definition.name, None), dry_run=dry_run)
        yield Change(what="automation", name=definition.name, outcome=outcome)
    for name, existing in present.items():
        if not dry_run:
            client.delete_automation(existing.id)
        yield Change(what="automation", name=name, outcome="removed")


def _applied(
    client: SyncPrefectClient, definition: AutomationCore, existing: Automation | None, *, dry_run: bool
) -> Literal["made", "changed", "left"]:
    if existing is None:
        if not dry_run:
            client.create_automation(definition)
        return "made"
    if _content(existing) == _content(definition):
        return "left"
    if not dry_run:
        client.update_automation(existing.id, definition.model_copy(update={"enabled": existing.enabled}))
    return "changed"


def require_blocks(client: SyncPrefectClient, config: ServiceConfig) -> dict[str, UUID]:
    """Return the notification blocks, by TYPE/NAME.

    Raises:
        UsageError: one is not there; names those that are.
    """
    from prefect.exceptions import ObjectNotFound

    names = {*config.notifications.failure, *config.notifications.publication}
    ids: dict[str, UUID] = {}
    for block in sorted(names):
        kind, _, name = block.partition("/")
        try:
            document = client.read_block_document_by_name(name=name, block_type_slug=kind, include_secrets=False)
        except ObjectNotFound as error:
            raise UsageError(
                f"the Prefect server has no block {block}; those that tell people: {_telling(client) or 'none at all'}",
                remedy=f"make it under Blocks in Prefect's pages, of the type {kind}; or name another one in the file",
            ) from error
        ids[block] = document.id
    return ids


def _telling(client: SyncPrefectClient) -> str:
    documents = client.read_block_documents(include_secrets=False)
    names = [
        f"{document.block_type.slug}/{document.name}"
        for document in documents
        if document.block_type and document.block_schema and _TELLS in document.block_schema.capabilities
    ]
    return ", ".join(sorted(names))


def _automations(client: SyncPrefectClient, config: ServiceConfig) -> Sequence[AutomationCore]:
    documents = require_blocks(client, config)
    failures, publications = config.notifications.failure, config.notifications.publication
    return [
        silence_automation(config.name, "RUNNING", config.crashed_after_seconds),
        silence_automation(config.name, "PENDING", config.begun_after_seconds),
        *(failure_automation(config.name, block, documents[block]) for block in failures),
        *(publication_automation(config.name, block, documents[block]) for block in publications),
    ]


def _notification(
    name: str,
    service: str,
    document: UUID,
    *,
    expect: set[str],
    match: dict[str, str | list[str]],
    subject: str,
    body: str,
) -> AutomationCore:
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import AutomationCore

    return AutomationCore(
        name=name,
        description=_DESCRIPTION,
        tags=[service_tag(service)],
        trigger=_trigger(service, expect=expect, match=match),
        actions=[SendNotification(block_document_id=document, subject=subject, body=body)],
    )


def _trigger(service: str, *, expect: set[str], match: dict[str, str | list[str]]) -> EventTrigger:
    """A trigger for each event of the service's runs, as it arrives."""
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    return EventTrigger(
        expect=expect,
        match=ResourceSpecification(match),
        match_related=ResourceSpecification(_tagged(service)),
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )


def _tagged(service: str) -> dict[str, str | list[str]]:
    """The related resource of events from a service's runs."""
    return {"prefect.resource.id": f"prefect.tag.{service_tag(service)}"}


def _content(automation: Any) -> dict[str, Any]:
    """The comparable content of an automation: without server-side identifiers, and with sets in a fixed order."""
    content = automation.model_dump(mode="json", include=set(_COMPARED))
    trigger = content["trigger"]
    trigger.pop("id", None)
    return {**content, "trigger": {**trigger, "expect": sorted(trigger["expect"]), "after": sorted(trigger["after"])}}


def crash_silent_runs(client: SyncPrefectClient, tags: Iterable[str]) -> Iterator[str]:
    """Mark runs of services as crashed that were silent for too long, and yield their names.

    A running run is silent since its last heartbeat, one that a worker took up since then. How long that may be is what
    the service's automations on the server say; without them nothing is done.

    Args:
        client: of the server.
        tags: those of services say which ones; others are not looked at.

    Raises:
        httpx.HTTPError: the server does not answer.
    """
    for service in (tag.removeprefix(service_tag("")) for tag in tags if tag.startswith(service_tag(""))):
        limits = {state: silence_limit(client, service, state) for state in SILENT_STATES}
        now = _server_time(client)
        for state, limit in limits.items():
            if limit is None:
                continue
            for run in _runs(client, service_tag(service), state):
                silent = (now - _heard_of(client, run, now)).total_seconds()
                if silent > limit and _crash(client, run, silence_message(state, silent)):
                    yield run.name


def _server_time(client: SyncPrefectClient) -> datetime:
    """The server's current time, by the clock that stamps received heartbeats."""
    return parsedate_to_datetime(client.hello().headers["date"])


def _runs(client: SyncPrefectClient, tag: str, state: str) -> list[FlowRun]:
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    run_filter = FlowRunFilter.model_validate({"tags": {"all_": [tag]}, "state": {"type": {"any_": [state]}}})
    runs: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(
            flow_run_filter=run_filter, sort=FlowRunSort.START_TIME_ASC, limit=_PAGE, offset=len(runs)
        )
        runs += page
        if len(page) < _PAGE:
            return runs


def _heard_of(client: SyncPrefectClient, run: FlowRun, now: datetime) -> datetime:
    """When the server last heard from a run: its last heartbeat or state change."""
    from prefect.events.filters import EventFilter, EventNameFilter, EventOrder, EventResourceFilter

    beats = EventFilter(
        event=EventNameFilter(name=[HEARTBEAT]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
        order=EventOrder.DESC,
    )
    heard = [event.received for event in client.read_events(beats, limit=1).events]
    return max([*heard, run.state.timestamp if run.state else now])


def _crash(client: SyncPrefectClient, run: FlowRun, message: str) -> bool:
    """Set a run to Crashed; return whether the server accepted it, as a run that just ended keeps its state."""
    from prefect.client.schemas.responses import SetStateStatus
    from prefect.states import Crashed

    answer: OrchestrationResult[Any] = client.set_flow_run_state(run.id, Crashed(message=message))
    return answer.status == SetStateStatus.ACCEPT
