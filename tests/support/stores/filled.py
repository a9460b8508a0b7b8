"""Stores with releases in them, made by hand; and the passing of time."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.records.destination import CURRENT, Publication
from plansmith.stores.backend.documents import content_of, utc_now
from plansmith.stores.layout import live_key
from plansmith.stores.prune import Pruner, Pruning, Retention
from plansmith.stores.publication import Terms, publish_release
from plansmith.stores.records import LiveReport
from plansmith.stores.store import Store
from plansmith.system.digest import Digester

from .releases import MODEL, PackagedRelease, make_release

DAY = 24 * 3600.0


def publish(store: Store, made: PackagedRelease, *aliases: str) -> Publication:
    """Bring a release into a store."""
    digester = Digester(made.folder.parents[3] / "digests.sqlite")
    return publish_release(store, made.folder, made.manifest, digester, terms=Terms(aliases=aliases or (CURRENT,)))


def fill(store: Store, folder: Path, count: int, *, model: str = MODEL) -> list[PackagedRelease]:
    """Publish versions 1 to `count` of a model, from a repository in a folder; `current` stands for the last.

    Some of their files are equal, and others are not.
    """
    releases = [make_release(folder / "repository", number, model=model) for number in range(1, count + 1)]
    for release in releases:
        publish(store, release)
    return releases


def report_live(store: Store, version: int, *, loader: str = "gpu-7", model: str = MODEL) -> None:
    """Have a loader say that a version answers."""
    report = LiveReport(loader=loader, model=model, alias="current", wanted=version, serves=(version,), seen=utc_now())
    store.objects.put(live_key(model, loader), content_of(report))


def prune_day_before(monkeypatch: pytest.MonkeyPatch, store: Store) -> Pruning:
    """Prune forty days later all that nothing holds, and have the day pass in which it can still be read."""
    let_pass(monkeypatch, store, 40)
    done = Pruner(store, Retention(keep=1, seconds=0), dry=False, settle_seconds=0).prune()
    let_pass(monkeypatch, store, 1.1)
    return done


def let_pass(monkeypatch: pytest.MonkeyPatch, store: Store, days: float) -> None:
    """Have the store's clock say so many days more from now on, as if all that is there were older."""
    now = store.objects.now
    monkeypatch.setattr(store.objects, "now", lambda: now() + days * DAY)
