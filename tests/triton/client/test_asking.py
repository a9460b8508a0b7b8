"""The client gets from a running Triton what the model answers, over every protocol and in every encoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http

from plansmith.errors import EnvironmentFault, ServedCheckError, UsageError
from plansmith.records.model import Tensor
from plansmith.records.release import Interface
from plansmith.triton.client import Client, Encoding, Protocol

from ...support.waiting import soon
from .conftest import PART
from .served import DTYPES, TINY

if TYPE_CHECKING:
    from plansmith.triton.server.server import TritonServer

    Address = Callable[[Protocol], str]

pytestmark = pytest.mark.xdist_group("client")

WAYS: tuple[tuple[Protocol, Encoding], ...] = (("http", "binary"), ("http", "json"), ("grpc", "binary"))
PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")


def extremes(dtype: str) -> np.ndarray[Any, Any]:
    """Two samples with values at which a dtype ends."""
    if dtype == "string":
        return np.array([[b"a cat", "ä".encode()], [b"", b"x" * 300]], dtype=object)
    if dtype == "bool":
        return np.array([[True, False], [False, False]])
    if dtype == "bfloat16":
        return np.array([[1.5, -3e38], [1e-38, 0]], ml_dtypes.bfloat16)
    if dtype.startswith("float"):
        limits = np.finfo(dtype)
        return np.array([[limits.max, limits.tiny], [-0.1, np.inf]], dtype)
    ends = np.iinfo(dtype)
    return np.array([[ends.max, ends.min], [1, 0]], dtype)


def samples(count: int) -> dict[str, np.ndarray[Any, Any]]:
    a = np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)
    return {"a": a, "ids": np.arange(count * 5).reshape(count, 5)}


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("shared_memory", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cached_question_answers_other_outputs(
    address: Address, protocol: Protocol, shared_memory: bool, is_known: bool
) -> None:
    """Where Triton keeps answers, other outputs of the same question are answered too."""
    release: dict[str, Any] = {"interface": TINY, "max_batch_size": 8} if is_known else {}
    number = PROTOCOLS.index(protocol) * 4 + shared_memory * 2 + is_known
    sent: dict[str, Any] = {"a": np.full((9, 3), number, np.float32), "ids": np.arange(9 * 20_000).reshape(9, -1)}
    with Client(address(protocol), model="cached", protocol=protocol, shared_memory=shared_memory, **release) as client:
        for _ in range(2):
            for name, right in (("half", sent["a"] / 2), ("twice", sent["ids"] * 2)):
                answer = client.infer(sent, outputs=[name])
                assert list(answer) == [name]
                np.testing.assert_array_equal(answer[name], right)


@pytest.mark.slow
def test_partial_cached_answer_never_whole(
    address: Address,
) -> None:
    """An answer that others had Triton keep without an output is never given as a whole one."""
    sent = {"a": np.full((1, 3), 99, np.float32), "ids": [[1, 2]]}
    with Client(address("http"), model="cached") as client:
        client._signature = client.signature().model_copy(update={"is_cached": False})
        client.infer(sent, outputs=["half"])
    with (
        Client(address("http"), model="cached") as client,
        pytest.raises(ServedCheckError, match="without its output 'twice'") as refused,
    ):
        client.infer(sent)
    assert "response_cache" in refused.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "encoding"), WAYS)
def test_every_dtype_round_trips(address: Address, protocol: Protocol, encoding: Encoding) -> None:
    """Every dtype arrives and comes back as it is."""
    for dtype in DTYPES:
        sent = extremes(dtype)
        with Client(address(protocol), model="echo", protocol=protocol, encoding=encoding) as client:
            if encoding == "json" and dtype in {"float16", "bfloat16"}:
                with pytest.raises(UsageError, match="no form in JSON"):
                    client.infer({dtype: sent}, outputs=[f"their_{dtype}"])
                continue
            back = client.infer({dtype: sent}, outputs=[f"their_{dtype}"])
        assert set(back) == {f"their_{dtype}"}
        assert back[f"their_{dtype}"].dtype == sent.dtype
        assert back[f"their_{dtype}"].tolist() == sent.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "encoding"), WAYS)
def test_oversized_batch_sent_in_parts(
    server: TritonServer, address: Address, protocol: Protocol, encoding: Encoding
) -> None:
    """A batch beyond the largest is sent in parts and answered as one."""

    def requests() -> int:
        with tritonclient.http.InferenceServerClient(server.http_url) as connection:
            (counts,) = connection.get_inference_statistics("tiny")["model_stats"]
        return int(counts["inference_stats"]["success"]["count"])

    feed = samples(19)
    before = requests()
    with Client(address(protocol), model="tiny", protocol=protocol, encoding=encoding) as client:
        answer = client.ask(feed)
    assert (answer.requests, answer.version) == (3, "1")
    assert soon(requests, before + 3) == before + 3
    np.testing.assert_array_equal(answer.outputs["half"], feed["a"] / 2)
    np.testing.assert_array_equal(answer.outputs["twice"], feed["ids"] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_server_facts_match_release(address: Address, protocol: Protocol) -> None:
    """What the server tells is what the release says."""
    with Client(address(protocol), model="tiny", protocol=protocol) as client:
        remote = client.signature()
    with Client("127.0.0.1:1", model="tiny", protocol=protocol, interface=TINY, max_batch_size=8) as client:
        local = client.signature()
    assert remote.describe().replace("?", "length") == local.describe()
    with Client(address(protocol), model="echo", protocol=protocol) as client:
        echo = client.signature()
    assert {tensor.name for tensor in echo.inputs} == set(echo.optional) == {*DTYPES, "value"}
    assert [t.dtype for t in echo.inputs] == [*DTYPES, "int64"]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_single_value_has_no_client_dim(address: Address, protocol: Protocol) -> None:
    """A single value per sample has no dim for clients."""
    with Client(address(protocol), model="echo", protocol=protocol) as client:
        back = client.infer({"value": np.arange(7)}, outputs=["their_value"])["their_value"]
        assert back.tolist() == list(range(7))
        with pytest.raises(UsageError, match=r"'value' takes \[batch\] and was given \[7, 1\]"):
            client.infer({"value": np.arange(7).reshape(7, 1)})


@pytest.mark.slow
def test_optional_input_may_be_omitted(address: Address) -> None:
    """An input may be left out where the server does without."""
    both = Interface(
        inputs=tuple(Tensor(name=n, dtype="int64", dims=("batch", "n")) for n in ("int64", "value")),
        outputs=(Tensor(name="their_int64", dtype="int64", dims=("batch", "n")),),
    )
    with Client(address("grpc"), model="echo", protocol="grpc", interface=both, max_batch_size=4) as client:
        assert client.infer({"int64": [[5]]})["their_int64"].tolist() == [[5]]
    with (
        Client(address("http"), model="tiny", interface=TINY, max_batch_size=8) as client,
        pytest.raises(UsageError, match="input 'ids' is missing"),
    ):
        client.infer({"a": samples(1)["a"]})


def test_misfit_told_and_never_sent() -> None:
    """What does not fit is told at once and never sent."""
    with Client("127.0.0.1:1", model="tiny", interface=TINY, max_batch_size=8) as client:
        feed = {"a": np.zeros((2, 4)), "idz": [1], "ids": np.zeros((3, 4), np.int64)}
        with pytest.raises(UsageError) as refused:
            client.infer(feed)
        with pytest.raises(UsageError, match="no output 'third'"):
            client.infer(samples(1), outputs=["third"])
    assert refused.value.message.splitlines() == [
        "there is no input 'idz'; 'ids' is meant, perhaps",
        "input 'a' takes float32 and was given float64, which may lose digits; array.astype('float32') does it",
        "The model has:",
        "input a: float32 [batch, 3]",
        "input ids: int64 [batch, length]",
        "output half: float32 [batch, 3]",
        "output twice: int64 [batch, length]",
        "batch is at most 8 in a request; larger ones are split",
    ]
    assert refused.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_triton_refusal_harms_no_later_request(address: Address, protocol: Protocol) -> None:
    """What Triton refuses is told with its reason, and harms no later request."""
    with Client(address(protocol), model="moody", protocol=protocol) as client:
        with pytest.raises(ServedCheckError, match=r"refused a request to moody: not in the mood") as refused:
            client.infer({"mood": [-1]})
        assert refused.value.remedy
        assert client.infer({"mood": [2]})["said"].tolist() == [[0, 0]]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unfitting_part_answers_are_error(address: Address, protocol: Protocol) -> None:
    """Parts whose answers do not fit together are an error."""
    with Client(address(protocol), model="moody", protocol=protocol) as client:
        with pytest.raises(UsageError, match=r"'said' has samples of \[1\] and \[2\]") as refused:
            client.infer({"mood": [1, 1, 2]})
        assert refused.value.remedy == "send at most 2 samples at once"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_missing_model_lists_existing(address: Address, protocol: Protocol, repository: Path) -> None:
    """A model or version that is not there is named with those that are."""
    models = ", ".join(sorted({folder.name for folder in repository.iterdir()} - {PART}))
    with Client(address(protocol), model="tinny", protocol=protocol) as client:
        with pytest.raises(ServedCheckError, match="unknown model: 'tinny'") as refused:
            client.infer(samples(1))
        assert refused.value.remedy == f"choose from its models: {models}"
    options = {"interface": TINY, "max_batch_size": 8}
    with (
        Client(address(protocol), model="tiny", version="7", protocol=protocol, **options) as client,  # type: ignore[arg-type]
        pytest.raises(ServedCheckError, match="'tiny' version 7") as refused,
    ):
        client.infer(samples(1))
    assert refused.value.remedy == "choose from its versions: 1"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_slow_answer_ends_wait(address: Address, protocol: Protocol) -> None:
    """An answer that takes too long ends the wait."""
    with Client(address(protocol), model="moody", protocol=protocol) as client:
        client.signature()
    with Client(address(protocol), model="moody", protocol=protocol, timeout_seconds=1) as client:
        with pytest.raises(EnvironmentFault, match=r"did not answer within 1 s") as late:
            client.infer({"mood": [-2]})
        assert late.value.transient


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("place", ["127.0.0.1:1", "nowhere.invalid:8000"])
def test_unreachable_server_named(place: str, protocol: Protocol) -> None:
    """A server that is not reached is named."""
    with Client(place, model="tiny", protocol=protocol) as client:
        with pytest.raises(EnvironmentFault, match=f"no server is reached at {protocol}://{place}: ") as fault:
            client.infer(samples(1))
        assert fault.value.transient
        assert "--url" in fault.value.remedy


@pytest.mark.slow
def test_foreign_endpoint_told(server: TritonServer) -> None:
    """What is not Triton's endpoint is told as such."""
    for url in (server.grpc_url, server.metrics_url):
        with (
            Client(url, model="tiny") as client,
            pytest.raises(EnvironmentFault, match="is not Triton's HTTP endpoint"),
        ):
            client.infer(samples(1))


@pytest.mark.slow
def test_binary_suggested_beyond_json(address: Address) -> None:
    """What JSON cannot hold is told to be asked in binary."""
    with Client(address("http"), model="echo", encoding="json") as client:
        with pytest.raises(UsageError, match="no UTF-8") as refused:
            client.infer({"string": np.array([[b"\xff"]], dtype=object)}, outputs=["their_string"])
        assert refused.value.remedy == "ask in binary"
        with pytest.raises(ServedCheckError, match=r"the answer of http://.* cannot be read: .*UTF-8") as unread:
            client.infer({"string": [["no text"]]}, outputs=["their_string"])
        assert unread.value.remedy == "ask in binary"


def test_contradicting_arguments_refused() -> None:
    """Arguments that contradict each other are refused."""
    for wrong in (
        {"protocol": "grpc", "encoding": "json"},
        {"encoding": "json", "shared_memory": True},
        {"interface": TINY},
        {"max_batch_size": 8},
        {"protocol": "udp"},
    ):
        with pytest.raises(UsageError) as refused:
            Client("127.0.0.1:8000", model="tiny", **wrong)
        assert refused.value.remedy
