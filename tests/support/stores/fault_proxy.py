"""An HTTP server that passes requests on to an S3 server, and does to them what networks and other servers do.

What is done is a function, `Handling`: it gets a request and the way to pass it on, gives the answer, or raises `Cut`
to have the connection closed without one.
"""

from __future__ import annotations

import http.client
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

CONDITIONS = ("if-match", "if-none-match")


@dataclass(frozen=True)
class Request:
    """What a client asked: its headers' names in lower case, and its place among all requests, from 1."""

    number: int
    method: str
    target: str
    headers: dict[str, str]
    body: bytes = field(repr=False)
    body_bytes: int

    @property
    def path(self) -> str:
        """The bucket and key."""
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, list[str]]:
        """What stands after the question mark."""
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True)

    @property
    def is_write(self) -> bool:
        """Whether it changes what is there."""
        return self.method in {"PUT", "POST", "DELETE"}

    @property
    def is_conditional(self) -> bool:
        """Whether it is a write that hangs on what is there."""
        return self.is_write and any(name in self.headers for name in CONDITIONS)

    def without_conditions(self) -> Request:
        """The same, whatever is there."""
        return replace(self, headers={name: value for name, value in self.headers.items() if name not in CONDITIONS})


@dataclass(frozen=True)
class Answer:
    """What the client is told; `sent_bytes`: of the body, after which the connection is cut; None for all of it."""

    status: int
    headers: dict[str, str]
    body: bytes = field(repr=False)
    sent_bytes: int | None = None


class Cut(Exception):
    """The connection is closed without an answer."""


Forward = Callable[[Request], Answer]
Handling = Callable[[Request, Forward], Answer]


def passed(request: Request, forward: Forward) -> Answer:
    """Nothing is done to it."""
    return forward(request)


def cut_before(_request: Request, _forward: Forward) -> Answer:
    """It never arrives."""
    raise Cut


def cut_after(request: Request, forward: Forward) -> Answer:
    """It arrives and is done, and nobody is told."""
    forward(request)
    raise Cut


def failed(_request: Request, _forward: Forward) -> Answer:
    """The server has a fault of its own."""
    return _error(500, "InternalError", "We encountered an internal error. Please try again.")


def slowed(_request: Request, _forward: Forward) -> Answer:
    """The server has too much to do."""
    return _error(503, "SlowDown", "Please reduce your request rate.")


def denied(_request: Request, _forward: Forward) -> Answer:
    """Whoever asks may not."""
    return _error(403, "AccessDenied", "Access Denied")


def delayed(request: Request, forward: Forward) -> Answer:
    """It takes a while."""
    time.sleep(random.uniform(0.01, 0.1))
    return forward(request)


