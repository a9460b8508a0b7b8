"""Deployment plan: the requests that lead from the current to the desired state of an endpoint; a pure function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from plansmith.errors import RepositoryError
from plansmith.records.model import Record
from plansmith.sagemaker.deployment.current import (
    DELETING,
    IN_SERVICE,
    TRANSITIONAL,
    CurrentState,
    EndpointState,
    ScalingState,
    require_owned,
)
from plansmith.sagemaker.endpoint.desired import (
    POLICY_FIELD,
    POLICY_PREFIX,
    RELEASES_TAG,
    VERIFIED_TAG,
    ArchiveUpload,
    DesiredState,
    delete_policy_call,
    deregister_call,
    policy_call,
    register_call,
    tag_list,
)
from plansmith.system.aws.service import Call

_CHANGEABLE = (IN_SERVICE, "OutOfService")


class DeploymentPlan(Record):
    """Deployment plan: its requests in order.

    Attributes:
        endpoint: its name.
        config: the configuration that it will serve.
        uploads: the archives to upload, first of all.
        before: the requests up to the one that begins to create or change the endpoint.
        waits: whether the endpoint has to come into service then.
        after: the requests once it is in service.
        tagging: the requests once it passed its smoke test, which note that.
        served: the configuration that the endpoint serves now; empty without an endpoint.
        previous: the configuration to roll back to; empty for none.
        retention: the parameters of `update_endpoint` that keep the number of instances, forth and back.
        resets: variants that scale, and start again with the number of instances in the file.
        unscaling: the requests that end what `after` began, before a rollback.
        restoring: the requests that let variants scale as before, after a rollback.
    """

    endpoint: str
    config: str
    uploads: tuple[ArchiveUpload, ...]
    before: tuple[Call, ...]
    waits: bool
    after: tuple[Call, ...]
    tagging: tuple[Call, ...] = ()
    served: str = ""
    previous: str = ""
    retention: dict[str, Any] = Field(default_factory=dict)
    resets: tuple[str, ...] = ()
    unscaling: tuple[Call, ...] = ()
    restoring: tuple[Call, ...] = ()

    @property
    def calls(self) -> tuple[Call, ...]:
        """All requests except the uploads."""
        return (*self.before, *self.after, *self.tagging)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.uploads or self.calls or self.waits)

    def begins_with(self, operation: str) -> bool:
        """Whether an operation is among the requests up to the one that starts to change the endpoint."""
        return any(call.operation == operation for call in self.before)


def make_plan(desired: DesiredState, current: CurrentState) -> DeploymentPlan:
    """Return the requests of a deployment; none if nothing has to change.

    Raises:
        RepositoryError: something belongs to somebody else, or the endpoint is in the wrong state.
    """
    require_owned(desired, current)
    endpoint = current.endpoint
    if endpoint is not None:
        _require_changeable(desired, endpoint)
    is_changing = endpoint is not None and endpoint.status in TRANSITIONAL
    goal = endpoint.config if endpoint else ""
    if is_changing and endpoint:
        goal = endpoint.pending_config or goal
    updates = goal != desired.config_name
    creations = [call for call in desired.models if call.parameters["ModelName"] not in current.models]
    creations += [desired.config] if desired.config_name not in current.configs else []
    unscaled = list(_unscaled_variants(desired, current, updates=updates))
    after = tuple(_scaling_changes(desired, current, unscaled))
    rescaled = {name for name, calls in desired.scaling.items() if set(map(id, calls)) & set(map(id, after))}
    retention = _retention(desired, current)
    scaled = sorted(set(desired.scaling) & set(current.scaling))
    return DeploymentPlan(
        endpoint=desired.endpoint,
        config=desired.config_name,
        uploads=tuple(upload for upload in desired.uploads if upload.key not in current.uploaded),
        before=(
            *creations,
            *(deregister_call(desired.endpoint, name) for name in unscaled),
            *_endpoint_changes(desired, endpoint, retention, updates=updates),
        ),
        waits=is_changing or updates,
        after=after,
        tagging=tuple(_tagging(desired, current)),
        served=endpoint.config if endpoint else "",
        previous=_previous(desired, endpoint) if endpoint else "",
        retention=retention,
        resets=tuple(scaled) if not retention and endpoint and updates else (),
        unscaling=tuple(deregister_call(desired.endpoint, name) for name in sorted(rescaled - set(current.scaling))),
        restoring=tuple(_restoring(desired.endpoint, current, sorted({*unscaled, *rescaled} & set(current.scaling)))),
    )


def _previous(desired: DesiredState, endpoint: EndpointState) -> str:
    """Return the current configuration; if it is the desired, unverified one, the last verified one."""
    if endpoint.config != desired.config_name:
        return endpoint.config
    verified = endpoint.tags.get(VERIFIED_TAG, "")
    return verified if verified != desired.config_name else ""


def _tagging(desired: DesiredState, current: CurrentState) -> Iterator[Call]:
    """Yield calls that tag the releases of models with changed archives, and the passed smoke test."""
    for call in desired.models:
        model = current.models.get(call.parameters["ModelName"])
        releases = next(tag for tag in call.parameters["Tags"] if tag["Key"] == RELEASES_TAG)
        if model is not None and model.tags.get(RELEASES_TAG) != releases["Value"]:
            yield _add_tags(model.arn, [releases])
    endpoint = current.endpoint
    if endpoint is None or endpoint.tags.get(VERIFIED_TAG) != desired.config_name:
        verified = tag_list({VERIFIED_TAG: desired.config_name})
        yield _add_tags(endpoint.arn if endpoint else desired.arn, verified)


def _endpoint_changes(
    desired: DesiredState, endpoint: EndpointState | None, retention: dict[str, Any], *, updates: bool
) -> Iterator[Call]:
    """Yield calls that create or update the endpoint and its tags; foreign tags are kept."""
    names = {"EndpointName": desired.endpoint, "EndpointConfigName": desired.config_name}
    if endpoint is None:
        yield _sagemaker("create_endpoint", {**names, "Tags": tag_list(desired.tags)})
        return
    tags = {name: value for name, value in desired.tags.items() if endpoint.tags.get(name) != value}
    if tags:
        yield _add_tags(endpoint.arn, tag_list(tags))
    if updates:
        yield _sagemaker("update_endpoint", {**names, **retention})


def _retention(desired: DesiredState, current: CurrentState) -> dict[str, Any]:
    """Return the parameters that retain the current instance counts of scaled variants.

    SageMaker keeps it for all variants or for none, and so only where the others have as many as they should:
    UpdateEndpoint in docs.aws.amazon.com/sagemaker/latest/APIReference.
    """
    scaled = set(desired.scaling) & set(current.scaling)
    goal, counts = desired.instance_counts, current.endpoint.instances if current.endpoint else {}
    if not scaled or set(goal) != set(counts) or any(goal[name] != counts[name] for name in set(goal) - scaled):
        return {}
    return {
        "RetainAllVariantProperties": True,
        "ExcludeRetainedVariantProperties": [{"VariantPropertyType": "DesiredWeight"}],
    }


def _unscaled_variants(desired: DesiredState, current: CurrentState, *, updates: bool) -> Iterator[str]:
    """Return variants that must not scale during the update: removed ones, and those with another instance type.

    docs.aws.amazon.com/sagemaker/latest/dg/endpoint-scaling-update.html
    """
    for name in current.scaling:
        before = current.instance_types.get(name)
        if name not in desired.scaling or (updates and before and before != desired.instance_types[name]):
            yield name


def _scaling_changes(desired: DesiredState, current: CurrentState, unscaled: list[str]) -> Iterator[Call]:
    """Yield calls that configure auto scaling of variants; none for what is already configured."""
    for name, calls in desired.scaling.items():
        state = current.scaling.get(name) if name not in unscaled else None
        policies = {call.parameters.get("PolicyName") for call in calls}
        own = {name for name in state.policies if name.startswith(POLICY_PREFIX)} if state else set()
        for policy in sorted(own - policies):
            yield delete_policy_call(desired.endpoint, name, policy)
        yield from (call for call in calls if not _is_in_effect(call, state))


def _is_in_effect(call: Call, state: ScalingState | None) -> bool:
    if state is None:
        return False
    parameters = call.parameters
    if "PolicyName" not in parameters:
        return all(state.limits.get(name) == parameters[name] for name in ("MinCapacity", "MaxCapacity"))
    return bool(state.policies.get(parameters["PolicyName"]) == parameters[POLICY_FIELD])


def _restoring(endpoint: str, current: CurrentState, variants: list[str]) -> Iterator[Call]:
    """Yield calls that restore the current auto scaling of variants."""
    for name in variants:
        state = current.scaling[name]
        yield register_call(endpoint, name, state.limits)
        for policy, configuration in state.policies.items():
            yield policy_call(endpoint, name, policy, configuration)


def _require_changeable(desired: DesiredState, endpoint: EndpointState) -> None:
    """Check that the endpoint can be updated: in service, or already changing to the desired state."""
    if endpoint.status in _CHANGEABLE:
        return
    goal = endpoint.pending_config or endpoint.config
    if endpoint.status in TRANSITIONAL and goal == desired.config_name:
        return
    reason = f" ({endpoint.failure})" if endpoint.failure else ""
    if endpoint.status in (*TRANSITIONAL, DELETING):
        raise RepositoryError(
            f"the endpoint {desired.endpoint} is {endpoint.status} and cannot be changed now{reason}",
            remedy="wait until that is done (plansmith sagemaker status SPEC.yaml), and run the same command again",
            transient=True,
        )
    raise RepositoryError(
        f"the endpoint {desired.endpoint} is {endpoint.status} and cannot be changed{reason}",
        remedy="plansmith sagemaker delete SPEC.yaml --yes, and deploy it again",
    )


def _add_tags(arn: str, tags: list[dict[str, str]]) -> Call:
    return _sagemaker("add_tags", {"ResourceArn": arn, "Tags": tags})


def _sagemaker(operation: str, parameters: dict[str, Any]) -> Call:
    return Call(service="sagemaker", operation=operation, parameters=parameters)
