"""Machine checks: memory, processors, GPUs, and the folder that a compile writes to."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from plansmith.cli.doctor.findings import Ended, Finding, Probed, Severity
from plansmith.compilers.trt import rtx
from plansmith.compilers.trt.trtexec.output import banner_version
from plansmith.formatting import format_bytes
from plansmith.records.engine import Gpu
from plansmith.system.files import scratch_folder
from plansmith.system.gpus import sums_bytes_exactly
from plansmith.system.memory import available_memory, control_group_limits

AREA = "Machine"

_MIB, _GIB = 2**20, 2**30
_LITTLE_MEMORY = 8 * _GIB
_LITTLE_SHARED = 64 * _MIB
_FEW_FILES = 512

_SHARED = Path("/dev/shm")  # noqa: S108 - the kernel's, and Triton's choice
_STUB = "Triton's Python backend"

FOLDER_AREA = "Artifacts"
_LITTLE_ROOM = 20 * 2**30
_NO_ROOM = 2 * 2**30
_ELSEWHERE = "plansmith compile --artifacts <folder on a local disk>"
HARD_LINKS = "hard links"
GPU_AREA = "GPU and TensorRT"
_FOR_GPUS = "TensorRT plans, and models on GPU instances"
_FOR_TENSORRT = "TensorRT plans, built here"


def machine_findings() -> list[Finding]:
    """Check everything on the machine except the artifacts folder."""
    limits = control_group_limits()
    return [
        processors_finding(len(os.sched_getaffinity(0)), limits.processors),
        int8_finding(exact=sums_bytes_exactly()),
        memory_finding(available_memory(Path("/proc/meminfo").read_text()), limits.memory_bytes),
        shared_memory_finding(shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else None),
        open_files_finding(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        temporary_finding(),
    ]


def processors_finding(usable: int, limit: float | None) -> Finding:
    """Check how many processors this process may use."""
    limited = f", limited to the time of {limit:g} by the control group" if limit is not None and limit < usable else ""
    return Finding(AREA, "processors", Severity.OK, f"{usable} usable{limited}")


def int8_finding(*, exact: bool) -> Finding:
    """Check whether the processor sums int8 products exactly; if not, `int8` uses 7-bit weights."""
    name = "INT8 products"
    if exact:
        return Finding(AREA, name, Severity.OK, "summed exactly: weights keep 8 bits")
    detail = "without VNNI sums of two may saturate, so that weights get 7 bits"
    return Finding(AREA, name, Severity.OPTIONAL, detail, "--precision int8 at its fastest")


def memory_finding(available: int, limit: int | None) -> Finding:
    """Check memory for several copies of the model: PyTorch, the exporter and ONNX Runtime hold it at the same time."""
    usable = available if limit is None else min(available, limit)
    limited = usable < available
    cap = f", limited to {format_bytes(usable)} by the control group" if limited else ""
    detail = f"{format_bytes(available)} available{cap}"
    if usable >= _LITTLE_MEMORY:
        return Finding(AREA, "memory", Severity.OK, detail)
    remedy = "give the container more memory: docker run --memory 16g" if limited else "end programs that hold memory"
    return Finding(AREA, "memory", Severity.WARNING, detail, "large models", remedy)


def shared_memory_finding(free: int | None) -> Finding:
    """Check free space in /dev/shm, in bytes; None without such a folder."""
    detail = "not there" if free is None else f"{format_bytes(free)} free"
    if free is not None and free >= _LITTLE_SHARED:
        return Finding(AREA, "/dev/shm", Severity.OK, detail)  # noqa: S108 - a name that is shown
    return Finding(AREA, "/dev/shm", Severity.WARNING, detail, _STUB, "docker run --shm-size 1g")  # noqa: S108


def open_files_finding(limit: int) -> Finding:
    """Check how many files this process may open."""
    detail = "unlimited" if limit == resource.RLIM_INFINITY else f"at most {limit}"
    if limit == resource.RLIM_INFINITY or limit >= _FEW_FILES:
        return Finding(AREA, "open files", Severity.OK, detail)
    return Finding(
        AREA, "open files", Severity.WARNING, detail, "models in many files, many requests", "ulimit -n 4096"
    )


def temporary_finding() -> Finding:
    """Check the temporary folder, into which Triton's backends are unpacked; one of them is an executable."""
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        needed_for = "starting Triton"
        detail = f"no folder can be written: {error.strerror}"
        return Finding(AREA, "temporary folder", Severity.PROBLEM, detail, needed_for, "export TMPDIR=<folder>")
    return temporary_folder_finding(folder, no_programs=bool(os.statvfs(folder).f_flag & os.ST_NOEXEC))


