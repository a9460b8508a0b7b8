"""What builds measured on one machine is known to those on another; nothing of it is lost, and damage goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plansmith.compilers.trt.timing_cache import MOST_FILES, TimingCaches, key_of
from plansmith.records.destination import Location
from plansmith.records.engine import BuildFlags, Gpu
from plansmith.steps.cache.shared import SharedPlace, SharedTimingCaches
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.layout import timing_key
from plansmith.stores.store import open_objects

GPU = Gpu(name="NVIDIA L4", compute_capability="8.9", memory_bytes=24 << 30, uuid="GPU-1", index=0, driver="570.124.06")
PLAIN = BuildFlags()
EDITABLE = BuildFlags(editable_timing_cache=True)
STRICT = BuildFlags(error_on_timing_cache_miss=True)
KEY = key_of("10.16.1.11", GPU, PLAIN)


class Builder:
    """A machine that builds plans: its builds add one entry to what they start from."""

    def __init__(self, folder: Path, place: Location) -> None:
        self.notices: list[str] = []
        self.caches = SharedTimingCaches(folder / "cache" / "timing", SharedPlace(place, folder, self.notices.append))

    def build(self, entry: str, flags: BuildFlags = PLAIN, *, combining: bool = True) -> list[str]:
        """Build; what was known before, by file, the first to start from."""
        key = key_of("10.16.1.11", GPU, flags)
        with self.caches.lent(key, flags) as loan:
            files = [file for file in (loan.file, *loan.more) if file.exists()]
            contents = [file.read_text() for file in files]
            start = contents if combining else contents[:1]
            loan.combined = combining
            loan.file.write_text(" ".join([*start, entry]))
            self.caches.take_back(key, loan)
        assert not loan.warnings
        return contents


@pytest.fixture
def place(tmp_path: Path) -> Location:
    """In a folder; a file of S3 is fetched and sent in the same two calls as the contents of a release."""
    return Location(to=str(tmp_path / "shared"))


@pytest.fixture
def objects(place: Location) -> Objects:
    return open_objects(place, Path())


@pytest.fixture
def builders(tmp_path: Path, place: Location) -> list[Builder]:
    return [Builder(tmp_path / name, place) for name in "abc"]


def shared(objects: Objects) -> list[str]:
    """What lies in the store, the largest first."""
    items = sorted(objects.below(timing_key(KEY.name)), key=lambda item: -item.bytes)
    return [document.content.decode() for item in items if (document := objects.read(item.key)) is not None]


def test_build_starts_from_shared_timing(builders: list[Builder], objects: Objects) -> None:
    """A build starts from what another machine measured."""
    first, second, third = builders
    assert first.build("one") == []
    assert second.build("two") == ["one"]
    assert third.build("three") == ["one two"]
    assert first.build("four") == ["one two three", "one"]
    assert shared(objects) == ["one two three one four"]


def test_simultaneous_builds_lose_no_timing(builders: list[Builder], objects: Objects) -> None:
    """Builds at the same time lose nothing of one another."""
    first, second, third = builders
    first.build("one")
    with second.caches.lent(KEY, PLAIN) as loan:
        third.build("third")
        loan.file.write_text(f"{loan.file.read_text()} second")
        second.caches.take_back(KEY, loan)
    assert shared(objects) == ["one second", "one third"]
    entries = {entry for file in first.build("four") for entry in file.split()}
    assert entries == {"one", "second", "third"}
    assert len(shared(objects)) == 1


def test_uncombinable_timing_replaces_its_start(builders: list[Builder], objects: Objects) -> None:
    """A machine that cannot combine takes the place of what it began with alone."""
    first, second, third = builders
    with first.caches.lent(KEY, PLAIN) as first_loan, second.caches.lent(KEY, PLAIN) as two:
        first_loan.file.write_text("measured by one")
        two.file.write_text("by two")
        first.caches.take_back(KEY, first_loan)
        second.caches.take_back(KEY, two)
    assert third.build("three", combining=False) == ["measured by one", "by two"]
    assert shared(objects) == ["measured by one three", "by two"]


def test_largest_files_of_key_kept(builders: list[Builder], objects: Objects) -> None:
    """Of one key the largest files are kept."""
    for number in range(MOST_FILES + 2):
        with builders[0].caches.lent(KEY, PLAIN) as loan:
            loan.file.write_text("x" * (number + 1))
            loan._names.clear()  # as of a build that began before all others
            builders[0].caches.take_back(KEY, loan)
    assert [len(text) for text in shared(objects)] == list(range(MOST_FILES + 2, 2, -1))


def test_absorbed_timing_part_stays(builders: list[Builder], objects: Objects) -> None:
    """What was combined to one of its parts stays."""
    first, second, third = builders
    with first.caches.lent(KEY, PLAIN) as first_loan, second.caches.lent(KEY, PLAIN) as two:
        first_loan.file.write_text("the longer one")
        two.file.write_text("all of it")
        first.caches.take_back(KEY, first_loan)
        second.caches.take_back(KEY, two)
    with third.caches.lent(KEY, PLAIN) as loan:
        loan.file.write_text("all of it")
        loan.combined = True
        third.caches.take_back(KEY, loan)
    assert shared(objects) == ["all of it"]


def test_damaged_timing_file_removed(builders: list[Builder], objects: Objects) -> None:
    """A damaged file is told, taken away and not used."""
    first, second, third = builders
    first.build("one")
    (item,) = objects.below(timing_key(KEY.name))
    objects.put(item.key, b"onf")
    assert second.build("two") == []
    assert second.notices == [f"the shared {item.key} is damaged, and is not used"]
    assert third.build("three") == ["two"]
    assert third.notices == []


def test_timing_file_removed_meanwhile_ignored(
    builders: list[Builder], objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that another machine takes away meanwhile is ignored."""
    first, second, _ = builders
    first.build("one")
    below = type(objects).below

    def taken_away(self: Objects, prefix: str) -> object:
        items = list(below(self, prefix))
        self.remove([item.key for item in items if prefix.startswith("timing/")])
        return iter(items)

    monkeypatch.setattr(type(objects), "below", taken_away)
    assert second.build("two") == []
    assert second.notices == []


