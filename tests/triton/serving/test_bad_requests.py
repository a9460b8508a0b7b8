"""A wrong request gets an error, and nobody else does: neither whoever is run beside it nor whoever comes later."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, zip_longest

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.utils import InferenceServerException

from plansmith.triton.server.server import TritonServer

from ...support.waiting import soon
from .asking import PROTOCOLS, SECONDS, Asker
from .garbage import (
    GRPC_MESSAGES,
    HTTP_BODIES,
    IDS,
    MODEL,
    TEXT_BYTES,
    WRONG,
    A,
    body,
    leave_in_the_middle,
    post,
    send_noise,
    text_body,
    text_message,
)
from .models import TABLE, TOGETHER

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serving")]

Send = Callable[[], object]
RAW_INFER = "/inference.GRPCInferenceService/ModelInfer"


def good(server: TritonServer, number: int) -> Send:
    """One row, asked for and looked at."""

    def send() -> None:
        ids, a = np.array([[number]]), np.array([[0.5, number]], np.float32)
        with Asker(server, PROTOCOLS[number % 2]) as asker:
            answer = asker.ask(MODEL, {"ids": ids, "a": a})
        np.testing.assert_array_equal(answer["sum"], TABLE[ids] + a[:, None])

    return send


def wrong(server: TritonServer, protocol: str, name: str) -> Send:
    """A request that the clients' libraries can write."""

    def send() -> None:
        bad = WRONG[name]
        with Asker(server, protocol) as asker, pytest.raises(InferenceServerException) as error:
            asker.ask(bad.model, bad.feed, outputs=bad.outputs, model_version=bad.version)
        assert bad.message in str(error.value), name

    return send


def http_garbage(server: TritonServer, name: str, model: str, request: tuple[bytes, dict[str, str]]) -> Send:
    def send() -> None:
        status, answer = post(server, model, *request)
        assert 400 <= status < 600, (name, status, answer)
        assert json.loads(answer)["error"], name

    return send


def grpc_garbage(server: TritonServer, name: str, content: bytes) -> Send:
    def send() -> None:
        with grpc.insecure_channel(server.grpc_url, options=[("grpc.enable_http_proxy", 0)]) as channel:
            call = channel.unary_unary(RAW_INFER)
            with pytest.raises(grpc.RpcError) as error:
                call(content, timeout=SECONDS)
        assert error.value.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}, name

    return send


def at_once(*kinds: Sequence[Send]) -> None:
    """Send all of them at the same time, each by a client of its own, one kind between the others; see every answer."""
    mixed = [send for send in chain.from_iterable(zip_longest(*kinds)) if send is not None]
    with ThreadPoolExecutor(len(mixed)) as clients:
        for sent in [clients.submit(send) for send in mixed]:
            sent.result()


@contextmanager
def one_batch_of_good_ones(server: TritonServer) -> Iterator[list[Send]]:
    """So many good requests as make a batch, which must have been one; no process of a model may have died."""
    before = processes()
    with Asker(server, "http") as asker:
        rows, runs = asker.counts(MODEL)
        yield [good(server, number) for number in range(TOGETHER)]
        expected = (rows + TOGETHER, runs + 1)
        assert soon(lambda: asker.counts(MODEL), expected) == expected
    assert processes() == before
    assert len(before) > 1


def processes() -> set[int]:
    """Triton's and those of the models."""
    return {child.pid for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_misfit_request_harms_no_batch(server: TritonServer, protocol: str) -> None:
    """What does not fit the model is an error in words, and harms no batch."""
    with one_batch_of_good_ones(server) as good_ones:
        at_once([wrong(server, protocol, name) for name in WRONG], good_ones)


def test_http_garbage_harms_no_batch(server: TritonServer) -> None:
    """Garbage over HTTP is an error and harms no batch."""
    garbage = [http_garbage(server, name, MODEL, request) for name, request in HTTP_BODIES.items()]
    with one_batch_of_good_ones(server) as good_ones:
        at_once(garbage, good_ones)


def test_grpc_garbage_harms_no_batch(server: TritonServer) -> None:
    """Garbage over gRPC is an error and harms no batch."""
    garbage = [grpc_garbage(server, name, content) for name, content in GRPC_MESSAGES.items()]
    with one_batch_of_good_ones(server) as good_ones:
        at_once(garbage, good_ones)


def test_wrongly_ended_texts_are_error(server: TritonServer) -> None:
    """Texts that end too early or too late are an error."""
    over_http = [http_garbage(server, name, "text", text_body(data)) for name, data in TEXT_BYTES.items()]
    over_grpc = [grpc_garbage(server, name, text_message(data)) for name, data in TEXT_BYTES.items()]
    with one_batch_of_good_ones(server) as good_ones:
        at_once(over_http, over_grpc, good_ones)


def test_departed_client_harms_no_batch(server: TritonServer) -> None:
    """Whoever goes in the middle or makes noise harms no batch."""
    leaving = [lambda: leave_in_the_middle(server.http_url, body(IDS, A)) for _ in range(4)]
    noise = [lambda url=url: send_noise(url) for url in (server.http_url, server.grpc_url)]
    with one_batch_of_good_ones(server) as good_ones:
        at_once(leaving, noise, good_ones)


def test_python_model_refuses_one_member(server: TritonServer) -> None:
    """A Python model refuses one member of a batch and answers the others."""
    texts = ["one", "two", "please refuse", "four", "five", "six"]

    def ask(number: int) -> int | str:
        text = np.array([[texts[number].encode()]], dtype=object)
        with Asker(server, PROTOCOLS[number % 2]) as asker:
            try:
                answer = asker.ask("text_together", {"text": text})
            except InferenceServerException as error:
                return str(error.message())
        assert answer["back"].tolist() == [[texts[number][::-1].encode()]]
        return int(answer["company"].item())

    with ThreadPoolExecutor(TOGETHER) as clients:
        results = list(clients.map(ask, range(TOGETHER)))
    assert results == [TOGETHER, TOGETHER, "this text is refused", TOGETHER, TOGETHER, TOGETHER]


def test_graph_refusal_fails_own_batch(server: TritonServer) -> None:
    """ONNX Runtime runs a batch as a whole, and Triton's backend for it answers all members with the error.

    So does the stand-in: `ModelInstanceState::ProcessRequests` of triton-inference-server/onnxruntime_backend has
    `RESPOND_ALL_AND_SET_TRUE_IF_ERROR(..., OrtRun(...))`.
    """

    def ask(number: int) -> str:
        feed = {"ids": np.array([[1000 if number == 2 else number]]), "a": np.zeros((1, 2), np.float32)}
        with Asker(server, "grpc") as asker, pytest.raises(InferenceServerException) as error:
            asker.ask(MODEL, feed)
        return str(error.value)

    with ThreadPoolExecutor(TOGETHER) as clients:
        assert all("Gather" in message for message in clients.map(ask, range(TOGETHER)))
    with one_batch_of_good_ones(server) as good_ones:
        at_once(good_ones)
