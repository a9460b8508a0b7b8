"""MLflow client for MLFLOW_TRACKING_URI, with the credentials and certificates of MLflow's own clients.

Redirects are not followed: what was asked of one server is not answered by another.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from plansmith.config.source_reference import LATEST, RegisteredName
from plansmith.errors import EnvironmentFault, SourceError, UsageError
from plansmith.sources.remote_files import MOST_FILES, RemoteFile, is_name, printable, require_plain, too_many
from plansmith.system.urls import connection_reason, without_secrets

VARIABLE = "PLANSMITH_MLFLOW_ALLOWED"
"""Names further places, separated by commas: s3://bucket[/prefix], or https://host of another MLflow server."""

API = "/api/2.0/mlflow-artifacts/artifacts"
"""Where an MLflow server hands out files, below its address."""

_EXAMPLE = "s3://models/mlflow,https://artifacts.example.com"

INSTALL = "pip install 'plansmith[mlflow]'"
_RETRIES = 2
_SECONDS_TO_ANSWER = 30
_CHUNK_BYTES = 1 << 20
_MOST_ANSWER_BYTES = 64 << 20
_MOST_HOPS = 5
_ANY = "/api/2.0/mlflow"
_NUMBER = re.compile(r"[1-9]\d{0,17}", re.ASCII)
_DEEPEST = 8


@dataclass(frozen=True)
class ArtifactLocation:
    """Artifact location of one version's files.

    Args:
        kind: "served" by an MLflow server, or in "s3".
        root: the server's address, or the bucket.
        path: below it, without a slash at either end.
    """

    kind: str
    root: str
    path: str

    def __str__(self) -> str:
        return f"s3://{self.root}/{self.path}" if self.kind == "s3" else f"{self.root}{API}/{self.path}"


@dataclass(frozen=True)
class Allowed:
    """Allowed locations set by the operator: buckets with prefixes, and URLs of further servers."""

    buckets: tuple[tuple[str, str], ...] = ()
    servers: tuple[str, ...] = ()


def allowed_here(environment: Mapping[str, str] = os.environ) -> Allowed:
    """Return the locations that the environment allows.

    Raises:
        UsageError: an entry is none.
    """
    buckets, servers = [], []
    for entry in filter(None, (part.strip() for part in environment.get(VARIABLE, "").split(","))):
        url = urlsplit(entry)
        if url.scheme == "s3" and url.hostname and not url.query:
            buckets.append((url.netloc, url.path.strip("/")))
        elif url.scheme in {"http", "https"} and url.hostname and not url.username and not url.query:
            servers.append(entry.rstrip("/"))
        else:
            raise UsageError(f"{VARIABLE}: {without_secrets(entry)!r} is no place", remedy=f"write it as in {_EXAMPLE}")
    return Allowed(tuple(buckets), tuple(servers))


def place_of(address: str, *, server: str, allowed: Allowed, of: str) -> ArtifactLocation:
    """Return the location of an artifact URI, if access is allowed.

    Args:
        address: as the registry has it.
        server: the address of the MLflow server itself, without secrets.
        allowed: further places.
        of: the version, for errors.

    Raises:
        SourceError: any other place.
    """
    try:
        url = urlsplit(address)
    except ValueError as error:
        raise _refused(of, address, "correct the version's source") from error
    path = unquote(url.path)
    if url.query or url.fragment or url.username or not _is_plain(path):
        raise _refused(of, address, "correct the version's source: it holds what no address of files has")
    if url.scheme == "mlflow-artifacts":
        root = _server(url.netloc, server, allowed)
        if root:
            return ArtifactLocation("served", root, path.strip("/"))
    elif url.scheme in {"http", "https"}:
        for root in (server, *allowed.servers):
            if address.startswith(f"{root}{API}/"):
                return ArtifactLocation("served", root, unquote(address.removeprefix(f"{root}{API}/")).strip("/"))
    elif url.scheme == "s3":
        inside = path.strip("/")
        if any(url.netloc == b and (not p or inside == p or inside.startswith(f"{p}/")) for b, p in allowed.buckets):
            return ArtifactLocation("s3", url.netloc, inside)
        way = f"{VARIABLE}=s3://{url.netloc}"
        raise _refused(of, address, f"if files from there may be trusted: export {way}")
    raise _refused(
        of, address, f"log the model to the server's own store, or name its bucket or server in {VARIABLE} ({_EXAMPLE})"
    )


