"""A Triton beside a mirror serves what the store's alias stands for, and what served goes on where something fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plansmith.errors import ServedCheckError
from plansmith.triton.server.installation import Installation

from ...support.stores.followed import MirrorTriton, Site
from ...support.stores.python_versions import BROKEN, DEADLY, WHY_BROKEN
from ...support.triton.clients import Clients
from ...support.triton.installed import installation
from ...support.triton.versions import MODEL

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("sync")]

__all__ = ["installation"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A store with two versions of a model; the second is `current`."""
    site = Site(tmp_path_factory.mktemp("sync"))
    site.publish()
    site.publish()
    return site


@pytest.fixture(scope="module")
def triton(place: Site, installation: Installation) -> Iterator[MirrorTriton]:
    with MirrorTriton(place.mirror.repository.root, installation) as beside:
        yield beside


def test_promotions_served_without_request_loss(place: Site, triton: MirrorTriton) -> None:
    """Promotions and rollbacks are served, and no request is lost meanwhile."""
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


def test_unloadable_version_keeps_old_serving(place: Site, triton: MirrorTriton) -> None:
    """A version that does not load leaves the old one serving, and the report says why."""
    with place.sync(triton.url) as sync:
        sync.look()
        (old,) = triton.ready()
        with Clients(triton.server.http_url, triton.server.grpc_url, count=2) as clients:
            clients.wait_for(old)
            bad = place.publish(BROKEN).version
            (fault,) = sync.look()
            assert isinstance(fault, ServedCheckError)
            assert f"version {old} goes on" in fault.message
            place.take_lines()
            assert sync.look() == []
            assert place.take_lines() == ""
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


def test_restarted_triton_reloaded(place: Site, triton: MirrorTriton) -> None:
    """A Triton that was started again is loaded again."""
    with place.sync(triton.url) as sync:
        sync.look()
        served = triton.ready()
        triton.server.stop()
        place.take_lines()
        sync.look()
        sync.look()
        assert place.take_lines().count("it is loaded when it answers again") == 1
        assert place.report().serves == ()
        published = place.publish().version
        assert sync.look() == []
        triton.start()
        assert triton.ready() == []
        assert sync.look() == []
        assert triton.ready() == [published] != served
        assert place.report().serves == (published,)


def test_unreachable_store_stops_nothing(place: Site, triton: MirrorTriton) -> None:
    """A store that cannot be reached stops nothing and is followed again."""
    with place.sync(triton.url) as sync:
        sync.look()
        served = triton.ready()
        place.objects.is_cut = True
        place.take_lines()
        sync.look()
        sync.look()
        assert place.take_lines().count("cannot be reached") == 1
    triton.server.stop()
    triton.start()
    with place.sync(triton.url) as sync:
        assert len(sync.look()) == 1
        assert triton.ready() == served
        place.objects.is_cut = False
        published = place.publish().version
        assert (sync.look(), triton.ready()) == ([], [published])


def test_absent_server_spares_other(place: Site, triton: MirrorTriton) -> None:
    """One of two servers that is away keeps the other from nothing."""
    with place.sync("grpc://127.0.0.1:9", triton.url) as sync:
        published = place.publish().version
        assert sync.look() == []
        assert triton.ready() == [published]
        assert "127.0.0.1:9" in str(place.report().failed)


def test_crashing_version_taken_back(place: Site, triton: MirrorTriton) -> None:
    """A version that takes Triton down twice is taken back."""
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