def test_foreign_file_stays(builders: list[Builder], objects: Objects) -> None:
    """What is no file of ours stays where it is."""
    first, second, _ = builders
    first.build("one")
    objects.put(timing_key(KEY.name, "README"), b"mine")
    assert second.build("two") == ["one"]
    assert (second.notices, objects.find(timing_key(KEY.name, "README")) is not None) == ([], True)


def test_editable_cache_fetched_once(builders: list[Builder]) -> None:
    """An editable cache is fetched once and is then its machine's own."""
    first, second, _ = builders
    key = key_of("10.16.1.11", GPU, EDITABLE)
    first.build("one", EDITABLE)
    assert second.build("two", EDITABLE) == ["one"]
    (file,) = second.caches.root.glob(f"{key.name}-*.cache")
    file.write_text("another kernel")
    with second.caches.lent(key, EDITABLE) as loan:
        assert loan.file.read_text() == "another kernel"
        assert loan.more == []
    assert first.build("three", EDITABLE) == ["one"]


def test_unmeasuring_build_sends_nothing(builders: list[Builder], objects: Objects) -> None:
    """A build that may measure nothing sends nothing."""
    first, second, _ = builders
    first.build("one")
    assert second.build("two", STRICT) == ["one"]
    assert shared(objects) == ["one"]


def test_unusable_place_costs_notice(tmp_path: Path) -> None:
    """A place that cannot be used costs a notice."""
    (tmp_path / "file").write_text("no folder")
    builder = Builder(tmp_path / "a", Location(to=str(tmp_path / "file" / "shared")))
    assert builder.build("one") == []
    assert builder.build("two") == ["one"]
    (notice,) = builder.notices
    assert "cannot be used" in notice
    assert isinstance(builder.caches, TimingCaches)


def test_used_file_stays_young(builders: list[Builder], place: Location, objects: Objects) -> None:
    """A file that is used stays young."""
    first, second, _ = builders
    first.build("one")
    (item,) = objects.below(timing_key(KEY.name))
    os.utime(Path(place.to, item.key), (0, 0))
    second.build("two", STRICT)
    assert Path(place.to, item.key).stat().st_mtime > 0
