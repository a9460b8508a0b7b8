"""The status of an endpoint for a person: what it serves, how it scales, and what happened last."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from plansmith.records.model import Record
from plansmith.sagemaker.deployment.account import Account
from plansmith.sagemaker.deployment.current import ScalingState, is_owned, read_scaling
from plansmith.sagemaker.endpoint.auto_scaling import NAMESPACE, SERVICE, resource_id
from plansmith.sagemaker.endpoint.desired import RELEASES_TAG, parse_releases

_MAX_EVENTS = 5


class ModelStatus(Record):
    """The model of a variant.

    Attributes:
        name: its name.
        image: the container's image.
        data: its archive; of a multi-model variant, the prefix of its archives.
        multi_model: whether it serves many archives.
        releases: what its archives were made of, as MODEL@VERSION.
        more_releases: how many more there are than its tag has room for.
    """

    name: str
    image: str = ""
    data: str = ""
    multi_model: bool = False
    releases: tuple[str, ...] = ()
    more_releases: int = 0


class VariantStatus(Record):
    """A variant as it runs.

    Attributes:
        name: its name.
        is_shadow: whether it is a shadow variant.
        weight: its weight now.
        instances: how many instances it has.
        desired_instances: how many it will have.
        instance_type: their type.
        states: what happens to its instances.
        min_instances: the fewest instances that it scales to; None where it does not scale.
        max_instances: the most.
        model: its model; None where SageMaker has none for it.
    """

    name: str
    is_shadow: bool = False
    weight: float | None = None
    instances: int | None = None
    desired_instances: int | None = None
    instance_type: str = ""
    states: tuple[str, ...] = ()
    min_instances: int | None = None
    max_instances: int | None = None
    model: ModelStatus | None = None


class Event(Record):
    """Something that happened to an endpoint.

    Attributes:
        time: when.
        message: what.
    """

    time: datetime
    message: str


class EndpointStatus(Record):
    """An endpoint.

    Attributes:
        name: its name.
        region: its region.
        status: SageMaker's word for its state.
        is_owned: whether plansmith created it.
        created: when it was created.
        changed: when it was last changed.
        config: the configuration that it serves.
        pending_config: the configuration that it changes to; empty where it does not.
        failure: why it failed.
        variants: the production variants, then the shadow variants.
        events: the last ones, newest first.
    """

    name: str
    region: str
    status: str
    is_owned: bool
    created: datetime
    changed: datetime
    config: str
    pending_config: str = ""
    failure: str = ""
    variants: tuple[VariantStatus, ...]
    events: tuple[Event, ...] = ()


def read_status(account: Account) -> EndpointStatus | None:
    """The status of the account's endpoint; None where there is none.

    Raises:
        EnvironmentFault: AWS cannot be asked, or does not allow it.
    """
    name = account.spec.name
    description = account.find("describe_endpoint", EndpointName=name)
    if description is None:
        return None
    config = description.get("EndpointConfigName", "")
    configuration = account.find("describe_endpoint_config", EndpointConfigName=config) if config else None
    names = [row["VariantName"] for row in _rows(description, configuration or {}, "ProductionVariants")]
    scaling = read_scaling(account, name, names)
    return EndpointStatus(
        name=name,
        region=account.region,
        status=description["EndpointStatus"],
        is_owned=is_owned(account.tags(description["EndpointArn"]), name),
        created=description["CreationTime"].astimezone(UTC),
        changed=description["LastModifiedTime"].astimezone(UTC),
        config=config,
        pending_config=description.get("PendingDeploymentSummary", {}).get("EndpointConfigName", ""),
        failure=description.get("FailureReason", ""),
        variants=tuple(_variants(account, description, configuration or {}, scaling)),
        events=_events(account, description, sorted(scaling)),
    )


def _rows(description: dict[str, Any], configuration: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The variants of a kind, with what the endpoint and its configuration say of them; those that run go first."""
    configured = {row["VariantName"]: row for row in configuration.get(kind, ())}
    running = {row["VariantName"]: row for row in description.get(kind, ())}
    return [configured.get(name, {}) | running.get(name, {}) for name in running or configured]


def _variants(
    account: Account, description: dict[str, Any], configuration: dict[str, Any], scaling: dict[str, ScalingState]
) -> Sequence[VariantStatus]:
    variants = []
    for kind in ("ProductionVariants", "ShadowProductionVariants"):
        for row in _rows(description, configuration, kind):
            limits = scaling[row["VariantName"]].limits if row["VariantName"] in scaling else {}
            variants.append(
                VariantStatus(
                    name=row["VariantName"],
                    is_shadow=kind.startswith("Shadow"),
                    weight=row.get("CurrentWeight"),
                    instances=row.get("CurrentInstanceCount"),
                    desired_instances=row.get("DesiredInstanceCount"),
                    instance_type=row.get("InstanceType", ""),
                    states=tuple(map(_state, row.get("VariantStatus", ()))),
                    min_instances=limits.get("MinCapacity"),
                    max_instances=limits.get("MaxCapacity"),
                    model=_model(account, row.get("ModelName", "")),
                )
            )
    return variants


def _state(state: dict[str, Any]) -> str:
    message = state.get("StatusMessage", "")
    return f"{state['Status']}: {message}" if message else str(state["Status"])


def _model(account: Account, name: str) -> ModelStatus | None:
    found = account.find("describe_model", ModelName=name) if name else None
    if found is None:
        return None
    container: dict[str, Any] = found.get("PrimaryContainer") or next(iter(found.get("Containers", [])), {})
    source = container.get("ModelDataSource", {}).get("S3DataSource", {})
    releases, more = parse_releases(account.tags(found["ModelArn"]).get(RELEASES_TAG, ""))
    return ModelStatus(
        name=name,
        image=container.get("Image", ""),
        data=container.get("ModelDataUrl") or source.get("S3Uri", ""),
        multi_model=container.get("Mode") == "MultiModel",
        releases=releases,
        more_releases=more,
    )


def _events(account: Account, description: dict[str, Any], scaled: list[str]) -> tuple[Event, ...]:
    """The changes of an endpoint and the scaling of some variants, newest first."""
    created, changed = (description[name].astimezone(UTC) for name in ("CreationTime", "LastModifiedTime"))
    events = [Event(time=created, message="created")]
    if changed != created:
        failure = f": {description['FailureReason']}" if description.get("FailureReason") else ""
        events.append(Event(time=changed, message=f"became {description['EndpointStatus']}{failure}"))
    for variant in scaled:
        answer = account.call(
            "describe_scaling_activities",
            SERVICE,
            ServiceNamespace=NAMESPACE,
            ResourceId=resource_id(account.spec.name, variant),
            MaxResults=_MAX_EVENTS,
        )
        events += [
            Event(time=activity["StartTime"].astimezone(UTC), message=f"{variant}: {activity['Description']}")
            for activity in answer["ScalingActivities"]
        ]
    return tuple(sorted(events, key=lambda event: event.time, reverse=True)[:_MAX_EVENTS])
