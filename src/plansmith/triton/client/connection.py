"""Connection to a Triton server over HTTP or gRPC: the only code that sends KServe requests.

Beside inference these are the model repository and model configuration extensions, by which models are controlled
(Triton server, docs/protocol/extension_model_repository.md and extension_model_configuration.md).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.client import responses
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, Self

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, UsageError, first_line
from plansmith.system.urls import Address
from plansmith.triton.client.messages import (
    Reply,
    Request,
    read_reply,
    require_json,
    require_parameters,
    their_inputs,
    their_outputs,
)

if TYPE_CHECKING:
    from types import TracebackType

    from tritonclient.grpc import model_config_pb2 as pb
    from tritonclient.utils import InferenceServerException


_FINAL = "triton_final_response"
_REFUSED = "400"

# Who gives a channel arguments of his own gets none of tritonclient's, and messages would end at 4 MiB:
# grpc.github.io/grpc/core/group__grpc__arg__keys.html. -1 is no limit.
_CHANNEL = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]
_RESTRICTED = "This protocol is restricted"
_FORBIDDEN = {"StatusCode.UNAUTHENTICATED", "StatusCode.PERMISSION_DENIED", "401", "403"}
_UNKNOWN_MODEL = "unknown model"
_PART = re.compile(r"\.[^.]+\.[0-9a-f]{8}$")
"""How the name of what is part of another model ends: nobody asks it by itself."""

_MISSING_VERSION = re.compile(r"'([^']+)' version \S+ is not found")
# Triton answers before it is done with a request's memory, and then is within milliseconds.
_IN_USE = "currently in use"
_PAUSES_SECONDS = (0.001, 0.01, 0.1, 0.5, 1)


def stream_replies(
    client: Any,
    request: Request,
    *,
    headers: dict[str, str],
    timeout_seconds: float,
    errors: Callable[[str], AbstractContextManager[None]],
) -> Iterator[Reply]:
    """Send a request and yield its replies as they arrive; closing the generator cancels the request.

    Args:
        client: of tritonclient's gRPC module; closed at the end.
        request: what is asked.
        headers: sent with it.
        timeout_seconds: how long each answer may take.
        errors: turns what tritonclient raises into an error of ours.
    """
    from tritonclient import grpc

    arrived: SimpleQueue[tuple[Any, InferenceServerException | None]] = SimpleQueue()
    is_ended = False
    try:
        with errors(f"a request to {request.model}"):
            client.start_stream(lambda result, error: arrived.put((result, error)), headers=headers)
            client.async_stream_infer(
                request.model,
                their_inputs(grpc, request, {}),
                model_version=request.version,
                outputs=their_outputs(grpc, request, {}),
                enable_empty_final_response=True,
                parameters=dict(request.parameters),
            )
        while not is_ended:
            with errors(f"a request to {request.model}"):
                result = _next(arrived, timeout_seconds)
                response = result.get_response()
                is_ended = bool(response.parameters[_FINAL].bool_param)
                reply = read_reply(result, request, is_grpc=True) if response.outputs else None
            if reply is not None:
                yield reply
    finally:
        client.stop_stream(cancel_requests=not is_ended)
        client.close()


def _next(arrived: SimpleQueue[tuple[Any, InferenceServerException | None]], timeout_seconds: float) -> Any:
    """Return the next response of a stream.

    Raises:
        InferenceServerException: what came is an error.
        TimeoutError: nothing came.
    """
    from tritonclient.utils import InferenceServerException

    try:
        result, error = arrived.get(timeout=timeout_seconds)
    except Empty:
        raise TimeoutError from None
    if error is not None and error.status() is None:  # what Triton says within a stream
        raise InferenceServerException(error.message(), status=_REFUSED)
    if error is not None:
        raise error
    return result


class CallFailure(Exception):
    """Failure of a call.

    Attributes:
        kind: "refused" by Triton, which `text` quotes; "forbidden" to this client; "late", with no answer in time;
            "unreachable", also where a proxy answers in its place; "foreign", as another service answers there;
            "unreadable", for an answer that is broken.
        text: the reason.
        transient: the same call may succeed later.
    """

    def __init__(
        self,
        kind: Literal["refused", "forbidden", "late", "unreachable", "foreign", "unreadable"],
        text: str = "",
        *,
        transient: bool = False,
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.transient = transient


@dataclass(frozen=True)
class SentModel:
    """A model whose files are sent in the load request, without a folder that the server reads.

    Attributes:
        config: its configuration: JSON of Triton's ModelConfig.
        files: the others by their paths in its folder. Triton wants one or more, in the folder of a version.
    """

    config: str
    files: Mapping[str, bytes]


class Connection:
    """Connection to one server, for use from one thread: tritonclient's HTTP client is bound to its thread.

    Proxies that the environment names are not used. Over TLS the system's certificates are trusted, or those of the
    file that SSL_CERT_FILE names.

    Args:
        address: where the server answers.
        timeout_seconds: how long connecting may take, and each answer.
        headers: sent with each request, such as an authorization.
    """

    def __init__(self, address: Address, *, timeout_seconds: float, headers: Mapping[str, str]) -> None:
        self.address = address
        self._timeout_seconds = timeout_seconds
        self._is_grpc = address.protocol == "grpc"
        self._options: dict[str, Any] = {"headers": dict(headers)}
        if self._is_grpc:  # which knows lower case alone
            named = {name.lower(): value for name, value in headers.items()}
            self._options = {"headers": named, "client_timeout": timeout_seconds}
        self._library: Any = _library(address)
        self._client = open_client(address, timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        self._client.close()

    def ask(self, request: Request) -> Reply:
        """Send a request and wait for the response.

        Raises:
            UsageError: a dtype or value that JSON cannot carry, or a parameter that cannot be sent.
            ServedCheckError: Triton refuses it, with its reason.
            EnvironmentFault: the server is not reached, or not in time.
        """
        if request.encoding == "json":
            require_json(request)
        require_parameters(request.parameters)
        form = {} if self._is_grpc else {"binary_data": request.encoding == "binary"}
        inputs = their_inputs(self._library, request, form)
        outputs = their_outputs(self._library, request, form)
        with self._errors(f"a request to {request.model}"):
            result = self._client.infer(
                request.model,
                inputs,
                model_version=request.version,
                outputs=outputs,
                parameters=dict(request.parameters),
                **self._options,
            )
            return read_reply(result, request, is_grpc=self._is_grpc)

    def stream(self, request: Request) -> Iterator[Reply]:
        """Send a request to a decoupled model, and yield its responses as they arrive; errors as for `ask`."""
        require_parameters(request.parameters)
        if not self._is_grpc:
            raise UsageError("answers stream over gRPC alone", remedy="ask over grpc (protocol, --protocol)")
        return stream_replies(
            open_client(self.address, self._timeout_seconds),
            request,
            headers=self._options["headers"],
            timeout_seconds=self._timeout_seconds,
            errors=self._errors,
        )

    def config(self, model: str, version: str = "") -> pb.ModelConfig:
        """Return a loaded model's configuration as Triton auto-completed it; errors as for `ask`."""
        with self._errors(f"to tell the configuration of {model}"):
            return self.read_config(model, version)

    def _ready(self) -> list[tuple[str, str]]:
        """The models that are ready on the server, each with each of its versions."""
        with self._errors("to list its models"):
            return [(row["name"], row["version"]) for row in self.index() if row["state"] == "READY"]

    def index(self) -> list[dict[str, str]]:
        """Return Triton's repository index: name and, for models it ever loaded, version, state and reason.

        Raises:
            CallFailure: it cannot be told.
        """
        with self._failures():
            response = self._client.get_model_repository_index(**self._options)
            rows = self._document(response).get("models", []) if self._is_grpc else response
            if not isinstance(rows, list) or not all(row["name"] and int(row.get("version") or 0) >= 0 for row in rows):
                raise TypeError("no index of models")
            return [{key: str(row.get(key, "")) for key in ("name", "version", "state", "reason")} for row in rows]

    def read_config(self, model: str, version: str = "") -> pb.ModelConfig:
        """As `config`.

        Raises:
            CallFailure: it cannot be told.
        """
        from google.protobuf import json_format
        from tritonclient.grpc import model_config_pb2 as pb

        with self._failures():
            response = self._client.get_model_config(model, version, **self._options)
            if self._is_grpc:
                return response.config
            return json_format.ParseDict(response, pb.ModelConfig(), ignore_unknown_fields=True)

    def load(self, model: str, sent: SentModel | None = None) -> None:
        """Load a model, or reload it if its folder has changed, and wait until it is done.

        Args:
            model: its name.
            sent: what to load in place of a folder of the server's repository.

        Raises:
            CallFailure: it is not loaded, or not in time.
        """
        more: dict[str, Any] = {}
        if sent is not None:
            more = {"config": sent.config, "files": {f"file:{path}": data for path, data in sent.files.items()}}
        with self._failures():
            self._client.load_model(model, **self._options, **more)

    def unload(self, model: str) -> None:
        """Unload a model after its pending requests.

        Raises:
            CallFailure: it is not unloaded, or not in time.
        """
        with self._failures():
            self._client.unload_model(model, **self._options)

    def statistics(self) -> list[dict[str, Any]]:
        """Return the server's statistics for each model version; errors as for `ask`.

        By the names of Triton's statistics extension (docs/protocol/extension_statistics.md); numbers may be text.
        """
        with self._errors("to tell its statistics"):
            values = self._document(self._client.get_inference_statistics(**self._options))
            rows: list[dict[str, Any]] = list(values.get("model_stats", []))
            if not all(isinstance(row, dict) for row in rows):
                raise TypeError("no statistics")
            return rows

    def _document(self, response: Any) -> Any:
        """A response as JSON values, with the protobuf's own names."""
        from google.protobuf import json_format

        return json_format.MessageToDict(response, preserving_proto_field_name=True) if self._is_grpc else response

    def server_version(self) -> str:
        """Return the server's version, such as "2.51.0"; errors as for `ask`."""
        with self._errors("to tell its version"):
            response = self._client.get_server_metadata(**self._options)
            return str(response.version if self._is_grpc else response["version"])

    def register_region(self, name: str, key: str, size_bytes: int) -> None:
        """Register a shared memory region of this machine with the server; errors as for `ask`."""
        with self._errors("to map shared memory of this machine"):
            self._client.register_system_shared_memory(name, key, size_bytes, **self._options)

    def forget_region(self, name: str) -> None:
        """Unregister a shared memory region, which the server unmaps shortly after its response.

        Errors as for `ask`.
        """
        for pause_seconds in _PAUSES_SECONDS:
            try:
                return self._forget(name)
            except ServedCheckError as refused:
                if _IN_USE not in refused.message:
                    raise
            time.sleep(pause_seconds)
        return self._forget(name)

    def _forget(self, name: str) -> None:
        with self._errors("to let shared memory go"):
            self._client.unregister_system_shared_memory(name, **self._options)

    @contextmanager
    def _errors(self, subject: str) -> Iterator[None]:
        """Translate failures into plansmith errors; `subject` is what Triton refuses."""
        try:
            with self._failures():
                yield
        except CallFailure as failure:
            raise self._as_error(subject, failure) from failure.__cause__

    def _as_error(self, subject: str, failure: CallFailure) -> PlansmithError:
        if failure.kind == "late":
            return self._late()
        if failure.kind == "unreachable":
            return self._unreachable(failure.text)
        if failure.kind == "foreign":
            return self._stranger(failure.text)
        if failure.kind == "unreadable":
            return ServedCheckError(
                f"the answer of {self.address} cannot be read: {failure.text}", remedy="ask in binary"
            )
        return ServedCheckError(
            f"Triton at {self.address} refused {subject}: {failure.text}",
            remedy=self._names(failure.text)
            if _UNKNOWN_MODEL in failure.text
            else "correct what it names, or read the log of the server",
            transient=failure.transient,
        )

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Translate what tritonclient and its libraries raise into `CallFailure`."""
        from tritonclient.utils import InferenceServerException

        lost, unreadable = _foreign_errors(self.address)
        try:
            yield
        except InferenceServerException as error:
            raise self._failure_of(error) from error
        except TimeoutError as error:
            raise CallFailure("late") from error
        except lost as error:
            raise CallFailure("unreachable", first_line(error) or type(error).__name__) from error
        except unreadable as error:
            raise CallFailure("foreign", first_line(error)) from error

    def _failure_of(self, error: InferenceServerException) -> CallFailure:
        text, status = str(error.message()), str(error.status())
        if error.status() is None:
            return CallFailure("unreadable", text)
        if status == "StatusCode.DEADLINE_EXCEEDED":
            return CallFailure("late")
        is_lost = status == "StatusCode.UNAVAILABLE" and not self._is_live()
        if not self._is_grpc and (error.debug_details() is not None or not isinstance(error.message(), str)):
            is_lost, text = True, f"HTTP {status} {responses.get(int(status), '')}, which no Triton said"
        if status in _FORBIDDEN or _RESTRICTED in text:
            return CallFailure("forbidden", text)
        if is_lost:
            return CallFailure("unreachable", text)
        if status == "StatusCode.UNIMPLEMENTED":
            return CallFailure("foreign", text)
        return CallFailure("refused", text, transient=status in {"StatusCode.UNAVAILABLE", "503"})

    def _is_live(self) -> bool:
        """Whether the server is live; the response may itself be that it is unavailable."""
        from tritonclient.utils import InferenceServerException

        try:
            return bool(self._client.is_server_live(**self._options))
        except InferenceServerException:
            return False

    def _names(self, message: str) -> str:
        try:
            entries = self._ready()
        except PlansmithError:
            return "load the model first"
        missing = _MISSING_VERSION.search(message)
        versions = [version for name, version in entries if missing is not None and name == missing[1]]
        if versions:
            return f"choose from its versions: {', '.join(sorted(versions, key=lambda text: (len(text), text)))}"
        ready = sorted({name for name, _ in entries if not _PART.search(name)})
        return f"choose from its models: {', '.join(ready)}" if ready else "load the model first: the server has none"

    def _late(self) -> EnvironmentFault:
        return EnvironmentFault(
            f"{self.address} did not answer within {self._timeout_seconds:g} s",
            remedy="give it more time (--timeout, timeout_seconds), or send less at once",
            transient=True,
        )

    def _unreachable(self, message: str) -> EnvironmentFault:
        return EnvironmentFault(
            f"no server is reached at {self.address}: {message}",
            remedy="see that Triton runs there (plansmith serve), or give its address (--url); plansmith infer --serve"
            " starts one for its request",
            transient=True,
        )

    def _stranger(self, message: str) -> EnvironmentFault:
        name = "gRPC" if self._is_grpc else "HTTP"
        return EnvironmentFault(
            f"what answers at {self.address} is not Triton's {name} endpoint: {message}",
            remedy=f"give the address at which Triton speaks {name}: plansmith serve prints it",
        )


def _library(address: Address) -> Any:
    """The tritonclient module for the protocol.

    Raises:
        EnvironmentFault: it is not installed.
    """
    try:
        if address.protocol == "grpc":
            from tritonclient import grpc

            return grpc
        from tritonclient import http
    except ImportError as error:
        raise EnvironmentFault(
            f"the client of Triton cannot be imported: {first_line(error)}", remedy="pip install 'plansmith[client]'"
        ) from error
    else:
        return http


def _foreign_errors(address: Address) -> tuple[tuple[type[Exception], ...], tuple[type[Exception], ...]]:
    """The exceptions for a lost connection and for a response that is not Triton's; gRPC needs no HTTP client."""
    lost: tuple[type[Exception], ...] = (OSError,)
    unreadable: tuple[type[Exception], ...] = (ValueError, KeyError, TypeError, AttributeError)
    if address.protocol == "grpc":
        return lost, unreadable
    from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError

    return (*lost, HTTPConnectionClosed), (*unreadable, HTTPParseError)


