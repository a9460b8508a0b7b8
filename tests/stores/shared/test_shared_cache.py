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
from plansmith.stores.backend.documents import Hold
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.layout import CACHE, LEASES, OBJECTS, entry_key, lease_key, name_in, object_key
from plansmith.stores.store import open_objects
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
    return [item.key for item in objects.below(prefix)]


def the_entry(objects: Objects) -> str:
    """The key of the only entry."""
    (key,) = keys(objects, CACHE)
    return key


def the_model(objects: Objects) -> str:
    """The key of the larger content."""
    return max(objects.below(OBJECTS), key=lambda item: item.bytes).key


def test_other_machine_finds_build(tmp_path: Path, place: Location, objects: Objects) -> None:
    """What one machine has built, another one finds."""
    first, second = Machine(tmp_path / "a", place), Machine(tmp_path / "b", place)
    built, result = first.entry(), second.entry()
    assert (first.built, second.built) == (1, 0)
    assert (result.record, result.files, result.digest) == (built.record, built.files, built.digest)
    assert result.folder.is_relative_to(tmp_path / "b")
    assert first.close() == []
    assert second.close() == [f"from the shared cache {objects.place}: {STEP} (6.8 KiB)"]
    again = Machine(tmp_path / "b", place)
    again.entry()
    assert (again.built, again.close()) == (0, [])


def test_verified_arrival_not_hashed_again(tmp_path: Path, place: Location) -> None:
    """What was verified as it came is not hashed again."""
    Machine(tmp_path / "a", place).entry()
    second, third = Machine(tmp_path / "b", place), Machine(tmp_path / "b", None)
    second.entry()
    third.entry()
    assert second.runner.digester.hashed == third.runner.digester.hashed == 0
    assert (second.built, third.built) == (0, 0)


def test_incoming_amount_told(tmp_path: Path, place: Location, objects: Objects) -> None:
    """A person is told how much is on its way."""
    first, second = Machine(tmp_path / "a", place), Machine(tmp_path / "b", place)
    first.entry()
    second.entry()
    assert f"sending to {objects.place}, 6.8 KiB of 6.8 KiB" in first.listener.doing
    assert f"fetching from {objects.place}, 6.8 KiB of 6.8 KiB" in second.listener.doing


def test_another_key_is_another_entry(tmp_path: Path, place: Location, objects: Objects) -> None:
    Machine(tmp_path / "a", place).entry(1)
    second = Machine(tmp_path / "b", place)
    second.entry(2)
    assert second.built == 1
    assert len(keys(objects, CACHE)) == 2
    assert len(keys(objects, OBJECTS)) == len(FILES)  # the same contents, once


