"""An HTTP server that answers as MLflow's REST API does, from what a test put there."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

NOW = 1795165608.0

_API = "/api/2.0/mlflow/"
_KEY = re.compile(r"[A-Za-z0-9_\-. :/]+")


@dataclass
class Mlflow:
    """Models by name with their aliases, and versions in order.

    `answer`: status and body of every answer, in place of those; `page`: versions or models on one; `changes`: path and
    fields of all that was changed; `away_after`: it answers 503 once so many changes were made.
    """

    aliases: dict[str, dict[str, str]] = field(default_factory=dict)
    versions: list[dict[str, Any]] = field(default_factory=list)
    answer: tuple[int, bytes] | None = None
    page: int = 2
    url: str = ""
    requests: list[str] = field(default_factory=list)
    credentials: set[str] = field(default_factory=set)
    changes: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    away_after: int | None = None

    def add(
        self,
        model: str,
        version: int,
        tags: Mapping[str, str] = MappingProxyType({}),
        *,
        days: float = 0,
        status: str = "READY",
        stage: str = "None",
    ) -> None:
        """Make a version, some days ago."""
        self.aliases.setdefault(model, {})
        entry = {
            "name": model,
            "version": str(version),
            "creation_timestamp": int((NOW - days * 86_400) * 1000),
            "status": status,
            "current_stage": stage,
            "tags": [{"key": key, "value": value} for key, value in tags.items()],
        }
        self.versions.append({key: value for key, value in entry.items() if value != []})  # as protobuf leaves them out

    def answered(self, path: str, words: dict[str, str]) -> tuple[int, bytes]:
        """Status and body of an answer."""
        if self.answer is not None:
            return self.answer
        if self.away_after is not None and len(self.changes) >= self.away_after:
            return 503, b"upstream is away"
        if path == "model-versions/get":
            entry = self._version(words["name"], words["version"])
            return self._absent(words) if entry is None else (200, json.dumps({"model_version": entry}).encode())
        if path == "registered-models/get":
            return self._model(words["name"])
        if path == "registered-models/search":
            return self._paged("registered_models", [{"name": name} for name in sorted(self.aliases)], words)
        assert path == "model-versions/search"
        name = words["filter"].removeprefix("name=")
        assert name[0] == name[-1] in "'\""
        matches = [entry for entry in reversed(self.versions) if entry["name"] == name[1:-1]]
        return self._paged("model_versions", matches, words)

    def tags(self, model: str, version: int) -> dict[str, str]:
        """The tags of a version."""
        entry = self._version(model, str(version))
        assert entry is not None
        return {tag["key"]: tag["value"] for tag in entry.get("tags", [])}

    def changed(self, path: str, said: dict[str, str]) -> tuple[int, bytes]:
        """Status and body of an answer to what changes something; it takes what MLflow 3.17 takes, and nothing else."""
        if self.answer is not None:
            return self.answer
        if self.away_after is not None and len(self.changes) >= self.away_after:
            return 503, b"upstream is away"
        entry = self._version(said["name"], said["version"])
        if entry is None:
            return self._absent(said)
        if path == "model-versions/set-tag":
            assert set(said) == {"name", "version", "key", "value"}
            if not _KEY.fullmatch(said["key"]) or len(said["key"].encode()) > 250 or len(said["value"].encode()) > 5000:
                return 400, json.dumps({"error_code": "INVALID_PARAMETER_VALUE", "message": "Invalid tag"}).encode()
            others = [tag for tag in entry.get("tags", []) if tag["key"] != said["key"]]
            entry["tags"] = [*others, {"key": said["key"], "value": said["value"]}]
        else:
            assert (path, set(said)) == ("registered-models/alias", {"name", "version", "alias"})
            self.aliases[said["name"]][said["alias"]] = said["version"]
        self.changes.append((path, said))
        return 200, b"{}"

    def _version(self, model: str, version: str) -> dict[str, Any] | None:
        return next((entry for entry in self.versions if (entry["name"], entry["version"]) == (model, version)), None)

    def _absent(self, said: dict[str, str]) -> tuple[int, bytes]:
        message = f"Model Version (name={said['name']}, version={said['version']}) not found"
        return 404, json.dumps({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": message}).encode()

    def _model(self, name: str) -> tuple[int, bytes]:
        if name not in self.aliases:
            error = {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": f"Registered Model with name={name} not found"}
            return 404, json.dumps(error).encode()
        document: dict[str, Any] = {"name": name, "creation_timestamp": 1795165000000}
        if self.aliases[name]:
            document["aliases"] = [
                {"alias": alias, "version": version} for alias, version in self.aliases[name].items()
            ]
        return 200, json.dumps({"registered_model": document}).encode()

    def _paged(self, key: str, items: list[dict[str, Any]], words: dict[str, str]) -> tuple[int, bytes]:
        assert int(words["max_results"]) <= 10_000
        begin = int(words.get("page_token", "0"))
        document: dict[str, Any] = {key: items[begin : begin + self.page]} if items else {}
        if len(items) > begin + self.page:
            document["next_page_token"] = str(begin + self.page)
        return 200, json.dumps(document).encode()


@contextmanager
def serving(mlflow: Mlflow) -> Iterator[Mlflow]:
    """It answers for the length of a block."""

    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = self._begun()
            self._say(*mlflow.answered(parts.path.removeprefix(_API), dict(parse_qsl(parts.query))))

        def do_POST(self) -> None:
            parts = self._begun()
            assert self.headers["Content-Type"] == "application/json"
            assert not parts.query
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                answer = mlflow.changed(parts.path.removeprefix(_API), content)
            self._say(*answer)

        def _begun(self) -> SplitResult:
            parts = urlsplit(self.path)
            assert parts.path.startswith(_API)
            mlflow.requests.append(self.path)
            mlflow.credentials.add(self.headers.get("Authorization", ""))
            return parts

        def _say(self, status: int, body: bytes) -> None:
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{mlflow.url}/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    mlflow.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield mlflow
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
