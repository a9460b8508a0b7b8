"""Connection to a Triton server over HTTP or gRPC: the only code that sends KServe requests."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self

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


# Who gives a channel arguments of his own gets none of tritonclient's, and messages would end at 4 MiB:
# grpc.github.io/grpc/core/group__grpc__arg__keys.html. -1 is no limit.
_CHANNEL = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]
_UNKNOWN_MODEL = "unknown model"
_PART = re.compile(r"\.[^.]+\.[0-9a-f]{8}$")
"""How the name of what is part of another model ends: nobody asks it by itself."""
_MISSING_VERSION = re.compile(r"'([^']+)' version \S+ is not found")

# Triton answers before it is done with a request's memory, and then is within milliseconds.
_IN_USE = "currently in use"
_PAUSES_SECONDS = (0.001, 0.01, 0.1, 0.5, 1)


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
        from google.protobuf import json_format
        from tritonclient.grpc import model_config_pb2 as pb

        with self._errors(f"to tell the configuration of {model}"):
            response = self._client.get_model_config(model, version, **self._options)
            if self._is_grpc:
                return response.config
            return json_format.ParseDict(response, pb.ModelConfig(), ignore_unknown_fields=True)

    def ready_models(self) -> list[str]:
        """Return the models that are ready on the server, sorted; errors as for `ask`."""
        return sorted({name for name, _ in self._ready()})

    def _ready(self) -> list[tuple[str, str]]:
        """The models that are ready on the server, each with each of its versions."""
        with self._errors("to list its models"):
            response = self._client.get_model_repository_index(**self._options)
            if self._is_grpc:
                return [(row.name, row.version) for row in response.models if row.state == "READY"]
            return [(row["name"], str(row.get("version", ""))) for row in response if row.get("state") == "READY"]

    def statistics(self) -> list[dict[str, Any]]:
        """Return the server's statistics for each model version; errors as for `ask`.

        By the names of Triton's statistics extension (docs/protocol/extension_statistics.md); numbers may be text.
        """
        from google.protobuf import json_format

        with self._errors("to tell its statistics"):
            response = self._client.get_inference_statistics(**self._options)
            values = (
                json_format.MessageToDict(response, preserving_proto_field_name=True) if self._is_grpc else response
            )
            rows: list[dict[str, Any]] = list(values.get("model_stats", []))
            if not all(isinstance(row, dict) for row in rows):
                raise TypeError("no statistics")
            return rows

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
        """Translate tritonclient exceptions into plansmith errors; `subject` is what Triton refuses."""
        from tritonclient.utils import InferenceServerException

        lost, unreadable = _foreign_errors(self.address)
        try:
            yield
        except PlansmithError:
            raise
        except InferenceServerException as error:
            raise self._mapped(subject, error) from error
        except TimeoutError as error:
            raise self._late() from error
        except lost as error:
            raise self._unreachable(first_line(error)) from error
        except unreadable as error:
            raise self._stranger(first_line(error)) from error

    def _mapped(self, subject: str, error: InferenceServerException) -> PlansmithError:
        text, status = str(error.message()), str(error.status())
        if error.status() is None:
            return ServedCheckError(f"the answer of {self.address} cannot be read: {text}", remedy="ask in binary")
        if status == "StatusCode.DEADLINE_EXCEEDED":
            return self._late()
        if status == "StatusCode.UNAVAILABLE" and not self._is_live():
            return self._unreachable(text)
        if status == "StatusCode.UNIMPLEMENTED" or (not self._is_grpc and error.debug_details()):
            return self._stranger(text)
        return ServedCheckError(
            f"Triton at {self.address} refused {subject}: {text}",
            remedy=self._names(text)
            if _UNKNOWN_MODEL in text
            else "correct what it names, or read the log of the server",
            transient=status in {"StatusCode.UNAVAILABLE", "503"},
        )

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
    unreadable: tuple[type[Exception], ...] = (ValueError, KeyError, TypeError)
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
