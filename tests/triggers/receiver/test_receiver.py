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
from ...support.deliveries.receiving import ASKED, HOOK, NOW, Receiver, asked
from ...support.deliveries.recorded import DELIVERIES, SECRET, Sent, signed
from ...support.triggers.inboxes import opened
from ..registries.test_hub_deliveries import PUSH

LOGGER = "plansmith.deliveries"


def _lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]


def _push(secret: str = SECRET, **values: Any) -> Sent:
    return Sent({"x-webhook-secret": secret}, json.dumps(PUSH | values).encode())


def test_recorded_deliveries_are_stored_once_each_and_the_others_are_ignored() -> None:
    receiver = Receiver()
    statuses = []
    for one in DELIVERIES:
        receiver.now = one.timestamp
        statuses.append(receiver.post(one, "/hooks/ours").status)
    assert statuses == [204, 202, 202, 202, 202, 202, 202, 204, 202, 202, 202, 202]
    assert len(receiver.inbox.kept) == 8  # two of the last four are the first of them again
    assert receiver.figure("plansmith_deliveries_total", registry="ours", outcome="repeated") == 2


def test_a_push_of_the_hub_and_a_hook_are_stored() -> None:
    receiver = Receiver()
    assert receiver.post(_push(), "/hooks/hub").status == receiver.post(asked()).status == 202
    assert [event.words for events in receiver.inbox.kept.values() for event in events] == [
        "some-user/some-repo, version 575db8b7a51b6f85eb06eee540738584589f131c (branch refs/heads/main)",
        "ranker, version 7 (asked)",
    ]


def test_a_branch_that_is_set_back_is_stored_again_and_its_repetitions_are_not(tmp_path: Path) -> None:
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


def test_an_answer_does_not_tell_whether_it_is_new_or_wanted() -> None:
    receiver = Receiver()
    first = receiver.post(asked())
    assert first == receiver.post(asked()) == receiver.post(asked(delivery="d2"))
    assert (first.status, first.body) == (202, b"")
    assert len(receiver.inbox.kept) == 2


def test_one_delivery_that_comes_many_times_at_once_is_stored_once() -> None:
    receiver = Receiver()
    sent = asked()
    answers = receiver.together(*(ask(receiver.app, "POST", HOOK, sent.body, headers=sent.headers) for _ in range(40)))
    assert {answer.status for answer in answers} == {202}
    assert len(receiver.inbox.kept) == 1
    assert receiver.figure("plansmith_deliveries_total", registry="ci", outcome="stored") == 1


REFUSED: dict[str, tuple[str, Sent, int]] = {
    "forged": (HOOK, asked(secret="guessed"), 401),
    "unsigned": (HOOK, Sent({}, b"{}"), 401),
    "of the past": (HOOK, asked(timestamp=str(int(NOW) - 301)), 401),
    "of the future": (HOOK, asked(timestamp=str(int(NOW) + 301)), 401),
    "signed for another body": (HOOK, replace(asked(), body=b'{"model": "other", "version": "7"}'), 401),
    "of another registry": ("/hooks/ours", asked(), 401),
    "no JSON": (HOOK, asked(b"{"), 400),
    "no object": (HOOK, asked([]), 400),
    "a wrong type": (HOOK, asked(ASKED | {"model": 1}), 400),
    "deep": (HOOK, asked(b"[" * 100_000), 400),
    "of a secret of the hub that is wrong": ("/hooks/hub", _push("guessed"), 401),
    "of the hub and malformed": ("/hooks/hub", _push(repo=None), 400),
    "an unknown name": ("/hooks/theirs", asked(), 404),
    "a registry that sends nothing": ("/hooks/here", asked(), 404),
    "a name with a slash behind it": ("/hooks/ci/", asked(), 404),
    "no name": ("/hooks/", asked(), 404),
    "a name that is a way up": ("/hooks/../metrics", asked(), 404),
    "another page": ("/", asked(), 404),
}


