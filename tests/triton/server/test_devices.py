"""Whether this machine can give a target's models the device that they ask for."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from plansmith.config.target.targets import load_target
from plansmith.errors import EnvironmentFault
from plansmith.records.model import EngineKind
from plansmith.triton.server import installation as installations
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


@pytest.mark.usefixtures("driver")
def test_pytorch_models_run_on_the_gpu_of_any_server(real: Installation) -> None:
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
def test_a_wheels_server_takes_this_environment_with_another_numpy_before_it(tmp_path: Path) -> None:
    found = find_installation()
    assert found.lends_python
    assert python_site(found) == ()
    with pytest.raises(EnvironmentFault, match="NumPy") as fault:
        find_serving_runtime("", load_target("local-cpu"), EngineKind.PYTHON)
    assert fault.value.remedy == "plansmith serve-env add"
    (tmp_path / "private" / "numpy-1.26.4").mkdir(parents=True)
    numpy, ours, *packages = python_site(found)
    assert numpy == tmp_path / "private" / "numpy-1.26.4"
    assert (ours / "plansmith" / "triton" / "server" / "installation.py").is_file()
    assert Path(pytest.__file__).resolve().parents[1] in packages
    runtime = find_serving_runtime("", load_target("local-cpu"), EngineKind.PYTHON)
    assert (runtime.site, runtime.device, runtime.words) == (None, "cpu", f"PyTorch {version('torch')}")


@pytest.mark.usefixtures("wheel")
def test_a_wheels_server_in_an_environment_without_pytorch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "private" / "numpy-1.26.4").mkdir(parents=True)
    monkeypatch.setattr(installations, "find_spec", {"torch": None}.__getitem__)
    with pytest.raises(EnvironmentFault, match="torch is not installed") as fault:
        find_serving_runtime("", load_target("local-cpu"), EngineKind.PYTHON)
    assert fault.value.remedy == "pip install 'plansmith[compile]'"


def test_a_containers_server_is_left_with_the_packages_of_its_own_python(real: Installation) -> None:
    with pytest.raises(EnvironmentFault, match="no Python backend") as fault:
        require_python(real)
    assert fault.value.remedy
    official = replace(real, stub=real.backends / "python" / "triton_python_backend_stub")
    require_python(official)
    assert python_site(official) == ()
