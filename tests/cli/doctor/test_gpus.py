"""GPUs, driver and TensorRT, from what their programs print."""

from __future__ import annotations

import asyncio

import pytest

from plansmith.cli.doctor.children import Ended, Probed, run_probe
from plansmith.cli.doctor.findings import Severity
from plansmith.cli.doctor.gpus import gpu_findings, tensorrt_finding, trtexec_finding
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


def told(*gpus: Gpu, problem: str = "", remedy: str = "", visible: str | None = None) -> Probed:
    listed = [gpu.model_dump(mode="json") for gpu in gpus]
    return Probed({"gpus": listed, "problem": problem, "remedy": remedy, "visible": visible})


def test_each_gpu_is_shown_with_memory_and_capability_and_the_driver_once() -> None:
    first, second, driver = gpu_findings(told(H200, T4), WORKING_TORCH, present=True)
    assert (first.name, first.found) == ("GPU 0", "NVIDIA H200, 140.4 GiB, compute capability 9.0")
    assert (second.name, second.found) == ("GPU 1", "Tesla T4, 15.0 GiB, compute capability 7.5")
    assert (driver.found, driver.severity) == ("570.124.06", Severity.OK)


def test_a_torch_that_cannot_use_the_gpu_is_a_warning_at_the_driver() -> None:
    torch = Probed({"version": "2.15", "cuda_build": "13.2", "cuda_usable": False})
    *_, driver = gpu_findings(told(H200), torch, present=True)
    assert driver.severity is Severity.WARNING
    assert "CUDA 13.2" in driver.found
    assert driver.remedy


def test_no_gpu_is_no_problem_nor_one_that_is_hidden() -> None:
    (absent,) = gpu_findings(told(), WORKING_TORCH, present=False)
    assert (absent.severity, absent.found) == (Severity.OPTIONAL, "none")
    (hidden,) = gpu_findings(told(visible=""), WORKING_TORCH, present=True)
    assert (hidden.severity, hidden.found) == (
        Severity.OPTIONAL,
        "none that CUDA_VISIBLE_DEVICES= leaves visible",
    )


def test_a_gpu_without_its_driver_is_a_warning_that_says_what_is_lacking() -> None:
    (found,) = gpu_findings(told(), WORKING_TORCH, present=True)
    assert found.severity is Severity.WARNING
    assert "driver" in found.found
    assert "NVIDIA_DRIVER_CAPABILITIES" in found.remedy


def test_a_driver_that_does_not_answer_or_takes_the_probe_along_is_a_warning() -> None:
    problem = told(problem="the driver does not answer: mismatch", remedy="load the driver again")
    (found,) = gpu_findings(problem, WORKING_TORCH, present=True)
    assert (found.severity, found.remedy) == (Severity.WARNING, "load the driver again")
    assert "mismatch" in found.found
    (found,) = gpu_findings(Probed(broken="it did not end within 60 s"), WORKING_TORCH, present=True)
    assert found.severity is Severity.WARNING
    assert "did not end within 60 s" in found.found
    assert found.remedy


@pytest.mark.slow
def test_the_probe_of_gpus_tells_what_is_visible_here() -> None:
    facts = asyncio.run(run_probe("gpus", online=False)).facts
    assert facts is not None
    assert not facts["problem"]
    assert [gpu["uuid"] for gpu in facts["gpus"]] == [gpu.uuid for gpu in visible_gpus()]


@pytest.mark.parametrize(("number", "version"), [("101600", "10.16.0"), ("110100", "11.1.0"), ("8602", "8.6.2")])
def test_the_number_in_the_banner_of_trtexec_is_a_version(number: str, version: str) -> None:
    found = trtexec_finding("/opt/trtexec", ended(BANNER.format(number)))
    assert (found.severity, found.found) == (Severity.OK, f"{version}, /opt/trtexec")


def test_a_trtexec_without_its_libraries_is_a_warning() -> None:
    complaint = "trtexec: error while loading shared libraries: libnvinfer.so.10: cannot open shared object file\n"
    found = trtexec_finding("/opt/trtexec", ended("", 127, complaint))
    assert found.severity is Severity.WARNING
    assert "libnvinfer.so.10" in found.found
    assert "LD_LIBRARY_PATH" in found.remedy


def test_no_trtexec_is_no_fault() -> None:
    assert trtexec_finding(None, None).severity is Severity.OPTIONAL


def test_tensorrt_is_absent_broken_or_there() -> None:
    assert tensorrt_finding(Probed()).severity is Severity.OPTIONAL
    assert tensorrt_finding(Probed(broken="ImportError: libnvinfer.so.10")).severity is Severity.WARNING
    assert tensorrt_finding(Probed({"version": "10.13.0.35"})).found == "10.13.0.35"