def temporary_folder_finding(folder: Path, *, no_programs: bool) -> Finding:
    """Check whether a temporary folder is writable, and whether its mount forbids executables (noexec)."""
    if not no_programs:
        return Finding(AREA, "temporary folder", Severity.OK, str(folder))
    detail = f"{folder} is mounted noexec"
    return Finding(
        AREA, "temporary folder", Severity.WARNING, detail, _STUB, "export TMPDIR=<folder where programs run>"
    )


def folder_findings(artifacts: Path) -> list[Finding]:
    """Check the artifacts folder, or the folder that it would be created in; leaves nothing behind."""
    place = _existing(artifacts.absolute())
    if not place.is_dir():
        detail = f"{place} is no folder"
        return [Finding(FOLDER_AREA, "folder", Severity.PROBLEM, detail, "everything", _ELSEWHERE)]
    room = room_finding(place, shutil.disk_usage(place).free)
    try:
        with scratch_folder("doctor", place) as scratch:
            lacking = [word for word, attempt in ATTEMPTS.items() if not _works(attempt, Path(scratch))]
    except OSError as error:
        detail = f"{place} cannot be written: {error.strerror}"
        remedy = f"{_ELSEWHERE.partition('<')[0]}<folder that you may write>"
        return [Finding(FOLDER_AREA, "folder", Severity.PROBLEM, detail, "everything", remedy), room]
    return [abilities_finding(place, lacking), room]


def abilities_finding(place: Path, lacking: list[str]) -> Finding:
    """Report which of `ATTEMPTS` failed in a folder; only hard links are optional, with copying as fallback."""
    if not lacking:
        return Finding(FOLDER_AREA, "folder", Severity.OK, f"{place}: {', '.join(ATTEMPTS)} work")
    detail = f"{place} has no {', no '.join(lacking)}"
    if lacking == [HARD_LINKS]:
        remedy = _ELSEWHERE
        return Finding(
            FOLDER_AREA, "folder", Severity.WARNING, detail, "releases that share files instead of copies", remedy
        )
    return Finding(FOLDER_AREA, "folder", Severity.PROBLEM, detail, "publishing whole or not at all", _ELSEWHERE)


def room_finding(place: Path, free: int) -> Finding:
    """Check free disk space in bytes."""
    detail = f"{format_bytes(free)} free"
    if free >= _LITTLE_ROOM:
        return Finding(FOLDER_AREA, "free disk", Severity.OK, detail)
    severity = Severity.WARNING if free >= _NO_ROOM else Severity.PROBLEM
    remedy = f"free some room on the disk of {place}, or plansmith compile --artifacts <folder on another disk>"
    return Finding(FOLDER_AREA, "free disk", severity, detail, "a model's weights several times over", remedy)


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _works(attempt: Callable[[Path], bool], scratch: Path) -> bool:
    try:
        return attempt(scratch)
    except OSError:
        return False


def _links_hard(scratch: Path) -> bool:
    (scratch / "one").write_text("1")
    (scratch / "two").hardlink_to(scratch / "one")
    return (scratch / "two").stat().st_nlink == 2


def _links(scratch: Path) -> bool:
    (scratch / "link").symlink_to("nowhere")
    return (scratch / "link").readlink() == Path("nowhere")


def _renames_over(scratch: Path) -> bool:
    """Whether a symbolic link replaces another atomically by a rename, as when a new version is published."""
    (scratch / "old").symlink_to("1")
    (scratch / "new").symlink_to("2")
    (scratch / "new").replace(scratch / "old")
    return (scratch / "old").readlink() == Path("2")


def _locks(scratch: Path) -> bool:
    """Whether file locks exclude others; a second descriptor stands for a second process, as to the kernel."""
    with (scratch / "lock").open("w") as first, (scratch / "lock").open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


ATTEMPTS: dict[str, Callable[[Path], bool]] = {
    HARD_LINKS: _links_hard,
    "symbolic links": _links,
    "atomic renames": _renames_over,
    "locks": _locks,
}


