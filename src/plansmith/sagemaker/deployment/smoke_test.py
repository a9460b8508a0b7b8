"""The requests that the variants of an endpoint have to answer before a deployment counts as done."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, UsageError
from plansmith.formatting import bytes_in_words
from plansmith.records.model import Record
from plansmith.sagemaker.deployment.account import RUNTIME, Account
from plansmith.sagemaker.endpoint.desired import DesiredState
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.system.aws.s3.errors import refusal_in

_MAX_BODY_BYTES = 6 << 20
"""The limit of InvokeEndpoint: BodyBlob in botocore's description of sagemaker-runtime."""

_MODEL_ERROR = "ModelError"


class SmokeRequest(Record):
    """A request of a smoke test.

    Attributes:
        endpoint: the endpoint's name.
        body_file: the file with the request's body.
        content_type: of the body.
        variant: which one answers; empty where there is one.
        target_model: the archive that answers; empty but for multi-model variants.
    """

    endpoint: str
    body_file: str
    content_type: str
    variant: str = ""
    target_model: str = ""

    @property
    def subject(self) -> str:
        """Who answers."""
        model = f" with {self.target_model}" if self.target_model else ""
        return f"{f'variant {self.variant}' if self.variant else self.endpoint}{model}"


class SmokeResult(Record):
    """A request that was answered.

    Attributes:
        subject: who answered.
        request: what was sent.
        seconds: the time until the answer was there.
    """

    subject: str
    request: str
    seconds: float


def smoke_requests(spec: EndpointSpec, desired: DesiredState) -> list[SmokeRequest]:
    """The requests of an endpoint's smoke test: the file that the spec names, to each production variant.

    Of a multi-model variant, the first archive answers.

    Raises:
        UsageError: the file is larger than SageMaker takes.
    """
    if spec.smoke_test is None or not spec.smoke_test.body:
        return []
    size = Path(spec.smoke_test.body).stat().st_size
    if size > _MAX_BODY_BYTES:
        raise UsageError(
            f"{spec.smoke_test.body} has {size} bytes, and SageMaker takes {bytes_in_words(_MAX_BODY_BYTES)}",
            remedy="name a smaller request in smoke_test.body, or write smoke_test: false",
        )
    return [
        SmokeRequest(
            endpoint=spec.name,
            body_file=spec.smoke_test.body,
            content_type=spec.smoke_test.content_type,
            variant=variant.name if len(spec.variants) > 1 else "",
            target_model=next(iter(desired.target_models.get(variant.name, ())), ""),
        )
        for variant in spec.variants
    ]


def run_smoke_test(account: Account, requests: Sequence[SmokeRequest]) -> Iterator[SmokeResult]:
    """Send the requests one after another.

    Raises:
        ServedCheckError: a container refuses one, or answers nothing.
        EnvironmentFault: the endpoint cannot be reached, or the caller may not invoke it.
    """
    for request in requests:
        start = time.monotonic()
        try:
            _invoke(account, request)
        except PlansmithError as error:
            raise _failure(account, request, error) from error
        seconds = round(time.monotonic() - start, 3)
        yield SmokeResult(subject=request.subject, request=request.body_file, seconds=seconds)


def _invoke(account: Account, request: SmokeRequest) -> None:
    target = {"TargetVariant": request.variant, "TargetModel": request.target_model}
    answer = account.call(
        "invoke_endpoint",
        RUNTIME,
        EndpointName=request.endpoint,
        Body=Path(request.body_file).read_bytes(),
        ContentType=request.content_type,
        **{name: value for name, value in target.items() if value},
    )
    with closing(answer["Body"]) as body:
        if not body.read():
            raise ServedCheckError("the answer is empty", remedy="see that the file is a request of the model")


def _failure(account: Account, request: SmokeRequest, error: PlansmithError) -> PlansmithError:
    message = f"{request.subject} does not answer {request.body_file}: {error.message}"
    refusal = refusal_in(error.__cause__) if isinstance(error.__cause__, Exception) else None
    is_from_container = refusal is not None and refusal.code == _MODEL_ERROR
    if isinstance(error, EnvironmentFault) and not is_from_container:
        return EnvironmentFault(message, remedy=error.remedy, transient=error.transient)
    return ServedCheckError(
        message, remedy=f"see why: aws logs tail /aws/sagemaker/Endpoints/{request.endpoint} --region {account.region}"
    )
