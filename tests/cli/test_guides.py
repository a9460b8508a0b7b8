"""The guides are run as they are written, one after the other, in one folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.cli.documented_sessions import follow, lay_out_text_model
from ..support.generators import write_t5
from ..support.servers.aws_server import aws, s3_server
from ..support.servers.hub_server import running
from ..support.tensorrt import rtx
from ..support.triggers.aws_account import Account, account
from ..support.triggers.mlflow_server import Mlflow, serving

__all__ = ["account", "aws", "s3_server"]

pytestmark = [pytest.mark.slow, pytest.mark.services]

CHAIN = ("text-model", "accurate-int8", "load-test", "store", "fleet")
"""The later ones use what the first one made."""


@pytest.mark.timeout(1800)
def test_guides_run_as_written(tmp_path: Path, minilm_folder: Path) -> None:
    """Each command ends well, and prints the lines that its guide shows, figures aside."""
    lay_out_text_model(tmp_path, minilm_folder)
    for guide in CHAIN:
        follow(f"docs/guides/{guide}.md", tmp_path)


@pytest.mark.timeout(600)
def test_guide_to_images_runs_as_written(tmp_path: Path) -> None:
    """A real picture goes through DALI."""
    from skimage import data, io

    io.imsave(tmp_path / "cat.jpg", data.chelsea())  # type: ignore[no-untyped-call]
    follow("docs/guides/images-dali.md", tmp_path)


@pytest.mark.timeout(600)
def test_guide_to_generation_runs_as_written(tmp_path: Path) -> None:
    """Text comes back in pieces."""
    write_t5(tmp_path / "t5")
    follow("docs/guides/generation.md", tmp_path)


@pytest.mark.timeout(600)
def test_guide_to_tensorrt_runs_as_written(
    tmp_path: Path, minilm_folder: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build is planned, and its graph is built by TensorRT-RTX."""
    rtx.install(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", account.address)
    account.s3.create_bucket(Bucket="models")
    lay_out_text_model(tmp_path, minilm_folder)
    follow("docs/guides/tensorrt-gpus.md", tmp_path)


@pytest.mark.timeout(600)
def test_guide_to_registries_runs_as_written(tmp_path: Path, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registries that are here are asked, and nothing is built."""
    for name in ("ranker", "encoder", "images"):
        spec = tmp_path / "configs" / "models" / f"{name}.yaml"
        spec.parent.mkdir(parents=True, exist_ok=True)
        spec.write_text(f"source: hf:org/{name}\n")
    (tmp_path / "encoder").mkdir()
    queue = account.queue()
    monkeypatch.setenv("AWS_ENDPOINT_URL", account.address)
    with serving(Mlflow()) as mlflow, running(tmp_path / "encoder", "org/encoder") as hub:
        mlflow.add("ranker", 1)
        mlflow.aliases["ranker"] = {"champion": "1"}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        servers = {
            "https://mlflow.example.com": mlflow.url,
            "https://sqs.eu-central-1.amazonaws.com/123456789012/models": queue.url,
        }
        follow("docs/guides/registries.md", tmp_path, servers)
