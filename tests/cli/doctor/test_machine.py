"""Memory, processors, shared memory and the artifacts folder, from what the kernel and the file system say."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from plansmith.cli.doctor import machine
from plansmith.cli.doctor.findings import Severity
from plansmith.formatting import format_bytes
from plansmith.system.gpus import sums_bytes_exactly
from plansmith.system.memory import Limits, available_memory, control_group_limits

GIB = 2**30
MEMINFO = "MemTotal:       49388664 kB\nMemFree:         1000000 kB\nMemAvailable:   22020096 kB\n"


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def limits(tmp_path: Path, membership: str, files: dict[str, str]) -> Limits:
    root = lay_out(tmp_path / "cgroup", files)
    (tmp_path / "membership").write_text(membership)
    return control_group_limits(root, tmp_path / "membership")


def test_tightest_v2_limit_counts(tmp_path: Path) -> None:
    """The tightest limit above a process counts in version 2."""
    files = {
        "pods/memory.max": f"{4 * GIB}\n",
        "pods/cpu.max": "150000 100000\n",
        "pods/one/memory.max": "max\n",
        "pods/one/cpu.max": "max 100000\n",
    }
    assert limits(tmp_path, "0::/pods/one\n", files) == Limits(4 * GIB, 1.5)


def test_v1_limits_are_read(tmp_path: Path) -> None:
    """Limits are read in version 1, and no limit is None."""
    files = {
        "memory/job/memory.limit_in_bytes": f"{2 * GIB}\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
    }
    membership = "5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/init\n"
    assert limits(tmp_path, membership, files) == Limits(2 * GIB, None)


def test_container_limited_by_own_group(tmp_path: Path) -> None:
    """A container that sees only its own group is limited by it."""
    files = {"memory.max": f"{GIB}\n"}
    assert limits(tmp_path, "0::/kubepods/pod1\n", files) == Limits(GIB, None)


def test_no_control_groups_no_limits(tmp_path: Path) -> None:
    """A machine without control groups has no limits."""
    assert control_group_limits(tmp_path, tmp_path / "none") == Limits(None, None)


def test_available_memory_counts() -> None:
    """Memory is what is available, and not what is free."""
    finding = machine.memory_finding(available_memory(MEMINFO), None)
    assert (finding.severity, finding.found) == (Severity.OK, "21.0 GiB available")


def test_tight_control_group_is_warning() -> None:
    """A tight control group is a warning that says how to widen it."""
    finding = machine.memory_finding(21 * GIB, 4 * GIB)
    assert finding.severity is Severity.WARNING
    assert "limited to 4.0 GiB" in finding.found
    assert "docker run --memory" in finding.remedy
    assert machine.memory_finding(21 * GIB, 16 * GIB).severity is Severity.OK
    assert "docker" not in machine.memory_finding(3 * GIB, None).remedy


def test_processor_limit_is_said() -> None:
    """A limit on processors is said."""
    assert machine.processors_finding(16, 1.5).found.endswith("limited to the time of 1.5 by the control group")
    assert machine.processors_finding(2, 4.0).found == "2 usable"


@pytest.mark.parametrize(
    ("described", "kind", "exact"),
    [
        ("processor : 0\nflags\t\t: fpu avx2 avx512_vnni\n", "x86_64", True),
        ("flags : fpu avx2 avx_vnni\n", "x86_64", True),
        ("flags : fpu avx2 avx512f\n", "x86_64", False),
        ("Features : fp asimd asimddp\n", "aarch64", True),
        ("", "arm64", True),
        ("", "x86_64", False),
        ("", "AMD64", False),
    ],
    ids=["AVX-512 VNNI", "AVX VNNI", "x86 without", "Arm", "Arm elsewhere", "x86 elsewhere", "Windows"],
)
def test_inexact_byte_sums_are_told(described: str, kind: str, exact: bool) -> None:
    """A processor that sums bytes inexactly is told, with what that means."""
    assert sums_bytes_exactly(described, kind) is exact
    finding = machine.int8_finding(exact=exact)
    assert (finding.severity is Severity.OK, "8 bits" in finding.found) == (exact, exact)
    assert ("7 bits" in finding.found) == ("int8" in finding.needed_for) == (not exact)


@pytest.mark.parametrize("free", [None, 0, 63 * 2**20])
def test_little_shared_memory_is_warning(free: int | None) -> None:
    """Little or no shared memory is a warning with Docker's option."""
    finding = machine.shared_memory_finding(free)
    assert finding.severity is Severity.WARNING
    assert "--shm-size" in finding.remedy
    enough = machine.shared_memory_finding(64 * 2**20)
    assert (enough.severity, enough.found) == (Severity.OK, "64.0 MiB free")


