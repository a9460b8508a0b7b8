"""Current state of an endpoint in AWS."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import Field

from plansmith.errors import EnvironmentFault, RepositoryError
from plansmith.records.model import Record
from plansmith.sagemaker.deployment.account import Account
from plansmith.sagemaker.endpoint.desired import NAMESPACE, OWNER_TAG, POLICY_FIELD, SERVICE, DesiredState, resource_id
from plansmith.system.tasks import Progress

IN_SERVICE = "InService"
DELETING = "Deleting"
TRANSITIONAL = ("Creating", "Updating", "SystemUpdating", "RollingBack")
"""States of an endpoint that end by themselves."""

T = TypeVar("T")
_MAX_FAULTS = 5


class EndpointState(Record):
    """State of an endpoint.

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
    """State of a model or an endpoint configuration.

    Attributes:
        arn: its ARN.
        tags: its tags.
    """

    arn: str
    tags: dict[str, str] = Field(default_factory=dict)


class ScalingState(Record):
    """Scaling state of a variant.

    Attributes:
        limits: MinCapacity and MaxCapacity.
        policies: the configurations of its target-tracking policies, by name.
    """

    limits: dict[str, Any]
    policies: dict[str, dict[str, Any]] = Field(default_factory=dict)


class CurrentState(Record):
    """Current state of an endpoint in AWS.

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
    """Read the current state of all desired resources.

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
    """Require that no existing resource belongs to another owner.

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
    """Return an endpoint; None if it does not exist."""
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
    """Return the variants in SageMaker's description of an endpoint or configuration, shadow variants last."""
    return [*description.get("ProductionVariants", ()), *description.get("ShadowProductionVariants", ())]


def config_names(description: dict[str, Any]) -> set[str]:
    """Return the configurations that an endpoint serves or changes to, in SageMaker's description of it."""
    pending = description.get("PendingDeploymentSummary", {}).get("EndpointConfigName")
    return {name for name in (description.get("EndpointConfigName"), pending) if name}


def read_instance_types(account: Account, config: str) -> dict[str, str]:
    """Read the instance types of a configuration by variant; none if it no longer exists."""
    description = account.find("describe_endpoint_config", EndpointConfigName=config) if config else None
    return {variant["VariantName"]: variant.get("InstanceType", "") for variant in all_variants(description or {})}


def read_scaling(account: Account, endpoint: str, variants: list[str]) -> dict[str, ScalingState]:
    """Read the scaling of those variants that have auto scaling."""
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
    """Whether tags mark a resource as created by plansmith for an endpoint."""
    return tags.get(OWNER_TAG) == endpoint


def _resources(account: Account, kind: str, names: list[str]) -> dict[str, ResourceState]:
    """Return those of several models or configurations that exist."""
    field = "".join(part.capitalize() for part in kind.split("_"))
    states: dict[str, ResourceState] = {}
    for name in names:
        description = account.find(f"describe_{kind}", **{f"{field}Name": name})
        if description is not None:
            arn = description[f"{field}Arn"]
            states[name] = ResourceState(arn=arn, tags=account.tags(arn))
    return states


class StillPendingError(Exception):
    """Time limit exceeded while an endpoint or job is still pending; it continues in AWS.

    Attributes:
        status: its state.
    """

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True)
class Polling:
    """Polling settings for waiting on an endpoint or job.

    Attributes:
        limit_seconds: how long.
        interval_seconds: the time between two requests.
    """

    limit_seconds: float = 3600
    interval_seconds: float = 15


@dataclass(frozen=True)
class Observation(Generic[T]):
    """Observation of a pending resource at one moment.

    Attributes:
        value: what AWS says of it.
        status: its state.
        line: its progress, for a person.
        is_pending: whether its state ends by itself.
    """

    value: T
    status: str
    line: str
    is_pending: bool


def wait_while_pending(observe: Callable[[], Observation[T]], polling: Polling, progress: Progress) -> T:
    """Wait until a resource leaves its transitional state.

    Args:
        observe: asks AWS for it.
        polling: how long and how often.
        progress: told what changed.

    Raises:
        StillPendingError: it takes longer than the limit.
        EnvironmentFault: AWS cannot be asked, several times in a row.
    """
    deadline = time.monotonic() + polling.limit_seconds
    faults, line, status = 0, "", "pending"
    while True:
        try:
            observation = observe()
        except EnvironmentFault as error:
            faults += 1
            if not error.transient or faults == _MAX_FAULTS:
                raise
        else:
            faults = 0
            if not observation.is_pending:
                return observation.value
            if observation.line != line:
                progress(observation.line)
            line, status = observation.line, observation.status
        if time.monotonic() >= deadline:
            raise StillPendingError(status)
        time.sleep(polling.interval_seconds)


def wait_for_endpoint(account: Account, endpoint: str, polling: Polling, progress: Progress) -> dict[str, Any] | None:
    """Wait until an endpoint leaves its transitional state.

    Args:
        account: of the endpoint.
        endpoint: its name.
        polling: how long and how often.
        progress: told what changed.

    Returns:
        SageMaker's description of it; None when it is gone.

    Raises:
        StillPendingError, EnvironmentFault: as `wait_while_pending`.
    """

    def observe() -> Observation[dict[str, Any] | None]:
        description = account.find("describe_endpoint", EndpointName=endpoint)
        if description is None:
            return Observation(None, "", "", is_pending=False)
        status = description["EndpointStatus"]
        return Observation(description, status, _progress_line(description), status in (*TRANSITIONAL, DELETING))

    return wait_while_pending(observe, polling, progress)


def _progress_line(description: dict[str, Any]) -> str:
    """Format the states of an endpoint and its variants: `Updating: main 1 of 2 instances (Creating)`."""
    pending = description.get("PendingDeploymentSummary", {})
    parts = []
    for variant in pending.get("ProductionVariants") or description.get("ProductionVariants", ()):
        current, desired = variant.get("CurrentInstanceCount"), variant.get("DesiredInstanceCount")
        instances = f" {current} of {desired} instances" if None not in (current, desired) else ""
        states = ", ".join(state["Status"] for state in variant.get("VariantStatus", ()))
        parts.append(f"{variant['VariantName']}{instances}{f' ({states})' if states else ''}")
    status = str(description["EndpointStatus"])
    return f"{status}: {'; '.join(parts)}" if parts else status
