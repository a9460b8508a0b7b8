"""The pages on Amazon SageMaker, against moto, and endpoints on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ..support.cli.documented_sessions import follow, plansmith
from ..support.sagemaker.control_plane import create_role
from ..support.source import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(300)]


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """A folder with the shipped specs and endpoints; their paths are relative to it."""
    for name in ("models", "endpoints"):
        shutil.copytree(ROOT / "configs" / name, tmp_path / "configs" / name)
    return tmp_path


@pytest.mark.usefixtures("bucket")
def test_sagemaker_page_runs(small: Path) -> None:
    """A release becomes an archive in S3, a version of a model package group, and the requests of a deployment."""
    create_role()
    shutil.rmtree(small / "artifacts")
    plansmith(small, "compile", "model.yaml", "--target", "sagemaker-26.05-cpu", "--no-check-served")
    follow("docs/sagemaker.md", small)


def test_sagemaker_examples_run(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a BERT are an endpoint on this machine; no credentials are needed to see the requests to AWS."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    follow("docs/sagemaker-examples.md", shipped)
