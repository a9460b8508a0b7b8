"""Deployment execution: applies the plan of a deployment and rolls back failures."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, ServedCheckError, UsageError
from plansmith.formatting import format_bytes
from plansmith.records.model import Record
from plansmith.sagemaker.deployment.account import Account, is_missing, is_taken, is_uncertain
from plansmith.sagemaker.deployment.current import (
    IN_SERVICE,
    Polling,
    StillPendingError,
    all_variants,
    config_names,
    is_owned,
    wait_for_endpoint,
)
from plansmith.sagemaker.deployment.plan import DeploymentPlan
from plansmith.sagemaker.endpoint.desired import DesiredState, VariantArchives
from plansmith.sagemaker.endpoint.spec import EndpointSpec
from plansmith.sagemaker.endpoint.variant import VariantSpec
from plansmith.sagemaker.signatures import ServedModel, check_example, model_from_release, stored_example
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.system.aws.sagemaker_runtime import MAX_BODY_BYTES, MODEL_ERROR, EndpointError
from plansmith.system.aws.service import Call, require_valid
from plansmith.system.tasks import Progress
from plansmith.triton.client.request_inputs import checked_feed
from plansmith.triton.client.sagemaker.client import DEFAULT_TIMEOUT_SECONDS, EndpointConnection, SageMakerClient
from plansmith.triton.client.sagemaker.invocation import TARGET_MODEL, TARGET_VARIANT, Invocation
from plansmith.triton.client.sagemaker.transports import RuntimeTransport
from plansmith.triton.repository.repository import ModelRepository

_STATUS_REMEDY = "plansmith sagemaker status SPEC.yaml shows more"
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

_SINGLE_ANSWER_TYPES = (None, "infer")
_BODY_REMEDY = "name a smaller request in smoke_test.body, or write smoke_test: false"
# What was created a moment ago may not be known everywhere yet:
# docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateEndpoint.html.
_DEPENDENT = {"create_endpoint_config", "create_endpoint", "update_endpoint"}
_ENDPOINT_OPERATIONS = {"create_endpoint", "update_endpoint"}
_ATTEMPTS = 5
_PAUSE_SECONDS = 2.0


def roll_back(
    account: Account, plan: DeploymentPlan, executed: Sequence[Call], polling: Polling, progress: Progress
) -> str:
    """Roll back the executed requests of a plan. Keeps archives, and what another run changed in the meantime.

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
        """Delete the endpoint after a failed first deployment."""
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
            raise EnvironmentFault(message, remedy=_STATUS_REMEDY)
        return "it was the first deployment: the endpoint, its configuration and its models were deleted again"

    def _restore_endpoint(self) -> str:
        """Restore the endpoint's previous configuration after a failed update."""
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
                raise EnvironmentFault(message, remedy=_STATUS_REMEDY)
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
        """End the scaling that this run started."""
        if any(call.operation == "register_scalable_target" for call in self.executed):
            for call in self.plan.unscaling:
                self.account.find(call.operation, call.service, **call.parameters)

    def _used_names(self) -> set[str]:
        """Return the names of the configurations and models that the endpoint needs now."""
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


class SmokeRequest(Record):
    """Smoke test request: from a file, or from a release together with its expected answer.

    Attributes:
        endpoint: the endpoint's name.
        region: the endpoint's.
        body_file: the file with the request's body; empty for the request of a release.
        content_type: of the file.
        release: the release, as MODEL@VERSION; empty for a file.
        repository: the model repository of the release.
        variant: which one answers; empty where there is one.
        target_model: the archive that answers; empty but for multi-model variants.
    """

    endpoint: str
    region: str
    body_file: str = ""
    content_type: str = ""
    release: str = ""
    repository: str = ""
    variant: str = ""
    target_model: str = ""

    @property
    def subject(self) -> str:
        """The variant or model that answers."""
        model = f" with {self.target_model}" if self.target_model else ""
        return f"{f'variant {self.variant}' if self.variant else self.endpoint}{model}"

    @property
    def request(self) -> str:
        """The content of the request."""
        return f"the request of {self.body_file or self.release}"


class SmokeResult(Record):
    """Result of an answered request.

    Attributes:
        subject: who answered.
        request: what was sent.
        compared: whether the answer was compared with the release's.
        seconds: the time until the answer was there.
    """

    subject: str
    request: str
    compared: bool
    seconds: float


