"""The ASGI application that registries send their deliveries to.

What is told in an answer is its status alone: neither why a request was refused nor whether it was sent before. A
sender repeats after 408, 429 and 503; nothing that stays wrong gets those. `/metrics` and `/healthz` are for those
inside, and so are the pages: a proxy that ends TLS passes on `/hooks/` only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from plansmith.config.service.triggers import TriggersConfig
from plansmith.errors import first_line
from plansmith.triggers.inbox.group_commit import GroupCommit
from plansmith.triggers.inbox.rows import Delivery as Taken
from plansmith.triggers.inbox.rows import key_of
from plansmith.triggers.metrics import Metrics
from plansmith.triggers.receiver.log_limiter import LogLimiter
from plansmith.triggers.receiver.rate_limit import Rates
from plansmith.triggers.receiver.request_body import BodyReader, Unread, address_of, headers_of
from plansmith.triggers.registries.delivery import Delivery, Ignored, RequestRejected
from plansmith.triggers.registries.parse import delivering, read_delivery

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

LOG = logging.getLogger("plansmith.deliveries")
"""A line of JSON for each request, as its whole message; of those that anybody can send, one for many."""

# What comes of requests whose sender knows a secret. All others may come in any number.
_PROVEN = frozenset({"stored", "repeated", "ignored", "malformed", "unstored"})
_UNKNOWN = "not all of its secrets are known yet"
_SECRET_SECONDS = 30.0
_STATUS_OF_REFUSAL = {"signature": 401, "timestamp": 401, "malformed": 400}


class Inbox(Protocol):
    """Where deliveries are kept. All of it blocks, and is called from several threads."""

    def take_all(self, deliveries: Sequence[Taken]) -> Sequence[bool]:
        """Store deliveries durably before this returns: True for each, or False where it has been stored before.

        Raises:
            Exception: none is stored; their senders will repeat them.
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

    def oldest_waiting(self, now: datetime) -> float | None:
        """For how many seconds the oldest event that waits has been here; None where none waits.

        Raises:
            Exception: it cannot be read.
        """
        ...


class Pages(Protocol):
    """Pages for people, beside the hooks."""

    def routes(self) -> Sequence[BaseRoute]:
        """Where each is; none of them at `/hooks/`, `/healthz` or `/metrics`."""
        ...

    async def unknown(self, request: Request) -> Response:
        """The page for an address that is none."""
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
        *,
        repeats: LogLimiter,
        awaited: Collection[str],
    ) -> None:
        self._hooks = delivering(config.registries)
        self._bodies = BodyReader(config.limits)
        self._rates = Rates(config.limits.per_minute)
        self._inbox = inbox
        # Questions of the inbox's health have other threads, so that they are answered while all deliveries wait.
        self._take = GroupCommit(inbox.take_all)
        self._secrets = secrets
        self._clock = clock
        self._metrics = metrics
        self._repeats = repeats
        self._awaited = awaited

    async def deliver(self, request: Request) -> Response:
        from starlette.responses import Response

        begun, now = time.perf_counter(), self._clock()
        name = request.path_params["name"]
        registry = name if name in self._hooks else ""
        address = address_of(request)
        if wait := self._rates.wait_seconds(address, now):
            outcome = _Outcome("limited", 429, wait_seconds=wait)
        elif not registry:
            outcome = _Outcome("unknown", 404)
        else:
            outcome = await self._read(request, registry, now)
        seconds = time.perf_counter() - begun
        self._metrics.count(registry, outcome.word, seconds)

        def say(times: int) -> None:
            _log(outcome, registry, address, now, seconds, times=times)

        if outcome.word in _PROVEN:
            say(1)
        else:
            self._repeats.note((registry, outcome.word), say)
        headers = {"Retry-After": str(math.ceil(outcome.wait_seconds))} if outcome.wait_seconds else {}
        if outcome.size is None:  # what is left of its body is not waited for
            headers["Connection"] = "close"
        return Response(status_code=outcome.status, headers=headers)

    async def _read(self, request: Request, registry: str, now: float) -> _Outcome:
        config, secrets = self._hooks[registry], self._secrets.get(registry, ())
        try:
            body = await self._bodies.read(request)
        except Unread as unread:
            return _Outcome(unread.outcome, unread.status, wait_seconds=unread.wait_seconds)
        size = len(body)
        try:
            found = read_delivery(config, headers_of(request), body, registry=registry, secrets=secrets, now=now)
        except RequestRejected as refused:
            if refused.kind == "signature" and registry in self._awaited:
                return _Outcome("unjudged", 503, reason=_UNKNOWN, size=size, wait_seconds=_SECRET_SECONDS)
            return _Outcome(refused.kind, _STATUS_OF_REFUSAL[refused.kind], reason=refused.reason, size=size)
        if isinstance(found, Ignored):
            return _Outcome("ignored", 204, reason=found.reason, size=size)
        return await self._store(registry, found, size)

    async def _store(self, registry: str, found: Delivery, size: int) -> _Outcome:
        try:
            taken = Taken(registry, key_of(found.id), found.events, recurs=found.recurs, expires=found.expires)
            is_new = await self._take(taken)
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
        unknown = f"{_UNKNOWN}: {', '.join(sorted(self._awaited))}\n" if self._awaited else ""
        return Response(unknown, status_code=200, media_type="text/plain")

    async def tell_metrics(self, request: Request) -> Response:
        from starlette.responses import Response

        now = datetime.fromtimestamp(self._clock(), UTC)
        entries: Mapping[Any, int]
        oldest: float | None
        try:
            entries = await asyncio.to_thread(self._inbox.counts)
            oldest = await asyncio.to_thread(self._inbox.oldest_waiting, now) or 0.0
        except Exception:  # noqa: BLE001 - the other figures are wanted most then
            entries, oldest = {}, None
        text, content_type = self._metrics.text(entries, oldest, request.headers.get("accept", ""))
        return Response(text, media_type=content_type)


