"""What the receiver answers, keeps, counts and logs; every request goes through the whole application."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.triggers.receiver.application import make_app
from plansmith.triggers.registries.mlflow import HEADERS

from ...support.deliveries.asgi import Answer, ask, at_once, drop_by_drop, run_without_waiting, silence
from ...support.deliveries.receiving import ASKED, HOOK, NOW, Receiver, signed_request
from ...support.deliveries.recorded import DELIVERIES, SECRET, Sent, signed
from ...support.triggers.inboxes import opened
from ..registries.test_hub_deliveries import PUSH

LOGGER = "plansmith.deliveries"


def _lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]


def _push(secret: str = SECRET, **values: Any) -> Sent:
    return Sent({"x-webhook-secret": secret}, json.dumps(PUSH | values).encode())


def test_recorded_deliveries_stored_once() -> None:
    """Recorded deliveries are stored once each, and the others are ignored."""
    receiver = Receiver()
    statuses = []
    for delivery in DELIVERIES:
        receiver.now = delivery.timestamp
        statuses.append(receiver.post(delivery, "/hooks/ours").status)
    assert statuses == [204, 202, 202, 202, 202, 202, 202, 204, 202, 202, 202, 202]
    assert len(receiver.inbox.deliveries) == 8  # two of the last four are the first of them again
    assert receiver.figure("plansmith_deliveries_total", registry="ours", outcome="repeated") == 2


def test_hub_push_and_hook_stored() -> None:
    """A push of the hub and a hook are stored."""
    receiver = Receiver()
    assert receiver.post(_push(), "/hooks/hub").status == receiver.post(signed_request()).status == 202
    assert [event.label for events in receiver.inbox.deliveries.values() for event in events] == [
        "some-user/some-repo, version 575db8b7a51b6f85eb06eee540738584589f131c (branch refs/heads/main)",
        "ranker, version 7 (asked)",
    ]


def test_reset_branch_stored_again_once(tmp_path: Path) -> None:
    """A branch that is set back is stored again, and its repetitions are not."""
    commits = {name: name * 40 for name in "abc"}

    def push(before: str, after: str) -> Sent:
        moved = {"ref": "refs/heads/main", "oldSha": commits[before], "newSha": commits[after]}
        return _push(updatedRefs=[moved])

    with opened(f"sqlite:///{tmp_path}/inbox.db") as inbox:
        app = make_app(Receiver().config, inbox, {"hub": (SECRET,)})
        for before, after in ("ca", "ca", "ab", "ba", "ba", "ab"):
            sent = push(before, after)
            assert asyncio.run(ask(app, "POST", "/hooks/hub", sent.body, headers=sent.headers)).status == 202
        assert [entry.event.version[0] for entry in inbox.entries()[::-1]] == ["a", "b", "a", "b"]


def test_answer_hides_novelty() -> None:
    """An answer does not tell whether it is new or wanted."""
    receiver = Receiver()
    first = receiver.post(signed_request())
    assert first == receiver.post(signed_request()) == receiver.post(signed_request(delivery="d2"))
    assert (first.status, first.body) == (202, b"")
    assert len(receiver.inbox.deliveries) == 2


def test_simultaneous_deliveries_stored_once() -> None:
    """One delivery that comes many times at once is stored once."""
    receiver = Receiver()
    sent = signed_request()
    answers = receiver.together(*(ask(receiver.app, "POST", HOOK, sent.body, headers=sent.headers) for _ in range(40)))
    assert {answer.status for answer in answers} == {202}
    assert len(receiver.inbox.deliveries) == 1
    assert receiver.figure("plansmith_deliveries_total", registry="ci", outcome="stored") == 1


REFUSED: dict[str, tuple[str, Sent, int]] = {
    "forged": (HOOK, signed_request(secret="guessed"), 401),
    "unsigned": (HOOK, Sent({}, b"{}"), 401),
    "of the past": (HOOK, signed_request(timestamp=str(int(NOW) - 301)), 401),
    "of the future": (HOOK, signed_request(timestamp=str(int(NOW) + 301)), 401),
    "signed for another body": (HOOK, replace(signed_request(), body=b'{"model": "other", "version": "7"}'), 401),
    "of another registry": ("/hooks/ours", signed_request(), 401),
    "no JSON": (HOOK, signed_request(b"{"), 400),
    "no object": (HOOK, signed_request([]), 400),
    "a wrong type": (HOOK, signed_request(ASKED | {"model": 1}), 400),
    "deep": (HOOK, signed_request(b"[" * 100_000), 400),
    "of a secret of the hub that is wrong": ("/hooks/hub", _push("guessed"), 401),
    "of the hub and malformed": ("/hooks/hub", _push(repo=None), 400),
    "an unknown name": ("/hooks/theirs", signed_request(), 404),
    "a registry that sends nothing": ("/hooks/here", signed_request(), 404),
    "a name with a slash behind it": ("/hooks/ci/", signed_request(), 404),
    "no name": ("/hooks/", signed_request(), 404),
    "a name that is a way up": ("/hooks/../metrics", signed_request(), 404),
    "another page": ("/", signed_request(), 404),
}


@pytest.mark.parametrize(("path", "sent", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_delivery_told_by_status(path: str, sent: Sent, status: int) -> None:
    """What is refused is told by its status alone, and not stored."""
    receiver = Receiver()
    answer = receiver.post(sent, path)
    assert answer.status == status
    assert answer.body in {b"", b"Not Found"}
    assert not receiver.inbox.deliveries


def test_replayed_delivery_in_vain() -> None:
    """A delivery is replayed in vain."""
    receiver = Receiver()
    assert receiver.post(signed_request()).status == 202
    receiver.now += 301
    assert receiver.post(signed_request()).status == 401
    assert len(receiver.inbox.deliveries) == 1


def test_both_secrets_count_during_rotation() -> None:
    """Both secrets count until the old one is taken away."""
    secrets = {"ci": ["old", "new"]}
    receiver = Receiver(secrets)
    assert [receiver.post(signed_request(secret=key)).status for key in ("old", "new")] == [202, 202]
    secrets["ci"] = ["new"]
    assert [receiver.post(signed_request(secret=key)).status for key in ("old", "new")] == [401, 202]


def test_registry_without_secrets_never_believed() -> None:
    """A registry without secrets is never believed."""
    receiver = Receiver({})
    assert receiver.post(signed_request(secret="")).status == 401
    assert receiver.post(_push(""), "/hooks/hub").status == 401


def test_double_signature_is_none() -> None:
    """A signature beside a second one counts as none."""
    receiver = Receiver()
    sent = signed_request()
    twice = [*sent.headers.items(), ("X-Plansmith-Signature", "v1,other")]
    assert receiver.ask("POST", HOOK, sent.body, headers=twice).status == 401
    assert receiver.ask("POST", HOOK, sent.body, headers={k.upper(): v for k, v in sent.headers.items()}).status == 202


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_a_hook_takes_posts_alone(method: str) -> None:
    answer = Receiver().ask(method, HOOK)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("declared", [None, "1", "2000", "-1", "many", "9" * 400])
def test_overlong_body_cut_off(declared: str | None) -> None:
    """A body is cut off where it is too long, whatever its header says."""
    receiver = Receiver(body_bytes=1024)
    pulled: list[int] = []

    async def endless() -> Any:
        while True:
            pulled.append(1)
            yield b"x" * 100

    headers = {} if declared is None else {"content-length": declared}
    answer = receiver.ask("POST", HOOK, endless(), headers=headers)
    assert (answer.status, answer.headers["connection"], answer.body) == (413, "close", b"")
    assert len(pulled) == 11


def test_exact_size_body_accepted() -> None:
    """A body of just the size is taken in whatever pieces it comes."""
    receiver = Receiver(body_bytes=1024)
    sent = signed_request(json.dumps(ASKED).encode().ljust(1024))
    pieces = at_once(*(sent.body[place : place + 7] for place in range(0, 1024, 7)), b"")
    assert receiver.ask("POST", HOOK, pieces, headers=sent.headers).status == 202
    assert receiver.post(signed_request(sent.body + b" ")).status == 413


@pytest.mark.parametrize("pace", [1e9, 0.9, 0.01], ids=["silent", "slow", "endless"])
def test_whole_body_has_deadline(pace: float) -> None:
    """A client has so long for its whole body."""
    receiver = Receiver(body_seconds=7)

    async def timed() -> tuple[Answer, float]:
        return await ask(
            receiver.app, "POST", HOOK, drop_by_drop(b"x" * 10_000, pace)
        ), asyncio.get_running_loop().time()

    answer, seconds = run_without_waiting(timed())
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert seconds == pytest.approx(7, abs=0.1)


def test_silent_client_not_waited_for() -> None:
    """A client that never sends anything is not waited for."""
    assert run_without_waiting(ask(Receiver(body_seconds=7).app, "POST", HOOK, silence())).status == 408


def test_slow_timely_body_read() -> None:
    """A slow body that ends in time is read."""
    receiver = Receiver(body_seconds=7)
    sent = signed_request([])
    body = drop_by_drop(sent.body, 6.9 / len(sent.body))
    assert run_without_waiting(ask(receiver.app, "POST", HOOK, body, headers=sent.headers)).status == 400


def test_departed_client_counted_not_stored() -> None:
    """A client that goes away is counted and nothing is stored."""
    receiver = Receiver()
    sent = signed_request()
    receiver.ask("POST", HOOK, at_once(sent.body), headers=sent.headers, hangs_up=True)
    assert not receiver.inbox.deliveries
    assert receiver.figure("plansmith_deliveries_total", registry="ci", outcome="left") == 1


def test_fast_address_told_when_to_return() -> None:
    """An address that sends too much is told when to come again."""
    receiver = Receiver(per_minute=3)
    assert [receiver.post(signed_request()).status for _ in range(4)] == [202, 202, 202, 429]
    limited = receiver.post(signed_request())
    assert (limited.status, limited.headers["retry-after"], limited.body) == (429, "20", b"")
    assert receiver.post(signed_request(), address="192.0.2.2").status == 202
    receiver.now += 20
    assert [receiver.post(signed_request()).status for _ in range(2)] == [202, 429]


def test_guesses_count_as_requests() -> None:
    """Guesses of names and secrets count as requests."""
    receiver = Receiver(per_minute=2)
    assert receiver.post(signed_request(secret="guessed")).status == 401
    assert receiver.post(signed_request(), "/hooks/guessed").status == 404
    assert receiver.post(signed_request(), "/hooks/guessed").status == 429


@pytest.mark.parametrize("planted", ["planted", "192.0.2.1 planted", "fe80::1%" + "planted" * 20, "::1\nplanted", ""])
def test_invalid_address_neither_logged_nor_remembered(planted: str, caplog: pytest.LogCaptureFixture) -> None:
    """An address that is no address is neither logged nor remembered."""
    caplog.set_level(logging.INFO, LOGGER)
    receiver = Receiver(per_minute=2)
    assert [receiver.post(signed_request(), address=f"{planted}{number}").status for number in range(3)] == [
        202,
        202,
        429,
    ]
    assert "planted" not in caplog.text


def test_unknown_clients_share_limit() -> None:
    """A server that does not know its client takes all for one."""
    receiver = Receiver(per_minute=1)
    assert [receiver.post(signed_request(), address=None).status for _ in range(2)] == [202, 429]


@pytest.mark.parametrize(
    "fault", [EnvironmentFault("no space left", remedy="make some"), OSError(28, "full"), RuntimeError("")], ids=repr
)
def test_unstorable_delivery_to_be_resent(fault: Exception) -> None:
    """What cannot be stored is to be sent again."""
    receiver = Receiver()
    receiver.inbox.fault = fault
    answer = receiver.post(signed_request())
    assert (answer.status, answer.body) == (503, b"")
    assert receiver.post(signed_request(secret="guessed")).status == 401, "what stays wrong is not sent again"
    receiver.inbox.fault = None
    assert receiver.post(signed_request()).status == 202
    assert len(receiver.inbox.deliveries) == 1


def test_health_follows_inbox() -> None:
    """Health is that of the inbox."""
    receiver = Receiver()
    assert receiver.ask("GET", "/healthz").status == 200
    receiver.inbox.fault = OSError("gone")
    answer = receiver.ask("GET", "/healthz")
    assert (answer.status, answer.body) == (503, b"")
    assert receiver.ask("POST", "/healthz").status == 405


def test_metrics_tell_outcomes_and_seconds() -> None:
    """Metrics tell deliveries by outcome, their seconds and the inbox."""
    receiver = Receiver()
    for sent in (signed_request(), signed_request(), signed_request(secret="guessed"), signed_request([])):
        receiver.post(sent)
    receiver.post(signed_request(), "/hooks/guessed")
    answer = receiver.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.body.decode()
    for outcome in ("stored", "repeated", "signature", "malformed"):
        assert f'plansmith_deliveries_total{{outcome="{outcome}",registry="ci"}} 1.0' in text
    assert 'plansmith_deliveries_total{outcome="unknown",registry=""} 1.0' in text
    assert 'plansmith_delivery_seconds_count{registry="ci"} 4.0' in text
    assert 'plansmith_inbox_entries{state="waiting"} 1.0' in text
    assert "plansmith_inbox_oldest_waiting_seconds 60.0" in text
    assert "guessed" not in text


def test_metrics_survive_unreadable_inbox() -> None:
    """Metrics go on while the inbox cannot be read."""
    receiver = Receiver()
    receiver.post(signed_request())
    assert b"plansmith_inbox_entries{" in receiver.ask("GET", "/metrics").body
    receiver.inbox.fault = OSError("gone")
    answer = receiver.ask("GET", "/metrics")
    assert answer.status == 200
    assert b"plansmith_deliveries_total{" in answer.body
    assert b"plansmith_inbox_entries{" not in answer.body
    assert b"plansmith_inbox_oldest_waiting_seconds NaN" in answer.body


def test_metrics_tell_entry_outcomes() -> None:
    """Metrics tell what came of entries and that none waits."""
    receiver = Receiver()
    for event, outcome in (("build", "built"), ("build", "put-off"), ("build", "built"), ("write-back", "written")):
        receiver.metrics.count_worked(event, outcome)
    text = receiver.ask("GET", "/metrics").body.decode()
    assert 'plansmith_builds_total{outcome="built"} 2.0' in text
    assert 'plansmith_builds_total{outcome="put-off"} 1.0' in text
    assert 'plansmith_write_backs_total{outcome="written"} 1.0' in text
    assert "plansmith_inbox_oldest_waiting_seconds 0.0" in text


def test_metrics_offer_open_metrics() -> None:
    """Metrics come as OpenMetrics to whoever asks for them."""
    answer = Receiver().ask("GET", "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=many",
        "text/plain; version=many",
        "text/plain; version=1.0.0; escaping=odd",
        "application/openmetrics-text; version=" + "9" * 5000,
        ";=,;;=",
    ],
)
def test_metrics_ignore_odd_accept_header(accept: str) -> None:
    """Metrics are told, whatever a scraper says it wants."""
    assert Receiver().ask("GET", "/metrics", headers={"accept": accept}).status == 200


def test_request_is_json_line(caplog: pytest.LogCaptureFixture) -> None:
    """A request is a line of JSON."""
    caplog.set_level(logging.INFO, LOGGER)
    receiver = Receiver()
    receiver.post(signed_request())
    receiver.post(signed_request(secret="guessed", delivery="theirs"))
    stored, refused = _lines(caplog)
    assert stored.pop("milliseconds") >= 0
    assert stored == {
        "event": "delivery",
        "time": "2026-11-20T09:06:48.000+00:00",
        "registry": "ci",
        "outcome": "stored",
        "status": 202,
        "delivery": "d1",
        "events": 1,
        "bytes": len(signed_request().body),
        "address": "192.0.2.1",
    }
    assert (refused["outcome"], refused["status"], refused["events"]) == ("signature", 401, 0)
    assert "delivery" not in refused, "what is not proven is not repeated"


def test_secrets_and_claims_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing secret and nothing unproven is logged."""
    caplog.set_level(logging.DEBUG)
    receiver = Receiver(per_minute=5)
    forged = signed(HEADERS, {"entity": "planted"}, secret="guessed", delivery="planted\n", timestamp="planted")
    receiver.post(forged, "/hooks/ours")
    receiver.post(_push("guessed", planted="planted"), "/hooks/hub")
    receiver.post(signed_request(ASKED | {"planted": "planted"}))
    receiver.post(signed_request(), "/hooks/planted")
    receiver.post(_push(), "/hooks/hub")
    receiver.post(signed_request())
    assert [line["outcome"] for line in _lines(caplog)] == [
        "signature",
        "signature",
        "malformed",
        "unknown",
        "stored",
        "limited",
    ]
    assert not [word for word in ("planted", "guessed", SECRET, "v1,") if word in caplog.text]


def test_unstorable_delivery_logged_with_reason(caplog: pytest.LogCaptureFixture) -> None:
    """What could not be stored is logged with the reason."""
    receiver = Receiver()
    receiver.inbox.fault = OSError("disk full")
    receiver.post(signed_request())
    receiver.ask("GET", "/healthz")
    assert [(line["event"], line["reason"]) for line in _lines(caplog)] == [
        ("delivery", "OSError: disk full"),
        ("unhealthy", "OSError: disk full"),
    ]
    assert {record.levelno for record in caplog.records if record.name == LOGGER} == {logging.ERROR}
