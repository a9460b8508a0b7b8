"""Triton client for one model: knows its inputs, sends requests, and returns arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plansmith.errors import ServedCheckError, UsageError
from plansmith.system.urls import DEFAULT_ADDRESSES, Protocol, read_address
from plansmith.triton.client.connection import Connection
from plansmith.triton.client.messages import Encoding, Reply, Request
from plansmith.triton.client.model_client import ModelClient
from plansmith.triton.client.request_inputs import expected_shapes, missing_inputs
from plansmith.triton.client.shared_memory import SharedRegions
from plansmith.triton.dtypes import Signature, completed_signature, signature_from_config

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tritonclient.grpc import model_config_pb2 as pb

    from plansmith.records.release import Interface


class Client(ModelClient):
    """Inference client for one model on a Triton server, for use from one thread; a context manager.

    It knows what the model takes: by the interface of its release, or from the server, asked once. What does not fit
    is refused before it is sent. A batch that is larger than the model's largest is sent in several requests, one
    after the other, whose answers are joined; nothing is padded.

    Args:
        url: where the server answers: `host:port`, or with http://, https://, grpc:// or grpcs:// before it.
        model: its name.
        version: its version; empty for the one that Triton chooses.
        protocol: "http" or "grpc".
        encoding: "binary", or "json" for bodies that are JSON throughout (HTTP alone).
        interface: the inputs and outputs (`manifest.package.interface`); asked from the server without.
        max_batch_size: the largest batch of one request (`manifest.package.max_batch_size`); goes with `interface`.
        decoupled: a request may get several answers (`manifest.package.decoupled`); likewise.
        timeout_seconds: how long connecting may take, and each answer.
        shared_memory: have large tensors travel through memory that client and server share; both run on one machine.
        headers: sent with each request, such as an authorization.

    Raises:
        UsageError: arguments that contradict each other, or an address that is none.
        EnvironmentFault: tritonclient is not installed.
    """

    def __init__(  # noqa: PLR0913 - a connection has as many settings, and most callers need two of them
        self,
        url: str,
        *,
        model: str,
        version: str = "",
        protocol: Protocol = "http",
        encoding: Encoding = "binary",
        interface: Interface | None = None,
        max_batch_size: int | None = None,
        decoupled: bool = False,
        timeout_seconds: float = 60,
        shared_memory: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        _require_sense(protocol, encoding, interface, max_batch_size, shared_memory=shared_memory)
        signature = None
        if interface is not None and max_batch_size is not None:
            inputs, outputs = interface.inputs, interface.outputs
            signature = Signature(inputs=inputs, outputs=outputs, max_batch_size=max_batch_size, is_decoupled=decoupled)
        self._connection = Connection(
            read_address(url, protocol), timeout_seconds=timeout_seconds, headers=headers or {}
        )
        super().__init__(self._connection, model=model, version=version, encoding=encoding, signature=signature)
        self._knows_server = interface is None
        self._regions = SharedRegions(self._connection) if shared_memory else None
        if self._regions is not None:
            self._cleanup.callback(self._regions.close)

    def config(self) -> pb.ModelConfig:
        """Return the model's configuration as the server auto-completed it.

        Raises:
            ServedCheckError: Triton refuses to tell it, as for a model that it does not have.
            EnvironmentFault: the server is not reached, or not in time.
        """
        return self._connection.config(self.model, self.version)

    def signature(self) -> Signature:
        """Return the model's signature; errors as for `config` if the server must be queried."""
        if self._signature is None:
            self._signature = signature_from_config(self.config())
        return self._signature

    def _resolve(self, feed: Mapping[str, object], outputs: Collection[str]) -> tuple[Signature, list[str]]:
        """Resolve the signature, reloaded where a feed does not fit the cached one, and the requested outputs."""
        signature, names = super()._resolve(feed, outputs)
        asks_less = len(names) < len(signature.outputs)
        input_names = {tensor.name for tensor in signature.inputs}
        lacks_only = missing_inputs(signature, feed) and input_names.issuperset(feed)
        if not self._knows_server and (lacks_only or asks_less):
            signature = self._signature = completed_signature(signature, self.config())
            self._knows_server = True
        return signature, names

    def _reply(self, signature: Signature, request: Request, arrays: Mapping[str, NDArray[Any]]) -> Reply:
        """Send a request, with large tensors in shared memory where the client uses it.

        After a request that fails, shared memory is made anew: a server that was restarted has none.
        """
        if self._regions is None:
            return self._connection.ask(request)
        names = {tensor.name for tensor in request.outputs}
        outputs = [tensor for tensor in signature.outputs if tensor.name in names]
        shapes = expected_shapes(signature, outputs, arrays)
        inputs = self._regions.place_inputs(request.inputs)
        request = replace(request, inputs=inputs, outputs=self._regions.place_outputs(request.outputs, shapes))
        try:
            reply = self._connection.ask(request)
        except ServedCheckError:
            self._regions.close()
            raise
        except BaseException:
            self._regions.abandon()
            raise
        for output in request.outputs:
            if reply.values[output.name] is None:
                reply.values[output.name] = self._regions.read_output(output, reply.shapes[output.name])
        return reply


def _require_sense(
    protocol: str, encoding: str, interface: Interface | None, max_batch_size: int | None, *, shared_memory: bool
) -> None:
    if protocol not in DEFAULT_ADDRESSES or encoding not in {"binary", "json"}:
        raise UsageError(
            f"there is no protocol {protocol!r} with encoding {encoding!r}",
            remedy="give http or grpc, and binary or json",
        )
    if encoding == "json" and protocol == "grpc":
        raise UsageError("gRPC has no JSON bodies", remedy="leave the encoding out, or ask over http")
    if encoding == "json" and shared_memory:
        raise UsageError("shared memory holds no JSON", remedy="leave one of the two out")
    if (interface is None) != (max_batch_size is None):
        raise UsageError(
            "interface and max_batch_size belong together", remedy="give both, as manifest.package has them, or none"
        )
