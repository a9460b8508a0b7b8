"""MLflow webhooks: an alias or tag was set on a model version, or a version was created.

Checked with MLflow 3.17: it signs "<delivery id>.<timestamp>." and the raw body, sends the same id again on 429 and
5xx, and nothing again after some seconds: what was missed then, polls find.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from plansmith.config.service_triggers import Change, MlflowRegistry
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.records.model import Record
from plansmith.triggers.registries.delivery import (
    OWN_TAGS,
    Delivery,
    Event,
    Ignored,
    RequestRejected,
    SignedHeaders,
    is_showable,
    name_of,
    object_of,
    proven_id,
    read_object,
)

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

HEADERS = SignedHeaders("x-mlflow-delivery-id", "x-mlflow-timestamp", "x-mlflow-signature")
_CHANGES: dict[tuple[str, str], Change] = {
    ("model_version_alias", "created"): "alias",
    ("model_version_tag", "set"): "tag",
    ("model_version", "created"): "created",
}
# What `Test webhook` sends, signed like everything else.
_TEST_MODEL = "example_model"
_TEST_RUN = "abcd1234abcd5678"
_WORKSPACE = "default"
_VERSION = re.compile(r"[1-9][0-9]{0,17}")


class ModelVersion(Record):
    """A registered model version.

    `created` is a Unix time, 0 where none is told; `stage` empty where it is in none.
    """

    version: str
    created: float
    tags: dict[str, str]
    is_ready: bool
    stage: str = ""


def stages_of(versions: Iterable[ModelVersion]) -> dict[str, str]:
    """Return the newest version in each stage, as MLflow clients resolve models:/name/Production.

    Stages are MLflow's older way, which it gives up for aliases.
    """
    staged = [entry for entry in versions if entry.stage and entry.version.isdecimal()]
    return {entry.stage: entry.version for entry in sorted(staged, key=lambda entry: int(entry.version))}


class _NoRedirects(HTTPRedirectHandler):
    """Redirect handler that refuses redirects: credentials go only to the configured server."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, so that the redirect response is raised as an error."""


