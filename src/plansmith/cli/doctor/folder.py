"""The folder that a compile writes to: what its file system can do, tried out, and how much room it has."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

from plansmith.cli.doctor.findings import Finding, Severity
from plansmith.formatting import format_bytes
from plansmith.system.temporary import scratch_folder

AREA = "Artifacts"

_GIB = 2**30
_LITTLE_ROOM = 20 * _GIB
_NO_ROOM = 2 * _GIB
_ELSEWHERE = "plansmith compile --artifacts <folder on a local disk>"


def folder_findings(artifacts: Path) -> list[Finding]:
    """Try out the artifacts folder, or the folder that it would be made in; nothing is left there."""
    place = _existing(artifacts.absolute())
    if not place.is_dir():
        found = f"{place} is no folder"
        return [Finding(AREA, "folder", Severity.PROBLEM, found, "everything", _ELSEWHERE)]
    room = room_finding(place, shutil.disk_usage(place).free)
    try:
        with scratch_folder("doctor", place) as scratch:
            lacking = [word for word, attempt in ATTEMPTS.items() if not _works(attempt, Path(scratch))]
    except OSError as error:
        found = f"{place} cannot be written: {error.strerror}"
        remedy = f"{_ELSEWHERE.partition('<')[0]}<folder that you may write>"
        return [Finding(AREA, "folder", Severity.PROBLEM, found, "everything", remedy), room]
    return [abilities_finding(place, lacking), room]


def abilities_finding(place: Path, lacking: list[str]) -> Finding:
    """What of `ATTEMPTS` failed in a folder; hard links alone can be done without, by copying."""
    if not lacking:
        return Finding(AREA, "folder", Severity.OK, f"{place}: {', '.join(ATTEMPTS)} work")
    found = f"{place} has no {', no '.join(lacking)}"
    if lacking == [HARD_LINKS]:
        remedy = _ELSEWHERE
        return Finding(AREA, "folder", Severity.WARNING, found, "releases that share files instead of copies", remedy)
    return Finding(AREA, "folder", Severity.PROBLEM, found, "publishing whole or not at all", _ELSEWHERE)


def room_finding(place: Path, free: int) -> Finding:
    """Free room in bytes."""
    found = f"{format_bytes(free)} free"
    if free >= _LITTLE_ROOM:
        return Finding(AREA, "free disk", Severity.OK, found)
    severity = Severity.WARNING if free >= _NO_ROOM else Severity.PROBLEM
    remedy = f"free some room on the disk of {place}, or plansmith compile --artifacts <folder on another disk>"
    return Finding(AREA, "free disk", severity, found, "a model's weights several times over", remedy)


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
    """A link takes another's name in one step, as when a new version is published."""
    (scratch / "old").symlink_to("1")
    (scratch / "new").symlink_to("2")
    (scratch / "new").replace(scratch / "old")
    return (scratch / "old").readlink() == Path("2")


def _locks(scratch: Path) -> bool:
    """A second process is kept out; a second descriptor stands for it, as the kernel sees no difference."""
    with (scratch / "lock").open("w") as first, (scratch / "lock").open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


HARD_LINKS = "hard links"
ATTEMPTS: dict[str, Callable[[Path], bool]] = {
    HARD_LINKS: _links_hard,
    "symbolic links": _links,
    "atomic renames": _renames_over,
    "locks": _locks,
}
