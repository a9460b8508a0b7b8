"""What a sync remembers, takes back and says where versions, servers, disks and the store fail."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault, PlansmithError
from plansmith.stores.sync import sync as sync_module

from ...support.stores.followed import Site
from ...support.stores.scripted import ScriptedTriton, tritons
from ...support.triton.versions import MODEL

__all__ = ["tritons"]

ENSEMBLE = f'name: "both"\nplatform: "ensemble"\nensemble_scheduling {{ step {{ model_name: "{MODEL}" }} }}\n'


@pytest.fixture
def place(tmp_path: Path) -> Site:
    """A store with a version of a model, which is `current`."""
    site = Site(tmp_path)
    site.publish()
    return site


def test_only_loaded_version_gone_back_to(place: Site, tritons: list[ScriptedTriton]) -> None:
    """Only what a server loaded is gone back to."""
    first, _ = tritons
    with place.sync(first.url) as sync:
        assert sync.look() == []
    bad = place.publish().version
    with place.sync() as before_triton_starts:
        assert before_triton_starts.look() == []
    assert place.mirror.shown(MODEL) == bad
    first.refused = {bad}
    with place.sync(first.url) as sync:
        (fault,) = sync.look()
        assert "version 1 goes on" in fault.message
    assert (place.mirror.shown(MODEL), first.served[MODEL]) == (1, [1])


def test_refused_version_stays_away(place: Site, tritons: list[ScriptedTriton]) -> None:
    """A version that was refused does not come back beside others before it is tried again."""
    first, _ = tritons
    first.refused = {2}
    with place.sync(first.url) as sync:
        sync.look()
        place.publish(latest=2)
        assert len(sync.look()) == 1
        place.publish(latest=2)
        assert (sync.look(), first.served[MODEL]) == ([], [1, 3])
        place.store.promote(MODEL, 2, "current")
        (fault,) = sync.look()
        assert "version 3 goes on" in fault.message
        assert 2 not in first.served[MODEL], "nor when the third is gone back to"
        first.refused = set()
        for version in (3, 2, 3):
            place.store.promote(MODEL, version, "current")
            assert sync.look() == []
        assert first.served[MODEL] == [2, 3], "it was loaded meanwhile"
        first.refused = {4}
        place.publish(latest=2)
        assert len(sync.look()) == 1
        first.refused = set()
        sync.forget_refusals()
        place.publish(latest=3)
        assert (sync.look(), first.served[MODEL]) == ([], [3, 4, 5])


def test_refused_version_withdrawn_everywhere(place: Site, tritons: list[ScriptedTriton]) -> None:
    """A refused version is taken back in every server, and ensembles are loaded again."""
    first, two = tritons
    with place.sync(first.url, two.url) as sync:
        two.refused = {1}
        (fault,) = sync.look()
        assert "no version is shown" in fault.message
        assert first.served == two.served == {}, "a first version is unloaded"
        assert two.loads == [(MODEL, [1])], "and not where it was never loaded"
        two.refused = {3}
        place.publish()
        assert sync.look() == []
        ensemble = place.mirror.repository.root / "both"
        ensemble.mkdir()
        (ensemble / "config.pbtxt").write_text(ENSEMBLE)
        place.publish()
        two.lets_go = True
        first.loads.clear()
        two.loads.clear()
        assert len(sync.look()) == 1
    assert first.loads == two.loads == [(MODEL, [3]), (MODEL, [2]), ("both", [])]


def test_server_losses_counted_separately(place: Site, tritons: list[ScriptedTriton]) -> None:
    """Losses of two servers are not two of one, nor are those before and after a load."""
    first, two = tritons
    with place.sync(first.url, two.url) as sync:
        sync.look()
        place.publish()
        first.dies = two.dies = True
        assert sync.look() == []
        for triton in tritons:
            triton.dies = triton.is_away = False
            triton.served.clear()
        assert sync.look() == []
        assert first.served[MODEL] == two.served[MODEL] == [2]
        first.served.clear()
        first.dies = True
        assert sync.look() == [], "it had loaded it in between"
        first.is_away = False
        (fault,) = sync.look()
        assert "went away 2 times" in fault.message


def test_servers_loaded_before_reports(
    place: Site, tritons: list[ScriptedTriton], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers are loaded before any report, and a store that is away is sent none."""
    first, _ = tritons
    place.publish(model="other")
    with place.sync(first.url) as sync:
        monkeypatch.setattr(sync_module, "REPORT_SECONDS", 0)
        sync.look()
        first.served.clear()
        place.objects.is_cut, place.objects.puts = True, 0
        assert len(sync.look()) == 1
        assert (set(first.served), place.objects.puts) == ({MODEL, "other"}, 0)
        place.objects.is_cut = False
        served: list[int] = []

        def cut(*_: object) -> None:
            served.append(len(first.served))
            raise EnvironmentFault("no put arrives", remedy="plug it in")

        with monkeypatch.context() as patch:
            patch.setattr(place.objects, "put", cut)
            first.served.clear()
            assert sync.look() == []
        assert served == [2], "after one that failed no other is sent in the same look"
        sync.look()
        assert place.report().serves == place.report("other").serves == (1,)


