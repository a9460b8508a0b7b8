"""Pruning of a store: versions beyond its retention, and objects that belong to no version.

In this order, so that a kill at any moment leaves nothing that looks whole and is not: the catalogue says that a
version is pruned, in the one write that sees that no alias and no pin holds it; then its list of files goes; then the
contents that no list and no entry of a shared cache names. Lists and contents younger than `GRACE_SECONDS` stay,
whatever names them: a publication writes them before the catalogue knows of it, and gives those that it finds there a
new age. It then waits for a pruner that is at work, which may have seen the old age, and looks again. What belongs to a
version stays for as long after it was pruned: somebody who found it before that may still be reading.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from plansmith.errors import RepositoryError
from plansmith.formatting import seconds_of, utc_text
from plansmith.records.model import Record
from plansmith.stores.backend.documents import pruning
from plansmith.stores.layout import CACHE, GRACE_SECONDS, LIVE, OBJECTS, RELEASES, name_in, object_key, release_key
from plansmith.stores.reader import AgedReport, in_parallel, live_reports
from plansmith.stores.records import Catalogue, StoredVersion, line_before
from plansmith.stores.store import Store
from plansmith.system.aws.bucket import ObjectMetadata

LIVE_SECONDS = 7 * 24 * 3600
"""What a loader said to be live counts as such for so long after its last report: it goes on serving while it cannot
reach the store."""

_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_AT_ONCE = 100
"""Contents are looked at once more, so many at a time, right before they go."""

Kind = Literal["version", "list", "content", "report"]


@dataclass(frozen=True)
class Retention:
    """Retention policy: keeps the newest `keep` versions, and those published within `seconds`."""

    keep: int
    seconds: float


@dataclass(frozen=True)
class RetentionDecision:
    """Retention decision for a version that is not pruned: `stays` is why it is kept, None if it is to be pruned."""

    version: StoredVersion
    stays: str | None


def fates(
    catalogue: Catalogue, retention: Retention, reports: Iterable[AgedReport], now: float
) -> list[RetentionDecision]:
    """Return the retention decisions for the versions that are not pruned, in ascending order.

    Args:
        catalogue: of the model.
        retention: what stays in any case.
        reports: what loaders reported.
        now: seconds since 1970 by the store's clock.
    """
    reasons = {number: f"pinned: {reason}" for number, reason in _pinned(catalogue).items()}
    reasons = _served(reports) | reasons | _aliased(catalogue)
    standing = catalogue.standing()
    newest = {version.version for version in standing[-retention.keep :]} if retention.keep else set()
    decisions = []
    for version in standing:
        stays = reasons.get(version.version)
        if stays is None and version.version in newest:
            stays = f"one of the newest {retention.keep}"
        if stays is None and seconds_of(version.published) > now - retention.seconds:
            stays = "young"
        decisions.append(RetentionDecision(version, stays))
    return decisions


def without(catalogue: Catalogue, decisions: Iterable[RetentionDecision], clock: Callable[[], float]) -> Catalogue:
    """Return the catalogue with the versions marked as pruned, by the given clock, that the decisions do not keep."""
    removed = {fate.version.version for fate in decisions if fate.stays is None}
    if not removed:
        return catalogue
    moment = utc_text(clock())
    versions = tuple(
        version.model_copy(update={"pruned": moment}) if version.version in removed else version
        for version in catalogue.versions
    )
    return catalogue.model_copy(update={"versions": versions})


def _pinned(catalogue: Catalogue) -> Mapping[int, str]:
    return {pin.version: pin.reason for pin in catalogue.pins}


def _aliased(catalogue: Catalogue) -> dict[int, str]:
    """Return the versions that aliases point to, and those that a rollback of each would restore."""
    reasons: dict[int, str] = {}
    for alias in catalogue.aliases:
        for number in line_before(catalogue, alias)[-1:]:
            reasons.setdefault(number, f"a rollback of {alias} leads to it")
    return reasons | {pointer.version: f"{alias} stands for it" for alias, pointer in catalogue.aliases.items()}


def _served(reports: Iterable[AgedReport]) -> dict[int, str]:
    """Return the versions that loaders serve or are about to serve."""
    return {
        number: f"live at {entry.report.loader}"
        for entry in reports
        if entry.seconds_ago < LIVE_SECONDS
        for number in (entry.report.wanted, *entry.report.serves)
    }


class PrunedItem(Record):
    """One pruned item, or one that would be: a version as MODEL@VERSION, the rest by key; with reason and size."""

    kind: Kind
    name: str
    why: str
    bytes: int = 0


class Staying(Record):
    """A version that is kept, and why."""

    model: str
    version: int
    why: str


class Pruning(Record):
    """Result of pruning.

    Attributes:
        freed_bytes: size of the deleted contents.
        waiting_bytes: size of those that only versions pruned in the last day need.
        waiting_until: ISO 8601 time from which a later prune deletes them.
    """

    place: str
    gone: tuple[PrunedItem, ...]
    staying: tuple[Staying, ...]
    freed_bytes: int
    waiting_bytes: int
    waiting_until: str | None


class Pruner:
    """Pruner: finds and deletes what a store need not keep, including unfinished uploads.

    Args:
        store: whose.
        retention: what stays in any case.
        dry: only find it; nothing is written.
        settle_seconds: how long to wait, once contents are gone, before it is looked whether a release needs them that
            was published at this very moment.
        ignoring: keys of what shared caches need no longer.
        only: names, as in `PrunedItem`, of what may go; everything where it is None.
        went: given each thing when it is gone.
    """

    def __init__(
        self,
        store: Store,
        retention: Retention,
        *,
        dry: bool,
        settle_seconds: float = 3.0,
        ignoring: Container[str] = (),
        only: Container[str] | None = None,
        went: Callable[[PrunedItem], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._only = only
        self._objects = store.objects
        self._retention = retention
        self._dry = dry
        self._settle_seconds = settle_seconds
        self._ignoring = ignoring
        self._now = store.objects.now()
        self._went = went
        self._require_lease: Callable[[], None] = lambda: None
        self._staying: list[Staying] = []
        self._removed_items: list[PrunedItem] = []

    def prune(self) -> Pruning:
        """Prune all models, then the objects that belong to none; one at a time does so in a store.

        Raises:
            RepositoryError: a document is lost or damaged, so that it is not known what it needs; or a release was
                published meanwhile of contents that just went.
        """
        if self._dry:
            return self._prune()
        with pruning(self._objects) as self._require_lease:
            self._now = self._objects.now()
            return self._prune()

    def _prune(self) -> Pruning:
        catalogues = [self._mark(model) for model in self._store.models()]
        needed = self._needed_by(catalogues)
        standing = _lists(catalogues, lambda version: version.pruned is None)
        recent = _lists(catalogues, self._is_recently_pruned) - standing
        lists = list(self._objects.below(RELEASES))
        unlisted = [item for item in lists if item.key not in standing | recent and self._may_go(item)]
        left = {item.key for item in lists} - {item.key for item in unlisted}
        contents = [item for item in self._objects.below(OBJECTS) if self._may_go(item)]
        needed |= self._named(left - standing - recent) | self._named_by_caches()
        contents = [item for item in contents if name_in(item.key) not in needed]
        readable = self._named(recent)
        waiting = [item for item in contents if name_in(item.key) in readable]
        contents = [item for item in contents if name_in(item.key) not in readable]
        quiet = [
            item
            for item in self._objects.below(LIVE)
            if item.changed < self._now - LIVE_SECONDS and self._is_meant(item.key)
        ]
        if not self._dry:
            unlisted, contents = self._remove_lists(unlisted), self._remove_contents(contents)
            self._objects.remove(item.key for item in quiet)
        else:
            self._note(*map(_list, unlisted), *map(_content, contents))
        self._note(*(PrunedItem(kind="report", name=item.key, why="its loader is gone") for item in quiet))
        if not self._dry:
            self._objects.give_up(self._now - GRACE_SECONDS)
            self._require_whole(left, {name_in(item.key) for item in contents})
        return Pruning(
            place=self._store.place,
            gone=tuple(self._removed_items),
            staying=tuple(self._staying),
            freed_bytes=sum(item.bytes for item in contents),
            waiting_bytes=sum(item.bytes for item in waiting),
            waiting_until=self._end_of_grace(catalogues) if waiting else None,
        )

    def _note(self, *items: PrunedItem) -> None:
        self._removed_items += items
        for item in items if not self._dry else ():
            self._went(item)

    def _mark(self, model: str) -> Catalogue:
        """Mark the given versions of a model as pruned in the catalogue."""
        reports = live_reports(self._store, model)
        decisions: list[RetentionDecision] = []

        def changed(old: Catalogue) -> Catalogue:
            decisions[:] = [self._fate(model, decision) for decision in fates(old, self._retention, reports, self._now)]
            return without(old, decisions, self._objects.now)

        after = changed(self._store.catalogue(model)) if self._dry else self._store.change(model, changed)
        for fate in decisions:
            version = fate.version
            if fate.stays is None:
                why = f"published {version.published[:10]}, and nothing holds it"
                self._note(PrunedItem(kind="version", name=_name(model, version), why=why))
            else:
                self._staying.append(Staying(model=model, version=version.version, why=fate.stays))
        return after

    def _needed_by(self, catalogues: Iterable[Catalogue]) -> set[str]:
        """Return the SHA-256 of all contents of the remaining versions; their file lists are verified."""
        standing = [(entry.model, version) for entry in catalogues for version in entry.standing()]
        releases = in_parallel(lambda entry: self._store.release(*entry), standing)
        return {file.sha256 for release in releases for file in release.files}

    def _named_by_caches(self) -> set[str]:
        return self._named(item.key for item in self._objects.below(CACHE) if item.key not in self._ignoring)

    def _named(self, keys: Iterable[str]) -> set[str]:
        """Return the contents that lists and entries of caches refer to: anything that looks like a SHA-256."""
        return set().union(*in_parallel(self._named_in, list(keys)))

    def _named_in(self, key: str) -> set[str]:
        document = self._objects.read(key)
        return {digest.decode() for digest in _DIGEST.findall(document.content)} if document is not None else set()

    def _remove_lists(self, unlisted: Iterable[ObjectMetadata]) -> list[ObjectMetadata]:
        """Delete file lists, except of releases republished since they were found; return the deleted ones."""
        removed = []
        for item in unlisted:
            self._require_lease()
            now, document = self._objects.find(item.key), self._objects.read(item.key)
            if now is None or document is None or not self._is_old(now):
                continue
            self._objects.remove([item.key])
            if item.key in self._standing_lists(item.key.split("/")[1]):
                self._objects.put(item.key, document.content)
            else:
                removed.append(item)
                self._note(_list(item))
        return removed

    def _standing_lists(self, model: str) -> set[str]:
        catalogue = self._store.find_catalogue(model)
        return {release_key(model, version.digest) for version in catalogue.standing()} if catalogue else set()

    def _remove_contents(self, contents: Sequence[ObjectMetadata]) -> list[ObjectMetadata]:
        """Delete contents, except those that a publication renewed since they were found; return the deleted ones."""
        removed: list[ObjectMetadata] = []
        for start in range(0, len(contents), _AT_ONCE):
            self._require_lease()
            some = [item.key for item in contents[start : start + _AT_ONCE]]
            still = [item for item in in_parallel(self._objects.find, some) if item is not None and self._is_old(item)]
            self._objects.remove(item.key for item in still)
            removed += still
            self._note(*map(_content, still))
        return removed

    def _require_whole(self, keys: set[str], removed: set[str]) -> None:
        """Check that no release published meanwhile needs the deleted contents, found just before their deletion."""
        if removed:
            time.sleep(self._settle_seconds)
        for item in self._objects.below(RELEASES):
            needed = removed & self._named_in(item.key) if item.key not in keys else set()
            if None in in_parallel(self._objects.find, map(object_key, needed)):
                _, model, _ = item.key.split("/")
                raise RepositoryError(
                    f"a release of {model} was published to {self._store.place} while what it needs was pruned",
                    remedy=f"publish it again: plansmith publish {model} {self._store.typed} --resend",
                )

    def _fate(self, model: str, fate: RetentionDecision) -> RetentionDecision:
        """Return the fate of a version, which is kept if it is not selected."""
        if fate.stays is None and not self._is_meant(_name(model, fate.version)):
            return replace(fate, stays="not among those that were found before")
        return fate

    def _may_go(self, item: ObjectMetadata) -> bool:
        return self._is_old(item) and self._is_meant(item.key)

    def _is_old(self, item: ObjectMetadata) -> bool:
        return item.changed < self._now - GRACE_SECONDS

    def _is_recently_pruned(self, version: StoredVersion) -> bool:
        return version.pruned is not None and seconds_of(version.pruned) > self._now - GRACE_SECONDS

    def _end_of_grace(self, catalogues: Iterable[Catalogue]) -> str:
        """Return when nobody is taken to read any version that is pruned by now, as an ISO 8601 time."""
        marks = (version.pruned for catalogue in catalogues for version in catalogue.versions)
        return utc_text(max(seconds_of(mark) for mark in marks if mark is not None) + GRACE_SECONDS)

    def _is_meant(self, name: str) -> bool:
        return self._only is None or name in self._only


def _lists(catalogues: Iterable[Catalogue], has: Callable[[StoredVersion], bool]) -> set[str]:
    """Return the keys of the file lists of certain versions."""
    return {
        release_key(catalogue.model, version.digest)
        for catalogue in catalogues
        for version in catalogue.versions
        if has(version)
    }


def _list(item: ObjectMetadata) -> PrunedItem:
    return PrunedItem(kind="list", name=item.key, why="no version has it")


def _content(item: ObjectMetadata) -> PrunedItem:
    return PrunedItem(kind="content", name=item.key, why="nothing needs it", bytes=item.bytes)


def _name(model: str, version: StoredVersion) -> str:
    return f"{model}@{version.version}"