def truncated(request: Request, forward: Forward) -> Answer:
    """The connection is cut in the middle of the answer's body."""
    answer = forward(request)
    if not answer.body:
        raise Cut
    return replace(answer, sent_bytes=len(answer.body) // 2)


FAULTS: tuple[Handling, ...] = (cut_before, cut_after, failed, slowed, delayed, truncated)


def ignoring_conditions(request: Request, forward: Forward) -> Answer:
    """The server does not know of conditional writes, and writes."""
    return forward(request.without_conditions() if request.is_conditional else request)


def refusing_conditions(request: Request, forward: Forward) -> Answer:
    """The server knows of conditional writes that it has none."""
    if request.is_conditional:
        return _error(501, "NotImplemented", "A header you provided implies functionality that is not implemented.")
    return forward(request)


def looking_then_writing(request: Request, forward: Forward) -> Answer:
    """The server looks whether the condition is met, and then writes: others may write between."""
    if not request.is_conditional:
        return forward(request)
    asking = {name: value for name, value in request.headers.items() if name in {"host", "authorization", "x-amz-date"}}
    answer = forward(replace(request, method="HEAD", target=request.path, headers=asking, body=b""))
    tag = answer.headers.get("etag") if answer.status == 200 else None
    if "if-none-match" in request.headers and tag is not None:
        return _error(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
    if "if-match" in request.headers and tag is None:
        return _error(404, "NoSuchKey", "The specified key does not exist.")
    if "if-match" in request.headers and request.headers["if-match"].strip('"') != str(tag).strip('"'):
        return _error(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
    time.sleep(0.02)
    return forward(request.without_conditions())


def at(
    number: int, then: Handling, otherwise: Handling = passed, among: Callable[[Request], bool] = lambda _: True
) -> Handling:
    """One request, by its place among some or all, from 1, is handled otherwise than the others."""
    count = itertools.count(1)

    def handled(request: Request, forward: Forward) -> Answer:
        return (then if among(request) and next(count) == number else otherwise)(request, forward)

    return handled


def killing(process: int, handling: Handling) -> Handling:
    """The client is killed, before or after the request is done, as `cut_before` and `cut_after` have it."""

    def handled(request: Request, forward: Forward) -> Answer:
        try:
            return handling(request, forward)
        finally:
            os.kill(process, signal.SIGKILL)

    return handled


def sometimes(chance: float, seed: int, otherwise: Handling = passed, faults: Sequence[Handling] = FAULTS) -> Handling:
    """Some requests, by chance, meet a fault."""
    dice = random.Random(seed)
    lock = threading.Lock()

    def handled(request: Request, forward: Forward) -> Answer:
        with lock:
            fault = dice.choice(faults) if dice.random() < chance else None
        if fault is None:
            return otherwise(request, forward)
        return fault(request, lambda passed_on: otherwise(passed_on, forward))

    return handled


class FaultProxy:
    """What stands between clients and a server.

    Args:
        port: of the server, on this machine.

    Attributes:
        handling: what is done to requests; may be set at any time.
        requests: those that came, in turn, without their bodies; `reset` forgets them and counts from 1 again.
        done: those that the server was asked for and did.
    """

    def __init__(self, port: int) -> None:
        self.handling: Handling = passed
        self.requests: list[Request] = []
        self.done: list[Request] = []
        self._busy = 0
        self.port = port
        self._lock = threading.Lock()
        self._server = _Server(self)

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def sent_bytes(self) -> int:
        """What clients sent, without headers."""
        return sum(request.body_bytes for request in self.requests)

    def reset(self, handling: Handling = passed) -> None:
        """Begin anew."""
        with self._lock:
            self.requests = []
            self.done = []
            self.handling = handling

    def noted(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Request:
        """A request that came."""
        with self._lock:
            request = Request(len(self.requests) + 1, method, target, headers, body, len(body))
            self.requests.append(replace(request, body=b""))
        return request

    def handle(self, request: Request, forward: Forward) -> Answer:
        """Do to a request what is to be done to it."""
        with self._counted():
            return self.handling(request, lambda passed_on: self._forwarded(passed_on, forward))

    def wait_until_idle(self) -> None:
        """Wait for the requests of clients that are gone."""
        while self._busy:
            time.sleep(0.01)

    def _forwarded(self, request: Request, forward: Forward) -> Answer:
        answer = forward(request)
        if answer.status < 300:
            with self._lock:
                self.done.append(replace(request, body=b""))
        return answer

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1

    @contextmanager
    def running(self) -> Iterator[FaultProxy]:
        """Answer, until this is left."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fault proxy", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed, or went away, is no error here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._upstream = http.client.HTTPConnection("127.0.0.1", self.server.proxy.port, timeout=60)

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
        self._upstream.close()

    def do_PUT(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        length = int(headers.get("content-length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            return  # the client is gone
        request = self.server.proxy.noted(self.command, self.path, headers, body)
        try:
            self._tell(self.server.proxy.handle(request, self._forward))
        except Cut:
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_DELETE = do_PUT  # noqa: N815 - http.server's names

    def _forward(self, request: Request) -> Answer:
        headers = {name: value for name, value in request.headers.items() if name not in {"expect", "connection"}}
        self._upstream.request(request.method, request.target, request.body or None, headers)
        answer = self._upstream.getresponse()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, fields, answer.read())

    def _tell(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            if name not in {"connection", "transfer-encoding", "content-length"}:
                self.send_header(name, value)
        length = answer.headers.get("content-length", "0") if self.command == "HEAD" else str(len(answer.body))
        self.send_header("content-length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: answer.sent_bytes])
        if answer.sent_bytes is not None:
            self.close_connection = True

    def log_message(self, *_words: object) -> None:
        """Nothing is logged."""


def _error(status: int, code: str, message: str) -> Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    return Answer(status, {"content-type": "application/xml", "date": date}, body.encode())
