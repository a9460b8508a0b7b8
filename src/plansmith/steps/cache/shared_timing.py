"""Timing caches that machines share: what builds of a kind measured, wherever they ran.

The files of a key lie under names of their own, their SHA-256, and there is no list of them: so builds on several
machines add what they measured, and take away what they started from, in no order and without a lock.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

from plansmith.compilers.trt.timing_cache import MOST_FILES, Key, Loan, TimingCaches, name_of, sha256_of
from plansmith.records.engine import BuildFlags
from plansmith.records.model import FileEntry
from plansmith.steps.cache.shared_place import SharedPlace, keep_young
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.layout import is_sha256, name_in, timing_key
from plansmith.stores.transfer.download import Damaged, fetch_file
from plansmith.system.aws.s3.objects import Held
from plansmith.system.files import STAGING, staging_folder


class SharedTimingCaches(TimingCaches):
    """The timing caches of one artifacts folder, which take in what other machines measured, and give to them.

    Args:
        root: as for `TimingCaches`.
        shared: where the others are met.
    """

    def __init__(self, root: Path, shared: SharedPlace) -> None:
        super().__init__(root)
        self._shared = shared

    @contextmanager
    def lent(self, key: Key, flags: BuildFlags) -> Iterator[Loan]:
        """As for `TimingCaches`, with all that other machines measured; an editable cache is fetched once."""
        with self._locked(key):
            known = set(self._parts(key, edited=flags.editable_timing_cache)[0])
        if not (flags.editable_timing_cache and known):
            self._shared.attempt(lambda objects: self._fetch(objects, key, known), otherwise=None)
        with super().lent(key, flags) as loan:
            yield loan

    def take_back(self, key: Key, loan: Loan) -> None:
        """As for `TimingCaches`, and give it to the other machines."""
        super().take_back(key, loan)
        if not loan.fixed and loan.is_changed:
            self._shared.attempt(lambda objects: self._send(objects, key, loan), otherwise=None)

    def _fetch(self, objects: Objects, key: Key, known: Container[str]) -> None:
        """Take in what is not known here."""
        with staging_folder(self._made(STAGING)) as folder:
            came = []
            for held in _files(objects, key):
                staged = folder / name_of(key, name_in(held.key))
                if staged.name not in known and self._came(objects, held, staged):
                    came.append(staged)
            if came:
                self._keep(key, came, instead_of=())

    def _came(self, objects: Objects, held: Held, target: Path) -> bool:
        """Fetch a file; one that another machine takes away meanwhile is none, and one that is damaged goes."""
        file = FileEntry(path=target.name, bytes=held.bytes, sha256=name_in(held.key))
        try:
            fetch_file(objects, held.key, file, target)
        except Damaged as damaged:
            if not damaged.lost:
                self._shared.notice(f"the shared {held.key} is damaged, and is not used")
                objects.remove([held.key])
            return False
        keep_young(objects, held)
        return True

    def _send(self, objects: Objects, key: Key, loan: Loan) -> None:
        digest = sha256_of(loan.file)
        ours = timing_key(key.name, digest)
        objects.send(loan.file, ours, digest)
        theirs = [held for held in _files(objects, key) if held.key != ours]
        begun = [held for held in theirs if name_of(key, name_in(held.key)) in loan.origin]
        kept = sorted((held for held in theirs if held not in begun), key=lambda held: -held.bytes)
        objects.remove(held.key for held in (*begun, *kept[MOST_FILES - 1 :]))


def _files(objects: Objects, key: Key) -> list[Held]:
    return [held for held in objects.below(timing_key(key.name)) if is_sha256(name_in(held.key))]
