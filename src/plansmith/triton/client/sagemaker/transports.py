"""Transports to an endpoint: through AWS, and to SageMaker's Triton front end without AWS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from plansmith.errors import EnvironmentFault, first_line
from plansmith.system.aws.sagemaker_runtime import MODEL_ERROR, EndpointError, InvocationResponse, SageMakerRuntime
from plansmith.system.urls import read_address
from plansmith.triton.client.sagemaker.invocation import (
    CUSTOM_ATTRIBUTES,
    INFERENCE_ID,
    JSON_TYPE,
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


@dataclass(frozen=True)
class FrontEndResponse:
    """The response to one request.

    Attributes:
        status: of HTTP.
        content_type: of the body.
        body: its bytes.
    """

    status: int
    content_type: str
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Whether the request succeeded."""
        return self.status == HTTPStatus.OK

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace").strip()


class FrontEndTransport:
    """Front end transport: sends requests as SageMaker does to its containers, to /invocations or the target model.

    Each has a connection of its own, which costs little on one machine.

    Args:
        url: where the front end answers, such as http://127.0.0.1:8080.
        timeout_seconds: how long connecting may take, and each answer.

    Raises:
        UsageError: no such address.
    """

    def __init__(self, url: str, *, timeout_seconds: float) -> None:
        self._address = read_address(url, "http")
        self._timeout_seconds = timeout_seconds

    @property
    def place(self) -> str:
        """The front end and its address."""
        return f"the front end at {self._address}"

    @property
    def log(self) -> str:
        """The location of its Triton's log."""
        return "the log of that Triton"

    def invoke(self, invocation: Invocation) -> InvocationResponse:
        """Send one request and wait for the response.

        Raises:
            EndpointError: the front end answers with an error.
            EnvironmentFault: it is not reached, or not in time.
        """
        headers = {**invocation.headers, "Content-Type": invocation.content_type}
        response = self.request("POST", invocation_path(invocation.target_model), invocation.body, headers)
        if not response.is_ok:
            raise EndpointError(MODEL_ERROR, response.status, response.text)
        return InvocationResponse(response.body, response.content_type)

    def ping(self) -> FrontEndResponse:
        """Check the container's health, as SageMaker does; raises as `request`."""
        return self.request("GET", "/ping")

    def load(self, name: str, folder: Path, *, target_model: str = "") -> FrontEndResponse:
        """Load the model, or the ensemble, of an unpacked archive; raises as `request`.

        Args:
            name: under which it is loaded; a hash in SageMaker.
            folder: of the archive.
            target_model: the archive as requests name it, which SageMaker sends along.
        """
        body = json.dumps({"model_name": name, "url": str(folder.absolute())}).encode()
        return self.request("POST", "/models", body, _target_headers(target_model))

    def unload(self, name: str, *, target_model: str = "") -> FrontEndResponse:
        """Unload a model with its members; raises as `request`."""
        return self.request("DELETE", f"/models/{quote(name, safe='')}", headers=_target_headers(target_model))

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = MappingProxyType({})
    ) -> FrontEndResponse:
        """Send one request of any kind, and return the response with any status.

        Args:
            method: of HTTP.
            path: below the address.
            body: none when empty.
            headers: sent with it; the content type is JSON where they name none.

        Raises:
            EnvironmentFault: the front end is not reached, or does not answer in time.
        """
        host, slash, base = self._address.place.partition("/")
        connection = (HTTPSConnection if self._address.secure else HTTPConnection)(host, timeout=self._timeout_seconds)
        try:
            connection.request(method, f"{slash}{base}{path}", body or None, {"Content-Type": JSON_TYPE, **headers})
            response = connection.getresponse()
            content_type = response.headers.get("Content-Type", "")
            return FrontEndResponse(response.status, content_type, response.read())
        except TimeoutError as error:
            raise EnvironmentFault(
                f"{self.place} did not answer within {self._timeout_seconds:g} s",
                remedy="give it more time (--timeout), or send less at once",
                transient=True,
            ) from error
        except (OSError, HTTPException) as error:
            raise EnvironmentFault(
                f"{self.place} is not reached: {first_line(error)}",
                remedy="check that Triton runs there with --allow-sagemaker=true and that --sagemaker-port; plansmith"
                " serve --sagemaker starts one",
                transient=True,
            ) from error
        finally:
            connection.close()

    def is_connection_lost(self, error: EnvironmentFault) -> bool:
        """Whether `invoke` failed to connect, or lost the connection before the response."""
        return not isinstance(error.__cause__, TimeoutError)

    def close(self) -> None:
        """Do nothing: no connection is kept open."""


def invocation_path(target_model: str) -> str:
    """Return the invocation path of a front end; that of a multi-model endpoint names the model."""
    return f"/models/{quote(target_model, safe='')}/invoke" if target_model else "/invocations"


def _target_headers(target_model: str) -> dict[str, str]:
    return {TARGET_MODEL: target_model} if target_model else {}


class RuntimeTransport:
    """Transport by `InvokeEndpoint`; makes no AWS request before the first invocation.

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
        """The command that shows the container's log."""
        region = self._runtime.region
        return f"aws logs tail /aws/sagemaker/Endpoints/{self._endpoint}" + f" --region {region}" * bool(region)

    def invoke(self, invocation: Invocation) -> InvocationResponse:
        """Send one request and wait for the response; raises as `SageMakerRuntime.invoke`."""
        parameters = {_PARAMETERS[name]: value for name, value in invocation.headers.items()}
        return self._runtime.invoke(invocation.body, invocation.content_type, **parameters)

    def is_connection_lost(self, error: EnvironmentFault) -> bool:
        """Whether `invoke` failed to connect, or lost the connection before the response."""
        return self._runtime.is_connection_lost(error)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._runtime.close()
