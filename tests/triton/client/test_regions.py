"""Large tensors may lie in memory that client and server share, of which nothing stays behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from plansmith.errors import EnvironmentFault, ServedCheckError
from plansmith.triton.client import Client, Protocol
from plansmith.triton.client.connection import Connection
from plansmith.triton.client.messages import Reply, Request

from ..shared_regions import let_go
from .served import TINY

if TYPE_CHECKING:
    from plansmith.triton.server.server import TritonServer

    Address = Callable[[Protocol], str]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("client")]

PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")

IN_USE = InferenceServerException("Cannot unregister shared memory region 'one', it is currently in use.", status="500")


def feed(rows: int, length: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"a": np.ones((rows, 3), np.float32), "ids": np.arange(rows * length).reshape(rows, length)}


def ours() -> set[str]:
    """The pieces of shared memory of this process's clients; the server's are named otherwise."""
    return {path.name for path in Path("/dev/shm").glob(f"plansmith-{os.getpid()}-????????????????")}


def known(server: TritonServer) -> list[str]:
    """The regions that clients registered."""
    with tritonclient.http.InferenceServerClient(server.http_url) as connection:
        return [region["name"] for region in connection.get_system_shared_memory_status()]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Every request that is sent."""
    requests: list[Request] = []
    ask = Connection.ask

    def watch(self: Connection, request: Request) -> Reply:
        requests.append(request)
        return ask(self, request)

    monkeypatch.setattr(Connection, "ask", watch)
    return requests


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_large_tensors_lie_in_shared_memory_and_small_ones_travel(
    server: TritonServer, address: Address, protocol: Protocol, asked: list[Request]
) -> None:
    given: dict[str, Any] = {"interface": TINY, "max_batch_size": 8}
    with Client(address(protocol), model="tiny", protocol=protocol, shared_memory=True, **given) as client:
        for length in (20_000, 200_000, 5_000):
            sent = feed(11, length)
            found = client.infer(sent)
            np.testing.assert_array_equal(found["twice"], sent["ids"] * 2)
            np.testing.assert_array_equal(found["half"], sent["a"] / 2)
            assert len(ours()) == 2
        assert set(known(server)) == ours()
        shared = {t.name for request in asked for t in (*request.inputs, *request.outputs) if t.region is not None}
        assert shared == {"ids", "twice"}
        asked.clear()
        client.infer(feed(1, 4))
        assert not [t for t in (*asked[0].inputs, *asked[0].outputs) if t.region is not None]
    assert not ours()
    assert not known(server)


def test_an_answer_whose_size_is_not_known_before_travels(address: Address, asked: list[Request]) -> None:
    sent = feed(2, 50_000)
    with Client(address("http"), model="tiny", shared_memory=True) as client:
        np.testing.assert_array_equal(client.infer(sent)["twice"], sent["ids"] * 2)
    (request,) = asked
    assert [t.name for t in request.inputs if t.region is not None] == ["ids"]
    assert [t.region for t in request.outputs] == [None, None]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_half_precision_lies_in_shared_memory_and_strings_travel(
    address: Address, protocol: Protocol, asked: list[Request]
) -> None:
    with Client(address(protocol), model="echo", protocol=protocol, shared_memory=True) as client:
        for dtype in ("float16", "bfloat16"):
            sent = client_array(dtype)
            back = client.infer({dtype: sent}, outputs=[f"their_{dtype}"])[f"their_{dtype}"]
            assert (back == sent).all()
        texts = np.full((1, 40_000), b"text", dtype=object)
        assert (client.infer({"string": texts}, outputs=["their_string"])["their_string"] == texts).all()
    assert [request.inputs[0].region is not None for request in asked] == [True, True, False]


def client_array(dtype: str) -> np.ndarray[Any, Any]:
    import ml_dtypes

    return (np.arange(100_000) % 256).reshape(1, -1).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_stays_where_the_request_or_the_caller_fails(
    server: TritonServer, address: Address, protocol: Protocol
) -> None:
    def fail() -> None:
        with Client(address(protocol), model="tiny", version="1", protocol=protocol, shared_memory=True) as client:
            client.infer(feed(1, 20_000))
            client.version = "9"
            with pytest.raises(ServedCheckError, match="version 9"):
                client.infer(feed(1, 20_000))
            assert not ours()
            assert not known(server)
            client.version = "1"
            client.infer(feed(1, 20_000))
            assert ours()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not ours()
    assert not known(server)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_forgot_the_memory_as_after_a_restart_is_told_of_it_anew(
    server: TritonServer, address: Address, protocol: Protocol
) -> None:
    sent = feed(1, 20_000)
    with Client(address(protocol), model="tiny", protocol=protocol, shared_memory=True) as client:
        client.infer(sent)
        with tritonclient.http.InferenceServerClient(server.http_url) as connection:
            let_go(connection)
        with pytest.raises(ServedCheckError, match="shared memory region"):
            client.infer(sent)
        np.testing.assert_array_equal(client.infer(sent)["twice"], sent["ids"] * 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_late_answer_is_never_written_into_the_memory_of_a_later_request(
    server: TritonServer, address: Address, protocol: Protocol
) -> None:
    client = Client(address(protocol), model="moody", protocol=protocol, shared_memory=True, timeout_seconds=1)
    try:
        with client:
            client._regions._inputs.reserve([1 << 20])  # type: ignore[union-attr]
            (before,) = ours()
            with pytest.raises(EnvironmentFault, match="did not answer within"):
                client.infer({"mood": [-2]})
            assert not ours()
            assert before in known(server)
    finally:
        with tritonclient.http.InferenceServerClient(server.http_url) as connection:
            let_go(connection)


def test_a_server_that_does_not_see_the_memory_is_told_apart(
    server: TritonServer, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = Connection.register_region

    def elsewhere(self: Connection, name: str, key: str, size_bytes: int) -> None:
        register(self, name, f"{key}-of-another-machine", size_bytes)

    monkeypatch.setattr(Connection, "register_region", elsewhere)
    with Client(address("http"), model="tiny", shared_memory=True) as client:
        with pytest.raises(ServedCheckError, match="refused to map shared memory") as refused:
            client.infer(feed(1, 20_000))
        assert "without shared memory" in refused.value.remedy
        assert not ours()
    assert not known(server)


def test_memory_goes_though_the_server_is_gone(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: Connection, name: str) -> None:
        raise EnvironmentFault(f"no server is reached at {self.address}, to let {name} go", remedy="none")

    with Client(address("http"), model="tiny", shared_memory=True) as client:
        client.infer(feed(1, 20_000))
        assert ours()
        monkeypatch.setattr(Connection, "forget_region", gone)
    assert not ours()
    with tritonclient.http.InferenceServerClient(address("http")) as connection:
        let_go(connection)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_memory_that_the_server_is_not_done_with_is_let_go_a_moment_later(
    server: TritonServer, address: Address, protocol: Protocol
) -> None:
    """Triton answers before it lets go of a request's memory, and refuses to forget that until then."""
    with Client(address(protocol), model="tiny", protocol=protocol, shared_memory=True) as client:
        client.infer(feed(1, 20_000))
        requests = client._connection._client
        unregister, refusals = requests.unregister_system_shared_memory, [IN_USE, IN_USE]

        def refuse_at_first(*given: Any, **named: Any) -> None:
            if refusals:
                raise refusals.pop()
            unregister(*given, **named)

        requests.unregister_system_shared_memory = refuse_at_first
    assert not refusals
    assert not known(server)