def _server(host: str, server: str, allowed: Allowed) -> str:
    """Return the server URL that mlflow-artifacts://host refers to; empty if it is not allowed."""
    if not host:
        return server
    return next((root for root in (server, *allowed.servers) if urlsplit(root).netloc == host), "")


def _is_plain(path: str) -> bool:
    parts = path.strip("/").split("/")
    return all(is_name(part) for part in parts) if path.strip("/") else True


def _refused(of: str, address: str, remedy: str) -> SourceError:
    try:
        shown = printable(without_secrets(address))
    except ValueError:
        shown = "an address that is none"
    return SourceError(
        f"{of} lies at {shown or 'no address'}, which is no place that models may come from", remedy=remedy
    )


_TRACKING, _REGISTRY = "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"


@dataclass(frozen=True)
class Version:
    """Version of a registered model; `address`: the registry's URI of its files."""

    model: RegisteredName
    number: str
    address: str
    creation_time: int

    def __str__(self) -> str:
        return f"{self.model.model}/{self.number}"


class MlflowServer:
    """MLflow server.

    Args:
        address: http or https; a user and password in it are used, and shown nowhere.
    """

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    @property
    def shown(self) -> str:
        """The server's address without secrets."""
        return without_secrets(self._address).rstrip("/")

    def at(self, root: str) -> MlflowServer:
        """Return the server at another address; the same one, with its credentials, if the address is this server's."""
        return self if root == self.shown else MlflowServer(root)

    def ask(self, path: str, subject: str, fields: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Send a GET request and return the JSON mapping.

        Args:
            path: of the API, from the root of the server.
            subject: is asked for, in words.
            fields: of the query.

        Raises:
            SourceError: it has no such thing, or may not show it.
            EnvironmentFault: it does not answer, or not as MLflow does.
        """
        try:
            with self._got(path, subject, fields or {}) as answer:
                document = json.loads(b"".join(_bounded(answer, _MOST_ANSWER_BYTES)))
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise self._no_mlflow("answers with something else than JSON")
        return document

    def pieces(self, path: str, subject: str) -> Iterator[bytes]:
        """Download a file chunk by chunk; errors as for `ask`."""
        with self._got(path, subject, {}) as answer:
            yield from answer.iter_content(_CHUNK_BYTES)

    def version(self, model: RegisteredName) -> Version:
        """Return the version that a selector currently refers to.

        Raises:
            SourceError: there is none, it is not ready, or it may not be seen.
            EnvironmentFault: the server does not answer.
        """
        answer = self._version(model)
        number, status = str(answer["version"]), str(answer.get("status", "READY"))
        if status != "READY":
            raise SourceError(
                f"version {number} of {model.model} is not ready ({status.lower().replace('_', ' ')})",
                remedy="wait until it is registered, or register the model again",
                transient=status.startswith("PENDING"),
            )
        timestamp = str(answer.get("creation_timestamp", ""))
        return Version(model, number, self._files_of(model, number), int(timestamp) if timestamp.isdecimal() else 0)

    def number(self, model: RegisteredName) -> str:
        """Return the number of the currently selected version; errors as for `version`."""
        return model.selector if model.is_fixed else str(self._version(model)["version"])

    def _version(self, model: RegisteredName) -> dict[str, Any]:
        answer = self._asked_version(model)
        if not _NUMBER.fullmatch(str(answer.get("version", ""))):
            raise self._no_mlflow("names no version where one was asked for")
        return answer

    def _asked_version(self, model: RegisteredName) -> dict[str, Any]:
        if model.alias:
            path = f"{_ANY}/registered-models/alias"
            return _inner(self.ask(path, str(model), {"name": model.name, "alias": model.alias}), "model_version")
        if model.selector != LATEST:
            path = f"{_ANY}/model-versions/get"
            return _inner(self.ask(path, str(model), {"name": model.name, "version": model.selector}), "model_version")
        answer = self.ask(f"{_ANY}/registered-models/get-latest-versions", str(model), {"name": model.name})
        versions = [
            entry for entry in answer.get("model_versions", []) if _NUMBER.fullmatch(str(entry.get("version", "")))
        ]
        if not versions:
            raise SourceError(f"{model.model} has no version yet", remedy="register one, or name another model")
        return max(versions, key=lambda entry: int(entry["version"]))

    def _files_of(self, model: RegisteredName, number: str) -> str:
        """Return the URI of a version's files: a version may refer to a logged model, or to another model's version."""
        fields = {"name": model.name, "version": number}
        subject = f"{model.model}/{number}"
        for _ in range(_MOST_HOPS):
            answer = self.ask(f"{_ANY}/model-versions/get-download-uri", subject, fields)
            address = str(answer.get("artifact_uri", ""))
            if not address.startswith("models:/"):
                return address
            name, slash, version = address.removeprefix("models:/").partition("/")
            if not slash:
                path = f"{_ANY}/logged-models/{quote(name, safe='')}"
                return str(_inner(_inner(self.ask(path, subject), "model"), "info").get("artifact_uri", ""))
            fields = {"name": name, "version": version}
        raise SourceError(
            f"{subject} stands for versions that stand for one another", remedy="register the model again"
        )

    @contextmanager
    def _got(self, path: str, subject: str, fields: Mapping[str, str]) -> Iterator[Any]:
        with self._line(), closing(self._request(path, fields)) as answer:
            self._require(answer, subject)
            yield answer

    def _request(self, path: str, fields: Mapping[str, str]) -> Any:
        # MLflow's clients count their users; a compile tells nobody of itself.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            from mlflow.utils.credentials import get_default_host_creds
            from mlflow.utils.rest_utils import http_request
        except ImportError as error:
            raise EnvironmentFault("MLflow's client is not installed", remedy=INSTALL) from error
        return http_request(
            get_default_host_creds(self._address),
            path,
            "GET",
            params=dict(fields),
            timeout=_SECONDS_TO_ANSWER,
            max_retries=_RETRIES,
            raise_on_status=False,
            allow_redirects=False,
            stream=True,
        )

    @contextmanager
    def _line(self) -> Iterator[None]:
        """Describe a connection error without MLflow's own messages, which contain URLs with passwords."""
        try:
            import requests
            import urllib3
            from mlflow.exceptions import MlflowException
        except ImportError as error:
            raise EnvironmentFault("MLflow's client is not installed", remedy=INSTALL) from error
        try:
            yield
        except (MlflowException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            cause = error.__cause__ or error.__context__ if isinstance(error, MlflowException) else error
            raise EnvironmentFault(
                f"the MLflow server {self.shown} does not answer: {connection_reason(cause or error)}",
                remedy=f"start it, or correct {_TRACKING}",
                transient=True,
            ) from error

    def _require(self, answer: Any, subject: str) -> None:
        """Check that a response is valid."""
        status = answer.status_code
        if status == 200:
            return
        message = _error_message(answer)
        if status in {401, 403}:
            raise SourceError(
                f"the MLflow server {self.shown} does not let you read {subject}",
                remedy="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
            )
        if 300 <= status < 400:
            destination = printable(without_secrets(answer.headers.get("Location", ""))) or "elsewhere"
            raise self._no_mlflow(f"sends us to {destination}, which is not followed")
        if status in {400, 404} and message:
            raise SourceError(
                f"the MLflow server {self.shown} has no {subject}: {message}",
                remedy="check the name, the version or alias",
            )
        if status == 429 or status >= 500:
            raise EnvironmentFault(
                f"the MLflow server {self.shown} answered {status}{f': {message}' if message else ''}",
                remedy="try again in a while",
                transient=True,
            )
        raise self._no_mlflow(f"answered {status}")

    def _no_mlflow(self, does: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self.shown} {does}", remedy=f"set {_TRACKING} to the address of an MLflow server")


def find_server(environment: Mapping[str, str] = os.environ) -> MlflowServer:
    """Return the server of the environment, as MLflow's clients read it.

    Raises:
        EnvironmentFault: none, or no server.
    """
    name = _REGISTRY if environment.get(_REGISTRY) else _TRACKING
    address = environment.get(name, "")
    if not address:
        raise EnvironmentFault(
            f"{_TRACKING} is not set, so nobody can be asked for registered models",
            remedy=f"export {_TRACKING}=http://HOST:5000",
        )
    url = urlsplit(address)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise EnvironmentFault(
            f"{name} is {without_secrets(address)}, which is no MLflow server",
            remedy=f"start one on it (mlflow server), and export {_TRACKING}=http://HOST:5000",
        )
    return MlflowServer(address)


def _inner(answer: dict[str, Any], key: str) -> dict[str, Any]:
    value = answer.get(key)
    return value if isinstance(value, dict) else {}


def _error_message(answer: Any) -> str:
    """Return the message of an MLflow error response; empty if it is not from MLflow."""
    try:
        document = json.loads(b"".join(_bounded(answer, 1 << 16)))
    except (ValueError, RecursionError):
        return ""
    message = str(document.get("message", "")).strip() if isinstance(document, dict) else ""
    return printable(message.partition("\n")[0])


def _bounded(answer: Any, most: int) -> Iterator[bytes]:
    """Yield the chunks of a body up to the size limit for MLflow responses."""
    left = most
    for piece in answer.iter_content(1 << 16):
        left -= len(piece)
        if left < 0:
            raise ValueError("the answer is larger than any of MLflow's")
        yield piece


class ServedFiles:
    """Files of one version on an MLflow server.

    Args:
        server: hands them out.
        path: of their folder, below its artefacts.
        of: the version, for errors.
    """

    def __init__(self, server: MlflowServer, path: str, of: str) -> None:
        self._server = server
        self._path = path
        self._of = of

    def listed(self) -> tuple[RemoteFile, ...]:
        """As `RemoteFiles.listed`; a server lists one folder at a time."""
        files: list[RemoteFile] = []
        folders, total = [""], 0
        while folders:
            folder = folders.pop()
            for entry in self._folder(folder):
                path = f"{folder}/{_text(entry, 'path')}" if folder else _text(entry, "path")
                require_plain(path, self._of)
                total += 1
                if total > MOST_FILES or path.count("/") > _DEEPEST:
                    raise too_many(self._of)
                if entry.get("is_dir"):
                    folders.append(path)
                else:
                    files.append(RemoteFile(path, _size(entry)))
        if not files:
            raise SourceError(f"{self._of} has no files in its store", remedy="log and register the model again")
        return tuple(sorted(files, key=lambda file: file.path))

    def pieces(self, path: str) -> Iterator[bytes]:
        """As `RemoteFiles.pieces`."""
        where = "/".join(part for part in (self._path, path) if part)
        return self._server.pieces(f"{API}/{quote(where)}", f"{path} of {self._of}")

    def _folder(self, folder: str) -> list[dict[str, Any]]:
        where = "/".join(part for part in (self._path, folder) if part)
        answer = self._server.ask(API, f"files of {self._of}", {"path": where})
        files = answer.get("files", [])
        return [entry for entry in files if isinstance(entry, dict)] if isinstance(files, list) else []


def _text(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""


def _size(entry: dict[str, Any]) -> int:
    """Parse a size: MLflow writes 64-bit numbers as text, as in protobuf's JSON, and omits zero."""
    value = str(entry.get("file_size", 0))
    return int(value) if value.isdigit() else 0
