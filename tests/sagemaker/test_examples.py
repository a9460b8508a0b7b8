"""The answer of an endpoint is checked against its release: by a request that the release holds, or a random one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.client import SageMakerClient, Signature
from plansmith.errors import ServedCheckError
from plansmith.pipelines.cases import store_case
from plansmith.records.model import Precision, Tensor
from plansmith.records.pipeline import Pipeline
from plansmith.sagemaker.signatures import ExampleResult, ServedModel, check_example, example_for, model_from_release
from plansmith.triton.repository.repository import ModelRepository
from plansmith.validation.comparison import LIMITS

from ..support.sagemaker.http_server import HttpAnswer, http_server
from ..support.sagemaker.releases import publish_onnx

SIGNATURE = Signature(
    inputs=(Tensor(name="ids", dtype="int64", dims=("batch", "length")),),
    outputs=(
        Tensor(name="half", dtype="float32", dims=("batch", 3)),
        Tensor(name="twice", dtype="int64", dims=("batch", "length")),
    ),
    max_batch_size=8,
)


def check(model: ServedModel, url: str, **settings: Any) -> ExampleResult:
    with SageMakerClient("any", signature=model.signature, model=model.name, url=url, **settings) as client:
        return check_example(client, model)


def test_raw_request(tmp_path: Path) -> None:
    """A pipeline is checked by the raw request that it holds."""
    repository = ModelRepository(tmp_path / "repository")
    publish_onnx(repository, tmp_path, "tiny")
    manifest = model_from_release(repository, "tiny").manifest
    assert manifest is not None
    texts = np.array([[b"a cat"], [b"a dog on a mat"]], dtype=object)
    expected = np.ones((2, 4), np.float32)
    case = store_case("two", {"text": texts}, {"embedding": expected}, "raw", tmp_path)
    signature = Signature(
        inputs=(Tensor(name="text", dtype="string", dims=("batch", 1)),),
        outputs=(Tensor(name="embedding", dtype="float32", dims=("batch", 4)),),
        max_batch_size=8,
    )
    tolerances = {"embedding": LIMITS[Precision.FP32].tolerance}
    fields = {
        "pipeline": Pipeline.model_construct(cases=(case,)),
        "validation": manifest.validation.model_copy(update={"tolerances": tolerances}),
    }
    model = ServedModel("texts", signature, {}, manifest.model_copy(update=fields), tmp_path)
    for value in (1, 2):
        output = {"name": "embedding", "datatype": "FP32", "shape": [2, 4], "data": [value] * 8}
        answer = HttpAnswer(body=json.dumps({"model_version": "1", "outputs": [output]}).encode())
        with http_server(answer) as server:
            if value == 1:
                assert check(model, server.url, encoding="json").request == "the request 'two' of its release"
                continue
            with pytest.raises(ServedCheckError, match="embedding: "):
                check(model, server.url, encoding="json")


@pytest.mark.parametrize(
    ("half", "twice", "message"),
    [
        ({}, {}, ""),
        ({"data": [float("nan"), 1, 2]}, {}, "output 'half' has numbers that are not finite"),
        (
            {"data": [1, 2], "shape": [1, 2]},
            {},
            "'half' has the shape [1, 2], and should have [batch, 3], where batch is 1",
        ),
        ({"datatype": "FP64"}, {}, "output 'half' is float64, and should be float32"),
        ({}, {"data": [1] * 7, "shape": [1, 7]}, "should have [batch, length], where batch is 1, length is 8"),
        ({}, {"data": [1] * 16, "shape": [2, 8]}, "output 'twice' has the shape [2, 8]"),
    ],
)
def test_signature_is_checked(half: dict[str, Any], twice: dict[str, Any], message: str) -> None:
    """An answer with other dtypes, shapes or numbers than the signature allows is wrong."""
    outputs = [
        {"name": "half", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3], **half},
        {"name": "twice", "datatype": "INT64", "shape": [1, 8], "data": [1] * 8, **twice},
    ]
    answer = HttpAnswer(body=json.dumps({"model_version": "1", "outputs": outputs}).encode())
    model = ServedModel("tiny", SIGNATURE)
    with http_server(answer) as server:
        if not message:
            assert not check(model, server.url, encoding="json").compared
            return
        with pytest.raises(ServedCheckError) as error:
            check(model, server.url, encoding="json")
    assert message in error.value.message


def test_random_request_is_reproducible() -> None:
    """The same random request is sent each time, in the usual sizes."""
    first, second = (example_for(ServedModel("tiny", SIGNATURE, {"length": 5})) for _ in range(2))
    assert first.feed["ids"].shape == (1, 5)
    assert (first.feed["ids"] == second.feed["ids"]).all()
