"""Automations on a real server: a run that falls silent has crashed, and people are told through a block."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID, uuid4

import pytest

from plansmith.flows.deploy.automations import HEARTBEAT, SILENT_STATES, crash_silent_runs, silence_automation
from plansmith.flows.deploy.deployments import service_tag
from plansmith.records.release import PublishedVersion

from ...support.prefect.programs import own_environment
from ...support.prefect.service import Service
from ...support.waiting import wait_until

_SILENT_SECONDS = 20  # Prefect takes ten at least; one that beats each second must not miss as much on a busy machine


@pytest.mark.services
def test_silent_run_has_crashed(service: Service) -> None:
    """A run that falls silent has crashed, and one with a heartbeat lives."""
    with service.client() as client:
        client.create_automation(silence_automation(service.name, "RUNNING", _SILENT_SECONDS))
    silent, lively, foreign = _run(service), _run(service), _run(service, "elsewhere")
    for run in (silent, foreign):
        _beat(service, run)

    def is_crashed() -> bool:
        _beat(service, lively)
        time.sleep(1)
        return bool(_state(service, silent)["type"] == "CRASHED")

    wait_until(is_crashed)
    assert f"no heartbeat for {_SILENT_SECONDS} s" in _state(service, silent)["message"]
    assert [_state(service, run)["type"] for run in (lively, foreign)] == ["RUNNING", "RUNNING"]


@pytest.mark.services
def test_failures_and_publications_are_reported(service: Service) -> None:
    """People are told of failures and publications of the service."""
    with _receiver() as (url, messages):
        _webhook(service, url)
        block = f"custom-webhook/{service.name}"
        service.values["notifications"] = {"failure": [block], "publication": [block]}
        assert service.changes()[f"{service.name}: failures to {block}"] == ("made", ())
        assert service.changes() == {}
        _announce(service, "elsewhere")
        _announce(service, service.name)
        run = _run(service)
        state = {"type": "FAILED", "message": "the gate was not passed"}
        service.server.ask(f"flow_runs/{run}/set_state", state=state)
        wait_until(lambda: len(messages) >= 2, lambda: str(messages))
    by_subject = {message["subject"]: message["body"] for message in messages}
    assert by_subject["resnet50 version 7 published"] == "resnet50 version 7 for local-cpu is in /releases/7"
    (failure,) = [subject for subject in by_subject if "Failed" in subject]
    assert failure.startswith("compile-model Failed: ")
    assert "the gate was not passed" in by_subject[failure]
    assert by_subject[failure].endswith(run), "its address, or its identifier where the server knows no address"
    assert len(messages) == 2
    del service.values["notifications"]
    removals = {name for name, (outcome, _) in service.changes().items() if outcome == "removed"}
    assert removals == {f"{service.name}: failures to {block}", f"{service.name}: publications to {block}"}


@pytest.mark.services
def test_publication_runs_waiting_work(service: Service) -> None:
    """A publication of the service runs what waits for one."""
    service.values |= {"endpoints": ["endpoints"], "flows": {"deploy-endpoints": {"after_publication": True}}}
    name = f"{service.name}: deploy-endpoints after a publication"
    assert service.changes(dry_run=True)[name] == service.changes()[name] == ("made", ())
    assert service.changes() == {}
    _announce(service, "elsewhere")
    _announce(service, service.name)
    its_own = {"deployments": {"name": {"any_": [service.name]}}, "flows": {"name": {"any_": ["deploy-endpoints"]}}}
    wait_until(lambda: service.server.ask("flow_runs/filter", **its_own))
    (run,) = service.server.ask("flow_runs/filter", **its_own)
    assert run["parameters"] == {"endpoints": ["endpoints"]}
    service.values["flows"] = {}
    assert service.changes()[name] == ("removed", ())


@pytest.mark.services
def test_missed_run_end_found_later(service: Service) -> None:
    """A run whose end the server has missed is found afterwards."""
    # Of what happened before the automation was there the server knows as little as of what it has lost.
    silent, lively, foreign = _run(service), _run(service), _run(service, "elsewhere")
    unbegun = _run(service, begun=False)
    time.sleep(_SILENT_SECONDS + 2)
    _beat(service, lively)
    with service.client() as client:
        tags = ["plansmith", service_tag(service.name)]
        assert not list(crash_silent_runs(client, tags)), "nothing says how long is too long"
        for state in SILENT_STATES:
            client.create_automation(silence_automation(service.name, state, _SILENT_SECONDS))
        wait_until(lambda: _is_known(service, lively))
        crashed = list(crash_silent_runs(client, tags))
        assert crashed == [client.read_flow_run(UUID(run)).name for run in (silent, unbegun)]
    assert "no heartbeat for" in _state(service, silent)["message"]
    assert _state(service, unbegun)["type"] == "CRASHED"
    assert "taken up and did not begin within" in _state(service, unbegun)["message"]
    assert [_state(service, run)["type"] for run in (silent, lively, foreign)] == ["CRASHED", "RUNNING", "RUNNING"]


@pytest.mark.services
def test_disabled_automation_stays_off(service: Service) -> None:
    """An automation that was switched off stays off."""
    service.changes()
    name = f"{service.name}: silent runs are crashed"
    with service.client() as client:
        (automation,) = client.read_automations_by_name(name)
        client.pause_automation(automation.id)
        service.values["crashed_after_seconds"] = 600
        assert service.changes()[name] == ("changed", ())
        (changed,) = client.read_automations_by_name(name)
    assert not changed.enabled
    assert "600 s" in changed.description


@contextmanager
def _receiver() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A web server that notes what it is sent: its URL, and that."""
    messages: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", messages
        server.shutdown()


