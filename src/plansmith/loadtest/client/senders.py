"""Request senders over HTTP or gRPC: send encoded requests one at a time and classify failures.

No request is encoded, and no answer is decoded: a body is sent as it lies in its file.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from plansmith.errors import first_line
from plansmith.loadtest.payloads.encoding import Payload
from plansmith.loadtest.target import LoadTarget, TargetModel
from plansmith.system.aws.sagemaker_runtime import MODEL_ERROR, RequestSigner, error_from_answer
from plansmith.triton.client.sagemaker.invocation import TARGET_MODEL, TARGET_VARIANT
from plansmith.triton.client.sagemaker.transports import invocation_path

if TYPE_CHECKING:
    from geventhttpclient import HTTPClient
    from geventhttpclient.response import HTTPSocketResponse

TIMEOUT, CONNECTION = "timeout", "connection"
"""Kinds of failures without an answer; the other kinds name the answer, such as `HTTP 400`."""

_NO_HTTP = "no HTTP"
_BLOCK_BYTES = 64 * 2**10
_MAX_MESSAGE_BYTES = 64 * 2**10
_GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_GRPC_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    # Channels to one address share a connection otherwise; and one that is refused is tried again after up to 2 min.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

# gRPC reports UNAVAILABLE for a lost connection, and so does a server whose queue is full: only the text tells.
_GRPC_UNREACHABLE = re.compile(
    "connect|socket|recvmsg|broken pipe|goaway|endpoint|stream removed|transport|cancelling all calls|resol|dns"
    "|keepalive|handshake|unreachable|no route",
    re.IGNORECASE,
)


class RequestFailed(Exception):
    """Failed request: no successful answer.

    Args:
        kind: `timeout`, `connection`, or the status of the answer.
        text: the whole message.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text

    @property
    def is_answer(self) -> bool:
        """Whether the server answered, if only with an error."""
        return self.kind not in {TIMEOUT, CONNECTION}


class Sender(Protocol):
    """Request sender: sends one request at a time over its own connection."""

    def send(self, payload: Payload, model: TargetModel) -> None:
        """Send a request and wait for its complete answer.

        Raises:
            RequestFailed: it failed.
        """
        ...

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        ...


def sender_factory(target: LoadTarget, timeout_seconds: float) -> Callable[[], Sender]:
    """Return a factory of senders for a target.

    Args:
        target: where they send.
        timeout_seconds: how long an answer may take.
    """
    if target.protocol == "grpc":
        return lambda: GrpcSender(target, timeout_seconds)
    if target.endpoint is not None:
        signer = RequestSigner("sagemaker", target.endpoint.region, target.endpoint.profile)
        return lambda: EndpointSender(target, timeout_seconds, signer)
    return lambda: HttpSender(target, timeout_seconds)


class HttpSender:
    """HTTP sender with a persistent connection, in a process patched by gevent.

    Args:
        target: where it sends.
        timeout_seconds: how long an answer may take.
    """

    def __init__(self, target: LoadTarget, timeout_seconds: float) -> None:
        self._target = target
        self._timeout_seconds = timeout_seconds
        self._paths = {model: request_path(target, model) for model in target.models}
        self._client = self._connect()

    def send(self, payload: Payload, model: TargetModel) -> None:
        """As `Sender.send`."""
        import gevent
        from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError

        try:
            with gevent.Timeout(self._timeout_seconds):
                headers = self._headers(payload, model)
                response = self._client.request("POST", self._paths[model], payload.body, headers)
                body = response.read()
        except (gevent.Timeout, TimeoutError) as error:
            self._reconnect()
            raise RequestFailed(TIMEOUT, f"no answer within {self._timeout_seconds:g} s") from error
        except (OSError, HTTPConnectionClosed) as error:
            self._reconnect()
            raise RequestFailed(CONNECTION, f"{type(error).__name__}: {first_line(error)}") from error
        except (HTTPParseError, ValueError) as error:
            self._reconnect()
            raise RequestFailed(_NO_HTTP, f"the answer is no HTTP: {first_line(error)}") from error
        if response.status_code != HTTPStatus.OK:
            raise self._failure(response, body)

    def close(self) -> None:
        """As `Sender.close`."""
        self._client.close()

    def _headers(self, payload: Payload, model: TargetModel) -> dict[str, str]:
        del model
        return payload.headers

    def _failure(self, response: HTTPSocketResponse, body: bytes) -> RequestFailed:
        return _http_failure(response.status_code, body)

    def _reconnect(self) -> None:
        with suppress(OSError):
            self._client.close()
        self._client = self._connect()

    def _connect(self) -> HTTPClient:
        from geventhttpclient import HTTPClient

        host, _, port = self._target.place.partition("/")[0].rpartition(":")
        trusted = os.environ.get("SSL_CERT_FILE") if self._target.secure else None
        return HTTPClient(
            host.strip("[]"),
            int(port),
            headers=dict(self._target.headers),
            block_size=_BLOCK_BYTES,
            ssl=self._target.secure,
            ssl_options={"ca_certs": trusted} if trusted else None,
            connection_timeout=self._timeout_seconds,
            network_timeout=self._timeout_seconds,
        )


