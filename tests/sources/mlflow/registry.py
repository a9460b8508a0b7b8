"""An MLflow server on 127.0.0.1 as far as a compile asks one, which can be made to lie as a real one cannot."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_API = "/api/2.0/mlflow"
_FILES = "/api/2.0/mlflow-artifacts/artifacts"


@dataclass
class Registry:
    """What the server knows, and how it misbehaves.

    `addresses`: by "name/version", where its files lie; `aliases`: by "name@alias", the version; `logged`: by id, where
    the files of a logged model lie; `files`: by path below the artefacts; `sizes`: said of files in place of the true
    ones; `more_names`: listed in every folder besides; `redirect`: every request is sent there; `status`: every request
    is answered with it; `break_after`: a file breaks off after so many bytes; `states`: by "name/version"; `stall_at`:
    a file of this name comes half, `stalled` says that it did, and the rest when it `may_go_on`.
    """

    addresses: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    logged: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    more_names: tuple[str, ...] = ()
    redirect: str = ""
    status: int = 200
    break_after: int = 0
    stall_at: str = ""
    stalled: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    requests: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)

    def add(self, version: str, files: dict[str, bytes], address: str = "") -> None:
        """Register a version with files of its own."""
        place = version.replace("/", "-")
        self.addresses[version] = address or f"mlflow-artifacts:/{place}"
        self.files |= {f"{place}/{path}": content for path, content in files.items()}

    def answer(self, path: str, asked: dict[str, str]) -> tuple[int, Any]:
        """Status, and JSON or bytes."""
        if path == _FILES:
            return 200, {"files": self._listed(asked.get("path", ""))}
        if path.startswith(f"{_FILES}/"):
            content = self.files.get(unquote(path.removeprefix(f"{_FILES}/")))
            return (200, content) if content is not None else _not_found("No such artifact")
        response = self._registered(path.removeprefix(f"{_API}/"), asked)
        return (200, response) if response is not None else _not_found("Model Version not found")

    def _registered(self, path: str, asked: dict[str, str]) -> dict[str, Any] | None:
        name, version = asked.get("name", ""), asked.get("version", "")
        exists, logged = f"{name}/{version}" in self.addresses, path.removeprefix("logged-models/")
        response: dict[str, Any] | None = None
        if path == "registered-models/alias" and (number := self.aliases.get(f"{name}@{asked['alias']}")):
            response = {"model_version": self._version(name, number)}
        elif path == "registered-models/get-latest-versions":
            numbers = [key.partition("/")[2] for key in self.addresses if key.startswith(f"{name}/")]
            response = {"model_versions": [self._version(name, number) for number in numbers]}
        elif path == "model-versions/get" and exists:
            response = {"model_version": self._version(name, version)}
        elif path == "model-versions/get-download-uri" and exists:
            response = {"artifact_uri": self.addresses[f"{name}/{version}"]}
        elif logged in self.logged:
            response = {"model": {"info": {"artifact_uri": self.logged[logged]}}}
        return response

    def _version(self, name: str, number: str) -> dict[str, Any]:
        status = self.states.get(f"{name}/{number}", "READY")
        return {"name": name, "version": number, "status": status, "creation_timestamp": "1795425082713"}

    def _listed(self, folder: str) -> list[dict[str, Any]]:
        inside = {path.removeprefix(f"{folder}/"): body for path, body in self.files.items() if path.startswith(folder)}
        entries: dict[str, dict[str, Any]] = {}
        for path, body in inside.items():
            name, slash, _ = path.partition("/")
            size = self.sizes.get(f"{folder}/{name}", len(body))
            entries[name] = {"path": name, "is_dir": True} if slash else {"path": name, "file_size": str(size)}
        return [*entries.values(), *({"path": name, "file_size": "1"} for name in self.more_names)]


@contextmanager
def running() -> Iterator[Registry]:
    """The server, for the length of a block."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.requests.append(self.path)
            registry.logins.append(self.headers.get("Authorization", ""))
            if registry.redirect:
                self.send_response(302)
                self.send_header("Location", registry.redirect)
                self.end_headers()
                return
            parts = urlsplit(self.path)
            parameters = {key: values[0] for key, values in parse_qs(parts.query).items()}
            status, response = registry.answer(parts.path, parameters)
            body = response if isinstance(response, bytes) else json.dumps(response).encode()
            self.send_response(registry.status if registry.status != 200 else status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if isinstance(response, bytes) and registry.break_after and len(body) > registry.break_after:
                body = body[: registry.break_after]
                self.close_connection = True
            if registry.stall_at and self.path.endswith(registry.stall_at):
                self.wfile.write(body[: len(body) // 2])
                registry.stalled.set()
                registry.may_go_on.wait(300)
                self.close_connection = True
                return
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature of the base class
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()


def _not_found(message: str) -> tuple[int, dict[str, str]]:
    return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": message}
