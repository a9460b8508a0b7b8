"""Shared step cache: entries that machines exchange, with their files among the contents of a store.

An entry is written when all of its files are there, and each file is verified when it is fetched. What is damaged is
told, taken away and built again. A lease keeps two machines from building one key at once; it saves work and protects
nothing, as an entry is right whoever made it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from plansmith import __version__
from plansmith.compilers.trt.timing_cache import MOST_FILES, Key, Loan, TimingCaches, name_of, sha256_of
from plansmith.config.engine_options import SHARED_CACHE_VARIABLE
from plansmith.config.messages import validation_message
from plansmith.errors import PlansmithError, UsageError
from plansmith.formatting import format_bytes
from plansmith.records.destination import Location
from plansmith.records.engine import BuildFlags
from plansmith.records.model import SCHEMA_VERSION, FileEntry, Record
from plansmith.steps.cache.local import CacheEntry, StageCache
from plansmith.stores.backend.documents import Waiting, content_of, forget_leases, leased, utc_now
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.initialize import require_store
from plansmith.stores.layout import CACHE, GRACE_SECONDS, TIMING, entry_key, is_sha256, name_in, object_key, timing_key
from plansmith.stores.prune import PrunedItem, Pruner, Retention
from plansmith.stores.publication import Tally
from plansmith.stores.reader import in_parallel
from plansmith.stores.store import Store, open_store
from plansmith.stores.transfer import Damaged, TransferProgress, fetch_file, fetch_files, send_contents
from plansmith.system.aws.bucket import Document, ObjectMetadata
from plansmith.system.digest import digest_of, digest_of_files
from plansmith.system.files import STAGING, staging_folder

R = TypeVar("R")

_LEFT_ALONE_SECONDS = 300.0
_SECONDS_PER_DAY = 86400.0

Moving = Callable[[str, str, float], None]
"""Told which step something is sent or fetched for, what in words, and which part of it, from 0 to 1, is there."""

_KINDS = {CACHE: "cache entry", TIMING: "timing cache"}
_EVERY_VERSION = Retention(keep=sys.maxsize, seconds=0)


class SharedPlace:
    """Shared store access of a compile: optional; after a failure it pauses for a while, reported once.

    Args:
        place: the store; made when something is first brought there.
        relative_to: the folder that relative paths start from.
        notice: told in one line why it cannot be used.
        only_looks: nothing is written, not even that it is a store.
    """

    def __init__(
        self, place: Location, relative_to: Path, notice: Callable[[str], None], *, only_looks: bool = False
    ) -> None:
        self.notice = notice
        self.only_looks = only_looks
        self._place = place
        self._relative_to = relative_to
        self._objects: Objects | None = None
        self._is_reported = False
        self._left_alone_until = 0.0

    @property
    def label(self) -> str:
        """The location, formatted for users."""
        return self._objects.place if self._objects is not None else self._place.to

    def attempt(self, work: Callable[[Objects], R], otherwise: R) -> R:
        """Return the result of work on the store's objects; `otherwise` if the store fails.

        Work that failed is not done later: whoever asks for it next decides anew.
        """
        if time.monotonic() < self._left_alone_until:
            return otherwise
        try:
            return work(self._opened())
        except (PlansmithError, OSError) as error:  # OSError: of a folder that another machine lends
            self._left_alone_until = time.monotonic() + _LEFT_ALONE_SECONDS
            if not self._is_reported:
                self._is_reported = True
                reason = error.message if isinstance(error, PlansmithError) else error
                self.notice(f"the shared cache {self.label} cannot be used, and is left alone: {reason}")
            return otherwise

    def _opened(self) -> Objects:
        if self._objects is None:
            store = open_store(self._place, self._relative_to)
            if not self.only_looks:
                require_store(store)
            self._objects = store.objects
        return self._objects


def keep_young(objects: Objects, item: ObjectMetadata) -> None:
    """Record the use of an entry, to protect it from collection by age; once a day is enough."""
    if objects.now() - item.changed > _SECONDS_PER_DAY:
        objects.copy(item.key, item.key)


def find_shared_place(
    location: Location | None, relative_to: Path, notice: Callable[[str], None], *, only_looks: bool = False
) -> SharedPlace | None:
    """Return the shared store of the spec, otherwise of the environment; None without one.

    Args:
        location: the spec's.
        relative_to: the folder that relative paths in the spec start from.
        notice: told when the store cannot be used.
        only_looks: nothing may be written there.

    Raises:
        UsageError: what the environment names is no place.
    """
    named = os.environ.get(SHARED_CACHE_VARIABLE, "")
    if location is None and not named:
        return None
    if location is not None:
        return SharedPlace(location, relative_to, notice, only_looks=only_looks)
    try:
        return SharedPlace(Location(to=named), Path.cwd(), notice, only_looks=only_looks)
    except ValidationError as invalid:
        message = "; ".join(validation_message(error) for error in invalid.errors())
        raise UsageError(
            f"{SHARED_CACHE_VARIABLE}: {message}",
            remedy=f"export {SHARED_CACHE_VARIABLE}=s3://bucket/prefix, or a folder",
        ) from None


class SharedEntry(Record):
    """Shared cache entry of a finished step: its record as JSON fields, its files, the digest of both."""

    schema_version: int = SCHEMA_VERSION
    digest: str
    record: dict[str, Any]
    files: tuple[FileEntry, ...]
    plansmith: str
    made: str


class SharedCache:
    """Shared stage cache, in addition to each machine's own; if it fails, steps are built locally.

    Args:
        place: where they lie.
        moving: told what is on its way.
    """

    def __init__(self, place: SharedPlace, moving: Moving = lambda *_: None) -> None:
        self.place = place
        self._moving = moving
        self._local_paths: dict[str, Path] = {}
        self._brought: dict[str, int] = {}

    def holds(self, step: str, key: str) -> bool:
        """Whether a key has an entry, intact or not."""
        return self.place.attempt(lambda objects: objects.find(entry_key(step, key)) is not None, otherwise=False)

    def bring(self, step: str, key: str, cache: StageCache) -> CacheEntry | None:
        """Fetch an entry into the local cache, whose lock of the key the caller holds; None if there is none.

        Args:
            step: the step's name.
            key: the key.
            cache: this machine's.
        """
        return self.place.attempt(lambda objects: self._fetched(objects, step, key, cache), otherwise=None)

    def bring_or_make(
        self, step: str, key: str, cache: StageCache, make: Callable[[], CacheEntry], waiting: Waiting
    ) -> tuple[CacheEntry, bool]:
        """Fetch an entry, or build it while no other machine does; returns whether it existed.

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
        """Upload an entry of the local cache for other machines; if it exists, record its use.

        Args:
            step: the step's name.
            key: the key.
            entry: of the key, whole.
            anew: it takes the place of the one that is there.
        """
        self._know(entry)
        self.place.attempt(lambda objects: self._sent(objects, step, key, entry, anew=anew), otherwise=None)

    def close(self) -> None:
        """Report what was fetched from other machines."""
        if self._brought:
            size = format_bytes(sum(self._brought.values()))
            self.place.notice(f"from the shared cache {self.place.label}: {', '.join(self._brought)} ({size})")
            self._brought.clear()

    @contextmanager
    def _turn(self, step: str, key: str, waiting: Waiting) -> Iterator[None]:
        """Hold the lease for a cache key: no other machine builds it meanwhile, as far as the store can ensure that."""

        def take(objects: Objects) -> None:
            if objects.abilities.is_conditional:
                stack.enter_context(leased(objects, f"{step}/{key}", waiting=waiting))

        with ExitStack() as stack:
            self.place.attempt(take, otherwise=None)
            yield

    def _fetched(self, objects: Objects, step: str, key: str, cache: StageCache) -> CacheEntry | None:
        at = entry_key(step, key)
        existing = objects.find(at)
        document = objects.read(at) if existing is not None else None
        if existing is None or document is None:
            return None
        shared_entry = _parse_entry(document)
        if shared_entry is None:
            self._discard(objects, at, document, "it cannot be read")
            return None
        candidates = [
            (file, self._local_paths[file.sha256]) for file in shared_entry.files if file.sha256 in self._local_paths
        ]
        local = {file.sha256: path for file, path in candidates if cache.has(path, file)}
        size = sum({file.sha256: file.bytes for file in shared_entry.files if file.sha256 not in local}.values())
        came = self._tally(step, f"fetching from {objects.place}")
        came.begin(size)
        with cache.staging() as staged:
            try:
                fetch_files(objects, shared_entry.files, staged, came.add, local)
            except Damaged as damaged:
                problem = f"{damaged.file.path} is {'lost' if damaged.lost else 'not what it was'}"
                self._discard(objects, at, document, problem, object_key(damaged.file.sha256))
                return None
            entry = cache.publish(step, key, staged, shared_entry.record, hashed_files=shared_entry.files)
        self.place.attempt(lambda objects: keep_young(objects, existing), otherwise=None)
        self._know(entry)
        self._brought[step] = self._brought.get(step, 0) + size
        return entry

    def _sent(self, objects: Objects, step: str, key: str, entry: CacheEntry, *, anew: bool) -> None:
        at = entry_key(step, key)
        existing = objects.find(at)
        if existing is not None and not anew:
            keep_young(objects, existing)
            return
        went = self._tally(step, f"sending to {objects.place}")
        send_contents(objects, entry.folder, entry.files, TransferProgress(went.begin, went.add))
        shared_entry = SharedEntry(
            digest=entry.digest, record=entry.record, files=entry.files, plansmith=__version__, made=utc_now()
        )
        objects.put(at, content_of(shared_entry))

    def _discard(self, objects: Objects, at: str, document: Document, problem: str, *contents: str) -> None:
        """Delete a damaged entry, unless another machine has rebuilt it."""
        self.place.notice(f"the shared {at} is damaged ({problem}): building it again")
        current = objects.read(at)
        if current is not None and current.tag == document.tag:
            objects.remove([at, *contents])

    def _tally(self, step: str, label: str) -> Tally:
        return Tally(label, lambda done, share: self._moving(step, done, share or 0.0))

    def _know(self, entry: CacheEntry) -> None:
        """Register the files of this entry, so that later entries reuse identical ones locally."""
        for file in entry.files:
            self._local_paths.setdefault(file.sha256, entry.folder / file.path)