class EndpointSender(HttpSender):
    """SageMaker endpoint sender: signed requests without retries; throttled or refused requests count as failures.

    Args:
        target: where it sends.
        timeout_seconds: how long an answer may take.
        signer: of all senders of this process.
    """

    def __init__(self, target: LoadTarget, timeout_seconds: float, signer: RequestSigner) -> None:
        super().__init__(target, timeout_seconds)
        self._signer = signer
        self._urls = {model: f"{target.url}{path}" for model, path in self._paths.items()}
        self._model_headers = {model: invocation_headers(target, model) for model in target.models}

    def _headers(self, payload: Payload, model: TargetModel) -> dict[str, str]:
        return self._signer.headers(self._urls[model], {**payload.headers, **self._model_headers[model]})

    def _failure(self, response: HTTPSocketResponse, body: bytes) -> RequestFailed:
        message = bytes(body[:_MAX_MESSAGE_BYTES])
        error = error_from_answer(response.status_code, response.get("x-amzn-errortype") or "", message)
        kind = f"{error.code} {error.status}" if error.code == MODEL_ERROR else error.code
        return RequestFailed(kind or f"HTTP {error.status}", error.message)


class PlainSender:
    """HTTP sender with a connection per request, without gevent.

    Where gevent waits, the exception of a signal is raised in its hub, which prints it and may lose it: the request
    before the load must be interruptible.

    Args:
        target: where it sends.
        timeout_seconds: how long an answer may take.
    """

    def __init__(self, target: LoadTarget, timeout_seconds: float) -> None:
        self._target = target
        self._timeout_seconds = timeout_seconds

    def send(self, payload: Payload, model: TargetModel) -> None:
        """As `Sender.send`."""
        connection_class = HTTPSConnection if self._target.secure else HTTPConnection
        connection = connection_class(self._target.place.partition("/")[0], timeout=self._timeout_seconds)
        headers = {**self._target.headers, **payload.headers}
        try:
            connection.request("POST", infer_path(self._target, model), payload.body, headers)
            response = connection.getresponse()
            body = self._read(response)
        except TimeoutError as error:
            raise RequestFailed(TIMEOUT, f"no answer within {self._timeout_seconds:g} s") from error
        except OSError as error:
            raise RequestFailed(CONNECTION, f"{type(error).__name__}: {first_line(error)}") from error
        except (HTTPException, ValueError) as error:
            raise RequestFailed(_NO_HTTP, f"the answer is no HTTP: {first_line(error)}") from error
        finally:
            connection.close()
        if response.status != HTTPStatus.OK:
            raise _http_failure(response.status, body)

    def close(self) -> None:
        """Does nothing, as no connection stays open."""

    def _read(self, response: HTTPResponse) -> bytes:
        """Read the whole response within the timeout, however slowly it arrives."""
        deadline = time.monotonic() + self._timeout_seconds
        blocks = []
        while block := response.read1(_BLOCK_BYTES):
            blocks.append(block)
            if time.monotonic() > deadline:
                raise TimeoutError
        return b"".join(blocks)


class GrpcSender:
    """gRPC sender with its own channel.

    Args:
        target: where it sends.
        timeout_seconds: how long an answer may take.
    """

    def __init__(self, target: LoadTarget, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._metadata = [(name.lower(), value) for name, value in target.headers.items()]
        self._channel = _channel(target)
        self._infer = self._channel.unary_unary(_GRPC_METHOD)

    def send(self, payload: Payload, model: TargetModel) -> None:
        """As `Sender.send`; the payload names its model."""
        import grpc

        del model
        try:
            self._infer(payload.body, timeout=self._timeout_seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            code, details = error.code(), str(error.details())
            if code == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise RequestFailed(TIMEOUT, f"no answer within {self._timeout_seconds:g} s") from error
            if code == grpc.StatusCode.UNAVAILABLE and _GRPC_UNREACHABLE.search(details):
                raise RequestFailed(CONNECTION, details) from error
            raise RequestFailed(f"gRPC {code.name}", details) from error

    def close(self) -> None:
        """As `Sender.close`."""
        self._channel.close()


def infer_path(target: LoadTarget, model: TargetModel) -> str:
    """Return the HTTP path of a model's inference requests."""
    _, slash, base = target.place.partition("/")
    version = f"/versions/{quote(model.version, safe='')}" if model.version else ""
    return f"{slash}{base}/v2/models/{quote(model.model, safe='')}{version}/infer"


def request_path(target: LoadTarget, model: TargetModel) -> str:
    """Return the HTTP path to which requests to a model are sent."""
    if target.service == "triton":
        return infer_path(target, model)
    _, slash, base = target.place.partition("/")
    if target.endpoint is not None:
        return f"{slash}{base}/endpoints/{quote(target.endpoint.name, safe='')}/invocations"
    return f"{slash}{base}{invocation_path(model.target_model)}"


def invocation_headers(target: LoadTarget, model: TargetModel) -> dict[str, str]:
    """Return the headers by which an endpoint selects the model or variant."""
    variant = target.endpoint.variant if target.endpoint is not None else ""
    return {name: value for name, value in {TARGET_MODEL: model.target_model, TARGET_VARIANT: variant}.items() if value}


def _http_failure(status: int, body: bytes) -> RequestFailed:
    return RequestFailed(f"HTTP {status}", bytes(body[:_MAX_MESSAGE_BYTES]).decode(errors="replace"))


def _channel(target: LoadTarget) -> Any:
    import grpc

    if not target.secure:
        return grpc.insecure_channel(target.place, options=_GRPC_OPTIONS)
    trusted = os.environ.get("SSL_CERT_FILE")
    credentials = grpc.ssl_channel_credentials(Path(trusted).read_bytes() if trusted else None)
    return grpc.secure_channel(target.place, credentials, options=_GRPC_OPTIONS)
