"""The calls by which a running Triton is told what to serve, and says what it does, over HTTP and over gRPC.

They are those of Triton's model repository extension, index, load and unload, and that of its model configuration
extension (Triton server, docs/protocol/extension_model_repository.md and extension_model_configuration.md).

Measured with Triton 2.51: a load over HTTP holds one of the server's HTTP threads until it is done, and with it every
client whose connection that thread serves: requests waited 7.7 s for a load of 7.6 s. A load over gRPC holds up nobody.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from plansmith.system.urls import Address

_CONNECT_SECONDS = 10
_INDEX = "v2/repository/index"
# With --grpc-restricted-protocol, Triton looks for its key under this name
# (docs/customization_guide/inference_protocols.md, "Limit Endpoint Access").
_GRPC_KEY = "triton-grpc-protocol-"
_FORBIDDEN = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)


class ControlRefusal(Exception):
    """Triton answered, and said no; the text is its own."""


class Forbidden(Exception):
    """The server does not let this caller control its models."""


class Unreachable(Exception):
    """No Triton answered: nobody did, or a proxy or another service."""


class StillLoading(Exception):
    """No answer came before the deadline."""


@dataclass(frozen=True)
class SentModel:
    """A model that is sent with the call that loads it, and needs no folder that the server reads.

    Attributes:
        config: its configuration: JSON of Triton's ModelConfig.
        files: the others by their paths in its folder. Triton wants one or more, in the folder of a version.
    """

    config: str
    files: Mapping[str, bytes]


class ControlCalls(Protocol):
    """One way to a server."""

    def index(self) -> list[dict[str, str]]:
        """What Triton knows of models: rows with a name and, of models it ever loaded, version, state and reason."""
        ...

    def load(self, model: str, seconds: float, sent: SentModel | None = None) -> None:
        """Load a model, or load it again where its folder has changed, and wait for that.

        Args:
            model: its name.
            seconds: how long it may take.
            sent: what to load in place of a folder of the server's repository.
        """
        ...

    def unload(self, model: str, seconds: float) -> None:
        """Let go of a model, once its requests are answered."""
        ...

    def config(self, model: str) -> Any:
        """The configuration by which a model is served: a protobuf message."""
        ...


def calls_to(address: Address, header: tuple[str, str] | None) -> ControlCalls:
    """The way to an address by its protocol."""
    return _Grpc(address, header) if address.protocol == "grpc" else _Http(address, header)


class _Http:
    def __init__(self, address: Address, header: tuple[str, str] | None) -> None:
        self._address = address
        self._server, slash, path = address.place.partition("/")
        self._base = f"{slash}{path}"
        self._headers = {"Content-Type": "application/json"} | ({header[0]: header[1]} if header else {})

    def index(self) -> list[dict[str, str]]:
        return _rows(self._post(_INDEX, {}, _CONNECT_SECONDS))

    def load(self, model: str, seconds: float, sent: SentModel | None = None) -> None:
        body: dict[str, Any] = {}
        if sent is not None:
            files = {path: base64.b64encode(content).decode() for path, content in _named_files(sent).items()}
            body = {"parameters": {"config": sent.config, **files}}
        self._post(f"v2/repository/models/{model}/load", body, seconds)

    def unload(self, model: str, seconds: float) -> None:
        self._post(f"v2/repository/models/{model}/unload", {}, seconds)

    def config(self, model: str) -> Any:
        from google.protobuf import json_format
        from tritonclient.grpc import model_config_pb2 as pb

        told = self._request("GET", f"v2/models/{model}/config", "", _CONNECT_SECONDS)
        try:
            return json_format.Parse(told, pb.ModelConfig(), ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise Unreachable("what answers there is no Triton") from error

    def _post(self, path: str, body: Mapping[str, Any], seconds: float) -> str:
        return self._request("POST", path, json.dumps(body), seconds)

    def _request(self, method: str, path: str, body: str, seconds: float) -> str:
        try:
            connection = self._connection()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(str(error)) from error
        try:
            connection.connect()
            assert connection.sock is not None
            connection.sock.settimeout(seconds)
            connection.request(method, f"{self._base}/{path}", body, self._headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except TimeoutError as late:
            if connection.sock is None:
                raise Unreachable("no connection in time") from late
            raise StillLoading from late
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        finally:
            connection.close()
        if response.status == http.client.OK:
            return text
        said = _error_of(text)
        if response.status in _FORBIDDEN:
            raise Forbidden(said or f"HTTP {response.status}")
        if said is None:
            raise Unreachable(f"HTTP {response.status} {response.reason}, which no Triton said")
        raise ControlRefusal(said)

    def _connection(self) -> http.client.HTTPConnection:
        if self._address.secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._server, timeout=_CONNECT_SECONDS, context=context)
        return http.client.HTTPConnection(self._server, timeout=_CONNECT_SECONDS)


class _Grpc:
    def __init__(self, address: Address, header: tuple[str, str] | None) -> None:
        self._address = address
        self._headers = {}
        if header is not None:
            name = header[0].lower()
            self._headers = {name: header[1], f"{_GRPC_KEY}{name}": header[1]}

    def index(self) -> list[dict[str, str]]:
        found = self._call("get_model_repository_index", seconds=_CONNECT_SECONDS)
        rows = ((one.name, one.version, one.state, one.reason) for one in found.models)
        return [dict(zip(("name", "version", "state", "reason"), row, strict=True)) for row in rows]

    def load(self, model: str, seconds: float, sent: SentModel | None = None) -> None:
        more = {} if sent is None else {"config": sent.config, "files": _named_files(sent)}
        self._call("load_model", model, seconds=seconds, **more)

    def unload(self, model: str, seconds: float) -> None:
        self._call("unload_model", model, seconds=seconds)

    def config(self, model: str) -> Any:
        return self._call("get_model_config", model, seconds=_CONNECT_SECONDS).config

    def _call(self, name: str, *arguments: str, seconds: float, **more: Any) -> Any:
        from tritonclient.utils import InferenceServerException

        from plansmith.triton.client.connection import open_client

        try:
            with open_client(self._address, seconds) as client:
                return getattr(client, name)(*arguments, headers=self._headers, client_timeout=seconds, **more)
        except InferenceServerException as error:
            raise _fault_of(str(error.status()), error.message() or "") from error
        except (ValueError, TypeError) as error:  # gRPC's own, of what it cannot send or does not understand
            raise Unreachable(str(error)) from error


def _named_files(sent: SentModel) -> dict[str, bytes]:
    return {f"file:{path}": content for path, content in sent.files.items()}


def _fault_of(status: str, said: str) -> Exception:
    """What a status of gRPC means; Triton itself answers UNAVAILABLE where its models are not controlled by calls."""
    if "This protocol is restricted" in said or status in {
        "StatusCode.UNAUTHENTICATED",
        "StatusCode.PERMISSION_DENIED",
    }:
        return Forbidden(said)
    if status == "StatusCode.DEADLINE_EXCEEDED":
        return StillLoading(said)
    if status == "StatusCode.UNAVAILABLE" and "explicit model load" not in said:
        return Unreachable(said)
    return ControlRefusal(said)


def _error_of(text: str) -> str | None:
    """Triton's words in the body of an answer that is an error; None where they are not Triton's."""
    try:
        said = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return None
    return said if isinstance(said, str) else None


def _rows(text: str) -> list[dict[str, str]]:
    """What an answer has for an index.

    Raises:
        Unreachable: it is no index of a Triton.
    """
    try:
        found = json.loads(text)
        rows = [{key: row.get(key, "") for key in ("name", "version", "state", "reason")} for row in found]
        if isinstance(found, list) and all(row["name"] and int(row["version"] or 0) >= 0 for row in rows):
            return rows
    except (ValueError, TypeError, AttributeError):
        pass
    raise Unreachable("what answers there is no Triton")
