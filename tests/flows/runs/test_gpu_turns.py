"""A run that waits for its turn on a GPU, at an API that answers as Prefect's does: refused, and for ever busy."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from typing import Any
from uuid import uuid4

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from plansmith.flows.runs import gpu_queue
from plansmith.steps.runner import Listener

LOCKED = 423


class Limits:
    """A limit as the API tells of it, and what it was asked.

    Attributes:
        name: another one for each test, as Prefect's client keeps a connection for each.
        looks: how often somebody is seen to have the slot.
        answers: to those who ask for it, one after another, the last for ever.
    """

    def __init__(self) -> None:
        self.name = f"gpu:GPU-{uuid4()}"
        self.looks = 0.0
        self.answers = [200]
        self.requests: list[str] = []

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        self.requests.append(f"{method} {path}")
        if path.endswith("/increment-with-lease"):
            status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            granted = {"lease_id": str(uuid4()), "limits": [{"id": str(uuid4()), "name": self.name, "limit": 1}]}
            return status, granted if status == 200 else {"detail": "busy"}
        if path.endswith(self.name.partition(":")[2]):
            self.looks -= 1
            slots = int(self.looks >= 0)
            document = {"id": str(uuid4()), "name": self.name, "active": True, "limit": 1, "active_slots": slots}
            return 200, {**document, "slot_decay_per_second": 0.0}
        if "/csrf-token" in path:
            return 404, None  # as of a server that wants none
        return (200, "3.8.8") if path.endswith("version") else (204, None)

    def times(self, path: str) -> int:
        """How often a path was asked for."""
        return sum(request.endswith(path) for request in self.requests)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Limits]:
    """An API with one limit."""
    fake_limits = Limits()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body = fake_limits.answer(self.command, self.path)
            content = b"" if body is None else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Retry-After", "0.01")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _answer  # noqa: N815 - named by http.server

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(gpu_queue, "_POLL_SECONDS", 0.01)
    for event in ("acquisition", "release"):  # events, which nobody takes here
        monkeypatch.setattr(f"prefect.concurrency._sync.emit_concurrency_{event}_events", lambda *_: None)
    try:
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{server.server_port}/api"}):
            yield fake_limits
    finally:
        server.shutdown()
        server.server_close()


class Notes(Listener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.waits: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def waiting(self, step: str, text: str) -> None:
        self.waits.append(f"{step}: {text}")


def compiled(limits: Limits, notes: Notes) -> str:
    """What a step in the queue gives."""

    def compile() -> str:  # noqa: A001 - the name of the step
        return "built"

    return gpu_queue.in_turn("compile", compile, [limits.name], notes)()


@pytest.mark.slow
def test_run_gives_turn_back(limits: Limits) -> None:
    """A run waits for its turn and gives it back."""
    limits.looks, limits.answers = 2, [LOCKED, 200]
    notes = Notes()
    assert compiled(limits, notes) == "built"
    assert notes.notices == []
    assert limits.times("/increment-with-lease") == 2
    assert limits.times(limits.name.partition(":")[2]) == 4, "it asks for what looks free"
    assert limits.times("/decrement-with-lease") == 1
    assert notes.waits == [f"compile: waiting in Prefect's queue {limits.name} for another run that builds on this GPU"]


@pytest.mark.slow
def test_lost_slot_expires(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that nobody gives back holds no build up for ever."""
    monkeypatch.setattr(gpu_queue, "TURN_SECONDS", 0.2)
    limits.looks = inf
    notes = Notes()
    assert compiled(limits, notes) == "built"
    assert limits.times("/increment-with-lease") == 0
    (notice,) = notes.notices
    assert f"Prefect's queue {limits.name} gave no turn for 0 s; the GPU's lock alone decides" in notice
    assert f"prefect gcl update {limits.name} --active-slots 0" in notice
    assert limits.times("/decrement-with-lease") == 0


@pytest.mark.parametrize("status", [422, 500])
def test_missing_limit_stops_no_build(limits: Limits, status: int) -> None:
    """A limit that cannot be asked for is no reason not to build."""
    limits.answers = [status]
    notes = Notes()
    assert compiled(limits, notes) == "built"
    assert limits.times("/increment-with-lease") == 1
    (notice,) = notes.notices
    assert f"Prefect's queue {limits.name} cannot be asked: " in notice
    assert str(status) in notice
