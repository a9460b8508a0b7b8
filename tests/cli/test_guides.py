"""The guides are run as they are written, one after the other, in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from types import MappingProxyType

import pytest

from ..support.documentation import PAGES, code_blocks
from ..support.generators import write_t5
from ..support.real_sentences import real_sentences
from ..support.servers.aws_server import aws, s3_server
from ..support.servers.hub_server import running
from ..support.tensorrt import rtx
from ..support.triggers.aws_account import Account, account
from ..support.triggers.mlflow_server import Mlflow, serving

__all__ = ["account", "aws", "s3_server"]

pytestmark = [pytest.mark.slow, pytest.mark.services]

CHAIN = ("text-model", "accurate-int8", "load-test", "store", "fleet")
"""The later ones use what the first one made."""

FIGURE = re.compile(r"\d[\d.,]*(?:e-\d+)?| +")


@pytest.mark.timeout(1800)
def test_guides_run_as_written(tmp_path: Path, minilm_folder: Path) -> None:
    """Each command ends well, and prints the lines that its guide shows, figures aside."""
    _lay_out_text_model(tmp_path, minilm_folder)
    for guide in CHAIN:
        _follow(guide, tmp_path)


@pytest.mark.timeout(600)
def test_guide_to_images_runs_as_written(tmp_path: Path) -> None:
    """A real picture goes through DALI."""
    from skimage import data, io

    io.imsave(tmp_path / "cat.jpg", data.chelsea())  # type: ignore[no-untyped-call]
    _follow("images-dali", tmp_path)


@pytest.mark.timeout(600)
def test_guide_to_generation_runs_as_written(tmp_path: Path) -> None:
    """Text comes back in pieces."""
    write_t5(tmp_path / "t5")
    _follow("generation", tmp_path)


@pytest.mark.timeout(600)
def test_guide_to_tensorrt_runs_as_written(
    tmp_path: Path, minilm_folder: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build is planned, and its graph is built by TensorRT-RTX."""
    rtx.install(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", account.address)
    account.s3.create_bucket(Bucket="models")
    _lay_out_text_model(tmp_path, minilm_folder)
    _follow("tensorrt-gpus", tmp_path)


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
        _follow("registries", tmp_path, servers)


def _lay_out_text_model(folder: Path, minilm: Path) -> None:
    (folder / "all-MiniLM-L6-v2").symlink_to(minilm)
    (folder / "sentences.txt").write_text("\n".join(real_sentences()))


def _follow(guide: str, folder: Path, replaced: Mapping[str, str] = MappingProxyType({})) -> None:
    """Do what a guide says in a folder; addresses of servers are replaced by those of servers that are here."""
    text = (PAGES / "guides" / f"{guide}.md").read_text(encoding="utf-8")
    for spec in code_blocks(text, "yaml"):
        path = folder / spec.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(reduce(lambda written, pair: written.replace(*pair), replaced.items(), spec))
    printed = _run("\n".join(code_blocks(text, "console")), folder)
    missing = [line for line in _shown(text) if FIGURE.sub("#", line) not in FIGURE.sub("#", printed)]
    assert not missing, f"{guide} shows {missing}; printed was:\n{printed}"


def _run(session: str, folder: Path) -> str:
    """Run the commands of a session in one shell, and return all that they print."""
    commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", session, re.MULTILINE)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e"],
        input="\n".join(["exec 2>&1", *commands]),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _shown(text: str) -> list[str]:
    """The lines of output that a guide shows, without those that leave something out."""
    lines = "\n".join(code_blocks(text, "console")).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if not line.startswith("$ ") and "…" not in line]
