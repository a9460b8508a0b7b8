"""GPUs, their driver, and the parts of TensorRT; none is needed yet by anything that plansmith does."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from plansmith.compilers.trtexec.output import banner_version
from plansmith.doctor.children import Ended, Probed
from plansmith.doctor.findings import Finding, Severity
from plansmith.units import bytes_in_words

AREA = "GPU and TensorRT"
NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,compute_cap,driver_version",
    "--format=csv,noheader,nounits",
)

_FOR_GPUS = "GPU engines (not available yet)"
_FOR_TENSORRT = "TensorRT engines (not available yet)"


@dataclass(frozen=True)
class Gpu:
    """One line of nvidia-smi; a field that the driver does not know is empty."""

    index: str
    name: str
    memory_mib: str
    compute_capability: str
    driver: str


def gpus_from_csv(text: str) -> list[Gpu]:
    """The GPUs that `NVIDIA_SMI` printed."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [Gpu(*("" if field.startswith("[") else field.strip() for field in row)) for row in rows if len(row) == 5]


def gpu_findings(ended: Ended | None, torch: Probed, *, present: bool) -> list[Finding]:
    """GPUs and driver.

    Args:
        ended: how nvidia-smi ended; None where there is none.
        torch: whose CUDA build may not fit the driver.
        present: this machine has a GPU, as `has_gpu` found.
    """
    if ended is None and present:
        remedy = "install the driver's tools; in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        found = "one is here, but nothing is known of it: nvidia-smi is not installed"
        return [Finding(AREA, "GPUs", Severity.WARNING, found, _FOR_GPUS, remedy)]
    if ended is None:
        return [Finding(AREA, "GPUs", Severity.OPTIONAL, "nvidia-smi is not installed", _FOR_GPUS)]
    said = (ended.printed + ended.complaints).strip()
    if "No devices were found" in said:
        return [Finding(AREA, "GPUs", Severity.OPTIONAL, "none, though the driver is there", _FOR_GPUS)]
    if ended.failure:
        found = f"nvidia-smi {ended.failure}" if not said else said.splitlines()[0]
        remedy = "load or reinstall the NVIDIA driver; in a container: docker run --gpus all"
        return [Finding(AREA, "GPUs", Severity.WARNING, found, _FOR_GPUS, remedy)]
    gpus = gpus_from_csv(ended.printed)
    if not gpus:
        found = f"nvidia-smi answered what is not understood: {said.splitlines()[0] if said else 'nothing'}"
        return [Finding(AREA, "GPUs", Severity.WARNING, found, _FOR_GPUS, "nvidia-smi -q")]
    findings = [Finding(AREA, f"GPU {gpu.index}", Severity.OK, _description(gpu)) for gpu in gpus]
    return [*findings, _driver_finding(gpus[0].driver, torch)]


def tensorrt_finding(tensorrt: Probed) -> Finding:
    """The Python package."""
    if tensorrt.facts is not None:
        return Finding(AREA, "tensorrt", Severity.OK, str(tensorrt.facts["version"]))
    if tensorrt.is_absent:
        return Finding(AREA, "tensorrt", Severity.OPTIONAL, "not installed", _FOR_TENSORRT, "pip install tensorrt")
    remedy = "pip install --force-reinstall tensorrt"
    return Finding(AREA, "tensorrt", Severity.WARNING, f"does not work: {tensorrt.broken}", _FOR_TENSORRT, remedy)


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
    memory = bytes_in_words(int(gpu.memory_mib) * 2**20) if gpu.memory_mib.isdigit() else ""
    capability = f"compute capability {gpu.compute_capability}" if gpu.compute_capability else ""
    return ", ".join(part for part in (gpu.name, memory, capability) if part)
