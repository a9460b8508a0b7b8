"""A client of one model on a Triton server: knows what it takes, sends it, and gives the answers as arrays."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from plansmith.errors import ServedCheckError, UsageError
from plansmith.system.urls import DEFAULT_ADDRESSES, Protocol, read_address
from plansmith.triton.client.connection import Connection
from plansmith.triton.client.dtypes import Signature, own_shape, wire_shape
from plansmith.triton.client.messages import Encoding, Parameter, Reply, Request, WireTensor
from plansmith.triton.client.request_inputs import checked_feed, expected_shapes, joined, missing_inputs, parts
from plansmith.triton.client.shared_memory import SharedRegions
from plansmith.triton.client.signature import signature_from_config

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray
    from tritonclient.grpc import model_config_pb2 as pb

    from plansmith.records.release import Interface

_ATTEMPTS = 3


@dataclass(frozen=True)
class Answer:
    """What a model answered.

    Args:
        outputs: an array for each output; strings are bytes in an array of objects.
        version: the version that answered.
        requests: in how many requests the batch was sent.
    """

    outputs: dict[str, NDArray[Any]]
    version: str
    requests: int


class Client:
    """Asks one model, from one thread; a context manager.

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
        self.model = model
        self.version = version
        self._encoding: Encoding = encoding
        self._signature: Signature | None = None
        if interface is not None and max_batch_size is not None:
            inputs, outputs = interface.inputs, interface.outputs
            self._signature = Signature(
                inputs=inputs, outputs=outputs, max_batch_size=max_batch_size, is_decoupled=decoupled
            )
        self._knows_server = interface is None
        self._connection = Connection(
            read_address(url, protocol), timeout_seconds=timeout_seconds, headers=headers or {}
        )
        self._cleanup = ExitStack()
        self._cleanup.callback(self._connection.close)
        self._regions = SharedRegions(self._connection) if shared_memory else None
        if self._regions is not None:
            self._cleanup.callback(self._regions.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove shared memory and close the connection; does nothing the second time."""
        self._cleanup.close()

    def config(self) -> pb.ModelConfig:
        """The model's configuration as the server completed it.

        Raises:
            ServedCheckError: Triton refuses to tell it, as for a model that it does not have.
            EnvironmentFault: the server is not reached, or not in time.
        """
        return self._connection.config(self.model, self.version)

    def signature(self) -> Signature:
        """What the model takes and answers; errors as for `config` where the server has to be asked."""
        if self._signature is None:
            self._signature = signature_from_config(self.config())
        return self._signature

    def infer(
        self,
        feed: Mapping[str, object],
        *,
        outputs: Collection[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """The model's answer to a feed: an array for each output; arguments and errors as for `ask`."""
        return self.ask(feed, outputs=outputs, parameters=parameters).outputs

    def ask(
        self,
        feed: Mapping[str, object],
        *,
        outputs: Collection[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
    ) -> Answer:
        """The model's answer to a feed, and who gave it.

        Args:
            feed: an array for each input, batch first where the model batches; of dtypes that go into the input's
                without loss. Lists and numbers take the input's dtype; strings are str or bytes.
            outputs: the outputs to ask for; all of them when empty.
            parameters: values by name for the model's own code, beside its inputs; with each request of a batch.

        Raises:
            UsageError: names, dtypes or shapes that the model does not take, with what it takes; parameters that
                cannot be sent.
            ServedCheckError: Triton refuses the request, with its reason, or the answer is not what it promises.
            EnvironmentFault: the server is not reached, or not in time.
        """
        signature, wanted = self._fitting(feed, outputs)
        # Triton's cache knows an answer by its inputs alone: who asks for other outputs later gets those of the first.
        asked = _chosen(signature, ()) if signature.is_cached else wanted
        answer = self._ask_all(signature, checked_feed(signature, feed), asked, parameters or {})
        return replace(answer, outputs={name: answer.outputs[name] for name in wanted})

    def stream(
        self,
        feed: Mapping[str, object],
        *,
        outputs: Collection[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
    ) -> Generator[dict[str, NDArray[Any]], None, None]:
        """The answers of a decoupled model to one request, as they come: an array for each output; over gRPC alone.

        Whoever stops listening has the request cancelled. Each answer may take as long as `timeout_seconds`; one that
        is refused in the middle raises there. Arguments and errors as for `ask`; a batch that is larger than the
        model's largest is refused.
        """
        signature, wanted = self._fitting(feed, outputs)
        arrays = checked_feed(signature, feed)
        if len(list(parts(arrays, signature.max_batch_size))) > 1:
            raise UsageError(
                f"a stream is one request, and {self.model} takes {signature.max_batch_size} samples in one",
                remedy="send fewer at once",
            )
        for reply in self._connection.stream(self._request(signature, arrays, wanted, parameters or {})):
            yield {name: self._own(signature, name, reply) for name in wanted}

    def _fitting(self, feed: Mapping[str, object], outputs: Collection[str]) -> tuple[Signature, list[str]]:
        """What the model takes, asked anew where a feed would not do otherwise; and the outputs to ask for."""
        signature = self.signature()
        wanted = _chosen(signature, outputs)
        asks_less = len(wanted) < len(signature.outputs)
        known = {tensor.name for tensor in signature.inputs}
        lacks_only = missing_inputs(signature, feed) and known.issuperset(feed)
        if not self._knows_server and (lacks_only or asks_less):
            signature = self._completed(signature)
        return signature, wanted

    def _ask_all(
        self,
        signature: Signature,
        arrays: Mapping[str, NDArray[Any]],
        wanted: Collection[str],
        parameters: Mapping[str, Parameter],
    ) -> Answer:
        """Send the parts of a feed; anew where another version was loaded meanwhile, as no answer mixes two."""
        versions: set[str] = set()
        for _ in range(_ATTEMPTS):
            sent = parts(arrays, signature.max_batch_size)
            found = [self._send(signature, part, wanted, parameters) for part in sent]
            versions = {version for version, _ in found}
            if len(versions) == 1:
                return Answer(joined([outputs for _, outputs in found]), versions.pop(), len(found))
        raise ServedCheckError(
            f"versions {' and '.join(sorted(versions))} of {self.model} answered parts of one batch",
            remedy="name one of the versions, or send smaller batches",
            transient=True,
        )

    def _send(
        self,
        signature: Signature,
        arrays: Mapping[str, NDArray[Any]],
        wanted: Collection[str],
        parameters: Mapping[str, Parameter],
    ) -> tuple[str, dict[str, NDArray[Any]]]:
        """Send one request; the version that answered, and its outputs in the shapes of the signature."""
        request = self._request(signature, arrays, wanted, parameters)
        if signature.is_decoupled:
            reply = self._only_reply(request)
            return reply.version, {name: self._own(signature, name, reply) for name in wanted}
        if self._regions is not None:
            asked = [tensor for tensor in signature.outputs if tensor.name in wanted]
            shapes = expected_shapes(signature, asked, arrays)
            inputs = self._regions.place_inputs(request.inputs)
            request = replace(request, inputs=inputs, outputs=self._regions.place_outputs(request.outputs, shapes))
        reply = self._reply(request)
        for output in request.outputs:
            if reply.values[output.name] is None:
                assert self._regions is not None
                reply.values[output.name] = self._regions.read_output(output, reply.shapes[output.name])
        return reply.version, {name: self._own(signature, name, reply) for name in wanted}

    def _request(
        self,
        signature: Signature,
        arrays: Mapping[str, NDArray[Any]],
        wanted: Collection[str],
        parameters: Mapping[str, Parameter],
    ) -> Request:
        """A request whose tensors travel in it."""
        inputs = []
        for tensor in signature.inputs:
            if tensor.name in arrays:
                array = arrays[tensor.name]
                sent = array.reshape(wire_shape(tensor, array.shape, signature.max_batch_size))
                inputs.append(WireTensor(tensor.name, tensor.dtype, sent.shape, sent))
        outputs = [WireTensor(tensor.name, tensor.dtype) for tensor in signature.outputs if tensor.name in wanted]
        return Request(self.model, self.version, inputs, outputs, self._encoding, parameters)

    def _own(self, signature: Signature, name: str, reply: Reply) -> NDArray[Any]:
        """An output that was answered, in the shape of the signature."""
        tensor = next(tensor for tensor in signature.outputs if tensor.name == name)
        values = reply.values[name]
        assert values is not None
        return values.reshape(own_shape(tensor, reply.shapes[name], signature.max_batch_size))

    def _only_reply(self, request: Request) -> Reply:
        """The one answer of a decoupled model, for which Triton has no other way than a stream."""
        replies = list(self._connection.stream(request))
        if len(replies) != 1:
            raise ServedCheckError(
                f"{self.model} answered {len(replies)} times, and one answer was asked for",
                remedy="take all of them (Client.stream), or send no parameter that asks for pieces",
            )
        return replies[0]

    def _reply(self, request: Request) -> Reply:
        """Send a request; after one that fails, shared memory is made anew: a server that was restarted has none."""
        try:
            return self._connection.ask(request)
        except BaseException as error:
            if self._regions is not None:
                if isinstance(error, ServedCheckError):
                    self._regions.close()
                else:
                    self._regions.abandon()
            raise

    def _completed(self, signature: Signature) -> Signature:
        """The given interface, and what the server alone knows: the inputs that it does without, whether it caches."""
        theirs = signature_from_config(self.config())
        more = {"optional": theirs.optional, "is_cached": theirs.is_cached, "is_decoupled": theirs.is_decoupled}
        self._signature = signature.model_copy(update=more)
        self._knows_server = True
        return self._signature


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


def _chosen(signature: Signature, outputs: Collection[str]) -> list[str]:
    """The outputs to ask for, in the model's order.

    Raises:
        UsageError: the model has no such output.
    """
    known = [tensor.name for tensor in signature.outputs]
    unknown = [name for name in outputs if name not in known]
    if unknown:
        raise UsageError(f"the model has no output {unknown[0]!r}", remedy=f"its outputs are {', '.join(known)}")
    return [name for name in known if not outputs or name in outputs]
