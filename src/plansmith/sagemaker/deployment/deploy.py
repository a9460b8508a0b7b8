"""Deployment: from the endpoint file to a checked plan with its smoke test, and to the deployed endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, UsageError
from plansmith.records.model import Record
from plansmith.sagemaker.deployment.account import Account, is_missing
from plansmith.sagemaker.deployment.apply import Deployment, SmokeRequest, smoke_requests
from plansmith.sagemaker.deployment.current import (
    DELETING,
    TRANSITIONAL,
    CurrentState,
    Polling,
    ScalingState,
    find_endpoint,
    is_owned,
    read_current_state,
    read_instance_types,
    read_scaling,
    wait_for_endpoint,
)
from plansmith.sagemaker.deployment.plan import DeploymentPlan, make_plan
from plansmith.sagemaker.description import EndpointDescription, VariantDescription, describe_endpoint
from plansmith.sagemaker.endpoint.checks import require_serveable
from plansmith.sagemaker.endpoint.desired import (
    NAMESPACE,
    OWNER_TAG,
    RELEASES_TAG,
    SERVICE,
    DesiredState,
    VariantArchives,
    deregister_call,
    desired_state,
    name_stem,
    parse_releases,
    plan_variant_archives,
    planned_archives,
    resource_id,
    write_variant_archives,
)
from plansmith.sagemaker.endpoint.loader import read_endpoint
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.sagemaker.registry import with_approved_releases
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.system.aws.client import has_credentials
from plansmith.system.aws.service import Call, require_valid
from plansmith.system.tasks import Progress

_MAX_EVENTS = 5


@dataclass(frozen=True)
class PlannedDeployment:
    """Checked deployment with its plan.

    Attributes:
        spec: the endpoint.
        desired: what has to be in AWS.
        plan: the requests that lead there.
        requests: of the smoke test.
        is_assumed: AWS was not asked, and nothing is assumed to exist.
    """

    spec: EndpointSpec
    desired: DesiredState
    plan: DeploymentPlan
    requests: list[SmokeRequest]
    is_assumed: bool

    @property
    def untested(self) -> list[str]:
        """The production variants that no smoke test request reaches."""
        variants = {request.variant for request in self.requests}
        return [variant.name for variant in self.spec.variants if not variants & {"", variant.name}]


def read_released_endpoint(path: Path) -> EndpointSpec:
    """Read an endpoint file, with the approved releases of variants that name model package groups.

    Args:
        path: the file.

    Raises:
        PlansmithError: as for `read_endpoint` and `with_approved_releases`.
    """
    return with_approved_releases(read_endpoint(path))


def prepare_archives(spec: EndpointSpec, output: Path, *, dry_run: bool, progress: Moved = untold) -> VariantArchives:
    """Write the archives of all variants, unless they exist.

    Args:
        spec: the endpoint.
        output: the folder that takes them.
        dry_run: they are only planned, and have no digests.
        progress: told how many more bytes were read.

    Raises:
        EngineError: a variant cannot serve its archives, of which nothing was written.
        PlansmithError: as for `plan_variant_archives` and `write_variant_archives`.
    """
    plans = plan_variant_archives(spec, output)
    archives = planned_archives(plans)
    require_serveable(spec, archives)
    return archives if dry_run else write_variant_archives(plans, progress)


def plan_deployment(
    spec: EndpointSpec, archives: VariantArchives, account: Account, *, dry_run: bool
) -> PlannedDeployment:
    """Check a deployment and plan it from the current state in AWS; changes nothing.

    Args:
        spec: the endpoint.
        archives: of `prepare_archives`.
        account: of the endpoint; a dry run without credentials does not ask it.
        dry_run: whether nothing will be done.

    Raises:
        UsageError: AWS would refuse something in the spec, or the execution role cannot be used.
        RepositoryError: something belongs to somebody else, the endpoint is in a state in which it cannot be changed,
            or the bucket cannot be used.
        EnvironmentFault: AWS cannot be asked, or does not allow it.
    """
    desired = desired_state(spec, archives)
    current = CurrentState(is_assumed=True)
    if not dry_run or has_credentials():
        account.require_role()
        current = read_current_state(account, desired)
    plan = make_plan(desired, current)
    for call in plan.calls:
        require_valid(call)
    return PlannedDeployment(spec, desired, plan, smoke_requests(spec, archives, desired), current.is_assumed)


class EndpointOutcome(Record):
    """Outcome of one endpoint among several.

    Attributes:
        file: its file.
        endpoint: its name; empty where the file cannot be read.
        config: the endpoint configuration that it serves.
        requests: how many were needed; none where it was as its file says.
        error: why it could not be deployed; empty where it was.
    """

    file: str
    endpoint: str = ""
    config: str = ""
    requests: int = 0
    error: str = ""

    @property
    def summary(self) -> str:
        """The outcome in one line."""
        if self.error:
            return f"failed: {self.error}"
        return f"serves {self.config}" + ("" if self.requests else ", as before")

    def row(self) -> dict[str, str]:
        """Return the outcome as a table row."""
        return {"file": Path(self.file).name, "endpoint": self.endpoint, "outcome": self.summary}


def failed_outcome(path: Path, error: PlansmithError) -> EndpointOutcome:
    """Return the outcome of an endpoint that could not be deployed, with its name if its file gives one.

    Args:
        path: the file.
        error: why not.
    """
    try:
        name = read_endpoint(path).name
    except PlansmithError:
        name = ""
    return EndpointOutcome(file=str(path), endpoint=name, error=error.message)


def deploy_endpoint(path: Path, output: Path, polling: Polling, progress: Progress) -> EndpointOutcome:
    """Deploy an endpoint as its file describes.

    Args:
        path: the file.
        output: the folder that takes the archives.
        polling: how it is waited for.
        progress: told each step.

    Raises:
        PlansmithError: as for `read_released_endpoint`, `prepare_archives`, `plan_deployment` and `Deployment.apply`.
    """
    spec = read_released_endpoint(path)
    archives = prepare_archives(spec, output, dry_run=False)
    with Account(spec) as account:
        planned = plan_deployment(spec, archives, account, dry_run=False)
        Deployment(account, polling, progress).apply(planned.plan, planned.requests)
    plan = planned.plan
    requests = len(plan.uploads) + len(plan.calls)
    return EndpointOutcome(file=str(path), endpoint=spec.name, config=plan.config, requests=requests)


@dataclass(frozen=True)
class DeletionPlan:
    """Deletion plan of an endpoint.

    Attributes:
        calls: the requests, in their order.
        archives: the keys of archives, below the endpoint's prefix.
    """

    calls: list[Call]
    archives: list[str]

    @property
    def count(self) -> int:
        """The number of resources to delete."""
        return len(self.calls) + len(self.archives)


def plan_deletion(account: Account, *, with_archives: bool) -> DeletionPlan:
    """Plan the deletion; omits resources that do not exist or are already being deleted.

    Args:
        account: of the endpoint.
        with_archives: whether its archives are deleted, too.

    Raises:
        RepositoryError: plansmith did not create the endpoint, or it is changing.
    """
    name = account.spec.name
    calls: list[Call] = []
    endpoint = find_endpoint(account, name)
    if endpoint is not None:
        if not is_owned(endpoint.tags, name):
            raise RepositoryError(
                f"the endpoint {name} was not created by plansmith: it has no tag {OWNER_TAG}",
                remedy=f"its owner deletes it; see: aws sagemaker list-tags --resource-arn {endpoint.arn}",
            )
        if endpoint.status in TRANSITIONAL:
            raise RepositoryError(
                f"the endpoint {name} is {endpoint.status}, and SageMaker does not delete it now",
                remedy="wait until that is done (plansmith sagemaker status SPEC.yaml), and run the same command again",
                transient=True,
            )
    if endpoint is not None and endpoint.status != DELETING:
        variants = sorted(read_instance_types(account, endpoint.config))
        calls += [deregister_call(name, variant) for variant in read_scaling(account, name, variants)]
        calls.append(_delete_call("delete_endpoint", "EndpointName", name))
    for config in _owned_names(account, "endpoint_configs", "EndpointConfig"):
        calls.append(_delete_call("delete_endpoint_config", "EndpointConfigName", config))
    for model in _owned_names(account, "models", "Model"):
        calls.append(_delete_call("delete_model", "ModelName", model))
    return DeletionPlan(calls, account.archive_keys() if with_archives else [])


def delete(account: Account, plan: DeletionPlan, polling: Polling, progress: Progress) -> None:
    """Execute a deletion. The resources that the endpoint needs are deleted after it.

    Args:
        account: of the endpoint.
        plan: of `plan_deletion`.
        polling: how the endpoint is waited for.
        progress: told each step.

    Raises:
        StillPendingError: the endpoint takes longer than the limit to go.
        RepositoryError: it cannot be deleted.
        EnvironmentFault: it is not allowed, or AWS cannot be asked.
    """
    if not any(call.operation == "delete_endpoint" for call in plan.calls):
        _wait_until_gone(account, polling, progress)
    for call in plan.calls:
        progress(call.summary)
        account.execute(call)
        if call.operation == "delete_endpoint":
            _wait_until_gone(account, polling, progress)
    for key in plan.archives:
        progress(f"delete {account.spec.archive_prefix}{key}")
        account.remove_archive(key)


def _wait_until_gone(account: Account, polling: Polling, progress: Progress) -> None:
    left = wait_for_endpoint(account, account.spec.name, polling, progress)
    if left is not None:
        raise RepositoryError(
            f"the endpoint {account.spec.name} is {left['EndpointStatus']}: {left.get('FailureReason', '')}",
            remedy="run the same command again",
        )


def _owned_names(account: Account, kind: str, field: str) -> Iterator[str]:
    """Return names of models or configurations that plansmith created for the endpoint."""
    name = account.spec.name
    for row in account.pages(f"list_{kind}", f"{field}s", NameContains=name_stem(name)):
        if is_owned(account.tags(row[f"{field}Arn"]), name):
            yield row[f"{field}Name"]


def _delete_call(operation: str, field: str, name: str) -> Call:
    return Call(service="sagemaker", operation=operation, parameters={field: name})


class VariantStatus(VariantDescription):
    """Status of a variant, with plansmith's own facts on it.

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
    """Event of an endpoint.

    Attributes:
        time: when.
        message: what.
    """

    time: datetime
    message: str


class EndpointStatus(Record):
    """Status of an endpoint, with plansmith's own facts on it.

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
    """Read the status of the account's endpoint; None if it does not exist.

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
