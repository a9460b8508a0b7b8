"""GPUs, their driver, and the parts of TensorRT."""

from __future__ import annotations

from plansmith.cli.doctor.children import Ended, Probed
from plansmith.cli.doctor.findings import Finding, Severity
from plansmith.compilers.trt.check import library
from plansmith.compilers.trtexec.output import banner_version
from plansmith.formatting import format_bytes
from plansmith.records.engine import Gpu

AREA = "GPU and TensorRT"

_FOR_GPUS = "TensorRT plans, and models on GPU instances"
_FOR_TENSORRT = "TensorRT plans, built here"


def gpu_findings(probed: Probed, torch: Probed, *, present: bool) -> list[Finding]:
    """GPUs and driver.

    Args:
        probed: what the driver says, by the probe `gpus`.
        torch: whose CUDA build may not fit the driver.
        present: this machine has a GPU, as `has_gpu` found.
    """
    if probed.facts is None:
        found = f"the NVIDIA driver cannot be asked: {probed.broken}"
        return [Finding(AREA, "GPUs", Severity.WARNING, found, _FOR_GPUS, "nvidia-smi -q")]
    facts = probed.facts
    if facts["problem"]:
        return [Finding(AREA, "GPUs", Severity.WARNING, facts["problem"], _FOR_GPUS, facts["remedy"])]
    gpus = [Gpu.model_validate(one) for one in facts["gpus"]]
    if gpus:
        findings = [Finding(AREA, f"GPU {gpu.index}", Severity.OK, _description(gpu)) for gpu in gpus]
        return [*findings, _driver_finding(gpus[0].driver, torch)]
    if present and facts["visible"] is None:
        remedy = "load or install the NVIDIA driver; in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        found = "one is here, but its driver is not loaded, or the driver's library is not installed"
        return [Finding(AREA, "GPUs", Severity.WARNING, found, _FOR_GPUS, remedy)]
    hidden = "" if facts["visible"] is None else f" that CUDA_VISIBLE_DEVICES={facts['visible']} leaves visible"
    return [Finding(AREA, "GPUs", Severity.OPTIONAL, f"none{hidden}", _FOR_GPUS)]


def tensorrt_finding(tensorrt: Probed) -> Finding:
    """The Python package."""
    if tensorrt.facts is not None:
        return Finding(AREA, "tensorrt", Severity.OK, str(tensorrt.facts["version"]))
    if tensorrt.is_absent:
        return Finding(AREA, "tensorrt", Severity.OPTIONAL, "not installed", _FOR_TENSORRT, "pip install tensorrt")
    remedy = "pip install --force-reinstall tensorrt"
    return Finding(AREA, "tensorrt", Severity.WARNING, f"does not work: {tensorrt.broken}", _FOR_TENSORRT, remedy)


def check_library_finding(rtx: Probed) -> Finding:
    """TensorRT-RTX, whose parser and builder need no GPU."""
    name, needed_for = "tensorrt-rtx", "graphs checked without a GPU (--check-build)"
    if rtx.facts is not None:
        found = str(rtx.facts["version"])
        if found == library.VERSION:
            return Finding(AREA, name, Severity.OK, found)
        words = f"{found}; checks are known for {library.VERSION}"
        return Finding(AREA, name, Severity.WARNING, words, needed_for, library.INSTALL)
    if rtx.is_absent:
        return Finding(AREA, name, Severity.OPTIONAL, "not installed", needed_for, library.INSTALL)
    return Finding(AREA, name, Severity.WARNING, f"does not work: {rtx.broken}", needed_for, library.REINSTALL)


def trtexec_finding(program: str | None, ended: Ended | None) -> Finding:
    """The program that comes with TensorRT's tar and deb packages.

    Args:
        program: from `compilers.trtexec.probing.find_trtexec`.
        ended: how it ended without arguments, which makes it print a banner and its help.
    """
    if program is None or ended is None:
        remedy = "use NVIDIA's TensorRT packages or container (nvcr.io/nvidia/tensorrt); pip has no trtexec"
        return Finding(AREA, "trtexec", Severity.OPTIONAL, "not found", _FOR_TENSORRT, remedy)
    version = ".".join(banner_version(ended.printed + ended.complaints).split(".")[:3])
    if ended.failure:
        remedy = "put the folder of TensorRT's libraries into LD_LIBRARY_PATH"
        return Finding(AREA, "trtexec", Severity.WARNING, f"{program} {ended.failure}", _FOR_TENSORRT, remedy)
    return Finding(AREA, "trtexec", Severity.OK, f"{version}, {program}" if version else program)


def _driver_finding(driver: str, torch: Probed) -> Finding:
    facts = torch.facts or {}
    if facts.get("cuda_build") and not facts.get("cuda_usable"):
        found = f"{driver}; torch is built for CUDA {facts['cuda_build']} and cannot use a GPU here"
        remedy = "update the NVIDIA driver, or install a torch for its CUDA: https://pytorch.org/get-started/locally"
        return Finding(AREA, "driver", Severity.WARNING, found, _FOR_GPUS, remedy)
    return Finding(AREA, "driver", Severity.OK, driver)


def _description(gpu: Gpu) -> str:
    return f"{gpu.name}, {format_bytes(gpu.memory_bytes)}, compute capability {gpu.compute_capability}"