def _webhook(service: Service, url: str) -> None:
    """What a person makes under Blocks in Prefect's pages."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    content = {"subject": "{{subject}}", "body": "{{body}}"}
    with service.client():
        block = CustomWebhookNotificationBlock(name="tests", url=url, json_data=content, headers=None, cookies=None)
        block.save(service.name)


def _run(service: Service, name: str = "", *, begun: bool = True) -> str:
    """A run of a service that nobody carries out: it is running, or a worker only took it up."""
    with service.client() as client:
        flow = client.create_flow_from_name("compile-model")
    fields: dict[str, Any] = {"flow_id": str(flow), "tags": [service_tag(name or service.name)]}
    run = str(service.server.ask("flow_runs/", **fields, state={"type": "PENDING"})["id"])
    if begun:
        service.server.ask(f"flow_runs/{run}/set_state", state={"type": "RUNNING"})
    return run


def _state(service: Service, run: str) -> dict[str, Any]:
    (flow_run,) = service.server.ask("flow_runs/filter", flow_runs={"id": {"any_": [run]}})
    state = flow_run["state"]
    assert isinstance(state, dict)
    return state


def _beat(service: Service, run: str) -> None:
    """What a run's process sends now and then."""
    (flow_run,) = service.server.ask("flow_runs/filter", flow_runs={"id": {"any_": [run]}})
    tags = [{"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"} for tag in flow_run["tags"]]
    _emit(service, HEARTBEAT, f"prefect.flow-run.{run}", tags, {})


def _is_known(service: Service, run: str) -> bool:
    """Whether the server has taken in a heartbeat of a run."""
    event_filter = {"event": {"name": [HEARTBEAT]}, "resource": {"id": [f"prefect.flow-run.{run}"]}}
    return bool(service.server.ask("events/filter", filter=event_filter)["events"])


_FLOW = """
import sys
from prefect import flow, tags
from plansmith.flows.runs.outcomes import announce
from plansmith.records.release import PublishedVersion

@flow
def publish():
    announce(PublishedVersion.model_validate_json(sys.argv[1]), "local-cpu")

with tags(sys.argv[2]):
    publish()
"""


def _announce(service: Service, name: str) -> None:
    """What a compile sends at its end, from a run of a service."""
    published = PublishedVersion(
        name="resnet50" if name == service.name else "not-ours",
        version=7,
        repository="/repository",
        release="/releases/7",
        manifest_digest="0" * 64,
        published="2026-01-01T00:00:00+00:00",
        unchanged=False,
    )
    command = [sys.executable, "-c", _FLOW, published.model_dump_json(), service_tag(name)]
    variables = own_environment(**service.server.variables())
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _emit(service: Service, event: str, resource: str, related: list[dict[str, str]], payload: dict[str, Any]) -> None:
    content = {
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": event,
        "resource": {"prefect.resource.id": resource},
        "related": related,
        "payload": payload,
    }
    service.server.ask("events", [content])
