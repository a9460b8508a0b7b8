"""A flood of requests that prove nothing is some lines of the log, and all of them are counted."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from plansmith.triggers.receiver.log_limiter import LogLimiter

from ...support.deliveries.asgi import ask, run_without_waiting
from ...support.deliveries.receiving import HOOK, Receiver, asked
from ...support.deliveries.recorded import Sent
from ...support.deliveries.served import served

LOGGER = "plansmith.deliveries"
FORGED = asked(secret="guessed")


class Said:
    """What was said of kinds, with how many each stands for and when."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int, float]] = []

    def note(self, repeats: LogLimiter, kind: str, words: str = "") -> None:
        def say(number: int) -> None:
            self.lines.append((words or kind, number, asyncio.get_running_loop().time()))

        repeats.note(kind, say)


def test_the_first_of_a_kind_is_said_at_once_and_the_others_once_a_minute() -> None:
    said, repeats = Said(), LogLimiter()

    async def flood() -> None:
        for _ in range(75):
            said.note(repeats, "a")
            await asyncio.sleep(2)
        await asyncio.sleep(1000)

    run_without_waiting(flood())
    found = [(number, round(when)) for _, number, when in said.lines]
    assert [when for _, when in found] == [0, 60, 120, 180]
    assert sum(number for number, _ in found) == 75
    assert found[0][0] == 1


def test_a_kind_that_was_silent_for_a_minute_is_said_at_once_again() -> None:
    said, repeats = Said(), LogLimiter()

    async def now_and_then() -> None:
        for _ in range(3):
            said.note(repeats, "a")
            await asyncio.sleep(61)

    run_without_waiting(now_and_then())
    assert [(number, round(when)) for _, number, when in said.lines] == [(1, 0), (1, 61), (1, 122)]


def test_kinds_are_counted_by_themselves_and_the_last_of_each_is_said() -> None:
    said, repeats = Said(), LogLimiter()

    async def both() -> None:
        for number in range(3):
            said.note(repeats, "a", f"a{number}")
            said.note(repeats, "b", f"b{number}")
        await asyncio.sleep(60)

    run_without_waiting(both())
    assert [line[:2] for line in said.lines] == [("a0", 1), ("b0", 1), ("a2", 2), ("b2", 2)]


def test_what_was_only_counted_is_said_in_the_end_once() -> None:
    repeats, said = LogLimiter(), list[int]()

    async def some() -> None:
        for _ in range(5):
            repeats.note("a", said.append)

    run_without_waiting(some())
    repeats.end()
    repeats.end()
    assert said == [1, 4]


KINDS: dict[str, tuple[str, Sent, int]] = {
    "unknown": ("/hooks/guessed", asked(), 404),
    "signature": (HOOK, FORGED, 401),
    "timestamp": (HOOK, asked(timestamp="1"), 401),
    "oversized": (HOOK, asked(b"x" * 2000), 413),
}


@pytest.mark.parametrize(("path", "sent", "status"), KINDS.values(), ids=KINDS.keys())
def test_a_flood_is_two_lines_in_its_first_minute_and_each_request_is_counted(
    path: str, sent: Sent, status: int, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    receiver, outcome = Receiver(body_bytes=1024), request.node.callspec.id
    statuses = run_without_waiting(_flood(receiver, path, sent, 500))
    assert statuses == {status}
    assert [(line["outcome"], line.get("times", 1)) for line in _lines(caplog)] == [(outcome, 1), (outcome, 499)]
    registry = "ci" if path == HOOK else ""
    assert receiver.figure("plansmith_deliveries_total", registry=registry, outcome=outcome) == 500


def test_what_goes_beyond_the_rate_is_two_lines_and_what_a_registry_sends_is_one_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    receiver = Receiver(per_minute=20)
    for _ in range(20):
        receiver.post(asked())
    assert run_without_waiting(_flood(receiver, HOOK, asked(), 300)) == {429}
    lines = [(line["outcome"], line.get("times", 1)) for line in _lines(caplog)]
    assert lines == [("stored", 1), *[("repeated", 1)] * 19, ("limited", 1), ("limited", 299)]
    assert receiver.figure("plansmith_deliveries_total", registry="ci", outcome="limited") == 300


@pytest.mark.slow
def test_the_log_of_a_receiver_stands_for_every_request_when_it_has_ended(tmp_path: Path) -> None:
    with served(tmp_path / "served") as receiver:
        asyncio.run(_over_the_wire(receiver.port, 200))
        held_back = len(receiver.lines)
        receiver.program.stop()
        found = receiver.lines
    assert held_back < 10
    assert sum(line.get("times", 1) for line in found) == 200
    assert {line["outcome"] for line in found} == {"signature", "unknown"}


async def _over_the_wire(port: int, number: int) -> None:
    import httpx

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for one in range(number):
            path = HOOK if one % 2 else "/hooks/guessed"
            answer = await client.post(path, content=FORGED.body, headers=FORGED.headers)
            assert answer.status_code == (401 if one % 2 else 404)


async def _flood(receiver: Receiver, path: str, sent: Sent, number: int) -> set[int]:
    answers = [await ask(receiver.app, "POST", path, sent.body, headers=sent.headers) for _ in range(number)]
    await asyncio.sleep(200)
    return {answer.status for answer in answers}


def _lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]
