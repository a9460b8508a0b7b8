"""ASGI application for the deliveries of registries.

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
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Protocol

from plansmith.config.service_triggers import Limits, TriggersConfig
from plansmith.errors import first_line
from plansmith.triggers.inbox.entry import Delivery as Taken
from plansmith.triggers.inbox.entry import key_of
from plansmith.triggers.inbox.group_commit import GroupCommit
from plansmith.triggers.metrics import Metrics
from plansmith.triggers.registries.delivery import Delivery, Ignored, RequestRejected
from plansmith.triggers.registries.parse import delivering, read_delivery

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute


_SECONDS = 60.0

Say = Callable[[int], None]
"""Writes a line, given for how many requests it stands."""

_MINUTE = 60.0
_ROUNDING = 0.01  # of a request: times of this century are rounded to a quarter of a microsecond
_FREE_BYTES = 16 << 10  # of each body: more than registries send
_SHARED_BYTES = 64 << 20
_AGAIN_SECONDS = 2
_LONGEST_ADDRESS = 64  # with the name of a network interface behind it
LOG = logging.getLogger("plansmith.deliveries")
"""A line of JSON for each request, as its whole message; of those that anybody can send, one for many."""

# What comes of requests whose sender knows a secret. All others may come in any number.
_PROVEN = frozenset({"stored", "repeated", "ignored", "malformed", "unstored"})
_UNKNOWN = "not all of its secrets are known yet"
_SECRET_SECONDS = 30.0
_STATUS_OF_REFUSAL = {"signature": 401, "timestamp": 401, "malformed": 400}


class LogLimiter:
    """Log rate limiter: logs the first event of a kind at once, and those of the next minute in one line.

    Lives in the loop that requests are answered in.

    Args:
        seconds: how long a minute is.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._unsaid: dict[Hashable, tuple[int, Say]] = {}  # of each kind that had a line within the last minute

    def note(self, kind: Hashable, say: Say) -> None:
        """Log an event, or count it.

        Args:
            kind: one of few, as each is remembered for a minute.
            say: of those that are counted, the last one's is called.
        """
        if kind in self._unsaid:
            self._unsaid[kind] = (self._unsaid[kind][0] + 1, say)
        else:
            self._say(kind, 1, say)

    def end(self) -> None:
        """Log the events that are only counted so far, after the event loop has ended."""
        for number, say in self._unsaid.values():
            if number:
                say(number)
        self._unsaid.clear()

    def _say(self, kind: Hashable, number: int, say: Say) -> None:
        say(number)
        self._unsaid[kind] = (0, say)
        asyncio.get_running_loop().call_later(self._seconds, self._look, kind)

    def _look(self, kind: Hashable) -> None:
        number, say = self._unsaid.pop(kind)
        if number:
            self._say(kind, number, say)


class Rates:
    """Rate limiter: allows a burst of one minute's requests, then requests at an even rate.

    Each address has a bucket that every request fills by one, and that runs empty within a minute.

    Args:
        per_minute: how many requests.
        addresses: how many of them are remembered; the one that has been silent for longest is forgotten first.
    """

    def __init__(self, per_minute: int, *, addresses: int = 10_000) -> None:
        self._most = per_minute
        self._per_second = per_minute / _MINUTE
        self._addresses = addresses
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # and when they were that high

    def wait_seconds(self, address: str, now: float) -> float:
        """Return how long an address must wait before its next request; 0 if this one is accepted.

        Args:
            address: of the client; all that share the first 64 bits of IPv6 are one, as a client has them all.
            now: by a clock that may be set back: nothing runs out meanwhile.
        """
        key = _key_of(address)
        level, since = self._levels.get(key, (0.0, now))
        level = max(0.0, level - max(0.0, now - since) * self._per_second)
        over = level + 1 - self._most
        is_allowed = over <= _ROUNDING
        self._levels[key] = (level + 1 if is_allowed else level, now)
        self._levels.move_to_end(key)
        if len(self._levels) > self._addresses:
            self._levels.popitem(last=False)
        return 0.0 if is_allowed else over / self._per_second

    def __len__(self) -> int:
        return len(self._levels)


def _key_of(address: str) -> str:
    if ":" not in address:
        return address
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return address
    return str(ip.ipv4_mapped) if ip.ipv4_mapped else f"{int(ip) >> 64:x}"


class Unread(Exception):
    """A request body that was not read completely.

    Args:
        outcome: one word for it.
        status: of the answer.
        wait_seconds: after which it may be sent again; 0 where that does not help.
    """

    def __init__(self, outcome: str, status: int, wait_seconds: float = 0) -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.status = status
        self.wait_seconds = wait_seconds


