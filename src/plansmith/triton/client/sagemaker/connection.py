"""A connection to an endpoint, over any transport: checks the size of requests, and retries what may pass."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from typing import Protocol

from plansmith.errors import EnvironmentFault, UsageError
from plansmith.formatting import format_bytes
from plansmith.system.aws.sagemaker_runtime import MAX_BODY_BYTES, EndpointError, InvocationResponse
from plansmith.triton.client.messages import Reply, Request
from plansmith.triton.client.sagemaker.errors import InvocationAttempt, is_transient, plansmith_error
from plansmith.triton.client.sagemaker.invocation import (
    Invocation,
    invocation_from_request,
    reply_from_response,
    require_headers,
)

DEFAULT_ATTEMPTS = 5

_sleep = time.sleep
_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 8


class Transport(Protocol):
    """Carries invocations to an endpoint."""

    @property
    def place(self) -> str:
        """The endpoint, as the beginning of a sentence."""
        ...

    @property
    def log(self) -> str:
        """The command that reads the log of the container, or where it is."""
        ...

    def invoke(self, invocation: Invocation) -> InvocationResponse:
        """Send one request and wait for the answer.

        Raises:
            EndpointError: the endpoint or its container answers with an error.
            EnvironmentFault: it is not reached, or not in time.
        """
        ...

    def is_connection_lost(self, error: EnvironmentFault) -> bool:
        """Whether `invoke` made no connection, or one that ended before the answer: not one that took too long."""
        ...

    def close(self) -> None:
        """Close connections; does nothing the second time."""
        ...


class EndpointConnection:
    """Requests to one endpoint.

    Retried are throttling, a model that is being loaded, a front end that is not there yet, and a lost connection: an
    inference changes nothing, so that it may be done twice. The pause doubles, and half of it is random, so that
    clients do not return together. Not retried are what a model refused, and what was not answered in time: the model
    may still be at it.

    Args:
        transport: carries the requests; closed with the connection.
        headers: sent with each.
        attempts: how often one is sent at most.

    Raises:
        UsageError: headers that SageMaker does not take.
    """

    def __init__(self, transport: Transport, *, headers: Mapping[str, str], attempts: int = DEFAULT_ATTEMPTS) -> None:
        require_headers(headers)
        self._transport = transport
        self._headers = dict(headers)
        self._attempts = attempts

    def close(self) -> None:
        """Close connections; does nothing the second time."""
        self._transport.close()

    def invocation(self, request: Request) -> Invocation:
        """What is sent for a request.

        Raises:
            UsageError: it cannot be sent, or is larger than SageMaker takes.
        """
        invocation = invocation_from_request(request, self._headers)
        size = len(invocation.body)
        if size > MAX_BODY_BYTES:
            binary = "ask in binary, which takes less room, or " if request.encoding == "json" else ""
            limit = f"{MAX_BODY_BYTES} ({format_bytes(MAX_BODY_BYTES)})"
            raise UsageError(
                f"the request has {size} bytes, and {self._transport.place} takes {limit}",
                remedy=f"{binary}send fewer samples at once, or smaller ones",
            )
        return invocation

    def ask(self, request: Request) -> Reply:
        """Send a request and wait for the reply.

        Raises:
            UsageError: it cannot be sent, or the endpoint does not take it.
            ServedCheckError: the model refuses it, with its reason, or the answer cannot be read.
            EnvironmentFault: the endpoint is not reached, not ready, or not in time.
        """
        return reply_from_response(self.send(self.invocation(request), request.model), request)

    def stream(self, request: Request) -> Iterator[Reply]:
        """SageMaker's front end serves no decoupled model.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"{request.model} is decoupled, and SageMaker's front end of Triton serves no such model",
            remedy="serve a version of it that answers once, or ask it on a Triton (plansmith infer)",
        )

    def send(self, invocation: Invocation, model: str) -> InvocationResponse:
        """Send an invocation and wait for the answer; `model` names it in messages. Raises as `ask`."""
        for number in range(1, self._attempts + 1):
            attempt = InvocationAttempt(model, self._transport.place, self._transport.log, invocation, number)
            try:
                return self._transport.invoke(invocation)
            except EndpointError as error:
                if number == self._attempts or not is_transient(error):
                    raise plansmith_error(error, attempt) from error
            except EnvironmentFault as error:
                if number == self._attempts or not self._transport.is_connection_lost(error):
                    message = f"{error.message}{attempt.times}"
                    raise EnvironmentFault(message, remedy=error.remedy, transient=error.transient) from error
            _sleep(_pause_seconds(number))
        raise AssertionError("the last attempt answers or raises")


def _pause_seconds(attempts: int) -> float:
    """How long to wait after so many attempts: twice as long each time, of which half is random."""
    longest = min(_FIRST_PAUSE_SECONDS * 2.0 ** (attempts - 1), _MAX_PAUSE_SECONDS)
    return longest / 2 + random.uniform(0, longest / 2)  # noqa: S311 - spreads load, keeps no secret
