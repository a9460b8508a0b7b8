"""Models from a hub, through the real huggingface_hub client, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ...support.servers.hub_server import COMMIT, Hub, running

pytestmark = pytest.mark.slow

# The client writes in pieces of 10 MiB, and resumes after the last whole one.
WEIGHT_BYTES = 25 << 20
BROKEN_AT_BYTES = 20 << 20

FETCH = """
import json, sys
from plansmith.errors import PlansmithError
from plansmith.sources.hub import fetch_snapshot
said = []
try:
    found = fetch_snapshot(sys.argv[1], sys.argv[2] or None, trust_remote_code=False, allow_pickle=False,
                           with_weights=True, offline=False, progress=said.append)
    files = sorted(p.relative_to(found.folder).as_posix() for p in found.folder.rglob("*") if p.is_file())
    print(json.dumps({"commit": found.commit, "files": files, "said": said}))
except PlansmithError as error:
    print(json.dumps(error.to_dict()))
"""


@pytest.fixture
def published(tmp_path: Path) -> Path:
    folder = tmp_path / "published"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "onnx").mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(os.urandom(WEIGHT_BYTES))
    for name in ("pytorch_model.bin", "tf_model.h5", "modeling.py", "onnx/model.onnx"):
        (folder / name).write_bytes(b"not wanted")
    return folder


def fetch(
    hub: Hub, home: Path, repo: str = "org/model", revision: str = "", *, offline: bool = False
) -> dict[str, Any]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1" if offline else "0",
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [sys.executable, "-c", FETCH, repo, revision]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_revision_resolved_to_commit(published: Path, tmp_path: Path) -> None:
    """A revision is resolved to its commit and only what is needed is downloaded."""
    with running(published) as hub:
        result = fetch(hub, tmp_path / "home", revision="v1")
    assert result["commit"] == COMMIT
    assert result["files"] == ["1_Pooling/config.json", "README.md", "config.json", "model.safetensors"]
    assert any("downloading" in text for text in result["said"])


def test_cache_answers_offline(published: Path, tmp_path: Path) -> None:
    """The cache answers when the hub is offline."""
    with running(published) as hub:
        fetch(hub, tmp_path / "home")
        count = len(hub.requests)
        result = fetch(hub, tmp_path / "home", offline=True)
        assert len(hub.requests) == count
    assert result["commit"] == COMMIT


def test_broken_download_resumed(published: Path, tmp_path: Path) -> None:
    """A download that broke off is resumed where it ended."""
    with running(published) as hub:
        hub.break_after = BROKEN_AT_BYTES
        result = fetch(hub, tmp_path / "home")
        ranges = [r for method, path, r in hub.requests if method == "GET" and path.endswith(".safetensors")]
    assert result["commit"] == COMMIT
    assert ranges[-1] == f"bytes={BROKEN_AT_BYTES}-"


def test_missing_repository_told(published: Path, tmp_path: Path) -> None:
    """A repository that does not exist is told."""
    with running(published) as hub:
        error = fetch(hub, tmp_path / "home", repo="org/nothing")
    assert error["exit_code"] == 3
    assert "org/nothing" in error["message"]


def test_gated_repository_tells_access(published: Path, tmp_path: Path) -> None:
    """A gated repository is told with how to get in."""
    with running(published) as hub:
        hub.gated = True
        error = fetch(hub, tmp_path / "home")
    assert (error["exit_code"], error["message"]) == (3, "org/model is gated")
    assert error["remedy"] == "accept its terms on the hub, then: hf auth login"


def test_missing_revision_told(published: Path, tmp_path: Path) -> None:
    """A revision that does not exist is told."""
    with running(published) as hub:
        error = fetch(hub, tmp_path / "home", revision="v9")
    assert error["exit_code"] == 3
    assert "'v9'" in error["message"]


def test_unreachable_hub_suggests_directory(published: Path, tmp_path: Path) -> None:
    """An unreachable hub tells how to use a directory."""
    with running(published) as hub:
        pass
    error = fetch(hub, tmp_path / "home")
    assert error["exit_code"] == 9
    assert "hf:<directory>" in error["remedy"]
