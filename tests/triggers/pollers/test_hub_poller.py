"""Branches and tags of the hub are told as its webhooks would have told them, through the hub's own client."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from plansmith.config.service_triggers import HubRegistry, Rule
from plansmith.errors import EnvironmentFault
from plansmith.triggers.pollers.hub import HubPoller
from plansmith.triggers.registries.delivery import Delivery, Event
from plansmith.triggers.registries.huggingface import HEADER, read_delivery

from ...support.servers.hub_server import COMMIT, Hub, running

NOW = 1795165608.0
NEXT = "b" * 40
MAIN = Rule(registry="hub", model="org/model", when="branch", value="refs/heads/main", spec="ranker.yaml")
TAGS = MAIN.model_copy(update={"value": "refs/tags/*"})


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    (tmp_path / "published").mkdir()
    with running(tmp_path / "published") as server:
        _use(server.url, monkeypatch)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        yield server


def _use(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT does to a process that is started with it."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)


class Looks:
    """Looks at the hub by some rules."""

    def __init__(self, *rules: Rule) -> None:
        self.messages: list[str] = []
        self.poller = HubPoller("hub", HubRegistry(type="hub"), rules, tell=self.messages.append)

    def deliveries(self) -> list[Delivery]:
        return self.poller.poll(NOW)

    def __call__(self) -> list[tuple[str, str, str]]:
        """Model, branch or tag, and commit of all that is told."""
        events = [event for delivery in self.deliveries() for event in delivery.events]
        assert all(event.source == f"hf:{event.model}@{event.version}" for event in events)
        return [(event.model, event.value, event.version) for event in events]


def test_wanted_branches_and_tags_told(hub: Hub) -> None:
    """Branches and tags that rules want are told with their commits."""
    hub.refs = {"refs/heads/main": COMMIT, "refs/heads/try": NEXT, "refs/tags/v1": COMMIT, "refs/tags/v2": NEXT}
    assert Looks(MAIN)() == [("org/model", "refs/heads/main", COMMIT)]
    look = Looks(MAIN, TAGS)
    assert look() == [
        ("org/model", "refs/heads/main", COMMIT),
        ("org/model", "refs/tags/v1", COMMIT),
        ("org/model", "refs/tags/v2", NEXT),
    ]
    assert look.messages == []
    # The hub's own client may ask for what is no model, once a day.
    paths = {path for _, path, _ in hub.requests if path.startswith("/api/models/")}
    assert paths == {"/api/models/org/model/refs"}


def test_moved_branch_has_other_id(hub: Hub) -> None:
    """A branch that moves has another ID, and one that stays has the same."""
    look = Looks(MAIN)
    first = look.deliveries()
    assert look.deliveries() == first
    hub.refs["refs/heads/main"] = NEXT
    second = look.deliveries()
    assert [event.version for delivery in second for event in delivery.events] == [NEXT]
    assert second[0].id != first[0].id


def test_look_matches_webhook(hub: Hub) -> None:
    """A look tells the same event as the webhook."""
    body = b"""{"event": {"action": "update", "scope": "repo.content"},
      "repo": {"type": "model", "name": "org/model", "id": "5f3a1c"},
      "updatedRefs": [{"ref": "refs/heads/main", "oldSha": null, "newSha": "%s"}]}""" % COMMIT.encode()
    config = HubRegistry(type="hub", secrets=("env:SECRET",))
    delivery = read_delivery(config, {HEADER: "s"}, body, registry="hub", secrets=["s"], now=NOW)
    assert isinstance(delivery, Delivery)
    (looked,) = Looks(MAIN).deliveries()
    assert looked.events == delivery.events
    assert hub.requests


def test_branch_and_tag_told_apart(hub: Hub) -> None:
    """A branch and a tag of one name are told apart."""
    hub.refs = {"refs/heads/v1": NEXT, "refs/tags/v1": COMMIT}
    assert Looks(TAGS)() == [("org/model", "refs/tags/v1", COMMIT)]


def test_missing_model_told_once(hub: Hub) -> None:
    """What is not there is said once and holds up no other."""
    absent = MAIN.model_copy(update={"model": "org/absent"})
    release = MAIN.model_copy(update={"value": "refs/heads/release"})
    look = Looks(absent, release, MAIN)
    assert look() == look() == [("org/model", "refs/heads/main", COMMIT)]
    assert look.messages == [
        "the hub has no model 'org/absent' that you may read",
        "org/model has no refs/heads/release on the hub",
    ]
    hub.refs["refs/heads/release"] = NEXT
    assert len(look()) == 2
    del hub.refs["refs/heads/release"]
    look()
    assert len(look.messages) == 3


def test_partial_names_not_looked_at(hub: Hub) -> None:
    """Models that are not named in full are said not to be looked at."""
    look = Looks(MAIN.model_copy(update={"model": "org/*"}))
    assert look() == []
    (caution,) = look.poller.cautions
    assert caution.startswith("org/* is not looked at")
    assert hub.requests == []


def test_non_hub_name_never_asked(hub: Hub) -> None:
    """A name that is none of the hub's is never asked for."""
    look = Looks(MAIN.model_copy(update={"model": "../../etc"}))
    assert look() == []
    assert look.messages == ["the hub has no model '../../etc' that you may read"]
    assert hub.requests == []


def test_absent_hub_is_passing_fault(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that is away is a fault that may pass."""
    look = Looks(MAIN)
    hub.unavailable = 1
    with pytest.raises(EnvironmentFault, match="503") as busy:
        look()
    assert busy.value.transient
    assert len(look()) == 1
    _use("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(EnvironmentFault, match="org/model") as away:
        look()
    assert away.value.transient


def test_forbidden_hub_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that must not be asked is told."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentFault, match="HF_HUB_OFFLINE is set"):
        Looks(MAIN)()
    assert hub.requests == []


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"branches": [7], "tags": []}', b'{"branches": null, "tags": []}', b"\xff"]
)
def test_non_hub_is_clear_error(body: bytes, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no hub is one clear error."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        _use(f"http://127.0.0.1:{server.server_address[1]}", monkeypatch)
        try:
            with pytest.raises(EnvironmentFault, match="is no hub") as caught:
                Looks(MAIN)()
        finally:
            server.shutdown()
            thread.join()
    assert "HF_ENDPOINT" in caught.value.remedy
    assert hub.requests == []


def test_unprintable_names_left_out(hub: Hub) -> None:
    """Names that cannot be shown are left out."""
    hub.refs = {"refs/tags/v1": COMMIT, "refs/tags/v\n2": COMMIT, "refs/tags/v\x1b[2J": COMMIT}
    assert Looks(TAGS)() == [("org/model", "refs/tags/v1", COMMIT)]


def test_invalid_commit_left_out(hub: Hub) -> None:
    """A commit that is no commit is left out."""
    hub.refs = {"refs/heads/main": "main --help", "refs/tags/v1": COMMIT}
    assert [event.version for event in _events(Looks(MAIN, TAGS))] == [COMMIT]


def _events(look: Looks) -> list[Event]:
    return [event for delivery in look.deliveries() for event in delivery.events]
