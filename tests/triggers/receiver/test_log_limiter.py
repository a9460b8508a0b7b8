"""A flood of requests that prove nothing is some lines of the log, and all of them are counted."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from plansmith.triggers.receiver.application import LogLimiter

from ...support.deliveries.asgi import ask, run_without_waiting
from ...support.deliveries.receiving import HOOK, Receiver, signed_request
from ...support.deliveries.recorded import Sent
from ...support.deliveries.served import served

LOGGER = "plansmith.deliveries"
FORGED = signed_request(secret="guessed")


class LineRecorder:
    """What was said of kinds, with how many each stands for and when."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int, float]] = []

    def note(self, repeats: LogLimiter, kind: str, words: str = "") -> None:
        def say(number: int) -> None:
            self.lines.append((words or kind, number, asyncio.get_running_loop().time()))

        repeats.note(kind, say)


def test_first_of_kind_logged_immediately() -> None:
    """The first of a kind is said at once, and the others once a minute."""
    recorder, repeats = LineRecorder(), LogLimiter()

    async def flood() -> None:
        for _ in range(75):
            recorder.note(repeats, "a")
            await asyncio.sleep(2)
        await asyncio.sleep(1000)

    run_without_waiting(flood())
    entries = [(number, round(when)) for _, number, when in recorder.lines]
    assert [when for _, when in entries] == [0, 60, 120, 180]
    assert sum(number for number, _ in entries) == 75
    assert entries[0][0] == 1


def test_quiet_kind_logged_immediately_again() -> None:
    """A kind that was silent for a minute is logged immediately again."""
    recorder, repeats = LineRecorder(), LogLimiter()

    async def now_and_then() -> None:
        for _ in range(3):
            recorder.note(repeats, "a")
            await asyncio.sleep(61)

    run_without_waiting(now_and_then())
    assert [(number, round(when)) for _, number, when in recorder.lines] == [(1, 0), (1, 61), (1, 122)]


def test_kinds_counted_separately() -> None:
    """Kinds are counted by themselves, and the last of each is said."""
    recorder, repeats = LineRecorder(), LogLimiter()

    async def note_kinds() -> None:
        for number in range(3):
            recorder.note(repeats, "a", f"a{number}")
            recorder.note(repeats, "b", f"b{number}")
        await asyncio.sleep(60)

    run_without_waiting(note_kinds())
    assert [line[:2] for line in recorder.lines] == [("a0", 1), ("b0", 1), ("a2", 2), ("b2", 2)]


def test_counted_remainder_logged_at_end() -> None:
    """What was only counted is logged once in the end."""
    repeats, counts = LogLimiter(), list[int]()

    async def some() -> None:
        for _ in range(5):
            repeats.note("a", counts.append)

    run_without_waiting(some())
    repeats.end()
    repeats.end()
    assert counts == [1, 4]


KINDS: dict[str, tuple[str, Sent, int]] = {
    "unknown": ("/hooks/guessed", signed_request(), 404),
    "signature": (HOOK, FORGED, 401),
    "timestamp": (HOOK, signed_request(timestamp="1"), 401),
    "oversized": (HOOK, signed_request(b"x" * 2000), 413),
}


@pytest.mark.parametrize(("path", "sent", "status"), KINDS.values(), ids=KINDS.keys())
def test_flood_is_two_lines(
    path: str, sent: Sent, status: int, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    """A flood is two lines in its first minute, and each request is counted."""
    caplog.set_level(logging.INFO, LOGGER)
    receiver, outcome = Receiver(body_bytes=1024), request.node.callspec.id
    statuses = run_without_waiting(_flood(receiver, path, sent, 500))
    assert statuses == {status}
    assert [(line["outcome"], line.get("times", 1)) for line in _lines(caplog)] == [(outcome, 1), (outcome, 499)]
    registry = "ci" if path == HOOK else ""
    assert receiver.figure("plansmith_deliveries_total", registry=registry, outcome=outcome) == 500


def test_excess_two_lines_registry_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What goes beyond the rate is two lines, and what a registry sends is one each."""
    caplog.set_level(logging.INFO, LOGGER)
    receiver = Receiver(per_minute=20)
    for _ in range(20):
        receiver.post(signed_request())
    assert run_without_waiting(_flood(receiver, HOOK, signed_request(), 300)) == {429}
    lines = [(line["outcome"], line.get("times", 1)) for line in _lines(caplog)]
    assert lines == [("stored", 1), *[("repeated", 1)] * 19, ("limited", 1), ("limited", 299)]
    assert receiver.figure("plansmith_deliveries_total", registry="ci", outcome="limited") == 300


@pytest.mark.slow
def test_log_accounts_for_every_request(tmp_path: Path) -> None:
    """The log of a receiver stands for every request when it has ended."""
    with served(tmp_path / "served") as receiver:
        asyncio.run(_over_the_wire(receiver.port, 200))
        held_back = len(receiver.lines)
        receiver.program.stop()
        entries = receiver.lines
    assert held_back < 10
    assert sum(line.get("times", 1) for line in entries) == 200
    assert {line["outcome"] for line in entries} == {"signature", "unknown"}


async def _over_the_wire(port: int, number: int) -> None:
    import httpx

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for index in range(number):
            path = HOOK if index % 2 else "/hooks/guessed"
            answer = await client.post(path, content=FORGED.body, headers=FORGED.headers)
            assert answer.status_code == (401 if index % 2 else 404)


async def _flood(receiver: Receiver, path: str, sent: Sent, number: int) -> set[int]:
    answers = [await ask(receiver.app, "POST", path, sent.body, headers=sent.headers) for _ in range(number)]
    await asyncio.sleep(200)
    return {answer.status for answer in answers}


def _lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]
