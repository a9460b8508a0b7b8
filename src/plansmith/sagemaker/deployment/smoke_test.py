"""The requests that the variants of an endpoint have to answer before a deployment counts as done."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, UsageError
from plansmith.formatting import format_bytes
from plansmith.records.model import Record
from plansmith.sagemaker.endpoint.desired import DesiredState
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.sagemaker.endpoint.variant import VariantSpec
from plansmith.sagemaker.endpoint.variant_archives import VariantArchives
from plansmith.sagemaker.examples import check_example, stored_example
from plansmith.sagemaker.signatures import ServedModel, model_from_release
from plansmith.system.aws.sagemaker_runtime import MAX_BODY_BYTES, MODEL_ERROR, EndpointError
from plansmith.triton.client.request_inputs import checked_feed
from plansmith.triton.client.sagemaker.client import DEFAULT_TIMEOUT_SECONDS, SageMakerClient
from plansmith.triton.client.sagemaker.connection import EndpointConnection
from plansmith.triton.client.sagemaker.invocation import TARGET_MODEL, TARGET_VARIANT, Invocation
from plansmith.triton.client.sagemaker.runtime import RuntimeTransport
from plansmith.triton.repository.repository import ModelRepository

_SINGLE_ANSWER_TYPES = (None, "infer")
_REMEDY = "name a smaller request in smoke_test.body, or write smoke_test: false"


class SmokeRequest(Record):
    """A request of a smoke test: a file, or what a release holds together with its answer.

    Attributes:
        endpoint: the endpoint's name.
        region: the endpoint's.
        body_file: the file with the request's body; empty for the request of a release.
        content_type: of the file.
        release: the release, as MODEL@VERSION; empty for a file.
        repository: the model repository of the release.
        variant: which one answers; empty where there is one.
        target_model: the archive that answers; empty but for multi-model variants.
    """

    endpoint: str
    region: str
    body_file: str = ""
    content_type: str = ""
    release: str = ""
    repository: str = ""
    variant: str = ""
    target_model: str = ""

    @property
    def subject(self) -> str:
        """Who answers."""
        model = f" with {self.target_model}" if self.target_model else ""
        return f"{f'variant {self.variant}' if self.variant else self.endpoint}{model}"

    @property
    def request(self) -> str:
        """What is sent."""
        return f"the request of {self.body_file or self.release}"


class SmokeResult(Record):
    """A request that was answered.

    Attributes:
        subject: who answered.
        request: what was sent.
        compared: whether the answer was compared with the release's.
        seconds: the time until the answer was there.
    """

    subject: str
    request: str
    compared: bool
    seconds: float


def smoke_requests(spec: EndpointSpec, archives: VariantArchives, desired: DesiredState) -> list[SmokeRequest]:
    """The requests of an endpoint's smoke test, to each production variant.

    The file that the spec names; or what the releases hold, of a multi-model variant by the first archive of each. A
    release that holds no request, or gives several answers to one, is not tested.

    Args:
        spec: the endpoint.
        archives: of its variants.
        desired: its desired state.

    Raises:
        UsageError: a request is larger than SageMaker takes.
        RepositoryError: a release is missing or damaged.
    """
    if spec.smoke_test is None:
        return []
    if spec.smoke_test.body:
        _require_size(Path(spec.smoke_test.body))
    requests = []
    for variant in spec.variants:
        target_models = desired.target_models.get(variant.name, ("",))
        base = SmokeRequest(
            endpoint=spec.name,
            region=spec.region,
            variant=variant.name if len(spec.variants) > 1 else "",
            target_model=target_models[0],
        )
        if spec.smoke_test.body:
            file = {"body_file": spec.smoke_test.body, "content_type": spec.smoke_test.content_type}
            requests.append(base.model_copy(update=file))
            continue
        releases: dict[str, str] = {}
        for archive, target_model in zip(archives[variant.name], target_models, strict=True):
            releases.setdefault(archive.releases[0], target_model)
        for release, target_model in releases.items():
            values = {"release": release, "repository": spec.repository, "target_model": target_model}
            request = base.model_copy(update=values)
            requests += [request] if _is_testable(request, variant) else []
    return requests


def run_smoke_test(requests: Sequence[SmokeRequest]) -> Iterator[SmokeResult]:
    """Send the requests one after another.

    Raises:
        ServedCheckError: a container refuses one, or its answer is wrong.
        EnvironmentFault: the endpoint cannot be reached, or the caller may not invoke it.
    """
    for request in requests:
        start = time.monotonic()
        try:
            _send(request)
        except PlansmithError as error:
            raise _failure(request, error) from error
        seconds = round(time.monotonic() - start, 3)
        yield SmokeResult(
            subject=request.subject, request=request.request, compared=bool(request.release), seconds=seconds
        )


def _require_size(body: Path) -> None:
    size = body.stat().st_size
    if size > MAX_BODY_BYTES:
        raise UsageError(f"{body} has {size} bytes, and SageMaker takes {format_bytes(MAX_BODY_BYTES)}", remedy=_REMEDY)


def _is_testable(request: SmokeRequest, variant: VariantSpec) -> bool:
    """Whether a release holds a request that the variant answers once.

    Raises:
        UsageError: the request is larger than SageMaker takes.
    """
    model = _model(request)
    example = stored_example(model)
    if example is None or model.signature.is_decoupled:
        return False
    if variant.environment.inference_type not in _SINGLE_ANSWER_TYPES:
        return False
    with _client(request, model) as client:
        try:
            client.invocations(checked_feed(model.signature, example.feed))
        except UsageError as error:
            raise UsageError(f"{request.request} cannot be sent: {error.message}", remedy=_REMEDY) from error
    return True


def _send(request: SmokeRequest) -> None:
    if request.release:
        model = _model(request)
        with _client(request, model) as client:
            check_example(client, model)
        return
    headers = {TARGET_VARIANT: request.variant, TARGET_MODEL: request.target_model}
    named = {name: value for name, value in headers.items() if value}
    transport = RuntimeTransport(request.endpoint, region=request.region, timeout_seconds=DEFAULT_TIMEOUT_SECONDS)
    with closing(EndpointConnection(transport, headers=named)) as connection:
        invocation = Invocation(Path(request.body_file).read_bytes(), request.content_type, named)
        answer = connection.send(invocation, request.target_model or request.endpoint)
    if not answer.body:
        raise ServedCheckError("the answer is empty", remedy="see that the file is a request of the model")


def _failure(request: SmokeRequest, error: PlansmithError) -> PlansmithError:
    """A failure of the endpoint, or of what is between it and here."""
    message = f"{request.subject} does not answer {request.request} as it should: {error.message}"
    cause = error.__cause__
    is_from_container = isinstance(cause, EndpointError) and cause.code == MODEL_ERROR
    if isinstance(error, EnvironmentFault) and not is_from_container:
        return EnvironmentFault(message, remedy=error.remedy, transient=error.transient)
    logs = f"aws logs tail /aws/sagemaker/Endpoints/{request.endpoint} --region {request.region}"
    return ServedCheckError(message, remedy=f"see why: {logs}")


def _model(request: SmokeRequest) -> ServedModel:
    return model_from_release(ModelRepository(Path(request.repository)), request.release)


def _client(request: SmokeRequest, model: ServedModel) -> SageMakerClient:
    return SageMakerClient(
        request.endpoint,
        signature=model.signature,
        model=model.name,
        region=request.region,
        target_model=request.target_model,
        target_variant=request.variant,
    )
