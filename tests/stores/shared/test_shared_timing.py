"""What builds measured on one machine is known to those on another; nothing of it is lost, and damage goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plansmith.compilers.trt.timing_cache import MOST_FILES, TimingCaches, key_of
from plansmith.records.destination import Location
from plansmith.records.engine import BuildFlags, Gpu
from plansmith.steps.cache.shared_place import SharedPlace
from plansmith.steps.cache.shared_timing import SharedTimingCaches
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.layout import timing_key
from plansmith.stores.open import open_objects

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
            found = [file.read_text() for file in files]
            start = found if combining else found[:1]
            loan.combined = combining
            loan.file.write_text(" ".join([*start, entry]))
            self.caches.take_back(key, loan)
        assert not loan.warnings
        return found


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
    held = sorted(objects.below(timing_key(KEY.name)), key=lambda one: -one.bytes)
    return [document.content.decode() for one in held if (document := objects.read(one.key)) is not None]


def test_a_build_starts_from_what_another_machine_measured(builders: list[Builder], objects: Objects) -> None:
    first, second, third = builders
    assert first.build("one") == []
    assert second.build("two") == ["one"]
    assert third.build("three") == ["one two"]
    assert first.build("four") == ["one two three", "one"]
    assert shared(objects) == ["one two three one four"]


def test_builds_at_the_same_time_lose_nothing_of_one_another(builders: list[Builder], objects: Objects) -> None:
    first, second, third = builders
    first.build("one")
    with second.caches.lent(KEY, PLAIN) as loan:
        third.build("third")
        loan.file.write_text(f"{loan.file.read_text()} second")
        second.caches.take_back(KEY, loan)
    assert shared(objects) == ["one second", "one third"]
    known = {entry for file in first.build("four") for entry in file.split()}
    assert known == {"one", "second", "third"}
    assert len(shared(objects)) == 1


def test_who_cannot_combine_takes_the_place_of_what_it_began_with_alone(
    builders: list[Builder], objects: Objects
) -> None:
    first, second, third = builders
    with first.caches.lent(KEY, PLAIN) as one, second.caches.lent(KEY, PLAIN) as two:
        one.file.write_text("measured by one")
        two.file.write_text("by two")
        first.caches.take_back(KEY, one)
        second.caches.take_back(KEY, two)
    assert third.build("three", combining=False) == ["measured by one", "by two"]
    assert shared(objects) == ["measured by one three", "by two"]


def test_of_one_key_the_largest_files_are_kept(builders: list[Builder], objects: Objects) -> None:
    for number in range(MOST_FILES + 2):
        with builders[0].caches.lent(KEY, PLAIN) as loan:
            loan.file.write_text("x" * (number + 1))
            loan._names.clear()  # as of a build that began before all others
            builders[0].caches.take_back(KEY, loan)
    assert [len(text) for text in shared(objects)] == list(range(MOST_FILES + 2, 2, -1))


def test_what_was_combined_to_one_of_its_parts_stays(builders: list[Builder], objects: Objects) -> None:
    first, second, third = builders
    with first.caches.lent(KEY, PLAIN) as one, second.caches.lent(KEY, PLAIN) as two:
        one.file.write_text("the longer one")
        two.file.write_text("all of it")
        first.caches.take_back(KEY, one)
        second.caches.take_back(KEY, two)
    with third.caches.lent(KEY, PLAIN) as loan:
        loan.file.write_text("all of it")
        loan.combined = True
        third.caches.take_back(KEY, loan)
    assert shared(objects) == ["all of it"]


def test_a_damaged_file_is_told_taken_away_and_not_used(builders: list[Builder], objects: Objects) -> None:
    first, second, third = builders
    first.build("one")
    (held,) = objects.below(timing_key(KEY.name))
    objects.put(held.key, b"onf")
    assert second.build("two") == []
    assert second.notices == [f"the shared {held.key} is damaged, and is not used"]
    assert third.build("three") == ["two"]
    assert third.notices == []


def test_a_file_that_another_machine_takes_away_meanwhile_is_none(
    builders: list[Builder], objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = builders
    first.build("one")
    below = type(objects).below

    def taken_away(self: Objects, prefix: str) -> object:
        found = list(below(self, prefix))
        self.remove([held.key for held in found if prefix.startswith("timing/")])
        return iter(found)

    monkeypatch.setattr(type(objects), "below", taken_away)
    assert second.build("two") == []
    assert second.notices == []


def test_what_is_no_file_of_ours_stays_where_it_is(builders: list[Builder], objects: Objects) -> None:
    first, second, _ = builders
    first.build("one")
    objects.put(timing_key(KEY.name, "README"), b"mine")
    assert second.build("two") == ["one"]
    assert (second.notices, objects.find(timing_key(KEY.name, "README")) is not None) == ([], True)


def test_an_editable_cache_is_fetched_once_and_then_its_machines_own(builders: list[Builder]) -> None:
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


def test_a_build_that_may_measure_nothing_sends_nothing(builders: list[Builder], objects: Objects) -> None:
    first, second, _ = builders
    first.build("one")
    assert second.build("two", STRICT) == ["one"]
    assert shared(objects) == ["one"]


def test_a_place_that_cannot_be_used_costs_a_notice(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    builder = Builder(tmp_path / "a", Location(to=str(tmp_path / "file" / "shared")))
    assert builder.build("one") == []
    assert builder.build("two") == ["one"]
    (told,) = builder.notices
    assert "cannot be used" in told
    assert isinstance(builder.caches, TimingCaches)


def test_a_file_that_is_used_stays_young(builders: list[Builder], place: Location, objects: Objects) -> None:
    first, second, _ = builders
    first.build("one")
    (held,) = objects.below(timing_key(KEY.name))
    os.utime(Path(place.to, held.key), (0, 0))
    second.build("two", STRICT)
    assert Path(place.to, held.key).stat().st_mtime > 0
