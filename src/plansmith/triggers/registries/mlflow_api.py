"""What an MLflow server answers: its models, their versions, aliases and tags, which are also set.

The REST API is that of mlflow.org/docs/latest/api_reference/rest-api.html, checked with MLflow 3.17; credentials are
those of MLflow's own clients: a user with a password, or else a token.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from plansmith.errors import EnvironmentFault, UsageError
from plansmith.records.model import Record
from plansmith.triggers.registries.body import read_object
from plansmith.triggers.registries.delivery import RequestRejected

_PATH = "/api/2.0/mlflow/"
_SECONDS_TO_ANSWER = 20
_SECONDS_TO_END = 60
_LARGEST_BYTES = 32 << 20
_CHUNK_BYTES = 1 << 16
_PER_PAGE = 1000
_MOST_PAGES = 1000
_MOST_WORDS = 300
_NO_STAGE = "None"
_UNFINISHED = {"PENDING_REGISTRATION", "FAILED_REGISTRATION"}


class ModelVersion(Record):
    """A version of a registered model.

    `created` is a Unix time, 0 where none is told; `stage` empty where it is in none.
    """

    version: str
    created: float
    tags: dict[str, str]
    is_ready: bool
    stage: str = ""


def stages_of(versions: Iterable[ModelVersion]) -> dict[str, str]:
    """By stage the newest version that is in it, as MLflow's clients take models:/name/Production.

    Stages are MLflow's older way, which it gives up for aliases.
    """
    staged = [one for one in versions if one.stage and one.version.isdecimal()]
    return {one.stage: one.version for one in sorted(staged, key=lambda one: int(one.version))}


class _NoRedirects(HTTPRedirectHandler):
    """Credentials go to the server that was named, and to no other."""

    def redirect_request(self, *_: Any) -> None:
        """None: the answer itself is an error then."""


class MlflowApi:
    """Asks and tells an MLflow server.

    Args:
        address: of the server, as a tracking URI.
        environment: of the process, which holds the credentials.
    """

    def __init__(self, address: str, environment: Mapping[str, str]) -> None:
        self.address = address.rstrip("/")
        self._host = urlsplit(address).netloc
        self._environment = environment
        self._opener: OpenerDirector | None = None

    def models(self) -> Iterator[str]:
        """The names of all registered models.

        Raises:
            EnvironmentFault: the server cannot be asked, or does not answer as MLflow does.
        """
        for page in self._pages("registered-models/search", {}):
            yield from (self._text(one, "name") for one in self._objects(page, "registered_models"))

    def aliases(self, model: str) -> dict[str, str] | None:
        """The versions that a model's aliases stand for; None where there is no such model. Raises as `models`."""
        answer = self._ask("registered-models/get", {"name": model})
        if answer is None:
            return None
        found = answer.get("registered_model")
        if not isinstance(found, dict):
            raise self._no_mlflow()
        return {self._text(one, "alias"): self._text(one, "version") for one in self._objects(found, "aliases")}

    def versions(self, model: str) -> Iterator[ModelVersion]:
        """All versions of a model; none where there is no such model. Raises as `models`."""
        quote = '"' if "'" in model else "'"
        for page in self._pages("model-versions/search", {"filter": f"name={quote}{model}{quote}"}):
            for one in self._objects(page, "model_versions"):
                stage = one.get("current_stage")
                tags = {str(tag.get("key", "")): tag.get("value") for tag in self._objects(one, "tags")}
                yield ModelVersion(
                    version=self._text(one, "version"),
                    created=self._milliseconds(one.get("creation_timestamp", 0)) / 1000,
                    tags={key: value for key, value in tags.items() if isinstance(value, str)},
                    is_ready=one.get("status") not in _UNFINISHED,
                    stage=stage if isinstance(stage, str) and stage != _NO_STAGE else "",
                )

    def tags(self, model: str, version: str) -> dict[str, str] | None:
        """The tags of a version; None where there is no such version. Raises as `models`."""
        answer = self._ask("model-versions/get", {"name": model, "version": version})
        if answer is None:
            return None
        found = answer.get("model_version")
        if not isinstance(found, dict):
            raise self._no_mlflow()
        return {self._text(tag, "key"): str(tag.get("value", "")) for tag in self._objects(found, "tags")}

    def set_tag(self, model: str, version: str, key: str, value: str) -> bool:
        """Set a tag of a version, in place of one of this name; False where there is no such version.

        Raises:
            UsageError: MLflow does not take it.
            EnvironmentFault: as `models`.
        """
        said = {"name": model, "version": version, "key": key, "value": value}
        return self._ask("model-versions/set-tag", said, is_change=True) is not None

    def set_alias(self, model: str, version: str, alias: str) -> bool:
        """Have an alias of a model stand for a version; as `set_tag` otherwise."""
        said = {"name": model, "alias": alias, "version": version}
        return self._ask("registered-models/alias", said, is_change=True) is not None

    def _pages(self, path: str, words: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        token = ""
        for _ in range(_MOST_PAGES):
            page = {"page_token": token} if token else {}
            answer = self._ask(path, {**words, "max_results": str(_PER_PAGE), **page})
            if answer is None:
                return
            yield answer
            token = str(answer.get("next_page_token") or "")
            if not token:
                return
        raise self._no_mlflow()

    def _ask(self, path: str, words: Mapping[str, str], *, is_change: bool = False) -> dict[str, Any] | None:
        """What is answered; None where MLflow says that there is no such thing."""
        address, headers = f"{self.address}{_PATH}{path}", self._headers()
        if is_change:
            said = json.dumps(words).encode()
            request = Request(address, said, headers | {"Content-Type": "application/json"})  # noqa: S310 - http
        else:
            request = Request(f"{address}?{urlencode(words)}", headers=headers)  # noqa: S310 - http
        try:
            with self._connected().open(request, timeout=_SECONDS_TO_ANSWER) as answer:
                body = self._read(answer)
        except HTTPError as error:
            with error:
                told = self._error_in(error)
            if error.code == 404 and told.get("error_code") == "RESOURCE_DOES_NOT_EXIST":
                return None
            if error.code == 400 and told.get("error_code") == "INVALID_PARAMETER_VALUE":
                raise UsageError(
                    f"{self._host} refuses {path}: {_words_of(told)}", remedy="see what it takes, or mend the rule"
                ) from error
            raise self._refusal(error.code) from error
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise EnvironmentFault(
                f"MLflow cannot be reached at {self._host}: {reason}",
                remedy="see that it runs and that tracking_uri is its address",
                transient=True,
            ) from error
        try:
            return read_object(body)
        except RequestRejected:
            raise self._no_mlflow() from None

    def _connected(self) -> OpenerDirector:
        if self._opener is None:
            certificates = self._environment.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
            context = ssl.create_default_context(cafile=certificates or None)
            self._opener = build_opener(_NoRedirects, HTTPSHandler(context=context))
        return self._opener

    def _headers(self) -> dict[str, str]:
        user, password, token = (
            self._environment.get(f"MLFLOW_TRACKING_{name}", "") for name in ("USERNAME", "PASSWORD", "TOKEN")
        )
        if user and password:
            return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _read(self, answer: Any) -> bytes:
        """A body, which may neither be without end nor take for ever."""
        body, ends = bytearray(), time.monotonic() + _SECONDS_TO_END
        while piece := answer.read1(_CHUNK_BYTES):
            body += piece
            if len(body) > _LARGEST_BYTES:
                raise self._no_mlflow()
            if time.monotonic() > ends:
                raise TimeoutError("it takes too long to answer")
        return bytes(body)

    def _error_in(self, error: HTTPError) -> dict[str, Any]:
        """What MLflow says is wrong; nothing where it is a web server that says so."""
        try:
            return read_object(self._read(error))
        except (RequestRejected, OSError, http.client.HTTPException):
            return {}

    def _refusal(self, status: int) -> EnvironmentFault:
        if status in {401, 403}:
            return EnvironmentFault(
                f"{self._host} lets nobody in with these credentials (HTTP {status})",
                remedy="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
            )
        if 300 <= status < 400:
            return EnvironmentFault(
                f"{self._host} sends requests elsewhere (HTTP {status})", remedy="name that address as tracking_uri"
            )
        return EnvironmentFault(
            f"{self._host} does not answer as MLflow does (HTTP {status})",
            remedy="see its log, and that tracking_uri is its address",
            transient=status == 429 or status >= 500,
        )

    def _no_mlflow(self) -> EnvironmentFault:
        return EnvironmentFault(f"what answers at {self._host} is no MLflow", remedy="see that tracking_uri is right")

    def _objects(self, values: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
        found = values.get(key, [])
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise self._no_mlflow()
        return found

    def _text(self, values: Mapping[str, Any], key: str) -> str:
        found = values.get(key)
        if not isinstance(found, str | int) or found == "":
            raise self._no_mlflow()
        return str(found)

    def _milliseconds(self, value: object) -> int:
        """MLflow writes them as numbers, and other makers of the same protocol as texts."""
        try:
            return int(value)  # type: ignore[call-overload, no-any-return] # what is none says so
        except (TypeError, ValueError):
            raise self._no_mlflow() from None


def _words_of(told: Mapping[str, Any]) -> str:
    return " ".join(str(told.get("message", "")).split())[:_MOST_WORDS]
