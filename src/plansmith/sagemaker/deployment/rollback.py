"""Undoes a deployment that failed: the endpoint serves what it did before, and nothing half-created stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plansmith.errors import EnvironmentFault
from plansmith.sagemaker.deployment.account import Account
from plansmith.sagemaker.deployment.current import IN_SERVICE, all_variants, config_names
from plansmith.sagemaker.deployment.plan import DeploymentPlan
from plansmith.sagemaker.deployment.waiter import Polling, Progress, wait_for_endpoint
from plansmith.system.aws.call import Call, require_valid

_REMEDY = "plansmith sagemaker status SPEC.yaml shows more"
_SCALING_OPERATIONS = {
    "delete_scaling_policy",
    "deregister_scalable_target",
    "put_scaling_policy",
    "register_scalable_target",
}
_INVERSES = {
    "create_endpoint_config": ("delete_endpoint_config", "EndpointConfigName"),
    "create_model": ("delete_model", "ModelName"),
}


def roll_back(
    account: Account, plan: DeploymentPlan, executed: Sequence[Call], polling: Polling, progress: Progress
) -> str:
    """Undo the executed requests of a plan. Archives stay, and so does what another run changed meanwhile.

    Args:
        account: of the endpoint.
        plan: of the deployment.
        executed: its requests that were carried out, or may have been.
        polling: how the endpoint is waited for.
        progress: told each step.

    Returns:
        The outcome, as a sentence.

    Raises:
        StillPendingError: the endpoint takes longer than the limit to roll back.
        PlansmithError: AWS refuses it.
    """
    return _Rollback(account, plan, executed, polling, progress).run()


@dataclass(frozen=True)
class _Rollback:
    account: Account
    plan: DeploymentPlan
    executed: Sequence[Call]
    polling: Polling
    progress: Progress

    def run(self) -> str:
        operations = {call.operation for call in self.executed}
        if "create_endpoint" in operations:
            outcome = self._delete_endpoint()
        elif self.plan.previous and ("update_endpoint" in operations or not self.plan.begins_with("update_endpoint")):
            outcome = self._restore_endpoint()
        else:
            self._end_scaling()
            outcome = self._untouched()
        used = self._used_names()
        for call in reversed(self.executed):
            operation, field = _INVERSES.get(call.operation, ("", ""))
            if operation and call.parameters[field] not in used:
                self._execute(operation, {field: call.parameters[field]})
        for call in self.plan.restoring if operations & _SCALING_OPERATIONS else ():
            self.account.execute(call)
        return outcome

    def _delete_endpoint(self) -> str:
        """A first deployment leaves no endpoint."""
        endpoint = self._wait()  # one that is being created cannot be deleted
        if endpoint is None:
            return "there is no endpoint"
        if self.plan.config not in config_names(endpoint):
            return self._changed_meanwhile(endpoint)
        self._end_scaling()
        self._execute("delete_endpoint", {"EndpointName": self.plan.endpoint})
        left = self._wait()
        if left is not None:
            message = f"{self.plan.endpoint} is {left['EndpointStatus']} after it was deleted"
            raise EnvironmentFault(message, remedy=_REMEDY)
        return "it was the first deployment: the endpoint, its configuration and its models were deleted again"

    def _restore_endpoint(self) -> str:
        """An update leaves the endpoint with the configuration that it had."""
        previous = self.plan.previous
        endpoint = self._wait()
        if endpoint is None:
            return "there is no endpoint any more"
        if not config_names(endpoint) & {self.plan.config, previous}:
            return self._changed_meanwhile(endpoint)
        self._end_scaling()
        if not _serves(endpoint, previous):
            names = {"EndpointName": self.plan.endpoint, "EndpointConfigName": previous}
            self._execute("update_endpoint", {**names, **self.plan.retention})
            endpoint = self._wait() or {"EndpointStatus": "gone"}
            if not _serves(endpoint, previous):
                message = f"{self.plan.endpoint} is {endpoint['EndpointStatus']}, and not back at {previous}"
                raise EnvironmentFault(message, remedy=_REMEDY)
        return f"the endpoint serves {previous} again, as before"

    def _untouched(self) -> str:
        if self.plan.begins_with("create_endpoint"):
            return "no endpoint was created"
        if self.plan.waits and not self.plan.previous:
            return "an earlier run created it: plansmith sagemaker delete SPEC.yaml --yes deletes it"
        return "the endpoint is as it was"

    def _changed_meanwhile(self, endpoint: dict[str, Any]) -> str:
        config = endpoint["EndpointConfigName"]
        return f"another deployment gave {self.plan.endpoint} {config} meanwhile, and it was left with that"

    def _end_scaling(self) -> None:
        """End the scaling that this run began."""
        if any(call.operation == "register_scalable_target" for call in self.executed):
            for call in self.plan.unscaling:
                self.account.find(call.operation, call.service, **call.parameters)

    def _used_names(self) -> set[str]:
        """The names of the configurations and models that the endpoint needs now."""
        endpoint = self.account.find("describe_endpoint", EndpointName=self.plan.endpoint)
        names = config_names(endpoint) if endpoint else set()
        for config in sorted(names):
            description = self.account.find("describe_endpoint_config", EndpointConfigName=config) or {}
            names |= {variant["ModelName"] for variant in all_variants(description) if "ModelName" in variant}
        return names

    def _wait(self) -> dict[str, Any] | None:
        return wait_for_endpoint(self.account, self.plan.endpoint, self.polling, self.progress)

    def _execute(self, operation: str, parameters: dict[str, Any]) -> None:
        call = Call(service="sagemaker", operation=operation, parameters=parameters)
        self.progress(call.summary)
        require_valid(call)
        self.account.find(call.operation, **call.parameters)


def _serves(endpoint: dict[str, Any], config: str) -> bool:
    return bool(endpoint["EndpointStatus"] == IN_SERVICE and endpoint["EndpointConfigName"] == config)
