"""Model control of a running Triton: load and unload calls and status, over HTTP and gRPC.

They are those of Triton's model repository extension, index, load and unload, and that of its model configuration
extension (Triton server, docs/protocol/extension_model_repository.md and extension_model_configuration.md).

Measured with Triton 2.51: a load over HTTP holds one of the server's HTTP threads until it is done, and with it every
client whose connection that thread serves: requests waited 7.7 s for a load of 7.6 s. A load over gRPC holds up nobody.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError
from plansmith.system.urls import HEADER_VARIABLE, Address, read_address, read_header

_CONNECT_SECONDS = 10
_INDEX = "v2/repository/index"
# With --grpc-restricted-protocol, Triton looks for its key under this name
# (docs/customization_guide/inference_protocols.md, "Limit Endpoint Access").
_GRPC_KEY = "triton-grpc-protocol-"
_FORBIDDEN = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)


class ControlRefusal(Exception):
    """Refusal by Triton, with its own message."""


class Forbidden(Exception):
    """Forbidden: the server does not let this client control its models."""


class Unreachable(Exception):
    """Unreachable: no response, or one that is not from Triton but a proxy or another service."""


class StillLoading(Exception):
    """Timeout: no response before the deadline."""


@dataclass(frozen=True)
class SentModel:
    """A model whose files are sent in the load request, without a folder that the server reads.

    Attributes:
        config: its configuration: JSON of Triton's ModelConfig.
        files: the others by their paths in its folder. Triton wants one or more, in the folder of a version.
    """

    config: str
    files: Mapping[str, bytes]


class ControlCalls(Protocol):
    """Model control protocol of a server."""

    def index(self) -> list[dict[str, str]]:
        """Return Triton's repository index: name and, for models it ever loaded, version, state and reason."""
        ...

    def load(self, model: str, seconds: float, sent: SentModel | None = None) -> None:
        """Load a model, or reload it if its folder has changed, and wait until it is done.

        Args:
            model: its name.
            seconds: how long it may take.
            sent: what to load in place of a folder of the server's repository.
        """
        ...

    def unload(self, model: str, seconds: float) -> None:
        """Unload a model after its pending requests."""
        ...

    def config(self, model: str) -> Any:
        """Return the configuration of a served model: a protobuf message."""
        ...


def calls_to(address: Address, header: tuple[str, str] | None) -> ControlCalls:
    """Return the control calls for an address, by its protocol."""
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

        text = self._request("GET", f"v2/models/{model}/config", "", _CONNECT_SECONDS)
        try:
            return json_format.Parse(text, pb.ModelConfig(), ignore_unknown_fields=True)
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
        message = _error_of(text)
        if response.status in _FORBIDDEN:
            raise Forbidden(message or f"HTTP {response.status}")
        if message is None:
            raise Unreachable(f"HTTP {response.status} {response.reason}, which no Triton said")
        raise ControlRefusal(message)

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
        response = self._call("get_model_repository_index", seconds=_CONNECT_SECONDS)
        rows = ((entry.name, entry.version, entry.state, entry.reason) for entry in response.models)
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


def _fault_of(status: str, message: str) -> Exception:
    """The error for a gRPC status; Triton itself returns UNAVAILABLE unless its model control mode is explicit."""
    if "This protocol is restricted" in message or status in {
        "StatusCode.UNAUTHENTICATED",
        "StatusCode.PERMISSION_DENIED",
    }:
        return Forbidden(message)
    if status == "StatusCode.DEADLINE_EXCEEDED":
        return StillLoading(message)
    if status == "StatusCode.UNAVAILABLE" and "explicit model load" not in message:
        return Unreachable(message)
    return ControlRefusal(message)


def _error_of(text: str) -> str | None:
    """The error message of Triton in a response body; None where it is not from Triton."""
    try:
        message = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return None
    return message if isinstance(message, str) else None


def _rows(text: str) -> list[dict[str, str]]:
    """The rows of a repository index response.

    Raises:
        Unreachable: it is no index of a Triton.
    """
    try:
        document = json.loads(text)
        rows = [{key: row.get(key, "") for key in ("name", "version", "state", "reason")} for row in document]
        if isinstance(document, list) and all(row["name"] and int(row["version"] or 0) >= 0 for row in rows):
            return rows
    except (ValueError, TypeError, AttributeError):
        pass
    raise Unreachable("what answers there is no Triton")


REHEARSAL = "plansmith-rehearsal-of-"
_NO_MODEL = "plansmith-no-model"
PAUSE_SECONDS = 0.5

_UNCONTROLLED = "explicit model load / unload is not allowed"

