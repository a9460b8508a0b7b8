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


def region_names(server: TritonServer) -> list[str]:
    """The regions that clients registered."""
    with tritonclient.http.InferenceServerClient(server.http_url) as connection:
        return [region["name"] for region in connection.get_system_shared_memory_status()]


@pytest.fixture
def sent_requests(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Every request that is sent."""
    requests: list[Request] = []
    ask = Connection.ask

    def watch(self: Connection, request: Request) -> Reply:
        requests.append(request)
        return ask(self, request)

    monkeypatch.setattr(Connection, "ask", watch)
    return requests


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_large_tensors_use_shared_memory(
    server: TritonServer, address: Address, protocol: Protocol, sent_requests: list[Request]
) -> None:
    """Large tensors lie in shared memory, and small ones travel."""
    options: dict[str, Any] = {"interface": TINY, "max_batch_size": 8}
    with Client(address(protocol), model="tiny", protocol=protocol, shared_memory=True, **options) as client:
        for length in (20_000, 200_000, 5_000):
            sent = feed(11, length)
            result = client.infer(sent)
            np.testing.assert_array_equal(result["twice"], sent["ids"] * 2)
            np.testing.assert_array_equal(result["half"], sent["a"] / 2)
            assert len(ours()) == 2
        assert set(region_names(server)) == ours()
        shared = {
            t.name for request in sent_requests for t in (*request.inputs, *request.outputs) if t.region is not None
        }
        assert shared == {"ids", "twice"}
        sent_requests.clear()
        client.infer(feed(1, 4))
        assert not [t for t in (*sent_requests[0].inputs, *sent_requests[0].outputs) if t.region is not None]
    assert not ours()
    assert not region_names(server)


def test_unknown_answer_size_travels(address: Address, sent_requests: list[Request]) -> None:
    """An answer whose size is not known before travels."""
    sent = feed(2, 50_000)
    with Client(address("http"), model="tiny", shared_memory=True) as client:
        np.testing.assert_array_equal(client.infer(sent)["twice"], sent["ids"] * 2)
    (request,) = sent_requests
    assert [t.name for t in request.inputs if t.region is not None] == ["ids"]
    assert [t.region for t in request.outputs] == [None, None]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_half_precision_shared_strings_travel(
    address: Address, protocol: Protocol, sent_requests: list[Request]
) -> None:
    """Half precision lies in shared memory and strings travel."""
    with Client(address(protocol), model="echo", protocol=protocol, shared_memory=True) as client:
        for dtype in ("float16", "bfloat16"):
            sent = client_array(dtype)
            back = client.infer({dtype: sent}, outputs=[f"their_{dtype}"])[f"their_{dtype}"]
            assert (back == sent).all()
        texts = np.full((1, 40_000), b"text", dtype=object)
        assert (client.infer({"string": texts}, outputs=["their_string"])["their_string"] == texts).all()
    assert [request.inputs[0].region is not None for request in sent_requests] == [True, True, False]


def client_array(dtype: str) -> np.ndarray[Any, Any]:
    import ml_dtypes

    return (np.arange(100_000) % 256).reshape(1, -1).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_failed_request_leaves_nothing(server: TritonServer, address: Address, protocol: Protocol) -> None:
    """Nothing stays where the request or the caller fails."""

    def fail() -> None:
        with Client(address(protocol), model="tiny", version="1", protocol=protocol, shared_memory=True) as client:
            client.infer(feed(1, 20_000))
            client.version = "9"
            with pytest.raises(ServedCheckError, match="version 9"):
                client.infer(feed(1, 20_000))
            assert not ours()
            assert not region_names(server)
            client.version = "1"
            client.infer(feed(1, 20_000))
            assert ours()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not ours()
    assert not region_names(server)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_forgotten_memory_registered_anew(server: TritonServer, address: Address, protocol: Protocol) -> None:
    """A server that forgot the memory, as after a restart, is told of it anew."""
    sent = feed(1, 20_000)
    with Client(address(protocol), model="tiny", protocol=protocol, shared_memory=True) as client:
        client.infer(sent)
        with tritonclient.http.InferenceServerClient(server.http_url) as connection:
            let_go(connection)
        with pytest.raises(ServedCheckError, match="shared memory region"):
            client.infer(sent)
        np.testing.assert_array_equal(client.infer(sent)["twice"], sent["ids"] * 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_late_answer_spares_later_memory(server: TritonServer, address: Address, protocol: Protocol) -> None:
    """A late answer is never written into the memory of a later request."""
    client = Client(address(protocol), model="moody", protocol=protocol, shared_memory=True, timeout_seconds=1)
    try:
        with client:
            client._regions._inputs.reserve([1 << 20])  # type: ignore[union-attr]
            (before,) = ours()
            with pytest.raises(EnvironmentFault, match="did not answer within"):
                client.infer({"mood": [-2]})
            assert not ours()
            assert before in region_names(server)
    finally:
        with tritonclient.http.InferenceServerClient(server.http_url) as connection:
            let_go(connection)


def test_server_without_memory_told_apart(
    server: TritonServer, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not see the memory is told apart."""
    register = Connection.register_region

    def elsewhere(self: Connection, name: str, key: str, size_bytes: int) -> None:
        register(self, name, f"{key}-of-another-machine", size_bytes)

    monkeypatch.setattr(Connection, "register_region", elsewhere)
    with Client(address("http"), model="tiny", shared_memory=True) as client:
        with pytest.raises(ServedCheckError, match="refused to map shared memory") as refused:
            client.infer(feed(1, 20_000))
        assert "without shared memory" in refused.value.remedy
        assert not ours()
    assert not region_names(server)


def test_memory_goes_without_server(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory goes though the server is gone."""

    def refuse(self: Connection, name: str) -> None:
        raise EnvironmentFault(f"no server is reached at {self.address}, to let {name} go", remedy="none")

    with Client(address("http"), model="tiny", shared_memory=True) as client:
        client.infer(feed(1, 20_000))
        assert ours()
        monkeypatch.setattr(Connection, "forget_region", refuse)
    assert not ours()
    with tritonclient.http.InferenceServerClient(address("http")) as connection:
        let_go(connection)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_busy_memory_released_later(server: TritonServer, address: Address, protocol: Protocol) -> None:
    """Triton answers before it lets go of a request's memory, and refuses to forget that until then."""
    with Client(address(protocol), model="tiny", protocol=protocol, shared_memory=True) as client:
        client.infer(feed(1, 20_000))
        requests = client._connection._client
        unregister, refusals = requests.unregister_system_shared_memory, [IN_USE, IN_USE]

        def refuse_at_first(*args: Any, **named: Any) -> None:
            if refusals:
                raise refusals.pop()
            unregister(*args, **named)

        requests.unregister_system_shared_memory = refuse_at_first
    assert not refusals
    assert not region_names(server)
