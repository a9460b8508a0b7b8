"""Automations of Prefect's server around the runs of a service: who died is noticed, and people are told.

They are evaluated by the server, so that they work when every worker is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from plansmith.config.service.service import ServiceConfig
from plansmith.errors import UsageError
from plansmith.flows.deploy.changes import Change
from plansmith.flows.deploy.deployments import service_tag

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import Automation, AutomationCore

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
_SILENT, _UNBEGUN = "silent runs are crashed", "runs that do not begin are crashed"
_WINDOWS = {"RUNNING": _SILENT, "PENDING": _UNBEGUN}
"""Which automation says how long a run in a state may be silent."""
_TELLS = "notify"
"""What Prefect calls the ability of a block to send a text to people."""

_COMPARED = ("description", "tags", "trigger", "actions")


def silent_run_automation(service: str, seconds: float) -> AutomationCore:
    """Calls a run crashed that began and sent no heartbeat, nor an end, for so long.

    As in Prefect's guide to zombie flows (docs.prefect.io, advanced/detect-zombie-flows), which waits for a first
    heartbeat: a run that dies between its beginning and that one would count as running for ever.

    Args:
        service: its name.
        seconds: how long a run may be silent.
    """
    return _crash(
        service,
        _SILENT,
        f"A run that sent no heartbeat for {seconds:g} s has lost its worker or its machine.",
        after=(_BEGUN, HEARTBEAT),
        expect=(HEARTBEAT, *_PUT_BACK, *_ENDED),
        seconds=seconds,
        message=silence_message("RUNNING", seconds),
    )


def silence_message(state: str, seconds: float) -> str:
    """Why a run counts as crashed that was in a state, RUNNING or PENDING, for so many seconds without a word."""
    said = "sent no heartbeat for" if state == "RUNNING" else "was taken up and did not begin within"
    return f"It {said} {seconds:.0f} s: its worker or its machine is gone."


def silence_limits(client: SyncPrefectClient, service: str) -> dict[str, float]:
    """For how many seconds a run of a service may be silent, by its state.

    The automations of the service say so; a state whose automation is not there, or is off, is left out.
    """
    limits = {}
    for state, name in _WINDOWS.items():
        found = client.read_automations_by_name(f"{service}: {name}")
        windows = [getattr(one.trigger, "within", None) for one in found if one.enabled]
        if seconds := [window.total_seconds() for window in windows if window is not None]:
            limits[state] = seconds[0]
    return limits


def unbegun_run_automation(service: str, seconds: float) -> AutomationCore:
    """Calls a run crashed that a worker took up and that did not begin: it has no heartbeat that could be missed.

    Args:
        service: its name.
        seconds: how long a run may take to begin.
    """
    return _crash(
        service,
        _UNBEGUN,
        f"A run that a worker took up and that did not begin within {seconds:g} s has lost its worker or its machine.",
        after=(_TAKEN_UP,),
        expect=(_BEGUN, *_PUT_BACK, *_ENDED),
        seconds=seconds,
        message=silence_message("PENDING", seconds),
    )


def _crash(
    service: str,
    name: str,
    description: str,
    *,
    after: Sequence[str],
    expect: Sequence[str],
    seconds: float,
    message: str,
) -> AutomationCore:
    """Calls a run crashed when nothing that is expected comes for so long after one of some events."""
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    return AutomationCore(
        name=f"{service}: {name}",
        description=description,
        tags=[service_tag(service)],
        trigger=EventTrigger(
            after=set(after),
            expect=set(expect),
            match=ResourceSpecification({"prefect.resource.id": [_RUNS]}),
            match_related=ResourceSpecification(_tagged(service)),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=seconds),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", force=False, message=message)],
    )


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


def apply_automations(client: SyncPrefectClient, config: ServiceConfig, *, dry_run: bool) -> Iterator[Change]:
    """Make, change, leave or remove the automations of a service, and say which.

    One that was switched off in Prefect's pages stays off; those that are not the service's are not looked at.

    Raises:
        UsageError: a block is not there, or tells nobody; nothing was changed.
    """
    present = {one.name: one for one in client.read_automations() if service_tag(config.name) in one.tags}
    for wanted in _automations(client, config):
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
        silent_run_automation(config.name, config.crashed_after_seconds),
        unbegun_run_automation(config.name, config.begun_after_seconds),
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
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    return AutomationCore(
        name=name,
        description="Made by plansmith flows.",
        tags=[service_tag(service)],
        trigger=EventTrigger(
            expect=expect,
            match=ResourceSpecification(match),
            match_related=ResourceSpecification(_tagged(service)),
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[SendNotification(block_document_id=document, subject=subject, body=body)],
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
