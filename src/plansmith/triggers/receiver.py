"""The ASGI application that registries send their deliveries to.

What is told in an answer is its status alone: neither why a request was refused nor whether it was sent before. A
sender repeats after 408, 429 and 503; nothing that stays wrong gets those. `/metrics` and `/healthz` are for those
inside: a proxy that ends TLS passes on `/hooks/` only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from plansmith.config.service.triggers import TriggersConfig
from plansmith.errors import first_line
from plansmith.triggers.metrics import Metrics
from plansmith.triggers.rate_limit import Rates
from plansmith.triggers.registries.delivery import Delivery, Ignored, Refused
from plansmith.triggers.registries.event import Event
from plansmith.triggers.registries.parse import delivering, read_delivery
from plansmith.triggers.request_body import Unread, headers_of, read_body

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LOG = logging.getLogger("plansmith.deliveries")
"""A line of JSON for each request, as its whole message."""

# As many deliveries may wait for the disk at once: an inbox stores those together. Questions of the inbox's health have
# other threads, so that they are answered while all of these wait.
_THREADS = 32

_STATUS_OF_REFUSAL = {"signature": 401, "timestamp": 401, "malformed": 400}


class Inbox(Protocol):
    """Where deliveries are kept. All of it blocks, and is called from several threads."""

    def take(self, registry: str, delivery: str, events: Sequence[Event]) -> bool:
        """Store a delivery durably before this returns: True, or False where it has been stored before.

        Raises:
            Exception: it is not stored; the sender will repeat it.
        """
        ...

    def check(self) -> None:
        """See that deliveries can be written and read.

        Raises:
            Exception: they cannot.
        """
        ...

    def counts(self) -> Mapping[Any, int]:
        """How many events are stored, by what has become of them.

        Raises:
            Exception: it cannot be read.
        """
        ...


@dataclass(frozen=True)
class _Outcome:
    """What came of a request: a word and the answer's status; the rest is for the log, and has been proven."""

    word: str
    status: int
    reason: str = ""
    delivery: str = ""
    events: int = 0
    size: int | None = None
    wait_seconds: float = 0


class _Receiver:
    def __init__(
        self,
        config: TriggersConfig,
        inbox: Inbox,
        secrets: Mapping[str, Sequence[str]],
        clock: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._hooks = delivering(config.registries)
        self._limits = config.limits
        self._rates = Rates(config.limits.per_minute)
        self._inbox = inbox
        self._secrets = secrets
        self._clock = clock
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="inbox")

    async def deliver(self, request: Request) -> Response:
        from starlette.responses import Response

        begun, now = time.perf_counter(), self._clock()
        name = request.path_params["name"]
        registry = name if name in self._hooks else ""
        address = request.client.host if request.client else ""
        if wait := self._rates.wait_seconds(address, now):
            outcome = _Outcome("limited", 429, wait_seconds=wait)
        elif not registry:
            outcome = _Outcome("unknown", 404)
        else:
            outcome = await self._read(request, registry, now)
        seconds = time.perf_counter() - begun
        self._metrics.count(registry, outcome.word, seconds)
        _log(outcome, registry, address, now, seconds)
        headers = {"Retry-After": str(math.ceil(outcome.wait_seconds))} if outcome.wait_seconds else {}
        if outcome.size is None:  # what is left of its body is not waited for
            headers["Connection"] = "close"
        return Response(status_code=outcome.status, headers=headers)

    async def _read(self, request: Request, registry: str, now: float) -> _Outcome:
        config, secrets = self._hooks[registry], self._secrets.get(registry, ())
        try:
            body = await read_body(request, self._limits)
        except Unread as unread:
            return _Outcome(unread.outcome, unread.status)
        size = len(body)
        try:
            found = read_delivery(config, headers_of(request), body, registry=registry, secrets=secrets, now=now)
        except Refused as refused:
            return _Outcome(refused.kind, _STATUS_OF_REFUSAL[refused.kind], reason=refused.reason, size=size)
        if isinstance(found, Ignored):
            return _Outcome("ignored", 204, reason=found.reason, size=size)
        return await self._store(registry, found, size)

    async def _store(self, registry: str, found: Delivery, size: int) -> _Outcome:
        try:
            loop = asyncio.get_running_loop()
            is_new = await loop.run_in_executor(self._threads, self._inbox.take, registry, found.id, found.events)
        except Exception as error:  # noqa: BLE001 - whatever it is: it is not stored, and the sender has to know
            word, status, reason = "unstored", 503, _words_of(error)
        else:
            word, status, reason = ("stored" if is_new else "repeated"), 202, ""
        return _Outcome(word, status, reason=reason, delivery=found.id, events=len(found.events), size=size)

    async def tell_health(self, _request: Request) -> Response:
        from starlette.responses import Response

        try:
            await asyncio.to_thread(self._inbox.check)
        except Exception as error:  # noqa: BLE001 - whatever it is: nothing can be taken
            LOG.log(logging.ERROR, json.dumps({"event": "unhealthy", "reason": _words_of(error)}))
            return Response(status_code=503)
        return Response(status_code=200)

    async def tell_metrics(self, request: Request) -> Response:
        from starlette.responses import Response

        try:
            entries = await asyncio.to_thread(self._inbox.counts)
        except Exception:  # noqa: BLE001 - the other figures are wanted most then
            entries = {}
        text, content_type = self._metrics.text(entries, request.headers.get("accept", ""))
        return Response(text, media_type=content_type)


def make_app(
    config: TriggersConfig,
    inbox: Inbox,
    secrets: Mapping[str, Sequence[str]],
    *,
    clock: Callable[[], float] = time.time,
    metrics: Metrics | None = None,
) -> Starlette:
    """The application.

    Args:
        config: the section `triggers` of the service's file.
        inbox: where deliveries are kept.
        secrets: by registry; those of one that is left out are none, and all that it sends is refused.
        clock: Unix time.
        metrics: counters; new ones when left out.
    """
    from starlette.applications import Starlette
    from starlette.routing import Route

    receiver = _Receiver(config, inbox, secrets, clock, metrics or Metrics())
    app = Starlette(
        routes=[
            Route("/hooks/{name}", receiver.deliver, methods=["POST"]),
            Route("/healthz", receiver.tell_health, methods=["GET"]),
            Route("/metrics", receiver.tell_metrics, methods=["GET"]),
        ]
    )
    app.router.redirect_slashes = False
    return app


def _words_of(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _log(outcome: _Outcome, registry: str, address: str, now: float, seconds: float) -> None:
    said = {
        "event": "delivery",
        "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        "registry": registry,
        "outcome": outcome.word,
        "status": outcome.status,
        "reason": outcome.reason,
        "delivery": outcome.delivery,
        "events": outcome.events,
        "bytes": outcome.size,
        "address": address,
        "milliseconds": round(seconds * 1000, 3),
    }
    level = logging.ERROR if outcome.status == 503 else logging.INFO
    LOG.log(level, json.dumps({key: value for key, value in said.items() if value not in ("", None)}))
