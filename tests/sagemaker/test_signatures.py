"""What a model behind an endpoint takes is known from its release, its archive or a file."""

from __future__ import annotations

import json
import random
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from plansmith.client import SageMakerClient, signature_from_package
from plansmith.errors import RepositoryError, UsageError
from plansmith.records.model import Tensor
from plansmith.sagemaker.archives import plan_archives, write_archive
from plansmith.sagemaker.selection import PackageRequest
from plansmith.sagemaker.signatures import model_from_archive, model_from_file, model_from_release
from plansmith.triton.checker.archive import look_into
from plansmith.triton.repository.repository import ModelRepository

from ..support.models.archives import bomb
from ..support.sagemaker.releases import publish_ensemble, publish_onnx

CONFIG = """
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "y" data_type: TYPE_STRING dims: [ 1 ] }
"""
SIGNATURE: dict[str, Any] = {
    "inputs": [{"name": "x", "dtype": "float32", "dims": ["batch", 3]}],
    "outputs": [{"name": "y", "dtype": "string", "dims": ["batch", 1]}],
    "max_batch_size": 4,
}


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    """Two versions of `tiny`, of which the second has its answers cached; an ensemble `whole`."""
    opened = ModelRepository(tmp_path / "repository")
    publish_onnx(opened, tmp_path, "tiny")
    publish_onnx(
        opened, tmp_path, "tiny", changes={"max_batch_size: 8": "max_batch_size: 8\nresponse_cache { enable: true }"}
    )
    publish_ensemble(opened, tmp_path, "whole")
    return opened


def archive(folder: Path, **configs: str) -> Path:
    path = folder / "model.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in configs.items():
            (folder / name).mkdir()
            (folder / name / "config.pbtxt").write_text(text)
            tar.add(folder / name, name)
    return path


def test_release(repository: ModelRepository) -> None:
    """A release tells names and sizes of axes, and its configuration whether answers are cached."""
    first, newest = model_from_release(repository, "tiny@1"), model_from_release(repository, "tiny")
    assert first.signature == signature_from_package(repository.manifest("tiny", 1).package)
    assert newest.signature == first.signature.model_copy(update={"is_cached": True})
    assert (newest.name, newest.axis_sizes["batch"]) == ("tiny", 8)
    with pytest.raises(RepositoryError, match="no model 'other'"):
        model_from_release(repository, "other")


def test_cached_answers(repository: ModelRepository) -> None:
    """Where answers are cached, all outputs are asked for."""
    requested = []
    for release in ("tiny@1", "tiny@2"):
        with SageMakerClient("any", signature=model_from_release(repository, release).signature) as client:
            (request,) = client.requests({"x": [[1.0]]}, outputs=["three"])
        requested.append([tensor.name for tensor in request.outputs])
    assert requested == [["three"], ["whole", "three"]]


def test_manifest_file(repository: ModelRepository, tmp_path: Path) -> None:
    """A manifest tells as much as its release; alone, all but what the configuration says."""
    release = repository.release("tiny", 2) / "manifest.json"
    alone = tmp_path / "manifest.json"
    alone.write_bytes(release.read_bytes())
    assert model_from_file(alone).signature == signature_from_package(repository.manifest("tiny", 2).package)
    assert model_from_file(release) == model_from_release(repository, "tiny@2")


def test_config_and_signature_files(tmp_path: Path) -> None:
    """A config.pbtxt and a signature as JSON are read; -1 is a free dim in both."""
    (tmp_path / "config.pbtxt").write_text(f'name: "named"{CONFIG}')
    model = model_from_file(tmp_path / "config.pbtxt")
    assert (model.name, model.signature.max_batch_size) == ("named", 4)
    assert model.signature.inputs == (Tensor(name="x", dtype="float32", dims=("batch", "?", 3)),)
    (tmp_path / "free.json").write_text(json.dumps(SIGNATURE).replace('batch", 3', 'batch", -1, 3'))
    assert model_from_file(tmp_path / "free.json").signature.inputs == model.signature.inputs


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("absent.json", None, "cannot be read: No such file"),
        ("a.json", "{", "is no JSON"),
        ("a.json", "[]", "must be a mapping"),
        ("a.json", json.dumps({**SIGNATURE, "more": 1}), "more"),
        ("a.json", json.dumps(SIGNATURE).replace("float32", "fp32"), "'fp32' is no dtype"),
        ("a.json", json.dumps(SIGNATURE).replace('batch", 3', 'rows", 3'), "its first dim must be 'batch'"),
        ("a.json", json.dumps(SIGNATURE).replace('batch", 3', f'batch", {10**30}'), "is no size of a dim"),
        ("a.json", json.dumps({**SIGNATURE, "max_batch_size": -1}), "-1 is no number of samples"),
        ("a.json", json.dumps({**SIGNATURE, "inputs": SIGNATURE["inputs"] * 2}), "x: the name is used twice"),
        ("a.json", json.dumps(SIGNATURE).replace('"x"', '"\\ud800"'), "no such name can be sent"),
        ("a.json", '{"package": {}}', "no manifest of a release"),
        ("config.pbtxt", "max_batch: 4", "no configuration that Triton reads"),
        ("config.pbtxt", 'backend: "onnxruntime"', "does not tell inputs and outputs"),
    ],
)
def test_invalid_file(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    """A file that does not describe a model says what is wrong with it."""
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        model_from_file(tmp_path / name)
    assert error.value.remedy


def test_archive(repository: ModelRepository, tmp_path: Path) -> None:
    """An archive of `package` tells what the model takes that the endpoint serves."""
    for name in ("tiny", "whole"):
        (plan,) = plan_archives(repository, PackageRequest((name,)), tmp_path / f"{name}.tar.gz")
        model = model_from_archive(Path(write_archive(plan).file))
        expected = model_from_release(repository, name).signature
        assert model.name == name
        assert [tensor.name for tensor in model.signature.inputs] == [tensor.name for tensor in expected.inputs]
        assert model.signature.max_batch_size == expected.max_batch_size


def test_archive_of_several_models(tmp_path: Path) -> None:
    """Of several models without an ensemble, one must be named."""
    path = archive(tmp_path, one=CONFIG, two=CONFIG)
    with pytest.raises(UsageError, match="several models: one, two") as error:
        model_from_archive(path)
    assert "--model" in error.value.remedy
    assert model_from_archive(path, "two").name == "two"
    with pytest.raises(UsageError, match="no model 'three'"):
        model_from_archive(path, "three")


def test_damaged_archive(tmp_path: Path) -> None:
    """What is no archive, or half of one, is refused."""
    path = archive(tmp_path, one=f"{CONFIG}# {random.Random(0).randbytes(100_000).hex()}\n")
    content = path.read_bytes()
    for damaged in (b"", b"no archive", b"\x1f\x8b\x08\x00\x00\x00", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"cannot be read|holds no model"):
            model_from_archive(path)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_greedy_header_gets_little_memory(kind: bytes, tmp_path: Path) -> None:
    """A header that wants all memory gets none, in an archive of a model and in one of Python packages."""
    path = tmp_path / "model.tar.gz"
    path.write_bytes(bomb(200_000_000, kind=kind))
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="a header of 200,000,000 bytes"):
            model_from_archive(path)
        assert "a header of 200,000,000 bytes" in look_into(path).problem
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
