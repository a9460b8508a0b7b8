"""Prepares a load test of models behind an endpoint of SageMaker, or behind a front end of one without AWS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from plansmith.errors import UsageError
from plansmith.loadtest.payloads.source import KnownModel, RequestOptions
from plansmith.loadtest.plan.plan_file import ModelShare
from plansmith.loadtest.server.connect import (
    PreparedTarget,
    encoded_requests,
    locality_notes,
    release_names,
    request_notes,
)
from plansmith.loadtest.target import Endpoint, LoadTarget
from plansmith.system.aws.sagemaker_runtime import SageMakerRuntime
from plansmith.system.urls import read_address
from plansmith.triton.client.sagemaker.invocation import TARGET_MODEL, TARGET_VARIANT, require_headers, require_name

_NOTE = (
    "batches, queue and resources of the server are unknown: SageMaker does not tell them with its answers; CloudWatch"
    " has some, minutes later (plansmith sagemaker metrics)"
)


@dataclass(frozen=True)
class EndpointPlace:
    """An endpoint, or a front end without AWS.

    Attributes:
        name: of the endpoint.
        region: where it is; that of the environment and the AWS configuration when empty.
        profile: of the AWS configuration files; empty for what the environment says.
        variant: the production variant that answers; empty for each by its weight.
        url: of a front end that answers instead of AWS; empty for AWS.
    """

    name: str = ""
    region: str = ""
    profile: str = ""
    variant: str = ""
    url: str = ""


@contextmanager
def prepare_endpoint(
    models: Sequence[tuple[ModelShare, KnownModel]], place: EndpointPlace, options: RequestOptions, folder: Path
) -> Iterator[PreparedTarget]:
    """Encode the requests to the models of an endpoint, which go with the block; nothing is asked of AWS.

    Args:
        models: the mix, and what is known of each: SageMaker does not tell what a model takes.
        place: the endpoint.
        options: how requests are made and sent.
        folder: takes the encoded requests.

    Raises:
        UsageError: names that cannot be, headers, or requests that the model or an endpoint does not take.
        SourceError: data that are not there.
        EnvironmentFault: botocore is not installed.
    """
    for share, _ in models:
        require_headers({TARGET_MODEL: share.target_model} | ({TARGET_VARIANT: place.variant} if place.variant else {}))
    options = replace(options, protocol="http")
    base = _front_end(place, options) if place.url else _endpoint(place, options)
    with encoded_requests(base, models, options, folder) as (target, inputs):
        known = {name: model for name, (_, model) in zip(target.names, models, strict=True)}
        notes = (*locality_notes(target.address), *request_notes(known, inputs), _NOTE)
        server = f"SageMaker {target.label}" if target.endpoint is not None else f"SageMaker front end {place.url}"
        yield PreparedTarget(target, server, inputs, None, release_names(known), notes)


def _front_end(place: EndpointPlace, options: RequestOptions) -> LoadTarget:
    address = read_address(place.url, "http")
    if place.region or place.profile or place.variant:
        raise UsageError(
            "a front end that is reached by its address has no region, no profile and no variants",
            remedy="leave them out",
        )
    return LoadTarget(
        place=address.place,
        secure=address.secure,
        encoding=options.encoding,
        headers=dict(options.headers),
        models=(),
        service="front-end",
    )


def _endpoint(place: EndpointPlace, options: RequestOptions) -> LoadTarget:
    if options.headers:
        raise UsageError("an endpoint of SageMaker takes no headers of its callers", remedy="leave --header out")
    require_name(place.name, "an endpoint")
    runtime = SageMakerRuntime(
        place.name, region=place.region, profile=place.profile, timeout_seconds=options.timeout_seconds
    )
    address = read_address(runtime.url(), "http")
    return LoadTarget(
        place=address.place,
        secure=address.secure,
        encoding=options.encoding,
        models=(),
        service="endpoint",
        endpoint=Endpoint(name=place.name, region=runtime.region, profile=place.profile, variant=place.variant),
    )