class MlflowApi:
    """MLflow REST client: reads from and writes to an MLflow server.

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
        """Yield the names of all registered models.

        Raises:
            EnvironmentFault: the server cannot be asked, or does not answer as MLflow does.
        """
        for page in self._pages("registered-models/search", {}):
            yield from (self._text(entry, "name") for entry in self._objects(page, "registered_models"))

    def aliases(self, model: str) -> dict[str, str] | None:
        """Return the versions of a model's aliases; None if there is no such model. Raises as `models`."""
        answer = self._ask("registered-models/get", {"name": model})
        if answer is None:
            return None
        document = answer.get("registered_model")
        if not isinstance(document, dict):
            raise self._no_mlflow()
        return {
            self._text(entry, "alias"): self._text(entry, "version") for entry in self._objects(document, "aliases")
        }

    def versions(self, model: str) -> Iterator[ModelVersion]:
        """Yield all versions of a model; none if there is no such model. Raises as `models`."""
        quote = '"' if "'" in model else "'"
        for page in self._pages("model-versions/search", {"filter": f"name={quote}{model}{quote}"}):
            for entry in self._objects(page, "model_versions"):
                stage = entry.get("current_stage")
                tags = {str(tag.get("key", "")): tag.get("value") for tag in self._objects(entry, "tags")}
                yield ModelVersion(
                    version=self._text(entry, "version"),
                    created=self._milliseconds(entry.get("creation_timestamp", 0)) / 1000,
                    tags={key: value for key, value in tags.items() if isinstance(value, str)},
                    is_ready=entry.get("status") not in _UNFINISHED,
                    stage=stage if isinstance(stage, str) and stage != _NO_STAGE else "",
                )

    def tags(self, model: str, version: str) -> dict[str, str] | None:
        """Return the tags of a version; None if there is no such version. Raises as `models`."""
        answer = self._ask("model-versions/get", {"name": model, "version": version})
        if answer is None:
            return None
        document = answer.get("model_version")
        if not isinstance(document, dict):
            raise self._no_mlflow()
        return {self._text(tag, "key"): str(tag.get("value", "")) for tag in self._objects(document, "tags")}

    def set_tag(self, model: str, version: str, key: str, value: str) -> bool:
        """Set or replace a tag of a version; False if there is no such version.

        Raises:
            UsageError: MLflow does not take it.
            EnvironmentFault: as `models`.
        """
        fields = {"name": model, "version": version, "key": key, "value": value}
        return self._ask("model-versions/set-tag", fields, is_change=True) is not None

    def set_alias(self, model: str, version: str, alias: str) -> bool:
        """Point an alias of a model to a version; otherwise as `set_tag`."""
        fields = {"name": model, "alias": alias, "version": version}
        return self._ask("registered-models/alias", fields, is_change=True) is not None

    def _pages(self, path: str, fields: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        token = ""
        for _ in range(_MOST_PAGES):
            page = {"page_token": token} if token else {}
            answer = self._ask(path, {**fields, "max_results": str(_PER_PAGE), **page})
            if answer is None:
                return
            yield answer
            token = str(answer.get("next_page_token") or "")
            if not token:
                return
        raise self._no_mlflow()

    def _ask(self, path: str, fields: Mapping[str, str], *, is_change: bool = False) -> dict[str, Any] | None:
        """Send a request and return the response; None where MLflow reports that the resource does not exist."""
        address, headers = f"{self.address}{_PATH}{path}", self._headers()
        if is_change:
            content = json.dumps(fields).encode()
            request = Request(address, content, headers | {"Content-Type": "application/json"})  # noqa: S310 - http
        else:
            request = Request(f"{address}?{urlencode(fields)}", headers=headers)  # noqa: S310 - http
        try:
            with self._connected().open(request, timeout=_SECONDS_TO_ANSWER) as answer:
                body = self._read(answer)
        except HTTPError as error:
            with error:
                details = self._error_in(error)
            if error.code == 404 and details.get("error_code") == "RESOURCE_DOES_NOT_EXIST":
                return None
            if error.code == 400 and details.get("error_code") == "INVALID_PARAMETER_VALUE":
                raise UsageError(
                    f"{self._host} refuses {path}: {_words_of(details)}", remedy="see what it takes, or mend the rule"
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
        """Read a response body, limited in size and time."""
        body, ends = bytearray(), time.monotonic() + _SECONDS_TO_END
        while piece := answer.read1(_CHUNK_BYTES):
            body += piece
            if len(body) > _LARGEST_BYTES:
                raise self._no_mlflow()
            if time.monotonic() > ends:
                raise TimeoutError("it takes too long to answer")
        return bytes(body)

    def _error_in(self, error: HTTPError) -> dict[str, Any]:
        """The error document of MLflow; empty where the response comes from another web server."""
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
        items = values.get(key, [])
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise self._no_mlflow()
        return items

    def _text(self, values: Mapping[str, Any], key: str) -> str:
        value = values.get(key)
        if not isinstance(value, str | int) or value == "":
            raise self._no_mlflow()
        return str(value)

    def _milliseconds(self, value: object) -> int:
        """Parse milliseconds: MLflow writes numbers, other implementations of the protocol write strings."""
        try:
            return int(value)  # type: ignore[call-overload, no-any-return] # what is none says so
        except (TypeError, ValueError):
            raise self._no_mlflow() from None


def _words_of(details: Mapping[str, Any]) -> str:
    return " ".join(str(details.get("message", "")).split())[:_MOST_WORDS]


def read_delivery(
    config: MlflowRegistry,
    headers: Mapping[str, str],
    body: bytes,
    *,
    registry: str,
    secrets: Sequence[str],
    now: float,
) -> Delivery | Ignored:
    """Parse a webhook request.

    Args:
        config: of the registry.
        headers: with names in lower case.
        body: its bytes as they came.
        registry: the registry's name.
        secrets: any of them may have signed the request; without one, nothing is believed.
        now: our Unix time.

    Raises:
        RequestRejected: it is not of this server, not of now, or not what MLflow sends.
    """
    delivery_id = proven_id(HEADERS, headers, body, secrets=secrets, window_seconds=config.window_seconds, now=now)
    values = read_object(body)
    change = _CHANGES.get((name_of(values, "entity"), name_of(values, "action")))
    if change is None:
        return Ignored(reason="nothing that a build cares for")
    data = object_of(values, "data")
    model = name_of(data, "name")
    if model == _TEST_MODEL or data.get("run_id") == _TEST_RUN:
        return Ignored(reason="a test")
    if any(section.get("workspace") not in (None, "", _WORKSPACE) for section in (values, data)):
        return Ignored(reason="of another workspace")
    version = name_of(data, "version")
    value = _value_of(config, change, data)
    if isinstance(value, Ignored):
        return value
    return Delivery(id=delivery_id, events=(event_of(registry, model, version, change, value),), expires=True)


def event_of(registry: str, model: str, version: str, change: Change, value: str) -> Event:
    """Return the event for a change of a registered model version.

    Raises:
        RequestRejected: no model or version is called so.
    """
    if "/" in model or ":" in model:  # MLflow refuses them too: they would name another version in an address
        raise RequestRejected("malformed", "name has a / or :")
    if not _VERSION.fullmatch(version):
        raise RequestRejected("malformed", "version is no number")
    source = f"mlflow:models:/{model}/{version}"
    return Event(registry=registry, model=model, version=version, change=change, value=value, source=source)


def _value_of(config: MlflowRegistry, change: Change, data: Mapping[str, Any]) -> str | Ignored:
    """The value that was set; tag values may be long texts, which are passed as MLflow sends them and match no rule."""
    if change == "created":
        return ""
    if change == "alias":
        alias = name_of(data, "alias")
        return Ignored(reason="an alias of our own") if alias == config.write_back_alias else alias
    key, value = name_of(data, "key"), data.get("value")
    if key.startswith(OWN_TAGS):
        return Ignored(reason="a tag of our own")
    if not isinstance(value, str):
        raise RequestRejected("malformed", "value is no text")
    return f"{key}={value}" if is_showable(value) else Ignored(reason="a tag that holds a text")
