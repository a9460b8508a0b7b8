"""From the file of an endpoint to a checked plan with its smoke test, and to an endpoint that is as the file says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plansmith.errors import PlansmithError
from plansmith.records.model import Record
from plansmith.sagemaker.deployment.account import Account
from plansmith.sagemaker.deployment.apply import Deployment
from plansmith.sagemaker.deployment.current import CurrentState, read_current_state
from plansmith.sagemaker.deployment.plan import DeploymentPlan, make_plan
from plansmith.sagemaker.deployment.smoke_test import SmokeRequest, smoke_requests
from plansmith.sagemaker.deployment.waiter import Polling, Progress
from plansmith.sagemaker.endpoint.checks import require_serveable
from plansmith.sagemaker.endpoint.desired import DesiredState, desired_state
from plansmith.sagemaker.endpoint.loader import read_endpoint
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.sagemaker.endpoint.variant_archives import (
    VariantArchives,
    plan_variant_archives,
    planned_archives,
    write_variant_archives,
)
from plansmith.sagemaker.registry import with_approved_releases
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.system.aws.call import require_valid
from plansmith.system.aws.client import has_credentials


@dataclass(frozen=True)
class PlannedDeployment:
    """A deployment that was checked.

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
        """The production variants that no request of the smoke test goes to."""
        variants = {request.variant for request in self.requests}
        return [variant.name for variant in self.spec.variants if not variants & {"", variant.name}]


def read_released_endpoint(path: Path) -> EndpointSpec:
    """The endpoint of a file, with the releases that are approved where its variants have model package groups.

    Args:
        path: the file.

    Raises:
        PlansmithError: as for `read_endpoint` and `with_approved_releases`.
    """
    return with_approved_releases(read_endpoint(path))


def prepare_archives(spec: EndpointSpec, output: Path, *, dry_run: bool, progress: Moved = untold) -> VariantArchives:
    """The archives of all variants, written unless they are there.

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
    """Check a deployment, and plan it by what there is in AWS; nothing is changed.

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
    """What was done with one endpoint of several.

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
        """What was done, in one line."""
        if self.error:
            return f"failed: {self.error}"
        return f"serves {self.config}" + ("" if self.requests else ", as before")

    def row(self) -> dict[str, str]:
        """It as a row of a table."""
        return {"file": Path(self.file).name, "endpoint": self.endpoint, "outcome": self.summary}


def failed_outcome(path: Path, error: PlansmithError) -> EndpointOutcome:
    """What is told of an endpoint that could not be deployed, with its name where its file says one.

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
    """Make an endpoint what its file says.

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