def _parse_entry(document: Document) -> SharedEntry | None:
    """Parse an entry's metadata if they are intact."""
    try:
        entry = SharedEntry.model_validate_json(document.content)
    except ValueError:
        return None
    return entry if entry.digest == digest_of([entry.record, digest_of_files(entry.files)]) else None


class SharedTimingCaches(TimingCaches):
    """Shared timing caches of one artifacts folder: merge timings of other machines, and upload new ones.

    Args:
        root: as for `TimingCaches`.
        shared: where the others are met.
    """

    def __init__(self, root: Path, shared: SharedPlace) -> None:
        super().__init__(root)
        self._shared = shared

    @contextmanager
    def lent(self, key: Key, flags: BuildFlags) -> Iterator[Loan]:
        """As for `TimingCaches`, merged with the timings of other machines; fetches an editable cache once."""
        with self._locked(key):
            names = set(self._parts(key, edited=flags.editable_timing_cache)[0])
        if not (flags.editable_timing_cache and names):
            self._shared.attempt(lambda objects: self._fetch(objects, key, names), otherwise=None)
        with super().lent(key, flags) as loan:
            yield loan

    def take_back(self, key: Key, loan: Loan) -> None:
        """As for `TimingCaches`, and upload it for other machines."""
        super().take_back(key, loan)
        if not loan.fixed and loan.is_changed:
            self._shared.attempt(lambda objects: self._send(objects, key, loan), otherwise=None)

    def _fetch(self, objects: Objects, key: Key, names: Container[str]) -> None:
        """Fetch timing caches that are not known locally."""
        with staging_folder(self._subfolder(STAGING)) as folder:
            came = []
            for item in _files(objects, key):
                staged = folder / name_of(key, name_in(item.key))
                if staged.name not in names and self._came(objects, item, staged):
                    came.append(staged)
            if came:
                self._keep(key, came, instead_of=())

    def _came(self, objects: Objects, item: ObjectMetadata, target: Path) -> bool:
        """Fetch a file; one that another machine deletes meanwhile is skipped, and a damaged one is deleted."""
        file = FileEntry(path=target.name, bytes=item.bytes, sha256=name_in(item.key))
        try:
            fetch_file(objects, item.key, file, target)
        except Damaged as damaged:
            if not damaged.lost:
                self._shared.notice(f"the shared {item.key} is damaged, and is not used")
                objects.remove([item.key])
            return False
        keep_young(objects, item)
        return True

    def _send(self, objects: Objects, key: Key, loan: Loan) -> None:
        digest = sha256_of(loan.file)
        ours = timing_key(key.name, digest)
        objects.send(loan.file, ours, digest)
        theirs = [item for item in _files(objects, key) if item.key != ours]
        begun = [item for item in theirs if name_of(key, name_in(item.key)) in loan.origin]
        remaining = sorted((item for item in theirs if item not in begun), key=lambda item: -item.bytes)
        objects.remove(item.key for item in (*begun, *remaining[MOST_FILES - 1 :]))