def smoke_requests(spec: EndpointSpec, archives: VariantArchives, desired: DesiredState) -> list[SmokeRequest]:
    """Return the smoke test requests of an endpoint, to each production variant.

    The file that the spec names; or what the releases hold, of a multi-model variant by the first archive of each. A
    release that holds no request, or gives several answers to one, is not tested.

    Args:
        spec: the endpoint.
        archives: of its variants.
        desired: its desired state.

    Raises:
        UsageError: a request is larger than SageMaker takes.
        RepositoryError: a release is missing or damaged.
    """
    if spec.smoke_test is None:
        return []
    if spec.smoke_test.body:
        _require_size(Path(spec.smoke_test.body))
    requests = []
    for variant in spec.variants:
        target_models = desired.target_models.get(variant.name, ("",))
        base = SmokeRequest(
            endpoint=spec.name,
            region=spec.region,
            variant=variant.name if len(spec.variants) > 1 else "",
            target_model=target_models[0],
        )
        if spec.smoke_test.body:
            file = {"body_file": spec.smoke_test.body, "content_type": spec.smoke_test.content_type}
            requests.append(base.model_copy(update=file))
            continue
        releases: dict[str, str] = {}
        for archive, target_model in zip(archives[variant.name], target_models, strict=True):
            releases.setdefault(archive.releases[0], target_model)
        for release, target_model in releases.items():
            values = {"release": release, "repository": spec.repository, "target_model": target_model}
            request = base.model_copy(update=values)
            requests += [request] if _is_testable(request, variant) else []
    return requests


def run_smoke_test(requests: Sequence[SmokeRequest]) -> Iterator[SmokeResult]:
    """Send the smoke test requests one after another.

    Raises:
        ServedCheckError: a container refuses one, or its answer is wrong.
        EnvironmentFault: the endpoint cannot be reached, or the caller may not invoke it.
    """
    for request in requests:
        start = time.monotonic()
        try:
            _send(request)
        except PlansmithError as error:
            raise _failure(request, error) from error
        seconds = round(time.monotonic() - start, 3)
        yield SmokeResult(
            subject=request.subject, request=request.request, compared=bool(request.release), seconds=seconds
        )


def _require_size(body: Path) -> None:
    size = body.stat().st_size
    if size > MAX_BODY_BYTES:
        raise UsageError(
            f"{body} has {size} bytes, and SageMaker takes {format_bytes(MAX_BODY_BYTES)}", remedy=_BODY_REMEDY
        )


def _is_testable(request: SmokeRequest, variant: VariantSpec) -> bool:
    """Whether a release holds a request that the variant answers with a single response.

    Raises:
        UsageError: the request is larger than SageMaker takes.
    """
    model = _model(request)
    example = stored_example(model)
    if example is None or model.signature.is_decoupled:
        return False
    if variant.environment.inference_type not in _SINGLE_ANSWER_TYPES:
        return False
    with _client(request, model) as client:
        try:
            client.invocations(checked_feed(model.signature, example.feed))
        except UsageError as error:
            raise UsageError(f"{request.request} cannot be sent: {error.message}", remedy=_BODY_REMEDY) from error
    return True


def _send(request: SmokeRequest) -> None:
    if request.release:
        model = _model(request)
        with _client(request, model) as client:
            check_example(client, model)
        return
    headers = {TARGET_VARIANT: request.variant, TARGET_MODEL: request.target_model}
    named = {name: value for name, value in headers.items() if value}
    transport = RuntimeTransport(request.endpoint, region=request.region, timeout_seconds=DEFAULT_TIMEOUT_SECONDS)
    with closing(EndpointConnection(transport, headers=named)) as connection:
        invocation = Invocation(Path(request.body_file).read_bytes(), request.content_type, named)
        answer = connection.send(invocation, request.target_model or request.endpoint)
    if not answer.body:
        raise ServedCheckError("the answer is empty", remedy="see that the file is a request of the model")


def _failure(request: SmokeRequest, error: PlansmithError) -> PlansmithError:
    """Return an error for a failure of the endpoint, or of the connection to it."""
    message = f"{request.subject} does not answer {request.request} as it should: {error.message}"
    cause = error.__cause__
    is_from_container = isinstance(cause, EndpointError) and cause.code == MODEL_ERROR
    if isinstance(error, EnvironmentFault) and not is_from_container:
        return EnvironmentFault(message, remedy=error.remedy, transient=error.transient)
    logs = f"aws logs tail /aws/sagemaker/Endpoints/{request.endpoint} --region {request.region}"
    return ServedCheckError(message, remedy=f"see why: {logs}")


def _model(request: SmokeRequest) -> ServedModel:
    return model_from_release(ModelRepository(Path(request.repository)), request.release)


def _client(request: SmokeRequest, model: ServedModel) -> SageMakerClient:
    return SageMakerClient(
        request.endpoint,
        signature=model.signature,
        model=model.name,
        region=request.region,
        target_model=request.target_model,
        target_variant=request.variant,
    )


@dataclass
class Deployment:
    """Deployment run of a plan.

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
        """Execute a plan, wait for the endpoint, and run its smoke test.

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
        """Send one request; resources that another run created in the meantime count as created.

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
        """Whether another run is changing the endpoint to the plan's configuration, or has done so.

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
        """Whether a request's resource exists for this endpoint, or the endpoint is changing to its configuration."""
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
        """Tag the endpoint as having passed its smoke test, so that a later deployment can roll back to it.

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
        """Roll back; return the error with the outcome."""
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
