"""A server gets stand-ins for the backends that it lacks, and only where their packages are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from plansmith.config.targets import load_target
from plansmith.errors import EngineError, EnvironmentFault
from plansmith.triton.server.installation import Installation, dali_site
from plansmith.triton.server.runtime import ServingRuntime, with_dali
from plansmith.triton.server.server import build_backend_folder


@pytest.fixture
def server(tmp_path: Path) -> Installation:
    """With a Python backend, and the folder of a stub for each of many Pythons."""
    backends = tmp_path / "backends"
    (backends / "python").mkdir(parents=True)
    (tmp_path / "stub").touch()
    return Installation(tmp_path / "tritonserver", (), backends, tmp_path, tmp_path / "stub", "2.51.0", False)


def laid(folder: Path) -> dict[str, list[str]]:
    return {entry.name: sorted(file.name for file in entry.iterdir()) for entry in sorted(folder.iterdir())}


def test_stand_ins_laid_out_beside_packages(server: Installation, tmp_path: Path) -> None:
    """Stand ins are laid out where their packages are given."""
    build_backend_folder(tmp_path / "none", server)
    assert laid(tmp_path / "none") == {"python": ["stub"]}
    site = tmp_path / "site"
    site.mkdir()
    build_backend_folder(tmp_path / "dali", server, dali_site=site)
    assert laid(tmp_path / "dali") == {"dali": ["model.py", "site"], "python": ["stub"]}
    assert (tmp_path / "dali" / "dali" / "site").readlink() == site
    build_backend_folder(tmp_path / "both", server, site, site)
    assert list(laid(tmp_path / "both")) == ["dali", "onnxruntime", "python"]
    assert "batching.py" in laid(tmp_path / "both")["onnxruntime"]


def test_real_dali_backend_preferred(server: Installation, tmp_path: Path) -> None:
    """A real DALI backend is used where there is one."""
    (server.backends / "dali").mkdir()
    (server.backends / "dali" / "libtriton_dali.so").touch()
    real = replace(server, real_dali=True)
    build_backend_folder(tmp_path / "laid", real, dali_site=tmp_path)
    assert (tmp_path / "laid" / "dali").readlink() == server.backends / "dali"
    assert dali_site(real, load_target("local-cpu")) is None


def test_dali_stand_in_found_or_explained(
    server: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in for DALI is found, or told how to get."""
    monkeypatch.setenv("PLANSMITH_SERVE_ENV", str(tmp_path / "env"))
    target = load_target("local-cpu")
    with pytest.raises(EnvironmentFault) as fault:
        dali_site(server, target)
    assert fault.value.remedy.startswith("plansmith serve-env add local-cpu --dali, or ")
    with pytest.raises(EnvironmentFault, match="no DALI backend, and no Python backend"):
        dali_site(replace(server, stub=None), target)
    with pytest.raises(EngineError, match=r"which DALI triton-26\.03 has"):
        dali_site(server, load_target("triton-26.03"))
    (tmp_path / "env" / "dali-2.4.0").mkdir(parents=True)
    runtime = with_dali(ServingRuntime(server, None, "", "cpu"), target)
    assert runtime.dali_site == tmp_path / "env" / "dali-2.4.0"


def test_gpu_pipeline_not_asked_without_gpu(server: Installation) -> None:
    """A pipeline for a GPU is not asked where there is none."""
    runtime = ServingRuntime(server, None, "", "cpu")
    with pytest.raises(EnvironmentFault, match=r"for the GPU of triton-26\.08 cannot run here") as fault:
        with_dali(runtime, load_target("triton-26.08"))
    assert "--no-check-served" in fault.value.remedy
    assert "tritonserver:26.08-py3" in fault.value.remedy
