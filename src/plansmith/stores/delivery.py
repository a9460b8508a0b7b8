"""A release of a repository on its way to a destination, as a person wrote it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plansmith.destinations import CURRENT, Destination, Publication
from plansmith.digest import Digester
from plansmith.errors import RepositoryError
from plansmith.manifest import Manifest
from plansmith.stores.claiming import require_ours
from plansmith.stores.opening import open_store
from plansmith.stores.publication import Terms, plan_release, publish_release
from plansmith.stores.repository_view import keep_view, refresh_view
from plansmith.stores.sending import Onlooker
from plansmith.triton.nesting import repositories_in, repository_around
from plansmith.units import bytes_in_words

_SECONDS_BETWEEN_WORDS = 0.1


@dataclass(frozen=True)
class Outgoing:
    """A release that leaves its repository.

    Args:
        folder: the release.
        manifest: its manifest.
        digester: hashes what the manifest does not list.
    """

    folder: Path
    manifest: Manifest
    digester: Digester


class Delivery:
    """A destination, ready to be asked.

    Args:
        destination: where releases go.
        relative_to: the folder that a relative path starts from.
        apart: folders that it must neither lie in nor hold: the repository, and what compiles work in.

    Raises:
        RepositoryError: the destination overlaps one of them, or any Triton repository.
    """

    def __init__(self, destination: Destination, *, relative_to: Path, apart: Sequence[Path] = ()) -> None:
        self._destination = destination
        self._store = open_store(destination, relative_to)
        if not destination.is_s3:
            _require_apart((relative_to / destination.to).resolve(), apart)

    def require_ours(self, target: str) -> None:
        """See that releases for a target may go there; nothing is written. Errors as for `publish`."""
        require_ours(self._store, target)

    @property
    def place(self) -> str:
        """Where it is, as a person may read it."""
        return self._store.place

    def plan(self, outgoing: Outgoing, terms: Terms) -> Publication:
        """What a publication would do; nothing is written. Errors as for `publish`."""
        return plan_release(self._store, outgoing.folder, outgoing.manifest, outgoing.digester, self._own(terms))

    def publish(
        self, outgoing: Outgoing, terms: Terms, progress: Callable[[str, float | None], None] = lambda *_: None
    ) -> Publication:
        """Bring a release there.

        Args:
            outgoing: the release.
            terms: how it is published; the aliases are the destination's.
            progress: told in words what is done, and which part of it, from 0 to 1, where that is known.

        Raises:
            RepositoryError: what is there refuses it.
            EnvironmentFault: it cannot be reached.
        """
        progress(f"looking at what {self.place} has", None)
        tally = _Tally(self.place, progress)
        made = publish_release(
            self._store,
            outgoing.folder,
            outgoing.manifest,
            outgoing.digester,
            terms=self._own(terms),
            onlooker=Onlooker(begins=tally.begin, moved=tally.add),
        )
        if self._destination.view:
            progress(f"showing it in the repository of {self.place}", None)
            keep_view(self._store, made.model, next(iter(self._destination.aliases), CURRENT))
        else:
            refresh_view(self._store, made.model)
        return made

    def _own(self, terms: Terms) -> Terms:
        return replace(terms, aliases=self._destination.aliases)


class _Tally:
    """Adds up the bytes that threads report, and tells of them now and then."""

    def __init__(self, place: str, progress: Callable[[str, float | None], None]) -> None:
        self._place = place
        self._progress = progress
        self._lock = threading.Lock()
        self._total = self._done = 0
        self._told = 0.0

    def begin(self, total: int) -> None:
        """So many bytes are to go."""
        self._total, self._done = total, 0

    def add(self, count: int) -> None:
        """So many of them went; what was sent again does not count twice."""
        with self._lock:
            self._done = min(self._done + count, self._total)
            now = time.monotonic()
            if now < self._told + _SECONDS_BETWEEN_WORDS and self._done < self._total:
                return
            self._told = now
            words = f"sending to {self._place}, {bytes_in_words(self._done)} of {bytes_in_words(self._total)}"
            self._progress(words, self._done / self._total if self._total else None)


def _require_apart(folder: Path, apart: Sequence[Path]) -> None:
    around, inside = repository_around(folder), repositories_in(folder) if folder.is_dir() else []
    for other in (*apart, *([around] if around is not None else []), *inside):
        if folder.is_relative_to(other.resolve()) or other.resolve().is_relative_to(folder):
            raise RepositoryError(
                f"{folder} cannot take releases: it overlaps {other}, where compiles put theirs",
                remedy="name a folder beside it, for releases that others read",
            )