def gpu_findings(probed: Probed, torch: Probed, *, present: bool) -> list[Finding]:
    """Check the GPUs and their driver.

    Args:
        probed: what the driver says, by the probe `gpus`.
        torch: whose CUDA build may not fit the driver.
        present: this machine has a GPU, as `has_gpu` found.
    """
    if probed.facts is None:
        detail = f"the NVIDIA driver cannot be asked: {probed.broken}"
        return [Finding(GPU_AREA, "GPUs", Severity.WARNING, detail, _FOR_GPUS, "nvidia-smi -q")]
    facts = probed.facts
    if facts["problem"]:
        return [Finding(GPU_AREA, "GPUs", Severity.WARNING, facts["problem"], _FOR_GPUS, facts["remedy"])]
    gpus = [Gpu.model_validate(item) for item in facts["gpus"]]
    if gpus:
        findings = [Finding(GPU_AREA, f"GPU {gpu.index}", Severity.OK, _description(gpu)) for gpu in gpus]
        return [*findings, _driver_finding(gpus[0].driver, torch)]
    if present and facts["visible"] is None:
        remedy = "load or install the NVIDIA driver; in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        detail = "one is here, but its driver is not loaded, or the driver's library is not installed"
        return [Finding(GPU_AREA, "GPUs", Severity.WARNING, detail, _FOR_GPUS, remedy)]
    hidden = "" if facts["visible"] is None else f" that CUDA_VISIBLE_DEVICES={facts['visible']} leaves visible"
    return [Finding(GPU_AREA, "GPUs", Severity.OPTIONAL, f"none{hidden}", _FOR_GPUS)]


def tensorrt_finding(tensorrt: Probed) -> Finding:
    """Check the TensorRT Python package."""
    if tensorrt.facts is not None:
        return Finding(GPU_AREA, "tensorrt", Severity.OK, str(tensorrt.facts["version"]))
    if tensorrt.is_absent:
        return Finding(GPU_AREA, "tensorrt", Severity.OPTIONAL, "not installed", _FOR_TENSORRT, "pip install tensorrt")
    remedy = "pip install --force-reinstall tensorrt"
    return Finding(GPU_AREA, "tensorrt", Severity.WARNING, f"does not work: {tensorrt.broken}", _FOR_TENSORRT, remedy)


def check_library_finding(probed: Probed) -> Finding:
    """Check TensorRT-RTX, whose parser and builder need no GPU."""
    name, needed_for = "tensorrt-rtx", "graphs checked without a GPU (--check-build)"
    if probed.facts is not None:
        version = str(probed.facts["version"])
        if version == rtx.VERSION:
            return Finding(GPU_AREA, name, Severity.OK, version)
        detail = f"{version}; checks are known for {rtx.VERSION}"
        return Finding(GPU_AREA, name, Severity.WARNING, detail, needed_for, rtx.INSTALL)
    if probed.is_absent:
        return Finding(GPU_AREA, name, Severity.OPTIONAL, "not installed", needed_for, rtx.INSTALL)
    return Finding(GPU_AREA, name, Severity.WARNING, f"does not work: {probed.broken}", needed_for, rtx.REINSTALL)


def trtexec_finding(program: str | None, ended: Ended | None) -> Finding:
    """Check trtexec, the program in TensorRT's tar and deb packages.

    Args:
        program: from `compilers.trt.trtexec.probing.find_trtexec`.
        ended: how it ended without arguments, which makes it print a banner and its help.
    """
    if program is None or ended is None:
        remedy = "use NVIDIA's TensorRT packages or container (nvcr.io/nvidia/tensorrt); pip has no trtexec"
        return Finding(GPU_AREA, "trtexec", Severity.OPTIONAL, "not found", _FOR_TENSORRT, remedy)
    version = ".".join(banner_version(ended.printed + ended.complaints).split(".")[:3])
    if ended.failure:
        remedy = "put the folder of TensorRT's libraries into LD_LIBRARY_PATH"
        return Finding(GPU_AREA, "trtexec", Severity.WARNING, f"{program} {ended.failure}", _FOR_TENSORRT, remedy)
    return Finding(GPU_AREA, "trtexec", Severity.OK, f"{version}, {program}" if version else program)


def _driver_finding(driver: str, torch: Probed) -> Finding:
    facts = torch.facts or {}
    if facts.get("cuda_build") and not facts.get("cuda_usable"):
        detail = f"{driver}; torch is built for CUDA {facts['cuda_build']} and cannot use a GPU here"
        remedy = "update the NVIDIA driver, or install a torch for its CUDA: https://pytorch.org/get-started/locally"
        return Finding(GPU_AREA, "driver", Severity.WARNING, detail, _FOR_GPUS, remedy)
    return Finding(GPU_AREA, "driver", Severity.OK, driver)


def _description(gpu: Gpu) -> str:
    return f"{gpu.name}, {format_bytes(gpu.memory_bytes)}, compute capability {gpu.compute_capability}"
