"""The MLflow server of MLFLOW_TRACKING_URI, asked as MLflow's own clients ask: with their credentials and certificates.

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
from urllib.parse import quote, urlsplit

from plansmith.config.mlflow_uri import LATEST, RegisteredName
from plansmith.errors import EnvironmentFault, SourceError
from plansmith.sources.remote_files import printable
from plansmith.system.urls import connection_reason, without_secrets

INSTALL = "pip install 'plansmith[mlflow]'"

_TRACKING, _REGISTRY = "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"
_RETRIES = 2
_SECONDS_TO_ANSWER = 30
_CHUNK_BYTES = 1 << 20
_MOST_ANSWER_BYTES = 64 << 20
_MOST_HOPS = 5
_ANY = "/api/2.0/mlflow"
_NUMBER = re.compile(r"[1-9]\d{0,17}", re.ASCII)


@dataclass(frozen=True)
class Version:
    """A version of a registered model; `address`: where the registry says that its files lie."""

    model: RegisteredName
    number: str
    address: str
    made: int

    def __str__(self) -> str:
        return f"{self.model.model}/{self.number}"


class MlflowServer:
    """An MLflow server.

    Args:
        address: http or https; a user and password in it are used, and shown nowhere.
    """

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    @property
    def shown(self) -> str:
        """Its address without secrets."""
        return without_secrets(self._address).rstrip("/")

    def at(self, root: str) -> MlflowServer:
        """The server of another address; the same one, with its credentials, where the address is this one's."""
        return self if root == self.shown else MlflowServer(root)

    def ask(self, path: str, what: str, fields: Mapping[str, str] | None = None) -> dict[str, Any]:
        """GET one of its answers, a JSON mapping.

        Args:
            path: of the API, from the root of the server.
            what: is asked for, in words.
            fields: of the query.

        Raises:
            SourceError: it has no such thing, or may not show it.
            EnvironmentFault: it does not answer, or not as MLflow does.
        """
        try:
            with self._got(path, what, fields or {}) as answer:
                found = json.loads(b"".join(_bounded(answer, _MOST_ANSWER_BYTES)))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._no_mlflow("answers with something else than JSON")
        return found

    def pieces(self, path: str, what: str) -> Iterator[bytes]:
        """GET a file, piece by piece; errors as for `ask`."""
        with self._got(path, what, {}) as answer:
            yield from answer.iter_content(_CHUNK_BYTES)

    def version(self, model: RegisteredName) -> Version:
        """The version that is meant now.

        Raises:
            SourceError: there is none, it is not ready, or it may not be seen.
            EnvironmentFault: the server does not answer.
        """
        found = self._version(model)
        number, status = str(found["version"]), str(found.get("status", "READY"))
        if status != "READY":
            raise SourceError(
                f"version {number} of {model.model} is not ready ({status.lower().replace('_', ' ')})",
                remedy="wait until it is registered, or register the model again",
                transient=status.startswith("PENDING"),
            )
        made = str(found.get("creation_timestamp", ""))
        return Version(model, number, self._files_of(model, number), int(made) if made.isdecimal() else 0)

    def number(self, model: RegisteredName) -> str:
        """The number of the version that is meant now; errors as for `version`."""
        return model.wanted if model.is_fixed else str(self._version(model)["version"])

    def _version(self, model: RegisteredName) -> dict[str, Any]:
        found = self._asked_version(model)
        if not _NUMBER.fullmatch(str(found.get("version", ""))):
            raise self._no_mlflow("names no version where one was asked for")
        return found

    def _asked_version(self, model: RegisteredName) -> dict[str, Any]:
        if model.alias:
            path = f"{_ANY}/registered-models/alias"
            return _inner(self.ask(path, str(model), {"name": model.name, "alias": model.alias}), "model_version")
        if model.wanted != LATEST:
            path = f"{_ANY}/model-versions/get"
            return _inner(self.ask(path, str(model), {"name": model.name, "version": model.wanted}), "model_version")
        found = self.ask(f"{_ANY}/registered-models/get-latest-versions", str(model), {"name": model.name})
        versions = [one for one in found.get("model_versions", []) if _NUMBER.fullmatch(str(one.get("version", "")))]
        if not versions:
            raise SourceError(f"{model.model} has no version yet", remedy="register one, or name another model")
        return max(versions, key=lambda one: int(one["version"]))

    def _files_of(self, model: RegisteredName, number: str) -> str:
        """The address of a version's files: a version may stand for a logged model, or for a version of another one."""
        asked = {"name": model.name, "version": number}
        what = f"{model.model}/{number}"
        for _ in range(_MOST_HOPS):
            answer = self.ask(f"{_ANY}/model-versions/get-download-uri", what, asked)
            address = str(answer.get("artifact_uri", ""))
            if not address.startswith("models:/"):
                return address
            name, slash, version = address.removeprefix("models:/").partition("/")
            if not slash:
                path = f"{_ANY}/logged-models/{quote(name, safe='')}"
                return str(_inner(_inner(self.ask(path, what), "model"), "info").get("artifact_uri", ""))
            asked = {"name": name, "version": version}
        raise SourceError(f"{what} stands for versions that stand for one another", remedy="register the model again")

    @contextmanager
    def _got(self, path: str, what: str, fields: Mapping[str, str]) -> Iterator[Any]:
        with self._line(), closing(self._request(path, fields)) as answer:
            self._require(answer, what)
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
        """What goes wrong on the way to the server, in our words; MLflow's own hold addresses with their passwords."""
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

    def _require(self, answer: Any, what: str) -> None:
        """See that an answer is one."""
        status = answer.status_code
        if status == 200:
            return
        said = _said(answer)
        if status in {401, 403}:
            raise SourceError(
                f"the MLflow server {self.shown} does not let you read {what}",
                remedy="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
            )
        if 300 <= status < 400:
            there = printable(without_secrets(answer.headers.get("Location", ""))) or "elsewhere"
            raise self._no_mlflow(f"sends us to {there}, which is not followed")
        if status in {400, 404} and said:
            raise SourceError(
                f"the MLflow server {self.shown} has no {what}: {said}", remedy="check the name, the version or alias"
            )
        if status == 429 or status >= 500:
            raise EnvironmentFault(
                f"the MLflow server {self.shown} answered {status}{f': {said}' if said else ''}",
                remedy="try again in a while",
                transient=True,
            )
        raise self._no_mlflow(f"answered {status}")

    def _no_mlflow(self, does: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self.shown} {does}", remedy=f"set {_TRACKING} to the address of an MLflow server")


