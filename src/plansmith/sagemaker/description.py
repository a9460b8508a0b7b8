"""Endpoint description from SageMaker: its status, its variants, and the models that they serve."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from plansmith.errors import UsageError
from plansmith.records.model import Record
from plansmith.system.aws.service import AwsService

_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


class VariantModel(Record):
    """Model of a variant.

    Attributes:
        name: SageMaker's.
        arn: its ARN.
        image: of the container.
        data: the URI of the archive, or the prefix of many archives.
        multi_model: whether it is a prefix.
    """

    name: str
    arn: str = ""
    image: str = ""
    data: str = ""
    multi_model: bool = False


class VariantDescription(Record):
    """Variant as running, and as configured.

    Attributes:
        name: of the variant.
        shadow: whether it gets copies of requests and answers nobody.
        weight: its part of the requests.
        desired_weight: the weight that it is changing to.
        configured_weight: the weight of the configuration; None where the configuration lacks the variant.
        instances: how many run.
        desired_instances: how many are to run.
        instance_type: of them.
        images: that they run.
        states: what happens to them.
        model_name: the model of the configuration.
        model: what SageMaker has under that name; None where it has nothing, or was not asked.
    """

    name: str
    shadow: bool = False
    weight: float | None = None
    desired_weight: float | None = None
    configured_weight: float | None = None
    instances: int | None = None
    desired_instances: int | None = None
    instance_type: str = ""
    images: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    model_name: str = ""
    model: VariantModel | None = None


class EndpointDescription(Record):
    """Endpoint as SageMaker describes it.

    Attributes:
        name: of the endpoint.
        region: where it is.
        arn: its ARN.
        status: SageMaker's, such as InService.
        config: the configuration that it serves.
        pending_config: the configuration that it changes to; empty where it does not.
        created: when, in UTC.
        changed: when it was changed last.
        failure: SageMaker's reason for a bad status.
        variants: those that run; those of the configuration while none does.
        missing_variants: names of those that the configuration has and that do not run.
    """

    name: str
    region: str
    arn: str = ""
    status: str
    config: str = ""
    pending_config: str = ""
    created: datetime
    changed: datetime
    failure: str = ""
    variants: tuple[VariantDescription, ...]
    missing_variants: tuple[str, ...] = ()


def describe_endpoint(endpoint: str, region: str, *, with_models: bool = False) -> EndpointDescription:
    """Return an endpoint and its variants.

    Args:
        endpoint: its name.
        region: where it is.
        with_models: whether to describe the models of the variants, too.

    Raises:
        UsageError: there is no such endpoint in the region, or it is no name of one.
        EnvironmentFault: SageMaker cannot be asked, or does not allow it.
    """
    listing = f"aws sagemaker list-endpoints --region {region}"
    if _NAME.fullmatch(endpoint) is None:
        raise UsageError(
            f"{endpoint!r} is no name of an endpoint",
            remedy=f"it has letters, digits, hyphens, at most 63; list them: {listing}",
        )
    service = AwsService(
        "sagemaker",
        f"SageMaker in {region}",
        region=region,
        settings="the region and the network",
        remedy=f"list the endpoints of the region: {listing}; or name another --region",
    )
    try:
        running = service.call("describe_endpoint", EndpointName=endpoint)
        config = running.get("EndpointConfigName", "")
        configured = _find(service, "describe_endpoint_config", EndpointConfigName=config) if config else {}
        description = _endpoint(endpoint, region, running, configured)
        if not with_models:
            return description
        variants = tuple(_with_model(service, variant) for variant in description.variants)
        return description.model_copy(update={"variants": variants})
    finally:
        service.close()


def _find(service: AwsService, operation: str, **parameters: str) -> dict[str, Any]:
    """Return what SageMaker describes; empty if the resource does not exist."""
    try:
        return dict(service.call(operation, **parameters))
    except UsageError:
        return {}


def _endpoint(name: str, region: str, running: dict[str, Any], configured: dict[str, Any]) -> EndpointDescription:
    variants: list[VariantDescription] = []
    missing: list[str] = []
    for kind, shadow in (("ProductionVariants", False), ("ShadowProductionVariants", True)):
        in_config = {row["VariantName"]: row for row in configured.get(kind, [])}
        in_service = {row["VariantName"]: row for row in running.get(kind, [])}
        missing += [variant for variant in in_config if in_service and variant not in in_service]
        variants += [
            _variant(variant, in_service.get(variant, {}), in_config.get(variant, {}), shadow=shadow)
            for variant in in_service or in_config
        ]
    return EndpointDescription(
        name=name,
        region=region,
        arn=running["EndpointArn"],
        status=running["EndpointStatus"],
        config=running.get("EndpointConfigName", ""),
        pending_config=running.get("PendingDeploymentSummary", {}).get("EndpointConfigName", ""),
        created=running["CreationTime"].astimezone(UTC),
        changed=running["LastModifiedTime"].astimezone(UTC),
        failure=running.get("FailureReason", ""),
        variants=tuple(variants),
        missing_variants=tuple(missing),
    )


def _variant(name: str, running: dict[str, Any], configured: dict[str, Any], *, shadow: bool) -> VariantDescription:
    images = [image.get("SpecifiedImage", "") for image in running.get("DeployedImages", [])]
    return VariantDescription(
        name=name,
        shadow=shadow,
        weight=running.get("CurrentWeight"),
        desired_weight=running.get("DesiredWeight"),
        configured_weight=configured.get("InitialVariantWeight"),
        instances=running.get("CurrentInstanceCount"),
        desired_instances=running.get("DesiredInstanceCount"),
        instance_type=configured.get("InstanceType", ""),
        images=tuple(image for image in images if image),
        states=tuple(map(_state, running.get("VariantStatus", []))),
        model_name=configured.get("ModelName", ""),
    )


def _state(state: dict[str, Any]) -> str:
    message = state.get("StatusMessage", "")
    return f"{state['Status']}: {message}" if message else str(state["Status"])


def _with_model(service: AwsService, variant: VariantDescription) -> VariantDescription:
    document = _find(service, "describe_model", ModelName=variant.model_name) if variant.model_name else {}
    if not document:
        return variant
    container: dict[str, Any] = document.get("PrimaryContainer") or next(iter(document.get("Containers", [])), {})
    source = container.get("ModelDataSource", {}).get("S3DataSource", {})
    model = VariantModel(
        name=variant.model_name,
        arn=document["ModelArn"],
        image=container.get("Image", ""),
        data=container.get("ModelDataUrl") or source.get("S3Uri", ""),
        multi_model=container.get("Mode") == "MultiModel",
    )
    return variant.model_copy(update={"model": model})
