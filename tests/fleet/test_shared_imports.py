"""Fleet runs on real parts: workers that import their libraries once make what single compiles make."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from ..support.waiting import soon

pytestmark = pytest.mark.slow

MODELS: dict[str, dict[str, Any]] = {
    "small": {"source": "timm:mobilenetv3_small_050", "shapes": {"pixel_values": "1x3x224x224:2x3x224x224:2x3x224x224"}},
    "deep": {"source": "timm:regnetx_002", "shapes": {"pixel_values": "1x3x224x224:2x3x224x224:2x3x224x224"}},
}


def _specs(folder: Path) -> list[str]:
    files = [folder / f"{name}.yaml" for name in MODELS]
    for file, (name, spec) in zip(files, MODELS.items(), strict=True):
        file.write_text(yaml.safe_dump({"name": name, "random_weights": True, "check_served": False, **spec}))
    return [str(file) for file in files]


def _plansmith(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "plansmith", *arguments], capture_output=True, text=True, check=False)


def _contents(repository: Path, model: str) -> dict[str, str]:
    """The digests of a release's files, as its manifest has them, which is about a run itself."""
    (release,) = (repository / "releases" / model).glob("*/manifest.json")
    files: dict[str, str] = json.loads(release.read_text())["files"]
    return files


def test_fleet_makes_what_single_compiles_make(tmp_path: Path) -> None:
    """The releases of a fleet run, whose workers are forked, are byte for byte those of single compiles."""
    specs, repositories = _specs(tmp_path), {}
    assert _plansmith("fleet", "run", *specs, "--artifacts", str(tmp_path / "fleet"), "--quiet").returncode == 0
    for spec in specs:
        assert _plansmith("compile", spec, "--artifacts", str(tmp_path / "alone"), "--quiet").returncode == 0
    repositories = [tmp_path / kind / "repository" for kind in ("fleet", "alone")]
    for model in MODELS:
        fleet, alone = (_contents(repository, model) for repository in repositories)
        assert fleet == alone
