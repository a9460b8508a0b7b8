"""SageMaker's control plane: moto's, with what it lacks (updates, states that take a while, shadow variants).

Requests come over HTTP from real clients, which check them against AWS's description of its services.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from moto.applicationautoscaling.responses import ApplicationAutoScalingResponse
from moto.core.responses import ActionResult
from moto.sagemaker.exceptions import ValidationError
from moto.sagemaker.models import FakeEndpointConfig, SageMakerModelBackend
from moto.sagemaker.responses import SageMakerResponse

from .endpoints import ROLE

_READS = ("describe_", "list_", "head_", "invoke_", "get_")
_TRUST = {"Version": "2012-10-17", "Statement": [{"Principal": {"Service": "sagemaker.amazonaws.com"}}]}


class ControlPlane:
    """What goes wrong in it, and what it was asked.

    Attributes:
        requests: the operations, in their order.
        failures: the reasons for which the next changes of endpoints fail, one each; an empty one lets it succeed.
        updates: the parameters of `update_endpoint`.
        refusals: what is answered to an operation, once for each entry: a code and a message.
        lost_answers: operations that are carried out without an answer, once for each entry.
        before: what happens just before an operation, the first time.
        deleting: endpoints that are being deleted, and for how many more requests.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.requests: list[str] = []
        self.failures: list[str] = []
        self.updates: list[dict[str, Any]] = []
        self.refusals: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self.lost_answers: list[str] = []
        self.before: dict[str, Callable[[], object]] = {}
        self.deleting: dict[str, int] = {}
        self._changes: dict[str, dict[str, Any]] = {}
        patch.setattr(FakeEndpointConfig, "validate_instance_type", lambda *_: None)  # knows no ml.g5
        patch.setattr(SageMakerModelBackend, "validate_production_variants", lambda *_: None, raising=False)
        patch.setattr(SageMakerResponse, "create_endpoint_config", _with_shadow_variants())
        patch.setattr(SageMakerResponse, "update_endpoint", self._update(), raising=False)
        patch.setattr(SageMakerModelBackend, "describe_endpoint", self._describe())
        patch.setattr(SageMakerModelBackend, "create_endpoint", self._create())
        activities = lambda _: ActionResult({"ScalingActivities": []})  # noqa: E731
        patch.setattr(ApplicationAutoScalingResponse, "describe_scaling_activities", activities, raising=False)
        self._patch_client(patch)

    def changes(self) -> list[str]:
        """The operations that change anything, but for uploads."""
        return [name for name in self.requests if not name.startswith(_READS) and name != "put_object"]

    def _patch_client(self, patch: pytest.MonkeyPatch) -> None:
        from botocore import xform_name
        from botocore.client import BaseClient
        from botocore.exceptions import ClientError, ReadTimeoutError

        send = BaseClient._make_api_call
        plane = self

        def make_api_call(client: Any, operation: str, parameters: dict[str, Any]) -> Any:
            name = xform_name(operation)
            if name in plane.before:
                plane.before.pop(name)()
            plane.requests.append(name)
            if plane.refusals[name]:
                code, message = plane.refusals[name].pop(0)
                raise ClientError({"Error": {"Code": code, "Message": message}}, operation)
            answer = send(client, operation, parameters)
            if name in plane.lost_answers:
                plane.lost_answers.remove(name)
                raise ReadTimeoutError(endpoint_url="https://api.sagemaker.us-east-1.amazonaws.com")
            return answer

        patch.setattr(BaseClient, "_make_api_call", make_api_call)

    def _update(self) -> Any:
        plane = self

        def update_endpoint(response: SageMakerResponse) -> ActionResult:
            backend, name = response.sagemaker_backend, response._get_param("EndpointName")
            if name not in backend.endpoints:
                raise ValidationError(f"Could not find endpoint '{name}'.")
            endpoint, config = backend.endpoints[name], response._get_param("EndpointConfigName")
            if name in plane._changes:
                raise ValidationError(f'Cannot update in-progress endpoint "{endpoint.arn}".')
            backend.describe_endpoint_config(config)
            endpoint.endpoint_status = "Updating"
            plane.updates.append(json.loads(response.body))
            plane._begin(name, config)
            return ActionResult({"EndpointArn": endpoint.arn})

        return update_endpoint

    def _create(self) -> Any:
        create, plane = SageMakerModelBackend.create_endpoint, self

        def create_endpoint(backend: Any, endpoint_name: str, *arguments: Any, **options: Any) -> Any:
            if endpoint_name in backend.endpoints:  # which moto does not mind
                arn = backend.endpoints[endpoint_name].arn
                raise ValidationError(f'Cannot create already existing endpoint "{arn}".')
            endpoint = create(backend, endpoint_name, *arguments, **options)
            endpoint.endpoint_status = "Creating"
            plane._begin(endpoint_name, endpoint.endpoint_config_name)
            return endpoint

        return create_endpoint

    def _begin(self, name: str, config: str) -> None:
        failure = self.failures.pop(0) if self.failures else ""
        self._changes[name] = {"config": config, "requests": 2, "failure": failure}

    def _describe(self) -> Any:
        describe, plane = SageMakerModelBackend.describe_endpoint, self

        def describe_endpoint(backend: Any, endpoint_name: str) -> Any:
            endpoint = backend.endpoints.get(endpoint_name)
            if endpoint is not None and endpoint_name in plane.deleting:
                plane.deleting[endpoint_name] -= 1
                endpoint.endpoint_status = "Deleting"
                if plane.deleting[endpoint_name] < 0:
                    del backend.endpoints[endpoint_name]
            change = plane._changes.get(endpoint_name)
            if endpoint is not None and change is not None:
                change["requests"] -= 1
                if change["requests"] <= 0:
                    del plane._changes[endpoint_name]
                    _finish(endpoint, change, backend.endpoint_configs[change["config"]])
            answer = dict(describe(backend, endpoint_name))
            if endpoint_name in plane._changes:
                config = plane._changes[endpoint_name]["config"]
                answer["PendingDeploymentSummary"] = {"EndpointConfigName": config}
            return answer

        return describe_endpoint


def create_role() -> None:
    """The execution role of the endpoints, once for the server."""
    client = boto3.client("iam")
    try:
        client.create_role(RoleName=ROLE.rpartition("/")[2], AssumeRolePolicyDocument=json.dumps(_TRUST))
    except client.exceptions.EntityAlreadyExistsException:
        pass
    finally:
        client.close()


def _with_shadow_variants() -> Any:
    create = SageMakerResponse.create_endpoint_config

    def create_endpoint_config(response: SageMakerResponse) -> ActionResult:
        answer: ActionResult = create(response)
        config: Any = response.sagemaker_backend.endpoint_configs[response._get_param("EndpointConfigName")]
        config.shadow_production_variants = response._get_param("ShadowProductionVariants") or []
        return answer

    return create_endpoint_config


def _finish(endpoint: Any, change: dict[str, Any], config: Any) -> None:
    is_new = endpoint.endpoint_status == "Creating"
    endpoint.endpoint_status = "Failed" if change["failure"] and is_new else "InService"
    endpoint.failure_reason = change["failure"] or None
    if not change["failure"]:
        endpoint.endpoint_config_name = change["config"]
        start = endpoint._process_production_variants
        endpoint.production_variants = start(config.production_variants)
        endpoint.shadow_production_variants = start(config.shadow_production_variants)
