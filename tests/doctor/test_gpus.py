"""GPUs, driver and TensorRT, from what their programs print."""

from __future__ import annotations

import pytest

from plansmith.doctor.children import Ended, Probed
from plansmith.doctor.findings import Severity
from plansmith.doctor.gpus import gpu_findings, tensorrt_finding, trtexec_finding

ONE_H200 = "0, NVIDIA H200, 143771, 9.0, 570.124.06\n"
TWO_GPUS = "0, NVIDIA A100-SXM4-80GB, 81920, 8.0, 550.54.15\n1, Tesla T4, 15360, [N/A], 550.54.15\n"
NO_DRIVER = """\
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver \
is installed and running.

"""
WORKING_TORCH = Probed({"version": "2.9", "cuda_build": "12.8", "cuda_usable": True})
BANNER = "&&&& RUNNING TensorRT.trtexec [TensorRT v{}] [b42] # trtexec\n=== Model Options ===\n"


def ended(printed: str, status: int | None = 0, complaints: str = "") -> Ended:
    return Ended(status, printed, complaints, 60)


def test_an_h200_is_shown_with_memory_capability_and_driver() -> None:
    gpu, driver = gpu_findings(ended(ONE_H200), WORKING_TORCH, present=False)
    assert (gpu.name, gpu.found) == ("GPU 0", "NVIDIA H200, 140.4 GiB, compute capability 9.0")
    assert (driver.found, driver.severity) == ("570.124.06", Severity.OK)


def test_two_gpus_are_two_findings_and_an_unknown_field_is_left_out() -> None:
    first, second, driver = gpu_findings(ended(TWO_GPUS), WORKING_TORCH, present=False)
    assert (first.name, second.name, second.found) == ("GPU 0", "GPU 1", "Tesla T4, 15.0 GiB")
    assert driver.found == "550.54.15"


def test_a_torch_that_cannot_use_the_gpu_is_a_warning_at_the_driver() -> None:
    torch = Probed({"version": "2.15", "cuda_build": "13.2", "cuda_usable": False})
    *_, driver = gpu_findings(ended(ONE_H200), torch, present=False)
    assert driver.severity is Severity.WARNING
    assert "CUDA 13.2" in driver.found
    assert driver.remedy


def test_no_nvidia_smi_is_no_problem() -> None:
    (found,) = gpu_findings(None, WORKING_TORCH, present=False)
    assert found.severity is Severity.OPTIONAL


def test_a_gpu_without_nvidia_smi_is_a_warning_that_says_what_is_lacking() -> None:
    (found,) = gpu_findings(None, WORKING_TORCH, present=True)
    assert found.severity is Severity.WARNING
    assert "nvidia-smi is not installed" in found.found
    assert "NVIDIA_DRIVER_CAPABILITIES" in found.remedy


def test_no_devices_is_no_problem() -> None:
    (found,) = gpu_findings(ended("No devices were found\n", 6), WORKING_TORCH, present=False)
    assert found.severity is Severity.OPTIONAL


@pytest.mark.parametrize("stream", ["printed", "complaints"])
def test_a_driver_that_does_not_answer_is_a_warning_with_its_own_words(stream: str) -> None:
    said = ended(NO_DRIVER, 9) if stream == "printed" else ended("", 9, NO_DRIVER)
    (found,) = gpu_findings(said, WORKING_TORCH, present=False)
    assert found.severity is Severity.WARNING
    assert "couldn't communicate with the NVIDIA driver" in found.found
    assert "docker run --gpus all" in found.remedy


def test_an_nvidia_smi_that_hangs_is_a_warning() -> None:
    (found,) = gpu_findings(ended("", None), WORKING_TORCH, present=False)
    assert (found.severity, found.found) == (Severity.WARNING, "nvidia-smi did not end within 60 s")


def test_other_output_is_not_taken_for_gpus() -> None:
    (found,) = gpu_findings(ended("Field is not a valid field to query.\n"), WORKING_TORCH, present=False)
    assert found.severity is Severity.WARNING
    assert "not a valid field" in found.found


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
