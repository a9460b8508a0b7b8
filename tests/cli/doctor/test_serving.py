"""Which Triton there is, and whether it can serve ONNX models."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from plansmith.cli.doctor import services
from plansmith.cli.doctor.findings import Severity
from plansmith.cli.doctor.services import look, serving_findings, start_finding
from plansmith.config.targets import DEFAULT_TARGET, load_target, require_dali, require_onnxruntime
from plansmith.errors import EnvironmentFault
from plansmith.triton.server.installation import Installation

CONTAINER = Installation(
    binary=Path("/opt/tritonserver/bin/tritonserver"),
    library_path=(),
    backends=Path("/opt/tritonserver/backends"),
    caches=Path("/opt/tritonserver/caches"),
    stub=Path("/opt/tritonserver/backends/python/triton_python_backend_stub"),
    version="2.72.0",
    real_onnxruntime=True,
)
WHEEL = replace(CONTAINER, stub=Path("/opt/stubs/triton_python_backend_stub"), real_onnxruntime=False)


@pytest.fixture
def _no_python_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))


def test_backend_told_from_stand_in() -> None:
    """A real backend is told from the stand in."""
    server, runtime, *_ = serving_findings(CONTAINER, None)
    assert server.found == "2.72.0, /opt/tritonserver/bin/tritonserver"
    assert (runtime.severity, runtime.found) == (Severity.OK, "Triton's own backend")
    version = require_onnxruntime(load_target(DEFAULT_TARGET)).version
    _, runtime, *_ = serving_findings(WHEEL, None)
    assert runtime.severity is Severity.OK
    assert runtime.found == f"{version} in a stand-in backend, for target {DEFAULT_TARGET}"


def test_stand_in_without_runtime_is_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand in without its runtime is a problem that one command mends."""
    monkeypatch.setenv("PLANSMITH_SERVE_ENV", str(tmp_path))
    _, runtime, *_ = serving_findings(WHEEL, None)
    assert (runtime.severity, runtime.remedy) == (Severity.PROBLEM, "plansmith serve-env add local-cpu")


def test_pytorch_numpy_needed_where_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch models need their own NumPy only where the server takes this environment's packages."""
    monkeypatch.setenv("PLANSMITH_SERVE_ENV", str(tmp_path))
    _, _, _, models, _ = serving_findings(WHEEL, None)
    assert (models.severity, models.remedy) == (Severity.OPTIONAL, "plansmith serve-env add")
    assert "NumPy" in models.found
    (tmp_path / "numpy-1.26.4").mkdir()
    _, _, _, models, _ = serving_findings(WHEEL, None)
    assert models.severity is Severity.OK
    assert "this environment's packages" in models.found
    *_, models, _ = serving_findings(CONTAINER, None)
    assert (models.severity, models.found) == (Severity.OK, "the packages of the server's Python")


def test_target_dali_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The DALI of the target is optional and comes with one command."""
    monkeypatch.setenv("PLANSMITH_SERVE_ENV", str(tmp_path))
    version = require_dali(load_target(DEFAULT_TARGET))
    _, _, dali, *_ = serving_findings(WHEEL, None)
    assert (dali.name, dali.severity) == ("DALI", Severity.OPTIONAL)
    assert dali.found == f"DALI {version} is not installed: {tmp_path / f'dali-{version}'} does not exist"
    assert dali.remedy.startswith("plansmith serve-env add local-cpu --dali")
    (tmp_path / f"dali-{version}").mkdir()
    _, _, dali, *_ = serving_findings(WHEEL, None)
    assert (dali.severity, dali.found) == (
        Severity.OK,
        f"{version} in a stand-in backend, for target {DEFAULT_TARGET}",
    )
    _, _, dali, *_ = serving_findings(replace(CONTAINER, real_dali=True), None)
    assert (dali.severity, dali.found) == (Severity.OK, "Triton's own backend")


def test_target_without_dali_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that names no DALI is told nothing of it."""
    none = load_target(DEFAULT_TARGET).model_copy(update={"dali": None})
    monkeypatch.setattr(services, "load_target", lambda _: none)
    assert "DALI" not in [finding.name for finding in serving_findings(WHEEL, None)]


def test_server_without_backend_is_problem() -> None:
    """A server without backend and stub is a problem."""
    _, runtime, *_ = serving_findings(replace(WHEEL, stub=None), None)
    assert runtime.severity is Severity.PROBLEM
    assert "neither an ONNX Runtime backend nor a Python stub" in runtime.found
    assert "PLANSMITH_TRITONSERVER" in runtime.remedy


@pytest.mark.usefixtures("_no_python_library")
def test_python_without_shared_library() -> None:
    """A Python without a shared library is a problem only where the server needs it."""
    *_, library = serving_findings(WHEEL, None)
    assert library.severity is Severity.PROBLEM
    assert "--enable-shared" in library.remedy
    *_, library = serving_findings(CONTAINER, None)
    assert library.severity is Severity.OPTIONAL


def test_missing_named_server_is_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was named and is not there is a problem."""
    monkeypatch.setenv("PLANSMITH_TRITONSERVER", "/nope")
    server, _ = look(deep=True)
    assert server.severity is Severity.PROBLEM
    assert "/nope" in server.found
    assert "give a tritonserver binary" in server.remedy


def test_no_server_names_target() -> None:
    """Where there is no server, the target to add is named."""
    refusal = EnvironmentFault("there is none", remedy="plansmith serve-env add <target>")
    server, _ = serving_findings(None, refusal)
    assert server.remedy == "plansmith serve-env add local-cpu; or compile with --no-check-served"


def test_unstartable_server_is_problem(tmp_path: Path) -> None:
    """A server that does not start is a problem with its last words."""
    binary = tmp_path / "bin" / "tritonserver"
    for folder in (binary.parent, tmp_path / "backends", tmp_path / "caches"):
        folder.mkdir()
    binary.write_text("#!/bin/sh\nexit 3\n")
    binary.chmod(0o755)
    broken = replace(CONTAINER, binary=binary, backends=tmp_path / "backends", caches=tmp_path / "caches", stub=None)
    finding = start_finding(broken)
    assert finding.severity is Severity.PROBLEM
    assert "the server ended with status 3" in finding.found
    assert "\n" not in finding.found
    assert "plansmith serve" in finding.remedy
