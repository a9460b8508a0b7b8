"""The current state of an endpoint in AWS."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from plansmith.errors import RepositoryError
from plansmith.records.model import Record
from plansmith.sagemaker.deployment.account import Account
from plansmith.sagemaker.endpoint.auto_scaling import NAMESPACE, POLICY_FIELD, SERVICE, resource_id
from plansmith.sagemaker.endpoint.desired import OWNER_TAG, DesiredState

IN_SERVICE = "InService"
DELETING = "Deleting"
TRANSITIONAL = ("Creating", "Updating", "SystemUpdating", "RollingBack")
"""States of an endpoint that end by themselves."""


class EndpointState(Record):
    """An endpoint.

    Attributes:
        arn: its ARN.
        status: SageMaker's word for its state.
        config: the configuration that it serves.
        pending_config: the configuration that it changes to; empty where it does not.
        failure: why it failed.
        tags: its tags.
        instances: the desired number of instances of each variant.
    """

    arn: str
    status: str
    config: str
    pending_config: str = ""
    failure: str = ""
    tags: dict[str, str] = Field(default_factory=dict)
    instances: dict[str, int] = Field(default_factory=dict)


class ResourceState(Record):
    """A model or an endpoint configuration.

    Attributes:
        arn: its ARN.
        tags: its tags.
    """

    arn: str
    tags: dict[str, str] = Field(default_factory=dict)


class ScalingState(Record):
    """How a variant scales.

    Attributes:
        limits: MinCapacity and MaxCapacity.
        policies: the configurations of its target-tracking policies, by name.
    """

    limits: dict[str, Any]
    policies: dict[str, dict[str, Any]] = Field(default_factory=dict)


class CurrentState(Record):
    """What there is in AWS of an endpoint.

    Attributes:
        endpoint: the endpoint; None where there is none.
        models: those of the desired models that exist, by name.
        configs: the desired configuration, if it exists, by name.
        uploaded: the keys of the desired archives that are in the bucket.
        scaling: by variant.
        instance_types: those of the configuration that the endpoint serves, by variant.
        is_assumed: AWS was not asked, and nothing is assumed to exist.
    """

    endpoint: EndpointState | None = None
    models: dict[str, ResourceState] = Field(default_factory=dict)
    configs: dict[str, ResourceState] = Field(default_factory=dict)
    uploaded: tuple[str, ...] = ()
    scaling: dict[str, ScalingState] = Field(default_factory=dict)
    instance_types: dict[str, str] = Field(default_factory=dict)
    is_assumed: bool = False


def read_current_state(account: Account, desired: DesiredState) -> CurrentState:
    """What there is of all that is desired.

    Raises:
        EnvironmentFault: AWS cannot be asked, or does not allow it.
        RepositoryError: a bucket does not exist, is in another region or cannot be read; or another content has the
            key of an archive.
    """
    account.require_buckets()
    endpoint = find_endpoint(account, desired.endpoint)
    types = read_instance_types(account, endpoint.config) if endpoint else {}
    return CurrentState(
        endpoint=endpoint,
        models=_resources(account, "model", [call.parameters["ModelName"] for call in desired.models]),
        configs=_resources(account, "endpoint_config", [desired.config_name]),
        uploaded=tuple(upload.key for upload in desired.uploads if account.is_uploaded(upload)),
        scaling=read_scaling(account, desired.endpoint, sorted({*types, *desired.instance_types})) if endpoint else {},
        instance_types=types,
    )


def require_owned(desired: DesiredState, current: CurrentState) -> None:
    """Check that nothing that exists belongs to somebody else.

    Raises:
        RepositoryError: something was not created by plansmith.
    """
    foreign = [f"model {name}" for name, state in current.models.items() if not is_owned(state.tags, desired.endpoint)]
    foreign += [
        f"endpoint configuration {name}"
        for name, state in current.configs.items()
        if not is_owned(state.tags, desired.endpoint)
    ]
    if current.endpoint is not None and not is_owned(current.endpoint.tags, desired.endpoint):
        foreign.append(f"endpoint {desired.endpoint}")
    if foreign:
        raise RepositoryError(
            f"{', '.join(foreign)} exists already and was not created by plansmith: it has no tag {OWNER_TAG}",
            remedy="choose another `name` in the endpoint's file",
        )


def find_endpoint(account: Account, name: str) -> EndpointState | None:
    """An endpoint; None where there is none."""
    description = account.find("describe_endpoint", EndpointName=name)
    if description is None:
        return None
    return EndpointState(
        arn=description["EndpointArn"],
        status=description["EndpointStatus"],
        config=description.get("EndpointConfigName", ""),
        pending_config=description.get("PendingDeploymentSummary", {}).get("EndpointConfigName", ""),
        failure=description.get("FailureReason", ""),
        tags=account.tags(description["EndpointArn"]),
        instances={
            variant["VariantName"]: variant["DesiredInstanceCount"]
            for variant in all_variants(description)
            if "DesiredInstanceCount" in variant
        },
    )


def all_variants(description: dict[str, Any]) -> list[dict[str, Any]]:
    """The variants in SageMaker's description of an endpoint or configuration, the shadow variants last."""
    return [*description.get("ProductionVariants", ()), *description.get("ShadowProductionVariants", ())]


def config_names(description: dict[str, Any]) -> set[str]:
    """The configurations that an endpoint serves and changes to, in SageMaker's description of it."""
    pending = description.get("PendingDeploymentSummary", {}).get("EndpointConfigName")
    return {name for name in (description.get("EndpointConfigName"), pending) if name}


def read_instance_types(account: Account, config: str) -> dict[str, str]:
    """The instance types of a configuration by variant; none where it does not exist any more."""
    description = account.find("describe_endpoint_config", EndpointConfigName=config) if config else None
    return {variant["VariantName"]: variant.get("InstanceType", "") for variant in all_variants(description or {})}


def read_scaling(account: Account, endpoint: str, variants: list[str]) -> dict[str, ScalingState]:
    """How those of some variants scale that do."""
    names = {resource_id(endpoint, variant): variant for variant in variants}
    if not names:
        return {}
    targets = account.pages(
        "describe_scalable_targets", "ScalableTargets", SERVICE, ServiceNamespace=NAMESPACE, ResourceIds=list(names)
    )
    return {
        names[target["ResourceId"]]: ScalingState(
            limits={name: target[name] for name in ("MinCapacity", "MaxCapacity")},
            policies=_policies(account, target["ResourceId"]),
        )
        for target in targets
    }


def _policies(account: Account, resource: str) -> dict[str, dict[str, Any]]:
    policies = account.pages(
        "describe_scaling_policies", "ScalingPolicies", SERVICE, ServiceNamespace=NAMESPACE, ResourceId=resource
    )
    return {row["PolicyName"]: row[POLICY_FIELD] for row in policies if row["PolicyType"] == "TargetTrackingScaling"}


def is_owned(tags: dict[str, str], endpoint: str) -> bool:
    """Whether tags say that something was created for an endpoint by plansmith."""
    return tags.get(OWNER_TAG) == endpoint


def _resources(account: Account, kind: str, names: list[str]) -> dict[str, ResourceState]:
    """Those of some models or configurations that exist."""
    field = "".join(part.capitalize() for part in kind.split("_"))
    states: dict[str, ResourceState] = {}
    for name in names:
        description = account.find(f"describe_{kind}", **{f"{field}Name": name})
        if description is not None:
            arn = description[f"{field}Arn"]
            states[name] = ResourceState(arn=arn, tags=account.tags(arn))
    return states
