"""Automations of Prefect's server around the runs of a service: who died is noticed, and people are told.

They are evaluated by the server, so that they work when every worker is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from plansmith.config.service.service import ServiceConfig
from plansmith.errors import UsageError
from plansmith.flows.deploy.changes import Change
from plansmith.flows.deploy.deployments import service_tag

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger

HEARTBEAT = "prefect.flow-run.heartbeat"
PUBLISHED = "plansmith.release.published"
"""The event that a compile emits when a version was published."""
RELEASES = "plansmith.release."
"""How the resources of these events begin."""

_ENDED = tuple(f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "TimedOut", "Cancelled", "Crashed"))
_TAKEN_UP, _BEGUN = "prefect.flow-run.Pending", "prefect.flow-run.Running"
_BACK = ("Scheduled", "AwaitingConcurrencySlot", "AwaitingRetry", "Late", "Resuming", "Paused", "Suspended")
_PUT_BACK = tuple(f"prefect.flow-run.{state}" for state in _BACK)
"""Nothing carries a run out that waits to be taken up, or to be resumed: it need not say that it lives."""
_RUNS = "prefect.flow-run.*"
_TELLS = "notify"
"""What Prefect calls the ability of a block to send a text to people."""

_DESCRIPTION = "Made by plansmith flows."

_COMPARED = ("description", "tags", "trigger", "actions")


@dataclass(frozen=True)
class _Silence:
    """What a run in a state has to say from time to time, and what is said of one that does not.

    Args:
        name: of the automation, behind the service's.
        after: the events from which on it is waited for.
        expect: the events that show that somebody carries the run out, or need not.
        said: what the run did not do, before the seconds.
    """

    name: str
    after: tuple[str, ...]
    expect: tuple[str, ...]
    said: str


# As in Prefect's guide to zombie flows (docs.prefect.io, advanced/detect-zombie-flows), which waits for a first
# heartbeat: a run that dies between its beginning and that one would count as running for ever. One that does not begin
# has no heartbeat that could be missed.
_SILENCES = {
    "RUNNING": _Silence(
        "silent runs are crashed",
        after=(_BEGUN, HEARTBEAT),
        expect=(HEARTBEAT, *_PUT_BACK, *_ENDED),
        said="sent no heartbeat for",
    ),
    "PENDING": _Silence(
        "runs that do not begin are crashed",
        after=(_TAKEN_UP,),
        expect=(_BEGUN, *_PUT_BACK, *_ENDED),
        said="was taken up and did not begin within",
    ),
}
SILENT_STATES = tuple(_SILENCES)
"""The types of states in which a run must not stay without a word."""


def silence_automation(service: str, state: str, seconds: float) -> AutomationCore:
    """Calls a run crashed that was in a state for so long without a sign that somebody carries it out.

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
        description=f"A run that {silence.said} {seconds:g} s has lost its worker or its machine.",
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
    """Why a run counts as crashed that was in one of SILENT_STATES for so many seconds without a word."""
    return f"It {_SILENCES[state].said} {seconds:.0f} s: its worker or its machine is gone."


def silence_limit(client: SyncPrefectClient, service: str, state: str) -> float | None:
    """For how many seconds a run of a service may be silent in one of SILENT_STATES, as its automation says.

    None where that is not there, or is off. Of several of its name, as two hurried deploys may make, the most patient
    counts.
    """
    found = client.read_automations_by_name(f"{service}: {_SILENCES[state].name}")
    windows = [getattr(one.trigger, "within", None) for one in found if one.enabled]
    return max((window.total_seconds() for window in windows if window is not None), default=None)


def failure_automation(service: str, block: str, document: UUID) -> AutomationCore:
    """Tells people through a block that a run of the service failed or crashed."""
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
    """Tells people through a block that a version was published."""
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
    """Runs a deployment of the service when one of its runs has published a version."""
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
    """Make, change, leave or remove the automations of a service, and say which.

    One that was switched off in Prefect's pages stays off; those that are not the service's are not looked at.

    Args:
        client: of the server.
        config: the service.
        after_publication: the deployments that run after a publication, by flow.
        dry_run: whether to say only what would be done.

    Raises:
        UsageError: a block is not there, or tells nobody; nothing was changed.
    """
    present = {one.name: one for one in client.read_automations() if service_tag(config.name) in one.tags}
    runs = [run_automation(config.name, flow, deployment) for flow, deployment in after_publication.items()]
    for wanted in (*_automations(client, config), *runs):
        outcome = _applied(client, wanted, present.pop(wanted.name, None), dry_run=dry_run)
        yield Change(what="automation", name=wanted.name, outcome=outcome)
    for name, found in present.items():
        if not dry_run:
            client.delete_automation(found.id)
        yield Change(what="automation", name=name, outcome="removed")


def _applied(
    client: SyncPrefectClient, wanted: AutomationCore, found: Automation | None, *, dry_run: bool
) -> Literal["made", "changed", "left"]:
    if found is None:
        if not dry_run:
            client.create_automation(wanted)
        return "made"
    if _content(found) == _content(wanted):
        return "left"
    if not dry_run:
        client.update_automation(found.id, wanted.model_copy(update={"enabled": found.enabled}))
    return "changed"


def require_blocks(client: SyncPrefectClient, config: ServiceConfig) -> dict[str, UUID]:
    """The blocks that people are told through, by TYPE/NAME.

    Raises:
        UsageError: one is not there; names those that are.
    """
    from prefect.exceptions import ObjectNotFound

    wanted = {*config.notifications.failure, *config.notifications.publication}
    found: dict[str, UUID] = {}
    for block in sorted(wanted):
        kind, _, name = block.partition("/")
        try:
            document = client.read_block_document_by_name(name=name, block_type_slug=kind, include_secrets=False)
        except ObjectNotFound as error:
            raise UsageError(
                f"the Prefect server has no block {block}; those that tell people: {_telling(client) or 'none at all'}",
                remedy=f"make it under Blocks in Prefect's pages, of the type {kind}; or name another one in the file",
            ) from error
        found[block] = document.id
    return found


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
    """Each event of the service's runs, as it comes."""
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
    """What the events of a service's runs are related to."""
    return {"prefect.resource.id": f"prefect.tag.{service_tag(service)}"}


def _content(automation: Any) -> dict[str, Any]:
    """What of an automation is compared: the server adds identifiers of its own, and sets have no order."""
    content = automation.model_dump(mode="json", include=set(_COMPARED))
    trigger = content["trigger"]
    trigger.pop("id", None)
    return {**content, "trigger": {**trigger, "expect": sorted(trigger["expect"]), "after": sorted(trigger["after"])}}
