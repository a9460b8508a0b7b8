"""What a store need not keep any longer: versions beyond its retention, and what belongs to none.

In this order, so that a kill at any moment leaves nothing that looks whole and is not: the catalogue says that a
version is pruned, in the one write that sees that no alias and no pin holds it; then its list of files goes; then the
contents that no list and no entry of a shared cache names. Lists and contents younger than `GRACE_SECONDS` stay,
whatever names them: a publication writes them before the catalogue knows of it, and gives those that it finds there a
new age.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Literal

from plansmith.errors import RepositoryError
from plansmith.records.model import Record
from plansmith.stores.layout import (
    CACHE,
    GRACE_SECONDS,
    LIVE,
    OBJECTS,
    RELEASES,
    name_in,
    object_key,
    release_key,
)
from plansmith.stores.maintenance.retention import LIVE_SECONDS, Retention, RetentionDecision, fates, without
from plansmith.stores.reader import in_parallel, live_reports
from plansmith.stores.records import Catalogue, StoredVersion
from plansmith.stores.store import Store
from plansmith.system.aws.s3.objects import Held

_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_AT_ONCE = 100
"""Contents are looked at once more, so many at a time, right before they go."""

Kind = Literal["version", "list", "content", "report"]


class PrunedItem(Record):
    """One thing that went, or would go: a version as MODEL@VERSION, the rest by its key; why; and its size."""

    kind: Kind
    name: str
    why: str
    bytes: int = 0


class Staying(Record):
    """A version that stands, and why."""

    model: str
    version: int
    why: str


class Pruning(Record):
    """What came of it; `freed_bytes`: of the contents that went."""

    place: str
    gone: tuple[PrunedItem, ...]
    staying: tuple[Staying, ...]
    freed_bytes: int


class Pruner:
    """Finds what a store need not keep, and takes it away; uploads that were never ended, too.

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
        self._staying: list[Staying] = []
        self._gone: list[PrunedItem] = []

    def prune(self) -> Pruning:
        """All models, then what belongs to none.

        Raises:
            RepositoryError: a document is lost or damaged, so that it is not known what it needs; or a release was
                published meanwhile of contents that just went.
        """
        catalogues = [self._mark(model) for model in self._store.models()]
        needed = self._needed_by(catalogues)
        standing = {release_key(one.model, version.digest) for one in catalogues for version in one.standing()}
        lists = list(self._objects.below(RELEASES))
        unlisted = [held for held in lists if held.key not in standing and self._may_go(held)]
        left = {held.key for held in lists} - {held.key for held in unlisted}
        contents = [held for held in self._objects.below(OBJECTS) if self._may_go(held)]
        needed |= self._named(left - standing)
        contents = [held for held in contents if name_in(held.key) not in needed]
        quiet = [
            held
            for held in self._objects.below(LIVE)
            if held.changed < self._now - LIVE_SECONDS and self._is_meant(held.key)
        ]
        if not self._dry:
            unlisted, contents = self._remove_lists(unlisted), self._remove_contents(contents)
            self._objects.remove(held.key for held in quiet)
        else:
            self._note(*map(_list, unlisted), *map(_content, contents))
        self._note(*(PrunedItem(kind="report", name=held.key, why="its loader is gone") for held in quiet))
        if not self._dry:
            self._objects.give_up(self._now - GRACE_SECONDS)
            self._require_whole(left, {name_in(held.key) for held in contents})
        freed = sum(held.bytes for held in contents)
        return Pruning(place=self._store.place, gone=tuple(self._gone), staying=tuple(self._staying), freed_bytes=freed)

    def _note(self, *gone: PrunedItem) -> None:
        self._gone += gone
        for one in gone if not self._dry else ():
            self._went(one)

    def _mark(self, model: str) -> Catalogue:
        """Have the catalogue say which versions of a model are given up."""
        seen = live_reports(self._store, model)
        found: list[RetentionDecision] = []

        def changed(old: Catalogue) -> Catalogue:
            found[:] = [self._fate(model, one) for one in fates(old, self._retention, seen, self._now)]
            return without(old, found)

        after = changed(self._store.catalogue(model)) if self._dry else self._store.change(model, changed)
        for fate in found:
            version = fate.version
            if fate.stays is None:
                why = f"published {version.published[:10]}, and nothing holds it"
                self._note(PrunedItem(kind="version", name=_name(model, version), why=why))
            else:
                self._staying.append(Staying(model=model, version=version.version, why=fate.stays))
        return after

    def _needed_by(self, catalogues: Iterable[Catalogue]) -> set[str]:
        """The SHA-256 of all contents of the versions that stand; what their lists say is seen to be true."""
        standing = [(one.model, version) for one in catalogues for version in one.standing()]
        releases = in_parallel(lambda one: self._store.release(*one), standing)
        return {file.sha256 for release in releases for file in release.files}

    def _named(self, lists: Iterable[str]) -> set[str]:
        """Those that other lists and shared caches name: whatever in a document looks like one."""
        shared = [held.key for held in self._objects.below(CACHE) if held.key not in self._ignoring]
        return set().union(*in_parallel(self._named_in, [*lists, *shared]))

    def _named_in(self, key: str) -> set[str]:
        found = self._objects.read(key)
        return {digest.decode() for digest in _DIGEST.findall(found.content)} if found is not None else set()

    def _remove_lists(self, unlisted: Iterable[Held]) -> list[Held]:
        """Take lists away, but for those of releases that were published again since they were found; which went."""
        removed = []
        for held in unlisted:
            now, found = self._objects.find(held.key), self._objects.read(held.key)
            if now is None or found is None or not self._is_old(now):
                continue
            self._objects.remove([held.key])
            if held.key in self._standing_lists(held.key.split("/")[1]):
                self._objects.put(held.key, found.content)
            else:
                removed.append(held)
                self._note(_list(held))
        return removed

    def _standing_lists(self, model: str) -> set[str]:
        catalogue = self._store.known(model)
        return {release_key(model, version.digest) for version in catalogue.standing()} if catalogue else set()

    def _remove_contents(self, contents: Sequence[Held]) -> list[Held]:
        """Take contents away, but for those that a publication gave a new age since they were found; which went."""
        removed: list[Held] = []
        for start in range(0, len(contents), _AT_ONCE):
            some = [held.key for held in contents[start : start + _AT_ONCE]]
            still = [held for held in in_parallel(self._objects.find, some) if held is not None and self._is_old(held)]
            self._objects.remove(held.key for held in still)
            removed += still
            self._note(*map(_content, still))
        return removed

    def _require_whole(self, known: set[str], removed: set[str]) -> None:
        """See that no release came meanwhile that needs what went, found by its publication a moment before that."""
        if removed:
            time.sleep(self._settle_seconds)
        for held in self._objects.below(RELEASES):
            needed = removed & self._named_in(held.key) if held.key not in known else set()
            if None in in_parallel(self._objects.find, map(object_key, needed)):
                _, model, _ = held.key.split("/")
                raise RepositoryError(
                    f"a release of {model} was published to {self._store.place} while what it needs was pruned",
                    remedy=f"publish it again: plansmith publish {model} {self._store.typed} --resend",
                )

    def _fate(self, model: str, fate: RetentionDecision) -> RetentionDecision:
        """The fate of a version, which stays where it is not meant."""
        if fate.stays is None and not self._is_meant(_name(model, fate.version)):
            return replace(fate, stays="not among those that were found before")
        return fate

    def _may_go(self, held: Held) -> bool:
        return self._is_old(held) and self._is_meant(held.key)

    def _is_old(self, held: Held) -> bool:
        return held.changed < self._now - GRACE_SECONDS

    def _is_meant(self, name: str) -> bool:
        return self._only is None or name in self._only


def _list(held: Held) -> PrunedItem:
    return PrunedItem(kind="list", name=held.key, why="no version has it")


def _content(held: Held) -> PrunedItem:
    return PrunedItem(kind="content", name=held.key, why="nothing needs it", bytes=held.bytes)


def _name(model: str, version: StoredVersion) -> str:
    return f"{model}@{version.version}"
