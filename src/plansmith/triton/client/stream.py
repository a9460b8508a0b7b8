"""Answers that come in pieces: one request over a gRPC stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from plansmith.triton.client.messages import Reply, Request, read_reply, their_inputs, their_outputs

if TYPE_CHECKING:
    from tritonclient.utils import InferenceServerException

_FINAL = "triton_final_response"
_REFUSED = "400"


def stream_replies(
    client: Any,
    request: Request,
    *,
    headers: dict[str, str],
    timeout_seconds: float,
    errors: Callable[[str], AbstractContextManager[None]],
) -> Iterator[Reply]:
    """Send a request and give its answers as they come; who stops listening has it cancelled.

    Args:
        client: of tritonclient's gRPC module; closed at the end.
        request: what is asked.
        headers: sent with it.
        timeout_seconds: how long each answer may take.
        errors: turns what tritonclient raises into an error of ours.
    """
    from tritonclient import grpc

    arrived: SimpleQueue[tuple[Any, InferenceServerException | None]] = SimpleQueue()
    is_ended = False
    try:
        with errors(f"a request to {request.model}"):
            client.start_stream(lambda result, error: arrived.put((result, error)), headers=headers)
            client.async_stream_infer(
                request.model,
                their_inputs(grpc, request, {}),
                model_version=request.version,
                outputs=their_outputs(grpc, request, {}),
                enable_empty_final_response=True,
                parameters=dict(request.parameters),
            )
        while not is_ended:
            with errors(f"a request to {request.model}"):
                result = _next(arrived, timeout_seconds)
                response = result.get_response()
                is_ended = bool(response.parameters[_FINAL].bool_param)
                reply = read_reply(result, request, is_grpc=True) if response.outputs else None
            if reply is not None:
                yield reply
    finally:
        client.stop_stream(cancel_requests=not is_ended)
        client.close()


def _next(arrived: SimpleQueue[tuple[Any, InferenceServerException | None]], timeout_seconds: float) -> Any:
    """The next answer.

    Raises:
        InferenceServerException: what came is an error.
        TimeoutError: nothing came.
    """
    from tritonclient.utils import InferenceServerException

    try:
        result, error = arrived.get(timeout=timeout_seconds)
    except Empty:
        raise TimeoutError from None
    if error is not None and error.status() is None:  # what Triton says within a stream
        raise InferenceServerException(error.message(), status=_REFUSED)
    if error is not None:
        raise error
    return result
