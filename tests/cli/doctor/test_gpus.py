"""GPUs, driver and TensorRT, from what their programs print."""

from __future__ import annotations

import asyncio

import pytest

from plansmith.cli.doctor.findings import Ended, Probed, Severity, run_probe
from plansmith.cli.doctor.machine import gpu_findings, tensorrt_finding, trtexec_finding
from plansmith.records.engine import Gpu
from plansmith.system.gpus import visible_gpus

H200 = Gpu(
    name="NVIDIA H200",
    compute_capability="9.0",
    memory_bytes=143771 << 20,
    uuid="GPU-1",
    index=0,
    driver="570.124.06",
)
T4 = H200.model_copy(update={"name": "Tesla T4", "memory_bytes": 15360 << 20, "compute_capability": "7.5", "index": 1})
WORKING_TORCH = Probed({"version": "2.9", "cuda_build": "12.8", "cuda_usable": True})
BANNER = "&&&& RUNNING TensorRT.trtexec [TensorRT v{}] [b42] # trtexec\n=== Model Options ===\n"


def ended(printed: str, status: int | None = 0, complaints: str = "") -> Ended:
    return Ended(status, printed, complaints, 60)


def probe_result(*gpus: Gpu, problem: str = "", remedy: str = "", visible: str | None = None) -> Probed:
    listed = [gpu.model_dump(mode="json") for gpu in gpus]
    return Probed({"gpus": listed, "problem": problem, "remedy": remedy, "visible": visible})


def test_gpu_shown_with_memory() -> None:
    """Each GPU is shown with its memory and capability, and the driver once."""
    first, second, driver = gpu_findings(probe_result(H200, T4), WORKING_TORCH, present=True)
    assert (first.name, first.found) == ("GPU 0", "NVIDIA H200, 140.4 GiB, compute capability 9.0")
    assert (second.name, second.found) == ("GPU 1", "Tesla T4, 15.0 GiB, compute capability 7.5")
    assert (driver.found, driver.severity) == ("570.124.06", Severity.OK)


def test_torch_without_gpu_is_warning() -> None:
    """A torch that cannot use the GPU is a warning at the driver."""
    torch = Probed({"version": "2.15", "cuda_build": "13.2", "cuda_usable": False})
    *_, driver = gpu_findings(probe_result(H200), torch, present=True)
    assert driver.severity is Severity.WARNING
    assert "CUDA 13.2" in driver.found
    assert driver.remedy


def test_no_gpu_is_fine() -> None:
    """Having no GPU is no problem, and neither is a hidden one."""
    (absent,) = gpu_findings(probe_result(), WORKING_TORCH, present=False)
    assert (absent.severity, absent.found) == (Severity.OPTIONAL, "none")
    (hidden,) = gpu_findings(probe_result(visible=""), WORKING_TORCH, present=True)
    assert (hidden.severity, hidden.found) == (
        Severity.OPTIONAL,
        "none that CUDA_VISIBLE_DEVICES= leaves visible",
    )


def test_gpu_without_driver_is_warning() -> None:
    """A GPU without its driver is a warning that says what is lacking."""
    (finding,) = gpu_findings(probe_result(), WORKING_TORCH, present=True)
    assert finding.severity is Severity.WARNING
    assert "driver" in finding.found
    assert "NVIDIA_DRIVER_CAPABILITIES" in finding.remedy


def test_silent_driver_is_warning() -> None:
    """A driver that does not answer or takes the probe down with it is a warning."""
    problem = probe_result(problem="the driver does not answer: mismatch", remedy="load the driver again")
    (finding,) = gpu_findings(problem, WORKING_TORCH, present=True)
    assert (finding.severity, finding.remedy) == (Severity.WARNING, "load the driver again")
    assert "mismatch" in finding.found
    (finding,) = gpu_findings(Probed(broken="it did not end within 60 s"), WORKING_TORCH, present=True)
    assert finding.severity is Severity.WARNING
    assert "did not end within 60 s" in finding.found
    assert finding.remedy


@pytest.mark.slow
def test_probe_tells_visible_gpus() -> None:
    """The probe of GPUs tells what is visible here."""
    facts = asyncio.run(run_probe("gpus", online=False)).facts
    assert facts is not None
    assert not facts["problem"]
    assert [gpu["uuid"] for gpu in facts["gpus"]] == [gpu.uuid for gpu in visible_gpus()]


@pytest.mark.parametrize(("number", "version"), [("101600", "10.16.0"), ("110100", "11.1.0"), ("8602", "8.6.2")])
def test_trtexec_banner_holds_version(number: str, version: str) -> None:
    """The number in the banner of trtexec is a version."""
    finding = trtexec_finding("/opt/trtexec", ended(BANNER.format(number)))
    assert (finding.severity, finding.found) == (Severity.OK, f"{version}, /opt/trtexec")


def test_trtexec_without_libraries_is_warning() -> None:
    """A trtexec without its libraries is a warning."""
    complaint = "trtexec: error while loading shared libraries: libnvinfer.so.10: cannot open shared object file\n"
    finding = trtexec_finding("/opt/trtexec", ended("", 127, complaint))
    assert finding.severity is Severity.WARNING
    assert "libnvinfer.so.10" in finding.found
    assert "LD_LIBRARY_PATH" in finding.remedy


def test_no_trtexec_is_no_fault() -> None:
    assert trtexec_finding(None, None).severity is Severity.OPTIONAL


def test_tensorrt_state_told() -> None:
    """TensorRT is absent, broken or there."""
    assert tensorrt_finding(Probed()).severity is Severity.OPTIONAL
    assert tensorrt_finding(Probed(broken="ImportError: libnvinfer.so.10")).severity is Severity.WARNING
    assert tensorrt_finding(Probed({"version": "10.13.0.35"})).found == "10.13.0.35"
