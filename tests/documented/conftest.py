"""What the sessions of the pages start from: a release, a bucket, and AWS (moto)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from plansmith.system.files import locked

from ..support.cli.documented_sessions import lay_out_text_model, plansmith
from ..support.models.encoders import save_bert
from ..support.servers.aws_server import aws, s3_server
from ..support.source import ROOT
from ..support.triggers.aws_account import Account, account

__all__ = ["account", "aws", "s3_server"]

COMPILE = (
    "compile",
    "hf:./all-MiniLM-L6-v2",
    "--name",
    "minilm",
    "--pipeline",
    "--shapes",
    "input_ids=1x1:8x64:32x256",
)


@pytest.fixture(scope="session")
def minilm_artifacts(shared_folder: Path, minilm_folder: Path) -> Path:
    """Artifacts with a release of minilm, which takes text."""
    folder = shared_folder / "documented"
    with locked(shared_folder / "documented.lock"):
        if not folder.exists():
            folder.mkdir()
            lay_out_text_model(folder, minilm_folder)
            plansmith(folder, *COMPILE)
    return folder / "artifacts"


@pytest.fixture
def minilm(tmp_path: Path, minilm_artifacts: Path, minilm_folder: Path) -> Path:
    """A folder with a release of minilm, the model that it was compiled from, and sentences."""
    for name in ("repository", "repository.plansmith"):
        shutil.copytree(minilm_artifacts / name, tmp_path / "artifacts" / name, symlinks=True)
    lay_out_text_model(tmp_path, minilm_folder)
    return tmp_path


@pytest.fixture
def bucket(account: Account, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The empty bucket `models` of the pages, where AWS is asked by default."""
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL", account.address)
    account.s3.create_bucket(Bucket="models")
    yield "models"
    bucket = boto3.resource("s3", endpoint_url=account.address).Bucket("models")
    bucket.objects.delete()
    bucket.delete()


@pytest.fixture(scope="session")
def small_models(shared_folder: Path) -> Path:
    """A folder with releases of two tiny models, minilm and ranker, and the spec of the first, model.yaml."""
    folder = shared_folder / "small"
    with locked(shared_folder / "small.lock"):
        if not folder.exists():
            save_bert(folder / "bert", "Model")
            spec = "source: hf:./bert\npipeline: {}\nshapes: {input_ids: '1x1:2x8:4x16'}\n"
            (folder / "model.yaml").write_text(f"name: minilm\n{spec}")
            (folder / "ranker.yaml").write_text(f"name: ranker\n{spec}")
            for name in ("model.yaml", "ranker.yaml"):
                plansmith(folder, "compile", name)
    return folder


@pytest.fixture
def small(tmp_path: Path, small_models: Path) -> Path:
    """A folder with the same, and the shipped configuration."""
    shutil.copytree(small_models, tmp_path, symlinks=True, dirs_exist_ok=True)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    return tmp_path