def _files(objects: Objects, key: Key) -> list[ObjectMetadata]:
    return [item for item in objects.below(timing_key(key.name)) if is_sha256(name_in(item.key))]


@dataclass(frozen=True)
class Unused:
    """Unused item, deleted or to be deleted: its key, and its size in bytes."""

    kind: str
    key: str
    why: str
    bytes: int


def collect_shared(
    store: Store,
    older_than_seconds: float,
    *,
    dry: bool,
    only: Container[str] | None = None,
    went: Callable[[Unused], None] = lambda _: None,
) -> list[Unused]:
    """Delete entries that are unused for the time limit, and contents that no other entry and no release needs.

    Contents younger than a day stay, as what needs them may be on its way; so do all versions of releases.

    Args:
        store: where machines share.
        older_than_seconds: by the store's clock.
        dry: only find it; nothing is written.
        only: keys of what may go; everything where it is None.
        went: given each thing when it is gone.

    Raises:
        RepositoryError: the store refuses.
        EnvironmentFault: the store cannot be reached.
    """
    objects = store.objects
    oldest = objects.now() - older_than_seconds
    items = [
        item
        for prefix in _KINDS
        for item in objects.below(prefix)
        if item.changed <= oldest and (only is None or item.key in only)
    ]
    if not dry:
        again = in_parallel(lambda item: objects.find(item.key), items)
        items = [item for item in again if item is not None and item.changed <= oldest]
        objects.remove(item.key for item in items)
        for leftover in _unused(items):
            went(leftover)
        forget_leases(objects, GRACE_SECONDS)
    pruner = Pruner(
        store,
        _EVERY_VERSION,
        dry=dry,
        ignoring={item.key for item in items},
        only=only,
        went=lambda leftover: went(_as_unused(leftover)),
    )
    return [*_unused(items), *map(_as_unused, pruner.prune().gone)]


def _as_unused(item: PrunedItem) -> Unused:
    return Unused(item.kind, item.name, item.why, item.bytes)


def _unused(objects: list[ObjectMetadata]) -> Iterator[Unused]:
    for item in objects:
        kind = next(kind for prefix, kind in _KINDS.items() if item.key.startswith(prefix))
        yield Unused(kind, item.key, "not used for so long", item.bytes)