@pytest.mark.parametrize(("path", "sent", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_is_told_by_its_status_alone_and_not_stored(path: str, sent: Sent, status: int) -> None:
    receiver = Receiver()
    answer = receiver.post(sent, path)
    assert answer.status == status
    assert answer.body in {b"", b"Not Found"}
    assert not receiver.inbox.kept


def test_a_delivery_is_replayed_in_vain() -> None:
    receiver = Receiver()
    assert receiver.post(asked()).status == 202
    receiver.now += 301
    assert receiver.post(asked()).status == 401
    assert len(receiver.inbox.kept) == 1


def test_both_secrets_count_until_the_old_one_is_taken_away() -> None:
    secrets = {"ci": ["old", "new"]}
    receiver = Receiver(secrets)
    assert [receiver.post(asked(secret=one)).status for one in ("old", "new")] == [202, 202]
    secrets["ci"] = ["new"]
    assert [receiver.post(asked(secret=one)).status for one in ("old", "new")] == [401, 202]


def test_a_registry_without_secrets_is_never_believed() -> None:
    receiver = Receiver({})
    assert receiver.post(asked(secret="")).status == 401
    assert receiver.post(_push(""), "/hooks/hub").status == 401


def test_a_signature_beside_a_second_one_is_none() -> None:
    receiver = Receiver()
    sent = asked()
    twice = [*sent.headers.items(), ("X-Plansmith-Signature", "v1,other")]
    assert receiver.ask("POST", HOOK, sent.body, headers=twice).status == 401
    assert receiver.ask("POST", HOOK, sent.body, headers={k.upper(): v for k, v in sent.headers.items()}).status == 202


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_a_hook_takes_posts_alone(method: str) -> None:
    answer = Receiver().ask(method, HOOK)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("declared", [None, "1", "2000", "-1", "many", "9" * 400])
def test_a_body_is_cut_off_where_it_is_too_long_whatever_its_header_says(declared: str | None) -> None:
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


def test_a_body_of_just_the_size_is_taken_in_whatever_pieces_it_comes() -> None:
    receiver = Receiver(body_bytes=1024)
    sent = asked(json.dumps(ASKED).encode().ljust(1024))
    pieces = at_once(*(sent.body[place : place + 7] for place in range(0, 1024, 7)), b"")
    assert receiver.ask("POST", HOOK, pieces, headers=sent.headers).status == 202
    assert receiver.post(asked(sent.body + b" ")).status == 413


@pytest.mark.parametrize("pace", [1e9, 0.9, 0.01], ids=["silent", "slow", "endless"])
def test_a_client_has_so_long_for_its_whole_body(pace: float) -> None:
    receiver = Receiver(body_seconds=7)

    async def timed() -> tuple[Answer, float]:
        return await ask(
            receiver.app, "POST", HOOK, drop_by_drop(b"x" * 10_000, pace)
        ), asyncio.get_running_loop().time()

    answer, seconds = run_without_waiting(timed())
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert seconds == pytest.approx(7, abs=0.1)


def test_a_client_that_never_sends_anything_is_not_waited_for() -> None:
    assert run_without_waiting(ask(Receiver(body_seconds=7).app, "POST", HOOK, silence())).status == 408


def test_a_slow_body_that_ends_in_time_is_read() -> None:
    receiver = Receiver(body_seconds=7)
    sent = asked([])
    body = drop_by_drop(sent.body, 6.9 / len(sent.body))
    assert run_without_waiting(ask(receiver.app, "POST", HOOK, body, headers=sent.headers)).status == 400


def test_a_client_that_goes_away_is_counted_and_nothing_is_stored() -> None:
    receiver = Receiver()
    sent = asked()
    receiver.ask("POST", HOOK, at_once(sent.body), headers=sent.headers, hangs_up=True)
    assert not receiver.inbox.kept
    assert receiver.figure("plansmith_deliveries_total", registry="ci", outcome="left") == 1


def test_an_address_that_sends_too_much_is_told_when_to_come_again() -> None:
    receiver = Receiver(per_minute=3)
    assert [receiver.post(asked()).status for _ in range(4)] == [202, 202, 202, 429]
    limited = receiver.post(asked())
    assert (limited.status, limited.headers["retry-after"], limited.body) == (429, "20", b"")
    assert receiver.post(asked(), address="192.0.2.2").status == 202
    receiver.now += 20
    assert [receiver.post(asked()).status for _ in range(2)] == [202, 429]


def test_guesses_of_names_and_secrets_count_as_requests() -> None:
    receiver = Receiver(per_minute=2)
    assert receiver.post(asked(secret="guessed")).status == 401
    assert receiver.post(asked(), "/hooks/guessed").status == 404
    assert receiver.post(asked(), "/hooks/guessed").status == 429


@pytest.mark.parametrize("planted", ["planted", "192.0.2.1 planted", "fe80::1%" + "planted" * 20, "::1\nplanted", ""])
def test_an_address_that_is_none_is_neither_logged_nor_remembered(
    planted: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    receiver = Receiver(per_minute=2)
    assert [receiver.post(asked(), address=f"{planted}{number}").status for number in range(3)] == [202, 202, 429]
    assert "planted" not in caplog.text


def test_a_server_that_does_not_know_its_client_takes_all_for_one() -> None:
    receiver = Receiver(per_minute=1)
    assert [receiver.post(asked(), address=None).status for _ in range(2)] == [202, 429]


@pytest.mark.parametrize(
    "fault", [EnvironmentFault("no space left", remedy="make some"), OSError(28, "full"), RuntimeError("")], ids=repr
)
def test_what_cannot_be_stored_is_to_be_sent_again(fault: Exception) -> None:
    receiver = Receiver()
    receiver.inbox.fault = fault
    answer = receiver.post(asked())
    assert (answer.status, answer.body) == (503, b"")
    assert receiver.post(asked(secret="guessed")).status == 401, "what stays wrong is not sent again"
    receiver.inbox.fault = None
    assert receiver.post(asked()).status == 202
    assert len(receiver.inbox.kept) == 1


def test_health_is_that_of_the_inbox() -> None:
    receiver = Receiver()
    assert receiver.ask("GET", "/healthz").status == 200
    receiver.inbox.fault = OSError("gone")
    answer = receiver.ask("GET", "/healthz")
    assert (answer.status, answer.body) == (503, b"")
    assert receiver.ask("POST", "/healthz").status == 405


def test_metrics_tell_deliveries_by_outcome_their_seconds_and_the_inbox() -> None:
    receiver = Receiver()
    for sent in (asked(), asked(), asked(secret="guessed"), asked([])):
        receiver.post(sent)
    receiver.post(asked(), "/hooks/guessed")
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


def test_metrics_go_on_while_the_inbox_cannot_be_read() -> None:
    receiver = Receiver()
    receiver.post(asked())
    assert b"plansmith_inbox_entries{" in receiver.ask("GET", "/metrics").body
    receiver.inbox.fault = OSError("gone")
    answer = receiver.ask("GET", "/metrics")
    assert answer.status == 200
    assert b"plansmith_deliveries_total{" in answer.body
    assert b"plansmith_inbox_entries{" not in answer.body
    assert b"plansmith_inbox_oldest_waiting_seconds NaN" in answer.body


def test_metrics_tell_what_came_of_entries_and_that_none_waits() -> None:
    receiver = Receiver()
    for event, outcome in (("build", "built"), ("build", "put-off"), ("build", "built"), ("write-back", "written")):
        receiver.metrics.count_worked(event, outcome)
    text = receiver.ask("GET", "/metrics").body.decode()
    assert 'plansmith_builds_total{outcome="built"} 2.0' in text
    assert 'plansmith_builds_total{outcome="put-off"} 1.0' in text
    assert 'plansmith_write_backs_total{outcome="written"} 1.0' in text
    assert "plansmith_inbox_oldest_waiting_seconds 0.0" in text


def test_metrics_come_as_open_metrics_to_whoever_asks_for_them() -> None:
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
def test_metrics_are_told_whatever_a_scraper_says_it_wants(accept: str) -> None:
    assert Receiver().ask("GET", "/metrics", headers={"accept": accept}).status == 200


def test_a_request_is_a_line_of_json(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    receiver = Receiver()
    receiver.post(asked())
    receiver.post(asked(secret="guessed", delivery="theirs"))
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
        "bytes": len(asked().body),
        "address": "192.0.2.1",
    }
    assert (refused["outcome"], refused["status"], refused["events"]) == ("signature", 401, 0)
    assert "delivery" not in refused, "what is not proven is not repeated"


def test_nothing_secret_and_nothing_unproven_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    receiver = Receiver(per_minute=5)
    forged = signed(HEADERS, {"entity": "planted"}, secret="guessed", delivery="planted\n", timestamp="planted")
    receiver.post(forged, "/hooks/ours")
    receiver.post(_push("guessed", planted="planted"), "/hooks/hub")
    receiver.post(asked(ASKED | {"planted": "planted"}))
    receiver.post(asked(), "/hooks/planted")
    receiver.post(_push(), "/hooks/hub")
    receiver.post(asked())
    assert [line["outcome"] for line in _lines(caplog)] == [
        "signature",
        "signature",
        "malformed",
        "unknown",
        "stored",
        "limited",
    ]
    assert not [word for word in ("planted", "guessed", SECRET, "v1,") if word in caplog.text]


def test_what_could_not_be_stored_is_logged_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver()
    receiver.inbox.fault = OSError("disk full")
    receiver.post(asked())
    receiver.ask("GET", "/healthz")
    assert [(line["event"], line["reason"]) for line in _lines(caplog)] == [
        ("delivery", "OSError: disk full"),
        ("unhealthy", "OSError: disk full"),
    ]
    assert {record.levelno for record in caplog.records if record.name == LOGGER} == {logging.ERROR}
