"""The transport to an endpoint over AWS."""

from __future__ import annotations

from plansmith.errors import EnvironmentFault
from plansmith.system.aws.sagemaker_runtime import InvocationResponse, SageMakerRuntime
from plansmith.triton.client.sagemaker.invocation import (
    CUSTOM_ATTRIBUTES,
    INFERENCE_ID,
    TARGET_MODEL,
    TARGET_VARIANT,
    Invocation,
    require_name,
)

_PARAMETERS = {
    TARGET_MODEL: "TargetModel",
    TARGET_VARIANT: "TargetVariant",
    INFERENCE_ID: "InferenceId",
    CUSTOM_ATTRIBUTES: "CustomAttributes",
}


class RuntimeTransport:
    """Carries invocations with `InvokeEndpoint`; AWS is asked for nothing before the first.

    Args:
        endpoint: its name.
        region: where it is; that of the environment and the AWS configuration when empty.
        profile: of the AWS configuration files; empty for what the environment says.
        timeout_seconds: how long an answer may take; SageMaker itself gives a model 60 seconds.

    Raises:
        UsageError: no endpoint can have this name.
    """

    def __init__(self, endpoint: str, *, region: str = "", profile: str = "", timeout_seconds: float) -> None:
        require_name(endpoint, "an endpoint")
        self._endpoint = endpoint
        self._runtime = SageMakerRuntime(endpoint, region=region, profile=profile, timeout_seconds=timeout_seconds)

    @property
    def place(self) -> str:
        """The endpoint and its region."""
        region = self._runtime.region
        return f"endpoint {self._endpoint}" + f" in {region}" * bool(region)

    @property
    def log(self) -> str:
        """The command that reads the log of its container."""
        region = self._runtime.region
        return f"aws logs tail /aws/sagemaker/Endpoints/{self._endpoint}" + f" --region {region}" * bool(region)

    def invoke(self, invocation: Invocation) -> InvocationResponse:
        """Send one request and wait for the answer; raises as `SageMakerRuntime.invoke`."""
        parameters = {_PARAMETERS[name]: value for name, value in invocation.headers.items()}
        return self._runtime.invoke(invocation.body, invocation.content_type, **parameters)

    def is_connection_lost(self, error: EnvironmentFault) -> bool:
        """Whether `invoke` made no connection, or one that ended before the answer."""
        return self._runtime.is_connection_lost(error)

    def close(self) -> None:
        """Close connections; does nothing the second time."""
        self._runtime.close()
