"""Model control of a running Triton: load and unload calls and status, over HTTP and gRPC.

Measured with Triton 2.51: a load over HTTP holds one of the server's HTTP threads until it is done, and with it every
client whose connection that thread serves: requests waited 7.7 s for a load of 7.6 s. A load over gRPC holds up nobody.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, first_line
from plansmith.system.libraries import require_library
from plansmith.system.urls import HEADER_VARIABLE, read_address, read_header
from plansmith.triton.client.connection import CallFailure, Connection, SentModel

T = TypeVar("T")

_CONNECT_SECONDS = 10
# With --grpc-restricted-protocol, Triton looks for its key under this name
# (docs/customization_guide/inference_protocols.md, "Limit Endpoint Access").
_GRPC_KEY = "triton-grpc-protocol-"


REHEARSAL = "plansmith-rehearsal-of-"
_NO_MODEL = "plansmith-no-model"
PAUSE_SECONDS = 0.5

_UNCONTROLLED = "explicit model load / unload is not allowed"

# While it loads, a server may be slow to say what it has; one that nobody reaches for so long is taken for gone.
_GONE_SECONDS = 10


class ModelControlClient:
    """Model control client of a server; arguments and errors as for `live.RunningTriton`."""

    def __init__(self, url: str, *, load_seconds: float) -> None:
        self._address = read_address(url)
        require_library("tritonclient", "client")
        self.url = url
        self.may_have_changed = False
        self._load_seconds = load_seconds
        self._headers = _headers(is_grpc=self._address.protocol == "grpc")

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
            self._call(lambda server: server.unload(model) if action == "unload" else server.load(model, sent), seconds)
        except CallFailure as failure:
            if failure.kind in {"refused", "forbidden"}:
                self.may_have_changed = False
            if failure.kind == "late":
                raise ServedCheckError(
                    f"the Triton at {self.url} was still {action}ing {own} after {seconds:g} s",
                    remedy="look into its log; if it only needs longer, raise --load-seconds; if it never ends, start"
                    " it again; until then it serves what it did before",
                ) from None
            if failure.kind != "refused":
                raise self._unasked(failure) from None
            if _UNCONTROLLED in failure.text:
                raise self._fault(
                    "takes no calls to load models", "start it with --model-control-mode=explicit"
                ) from None
            raise ServedCheckError(
                f"the Triton at {self.url} does not {action} {own}: {_in_words(failure.text, model, own)}",
                remedy="correct what it says, and publish again; what it served before, it serves on",
            ) from None

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
                return self._call(Connection.index)
            except CallFailure as failure:
                last = deadline if failure.kind == "late" else min(deadline, limit)
                if failure.kind in {"refused", "forbidden"} or time.monotonic() >= last:
                    raise self._unasked(failure) from None
            time.sleep(PAUSE_SECONDS)

    def config(self, model: str) -> Any:
        """Return the configuration by which the server serves a model; None if it does not serve it.

        Raises:
            EnvironmentFault: it cannot be asked.
        """
        try:
            return self._call(lambda server: server.read_config(model))
        except CallFailure as failure:
            if failure.kind == "refused":
                return None
            raise self._unasked(failure) from None

    def _call(self, ask: Callable[[Connection], T], seconds: float = _CONNECT_SECONDS) -> T:
        """Call the server on a connection of its own, as other threads may call it meanwhile.

        Raises:
            CallFailure: it refuses, or does not answer in time.
        """
        if self._address.protocol == "http":  # whose client tells a late connection from a late answer by nothing
            place = urlsplit(f"//{self._address.place}")
            try:
                socket.create_connection((place.hostname, place.port), _CONNECT_SECONDS).close()
            except OSError as error:
                raise CallFailure("unreachable", first_line(error)) from error
        with Connection(self._address, timeout_seconds=seconds, headers=self._headers) as server:
            return ask(server)

    def _unasked(self, failure: CallFailure) -> PlansmithError:
        if failure.kind == "late":
            return self._fault("does not answer", "see that it runs, and that the port is right")
        if failure.kind == "forbidden":
            return self._fault(
                f"does not let its models be controlled: {failure.text}",
                f"set {HEADER_VARIABLE} to the header that it asks for, as in 'admin-key: secret'",
            )
        reason = f"what answers there is no Triton ({failure.text})" if failure.kind == "foreign" else failure.text
        return self._fault(f"cannot be asked: {reason}", "see that it runs, and that host, port and scheme are right")

    def _fault(self, problem: str, remedy: str) -> EnvironmentFault:
        return EnvironmentFault(f"the Triton at {self.url} {problem}", remedy=remedy)


def _headers(*, is_grpc: bool) -> dict[str, str]:
    """The request headers for model control, from the environment."""
    written = os.environ.get(HEADER_VARIABLE)
    if not written:
        return {}
    name, value = read_header(written, f"what {HEADER_VARIABLE} holds")
    return {name: value, f"{_GRPC_KEY}{name}": value} if is_grpc else {name: value}


def _in_words(message: str, model: str, own: str) -> str:
    """The reason for a Triton failure, without the prefix that repeats the model's name."""
    text = message.strip().removeprefix(f"load failed for model '{model}':").strip()
    return text.replace(model, own)
