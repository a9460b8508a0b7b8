"""What is said of each version of a model in a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.stores.layout import object_key
from plansmith.stores.prune import Pruner, Retention
from plansmith.stores.reader import QUIET_SECONDS, list_versions, look_over
from plansmith.stores.store import Store

from ..support.stores.filled import fill, let_pass, report_live
from ..support.stores.releases import MODEL


@pytest.mark.slow
def test_versions_listed_with_manifest_facts(store: Store, tmp_path: Path) -> None:
    """Each version is listed with what stands for it and what its manifest tells."""
    releases = fill(store, tmp_path, 3)
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
    for listed, release in zip((first, second, third), releases, strict=True):
        assert (listed.verdict, listed.precision, listed.engine) == ("passed", "fp32", "onnxruntime")
        assert listed.bytes == sum(path.stat().st_size for path in release.folder.rglob("*") if path.is_file())
        assert listed.problem is None


def test_long_silent_loader_called_quiet(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that says nothing for long is told to be quiet."""
    fill(in_folder, tmp_path, 1)
    report_live(in_folder, 1)
    assert not list_versions(in_folder, MODEL)[0].live[0].is_quiet
    let_pass(monkeypatch, in_folder, (QUIET_SECONDS + 1) / 86400)
    assert list_versions(in_folder, MODEL)[0].live[0].is_quiet


def test_pruned_and_lost_versions_listed(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruned versions and those whose manifest is lost are listed and say so."""
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


def test_removed_alias_leaves_others(in_folder: Store, tmp_path: Path) -> None:
    """An alias that is taken away is gone and the others stay."""
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


def test_store_told_in_figures(store: Store, tmp_path: Path) -> None:
    """A store is told of in figures."""
    with pytest.raises(RepositoryError, match="is no store"):
        look_over(store)
    fill(store, tmp_path, 2)
    summary = look_over(store)
    contents = list(store.objects.below("objects/"))
    assert (summary.target, summary.models, summary.versions) == ("local-cpu", 1, 2)
    assert summary.held["objects"].objects == len(contents)
    assert summary.held["objects"].bytes == sum(content.bytes for content in contents)
    assert summary.held["releases"].objects == 2
