"""A service's places come from the specs of its fleet; that nothing is there yet is said, and is no failure."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from plansmith.errors import UsageError
from plansmith.fleet.maintenance.collect import (
    Collected,
    CollectionScope,
    Grace,
    collect,
    collected_counts,
    collected_rows,
    verified_counts,
)
from plansmith.fleet.maintenance.garbage import Limits
from plansmith.fleet.maintenance.locations import named_places, places_of_specs
from plansmith.fleet.maintenance.verify import Verified, VerifyOptions, verify
from plansmith.records.destination import Location
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.store import Store
from plansmith.triton.repository.repository import ModelRepository

from ...support.stores.filled import DAY, fill

OWN = """
source: hf:bert
repository: ../models
artifacts: ../work
publish: [../store, {to: s3://models/prod, ca_bundle: lan.pem}]
shared_cache: ../shared
"""
PLAIN = """
models:
  - {source: hf:one, target: [local-cpu, triton-26.08-cpu], publish: ../store}
  - {source: hf:two, target: [local-cpu], publish: {to: ../store, aliases: [champion]}}
"""


def lay_out(folder: Path, **texts: str) -> Path:
    """Spec files by name, in a folder of their own."""
    specs = folder / "specs"
    specs.mkdir()
    for name, text in texts.items():
        (specs / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


def verified(folder: Path) -> Verified:
    """Verify a service by digest, as its flow does."""
    places = named_places(places_of_specs(["specs"], folder), folder, None, None)
    return verify(places, VerifyOptions(on_server=False))


def collected(folder: Path) -> Collected:
    """Collect for a service, as its flow does, a month from now."""
    limits = Limits(older_than=30 * DAY, now=time.time() + 31 * DAY, scratch=(), staging=())
    places = named_places(places_of_specs(["specs"], folder), folder, None, None)
    grace = Grace(seconds=0, keep=1, settle_seconds=0, limits=limits)
    return collect(CollectionScope(None, places), grace, dry_run=False)


def test_fleet_places_come_from_specs(tmp_path: Path) -> None:
    """The places of a fleet are those of its specs each once."""
    places = places_of_specs(["specs"], lay_out(tmp_path, own=OWN, plain=PLAIN))
    assert places.faults == ()
    assert places.artifacts == (tmp_path / "work", tmp_path / "artifacts")
    repository = tmp_path / "artifacts" / "repository"
    targets = (repository / "local-cpu", repository / "triton-26.08-cpu")
    assert places.repositories == (tmp_path / "models", *targets)
    store = str(tmp_path / "store")
    assert places.stores == (
        Location(to=store),
        Location(to="s3://models/prod", ca_bundle=str(tmp_path / "specs" / "lan.pem")),
        Location(to=f"{store}/local-cpu"),
        Location(to=f"{store}/triton-26.08-cpu"),
    )
    assert places.shared_caches == (Location(to=str(tmp_path / "shared")),)


def test_named_place_replaces_its_kind(tmp_path: Path) -> None:
    """What is named takes the place of what specs have of its kind."""
    of_specs = places_of_specs(["specs"], lay_out(tmp_path, own=OWN))
    named = named_places(of_specs, tmp_path, ["other"], None)
    assert (named.repositories, named.of_specs.repositories) == ([Path("other")], ())
    assert named.of_specs.stores == of_specs.stores
    named = named_places(of_specs, tmp_path, None, ["elsewhere"])
    assert (named.stores, named.of_specs.stores) == ([Location(to="elsewhere")], ())
    assert (named.repositories, named.of_specs.repositories) == ([], of_specs.repositories)
    bare = named_places(places_of_specs([], tmp_path), tmp_path, None, None)
    assert bare.repositories == [Path("artifacts/repository")]
    moved = places_of_specs(["specs"], tmp_path, {"repository": "/srv/models", "publish": []})
    assert (moved.repositories, moved.stores) == ((Path("/srv/models"),), ())
    with pytest.raises(UsageError, match="is no store"):
        named_places(of_specs, tmp_path, None, ["ftp://x"])


def test_fresh_service_fails_nothing(tmp_path: Path) -> None:
    """It is said that nothing of a fresh service is there yet, and nothing fails."""
    lay_out(tmp_path, plain="{source: hf:two, publish: ../store, shared_cache: ../shared}")
    artifacts, store, shared = tmp_path / "artifacts", tmp_path / "store", tmp_path / "shared"
    looked = verified(tmp_path)
    assert (looked.error(), looked.places, looked.faults) == (None, (), ())
    assert looked.absent == (str(artifacts / "repository"), str(store))
    assert verified_counts(looked).endswith(f"; nothing there yet at {artifacts / 'repository'}, {store}")
    tidied = collected(tmp_path)
    assert (tidied.error(), tidied.found) == (None, ())
    assert tidied.absent == (str(store), str(shared), str(artifacts))
    assert collected_counts(tidied).endswith(f"; nothing there yet at {store}, {shared}, {artifacts}")
    assert {row["why"] for row in collected_rows(tidied)} == {"nothing there yet"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["specs"]


def test_all_models_are_looked_after(tmp_path: Path) -> None:
    """All that the models of a service have is looked after."""
    lay_out(tmp_path, own=OWN.replace(", {to: s3://models/prod, ca_bundle: lan.pem}", ""), plain="source: hf:two")
    store = Store(FolderObjects(tmp_path / "store"))
    releases = fill(store, tmp_path, 1)
    (tmp_path / "repository").rename(tmp_path / "models")
    (tmp_path / "repository.plansmith").rename(tmp_path / "models.plansmith")
    logs = [tmp_path / name / "logs" / "old.log" for name in ("work", "artifacts")]
    for log in logs:
        log.parent.mkdir(parents=True)
        log.write_text("log")
    report = verified(tmp_path)
    assert [place.place for place in report.places] == [str(tmp_path / "models"), str(store.place)]
    assert report.absent == (str(tmp_path / "artifacts" / "repository"),)
    tidied = collected(tmp_path)
    assert (tidied.error(), tidied.absent) == (None, (str(tmp_path / "shared"), str(tmp_path / "artifacts/repository")))
    assert {item.name for item in tidied.gone if item.kind == "log"} == set(map(str, logs))
    assert not any(log.exists() for log in logs)
    assert ModelRepository(tmp_path / "models").versions(releases[0].model) == [1]


def test_old_logs_without_version_go(tmp_path: Path) -> None:
    """Logs of a service that has never made a version go when they are old."""
    lay_out(tmp_path, plain="source: hf:two")
    log = tmp_path / "artifacts" / "logs" / "failed.log"
    log.parent.mkdir(parents=True)
    log.write_text("log")
    assert [item.name for item in collected(tmp_path).gone] == [str(log)]


def test_unreadable_spec_keeps_releases(tmp_path: Path) -> None:
    """A spec that cannot be read fails and no release goes as its store is not known."""
    lay_out(tmp_path, broken="- a list", plain="source: hf:two")
    report = verified(tmp_path)
    assert [fault.place for fault in report.faults] == [str(tmp_path / "specs" / "broken.yaml")]
    assert isinstance(report.error(), UsageError)
    assert isinstance(collected(tmp_path).error(), UsageError)
