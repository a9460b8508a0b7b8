"""The client asks the real front end of SageMaker, in both forms that it speaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.client import Encoding, SageMakerClient, Signature
from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, UsageError
from plansmith.sagemaker.signatures import model_from_file

from ....support.sagemaker.front_end import FrontEnd
from ..served import DTYPES
from ..test_asking import extremes, samples

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.xdist_group("sagemaker")]

ENCODINGS: tuple[Encoding, ...] = ("binary", "json")


def signature_of(archives: Path, model: str) -> Signature:
    return model_from_file(archives / model / model / "config.pbtxt").signature


@pytest.fixture
def client_of(multi_model: FrontEnd, archives: Path) -> Any:
    """A client of a model of the multi-model endpoint."""

    def connect(model: str, **settings: Any) -> SageMakerClient:
        defaults: dict[str, Any] = {"signature": signature_of(archives, model), "model": model, "target_model": model}
        return SageMakerClient("multi", url=f"http://{multi_model.address}", **(defaults | settings))

    return connect


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_texts_through_ensemble(single_model: FrontEnd, archives: Path, encoding: Encoding) -> None:
    """Texts of several rows go through an ensemble, and its vectors come back."""
    signature, url = signature_of(archives, "pipe"), f"http://{single_model.address}"
    with SageMakerClient("one", signature=signature, url=url, encoding=encoding) as client:
        answer = client.ask({"text": [["a cat"], ["ä dog on a mat"]]})
    assert (answer.version, answer.requests, answer.variant) == ("1", 1, "")
    assert answer.outputs["embedding"][:, 0].tolist() == [5, len("Ä DOG ON A MAT".encode())]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_dtypes(client_of: Any, encoding: Encoding) -> None:
    """Every dtype arrives and comes back unchanged; JSON has no form for half precision."""
    with client_of("echo", encoding=encoding) as client:
        for dtype in DTYPES:
            sent, output = extremes(dtype), f"their_{dtype}"
            if encoding == "json" and dtype in {"float16", "bfloat16"}:
                with pytest.raises(UsageError, match="no form in JSON"):
                    client.infer({dtype: sent}, outputs=[output])
                continue
            received = client.infer({dtype: sent}, outputs=[output])[output]
            assert (received.dtype, received.tolist()) == (sent.dtype, sent.tolist())


def test_image_bytes(client_of: Any) -> None:
    """The bytes of a file arrive whole, and labels come back."""
    image = np.array([[bytes(range(256))]], dtype=object)
    with client_of("classes") as client:
        answer = client.infer({"image": image})
    assert answer["label"][0].tolist() == [b"256 bytes", b"tabby, tabby cat", b"Egyptian cat"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_large_batch(client_of: Any, encoding: Encoding) -> None:
    """A batch beyond the model's largest is sent in parts."""
    feed = samples(19)
    with client_of("tiny", encoding=encoding) as client:
        answer = client.ask(feed)
    assert answer.requests == 3
    np.testing.assert_array_equal(answer.outputs["half"], feed["a"] / 2)
    np.testing.assert_array_equal(answer.outputs["twice"], feed["ids"] * 2)


def test_parameters(client_of: Any) -> None:
    """Parameters of a request reach the model."""
    with client_of("shout") as client:
        answer = client.infer({"text": [["a"]]}, parameters={"top_k": 3, "mode": "fast"})
    assert json.loads(answer["told"].item()) == {"top_k": 3, "mode": "fast"}


def test_bytes_in_json(client_of: Any) -> None:
    """An answer with bytes that are no text is read in binary; in JSON the error says so."""
    feed: dict[str, Any] = {"string": [["no text"]]}
    with client_of("echo") as client:
        assert client.infer(feed, outputs=["their_string"])["their_string"].item() == b"\xff\x00"
    with client_of("echo", encoding="json") as client, pytest.raises(ServedCheckError) as error:
        client.infer(feed, outputs=["their_string"])
    assert error.value.remedy.startswith("ask in binary")


@pytest.mark.parametrize(
    ("model", "feed", "settings", "error_type", "message"),
    [
        ("moody", {"mood": [-1]}, {}, ServedCheckError, "refused a request to moody (400): not in the mood"),
        ("tiny", samples(1), {"target_model": "other"}, ServedCheckError, "(404): other is not loaded"),
        ("heavy", {"x": [[1.0]]}, {}, EnvironmentFault, "no memory for heavy (507): CUDA out of memory"),
        ("moody", {"mood": [-2]}, {"timeout_seconds": 0.5}, EnvironmentFault, "did not answer within 0.5 s"),
        ("pieces", {"text": [["a"]]}, {}, UsageError, "pieces is decoupled"),
    ],
)
def test_errors(
    client_of: Any,
    pauses: list[float],
    model: str,
    feed: dict[str, Any],
    settings: dict[str, Any],
    error_type: type[PlansmithError],
    message: str,
) -> None:
    """What a model refuses is an error with its reason, and is not retried."""
    with client_of(model, **settings) as client, pytest.raises(error_type) as error:
        client.infer(feed)
    assert message in error.value.message
    assert error.value.remedy
    assert not pauses
