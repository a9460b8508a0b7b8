"""A Triton beside a mirror serves what the store's alias stands for, and what served goes on where something fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plansmith.errors import ServedCheckError
from plansmith.triton.server.installation import Installation

from ...support.stores.followed import Beside, Site
from ...support.stores.python_versions import BROKEN, DEADLY, WHY_BROKEN
from ...support.triton.clients import Clients
from ...support.triton.installed import installation
from ...support.triton.versions import MODEL

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("sync")]

__all__ = ["installation"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A store with two versions of a model; the second is `current`."""
    found = Site(tmp_path_factory.mktemp("sync"))
    found.publish()
    found.publish()
    return found


@pytest.fixture(scope="module")
def triton(place: Site, installation: Installation) -> Iterator[Beside]:
    with Beside(place.mirror.repository.root, installation) as beside:
        yield beside


def test_promotions_and_rollbacks_are_served_and_no_request_is_lost_meanwhile(place: Site, triton: Beside) -> None:
    with place.sync(triton.url) as sync:
        assert sync.look() == []
        (newest,) = triton.ready()  # another test of this module may have published
        with Clients(triton.server.http_url, triton.server.grpc_url, count=2) as clients:
            clients.wait_for(newest)
            place.store.promote(MODEL, 1, "current")
            assert (sync.look(), triton.ready()) == ([], [1])
            clients.wait_for(1)
            place.store.roll_back(MODEL)
            assert (sync.look(), triton.ready()) == ([], [newest])
            published = place.publish().version
            assert (sync.look(), triton.ready()) == ([], [published])
            clients.wait_for(published)
        assert clients.lost == clients.mixed == []
    report = place.report()
    assert (report.wanted, report.serves, report.failed) == (published, (published,), None)


def test_a_version_that_does_not_load_leaves_the_old_one_serving_and_the_report_says_why(
    place: Site, triton: Beside
) -> None:
    with place.sync(triton.url) as sync:
        sync.look()
        (old,) = triton.ready()
        with Clients(triton.server.http_url, triton.server.grpc_url, count=2) as clients:
            clients.wait_for(old)
            bad = place.publish(BROKEN).version
            (fault,) = sync.look()
            assert isinstance(fault, ServedCheckError)
            assert f"version {old} goes on" in fault.message
            place.said()
            assert sync.look() == []
            assert place.said() == ""
            clients.wait_for(old)
        assert clients.lost == clients.mixed == []
        assert (triton.ready(), place.mirror.shown(MODEL)) == ([old], old)
        report = place.report()
        assert (report.wanted, report.serves) == (bad, (old,))
        assert WHY_BROKEN in str(report.failed)
    with place.sync(triton.url) as sync:
        (again,) = sync.look()
        assert f"version {bad} is not tried again" in again.message
        assert "--retry" in again.remedy
        sync.forget_refusals()
        (refused,) = sync.look()
        assert WHY_BROKEN in refused.message
        place.store.promote(MODEL, old, "current")
        assert sync.look() == []
        assert place.report().failed is None
        place.store.promote(MODEL, bad, "current")
        assert len(sync.look()) == 1, "the alias was moved: it is tried again"
        place.store.roll_back(MODEL)
        assert sync.look() == []


def test_a_triton_that_was_started_again_is_loaded_again(place: Site, triton: Beside) -> None:
    with place.sync(triton.url) as sync:
        sync.look()
        served = triton.ready()
        triton.server.stop()
        place.said()
        sync.look()
        sync.look()
        assert place.said().count("it is loaded when it answers again") == 1
        assert place.report().serves == ()
        published = place.publish().version
        assert sync.look() == []
        triton.start()
        assert triton.ready() == []
        assert sync.look() == []
        assert triton.ready() == [published] != served
        assert place.report().serves == (published,)


def test_a_store_that_cannot_be_reached_stops_nothing_and_is_followed_again(place: Site, triton: Beside) -> None:
    with place.sync(triton.url) as sync:
        sync.look()
        served = triton.ready()
        place.objects.is_cut = True
        place.said()
        sync.look()
        sync.look()
        assert place.said().count("cannot be reached") == 1
    triton.server.stop()
    triton.start()
    with place.sync(triton.url) as sync:
        assert len(sync.look()) == 1
        assert triton.ready() == served
        place.objects.is_cut = False
        published = place.publish().version
        assert (sync.look(), triton.ready()) == ([], [published])


def test_one_of_two_servers_that_is_away_keeps_the_other_from_nothing(place: Site, triton: Beside) -> None:
    with place.sync("grpc://127.0.0.1:9", triton.url) as sync:
        published = place.publish().version
        assert sync.look() == []
        assert triton.ready() == [published]
        assert "127.0.0.1:9" in str(place.report().failed)


def test_a_version_that_takes_triton_down_twice_is_taken_back(place: Site, triton: Beside) -> None:
    with place.sync(triton.url) as sync:
        sync.look()
        (old,) = triton.ready()
        deadly = place.publish(DEADLY).version
        assert sync.look() == []
        assert place.mirror.shown(MODEL) == deadly, "it may have been chance"
        triton.start()
        (fault,) = sync.look()
        assert "Triton went away 2 times while it loaded" in fault.message
        assert place.mirror.shown(MODEL) == old
        triton.start()
        assert sync.look() == []
        assert triton.ready() == [old]
        report = place.report()
        assert (report.wanted, report.serves) == (deadly, (old,))
        assert "went away" in str(report.failed)
        place.store.roll_back(MODEL)