def test_failing_disk_ends_nothing(place: Site, tritons: list[ScriptedTriton], monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk or mounted store that fails ends nothing."""
    first, _ = tritons
    with place.sync(first.url) as sync:
        assert sync.look() == []
        place.take_lines()
        place.objects.is_stale = True
        (fault,) = sync.look()
        assert isinstance(fault, EnvironmentFault)
        assert "tale" in fault.message
        assert "mounted" in place.take_lines()
        place.objects.is_stale = False
        first.refused = {place.publish().version}

        def full(path: Path, *_: object) -> None:
            raise OSError(errno.ENOSPC, "", str(path))

        with monkeypatch.context() as patch:
            patch.setattr(sync_module, "write_note", full)
            (fault,) = sync.look()
            assert "version 1 goes on; that cannot be noted" in fault.message
            assert (place.mirror.shown(MODEL), first.served[MODEL], sync.look()) == (1, [1], [])
            first.refused = set()
            place.publish()
            (fault,) = sync.look()
            assert isinstance(fault, EnvironmentFault)
        assert sync.look() == []
    with place.sync(first.url) as sync:
        first.refused = {place.publish().version}
        sync.look()
        assert first.served[MODEL] == [3], "what it loaded was noted when there was room"


def test_first_words_say_remedy(place: Site, tritons: list[ScriptedTriton]) -> None:
    """What is said first comes with what to do."""
    first, two = tritons
    first.refused = {1}
    two.is_away = True
    with place.sync(two.url, first.url) as sync:
        (fault,) = sync.look()
        assert isinstance(fault, PlansmithError)
        lines = place.take_lines()
        assert f"{MODEL}: {fault.message} (correct it)" in lines
        assert "cannot be asked (start it); it is loaded when it answers again" in lines
        place.objects.is_cut = True
        sync.look()
        assert "cannot be reached (plug it in); what serves goes on" in place.take_lines()
        sync.look()
        assert place.take_lines() == ""


def test_missing_alias_error_only_if_named(place: Site) -> None:
    """A model without the alias is an error only where it was named."""
    place.publish(model="other")
    place.store.take_alias_away("other", "current")
    with place.sync() as sync:
        assert [*sync.look(), *sync.look()] == []
        assert place.mirror.repository.models() == [MODEL]
        assert place.take_lines().count("it is not followed") == 1
    with place.sync(models=("other",)) as sync:
        (fault,) = sync.look()
        assert (fault.model, "plansmith promote other@VERSION current" in fault.remedy) == ("other", True)


def test_unmounted_folder_is_no_empty_store(place: Site, tritons: list[ScriptedTriton]) -> None:
    """A folder that is not mounted is no empty store."""
    first, _ = tritons
    with place.sync(first.url) as sync:
        assert sync.look() == []
        (place.folder / "store").rename(place.folder / "unmounted")
        (fault,) = sync.look()
        assert isinstance(fault, EnvironmentFault)
        assert "there is no store at" in fault.message
        assert "mounted" in fault.remedy
        assert first.served[MODEL] == [1]
        assert not (place.folder / "store").exists(), "nothing is written to the bare mount point"
