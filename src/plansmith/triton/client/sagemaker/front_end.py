"""The transport to SageMaker's front end of a Triton that is reached without AWS, such as one on this machine."""

from __future__ import annotations

from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import quote

from plansmith.errors import EnvironmentFault, first_line
from plansmith.system.aws.sagemaker_runtime import MODEL_ERROR, EndpointError, InvocationResponse
from plansmith.system.urls import read_address
from plansmith.triton.client.sagemaker.invocation import Invocation


class FrontEndTransport:
    """Carries invocations as SageMaker does to its containers: to /invocations, or to the target model.

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
        """Where to read what its Triton prints."""
        return "the log of that Triton"

    def invoke(self, invocation: Invocation) -> InvocationResponse:
        """Send one request and wait for the answer.

        Raises:
            EndpointError: the front end answers with an error.
            EnvironmentFault: it is not reached, or not in time.
        """
        host, slash, path = self._address.place.partition("/")
        path = f"{slash}{path}{invocation_path(invocation.target_model)}"
        connection = (HTTPSConnection if self._address.secure else HTTPConnection)(host, timeout=self._timeout_seconds)
        headers = {**invocation.headers, "Content-Type": invocation.content_type}
        try:
            connection.request("POST", path, invocation.body, headers)
            response = connection.getresponse()
            body, status = response.read(), response.status
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
        if status != HTTPStatus.OK:
            raise EndpointError(MODEL_ERROR, status, body.decode(errors="replace"))
        return InvocationResponse(body, response.headers.get("Content-Type", ""))

    def is_connection_lost(self, error: EnvironmentFault) -> bool:
        """Whether `invoke` made no connection, or one that ended before the answer."""
        return not isinstance(error.__cause__, TimeoutError)

    def close(self) -> None:
        """There is nothing to close."""


def invocation_path(target_model: str) -> str:
    """Where a front end takes invocations: those of a multi-model endpoint name their model."""
    return f"/models/{quote(target_model, safe='')}/invoke" if target_model else "/invocations"
