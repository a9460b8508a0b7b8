"""Carries out the plan of a deployment; what fails is rolled back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, ServedCheckError, UsageError
from plansmith.sagemaker.deployment.account import Account, is_missing, is_taken, is_uncertain
from plansmith.sagemaker.deployment.current import IN_SERVICE, config_names, is_owned
from plansmith.sagemaker.deployment.plan import DeploymentPlan
from plansmith.sagemaker.deployment.rollback import roll_back
from plansmith.sagemaker.deployment.smoke_test import SmokeRequest, SmokeResult, run_smoke_test
from plansmith.sagemaker.deployment.waiter import Polling, Progress, StillPendingError, wait_for_endpoint
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.system.aws.call import Call

# What was created a moment ago may not be known everywhere yet:
# docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateEndpoint.html.
_DEPENDENT = {"create_endpoint_config", "create_endpoint", "update_endpoint"}
_ENDPOINT_OPERATIONS = {"create_endpoint", "update_endpoint"}
_ATTEMPTS = 5
_PAUSE_SECONDS = 2.0


@dataclass
class Deployment:
    """One run of a plan.

    Attributes:
        account: of the endpoint.
        polling: how the endpoint is waited for.
        progress: told each step.
        transfer: told how many more bytes of archives are on their way.
        executed: the requests that were carried out, in their order, and those whose answer was lost.
    """

    account: Account
    polling: Polling = field(default_factory=Polling)
    progress: Progress = lambda _: None
    transfer: Moved = untold
    executed: list[Call] = field(default_factory=list)

    def apply(self, plan: DeploymentPlan, requests: Sequence[SmokeRequest]) -> list[SmokeResult]:
        """Carry out a plan, wait for the endpoint, and run its smoke test.

        Args:
            plan: the requests.
            requests: of the smoke test.

        Raises:
            ServedCheckError: the endpoint does not come into service, or fails its smoke test; it was rolled back.
            EnvironmentFault: something is not allowed, and was rolled back; or the time limit is over.
            RepositoryError, UsageError: AWS refuses something; it was rolled back.
        """
        try:
            for upload in plan.uploads:
                self.progress(f"upload {upload.key}")
                self.account.upload(upload, self.transfer)
            for call in plan.before:
                if call.operation != "update_endpoint" or not self._is_updated(plan):
                    self.execute(call)
            if plan.waits:
                self._wait(plan)
            for call in plan.after:
                self.execute(call)
            results = list(run_smoke_test(requests))
        except PlansmithError as error:
            raise self._rolled_back(plan, error) from error
        except StillPendingError as pending:
            minutes = self.polling.limit_seconds / 60
            raise EnvironmentFault(
                f"{plan.endpoint} is still {pending.status} after {minutes:.0f} minutes, and goes on",
                remedy="run the same command again to wait for it and finish; see plansmith sagemaker status SPEC.yaml",
                transient=True,
            ) from pending
        self._tag(plan)
        return results

    def execute(self, call: Call) -> None:
        """Send one request; what another run created meanwhile counts as created.

        Raises:
            PlansmithError: AWS refuses it or cannot be asked.
        """
        self.progress(call.summary)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self.account.execute(call)
            except UsageError as error:
                if is_taken(error) and self._is_in_effect(call):
                    # Created by another run, or by this one and the answer was lost: names hold the content.
                    self.executed += [call] if call.operation in _ENDPOINT_OPERATIONS else []
                    return
                if call.operation not in _DEPENDENT or not is_missing(error) or attempt == _ATTEMPTS:
                    raise
                time.sleep(_PAUSE_SECONDS * attempt)
            except EnvironmentFault as error:
                self.executed += [call] if is_uncertain(error) else []
                raise
            else:
                self.executed.append(call)
                return

    def _is_updated(self, plan: DeploymentPlan) -> bool:
        """Whether another run changes the endpoint to the plan's configuration, or has done so.

        Raises:
            RepositoryError: somebody changed the endpoint to another configuration since it was planned.
        """
        endpoint = self.account.find("describe_endpoint", EndpointName=plan.endpoint) or {}
        if plan.config in config_names(endpoint):
            self.executed += [call for call in plan.before if call.operation == "update_endpoint"]
            return True
        if endpoint.get("EndpointConfigName") != plan.served:
            raise RepositoryError(
                f"{plan.endpoint} was changed meanwhile: it serves {endpoint.get('EndpointConfigName', 'nothing')},"
                f" and served {plan.served} when this deployment was planned",
                remedy="see who deploys it (plansmith sagemaker status SPEC.yaml)",
            )
        return False

    def _is_in_effect(self, call: Call) -> bool:
        """Whether what a request creates exists, for this endpoint; or the endpoint changes to its configuration."""
        kind = call.operation.removeprefix("create_")
        if call.operation in _ENDPOINT_OPERATIONS:
            endpoint = self.account.find("describe_endpoint", EndpointName=call.parameters["EndpointName"])
            return endpoint is not None and call.parameters["EndpointConfigName"] in config_names(endpoint)
        if kind not in {"model", "endpoint_config"}:
            return False
        name = "".join(part.capitalize() for part in kind.split("_"))
        resource = self.account.find(f"describe_{kind}", **{f"{name}Name": call.parameters[f"{name}Name"]})
        return resource is not None and is_owned(self.account.tags(resource[f"{name}Arn"]), self.account.spec.name)

    def _wait(self, plan: DeploymentPlan) -> None:
        """Wait until the endpoint serves the plan's configuration.

        Raises:
            ServedCheckError: it is in another state then.
        """
        endpoint = wait_for_endpoint(self.account, plan.endpoint, self.polling, self.progress)
        logs = f"see why: aws logs tail /aws/sagemaker/Endpoints/{plan.endpoint} --region {self.account.region}"
        if endpoint is None:
            raise ServedCheckError(f"{plan.endpoint} was deleted meanwhile", remedy="deploy it again")
        reason = endpoint.get("FailureReason", "SageMaker gives no reason")
        if endpoint["EndpointStatus"] != IN_SERVICE:
            raise ServedCheckError(f"{plan.endpoint} is {endpoint['EndpointStatus']}: {reason}", remedy=logs)
        if endpoint["EndpointConfigName"] != plan.config:
            raise ServedCheckError(
                f"{plan.endpoint} did not take {plan.config}, and serves {endpoint['EndpointConfigName']}: {reason}",
                remedy=logs,
            )

    def _tag(self, plan: DeploymentPlan) -> None:
        """Note at the endpoint that it passed its smoke test, so that a later deployment can roll back to it.

        Raises:
            PlansmithError: AWS refuses it; the endpoint serves nevertheless.
        """
        try:
            for call in plan.tagging:
                self.execute(call)
        except PlansmithError as error:
            raise type(error)(
                f"{error.message}\n{plan.endpoint} serves {plan.config}; only its tags do not say so yet",
                remedy=f"{error.remedy}; then run the same command again",
                transient=error.transient,
            ) from error

    def _rolled_back(self, plan: DeploymentPlan, error: PlansmithError) -> PlansmithError:
        """Roll back; the error with its outcome."""
        self.progress(f"failed, rolling back: {error.message.splitlines()[0]}")
        try:
            outcome = roll_back(self.account, plan, self.executed, self.polling, self.progress)
        except (PlansmithError, StillPendingError) as second:
            reason = second.message if isinstance(second, PlansmithError) else f"it is still {second.status}"
            outcome = f"the rollback failed, too ({reason}): see plansmith sagemaker status SPEC.yaml"
        return type(error)(
            f"{error.message}\n{outcome}",
            remedy=f"{error.remedy}; then run the same command again",
            transient=error.transient,
        )
