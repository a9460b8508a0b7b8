"""Memory, processors, shared memory and the artifacts folder, from what the kernel and the file system say."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from plansmith.cli.doctor import folder, machine
from plansmith.cli.doctor.findings import Severity
from plansmith.formatting import format_bytes
from plansmith.system.cpu import sums_bytes_exactly
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


def test_the_tightest_limit_above_a_process_counts_in_version_2(tmp_path: Path) -> None:
    files = {
        "pods/memory.max": f"{4 * GIB}\n",
        "pods/cpu.max": "150000 100000\n",
        "pods/one/memory.max": "max\n",
        "pods/one/cpu.max": "max 100000\n",
    }
    assert limits(tmp_path, "0::/pods/one\n", files) == Limits(4 * GIB, 1.5)


def test_limits_are_read_in_version_1_and_no_limit_is_none(tmp_path: Path) -> None:
    files = {
        "memory/job/memory.limit_in_bytes": f"{2 * GIB}\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
    }
    membership = "5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/init\n"
    assert limits(tmp_path, membership, files) == Limits(2 * GIB, None)


def test_a_container_that_sees_only_its_own_group_is_limited_by_it(tmp_path: Path) -> None:
    files = {"memory.max": f"{GIB}\n"}
    assert limits(tmp_path, "0::/kubepods/pod1\n", files) == Limits(GIB, None)


def test_a_machine_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert control_group_limits(tmp_path, tmp_path / "none") == Limits(None, None)


def test_memory_is_what_is_available_and_not_what_is_free() -> None:
    found = machine.memory_finding(available_memory(MEMINFO), None)
    assert (found.severity, found.found) == (Severity.OK, "21.0 GiB available")


def test_a_tight_control_group_is_a_warning_that_says_how_to_widen_it() -> None:
    found = machine.memory_finding(21 * GIB, 4 * GIB)
    assert found.severity is Severity.WARNING
    assert "limited to 4.0 GiB" in found.found
    assert "docker run --memory" in found.remedy
    assert machine.memory_finding(21 * GIB, 16 * GIB).severity is Severity.OK
    assert "docker" not in machine.memory_finding(3 * GIB, None).remedy


def test_a_limit_on_processors_is_said() -> None:
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
def test_a_processor_that_sums_bytes_inexactly_is_told_with_what_that_means(
    described: str, kind: str, exact: bool
) -> None:
    assert sums_bytes_exactly(described, kind) is exact
    found = machine.int8_finding(exact=exact)
    assert (found.severity is Severity.OK, "8 bits" in found.found) == (exact, exact)
    assert ("7 bits" in found.found) == ("int8" in found.needed_for) == (not exact)


@pytest.mark.parametrize("free", [None, 0, 63 * 2**20])
def test_little_or_no_shared_memory_is_a_warning_with_dockers_option(free: int | None) -> None:
    found = machine.shared_memory_finding(free)
    assert found.severity is Severity.WARNING
    assert "--shm-size" in found.remedy
    enough = machine.shared_memory_finding(64 * 2**20)
    assert (enough.severity, enough.found) == (Severity.OK, "64.0 MiB free")


def test_few_open_files_are_a_warning() -> None:
    assert machine.open_files_finding(256).severity is Severity.WARNING
    assert machine.open_files_finding(1024).severity is Severity.OK
    assert machine.open_files_finding(resource.RLIM_INFINITY).found == "unlimited"


def test_a_temporary_folder_that_runs_no_programs_is_a_warning() -> None:
    found = machine.temporary_folder_finding(Path("/scratch"), no_programs=True)
    assert found.severity is Severity.WARNING
    assert "/scratch is mounted noexec" in found.found
    assert "TMPDIR" in found.remedy


@pytest.mark.parametrize(
    ("free", "severity"),
    [(20 * GIB, Severity.OK), (19 * GIB, Severity.WARNING), (GIB, Severity.PROBLEM), (0, Severity.PROBLEM)],
)
def test_a_full_disk_is_a_problem_and_a_filling_one_a_warning(free: int, severity: Severity) -> None:
    found = folder.room_finding(Path("/data"), free)
    assert (found.severity, found.found) == (severity, f"{format_bytes(free)} free")


def test_the_artifacts_folder_is_tried_out_and_left_as_it_was(tmp_path: Path) -> None:
    before = tmp_path.stat().st_nlink
    tried, _ = folder.folder_findings(tmp_path / "not" / "there" / "yet")
    assert tried.severity is Severity.OK
    assert tried.found == f"{tmp_path}: hard links, symbolic links, atomic renames, locks work"
    assert (list(tmp_path.iterdir()), tmp_path.stat().st_nlink) == ([], before)


@pytest.mark.parametrize("attempt", folder.ATTEMPTS.values(), ids=folder.ATTEMPTS)
def test_each_attempt_works_on_this_file_system(attempt: Callable[[Path], bool], tmp_path: Path) -> None:
    assert attempt(tmp_path)


def test_a_file_in_the_place_of_the_folder_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_text("")
    (found,) = folder.folder_findings(tmp_path / "artifacts")
    assert (found.severity, found.found) == (Severity.PROBLEM, f"{tmp_path / 'artifacts'} is no folder")


def test_a_folder_that_cannot_be_written_is_a_problem() -> None:
    tried, _ = folder.folder_findings(Path("/proc/self"))
    assert tried.severity is Severity.PROBLEM
    assert "/proc/self cannot be written" in tried.found
    assert "plansmith compile --artifacts" in tried.remedy


def test_a_folder_without_hard_links_will_do_but_not_one_without_locks() -> None:
    place = Path("/mnt")
    assert folder.abilities_finding(place, ["hard links"]).severity is Severity.WARNING
    found = folder.abilities_finding(place, ["hard links", "locks"])
    assert (found.severity, found.found) == (Severity.PROBLEM, "/mnt has no hard links, no locks")
