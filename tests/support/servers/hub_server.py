"""A hub on 127.0.0.1 that speaks what huggingface_hub asks: revisions, file heads, ranged downloads."""

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
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONVERTED_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


class Hub(ThreadingHTTPServer):
    """Serves one folder as one model or data set; `requests` holds (method, path, range) of what was asked.

    `converted`: the files of a data set's branch refs/convert/parquet, where it has one. `refs`: the commits of all
    branches and tags, by their full names.

    `break_after` cuts the connection of the next large download after so many bytes; so many next requests for
    models as `unavailable` says are answered with status 503; a `gated` one gives no files.
    """

    def __init__(self, folder: Path, repo: str, kind: str, converted: Path | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = _files(folder)
        self.converted = _files(converted) if converted else {}
        self.refs = {"refs/heads/main": COMMIT, "refs/tags/v1": COMMIT}
        self.kind = kind
        self.repo = repo
        self.requests: list[tuple[str, str, str | None]] = []
        self.break_after = 0
        self.unavailable = 0
        self.gated = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def running(
    folder: Path, repo: str = "org/model", *, kind: str = "models", converted: Path | None = None
) -> Iterator[Hub]:
    """The hub, for the length of a block; `kind` is "models" or "datasets"."""
    with Hub(folder, repo, kind, converted) as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


def _files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


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
        # What the library tells the hub of itself, in threads of its own, is none of them.
        if self.server.unavailable and (f"/api/{self.server.kind}/" in self.path or "/resolve/" in self.path):
            self.server.unavailable -= 1
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.server.gated and "/resolve/" in self.path:
            self._json(None, "GatedRepo", status=403)
            return
        kind, repo = self.server.kind, re.escape(self.server.repo)
        prefix = "" if kind == "models" else f"{kind}/"
        if match := re.fullmatch(rf"/api/{kind}/{repo}(?:/revision/([^/?]+))?(?:\?.*)?", self.path):
            files, commit = self._revision(match[1] or "main")
            siblings = [{"rfilename": name} for name in files or {}]
            about = {"id": self.server.repo, "sha": commit, "siblings": siblings}
            self._json(about if files is not None else None, "RevisionNotFound")
        elif match := re.fullmatch(rf"/api/{kind}/{repo}/tree/([^/?]+)(?:\?.*)?", self.path):
            tree = [
                {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
                for name, body in (self._revision(match[1])[0] or {}).items()
            ]
            self._json(tree, "")
        elif re.fullmatch(rf"/api/{kind}/{repo}/refs", self.path):
            named = {
                key: [
                    {"name": ref.removeprefix(start), "ref": ref, "targetCommit": commit}
                    for ref, commit in self.server.refs.items()
                    if ref.startswith(start)
                ]
                for key, start in (("branches", "refs/heads/"), ("tags", "refs/tags/"), ("converts", "refs/convert/"))
            }
            self._json(named, "")
        elif match := re.fullmatch(rf"/{prefix}{repo}/resolve/([^/]+)/(.+)", self.path):
            files, commit = self._revision(match[1])
            self._file((files or {}).get(unquote(match[2])), commit)
        else:
            self._json(None, "RepoNotFound")

    def _revision(self, name: str) -> tuple[dict[str, bytes] | None, str]:
        """The files of a branch, tag or commit, and its commit; no files where there is none."""
        if unquote(name) in {"refs/convert/parquet", CONVERTED_COMMIT}:
            return self.server.converted or None, CONVERTED_COMMIT
        return (self.server.files if name in {"main", "v1", COMMIT} else None), COMMIT

    def _json(self, value: Any, error: str, *, status: int = 404) -> None:
        body = json.dumps({"error": error} if value is None else value).encode()
        self.send_response(status if value is None else 200)
        if value is None:
            self.send_header("X-Error-Code", error)
            self.send_header("X-Request-Id", f"Root=1-{len(self.server.requests)}")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _file(self, body: bytes | None, commit: str) -> None:
        if body is None:
            self._json(None, "EntryNotFound")
            return
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", commit)
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