# While it loads, a server may be slow to say what it has; one that nobody reaches for so long is taken for gone.
_GONE_SECONDS = 10


class ModelControlClient:
    """Model control client of a server; arguments and errors as for `live.RunningTriton`."""

    def __init__(self, url: str, *, load_seconds: float) -> None:
        address = read_address(url)
        if find_spec("tritonclient") is None:
            raise EnvironmentFault("tritonclient is not installed", remedy="pip install 'plansmith[client]'")
        self.url = url
        self.may_have_changed = False
        self._load_seconds = load_seconds
        self._calls = calls_to(address, _header())

    def change(self, action: str, model: str, sent: SentModel | None = None, *, seconds: float | None = None) -> None:
        """Load or unload a model.

        Args:
            action: load or unload.
            model: its name, or that of a rehearsal.
            sent: what to load in place of a folder of the server's repository.
            seconds: how long it may take, where that is not the usual time.

        Raises:
            ServedCheckError: it refuses, with its reason, or takes too long.
            EnvironmentFault: it cannot be asked.
        """
        own = model.removeprefix(REHEARSAL)
        seconds = self._load_seconds if seconds is None else seconds
        try:
            if action == "unload":
                self._calls.unload(model, seconds)
            else:
                self._calls.load(model, seconds, sent)
        except ControlRefusal as refusal:
            self.may_have_changed = False
            if _UNCONTROLLED in str(refusal):
                raise self._fault(
                    "takes no calls to load models", "start it with --model-control-mode=explicit"
                ) from None
            raise ServedCheckError(
                f"the Triton at {self.url} does not {action} {own}: {_in_words(str(refusal), model, own)}",
                remedy="correct what it says, and publish again; what it served before, it serves on",
            ) from None
        except StillLoading:
            raise ServedCheckError(
                f"the Triton at {self.url} was still {action}ing {own} after {seconds:g} s",
                remedy="look into its log; if it only needs longer, raise --load-seconds; if it never ends, start it"
                " again; until then it serves what it did before",
            ) from None
        except Forbidden as error:
            self.may_have_changed = False
            raise self._unasked(error) from None
        except Unreachable as error:
            raise self._unasked(error) from None

    def require_control(self) -> None:
        """Require that the server allows model control.

        Raises:
            EnvironmentFault: it does not, or cannot be asked.
        """
        # A server whose models nobody controls refuses this; one that is controlled has nothing to unload.
        with suppress(ServedCheckError):
            self.change("unload", _NO_MODEL)

    def index(self, deadline: float = 0) -> list[dict[str, str]]:
        """Return the server's repository index; retried until a `time.monotonic` deadline while there is no response.

        Raises:
            EnvironmentFault: it cannot be asked.
        """
        limit = time.monotonic() + _GONE_SECONDS
        while True:
            try:
                return self._calls.index()
            except StillLoading:
                if time.monotonic() >= deadline:
                    raise self._fault("does not answer", "see that it runs, and that the port is right") from None
            except Unreachable as error:
                if time.monotonic() >= min(deadline, limit):
                    raise self._unasked(error) from None
            except (Forbidden, ControlRefusal) as error:
                raise self._unasked(error) from None
            time.sleep(PAUSE_SECONDS)

    def config(self, model: str) -> Any:
        """Return the configuration by which the server serves a model; None if it does not serve it.

        Raises:
            EnvironmentFault: it cannot be asked.
        """
        try:
            return self._calls.config(model)
        except ControlRefusal:
            return None
        except StillLoading:
            raise self._fault("does not answer", "see that it runs, and that the port is right") from None
        except (Forbidden, Unreachable) as error:
            raise self._unasked(error) from None

    def _unasked(self, error: Exception) -> PlansmithError:
        if isinstance(error, Forbidden):
            return self._fault(
                f"does not let its models be controlled: {error}",
                f"set {HEADER_VARIABLE} to the header that it asks for, as in 'admin-key: secret'",
            )
        return self._fault(f"cannot be asked: {error}", "see that it runs, and that host, port and scheme are right")

    def _fault(self, problem: str, remedy: str) -> EnvironmentFault:
        return EnvironmentFault(f"the Triton at {self.url} {problem}", remedy=remedy)


def _header() -> tuple[str, str] | None:
    """The request header for model control, from the environment."""
    written = os.environ.get(HEADER_VARIABLE)
    return read_header(written, f"what {HEADER_VARIABLE} holds") if written else None


def _in_words(message: str, model: str, own: str) -> str:
    """The reason for a Triton failure, without the prefix that repeats the model's name."""
    text = message.strip().removeprefix(f"load failed for model '{model}':").strip()
    return text.replace(model, own)
