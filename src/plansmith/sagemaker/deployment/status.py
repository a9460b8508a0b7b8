"""The status of an endpoint for a person: what it serves, how it scales, and what happened last."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from plansmith.errors import EnvironmentFault, UsageError
from plansmith.records.model import Record
from plansmith.sagemaker.deployment.account import Account, is_missing
from plansmith.sagemaker.deployment.current import ScalingState, is_owned, read_scaling
from plansmith.sagemaker.description import EndpointDescription, VariantDescription, describe_endpoint
from plansmith.sagemaker.endpoint.auto_scaling import NAMESPACE, SERVICE, resource_id
from plansmith.sagemaker.endpoint.desired import RELEASES_TAG, parse_releases

_MAX_EVENTS = 5


class VariantStatus(VariantDescription):
    """A variant, with what plansmith knows of it.

    Attributes:
        releases: what its archives were made of, as MODEL@VERSION.
        more_releases: how many more there are than the model's tag has room for.
        min_instances: the fewest instances that it scales to; None where it does not scale.
        max_instances: the most.
    """

    releases: tuple[str, ...] = ()
    more_releases: int = 0
    min_instances: int | None = None
    max_instances: int | None = None


class Event(Record):
    """Something that happened to an endpoint.

    Attributes:
        time: when.
        message: what.
    """

    time: datetime
    message: str


class EndpointStatus(Record):
    """An endpoint, with what plansmith knows of it.

    Attributes:
        description: SageMaker's.
        is_owned: whether plansmith created it.
        variants: the production variants, then the shadow variants.
        events: the last ones, newest first.
        unknown: what could not be read, and why.
    """

    description: EndpointDescription
    is_owned: bool
    variants: tuple[VariantStatus, ...]
    events: tuple[Event, ...] = ()
    unknown: tuple[str, ...] = ()


def read_status(account: Account) -> EndpointStatus | None:
    """The status of the account's endpoint; None where there is none.

    Raises:
        EnvironmentFault: AWS cannot be asked, or does not allow it.
    """
    name = account.spec.name
    try:
        description = describe_endpoint(name, account.region, with_models=True)
    except (UsageError, EnvironmentFault) as error:
        if is_missing(error):
            return None
        raise
    unknown: list[str] = []
    scaling: dict[str, ScalingState] = {}
    activities: list[Event] = []
    try:
        scaling = read_scaling(account, name, [variant.name for variant in description.variants if not variant.shadow])
        activities = [event for variant in scaling for event in _scaling_events(account, name, variant)]
    except EnvironmentFault as error:  # auto scaling is a service of its own, with permissions of its own
        unknown.append(f"auto scaling: {error.message}; {error.remedy}")
    events = sorted([*_changes(description), *activities], key=lambda event: event.time, reverse=True)
    return EndpointStatus(
        description=description,
        is_owned=is_owned(account.tags(description.arn), name),
        variants=tuple(_variant_status(account, variant, scaling) for variant in description.variants),
        events=tuple(events[:_MAX_EVENTS]),
        unknown=tuple(unknown),
    )


def _variant_status(account: Account, variant: VariantDescription, scaling: dict[str, ScalingState]) -> VariantStatus:
    limits = scaling[variant.name].limits if variant.name in scaling else {}
    tag = account.tags(variant.model.arn).get(RELEASES_TAG, "") if variant.model else ""
    releases, more = parse_releases(tag)
    return VariantStatus(
        **dict(variant),
        releases=releases,
        more_releases=more,
        min_instances=limits.get("MinCapacity"),
        max_instances=limits.get("MaxCapacity"),
    )


def _changes(endpoint: EndpointDescription) -> Iterator[Event]:
    yield Event(time=endpoint.created, message="created")
    if endpoint.changed != endpoint.created:
        failure = f": {endpoint.failure}" if endpoint.failure else ""
        yield Event(time=endpoint.changed, message=f"became {endpoint.status}{failure}")


def _scaling_events(account: Account, endpoint: str, variant: str) -> Iterator[Event]:
    answer = account.call(
        "describe_scaling_activities",
        SERVICE,
        ServiceNamespace=NAMESPACE,
        ResourceId=resource_id(endpoint, variant),
        MaxResults=_MAX_EVENTS,
    )
    for activity in answer["ScalingActivities"]:
        yield Event(time=activity["StartTime"].astimezone(UTC), message=f"{variant}: {activity['Description']}")
