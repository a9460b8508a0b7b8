"""What one machine has built, another one finds: whole, or built again; and no compile fails for want of it."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import RepositoryError
from plansmith.records.destination import Location
from plansmith.records.model import FileEntry
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.backend.leases import Hold
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.layout import CACHE, LEASES, OBJECTS, entry_key, lease_key, name_in, object_key
from plansmith.stores.open import open_objects
from plansmith.system.digest import digest_of, digest_of_files

from ...support.stores.machines import FILES, STEP, Machine


@pytest.fixture
def place(tmp_path: Path) -> Location:
    """In a folder: each test asks a store dozens of times, and how S3 answers is looked at elsewhere."""
    return Location(to=str(tmp_path / "shared"))


@pytest.fixture
def objects(place: Location) -> Objects:
    return open_objects(place, Path.cwd())


def keys(objects: Objects, prefix: str) -> list[str]:
    return [held.key for held in objects.below(prefix)]


def the_entry(objects: Objects) -> str:
    """The key of the only entry."""
    (key,) = keys(objects, CACHE)
    return key


def the_model(objects: Objects) -> str:
    """The key of the larger content."""
    return max(objects.below(OBJECTS), key=lambda held: held.bytes).key


def test_what_one_machine_has_built_another_one_finds(tmp_path: Path, place: Location, objects: Objects) -> None:
    first, second = Machine(tmp_path / "a", place), Machine(tmp_path / "b", place)
    built, found = first.entry(), second.entry()
    assert (first.built, second.built) == (1, 0)
    assert (found.record, found.files, found.digest) == (built.record, built.files, built.digest)
    assert found.folder.is_relative_to(tmp_path / "b")
    assert first.close() == []
    assert second.close() == [f"from the shared cache {objects.place}: {STEP} (6.8 KiB)"]
    again = Machine(tmp_path / "b", place)
    again.entry()
    assert (again.built, again.close()) == (0, [])


def test_what_was_verified_as_it_came_is_not_hashed_again(tmp_path: Path, place: Location) -> None:
    Machine(tmp_path / "a", place).entry()
    second, third = Machine(tmp_path / "b", place), Machine(tmp_path / "b", None)
    second.entry()
    third.entry()
    assert second.runner.digester.hashed == third.runner.digester.hashed == 0
    assert (second.built, third.built) == (0, 0)


def test_a_person_is_told_how_much_is_on_its_way(tmp_path: Path, place: Location, objects: Objects) -> None:
    first, second = Machine(tmp_path / "a", place), Machine(tmp_path / "b", place)
    first.entry()
    second.entry()
    assert f"sending to {objects.place}, 6.8 KiB of 6.8 KiB" in first.told.doing
    assert f"fetching from {objects.place}, 6.8 KiB of 6.8 KiB" in second.told.doing


def test_another_key_is_another_entry(tmp_path: Path, place: Location, objects: Objects) -> None:
    Machine(tmp_path / "a", place).entry(1)
    second = Machine(tmp_path / "b", place)
    second.entry(2)
    assert second.built == 1
    assert len(keys(objects, CACHE)) == 2
    assert len(keys(objects, OBJECTS)) == len(FILES)  # the same contents, once


def test_equal_files_of_several_entries_are_fetched_once(
    tmp_path: Path, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Machine(tmp_path / "a", place), Machine(tmp_path / "b", place)
    fetched, fetch = [], FolderObjects.fetch

    def counted(self: FolderObjects, key: str, *rest: Any) -> None:
        fetched.append(key)
        fetch(self, key, *rest)

    for number in (1, 2, 3):
        first.entry(number)
    monkeypatch.setattr(FolderObjects, "fetch", counted)
    entries = [second.entry(number) for number in (1, 2, 3)]
    assert len(fetched) == len(FILES)
    assert len({(entry.folder / "config.pbtxt").stat().st_ino for entry in entries}) == 1
    assert (second.built, second.runner.digester.hashed) == (0, 0)


def test_a_file_that_was_changed_here_is_fetched_and_not_linked(tmp_path: Path, place: Location) -> None:
    first, second = Machine(tmp_path / "a", place), Machine(tmp_path / "b", place)
    first.entry(1)
    first.entry(2)
    file = second.entry(1).folder / "model" / "model.onnx"
    file.chmod(0o644)
    file.write_bytes(b"changed" * 1000)
    second.entry(2)  # which looks at what it gets
    assert second.built == 0


def test_an_entry_whose_age_cannot_be_noted_is_used_all_the_same(
    tmp_path: Path, place: Location, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FolderObjects, source: str, key: str) -> None:
        raise RepositoryError(f"{self.place} refuses {source} {key}")

    Machine(tmp_path / "a", place).entry()
    os.utime(Path(place.to, the_entry(objects)), (0, 0))
    monkeypatch.setattr(FolderObjects, "copy", refuse)
    second = Machine(tmp_path / "b", place)
    second.entry()
    assert second.built == 0
    assert "refuses" in second.close()[0]


def test_what_was_built_before_there_was_a_shared_cache_is_brought_there_when_it_is_used(
    tmp_path: Path, place: Location
) -> None:
    Machine(tmp_path / "a", None).entry()
    with_it, other = Machine(tmp_path / "a", place), Machine(tmp_path / "b", place)
    with_it.entry()
    other.entry()
    assert (with_it.built, other.built) == (0, 0)


def test_force_builds_anew_and_replaces_what_is_shared(tmp_path: Path, place: Location) -> None:
    Machine(tmp_path / "a", place).entry()
    better = {"model/model.onnx": b"better", "config.pbtxt": b"name: 'tiny'"}
    forced = Machine(tmp_path / "b", place, files=better, force=True)
    forced.entry()
    third = Machine(tmp_path / "c", place, files=better)
    third.entry()
    assert (forced.built, third.built) == (1, 0)


def change(objects: Objects, key: str, changed: Callable[[Any], Any]) -> None:
    """Change the JSON document under a key."""
    found = objects.read(key)
    assert found is not None
    objects.put(key, json.dumps(changed(json.loads(found.content))).encode())


def truncate(objects: Objects) -> None:
    objects.put(the_model(objects), b"weights")


def flip_a_bit(objects: Objects) -> None:
    objects.put(the_model(objects), b"weighte" + FILES["model/model.onnx"][7:])


def lose_a_content(objects: Objects) -> None:
    objects.remove([the_model(objects)])


def write_garbage(objects: Objects) -> None:
    objects.put(the_entry(objects), b"\x80\x00{")


def change_the_record(objects: Objects) -> None:
    change(objects, the_entry(objects), lambda told: told | {"record": {"verdict": "failed"}})


def name_another_content(objects: Objects) -> None:
    change(objects, the_entry(objects), lambda told: told | {"files": told["files"][1:]})


def tell_another_size(objects: Objects) -> None:
    def changed(told: Any) -> Any:
        return told | {"files": [file | {"bytes": file["bytes"] + 1} for file in told["files"]]}

    change(objects, the_entry(objects), changed)


DAMAGES = [
    truncate,
    flip_a_bit,
    lose_a_content,
    write_garbage,
    change_the_record,
    name_another_content,
    tell_another_size,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_told_built_again_and_replaced(
    damage: Callable[[Objects], None], tmp_path: Path, place: Location, objects: Objects
) -> None:
    Machine(tmp_path / "a", place).entry()
    damage(objects)
    key = the_entry(objects)
    second, third = Machine(tmp_path / "b", place), Machine(tmp_path / "c", place)
    second.entry()
    (told,) = second.close()
    assert told.startswith(f"the shared {key} is damaged (")
    assert told.endswith("building it again")
    assert second.built == 1
    third.entry()
    assert third.built == 0
    assert third.close() == [f"from the shared cache {objects.place}: {STEP} (6.8 KiB)"]


def test_a_machine_that_cannot_build_leaves_nothing_damaged_to_the_next(
    tmp_path: Path, place: Location, objects: Objects
) -> None:
    Machine(tmp_path / "a", place).entry()
    flip_a_bit(objects)

    def fail() -> None:
        raise ZeroDivisionError

    without_gpu = Machine(tmp_path / "b", place)
    without_gpu.during = fail
    with pytest.raises(ZeroDivisionError):
        without_gpu.entry()
    assert keys(objects, CACHE) == []
    third = Machine(tmp_path / "c", place)
    third.entry()
    assert (third.built, third.close()) == (1, [])


def test_an_entry_that_another_machine_made_anew_meanwhile_stays(
    tmp_path: Path, place: Location, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(tmp_path / "a", place).entry()
    key, content = the_entry(objects), the_model(objects)
    whole = objects.read(key)
    assert whole is not None
    objects.put(content, b"damaged")
    reached, find = threading.Event(), FolderObjects.find

    def made_anew(self: FolderObjects, at: str) -> Any:
        found = find(self, at)
        if at == content and not reached.is_set():  # the damage was seen, and the entry not yet taken away
            reached.set()
            objects.put(content, FILES["model/model.onnx"])
            objects.put(key, whole.content + b"\n")
        return found

    monkeypatch.setattr(FolderObjects, "find", made_anew)
    second = Machine(tmp_path / "b", place)
    second.entry()
    assert reached.is_set()
    assert second.built == 0


@pytest.mark.parametrize("path", ["../outside", "/tmp/outside", "a/../../outside", "a\\b"])
def test_an_entry_that_leads_out_of_its_folder_is_refused(
    path: str, tmp_path: Path, place: Location, objects: Objects
) -> None:
    Machine(tmp_path / "a", place).entry()

    def changed(told: Any) -> Any:
        files = [told["files"][0] | {"path": path}]
        return told | {
            "files": files,
            "digest": digest_of([told["record"], digest_of_files([FileEntry(**file) for file in files])]),
        }

    change(objects, the_entry(objects), changed)
    second = Machine(tmp_path / "b", place)
    second.entry()
    assert second.built == 1
    (told,) = second.close()
    assert "would lie outside" in told
    assert not list(tmp_path.rglob("outside"))


def test_while_one_machine_builds_another_one_waits_and_finds_the_entry(tmp_path: Path, place: Location) -> None:
    first, second = Machine(tmp_path / "a", place), Machine(tmp_path / "b", place)
    building, waiting = threading.Event(), threading.Event()

    def build() -> None:
        building.set()
        assert waiting.wait(30)

    first.during, second.told.when_waiting = build, waiting.set
    other = threading.Thread(target=first.entry)
    other.start()
    assert building.wait(30)
    second.entry()
    other.join()
    assert (first.built, second.built) == (1, 0)
    (told,) = second.told.waits
    assert told.startswith("waiting for another machine that builds the same step (")
    assert f"process {os.getpid()}" in told


def test_the_lease_of_a_machine_that_died_is_taken_over(tmp_path: Path, place: Location, objects: Objects) -> None:
    Machine(tmp_path / "a", place).entry()
    name = f"{STEP}/{name_in(the_entry(objects))}"
    objects.remove([the_entry(objects)])
    Hold(objects, lease_key(name), 0.5).prolong()
    second = Machine(tmp_path / "b", place)
    second.entry()
    assert second.built == 1
    assert len(second.told.waits) == 1


def test_where_leases_are_not_safe_nobody_waits_and_both_are_right(
    tmp_path: Path, place: Location, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderObjects, "abilities", FolderObjects.abilities.model_copy(update={"swap": False}))
    first, second, third = (Machine(tmp_path / name, place) for name in "abc")
    first.during = second.entry
    first.entry()
    third.entry()
    assert (first.built, second.built, third.built) == (1, 1, 0)
    assert second.told.waits == []
    assert keys(objects, LEASES) == []


def test_a_place_that_cannot_be_used_is_told_once_and_everything_is_built_here(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    machine = Machine(tmp_path / "a", Location(to=str(tmp_path / "file" / "shared")))
    machine.entry(1)
    machine.entry(2)
    assert machine.built == 2
    (told,) = machine.close()
    assert told.startswith(f"the shared cache {tmp_path}/file/shared cannot be used, and is left alone: ")


@pytest.mark.parametrize("words", [{"region": "not a region"}, {"endpoint_url": "http://[", "region": "x"}])
def test_a_place_that_cannot_be_reached_as_it_was_said_costs_a_notice(tmp_path: Path, words: dict[str, str]) -> None:
    machine = Machine(
        tmp_path / "a", Location.model_construct(**{**Location(to="s3://models/shared").model_dump(), **words})
    )
    machine.entry()
    assert machine.built == 1
    (told,) = machine.close()
    assert told.startswith("the shared cache s3://models/shared cannot be used, and is left alone: ")


def test_a_place_that_goes_away_during_a_build_costs_a_notice(tmp_path: Path, place: Location) -> None:
    def lose() -> None:
        shutil.rmtree(place.to)
        Path(place.to).write_text("a disk that is gone")

    machine, again = Machine(tmp_path / "a", place), Machine(tmp_path / "a", None)
    machine.during = lose
    machine.entry()
    (told,) = machine.close()
    assert "cannot be used" in told
    again.entry()
    assert (machine.built, again.built) == (1, 0)


def test_a_folder_of_somebody_else_is_not_written_to(tmp_path: Path, place: Location) -> None:
    Path(place.to).mkdir()
    (Path(place.to) / "thesis.tex").write_text("mine")
    machine = Machine(tmp_path / "a", place)
    machine.entry()
    assert machine.built == 1
    (told,) = machine.close()
    assert "not plansmith's" in told
    assert [path.name for path in Path(place.to).iterdir()] == ["thesis.tex"]


def test_a_dry_run_tells_what_another_machine_has_done_and_writes_nothing(tmp_path: Path, place: Location) -> None:
    def files() -> list[Path]:
        return sorted(tmp_path.rglob("*"))

    nothing = Machine(tmp_path / "b", place, dry=True)
    assert nothing.look() is None
    assert not nothing.runner.is_shared
    assert files() == []
    Machine(tmp_path / "a", place).entry()
    before = files()
    found = Machine(tmp_path / "b", place, dry=True)
    assert found.look() is None
    assert found.runner.is_shared
    assert files() == before


def test_a_look_ahead_of_a_run_fetches_what_the_run_would(tmp_path: Path, place: Location) -> None:
    ahead, run = Machine(tmp_path / "b", place, ahead=True), Machine(tmp_path / "b", None)
    assert ahead.look() is None
    Machine(tmp_path / "a", place).entry()
    ahead.entry()
    ahead.close()
    run.entry()
    assert (ahead.built, run.built) == (0, 0)


def test_an_entry_that_is_used_stays_young(tmp_path: Path, place: Location, objects: Objects) -> None:
    Machine(tmp_path / "a", place).entry()
    entry, content = (Path(place.to, key) for key in (the_entry(objects), the_model(objects)))
    for used in ("b", "a"):  # fetched, and found at home
        for path in (entry, content):
            os.utime(path, (0, 0))
        Machine(tmp_path / used, place).entry()
        assert entry.stat().st_mtime > 0
        assert content.stat().st_mtime == 0  # which the entry holds


def test_what_is_shared_lies_where_releases_have_it(tmp_path: Path, place: Location, objects: Objects) -> None:
    entry = Machine(tmp_path / "a", place).entry()
    assert keys(objects, OBJECTS) == sorted(object_key(file.sha256) for file in entry.files)
    assert keys(objects, CACHE) == [entry_key(STEP, entry.folder.name)]
