"""What no machine has used for long goes from a shared cache; what is used, young, or part of a release stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from plansmith.cli import cli
from plansmith.records.destination import Location
from plansmith.stores.backend.documents import PRUNING
from plansmith.stores.layout import CACHE, LEASES, OBJECTS, TIMING, lease_key, timing_key
from plansmith.stores.publication import publish_release
from plansmith.stores.store import Store, open_store
from plansmith.system.digest import Digester

from ...support.stores.machines import FILES, Machine
from ...support.stores.releases import make_release

DAY = 86400.0


@pytest.fixture
def place(tmp_path: Path) -> Location:
    """In a folder, where files can be given an age."""
    return Location(to=str(tmp_path / "shared"))


@pytest.fixture
def store(place: Location) -> Store:
    return open_store(place, Path())


def keys(store: Store, prefix: str = "") -> list[str]:
    """What a store holds, but for the lease of its pruner."""
    return [item.key for item in store.objects.below(prefix) if item.key != lease_key(PRUNING)]


def grow_old(store: Store, *prefixes: str, days: float = 40) -> None:
    for key in (key for prefix in prefixes for key in keys(store, prefix)):
        path = Path(store.place, key)
        moment = path.stat().st_mtime - days * DAY
        os.utime(path, (moment, moment))


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody publishes at this very moment, for whom it would be waited."""
    monkeypatch.setattr("plansmith.stores.prune.time.sleep", lambda _: None)


def gc(place: Location, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["gc", "--shared-cache", place.to, *arguments], catch_exceptions=False)


def share(tmp_path: Path, place: Location, store: Store) -> None:
    """An entry, the lease of its build, and a file of a timing cache."""
    Machine(tmp_path / "a", place).entry()
    store.objects.put(timing_key("0" * 16, "a" * 64), b"measured")


def test_unused_entry_goes_with_contents(tmp_path: Path, place: Location, store: Store) -> None:
    """What was not used for long goes with its contents."""
    share(tmp_path, place, store)
    grow_old(store, CACHE, TIMING, OBJECTS, LEASES)
    before = keys(store)
    dry = json.loads(gc(place, "--dry-run", "--json").stdout)
    assert keys(store) == before
    done = json.loads(gc(place, "--json").stdout)
    assert dry == done | {"dry_run": True}
    assert {item["kind"] for item in done["garbage"]} == {"cache entry", "timing cache", "content"}
    assert done["freed_bytes"] > sum(map(len, FILES.values()))
    assert all(item["path"].startswith(f"{store.place}/") for item in done["garbage"])
    assert keys(store) == ["plansmith-store.json"]
    again = Machine(tmp_path / "b", place)
    again.entry()
    assert (again.built, again.close()) == (1, [])


def test_used_entry_keeps_old_contents(tmp_path: Path, place: Location, store: Store) -> None:
    """What was used stays with its old contents."""
    share(tmp_path, place, store)
    grow_old(store, CACHE, TIMING, OBJECTS, days=20)
    before = keys(store)
    assert gc(place).stdout == "0 things removed, 0 B freed\n"
    assert keys(store) == before
    assert gc(place, "--older-than", "2w", "--dry-run").stdout.splitlines()[-1].startswith("5 things would be removed")


def test_fresh_contents_stay(tmp_path: Path, place: Location, store: Store) -> None:
    """Contents that have just come stay for whatever needs them."""
    share(tmp_path, place, store)
    contents = keys(store, OBJECTS)
    done = json.loads(gc(place, "--older-than", "0", "--json").stdout)
    assert {item["kind"] for item in done["garbage"]} == {"cache entry", "timing cache"}
    assert keys(store, OBJECTS) == contents


def test_needed_contents_stay(tmp_path: Path, place: Location, store: Store) -> None:
    """Contents that a release or another entry needs stay."""
    release = make_release(tmp_path / "repository")
    package = {file.path: (release.folder / file.path).read_bytes() for file in release.manifest.files}
    Machine(tmp_path / "a", place, files=package).entry()
    publish_release(store, release.folder, release.manifest, Digester(tmp_path / "digests.sqlite"))
    Machine(tmp_path / "b", place).entry(2)
    grow_old(store, CACHE, OBJECTS)
    third = Machine(tmp_path / "c", place, files=FILES | {"more": b"more"})
    third.entry(3)
    needed = {file.sha256 for file in (*release.manifest.files, *third.entry(3).files)}
    done = json.loads(gc(place, "--json").stdout)
    assert {item["kind"] for item in done["garbage"]} == {"cache entry"}
    assert needed <= {key.rpartition("/")[2] for key in keys(store, OBJECTS)}
    assert store.find(release.model)[1].pruned is None


def test_collection_without_shared_place_refused(tmp_path: Path, place: Location) -> None:
    """A place where nothing is shared and options without one are refused."""

    def refusal(*arguments: str) -> str:
        result = CliRunner().invoke(cli, ["gc", *arguments])
        return str(result.exception or result.output)

    assert "nothing is shared at" in refusal("--shared-cache", place.to)
    assert not Path(place.to).exists()
    assert "--region is for --shared-cache" in refusal("--region", "eu-west-1")
    assert "two places" in refusal("--shared-cache", place.to, "--repository", str(tmp_path))
    assert "no destination" in refusal("--shared-cache", "ftp://elsewhere")