def test_few_open_files_is_warning() -> None:
    """Few open files are a warning."""
    assert machine.open_files_finding(256).severity is Severity.WARNING
    assert machine.open_files_finding(1024).severity is Severity.OK
    assert machine.open_files_finding(resource.RLIM_INFINITY).found == "unlimited"


def test_noexec_temporary_folder_is_warning() -> None:
    """A temporary folder that runs no programs is a warning."""
    finding = machine.temporary_folder_finding(Path("/scratch"), no_programs=True)
    assert finding.severity is Severity.WARNING
    assert "/scratch is mounted noexec" in finding.found
    assert "TMPDIR" in finding.remedy


@pytest.mark.parametrize(
    ("free", "severity"),
    [(20 * GIB, Severity.OK), (19 * GIB, Severity.WARNING), (GIB, Severity.PROBLEM), (0, Severity.PROBLEM)],
)
def test_full_disk_is_problem(free: int, severity: Severity) -> None:
    """A full disk is a problem, and a filling one a warning."""
    finding = machine.room_finding(Path("/data"), free)
    assert (finding.severity, finding.found) == (severity, f"{format_bytes(free)} free")


def test_artifacts_folder_tried_and_kept(tmp_path: Path) -> None:
    """The artifacts folder is tried out and left as it was."""
    before = tmp_path.stat().st_nlink
    tried, _ = machine.folder_findings(tmp_path / "not" / "there" / "yet")
    assert tried.severity is Severity.OK
    assert tried.found == f"{tmp_path}: hard links, symbolic links, atomic renames, locks work"
    assert (list(tmp_path.iterdir()), tmp_path.stat().st_nlink) == ([], before)


@pytest.mark.parametrize("attempt", machine.ATTEMPTS.values(), ids=machine.ATTEMPTS)
def test_attempts_work_here(attempt: Callable[[Path], bool], tmp_path: Path) -> None:
    """Each attempt works on this file system."""
    assert attempt(tmp_path)


def test_file_for_folder_is_problem(tmp_path: Path) -> None:
    """A file in the place of the folder is a problem."""
    (tmp_path / "artifacts").write_text("")
    (finding,) = machine.folder_findings(tmp_path / "artifacts")
    assert (finding.severity, finding.found) == (Severity.PROBLEM, f"{tmp_path / 'artifacts'} is no folder")


def test_unwritable_folder_is_problem() -> None:
    """A folder that cannot be written to is a problem."""
    tried, _ = machine.folder_findings(Path("/proc/self"))
    assert tried.severity is Severity.PROBLEM
    assert "/proc/self cannot be written" in tried.found
    assert "plansmith compile --artifacts" in tried.remedy


def test_missing_hard_links_will_do() -> None:
    """A folder without hard links will do, but not one without locks."""
    place = Path("/mnt")
    assert machine.abilities_finding(place, ["hard links"]).severity is Severity.WARNING
    finding = machine.abilities_finding(place, ["hard links", "locks"])
    assert (finding.severity, finding.found) == (Severity.PROBLEM, "/mnt has no hard links, no locks")
