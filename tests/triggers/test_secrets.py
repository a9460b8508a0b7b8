"""While Prefect is away a receiver hears what it can judge, and what it cannot yet is to be sent again."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest

from plansmith.config.service_triggers import TriggersConfig
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.triggers.secrets import Secrets

from ..support.deliveries.receiving import HOOK, Receiver, signed_request
from ..support.waiting import soon

REGISTRIES: dict[str, Any] = {
    "ours": {"type": "mlflow", "tracking_uri": "http://127.0.0.1:5000", "secrets": ["env:OURS", "block:old-one"]},
    "hub": {"type": "hub", "secrets": ["block:hub-secret"]},
    "ci": {"type": "hook", "secrets": ["env:CI"]},
    "here": {"type": "folder", "path": "models"},
}
RULE = {"registry": "ours", "model": "*", "when": "alias", "spec": "a.yaml"}


class Prefect:
    """Blocks of a server that may be away."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.blocks = {"old-one": "o", "hub-secret": "h"}

    def read(self, name: str) -> str:
        if self.fault is not None:
            raise self.fault
        return self.blocks[name]

    def goes(self) -> None:
        self.fault = EnvironmentFault("the API cannot be reached", remedy="start it", transient=True)


@pytest.fixture
def prefect(monkeypatch: pytest.MonkeyPatch) -> Prefect:
    monkeypatch.setenv("OURS", "a")
    monkeypatch.setenv("CI", "c")
    monkeypatch.setattr("plansmith.triggers.secrets.pause_seconds", lambda *_: 0.001)
    return Prefect()


def secrets_of(prefect: Prefect) -> Secrets:
    config = TriggersConfig.model_validate({"registries": REGISTRIES, "rules": [RULE]})
    return Secrets(config.registries, prefect.read)


def test_complete_secrets_await_none(prefect: Prefect) -> None:
    """Where all are there, none is awaited."""
    secrets = secrets_of(prefect)
    assert secrets.by_registry == {"ours": ("a", "o"), "hub": ("h",), "ci": ("c",)}
    assert (secrets.awaited, secrets.fault) == (set(), "")
    secrets.work(threading.Event())


def test_prefect_secrets_awaited_while_away(prefect: Prefect, caplog: pytest.LogCaptureFixture) -> None:
    """What Prefect keeps is awaited while it is away, and known when it is there."""
    prefect.goes()
    secrets = secrets_of(prefect)
    assert {name: values for name, values in secrets.by_registry.items() if values} == {"ours": ("a",), "ci": ("c",)}
    assert secrets.awaited == {"ours", "hub"}
    assert secrets.fault == "the API cannot be reached; start it"
    working = threading.Thread(target=secrets.work, args=(threading.Event(),))
    with caplog.at_level(logging.INFO, "plansmith.builds"):
        working.start()
        prefect.fault = UsageError("no Secret block old-one", remedy="make one")
        assert soon(lambda: "no Secret block old-one" in secrets.fault, expected=True)
        prefect.fault = None
        working.join(120)
    assert secrets.by_registry == {"ours": ("a", "o"), "hub": ("h",), "ci": ("c",)}
    assert secrets.awaited == set()
    first, second = [json.loads(record.getMessage()) for record in caplog.records]
    assert (first["event"], first["awaited"]) == ("secrets", ["hub", "ours"])
    assert (second["event"], second["known"]) == ("secrets", ["hub", "ours"])


def test_waiting_ends_when_told(prefect: Prefect) -> None:
    """Waiting ends when it is told to, although some secrets are awaited."""
    prefect.goes()
    secrets, stop = secrets_of(prefect), threading.Event()
    stop.set()
    secrets.work(stop)
    assert secrets.awaited == {"ours", "hub"}


@pytest.mark.parametrize(
    "fault",
    [EnvironmentFault("does not let us in", remedy="log in"), UsageError("no Secret block old-one", remedy="make one")],
)
def test_lasting_fault_is_start_error(fault: Exception, prefect: Prefect) -> None:
    """What does not mend itself is an error at the start."""
    prefect.fault = fault
    with pytest.raises(type(fault)):
        secrets_of(prefect)


def test_missing_variable_error_without_prefect(prefect: Prefect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is missing is an error, although Prefect is away."""
    prefect.goes()
    monkeypatch.delenv("CI")
    with pytest.raises(UsageError, match="env:CI is not set"):
        secrets_of(prefect)


def test_unjudged_delivery_to_be_resent() -> None:
    """What cannot be judged yet is to be sent again, and health tells of which registries."""
    secrets, awaited = {"ci": ["new"], "ours": ["new"]}, {"ci"}
    receiver = Receiver(secrets, awaited=awaited)
    answer = receiver.post(signed_request(secret="old"))
    assert (answer.status, answer.body, answer.headers["retry-after"]) == (503, b"", "30")
    assert receiver.post(signed_request(secret="new")).status == 202
    assert receiver.post(signed_request(secret="old"), "/hooks/ours").status == 401, "nothing is awaited for this one"
    health = receiver.ask("GET", "/healthz")
    assert (health.status, health.body) == (200, b"not all of its secrets are known yet: ci\n")
    secrets["ci"] = ["old", "new"]
    awaited.clear()
    assert receiver.post(signed_request(secret="old"), HOOK).status == 202
    assert receiver.post(signed_request(secret="guessed"), HOOK).status == 401
    assert receiver.ask("GET", "/healthz").body == b""
