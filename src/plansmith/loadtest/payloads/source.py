"""Request selection: chooses the requests of each model of a load test and encodes them for the client processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from plansmith.errors import UsageError
from plansmith.loadtest.payloads.encoding import write_payloads
from plansmith.loadtest.payloads.inputs import DEFAULT_REQUESTS, ReleaseInputs, SizeMix, random_inputs, read_data
from plansmith.loadtest.plan_file import ModelShare
from plansmith.loadtest.target import Service, TargetModel
from plansmith.records.release import Manifest, Package
from plansmith.system.urls import Protocol
from plansmith.triton.client import Encoding, Parameter, Signature
from plansmith.triton.client.messages import Reply, Request
from plansmith.triton.client.model_client import ModelClient
from plansmith.triton.client.request_inputs import checked_feed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


_MAX_BYTES = 256 << 20
"""All requests to a model together: they are in the memory of each client process."""


@dataclass(frozen=True)
class RequestOptions:
    """Request options: how requests are made and sent.

    Attributes:
        protocol: http or grpc.
        encoding: of the bodies.
        count: different requests per model.
        seed: determines what is drawn.
        requests: values by input that are sent instead of chosen ones.
        shapes: fixed shapes of random inputs, batch first.
        parameters: sent with each request.
        headers: sent with each request.
        timeout_seconds: how long an answer may take.
    """

    protocol: Protocol | None = None
    encoding: Encoding = "binary"
    count: int = DEFAULT_REQUESTS
    seed: int = 0
    requests: tuple[Mapping[str, object], ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 60


@dataclass(frozen=True)
class KnownModel:
    """Known facts of a model.

    Attributes:
        signature: what it takes.
        manifest: of its release; None where that is unknown.
        release: the folder of that.
        package: as it is served.
    """

    signature: Signature
    manifest: Manifest | None = None
    release: Path | None = None
    package: Package | None = None


@dataclass(frozen=True)
class ModelInputs:
    """Model inputs of its requests.

    Attributes:
        arrays: by input, one mapping per request.
        description: where they come from.
        is_random: the values mean nothing to the model.
    """

    arrays: tuple[Arrays, ...]
    description: str
    is_random: bool = False

    @property
    def shapes(self) -> int:
        """The number of different shapes that a sample has."""
        return len(
            {tuple(sorted((name, array.shape[1:]) for name, array in request.items())) for request in self.arrays}
        )

    @property
    def size_range(self) -> str:
        """The smallest and largest size of each dim of each input."""
        shapes: dict[str, list[tuple[int, ...]]] = {}
        for request in self.arrays:
            for name, array in request.items():
                shapes.setdefault(name, []).append(array.shape)
        ranges = []
        for name, sizes_by_request in shapes.items():
            least, most = (
                "x".join(str(end(sizes)) for sizes in zip(*sizes_by_request, strict=True)) for end in (min, max)
            )
            ranges.append(f"{name} {least or 'scalar'}" + f" to {most}" * (most != least))
        return ", ".join(ranges)


def choose_inputs(share: ModelShare, model: KnownModel, options: RequestOptions) -> ModelInputs:
    """Choose the inputs of a model's requests: given requests, data, those stored in its release, or random ones.

    Raises:
        UsageError: a decoupled model, data that do not fit, or batches that the model does not take.
        SourceError: data are not there, or cannot be read.
    """
    signature = model.signature
    if signature.is_decoupled:
        raise UsageError(
            f"{share.model} may answer a request in several pieces, which a load test cannot count",
            remedy="test a version that answers once (pipeline: {stream: false})",
        )
    if options.requests:
        requests = tuple(checked_feed(signature, request) for request in options.requests)
        return ModelInputs(requests, "the given requests")
    _require_batches(share, signature)
    mix = SizeMix(options.count, share.batches, options.seed)
    if share.data is not None:
        data = read_data(share.data, signature, manifest=model.manifest)
        return ModelInputs(_bounded(data.requests(mix), mix.count), data.description)
    axes = None
    if model.manifest is not None and model.release is not None and not options.shapes:
        inputs = ReleaseInputs(model.manifest, model.release, model.package or model.manifest.package)
        if inputs.exist():
            return ModelInputs(_bounded(inputs.requests(mix), mix.count), inputs.description, inputs.is_random)
        axes = model.manifest.onnx.axes
    generated = random_inputs(signature, mix, axes=axes, shapes=options.shapes)
    description = "random values at mixed sizes; --repository, --data or --request give real ones"
    return ModelInputs(_bounded(generated, mix.count), description, is_random=True)


def encode(
    share: ModelShare,
    inputs: ModelInputs,
    signature: Signature,
    folder: Path,
    options: RequestOptions,
    *,
    service: Service = "triton",
) -> TargetModel:
    """Encode the requests of a model into its own folder.

    Raises:
        UsageError: the model does not take one.
        EnvironmentFault: the folder cannot be written.
    """
    client = ModelClient(
        _Unsent(), model=share.name, version=share.version, encoding=options.encoding, signature=signature
    )
    requests = (
        request for arrays in inputs.arrays for request in client.requests(arrays, parameters=options.parameters)
    )
    write_payloads(
        folder,
        requests,
        options.protocol or "http",
        options.encoding,
        is_batched=signature.max_batch_size > 0,
        service=service,
    )
    return TargetModel(
        model=share.name,
        version=share.version,
        payloads=str(folder.absolute()),
        weight=share.weight,
        target_model=share.target_model,
    )


class _Unsent:
    """Null channel: for a client that builds requests and sends none."""

    def ask(self, request: Request) -> Reply:
        """Send nothing."""
        self._refuse(request)

    def stream(self, request: Request) -> Iterator[Reply]:
        """Send nothing."""
        self._refuse(request)

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def _refuse(self, request: Request) -> NoReturn:
        raise AssertionError(f"a request to {request.model} was sent")


def _bounded(requests: Iterable[Arrays], count: int) -> tuple[Arrays, ...]:
    """Return the first `count` requests that fit in `_MAX_BYTES` together; at least one."""
    chosen: list[Arrays] = []
    size = 0
    for arrays in requests:
        size += sum(_byte_count(array) for array in arrays.values())
        if chosen and (size > _MAX_BYTES or len(chosen) >= count):
            break
        chosen.append(arrays)
    return tuple(chosen)


def _byte_count(array: NDArray[Any]) -> int:
    return sum(len(item) for item in array.flat) if array.dtype == object else int(array.nbytes)


def _require_batches(share: ModelShare, signature: Signature) -> None:
    largest = signature.max_batch_size or 1
    wrong = [size for size in share.batches if size > largest]
    if wrong:
        raise UsageError(
            f"{share.model} takes batches of 1 to {largest}, and not of {', '.join(map(str, wrong))}",
            remedy=f"choose batch sizes from 1 to {largest}",
        )
