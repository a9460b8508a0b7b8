"""A compile from a hub: timm by name, with the weights that timm's own table says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm

from ..support.servers.hub_server import COMMIT, running

NAME = "test_resnet.r160_in1k"
HUB_ID = f"timm/{NAME}"


def compile_named(folder: Path, url: str, *, offline: bool) -> dict[str, Any]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": url,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [sys.executable, "-m", "plansmith", "compile", f"timm:{NAME}", "--json", "--no-check-served"]
    shapes = "pixel_values=1x3x160x160:2x3x160x160:4x3x160x160"
    done = subprocess.run(
        [*command, "--shapes", shapes, "--artifacts", str(folder / "artifacts")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.slow
def test_timm_name_compiles_hub_then_cache(tmp_path: Path) -> None:
    """A timm name is compiled from the hub, and again from the cache without it."""
    published = tmp_path / "published"
    timm.models.save_for_hf(timm.create_model(NAME, pretrained=False), published, safe_serialization=True)
    with running(published, HUB_ID) as hub:
        first = compile_named(tmp_path, hub.url, offline=False)
    source = json.loads(Path(first["manifest"]).read_text())["source"]
    assert source["location"] == HUB_ID
    assert source["revision"] == COMMIT
    again = compile_named(tmp_path, hub.url, offline=True)
    assert again["unchanged"]
    assert all(step["cached"] for step in again["steps"])
