"""What a sync remembers, takes back and says where versions, servers, disks and the store fail."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from plansmith.errors import EnvironmentFault, PlansmithError
from plansmith.stores.sync import followed_model

from ...support.stores.followed import Site
from ...support.stores.scripted import ScriptedTriton, tritons
from ...support.triton.versions import MODEL

__all__ = ["tritons"]

ENSEMBLE = f'name: "both"\nplatform: "ensemble"\nensemble_scheduling {{ step {{ model_name: "{MODEL}" }} }}\n'


@pytest.fixture
def place(tmp_path: Path) -> Site:
    """A store with a version of a model, which is `current`."""
    found = Site(tmp_path)
    found.publish()
    return found


def test_only_what_a_server_loaded_is_gone_back_to(place: Site, tritons: list[ScriptedTriton]) -> None:
    one, _ = tritons
    with place.sync(one.url) as sync:
        assert sync.look() == []
    bad = place.publish().version
    with place.sync() as before_triton_starts:
        assert before_triton_starts.look() == []
    assert place.mirror.shown(MODEL) == bad
    one.refused = {bad}
    with place.sync(one.url) as sync:
        (fault,) = sync.look()
        assert "version 1 goes on" in fault.message
    assert (place.mirror.shown(MODEL), one.served[MODEL]) == (1, [1])


def test_a_version_that_was_refused_does_not_come_back_beside_others_before_it_is_tried_again(
    place: Site, tritons: list[ScriptedTriton]
) -> None:
    one, _ = tritons
    one.refused = {2}
    with place.sync(one.url) as sync:
        sync.look()
        place.publish(latest=2)
        assert len(sync.look()) == 1
        place.publish(latest=2)
        assert (sync.look(), one.served[MODEL]) == ([], [1, 3])
        place.store.promote(MODEL, 2, "current")
        (fault,) = sync.look()
        assert "version 3 goes on" in fault.message
        assert 2 not in one.served[MODEL], "nor when the third is gone back to"
        one.refused = set()
        for version in (3, 2, 3):
            place.store.promote(MODEL, version, "current")
            assert sync.look() == []
        assert one.served[MODEL] == [2, 3], "it was loaded meanwhile"
        one.refused = {4}
        place.publish(latest=2)
        assert len(sync.look()) == 1
        one.refused = set()
        sync.forget_refusals()
        place.publish(latest=3)
        assert (sync.look(), one.served[MODEL]) == ([], [3, 4, 5])


def test_a_refused_version_is_taken_back_in_every_server_and_ensembles_are_loaded_again(
    place: Site, tritons: list[ScriptedTriton]
) -> None:
    one, two = tritons
    with place.sync(one.url, two.url) as sync:
        two.refused = {1}
        (fault,) = sync.look()
        assert "no version is shown" in fault.message
        assert one.served == two.served == {}, "a first version is unloaded"
        assert two.loads == [(MODEL, [1])], "and not where it was never loaded"
        two.refused = {3}
        place.publish()
        assert sync.look() == []
        ensemble = place.mirror.repository.root / "both"
        ensemble.mkdir()
        (ensemble / "config.pbtxt").write_text(ENSEMBLE)
        place.publish()
        two.lets_go = True
        one.loads.clear()
        two.loads.clear()
        assert len(sync.look()) == 1
    assert one.loads == two.loads == [(MODEL, [3]), (MODEL, [2]), ("both", [])]


def test_losses_of_two_servers_are_not_two_of_one_nor_are_those_before_and_after_a_load(
    place: Site, tritons: list[ScriptedTriton]
) -> None:
    one, two = tritons
    with place.sync(one.url, two.url) as sync:
        sync.look()
        place.publish()
        one.dies = two.dies = True
        assert sync.look() == []
        for triton in tritons:
            triton.dies = triton.is_away = False
            triton.served.clear()
        assert sync.look() == []
        assert one.served[MODEL] == two.served[MODEL] == [2]
        one.served.clear()
        one.dies = True
        assert sync.look() == [], "it had loaded it in between"
        one.is_away = False
        (fault,) = sync.look()
        assert "went away 2 times" in fault.message


def test_servers_are_loaded_before_any_report_and_a_store_that_is_away_is_sent_none(
    place: Site, tritons: list[ScriptedTriton], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = tritons
    place.publish(model="other")
    with place.sync(one.url) as sync:
        monkeypatch.setattr(followed_model, "REPORT_SECONDS", 0)
        sync.look()
        one.served.clear()
        place.objects.is_cut, place.objects.puts = True, 0
        assert len(sync.look()) == 1
        assert (set(one.served), place.objects.puts) == ({MODEL, "other"}, 0)
        place.objects.is_cut = False
        served: list[int] = []

        def cut(*_: object) -> None:
            served.append(len(one.served))
            raise EnvironmentFault("no put arrives", remedy="plug it in")

        with monkeypatch.context() as patch:
            patch.setattr(place.objects, "put", cut)
            one.served.clear()
            assert sync.look() == []
        assert served == [2], "after one that failed no other is sent in the same look"
        sync.look()
        assert place.report().serves == place.report("other").serves == (1,)


def test_a_disk_or_mounted_store_that_fails_ends_nothing(
    place: Site, tritons: list[ScriptedTriton], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = tritons
    with place.sync(one.url) as sync:
        assert sync.look() == []
        place.said()
        place.objects.is_stale = True
        (fault,) = sync.look()
        assert isinstance(fault, EnvironmentFault)
        assert "tale" in fault.message
        assert "mounted" in place.said()
        place.objects.is_stale = False
        one.refused = {place.publish().version}

        def full(path: Path, *_: object) -> None:
            raise OSError(errno.ENOSPC, "", str(path))

        with monkeypatch.context() as patch:
            patch.setattr(followed_model, "write_note", full)
            (fault,) = sync.look()
            assert "version 1 goes on; that cannot be noted" in fault.message
            assert (place.mirror.shown(MODEL), one.served[MODEL], sync.look()) == (1, [1], [])
            one.refused = set()
            place.publish()
            (fault,) = sync.look()
            assert isinstance(fault, EnvironmentFault)
        assert sync.look() == []
    with place.sync(one.url) as sync:
        one.refused = {place.publish().version}
        sync.look()
        assert one.served[MODEL] == [3], "what it loaded was noted when there was room"


def test_what_is_said_first_is_said_with_what_to_do(place: Site, tritons: list[ScriptedTriton]) -> None:
    one, two = tritons
    one.refused = {1}
    two.is_away = True
    with place.sync(two.url, one.url) as sync:
        (fault,) = sync.look()
        assert isinstance(fault, PlansmithError)
        said = place.said()
        assert f"{MODEL}: {fault.message} (correct it)" in said
        assert "cannot be asked (start it); it is loaded when it answers again" in said
        place.objects.is_cut = True
        sync.look()
        assert "cannot be reached (plug it in); what serves goes on" in place.said()
        sync.look()
        assert place.said() == ""


def test_a_model_without_the_alias_is_an_error_only_where_it_was_named(place: Site) -> None:
    place.publish(model="other")
    place.store.take_alias_away("other", "current")
    with place.sync() as sync:
        assert [*sync.look(), *sync.look()] == []
        assert place.mirror.repository.models() == [MODEL]
        assert place.said().count("it is not followed") == 1
    with place.sync(models=("other",)) as sync:
        (fault,) = sync.look()
        assert (fault.model, "plansmith promote other@VERSION current" in fault.remedy) == ("other", True)


def test_a_folder_that_is_not_mounted_is_no_empty_store(place: Site, tritons: list[ScriptedTriton]) -> None:
    one, _ = tritons
    with place.sync(one.url) as sync:
        assert sync.look() == []
        (place.folder / "store").rename(place.folder / "unmounted")
        (fault,) = sync.look()
        assert isinstance(fault, EnvironmentFault)
        assert "there is no store at" in fault.message
        assert "mounted" in fault.remedy
        assert one.served[MODEL] == [1]
        assert not (place.folder / "store").exists(), "nothing is written to the bare mount point"