def test_equal_files_fetched_once(tmp_path: Path, place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal files of several entries are fetched once."""
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


def test_changed_local_file_is_fetched(tmp_path: Path, place: Location) -> None:
    """A file that was changed here is fetched and not linked."""
    first, second = Machine(tmp_path / "a", place), Machine(tmp_path / "b", place)
    first.entry(1)
    first.entry(2)
    file = second.entry(1).folder / "model" / "model.onnx"
    file.chmod(0o644)
    file.write_bytes(b"changed" * 1000)
    second.entry(2)  # which looks at what it gets
    assert second.built == 0


def test_entry_used_without_noted_age(
    tmp_path: Path, place: Location, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry whose age cannot be noted is used all the same."""

    def refuse(self: FolderObjects, source: str, key: str) -> None:
        raise RepositoryError(f"{self.place} refuses {source} {key}")

    Machine(tmp_path / "a", place).entry()
    os.utime(Path(place.to, the_entry(objects)), (0, 0))
    monkeypatch.setattr(FolderObjects, "copy", refuse)
    second = Machine(tmp_path / "b", place)
    second.entry()
    assert second.built == 0
    assert "refuses" in second.close()[0]


def test_earlier_builds_shared_on_use(tmp_path: Path, place: Location) -> None:
    """What was built before there was a shared cache is brought there when it is used."""
    Machine(tmp_path / "a", None).entry()
    with_it, second = Machine(tmp_path / "a", place), Machine(tmp_path / "b", place)
    with_it.entry()
    second.entry()
    assert (with_it.built, second.built) == (0, 0)


def test_force_replaces_shared_entry(tmp_path: Path, place: Location) -> None:
    """--force builds anew and replaces what is shared."""
    Machine(tmp_path / "a", place).entry()
    better = {"model/model.onnx": b"better", "config.pbtxt": b"name: 'tiny'"}
    forced = Machine(tmp_path / "b", place, files=better, force=True)
    forced.entry()
    third = Machine(tmp_path / "c", place, files=better)
    third.entry()
    assert (forced.built, third.built) == (1, 0)


def change(objects: Objects, key: str, changed: Callable[[Any], Any]) -> None:
    """Change the JSON document under a key."""
    document = objects.read(key)
    assert document is not None
    objects.put(key, json.dumps(changed(json.loads(document.content))).encode())


def truncate(objects: Objects) -> None:
    objects.put(the_model(objects), b"weights")


def flip_a_bit(objects: Objects) -> None:
    objects.put(the_model(objects), b"weighte" + FILES["model/model.onnx"][7:])


def lose_a_content(objects: Objects) -> None:
    objects.remove([the_model(objects)])


def write_garbage(objects: Objects) -> None:
    objects.put(the_entry(objects), b"\x80\x00{")


def change_the_record(objects: Objects) -> None:
    change(objects, the_entry(objects), lambda document: document | {"record": {"verdict": "failed"}})


def name_another_content(objects: Objects) -> None:
    change(objects, the_entry(objects), lambda document: document | {"files": document["files"][1:]})


def tell_another_size(objects: Objects) -> None:
    def changed(document: Any) -> Any:
        return document | {"files": [file | {"bytes": file["bytes"] + 1} for file in document["files"]]}

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
def test_damaged_entry_rebuilt_and_replaced(
    damage: Callable[[Objects], None], tmp_path: Path, place: Location, objects: Objects
) -> None:
    """A damaged entry is told, built again and replaced."""
    Machine(tmp_path / "a", place).entry()
    damage(objects)
    key = the_entry(objects)
    second, third = Machine(tmp_path / "b", place), Machine(tmp_path / "c", place)
    second.entry()
    (notice,) = second.close()
    assert notice.startswith(f"the shared {key} is damaged (")
    assert notice.endswith("building it again")
    assert second.built == 1
    third.entry()
    assert third.built == 0
    assert third.close() == [f"from the shared cache {objects.place}: {STEP} (6.8 KiB)"]


def test_failed_rebuild_leaves_no_damage(tmp_path: Path, place: Location, objects: Objects) -> None:
    """A machine that cannot build leaves nothing damaged to the next."""
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


def test_remade_entry_stays(tmp_path: Path, place: Location, objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that another machine made anew meanwhile stays."""
    Machine(tmp_path / "a", place).entry()
    key, content = the_entry(objects), the_model(objects)
    whole = objects.read(key)
    assert whole is not None
    objects.put(content, b"damaged")
    reached, find = threading.Event(), FolderObjects.find

    def made_anew(self: FolderObjects, at: str) -> Any:
        result = find(self, at)
        if at == content and not reached.is_set():  # the damage was seen, and the entry not yet taken away
            reached.set()
            objects.put(content, FILES["model/model.onnx"])
            objects.put(key, whole.content + b"\n")
        return result

    monkeypatch.setattr(FolderObjects, "find", made_anew)
    second = Machine(tmp_path / "b", place)
    second.entry()
    assert reached.is_set()
    assert second.built == 0


@pytest.mark.parametrize("path", ["../outside", "/tmp/outside", "a/../../outside", "a\\b"])
def test_escaping_entry_refused(path: str, tmp_path: Path, place: Location, objects: Objects) -> None:
    """An entry that leads out of its folder is refused."""
    Machine(tmp_path / "a", place).entry()

    def changed(value: Any) -> Any:
        files = [value["files"][0] | {"path": path}]
        return value | {
            "files": files,
            "digest": digest_of([value["record"], digest_of_files([FileEntry(**file) for file in files])]),
        }

    change(objects, the_entry(objects), changed)
    second = Machine(tmp_path / "b", place)
    second.entry()
    assert second.built == 1
    (value,) = second.close()
    assert "would lie outside" in value
    assert not list(tmp_path.rglob("outside"))


def test_second_machine_waits_for_build(tmp_path: Path, place: Location) -> None:
    """While one machine builds, another one waits and finds the entry."""
    first, second = Machine(tmp_path / "a", place), Machine(tmp_path / "b", place)
    building, waiting = threading.Event(), threading.Event()

    def build() -> None:
        building.set()
        assert waiting.wait(30)

    first.during, second.listener.when_waiting = build, waiting.set
    thread = threading.Thread(target=first.entry)
    thread.start()
    assert building.wait(30)
    second.entry()
    thread.join()
    assert (first.built, second.built) == (1, 0)
    (message,) = second.listener.waits
    assert message.startswith("waiting for another machine that builds the same step (")
    assert f"process {os.getpid()}" in message


def test_dead_machine_lease_taken_over(tmp_path: Path, place: Location, objects: Objects) -> None:
    """The lease of a machine that died is taken over."""
    Machine(tmp_path / "a", place).entry()
    name = f"{STEP}/{name_in(the_entry(objects))}"
    objects.remove([the_entry(objects)])
    Hold(objects, lease_key(name), 0.5).prolong()
    second = Machine(tmp_path / "b", place)
    second.entry()
    assert second.built == 1
    assert len(second.listener.waits) == 1


def test_unsafe_leases_make_nobody_wait(
    tmp_path: Path, place: Location, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where leases are not safe, nobody waits and both are right."""
    monkeypatch.setattr(FolderObjects, "abilities", FolderObjects.abilities.model_copy(update={"swap": False}))
    first, second, third = (Machine(tmp_path / name, place) for name in "abc")
    first.during = second.entry
    first.entry()
    third.entry()
    assert (first.built, second.built, third.built) == (1, 1, 0)
    assert second.listener.waits == []
    assert keys(objects, LEASES) == []


def test_unusable_place_told_once(tmp_path: Path) -> None:
    """A place that cannot be used is told once, and everything is built here."""
    (tmp_path / "file").write_text("no folder")
    machine = Machine(tmp_path / "a", Location(to=str(tmp_path / "file" / "shared")))
    machine.entry(1)
    machine.entry(2)
    assert machine.built == 2
    (notice,) = machine.close()
    assert notice.startswith(f"the shared cache {tmp_path}/file/shared cannot be used, and is left alone: ")


@pytest.mark.parametrize("words", [{"region": "not a region"}, {"endpoint_url": "http://[", "region": "x"}])
def test_unreachable_place_costs_notice(tmp_path: Path, words: dict[str, str]) -> None:
    """A place that cannot be reached as given costs a notice."""
    machine = Machine(
        tmp_path / "a", Location.model_construct(**{**Location(to="s3://models/shared").model_dump(), **words})
    )
    machine.entry()
    assert machine.built == 1
    (notice,) = machine.close()
    assert notice.startswith("the shared cache s3://models/shared cannot be used, and is left alone: ")


def test_vanished_place_costs_notice(tmp_path: Path, place: Location) -> None:
    """A place that goes away during a build costs a notice."""

    def lose() -> None:
        shutil.rmtree(place.to)
        Path(place.to).write_text("a disk that is gone")

    machine, again = Machine(tmp_path / "a", place), Machine(tmp_path / "a", None)
    machine.during = lose
    machine.entry()
    (notice,) = machine.close()
    assert "cannot be used" in notice
    again.entry()
    assert (machine.built, again.built) == (1, 0)


def test_foreign_folder_not_written(tmp_path: Path, place: Location) -> None:
    """A folder of somebody else is not written to."""
    Path(place.to).mkdir()
    (Path(place.to) / "thesis.tex").write_text("mine")
    machine = Machine(tmp_path / "a", place)
    machine.entry()
    assert machine.built == 1
    (notice,) = machine.close()
    assert "not plansmith's" in notice
    assert [path.name for path in Path(place.to).iterdir()] == ["thesis.tex"]


def test_dry_run_shows_shared_builds(tmp_path: Path, place: Location) -> None:
    """A dry run tells what another machine has done and writes nothing."""

    def files() -> list[Path]:
        return sorted(tmp_path.rglob("*"))

    nothing = Machine(tmp_path / "b", place, dry=True)
    assert nothing.look() is None
    assert not nothing.runner.is_shared
    assert files() == []
    Machine(tmp_path / "a", place).entry()
    before = files()
    machine = Machine(tmp_path / "b", place, dry=True)
    assert machine.look() is None
    assert machine.runner.is_shared
    assert files() == before


def test_look_ahead_fetches_like_run(tmp_path: Path, place: Location) -> None:
    """A look ahead of a run fetches what the run would."""
    ahead, run = Machine(tmp_path / "b", place, ahead=True), Machine(tmp_path / "b", None)
    assert ahead.look() is None
    Machine(tmp_path / "a", place).entry()
    ahead.entry()
    ahead.close()
    run.entry()
    assert (ahead.built, run.built) == (0, 0)


def test_used_entry_stays_young(tmp_path: Path, place: Location, objects: Objects) -> None:
    """An entry that is used stays young."""
    Machine(tmp_path / "a", place).entry()
    entry, content = (Path(place.to, key) for key in (the_entry(objects), the_model(objects)))
    for used in ("b", "a"):  # fetched, and found at home
        for path in (entry, content):
            os.utime(path, (0, 0))
        Machine(tmp_path / used, place).entry()
        assert entry.stat().st_mtime > 0
        assert content.stat().st_mtime == 0  # which the entry holds


def test_shared_contents_lie_with_releases(tmp_path: Path, place: Location, objects: Objects) -> None:
    """What is shared lies where releases have it."""
    entry = Machine(tmp_path / "a", place).entry()
    assert keys(objects, OBJECTS) == sorted(object_key(file.sha256) for file in entry.files)
    assert keys(objects, CACHE) == [entry_key(STEP, entry.folder.name)]
