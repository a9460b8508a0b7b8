"""Sends one request to each model before the load begins: what is wrong then is an error, and no report."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError
from plansmith.loadtest.client.senders import TIMEOUT, GrpcSender, PlainSender, RequestFailed, invocation_headers
from plansmith.loadtest.payloads.encoding import Payload, Payloads
from plansmith.loadtest.target import LoadTarget, TargetModel
from plansmith.triton.client.connection import Connection
from plansmith.triton.client.sagemaker.connection import EndpointConnection, Transport
from plansmith.triton.client.sagemaker.front_end import FrontEndTransport
from plansmith.triton.client.sagemaker.invocation import Invocation
from plansmith.triton.client.sagemaker.runtime import RuntimeTransport

_CONFIG_SECONDS = 30
_UNKNOWN_MODEL = "unknown model"


def check_target(target: LoadTarget, timeout_seconds: float) -> dict[str, str]:
    """Send one request to each model.

    Args:
        target: the models.
        timeout_seconds: how long an answer may take.

    Returns:
        The configuration of each model as text, where the server tells it.

    Raises:
        ServedCheckError: a model is not ready, or refuses its request; with its whole message.
        EnvironmentFault: the server is not reached, or does not answer in time.
    """
    send = _send if target.service == "triton" else _invoke
    for model in target.models:
        try:
            send(target, model, Payloads(Path(model.payloads))[0], timeout_seconds)
        except PlansmithError as error:
            raise error.located(step="loadtest") from error
    return _configurations(target) if target.service == "triton" else {}


def _invoke(target: LoadTarget, model: TargetModel, payload: Payload, timeout_seconds: float) -> None:
    """Send one invocation to an endpoint or a front end, whose refusals have messages of their own."""
    transport: Transport
    if target.endpoint is not None:
        endpoint = target.endpoint
        transport = RuntimeTransport(
            endpoint.name, region=endpoint.region, profile=endpoint.profile, timeout_seconds=timeout_seconds
        )
    else:
        transport = FrontEndTransport(str(target.address), timeout_seconds=timeout_seconds)
    headers = {**target.headers, **invocation_headers(target, model)}
    invocation = Invocation(payload.body, payload.headers["Content-Type"], headers)
    with closing(EndpointConnection(transport, headers=headers, attempts=1)) as connection:
        connection.send(invocation, model.model)


def _send(target: LoadTarget, model: TargetModel, payload: Payload, timeout_seconds: float) -> None:
    sender = GrpcSender(target, timeout_seconds) if target.protocol == "grpc" else PlainSender(target, timeout_seconds)
    try:
        sender.send(payload, model)
    except RequestFailed as failure:
        raise _error(target, model, failure, timeout_seconds) from failure
    finally:
        sender.close()


def _error(target: LoadTarget, model: TargetModel, failure: RequestFailed, timeout_seconds: float) -> PlansmithError:
    """The error of a failed request; the client's own where it is more specific, as for an unknown model."""
    if failure.kind == TIMEOUT:
        return EnvironmentFault(
            f"{model.model} at {target.address} did not answer within {timeout_seconds:g} s",
            remedy="give it more time (--timeout), or send less at once",
            transient=True,
        )
    try:
        with _connection(target, min(timeout_seconds, _CONFIG_SECONDS)) as connection:
            connection.config(model.model, model.version)
    except PlansmithError as error:
        if not failure.is_answer or _UNKNOWN_MODEL in error.message:
            return error
    kind = f"{failure.kind}: " * failure.is_answer
    return ServedCheckError(
        f"Triton at {target.address} refused a request to {model.model}: {kind}{failure.text}",
        remedy="correct what it names, or read the log of the server",
        transient=not failure.is_answer,
    )


def _configurations(target: LoadTarget) -> dict[str, str]:
    """The configurations; of a server that is no Triton there are none."""
    from google.protobuf import text_format

    configurations = {}
    with _connection(target, _CONFIG_SECONDS) as connection:
        for name, model in zip(target.names, target.models, strict=True):
            try:
                configurations[name] = text_format.MessageToString(connection.config(model.model, model.version))
            except PlansmithError:
                continue
    return configurations


def _connection(target: LoadTarget, timeout_seconds: float) -> Connection:
    return Connection(target.address, timeout_seconds=timeout_seconds, headers=target.headers)
