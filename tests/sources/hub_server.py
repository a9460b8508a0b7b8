"""A model hub on 127.0.0.1 that speaks what huggingface_hub asks: revisions, file heads, ranged downloads."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves one folder as one model; `requests` holds (method, path, range) of what was asked.

    `break_after` cuts the connection of the next large download after so many bytes; so many next requests as
    `unavailable` says are answered with status 503.
    """

    def __init__(self, folder: Path, repo: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        self.repo = repo
        self.requests: list[tuple[str, str, str | None]] = []
        self.break_after = 0
        self.unavailable = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def running(folder: Path, repo: str = "org/model") -> Iterator[Hub]:
    """The hub, for the length of a block."""
    with Hub(folder, repo) as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature of the base class
        del format, args

    def _answer(self) -> None:
        self.server.requests.append((self.command, self.path, self.headers.get("Range")))
        if self.server.unavailable:
            self.server.unavailable -= 1
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        repo = re.escape(self.server.repo)
        if found := re.fullmatch(rf"/api/models/{repo}(?:/revision/([^/?]+))?(?:\?.*)?", self.path):
            known = found[1] in {None, "main", "v1", COMMIT}
            siblings = [{"rfilename": name} for name in self.server.files]
            self._json(
                {"id": self.server.repo, "sha": COMMIT, "siblings": siblings} if known else None, "RevisionNotFound"
            )
        elif found := re.fullmatch(rf"/api/models/{repo}/tree/([^/?]+)(?:\?.*)?", self.path):
            tree = [
                {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
                for name, body in self.server.files.items()
            ]
            self._json(tree, "")
        elif found := re.fullmatch(rf"/{repo}/resolve/[^/]+/(.+)", self.path):
            self._file(found[1])
        else:
            self._json(None, "RepoNotFound")

    def _json(self, value: Any, error: str) -> None:
        body = json.dumps({"error": error} if value is None else value).encode()
        self.send_response(404 if value is None else 200)
        if value is None:
            self.send_header("X-Error-Code", error)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _file(self, name: str) -> None:
        body = self.server.files.get(name)
        if body is None:
            self._json(None, "EntryNotFound")
            return
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.server.break_after
        if cut and len(body) > cut:
            self.server.break_after = 0
            self.wfile.write(body[start : start + cut])
            self.close_connection = True
            return
        self.wfile.write(body[start:])
