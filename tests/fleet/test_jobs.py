"""`plansmith fleet run` on real parts, one model after another and two at a time: what it makes, fails and leaves."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from ..support.faults.ends import still_running

pytestmark = pytest.mark.slow

_PLANSMITH = (sys.executable, "-m", "plansmith")
_ABOUT_A_RUN = {"manifest.json", "report.html", "provenance.intoto.json", "bom.cdx.json"}  # with its times
_SHAPES = {"pixel_values": "1x3x224x224:2x3x224x224:2x3x224x224"}
_MODELS: dict[str, dict[str, Any]] = {
    "narrow": {"source": "timm:mobilenetv3_small_050", "shapes": _SHAPES},
    "regular": {"source": "timm:regnetx_002", "shapes": _SHAPES},
    "wrong": {"source": "timm:regnetx_002", "shapes": {"pixel_values": "1x4x224x224"}},
}


def _write_specs(folder: Path, *names: str) -> None:
    folder.mkdir()
    for name in names:
        spec = {"name": name, "random_weights": True, "check_served": False, **_MODELS[name]}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(spec))


def _files(folder: Path) -> dict[str, bytes]:
    """What lies in the releases of a repository, but for what tells of a run itself."""
    releases = folder / "artifacts" / "repository.plansmith" / "releases"
    files = [file for file in releases.rglob("*") if file.is_file() and file.name not in _ABOUT_A_RUN]
    return {str(file.relative_to(releases)): file.read_bytes() for file in files}


def test_fleet_makes_what_compiles_make(tmp_path: Path) -> None:
    """Releases are byte for byte those of single compiles, whether models are built in turn or two at a time."""
    names = ("narrow", "regular")
    runs = {
        "singly": [["compile", f"{name}.yaml"] for name in names],
        "in turn": [["fleet", "run", "."]],
        "two at a time": [["fleet", "run", ".", "--jobs", "2"]],
    }
    made, folder = {}, tmp_path / "specs"
    for label, commands in runs.items():
        _write_specs(folder, *names)
        for command in commands:
            subprocess.run([*_PLANSMITH, *command, "--quiet"], cwd=folder, check=True, capture_output=True)
        made[label] = _files(folder)
        shutil.rmtree(folder)
    assert sum(file.endswith("model.onnx") for file in made["singly"]) == 2
    assert made["in turn"] == made["singly"]
    assert made["two at a time"] == made["singly"]


def test_failure_stops_no_other_job(tmp_path: Path) -> None:
    """A model that fails stops no other, and is told once, with its reason and the exit code."""
    _write_specs(tmp_path / "specs", "narrow", "wrong")
    command = [*_PLANSMITH, "fleet", "run", "specs", "--jobs", "2", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("plansmith: wrong for local-cpu: shapes of pixel_values: axis 1 is fixed at 3") == 1
    outcomes = {model["model"]: model["ended"] for model in json.loads(done.stdout)["models"]}
    assert outcomes == {"narrow": "published", "wrong": "failed"}


def test_interrupt_ends_all_jobs(tmp_path: Path) -> None:
    """An interrupt ends every process of a run; what was not built counts as interrupted."""
    _write_specs(tmp_path / "specs", "narrow", "regular")
    command = [*_PLANSMITH, "fleet", "run", "specs", "--jobs", "2", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        while "fetch" not in run.stderr.readline():
            pass
        processes = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGINT)
        document, _ = run.communicate()
    assert run.returncode == 130
    assert still_running(processes) == []
    assert {model["ended"] for model in json.loads(document)["models"]} <= {"interrupted", "published"}
