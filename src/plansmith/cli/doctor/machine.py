"""Memory, processors, shared memory and files of this machine, as this process may use them."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from pathlib import Path

from plansmith.cli.doctor.findings import Finding, Severity
from plansmith.formatting import format_bytes
from plansmith.system.cpu import sums_bytes_exactly
from plansmith.system.memory import available_memory, control_group_limits

AREA = "Machine"

_MIB, _GIB = 2**20, 2**30
_LITTLE_MEMORY = 8 * _GIB
_LITTLE_SHARED = 64 * _MIB
_FEW_FILES = 512

_SHARED = Path("/dev/shm")  # noqa: S108 - the kernel's, and Triton's choice
_STUB = "Triton's Python backend"


def machine_findings() -> list[Finding]:
    """Everything but the artifacts folder."""
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
    """How many processors this process may use."""
    limited = f", limited to the time of {limit:g} by the control group" if limit is not None and limit < usable else ""
    return Finding(AREA, "processors", Severity.OK, f"{usable} usable{limited}")


def int8_finding(*, exact: bool) -> Finding:
    """Whether the processor sums products of bytes exactly; where it does not, `int8` takes weights of 7 bits."""
    name = "INT8 products"
    if exact:
        return Finding(AREA, name, Severity.OK, "summed exactly: weights keep 8 bits")
    found = "without VNNI sums of two may saturate, so that weights get 7 bits"
    return Finding(AREA, name, Severity.OPTIONAL, found, "--precision int8 at its fastest")


def memory_finding(available: int, limit: int | None) -> Finding:
    """Memory for the model, several times over: PyTorch, the exporter and ONNX Runtime hold it at the same time."""
    usable = available if limit is None else min(available, limit)
    limited = usable < available
    said = f", limited to {format_bytes(usable)} by the control group" if limited else ""
    found = f"{format_bytes(available)} available{said}"
    if usable >= _LITTLE_MEMORY:
        return Finding(AREA, "memory", Severity.OK, found)
    remedy = "give the container more memory: docker run --memory 16g" if limited else "end programs that hold memory"
    return Finding(AREA, "memory", Severity.WARNING, found, "large models", remedy)


def shared_memory_finding(free: int | None) -> Finding:
    """Room in /dev/shm, in bytes; None where there is no such folder."""
    found = "not there" if free is None else f"{format_bytes(free)} free"
    if free is not None and free >= _LITTLE_SHARED:
        return Finding(AREA, "/dev/shm", Severity.OK, found)  # noqa: S108 - a name that is shown
    return Finding(AREA, "/dev/shm", Severity.WARNING, found, _STUB, "docker run --shm-size 1g")  # noqa: S108


def open_files_finding(limit: int) -> Finding:
    """How many files this process may hold open."""
    found = "unlimited" if limit == resource.RLIM_INFINITY else f"at most {limit}"
    if limit == resource.RLIM_INFINITY or limit >= _FEW_FILES:
        return Finding(AREA, "open files", Severity.OK, found)
    return Finding(AREA, "open files", Severity.WARNING, found, "models in many files, many requests", "ulimit -n 4096")


def temporary_finding() -> Finding:
    """The temporary folder: Triton's backends are laid out in it, and one of them is a program."""
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        needed_for = "starting Triton"
        found = f"no folder can be written: {error.strerror}"
        return Finding(AREA, "temporary folder", Severity.PROBLEM, found, needed_for, "export TMPDIR=<folder>")
    return temporary_folder_finding(folder, no_programs=bool(os.statvfs(folder).f_flag & os.ST_NOEXEC))


def temporary_folder_finding(folder: Path, *, no_programs: bool) -> Finding:
    """A temporary folder that can be written, and whether its mount forbids running programs (noexec)."""
    if not no_programs:
        return Finding(AREA, "temporary folder", Severity.OK, str(folder))
    found = f"{folder} is mounted noexec"
    return Finding(
        AREA, "temporary folder", Severity.WARNING, found, _STUB, "export TMPDIR=<folder where programs run>"
    )
