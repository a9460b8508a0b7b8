"""While Prefect is away a receiver hears what it can judge, and what it cannot yet is to be sent again."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest

from plansmith.config.service.triggers import TriggersConfig
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.triggers.secrets import Secrets

from ..support.deliveries.receiving import HOOK, Receiver, asked
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


def test_where_all_are_there_none_is_awaited(prefect: Prefect) -> None:
    found = secrets_of(prefect)
    assert found.known == {"ours": ("a", "o"), "hub": ("h",), "ci": ("c",)}
    assert (found.awaited, found.fault) == (set(), "")
    found.work(threading.Event())


def test_what_prefect_keeps_is_awaited_while_it_is_away_and_known_when_it_is_there(
    prefect: Prefect, caplog: pytest.LogCaptureFixture
) -> None:
    prefect.goes()
    found = secrets_of(prefect)
    assert {name: one for name, one in found.known.items() if one} == {"ours": ("a",), "ci": ("c",)}
    assert found.awaited == {"ours", "hub"}
    assert found.fault == "the API cannot be reached; start it"
    working = threading.Thread(target=found.work, args=(threading.Event(),))
    with caplog.at_level(logging.INFO, "plansmith.builds"):
        working.start()
        prefect.fault = UsageError("no Secret block old-one", remedy="make one")
        assert soon(lambda: "no Secret block old-one" in found.fault, expected=True)
        prefect.fault = None
        working.join(120)
    assert found.known == {"ours": ("a", "o"), "hub": ("h",), "ci": ("c",)}
    assert found.awaited == set()
    first, second = [json.loads(record.getMessage()) for record in caplog.records]
    assert (first["event"], first["awaited"]) == ("secrets", ["hub", "ours"])
    assert (second["event"], second["known"]) == ("secrets", ["hub", "ours"])


def test_it_ends_when_it_is_told_to_although_some_are_awaited(prefect: Prefect) -> None:
    prefect.goes()
    found, stop = secrets_of(prefect), threading.Event()
    stop.set()
    found.work(stop)
    assert found.awaited == {"ours", "hub"}


@pytest.mark.parametrize(
    "fault",
    [EnvironmentFault("does not let us in", remedy="log in"), UsageError("no Secret block old-one", remedy="make one")],
)
def test_what_does_not_mend_itself_is_an_error_at_the_start(fault: Exception, prefect: Prefect) -> None:
    prefect.fault = fault
    with pytest.raises(type(fault)):
        secrets_of(prefect)


def test_a_variable_that_is_missing_is_an_error_although_prefect_is_away(
    prefect: Prefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefect.goes()
    monkeypatch.delenv("CI")
    with pytest.raises(UsageError, match="env:CI is not set"):
        secrets_of(prefect)


def test_what_cannot_be_judged_yet_is_to_be_sent_again_and_health_tells_of_which_registries() -> None:
    known, awaited = {"ci": ["new"], "ours": ["new"]}, {"ci"}
    receiver = Receiver(known, awaited=awaited)
    answer = receiver.post(asked(secret="old"))
    assert (answer.status, answer.body, answer.headers["retry-after"]) == (503, b"", "30")
    assert receiver.post(asked(secret="new")).status == 202
    assert receiver.post(asked(secret="old"), "/hooks/ours").status == 401, "nothing is awaited for this one"
    health = receiver.ask("GET", "/healthz")
    assert (health.status, health.body) == (200, b"not all of its secrets are known yet: ci\n")
    known["ci"] = ["old", "new"]
    awaited.clear()
    assert receiver.post(asked(secret="old"), HOOK).status == 202
    assert receiver.post(asked(secret="guessed"), HOOK).status == 401
    assert receiver.ask("GET", "/healthz").body == b""
