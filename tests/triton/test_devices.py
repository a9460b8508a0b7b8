"""Whether this machine can give a target's models the device that they ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.targets import load_target
from plansmith.triton.installation import Installation, has_gpu, require_device, serving_device


@pytest.fixture
def real(tmp_path: Path) -> Installation:
    """What a container has: a server with an ONNX Runtime backend of its own."""
    return Installation(tmp_path / "tritonserver", (), tmp_path, tmp_path, None, "2.72.0", real_onnxruntime=True)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The driver's tool, the only program on PATH, which lists one GPU."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA L4 (UUID: GPU-0)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    return tool


def test_a_gpu_is_found_by_its_device_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "nvidiactl").touch()
    assert not has_gpu(tmp_path)
    (tmp_path / "nvidia3").touch()
    assert has_gpu(tmp_path)


def test_a_gpu_is_found_by_what_the_driver_lists(driver: Path, tmp_path: Path) -> None:
    assert has_gpu(tmp_path)
    driver.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\nexit 9\n")
    assert not has_gpu(tmp_path)
    driver.write_text("no program")
    assert not has_gpu(tmp_path)


@pytest.mark.usefixtures("driver")
def test_gpu_models_run_on_the_gpu_only_in_a_server_with_the_real_backend(real: Installation) -> None:
    gpu, cpu = load_target("triton-26.08"), load_target("triton-26.08-cpu")
    assert serving_device(real, gpu) == "gpu"
    assert serving_device(real, cpu) == "cpu"
    require_device(real, gpu)
    require_device(real, cpu)
    stand_in = replace(real, real_onnxruntime=False)
    assert serving_device(stand_in, gpu) == "cpu"
    with pytest.raises(EnvironmentFault, match="the stand-in backend runs models on the CPU only"):
        require_device(stand_in, gpu)
