"""Base of model clients, independent of transport: checks a feed, sends it in parts, and joins the answers."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from plansmith.errors import ServedCheckError, UsageError
from plansmith.triton.client.messages import Encoding, Parameter, Reply, Request, WireTensor
from plansmith.triton.client.request_inputs import checked_feed, joined, parts
from plansmith.triton.dtypes import Signature, own_shape, wire_shape

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

_ATTEMPTS = 3


class RequestChannel(Protocol):
    """Request channel: sends requests to a model and returns its replies."""

    def ask(self, request: Request) -> Reply:
        """Send a request and wait for the reply."""
        ...

    def stream(self, request: Request) -> Iterator[Reply]:
        """Send a request, and yield its replies as they arrive."""
        ...

    def close(self) -> None:
        """Close the connections. Idempotent."""
        ...


@dataclass(frozen=True)
class Answer:
    """A model's response.

    Args:
        outputs: an array for each output; strings are bytes in an array of objects.
        version: the version that answered.
        requests: in how many requests the batch was sent.
        variant: the production variant of a SageMaker endpoint that answered; empty elsewhere.
    """

    outputs: dict[str, NDArray[Any]]
    version: str
    requests: int
    variant: str = ""


class ModelClient:
    """Inference client for one model over a channel, for use from one thread; a context manager.

    What does not fit the model's signature is refused before it is sent. A batch that is larger than the model's
    largest is sent in several requests, one after the other, whose answers are joined; nothing is padded.

    Args:
        channel: carries the requests, and is closed with the client.
        model: its name.
        version: its version; empty for the server's choice.
        encoding: "binary", or "json" for bodies that are JSON throughout.
        signature: what the model takes and answers; None where `signature` of a subclass asks the server.
    """

    def __init__(
        self, channel: RequestChannel, *, model: str, version: str, encoding: Encoding, signature: Signature | None
    ) -> None:
        self.model = model
        self.version = version
        self._encoding: Encoding = encoding
        self._signature = signature
        self._channel = channel
        self._cleanup = ExitStack()
        self._cleanup.callback(channel.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and other resources of the client. Idempotent."""
        self._cleanup.close()

    def signature(self) -> Signature:
        """Return the model's signature."""
        assert self._signature is not None
        return self._signature

    def infer(
        self,
        feed: Mapping[str, object],
        *,
        outputs: Collection[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Run inference on a feed and return an array for each output; arguments and errors as for `ask`."""
        return self.ask(feed, outputs=outputs, parameters=parameters).outputs

    def ask(
        self,
        feed: Mapping[str, object],
        *,
        outputs: Collection[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
    ) -> Answer:
        """Run inference on a feed and return the outputs, with the version that answered.

        Args:
            feed: an array for each input, batch first where the model batches; of dtypes that go into the input's
                without loss. Lists and numbers take the input's dtype; strings are str or bytes.
            outputs: the outputs to ask for; all of them when empty.
            parameters: values by name for the model's own code, beside its inputs; with each request of a batch.

        Raises:
            UsageError: names, dtypes or shapes that the model does not take, with what it takes; parameters that
                cannot be sent.
            ServedCheckError: the request is refused, with the reason, or the answer is not what the model promises.
            EnvironmentFault: the model is not reached, or not in time.
        """
        signature, names = self._resolve(feed, outputs)
        arrays = checked_feed(signature, feed)
        answer = self._ask_all(signature, arrays, _requested_outputs(signature, names), parameters or {})
        return replace(answer, outputs={name: answer.outputs[name] for name in names})

    def requests(
        self,
        feed: Mapping[str, object],
        *,
        outputs: Collection[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
    ) -> list[Request]:
        """Return the requests that `ask` would send, without sending them. Raises UsageError as `ask` does."""
        signature, names = self._resolve(feed, outputs)
        requested = _requested_outputs(signature, names)
        batches = parts(checked_feed(signature, feed), signature.max_batch_size)
        return [self._request(signature, batch, requested, parameters or {}) for batch in batches]

    def stream(
        self,
        feed: Mapping[str, object],
        *,
        outputs: Collection[str] = (),
        parameters: Mapping[str, Parameter] | None = None,
    ) -> Generator[dict[str, NDArray[Any]], None, None]:
        """Yield a decoupled model's responses to one request as they arrive: an array for each output; gRPC only.

        Whoever stops listening has the request cancelled. Each answer may take as long as `timeout_seconds`; one that
        is refused in the middle raises there. Arguments and errors as for `ask`; a batch that is larger than the
        model's largest is refused.
        """
        signature, names = self._resolve(feed, outputs)
        arrays = checked_feed(signature, feed)
        if len(list(parts(arrays, signature.max_batch_size))) > 1:
            raise UsageError(
                f"a stream is one request, and {self.model} takes {signature.max_batch_size} samples in one",
                remedy="send fewer at once",
            )
        for reply in self._channel.stream(self._request(signature, arrays, names, parameters or {})):
            yield {name: self._output_array(signature, name, reply) for name in names}

    def _resolve(self, feed: Mapping[str, object], outputs: Collection[str]) -> tuple[Signature, list[str]]:
        """Resolve the signature to check a feed against, and the names of the requested outputs."""
        del feed
        return self.signature(), selected_outputs(self.signature(), outputs)

    def _ask_all(
        self,
        signature: Signature,
        arrays: Mapping[str, NDArray[Any]],
        outputs: Collection[str],
        parameters: Mapping[str, Parameter],
    ) -> Answer:
        """Send the parts of a feed.

        Repeat where another version was loaded meanwhile, as no result mixes two versions.
        """
        versions: set[str] = set()
        for _ in range(_ATTEMPTS):
            versions, variant = set(), ""
            answers = []
            for part in parts(arrays, signature.max_batch_size):
                # Variants of an endpoint are different models: the one that answered first gets the other parts.
                request = replace(self._request(signature, part, outputs, parameters), variant=variant)
                reply = self._only_reply(request) if signature.is_decoupled else self._reply(signature, request, part)
                answers.append({name: self._output_array(signature, name, reply) for name in outputs})
                versions.add(reply.version)
                variant = reply.variant
            if len(versions) == 1:
                return Answer(joined(answers), versions.pop(), len(answers), variant)
        raise ServedCheckError(
            f"versions {' and '.join(sorted(versions))} of {self.model} answered parts of one batch",
            remedy="name one of the versions, or send smaller batches",
            transient=True,
        )

    def _reply(self, signature: Signature, request: Request, arrays: Mapping[str, NDArray[Any]]) -> Reply:
        """Send a request built from arrays."""
        del signature, arrays
        return self._channel.ask(request)

    def _request(
        self,
        signature: Signature,
        arrays: Mapping[str, NDArray[Any]],
        outputs: Collection[str],
        parameters: Mapping[str, Parameter],
    ) -> Request:
        """Build a request that carries its tensors inline."""
        inputs = []
        for tensor in signature.inputs:
            if tensor.name in arrays:
                array = arrays[tensor.name]
                sent = array.reshape(wire_shape(tensor, array.shape, signature.max_batch_size))
                inputs.append(WireTensor(tensor.name, tensor.dtype, sent.shape, sent))
        answers = [WireTensor(tensor.name, tensor.dtype) for tensor in signature.outputs if tensor.name in outputs]
        return Request(self.model, self.version, inputs, answers, self._encoding, parameters)

    def _output_array(self, signature: Signature, name: str, reply: Reply) -> NDArray[Any]:
        """Return an output of a reply, in the shape of the signature."""
        tensor = next(tensor for tensor in signature.outputs if tensor.name == name)
        values = reply.values[name]
        assert values is not None
        return values.reshape(own_shape(tensor, reply.shapes[name], signature.max_batch_size))

    def _only_reply(self, request: Request) -> Reply:
        """Return the single response of a decoupled model, which Triton serves only over a stream."""
        replies = list(self._channel.stream(request))
        if len(replies) != 1:
            raise ServedCheckError(
                f"{self.model} answered {len(replies)} times, and one answer was asked for",
                remedy="take all of them (Client.stream), or send no parameter that asks for pieces",
            )
        return replies[0]


def selected_outputs(signature: Signature, outputs: Collection[str]) -> list[str]:
    """Return the requested outputs in the model's order; all of them by default.

    Raises:
        UsageError: the model has no such output.
    """
    names = [tensor.name for tensor in signature.outputs]
    unknown = [name for name in outputs if name not in names]
    if unknown:
        raise UsageError(f"the model has no output {unknown[0]!r}", remedy=f"its outputs are {', '.join(names)}")
    return [name for name in names if not outputs or name in outputs]


def _requested_outputs(signature: Signature, names: list[str]) -> list[str]:
    """The outputs to request: all of them where Triton's response cache is on.

    Its cache knows an answer by its inputs alone: who asks for other outputs later gets those of the first.
    """
    return selected_outputs(signature, ()) if signature.is_cached else names
