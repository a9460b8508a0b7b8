"""The requests of a load test: from data, at random, and as encoded bodies."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from plansmith.config.data import DataSpec
from plansmith.errors import UsageError
from plansmith.loadtest.payloads.encoding import PayloadMix, Payloads
from plansmith.loadtest.payloads.inputs import SizeMix, random_inputs, read_data
from plansmith.loadtest.payloads.source import KnownModel, ModelInputs, RequestOptions, choose_inputs, encode
from plansmith.loadtest.plan_file import ModelShare
from plansmith.loadtest.target import LoadTarget
from plansmith.records.model import AxisRange, Tensor
from plansmith.triton.client import Signature

TEXTS = Signature(
    inputs=(Tensor(name="text", dtype="string", dims=("batch", 1)),),
    outputs=(Tensor(name="label", dtype="string", dims=("batch", 1)),),
    max_batch_size=4,
)
TOKENS = Signature(
    inputs=(
        Tensor(name="ids", dtype="int64", dims=("batch", "length")),
        Tensor(name="mask", dtype="int64", dims=("batch", "length")),
    ),
    outputs=(Tensor(name="vector", dtype="float32", dims=("batch", 8)),),
    max_batch_size=4,
)


def test_texts_batched_as_they_are(tmp_path: Path) -> None:
    """Every row comes equally often, in batches from 1 to the largest."""
    (tmp_path / "lines.txt").write_text("a cat\na dog\nüber\n")
    data = read_data(DataSpec(path=str(tmp_path / "lines.txt")), TEXTS)
    requests = [request["text"] for request in islice(data.requests(SizeMix()), 60)]
    assert {len(request) for request in requests} == {1, 2, 3, 4}
    texts = [text for request in requests for text in request.reshape(-1)]
    assert set(texts) == {b"a cat", b"a dog", "über".encode()}
    assert max(map(texts.count, set(texts))) - min(map(texts.count, set(texts))) <= 1


def test_input_columns_are_padded(tmp_path: Path) -> None:
    """Columns with the names of inputs are padded."""
    rows = [{"ids": [1, 2, 3], "mask": [1, 1, 1]}, {"ids": [7], "mask": [1]}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = read_data(DataSpec(path=str(tmp_path / "rows.jsonl")), TOKENS)
    request = next(data.requests(SizeMix(batches=(2,))))
    assert sorted(request["ids"].tolist()) == [[1, 2, 3], [7, 0, 0]]
    assert request["mask"].dtype == np.int64


@pytest.mark.parametrize(("file", "content"), [("lines.txt", "a cat\n"), ("rows.csv", "text,label\na cat,1\n")])
def test_texts_for_tokens_refused(file: str, content: str, tmp_path: Path) -> None:
    """Texts for a model that takes tokens are refused with what it takes."""
    (tmp_path / file).write_text(content)
    with pytest.raises(UsageError) as refused:
        read_data(DataSpec(path=str(tmp_path / file)), TOKENS)
    assert "ids and mask" in refused.value.message
    assert "a table or an .npz file with ids and mask" in refused.value.remedy


def test_images_are_sent_as_files(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (4, 4), "red").save(tmp_path / "images" / "red.png")
    data = read_data(DataSpec(path=str(tmp_path / "images")), TEXTS)
    request = next(data.requests(SizeMix(batches=(1,))))
    assert request["text"].shape == (1, 1)
    assert request["text"][0, 0] == (tmp_path / "images" / "red.png").read_bytes()


def test_random_inputs_have_mixed_sizes() -> None:
    """They stay in the known ranges, agree between inputs, and are the same for the same seed."""
    axes = {"length": AxisRange(min=4, opt=8, max=32, step=4)}
    requests = list(islice(random_inputs(TOKENS, SizeMix(seed=3), axes=axes), 40))
    lengths = {request["ids"].shape[1] for request in requests}
    assert lengths <= set(range(4, 33, 4))
    assert len(lengths) > 4
    assert all(request["ids"].shape == request["mask"].shape for request in requests)
    again = list(islice(random_inputs(TOKENS, SizeMix(seed=3), axes=axes), 40))
    assert all(np.array_equal(first["ids"], second["ids"]) for first, second in zip(requests, again, strict=True))


def test_payloads_are_whole_requests(tmp_path: Path) -> None:
    """gRPC bodies are the messages of KServe's protocol; binary and JSON bodies say so in their headers."""
    from tritonclient.grpc import service_pb2

    inputs = ModelInputs((({"text": np.array([["a"], ["über"]], object)}),), "two texts")
    bodies = {}
    for name, options in {
        "grpc": RequestOptions(protocol="grpc", parameters={"top_k": 3}),
        "binary": RequestOptions(protocol="http"),
        "json": RequestOptions(protocol="http", encoding="json"),
    }.items():
        model = encode(ModelShare(model="tags@2"), inputs, TEXTS, tmp_path / name, options)
        (bodies[name],) = Payloads(Path(model.payloads))
    assert {payload.samples for payload in bodies.values()} == {2}
    message = service_pb2.ModelInferRequest.FromString(bodies["grpc"].body)
    assert (message.model_name, message.model_version, list(message.inputs[0].shape)) == ("tags", "2", [2, 1])
    assert message.raw_input_contents[0] == b"\1\0\0\0a\5\0\0\0\xc3\xbcber"
    assert message.parameters["top_k"].int64_param == 3
    assert json.loads(bodies["json"].body)["inputs"][0]["data"] == ["a", "über"]
    header = int(bodies["binary"].headers["Inference-Header-Content-Length"])
    assert bodies["binary"].body[header:] == message.raw_input_contents[0]


def test_mix_draws_each_payload_once(tmp_path: Path) -> None:
    """Mix draws each payload of a round once."""
    arrays = tuple({"text": np.array([[str(number)]], object)} for number in range(5))
    model = encode(ModelShare(model="a"), ModelInputs(arrays, ""), TEXTS, tmp_path / "a", RequestOptions())
    mix = PayloadMix(LoadTarget(place="x:1", models=(model,)), "seed")
    for _ in range(3):
        assert len({mix.draw()[2].body for _ in range(5)}) == 5


@pytest.mark.parametrize(
    ("share", "signature", "message"),
    [
        (ModelShare(model="a", batches=(2, 5)), TEXTS, "takes batches of 1 to 4, and not of 5"),
        (ModelShare(model="a"), TEXTS.model_copy(update={"is_decoupled": True}), "in several pieces"),
    ],
)
def test_unfitting_payload_refused(share: ModelShare, signature: Signature, message: str) -> None:
    """What a model does not take is refused."""
    with pytest.raises(UsageError) as refused:
        choose_inputs(share, KnownModel(signature), RequestOptions())
    assert message in refused.value.message
