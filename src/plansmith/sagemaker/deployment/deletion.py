"""Deletes an endpoint with all that plansmith created for it, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plansmith.errors import RepositoryError
from plansmith.sagemaker.deployment.account import Account
from plansmith.sagemaker.deployment.current import (
    DELETING,
    TRANSITIONAL,
    find_endpoint,
    is_owned,
    read_instance_types,
    read_scaling,
)
from plansmith.sagemaker.deployment.waiter import Polling, Progress, wait_for_endpoint
from plansmith.sagemaker.endpoint.auto_scaling import deregister_call
from plansmith.sagemaker.endpoint.desired import OWNER_TAG, name_stem
from plansmith.system.aws.call import Call


@dataclass(frozen=True)
class DeletionPlan:
    """What is deleted of an endpoint.

    Attributes:
        calls: the requests, in their order.
        archives: the keys of archives, below the endpoint's prefix.
    """

    calls: list[Call]
    archives: list[str]

    @property
    def count(self) -> int:
        """How many things are deleted."""
        return len(self.calls) + len(self.archives)


def plan_deletion(account: Account, *, with_archives: bool) -> DeletionPlan:
    """What has to be deleted; nothing of what does not exist or is being deleted already.

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
    """Carry out a deletion. What the endpoint needs is deleted after the endpoint is gone.

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
    """The names of models or configurations that plansmith created for the endpoint."""
    name = account.spec.name
    for row in account.pages(f"list_{kind}", f"{field}s", NameContains=name_stem(name)):
        if is_owned(account.tags(row[f"{field}Arn"]), name):
            yield row[f"{field}Name"]


def _delete_call(operation: str, field: str, name: str) -> Call:
    return Call(service="sagemaker", operation=operation, parameters={field: name})
