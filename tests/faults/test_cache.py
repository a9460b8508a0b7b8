"""A damaged cache entry is noticed, told and built again; an interrupted or repeated build costs nothing twice."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from plansmith.records.model import Record
from plansmith.records.release import StepRecord
from plansmith.steps.cache.local import ENTRY_FILE, CacheEntry
from plansmith.steps.runner import Listener, StageRunner


class Notices(Listener):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def notice(self, text: str) -> None:
        self.lines.append(text)

    def finished(self, record: StepRecord) -> None:
        raise AssertionError(record)


class Verdict(Record):
    """What is stored beside the files."""

    verdict: str


class Build:
    """A process that needs one entry: what it built, what it was told, what it hashed."""

    def __init__(self, artifacts: Path, *, dry: bool = False) -> None:
        self.built = 0
        self.notices = Notices()
        self.runner = StageRunner("tiny", artifacts, listener=self.notices, force=False, dry=dry)

    def entry(self) -> CacheEntry:
        result = self.look()
        assert result is not None
        entry, cached = result
        assert cached == (self.built == 0)
        return entry

    def look(self) -> tuple[CacheEntry, bool] | None:
        """Take the entry, or build it; None where it only looks and finds none."""
        return self.runner.entry("package", ["input"], {"option": 1}, self._build)

    def _build(self, out: Path) -> Verdict:
        self.built += 1
        (out / "model").mkdir()
        (out / "model" / "model.onnx").write_text("weights")
        (out / "config.pbtxt").write_text("name: 'tiny'")
        return Verdict(verdict="passed")


def change(path: Path, content: bytes) -> None:
    """Write like any program that may; again where the file system's clock is too coarse to show it."""
    before = path.stat()
    path.chmod(0o644)
    while path.stat().st_mtime_ns == before.st_mtime_ns:
        path.write_bytes(content)
    path.chmod(before.st_mode)


def truncate(folder: Path) -> None:
    change(folder / "model" / "model.onnx", b"weig")


def flip_a_bit(folder: Path) -> None:
    path = folder / "model" / "model.onnx"
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    change(path, bytes(content))


def flip_a_bit_and_set_the_time_back(folder: Path) -> None:
    path = folder / "model" / "model.onnx"
    before = path.stat()
    flip_a_bit(folder)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def empty_the_entry_file(folder: Path) -> None:
    change(folder / ENTRY_FILE, b"")


def lose_a_file(folder: Path) -> None:
    (folder / "config.pbtxt").unlink()


def put_a_folder_in_place_of_a_file(folder: Path) -> None:
    lose_a_file(folder)
    (folder / "config.pbtxt").mkdir()


def lose_the_entry_file(folder: Path) -> None:
    (folder / ENTRY_FILE).unlink()


def write_garbage(folder: Path) -> None:
    change(folder / ENTRY_FILE, b"\x80\x00{")


def write_another_document(folder: Path) -> None:
    change(folder / ENTRY_FILE, b'{"files": []}')


def write_a_list(folder: Path) -> None:
    change(folder / ENTRY_FILE, b"[]")


def change_the_record(folder: Path) -> None:
    path = folder / ENTRY_FILE
    change(path, path.read_bytes().replace(b"passed", b"failed"))


DAMAGES = [
    truncate,
    flip_a_bit,
    flip_a_bit_and_set_the_time_back,
    empty_the_entry_file,
    lose_a_file,
    put_a_folder_in_place_of_a_file,
    lose_the_entry_file,
    write_garbage,
    write_another_document,
    write_a_list,
    change_the_record,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entry_built_again(damage: Callable[[Path], None], tmp_path: Path) -> None:
    """A damaged entry is told and built again."""
    damage(Build(tmp_path).entry().folder)
    second, third = Build(tmp_path), Build(tmp_path)
    entry = second.entry()
    assert second.built == 1
    (notice,) = second.notices.lines
    assert notice.startswith(f"cache entry package/{entry.folder.name[:12]} is damaged (")
    assert notice.endswith("building it again")
    assert (entry.folder / "model" / "model.onnx").read_text() == "weights"
    assert entry.record == {"verdict": "passed"}
    third.entry()
    assert (third.built, third.notices.lines) == (0, [])


def test_dry_run_leaves_damage(tmp_path: Path) -> None:
    """A dry run finds damage and leaves it alone."""
    folder = Build(tmp_path).entry().folder
    truncate(folder)
    before = sorted(tmp_path.rglob("*"))
    assert Build(tmp_path, dry=True).look() is None
    assert sorted(tmp_path.rglob("*")) == before


def test_second_process_skips_hashing(tmp_path: Path) -> None:
    """A second process takes the entry without hashing anything."""
    first, second = Build(tmp_path), Build(tmp_path)
    assert first.entry() == second.entry()
    assert first.runner.digester.hashed == 2
    assert second.runner.digester.hashed == 0


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    """A build that fails leaves no entry and nothing in staging."""

    def fail(out: Path) -> Verdict:
        (out / "half.onnx").write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Build(tmp_path).runner.entry("package", ["input"], {"option": 1}, fail)
    assert [p.name for p in (tmp_path / "cache" / "staging").iterdir()] == [".lock"]
    after = Build(tmp_path)
    after.entry()
    assert (after.built, after.notices.lines) == (1, [])


def test_entry_look_is_noted(tmp_path: Path) -> None:
    """A look at an entry is noted and a dry one is not."""
    note = Build(tmp_path).entry().folder / ENTRY_FILE
    os.utime(note, (0, 0))
    Build(tmp_path, dry=True).entry()
    assert note.stat().st_mtime == 0
    second = Build(tmp_path)
    second.entry()
    assert (second.built, second.runner.digester.hashed) == (0, 0)
    assert note.stat().st_mtime > 0
