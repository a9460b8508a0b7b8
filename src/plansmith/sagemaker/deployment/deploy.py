"""From the spec of an endpoint and its archives to a checked plan, with its smoke test."""

from __future__ import annotations

from dataclasses import dataclass

from plansmith.sagemaker.deployment.account import Account
from plansmith.sagemaker.deployment.current import CurrentState, read_current_state
from plansmith.sagemaker.deployment.plan import DeploymentPlan, make_plan
from plansmith.sagemaker.deployment.smoke_test import SmokeRequest, smoke_requests
from plansmith.sagemaker.endpoint.checks import require_serveable
from plansmith.sagemaker.endpoint.desired import DesiredState, desired_state
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.sagemaker.endpoint.variant_archives import VariantArchives
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


def plan_deployment(
    spec: EndpointSpec, archives: VariantArchives, account: Account, *, dry_run: bool
) -> PlannedDeployment:
    """Check a deployment, and plan it by what there is in AWS; nothing is changed.

    Args:
        spec: the endpoint.
        archives: of each of its variants.
        account: of the endpoint; a dry run without credentials does not ask it.
        dry_run: whether nothing will be done.

    Raises:
        EngineError: a variant cannot serve its archives.
        UsageError: AWS would refuse something in the spec, or the execution role cannot be used.
        RepositoryError: something belongs to somebody else, the endpoint is in a state in which it cannot be changed,
            or the bucket cannot be used.
        EnvironmentFault: AWS cannot be asked, or does not allow it.
    """
    require_serveable(spec, archives)
    desired = desired_state(spec, archives)
    current = CurrentState(is_assumed=True)
    if not dry_run or has_credentials():
        account.require_role()
        current = read_current_state(account, desired)
    plan = make_plan(desired, current)
    for call in plan.calls:
        require_valid(call)
    return PlannedDeployment(spec, desired, plan, smoke_requests(spec, archives, desired), current.is_assumed)
