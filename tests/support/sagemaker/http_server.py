"""A server of HTTP that gives prepared answers: SageMaker's runtime or a front end, in cases that are rare or slow."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class HttpAnswer:
    """One answer; `is_cut` ends the connection instead."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    is_cut: bool = False


@dataclass
class HttpRecord:
    """The address of a server, and the requests that it got: paths, headers in lower case, and bodies."""

    url: str = ""
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


def aws_error(code: str, message: str, status: int = 400, **fields: Any) -> HttpAnswer:
    """An error as the runtime of SageMaker writes it."""
    headers = {"Content-Type": "application/json", "x-amzn-ErrorType": code}
    return HttpAnswer(status, json.dumps({"Code": code, "Message": message, **fields}).encode(), headers)


@contextmanager
def http_server(*answers: HttpAnswer) -> Iterator[HttpRecord]:
    """A server that gives these answers, the last of them again and again."""
    record = HttpRecord()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer = answers[min(len(record.paths), len(answers) - 1)]
            record.paths.append(self.path)
            record.headers.append({name.lower(): value for name, value in self.headers.items()})
            record.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            if answer.is_cut:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        record.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield record
        finally:
            server.shutdown()
            thread.join()
