"""Finished steps that machines share: entries of the stage cache, their files among the contents of a store.

An entry is written when all of its files are there, and each file is verified when it is fetched. What is damaged is
told, taken away and built again. A lease keeps two machines from building one key at once; it saves work and protects
nothing, as an entry is right whoever made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from plansmith import __version__
from plansmith.formatting import format_bytes
from plansmith.records.model import SCHEMA_VERSION, FileEntry, Record
from plansmith.steps.cache.local import CacheEntry, StageCache
from plansmith.steps.cache.shared_place import SharedPlace, keep_young
from plansmith.stores.backend.documents import content_of, utc_now
from plansmith.stores.backend.leases import Waiting, leased
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.layout import entry_key, object_key
from plansmith.stores.transfer.download import Damaged, fetch_files
from plansmith.stores.transfer.publication import Tally
from plansmith.stores.transfer.upload import TransferProgress, send_contents
from plansmith.system.aws.s3.objects import Document
from plansmith.system.digest import digest_of, digest_of_files

Moving = Callable[[str, str, float], None]
"""Told which step something is sent or fetched for, what in words, and which part of it, from 0 to 1, is there."""


class SharedEntry(Record):
    """A finished step, as an entry of the stage cache: its record as JSON fields, its files, the digest of both."""

    schema_version: int = SCHEMA_VERSION
    digest: str
    record: dict[str, Any]
    files: tuple[FileEntry, ...]
    plansmith: str
    made: str


class SharedCache:
    """The entries that machines share, beside the stage cache of each; without them a step is built here.

    Args:
        place: where they lie.
        moving: told what is on its way.
    """

    def __init__(self, place: SharedPlace, moving: Moving = lambda *_: None) -> None:
        self.place = place
        self._moving = moving
        self._here: dict[str, Path] = {}
        self._brought: dict[str, int] = {}

    def holds(self, step: str, key: str) -> bool:
        """Whether there is an entry of a key, whole or not."""
        return self.place.attempt(lambda objects: objects.find(entry_key(step, key)) is not None, otherwise=False)

    def bring(self, step: str, key: str, cache: StageCache) -> CacheEntry | None:
        """Fetch an entry into this machine's cache, whose lock of the key the caller holds; None where there is none.

        Args:
            step: the step's name.
            key: the key.
            cache: this machine's.
        """
        return self.place.attempt(lambda objects: self._fetched(objects, step, key, cache), otherwise=None)

    def bring_or_make(
        self, step: str, key: str, cache: StageCache, make: Callable[[], CacheEntry], waiting: Waiting
    ) -> tuple[CacheEntry, bool]:
        """Fetch an entry, or make it while no other machine does; whether it was there.

        Args:
            step: the step's name.
            key: the key.
            cache: this machine's.
            make: builds the entry in it.
            waiting: told before this waits for another machine.
        """
        entry = self.bring(step, key, cache)
        if entry is not None:
            return entry, True
        with self._turn(step, key, waiting):
            entry = self.bring(step, key, cache)
            if entry is not None:
                return entry, True
            entry = make()
            self.give(step, key, entry)
        return entry, False

    def give(self, step: str, key: str, entry: CacheEntry, *, anew: bool = False) -> None:
        """Bring an entry of this machine's cache to the others; where there is one, note that it was used.

        Args:
            step: the step's name.
            key: the key.
            entry: of the key, whole.
            anew: it takes the place of the one that is there.
        """
        self._know(entry)
        self.place.attempt(lambda objects: self._sent(objects, step, key, entry, anew=anew), otherwise=None)

    def close(self) -> None:
        """Tell what came from elsewhere."""
        if self._brought:
            size = format_bytes(sum(self._brought.values()))
            self.place.notice(f"from the shared cache {self.place.words}: {', '.join(self._brought)} ({size})")
            self._brought.clear()

    @contextmanager
    def _turn(self, step: str, key: str, waiting: Waiting) -> Iterator[None]:
        """While held, no other machine builds this key, as far as the store can tell."""

        def take(objects: Objects) -> None:
            if objects.abilities.is_conditional:
                held.enter_context(leased(objects, f"{step}/{key}", waiting=waiting))

        with ExitStack() as held:
            self.place.attempt(take, otherwise=None)
            yield

    def _fetched(self, objects: Objects, step: str, key: str, cache: StageCache) -> CacheEntry | None:
        at = entry_key(step, key)
        held = objects.find(at)
        document = objects.read(at) if held is not None else None
        if held is None or document is None:
            return None
        told = _told(document)
        if told is None:
            self._discard(objects, at, document, "it cannot be read")
            return None
        known = [(file, self._here[file.sha256]) for file in told.files if file.sha256 in self._here]
        here = {file.sha256: path for file, path in known if cache.has(path, file)}
        size = sum({file.sha256: file.bytes for file in told.files if file.sha256 not in here}.values())
        came = self._tally(step, f"fetching from {objects.place}")
        came.begin(size)
        with cache.staging() as staged:
            try:
                fetch_files(objects, told.files, staged, came.add, here)
            except Damaged as damaged:
                what = f"{damaged.file.path} is {'lost' if damaged.lost else 'not what it was'}"
                self._discard(objects, at, document, what, object_key(damaged.file.sha256))
                return None
            entry = cache.publish(step, key, staged, told.record, known=told.files)
        self.place.attempt(lambda objects: keep_young(objects, held), otherwise=None)
        self._know(entry)
        self._brought[step] = self._brought.get(step, 0) + size
        return entry

    def _sent(self, objects: Objects, step: str, key: str, entry: CacheEntry, *, anew: bool) -> None:
        at = entry_key(step, key)
        held = objects.find(at)
        if held is not None and not anew:
            keep_young(objects, held)
            return
        went = self._tally(step, f"sending to {objects.place}")
        send_contents(objects, entry.folder, entry.files, TransferProgress(went.begin, went.add))
        told = SharedEntry(
            digest=entry.digest, record=entry.record, files=entry.files, plansmith=__version__, made=utc_now()
        )
        objects.put(at, content_of(told))

    def _discard(self, objects: Objects, at: str, document: Document, what: str, *contents: str) -> None:
        """Take an entry away that is damaged, unless another machine has made it anew."""
        self.place.notice(f"the shared {at} is damaged ({what}): building it again")
        found = objects.read(at)
        if found is not None and found.tag == document.tag:
            objects.remove([at, *contents])

    def _tally(self, step: str, words: str) -> Tally:
        return Tally(words, lambda done, share: self._moving(step, done, share or 0.0))

    def _know(self, entry: CacheEntry) -> None:
        """Have what later entries have in common with this one taken from here."""
        for file in entry.files:
            self._here.setdefault(file.sha256, entry.folder / file.path)


def _told(document: Document) -> SharedEntry | None:
    """What an entry says, if it is what was written."""
    try:
        told = SharedEntry.model_validate_json(document.content)
    except ValueError:
        return None
    return told if told.digest == digest_of([told.record, digest_of_files(told.files)]) else None