def make_app(
    config: TriggersConfig,
    inbox: Inbox,
    secrets: Mapping[str, Sequence[str]],
    *,
    clock: Callable[[], float] = time.time,
    metrics: Metrics | None = None,
    repeats: LogLimiter | None = None,
    awaited: Collection[str] = (),
    pages: Pages | None = None,
) -> Starlette:
    """The application.

    Args:
        config: the section `triggers` of the service's file.
        inbox: where deliveries are kept.
        secrets: by registry; those of one that is left out are none, and all that it sends is refused.
        clock: Unix time.
        metrics: counters; new ones when left out.
        repeats: holds back lines of the log; its owner ends it.
        awaited: registries some of whose secrets are not known yet: what those that are known do not prove is to be
            sent again.
        pages: for people; none when left out.
    """
    from starlette.applications import Starlette
    from starlette.routing import Route

    counted, held = metrics or Metrics(), repeats or LogLimiter()
    receiver = _Receiver(config, inbox, secrets, clock, counted, repeats=held, awaited=awaited)
    app = Starlette(
        routes=[
            Route("/hooks/{name}", receiver.deliver, methods=["POST"]),
            Route("/healthz", receiver.tell_health, methods=["GET"]),
            Route("/metrics", receiver.tell_metrics, methods=["GET"]),
            *(pages.routes() if pages is not None else ()),
        ],
        exception_handlers={404: _unknown_to(pages)},
    )
    app.router.redirect_slashes = False
    return app


def _unknown_to(pages: Pages | None) -> Callable[[Request, Exception], Awaitable[Response]]:
    """What answers where nothing is: a page for people, and two words for those who send."""

    async def answer(request: Request, _error: Exception) -> Response:
        from starlette.responses import PlainTextResponse

        is_for_people = request.method in {"GET", "HEAD"} and not request.url.path.startswith("/hooks")
        if pages is not None and is_for_people:
            return await pages.unknown(request)
        return PlainTextResponse("Not Found", status_code=404)

    return answer


def _words_of(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _log(outcome: _Outcome, registry: str, address: str, now: float, seconds: float, *, times: int) -> None:
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
        "times": times if times > 1 else None,
    }
    level = logging.ERROR if outcome.status == 503 else logging.INFO
    LOG.log(level, json.dumps({key: value for key, value in said.items() if value not in ("", None)}))