def open_client(address: Address, timeout_seconds: float) -> Any:
    """Create a tritonclient client; HTTP connects with the first request, gRPC on its own.

    Args:
        address: where the server answers.
        timeout_seconds: how long connecting and each answer may take, over HTTP; gRPC is told with each request.

    Raises:
        EnvironmentFault: tritonclient is not installed, or the file that SSL_CERT_FILE names cannot be read.
    """
    library = _library(address)
    trusted = _trusted_file() if address.secure else None
    if address.protocol == "grpc":
        return library.InferenceServerClient(
            address.place,
            ssl=address.secure,
            root_certificates=trusted,
            channel_args=_CHANNEL,
        )
    return library.InferenceServerClient(
        address.place,
        ssl=address.secure,
        ssl_options={"ca_certs": trusted} if trusted else None,
        connection_timeout=timeout_seconds,
        network_timeout=timeout_seconds,
    )


def _trusted_file() -> str | None:
    """The CA certificates that replace the system's."""
    trusted = os.environ.get("SSL_CERT_FILE")
    if trusted:
        try:
            Path(trusted).read_bytes()
        except OSError as error:
            raise EnvironmentFault(
                f"{trusted} cannot be read: {first_line(error)}",
                remedy="correct SSL_CERT_FILE, which names it, or unset it",
            ) from error
    return trusted or None
