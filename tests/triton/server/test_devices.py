"""Whether this machine can give a target's models the device that they ask for."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from plansmith.config.targets import load_target
from plansmith.errors import EnvironmentFault
from plansmith.records.model import EngineKind
from plansmith.triton.server.installation import (
    Installation,
    find_installation,
    has_gpu,
    python_site,
    require_device,
    require_python,
    serving_device,
)
from plansmith.triton.server.runtime import find_serving_runtime


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


def test_gpu_found_by_device_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is found by its device file."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "nvidiactl").touch()
    assert not has_gpu(tmp_path)
    (tmp_path / "nvidia3").touch()
    assert has_gpu(tmp_path)


def test_gpu_found_by_driver_list(driver: Path, tmp_path: Path) -> None:
    """A GPU is found by what the driver lists."""
    assert has_gpu(tmp_path)
    driver.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\nexit 9\n")
    assert not has_gpu(tmp_path)
    driver.write_text("no program")
    assert not has_gpu(tmp_path)


@pytest.mark.usefixtures("driver")
def test_gpu_models_need_real_backend(real: Installation) -> None:
    """GPU models run on the GPU only in a server with the real backend."""
    gpu, cpu = load_target("triton-26.08"), load_target("triton-26.08-cpu")
    assert serving_device(real, gpu) == "gpu"
    assert serving_device(real, cpu) == "cpu"
    require_device(real, gpu)
    require_device(real, cpu)
    stand_in = replace(real, real_onnxruntime=False)
    assert serving_device(stand_in, gpu) == "cpu"
    with pytest.raises(EnvironmentFault, match="the stand-in backend runs models on the CPU only"):
        require_device(stand_in, gpu)


@pytest.mark.usefixtures("driver")
def test_pytorch_models_use_any_server_gpu(real: Installation) -> None:
    """PyTorch models run on the GPU of any server."""
    gpu = load_target("triton-26.08")
    wheel = replace(real, real_onnxruntime=False)
    assert serving_device(wheel, gpu, EngineKind.PYTHON) == "gpu"
    require_device(wheel, gpu, EngineKind.PYTHON)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server as pip unpacks it, with a stub for this Python; nothing of it runs. It is the one that is found."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    root = tmp_path / "pytriton" / "tritonserver"
    for file in ("bin/tritonserver", f"python_backend_stubs/{version}/triton_python_backend_stub", "backends/python/x"):
        (root / file).parent.mkdir(parents=True)
        (root / file).touch(mode=0o755)
    monkeypatch.setenv("PLANSMITH_TRITONSERVER", str(root))
    monkeypatch.setenv("PLANSMITH_SERVE_ENV", str(tmp_path / "private"))
    return root


@pytest.mark.usefixtures("wheel")
def test_wheel_server_puts_numpy_before_environment(tmp_path: Path) -> None:
    """A wheel's server takes this environment with another NumPy before it."""
    installation = find_installation()
    assert installation.lends_python
    assert python_site(installation) == ()
    with pytest.raises(EnvironmentFault, match="NumPy") as fault:
        find_serving_runtime("", load_target("local-cpu"), EngineKind.PYTHON)
    assert fault.value.remedy == "plansmith serve-env add"
    (tmp_path / "private" / "numpy-1.26.4").mkdir(parents=True)
    numpy, ours, *packages = python_site(installation)
    assert numpy == tmp_path / "private" / "numpy-1.26.4"
    assert (ours / "plansmith" / "triton" / "server" / "installation.py").is_file()
    assert Path(pytest.__file__).resolve().parents[1] in packages
    runtime = find_serving_runtime("", load_target("local-cpu"), EngineKind.PYTHON)
    assert (runtime.site, runtime.device, runtime.description) == (None, "cpu", f"PyTorch {version('torch')}")


@pytest.mark.usefixtures("wheel")
def test_wheel_server_without_pytorch_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel's server in an environment without PyTorch is refused."""
    (tmp_path / "private" / "numpy-1.26.4").mkdir(parents=True)
    monkeypatch.setattr("plansmith.system.libraries.find_spec", {"torch": None}.__getitem__)
    with pytest.raises(EnvironmentFault, match="torch is not installed") as fault:
        find_serving_runtime("", load_target("local-cpu"), EngineKind.PYTHON)
    assert fault.value.remedy == "pip install 'plansmith[compile]'"


def test_container_server_keeps_own_packages(real: Installation) -> None:
    """A container's server is left with the packages of its own Python."""
    with pytest.raises(EnvironmentFault, match="no Python backend") as fault:
        require_python(real)
    assert fault.value.remedy
    official = replace(real, stub=real.backends / "python" / "triton_python_backend_stub")
    require_python(official)
    assert python_site(official) == ()
