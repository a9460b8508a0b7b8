"""A deployment tests the endpoint with what its release holds: moto is the control plane, a real Triton answers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from plansmith.config.targets import load_target
from plansmith.sagemaker.deployment.apply import smoke_requests
from plansmith.sagemaker.endpoint.desired import desired_state, plan_variant_archives, planned_archives
from plansmith.sagemaker.endpoint.loader import read_endpoint
from plansmith.sagemaker.selection import PackageRequest
from plansmith.triton.client.sagemaker.transports import FrontEndTransport
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.installation import Installation

from ...support.cli.command import Answer, check_refusal
from ...support.cli.in_process import InProcess
from ...support.sagemaker.account import AwsAccount, account, aws_endpoint, loader
from ...support.sagemaker.endpoints import write_endpoint
from ...support.sagemaker.front_end import START_SECONDS, front_end, unpacked_archives
from ...support.servers.aws_server import aws, s3_server
from ...support.triton.installed import installation, site
from ..conftest import Compiled

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.xdist_group("sagemaker")]

__all__ = ["account", "aws", "aws_endpoint", "installation", "loader", "s3_server", "site"]

REQUEST = PackageRequest(["tiny"], target=load_target("sagemaker-26.05-cpu"))


class Deploying:
    """`plansmith sagemaker deploy` for an endpoint that serves `tiny`, whose instances are a Triton of this machine."""

    def __init__(self, run: InProcess, account: AwsAccount, repository: ModelRepository) -> None:
        self._run = run
        self.account = account
        self._repository = repository

    def __call__(self, *arguments: str, **changes: Any) -> Answer:
        """Deploy it."""
        self.account.plane.requests.clear()
        image = {"image": {"version": "26.05"}, "instance_type": "ml.m5.large"}
        variant = {"models": ["tiny"], **image, **changes.pop("variant", {})}
        values = {"name": self.account.name, "bucket": f"s3://{self.account.bucket}/a", "variant": variant}
        write_endpoint(self._run.folder, **{**values, "repository": str(self._repository.root), **changes})
        return self._run("sagemaker", "deploy", "endpoint.yaml", *arguments)


@pytest.fixture
def repository(compiled: Compiled) -> ModelRepository:
    """It has `tiny`, with the requests that its compilation kept."""
    return ModelRepository(compiled.folder / "artifacts" / "repository")


@pytest.fixture
def deploy(run: InProcess, account: AwsAccount, repository: ModelRepository) -> Deploying:
    return Deploying(run, account, repository)


@contextmanager
def serving(root: Path, installation: Installation, site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a Triton with an unpacked archive answer for the endpoint."""
    with (
        front_end(root, installation, root.parent / f"{root.name}.log", site=site) as running,
        monkeypatch.context() as patch,
    ):
        transport = FrontEndTransport(f"http://{running.address}", timeout_seconds=START_SECONDS)
        patch.setattr("plansmith.triton.client.sagemaker.client.RuntimeTransport", lambda *_, **__: transport)
        yield


def test_release(
    deploy: Deploying,
    repository: ModelRepository,
    installation: Installation,
    site: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An endpoint has to answer as its release does: with other weights, it rolls back, unless the test is off."""
    with unpacked_archives(repository, tmp_path / "archives", REQUEST) as unpacked:
        (root,) = unpacked.values()
        with serving(root, installation, site, monkeypatch):
            done = deploy()
        assert done.status == 0, done
        assert f"{deploy.account.name} answers the request of tiny@1, within the tolerances of the" in done.stdout
        config = deploy.account.config()
        wrong = tmp_path / "wrong"
        shutil.copytree(root, wrong)
    _scale_weights(next((wrong / "tiny").rglob("*.onnx")))
    larger = {"instance_type": "ml.m5.xlarge"}
    with serving(wrong, installation, site, monkeypatch):
        refused = deploy("--json", variant=larger)
        texts = ("does not answer the request of tiny@1 as it should", "output 'logits'", "as before", "aws logs tail")
        check_refusal(refused, 8, texts)
        assert deploy.account.config() == config
        untested = deploy(variant=larger, smoke_test=False)
    assert untested.status == 0, untested
    assert "not tested: main (smoke_test of the file is off)" in untested.stdout


def _scale_weights(path: Path) -> None:
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2:
            scaled = onnx.numpy_helper.to_array(tensor) * np.float32(1.5)
            tensor.CopyFrom(onnx.numpy_helper.from_array(scaled, tensor.name))
    onnx.save(model, path)


def test_large_request(deploy: Deploying, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of a release that SageMaker does not take is refused before anything is created."""
    monkeypatch.setattr("plansmith.triton.client.sagemaker.client.MAX_BODY_BYTES", 10)
    texts = ("the request of tiny@1 cannot be sent", "smoke_test: false")
    check_refusal(deploy("--json"), 2, texts)
    assert deploy.account.plane.changes() == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"variant": {"multi_model": True, "copies": 3}}, [("", "tiny-copy1-")]),
        ({"variants": [{"name": name} for name in ("blue", "green")]}, [("blue", ""), ("green", "")]),
    ],
    ids=["many archives", "several variants"],
)
def test_requests(
    repository: ModelRepository, tmp_path: Path, changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """The first archive of a release is tested in each production variant."""
    base = {"models": ["tiny"], "image": {"version": "26.05"}, "instance_type": "ml.m5.large"}
    values = {name: [base | row for row in rows] for name, rows in changes.items() if name == "variants"}
    variant = base | changes.get("variant", {})
    spec = read_endpoint(write_endpoint(tmp_path, **{"variant": variant, **values}, repository=str(repository.root)))
    archives = planned_archives(plan_variant_archives(spec, tmp_path))
    requests = smoke_requests(spec, archives, desired_state(spec, archives))
    assert [request.release for request in requests] == ["tiny@1"] * len(expected)
    for request, (name, target_model) in zip(requests, expected, strict=True):
        assert request.variant == name
        assert request.target_model.startswith(target_model)
