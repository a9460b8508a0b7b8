"""What is said of each version of a model in a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.stores.layout import object_key
from plansmith.stores.listing import QUIET_SECONDS, list_versions
from plansmith.stores.maintenance.prune import Pruner
from plansmith.stores.maintenance.retention import Retention
from plansmith.stores.overview import look_over
from plansmith.stores.store import Store

from ..support.stores.filled import fill, let_pass, report_live
from ..support.stores.releases import MODEL


@pytest.mark.slow
def test_each_version_is_listed_with_what_stands_for_it_and_what_its_manifest_tells(
    store: Store, tmp_path: Path
) -> None:
    made = fill(store, tmp_path, 3)
    store.promote(MODEL, 2, "champion")
    store.promote(MODEL, 3, "canary", 0.1)
    store.pin(MODEL, 1, "audit")
    report_live(store, 2, loader="gpu-7")
    report_live(store, 2, loader="gpu-8")
    first, second, third = list_versions(store, MODEL)
    assert (first.aliases, second.aliases, third.aliases) == ((), ("champion",), ("canary", "current"))
    assert third.shares == {"canary": 0.1}
    assert (first.pinned, second.pinned) == ("audit", None)
    assert [live.loader for live in second.live] == ["gpu-7", "gpu-8"]
    assert (first.live, third.live) == ((), ())
    for listed, release in zip((first, second, third), made, strict=True):
        assert (listed.verdict, listed.precision, listed.engine) == ("passed", "fp32", "onnxruntime")
        assert listed.bytes == sum(file.bytes for file in release.manifest.files)
        assert listed.problem is None


def test_a_loader_that_says_nothing_for_long_is_told_to_be_quiet(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(in_folder, tmp_path, 1)
    report_live(in_folder, 1)
    assert not list_versions(in_folder, MODEL)[0].live[0].is_quiet
    let_pass(monkeypatch, in_folder, (QUIET_SECONDS + 1) / 86400)
    assert list_versions(in_folder, MODEL)[0].live[0].is_quiet


def test_pruned_versions_and_those_whose_manifest_is_lost_are_listed_and_say_so(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(in_folder, tmp_path, 3)
    let_pass(monkeypatch, in_folder, 40)
    Pruner(in_folder, Retention(keep=1, seconds=0), dry=False, settle_seconds=0).prune()
    release = in_folder.release(MODEL, in_folder.find(f"{MODEL}@3")[1])
    lost = next(file.sha256 for file in release.files if file.path == "manifest.json")
    in_folder.objects.remove([object_key(lost)])
    first, second, third = list_versions(in_folder, MODEL)
    assert first.pruned is not None
    assert (first.verdict, first.problem) == (None, None)
    assert (second.pruned, second.verdict) == (None, "passed")
    assert third.problem == f"manifest.json of {MODEL} in {in_folder.place} is missing"


def test_an_alias_that_is_taken_away_is_gone_and_the_others_stay(in_folder: Store, tmp_path: Path) -> None:
    fill(in_folder, tmp_path, 1)
    in_folder.promote(MODEL, 1, "champion")
    assert in_folder.take_alias_away(MODEL, "champion").aliases.keys() == {"current"}
    assert in_folder.catalogue(MODEL).aliases.keys() == {"current"}
    with pytest.raises(RepositoryError, match="has no alias 'champion'") as refused:
        in_folder.take_alias_away(MODEL, "champion")
    assert refused.value.remedy == "name one of its aliases: current"
    with pytest.raises(RepositoryError, match="has no model 'third'"):
        in_folder.take_alias_away("third", "champion")
    assert in_folder.models() == [MODEL]


def test_a_store_is_told_of_in_figures(store: Store, tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="is no store"):
        look_over(store)
    fill(store, tmp_path, 2)
    found = look_over(store)
    contents = list(store.objects.below("objects/"))
    assert (found.target, found.models, found.versions) == ("local-cpu", 1, 2)
    assert found.held["objects"].objects == len(contents)
    assert found.held["objects"].bytes == sum(held.bytes for held in contents)
    assert found.held["releases"].objects == 2