def find_server(environment: Mapping[str, str] = os.environ) -> MlflowServer:
    """The server that the environment names, as MLflow's clients read it.

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
    found = urlsplit(address)
    if found.scheme not in {"http", "https"} or not found.hostname:
        raise EnvironmentFault(
            f"{name} is {without_secrets(address)}, which is no MLflow server",
            remedy=f"start one on it (mlflow server), and export {_TRACKING}=http://HOST:5000",
        )
    return MlflowServer(address)


def _inner(answer: dict[str, Any], key: str) -> dict[str, Any]:
    found = answer.get(key)
    return found if isinstance(found, dict) else {}


def _said(answer: Any) -> str:
    """What MLflow says of an error; empty where it says nothing that is MLflow's."""
    try:
        found = json.loads(b"".join(_bounded(answer, 1 << 16)))
    except ValueError:
        return ""
    message = str(found.get("message", "")).strip() if isinstance(found, dict) else ""
    return printable(message.partition("\n")[0])


def _bounded(answer: Any, most: int) -> Iterator[bytes]:
    """The pieces of a body, as far as it is not larger than anything that MLflow says."""
    left = most
    for piece in answer.iter_content(1 << 16):
        left -= len(piece)
        if left < 0:
            raise ValueError("the answer is larger than any of MLflow's")
        yield piece
