"""Which events the automations of a service wait for, held against Prefect's own rules, without a server."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from prefect.server.events.schemas.automations import EventTrigger
from prefect.server.events.schemas.events import ReceivedEvent

from plansmith.config.service import ServiceConfig
from plansmith.flows.deploy.automations import SILENT_STATES, publication_automation, silence_automation
from plansmith.flows.deploy.deployments import service_tag
from plansmith.flows.prefect_api.patience import AWAY_SECONDS
from plansmith.flows.runs import outcomes
from plansmith.records.release import PublishedVersion

PUBLISHED = PublishedVersion(
    name="ResNet_50",
    version=7,
    repository="/repository",
    release="/releases/7",
    manifest_digest="0" * 64,
    published="2026-01-01T00:00:00+00:00",
    unchanged=False,
)


def test_publication_event_reaches_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event of a publication is one that people are told of."""
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr("prefect.events.emit_event", lambda event, **fields: sent.append({"event": event, **fields}))
    outcomes.announce(PUBLISHED, "triton-26.08")
    (fields,) = sent
    trigger = _trigger(publication_automation("ours", "custom-webhook/tests", uuid4()))
    assert trigger.covers(_event("ours", **fields))
    assert not trigger.covers(_event("another", **fields))


@pytest.mark.parametrize("state", ["Scheduled", "AwaitingRetry", "Late", "Paused", "Suspended", "TimedOut", "Failed"])
def test_abandoned_run_needs_no_heartbeat(state: str) -> None:
    """A run that nobody carries out any more need not send heartbeats."""
    for silent in SILENT_STATES:
        trigger = _trigger(silence_automation("ours", silent, 900))
        event = _event(
            "ours", event=f"prefect.flow-run.{state}", resource={"prefect.resource.id": "prefect.flow-run.x"}
        )
        assert trigger.covers(event)
        assert trigger.expects(event.event)
        assert not trigger.starts_after(event.event)


def test_waiting_run_is_not_crashed() -> None:
    """A run that waits for its server is not called crashed for it."""
    config = ServiceConfig.model_validate({"specs": ["specs"], "pools": {"a": {}}})
    assert config.crashed_after_seconds > AWAY_SECONDS
    assert config.begun_after_seconds > AWAY_SECONDS


def _trigger(automation: Any) -> EventTrigger:
    """As the server has it."""
    return EventTrigger.model_validate(automation.trigger.model_dump(mode="json", exclude={"id"}))


def _event(service: str, **fields: Any) -> ReceivedEvent:
    """As the server has it: with the tags of the run that sent it."""
    tag = {"prefect.resource.id": f"prefect.tag.{service_tag(service)}", "prefect.resource.role": "tag"}
    occurred = "2026-01-01T00:00:00+00:00"
    return ReceivedEvent.model_validate(
        {"id": uuid4(), "occurred": occurred, "received": occurred, "related": [tag], "payload": {}, **fields}
    )