class BodyReader:
    """Request body reader: reads many bodies at once within a memory limit.

    Args:
        limits: of each of them.
        shared_bytes: by how much all that are being read may be longer, together, than nearly all bodies are.
    """

    def __init__(self, limits: Limits, shared_bytes: int = _SHARED_BYTES) -> None:
        self._limits = limits
        self._free_bytes = shared_bytes

    async def read(self, request: Request) -> bytes:
        """Read a request body, without trusting its Content-Length header.

        Raises:
            Unread: there are too many of them, they take too long, the client went away, its end is told in two ways,
                or there is no room for it now.
        """
        if "content-length" in request.headers and "transfer-encoding" in request.headers:
            raise Unread("ambiguous", 400)  # a proxy may have seen its end elsewhere, and another's request within it
        body, shared, is_all = bytearray(), 0, False
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while not is_all:
                    message = await request.receive()
                    if message["type"] != "http.request":
                        raise Unread("left", 400)
                    body += message.get("body", b"")
                    is_all = not message.get("more_body", False)
                    if len(body) > self._limits.body_bytes:
                        raise Unread("oversized", 413)
                    more = max(len(body) - _FREE_BYTES, 0) - shared
                    shared, self._free_bytes = shared + more, self._free_bytes - more
                    if more and self._free_bytes < 0:
                        raise Unread("crowded", 503, _AGAIN_SECONDS)
        except TimeoutError:
            raise Unread("slow", 408) from None
        finally:
            self._free_bytes += shared
        return bytes(body)


def address_of(request: Request) -> str:
    """Return the client's address if it is a valid one: proxies may forward arbitrary text from clients."""
    address = request.client.host if request.client else ""
    return _address(address) if len(address) <= _LONGEST_ADDRESS else ""


@lru_cache
def _address(address: str) -> str:
    try:
        return str(ip_address(address))
    except ValueError:
        return ""


def headers_of(request: Request) -> dict[str, str]:
    """Return headers by lower-case name; repeated ones are joined, which no signature or secret matches."""
    headers_by_name: dict[str, str] = {}
    for name, value in request.headers.items():
        headers_by_name[name] = f"{headers_by_name[name]}, {value}" if name in headers_by_name else value
    return headers_by_name


class Inbox(Protocol):
    """Interface of the inbox. All methods block, and are called from several threads."""

    def take_all(self, deliveries: Sequence[Taken]) -> Sequence[bool]:
        """Store deliveries durably; return True for each, or False if it was stored before.

        Raises:
            Exception: none is stored; their senders will repeat them.
        """
        ...

    def check(self) -> None:
        """Check that deliveries can be written and read.

        Raises:
            Exception: they cannot.
        """
        ...

    def counts(self) -> Mapping[Any, int]:
        """Return the number of stored events in each state.

        Raises:
            Exception: it cannot be read.
        """
        ...

    def oldest_waiting(self, now: datetime) -> float | None:
        """Return the age of the oldest waiting event in seconds; None if none waits.

        Raises:
            Exception: it cannot be read.
        """
        ...


class Pages(Protocol):
    """Interface of the HTML pages that are served next to the webhooks."""

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes of the pages; none at `/hooks/`, `/healthz` or `/metrics`."""
        ...

    async def unknown(self, request: Request) -> Response:
        """Return the page for an unknown URL."""
        ...


@dataclass(frozen=True)
class _Outcome:
    """The outcome of a request: a keyword and the response status.

    `reason` is for the log and is set after authentication.
    """

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
            result = read_delivery(config, headers_of(request), body, registry=registry, secrets=secrets, now=now)
        except RequestRejected as refused:
            if refused.kind == "signature" and registry in self._awaited:
                return _Outcome("unjudged", 503, reason=_UNKNOWN, size=size, wait_seconds=_SECRET_SECONDS)
            return _Outcome(refused.kind, _STATUS_OF_REFUSAL[refused.kind], reason=refused.reason, size=size)
        if isinstance(result, Ignored):
            return _Outcome("ignored", 204, reason=result.reason, size=size)
        return await self._store(registry, result, size)

    async def _store(self, registry: str, incoming: Delivery, size: int) -> _Outcome:
        try:
            entry = Taken(
                registry, key_of(incoming.id), incoming.events, recurs=incoming.recurs, expires=incoming.expires
            )
            is_new = await self._take(entry)
        except Exception as error:  # noqa: BLE001 - whatever it is: it is not stored, and the sender has to know
            word, status, reason = "unstored", 503, _words_of(error)
        else:
            word, status, reason = ("stored" if is_new else "repeated"), 202, ""
        return _Outcome(word, status, reason=reason, delivery=incoming.id, events=len(incoming.events), size=size)

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
    """Create the ASGI application.

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

    counted, limiter = metrics or Metrics(), repeats or LogLimiter()
    receiver = _Receiver(config, inbox, secrets, clock, counted, repeats=limiter, awaited=awaited)
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
    """The handler for unknown paths: a page for browsers, a short text for API clients."""

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
    fields = {
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
    LOG.log(level, json.dumps({key: value for key, value in fields.items() if value not in ("", None)}))
