"""What this machine has of what these tests need, found without loading it; and the target that it stands for."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from plansmith.cli.info.image_check import compare_image, installed_versions, require_image
from plansmith.config.target_names import runtime_names
from plansmith.config.targets import load_target, require_onnxruntime
from plansmith.errors import EngineError
from plansmith.triton.server.installation import has_gpu

REQUIRED = "PLANSMITH_REQUIRE_GPU"
"""With 1, what a marker needs and is not here fails its tests instead of skipping them."""

MARKERS = ("gpu", "tensorrt")
BUILDERS = ("api", "trtexec")
TRITON_BACKEND = Path("/opt/tritonserver/backends/tensorrt/libtriton_tensorrt.so")

_TRTEXEC_FOLDERS = ("/usr/src/tensorrt/bin", "/opt/tensorrt/bin")
_OTHER_VERSIONS = ("10.12.0.36", "11.0.0.114")


@dataclass(frozen=True)
class Device:
    """The first GPU, by nvidia-smi."""

    name: str
    uuid: str
    capability: str
    memory_mib: int
    driver: str


def missing(marker: str) -> str:
    """Why tests with a marker cannot run here; empty where they can."""
    if not has_gpu():
        return "there is no NVIDIA GPU here"
    if marker == "tensorrt" and not builders_here():
        return "neither TensorRT's Python package nor trtexec is here"
    return ""


def builders_here() -> tuple[str, ...]:
    """Which of the two builders of plans are here; one that does not work is here and fails its tests."""
    program = shutil.which("trtexec") or shutil.which("trtexec", path=os.pathsep.join(_TRTEXEC_FOLDERS))
    available = {"api": importlib.util.find_spec("tensorrt") is not None, "trtexec": program is not None}
    return tuple(builder for builder in BUILDERS if available[builder])


def device() -> Device:
    """The GPU that the tests run on."""
    query = "--query-gpu=name,uuid,compute_cap,memory.total,driver_version"
    listed = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
    )
    name, uuid, capability, memory, driver = (field.strip() for field in listed.stdout.splitlines()[0].split(","))
    return Device(name, uuid, capability, int(memory), driver)


def in_child(code: str, *arguments: str, **variables: str) -> Any:
    """What a script of Python prints as JSON in a process of its own: CUDA in this one would stand in the way."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def tensorrt_version() -> str:
    """TensorRT's version with as many numbers as anything here tells."""
    versions = [entry.version for entry in installed_versions() if entry.what == "TensorRT"]
    assert versions, "a builder is here, and nothing tells its version: no Debian package, library or Python package"
    return max(versions, key=lambda version: version.count("."))


def target_here(folder: Path) -> str:
    """The newest release of Triton whose image this is; otherwise a target file of the same versions."""
    for name in reversed([name for name in runtime_names() if name.startswith("triton-")]):
        target = load_target(name)
        try:
            require_image(target, compare_image(target, installed_versions()))
            require_onnxruntime(target)
        except EngineError:
            continue
        return name
    return write_target(folder, tensorrt_version())


def other_target(folder: Path) -> str:
    """A target whose TensorRT is supported, and not the one that is here."""
    local = tensorrt_version() if builders_here() else ""
    return write_target(folder, next(version for version in _OTHER_VERSIONS if version != local))


def write_target(folder: Path, tensorrt: str) -> str:
    """A target file of this machine with some TensorRT; its ONNX Runtime is that of these tests."""
    runtime = require_onnxruntime(load_target("local-cpu"))
    values = {
        "description": f"this machine with TensorRT {tensorrt}",
        "flavour": "triton",
        "devices": ["gpu"],
        "tensorrt": tensorrt,
        "onnxruntime": runtime.model_dump(),
    }
    path = folder / f"tensorrt-{tensorrt}.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)
