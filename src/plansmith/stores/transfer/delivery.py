"""A release of a repository on its way to a destination, as a person wrote it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plansmith.errors import RepositoryError
from plansmith.records.destination import Destination, Publication
from plansmith.records.fingerprint import Fingerprint
from plansmith.records.release import Manifest
from plansmith.stores.fingerprints import write_fingerprint
from plansmith.stores.initialize import require_ours
from plansmith.stores.open import open_store
from plansmith.stores.repository_view import keep_view, refresh_view
from plansmith.stores.transfer.publication import Tally, Terms, plan_release, publish_release
from plansmith.stores.transfer.upload import TransferProgress
from plansmith.system.digest import Digester
from plansmith.triton.repository.nesting import repositories_in, repository_around


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
        terms = self._own(terms)
        made = plan_release(self._store, outgoing.folder, outgoing.manifest, outgoing.digester, terms)
        return made.model_copy(update={"view": self._destination.view})

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
        tally = Tally(f"sending to {self.place}", progress)
        made = publish_release(
            self._store,
            outgoing.folder,
            outgoing.manifest,
            outgoing.digester,
            terms=self._own(terms),
            observer=TransferProgress(begins=tally.begin, moved=tally.add),
        )
        if self._destination.view:
            progress(f"showing it in the repository of {self.place}", None)
            keep_view(self._store, made.model, self._destination.aliases[0])
        else:
            refresh_view(self._store, made.model)
        return made.model_copy(update={"view": self._destination.view})

    def note(self, model: str, digest: str, basis: Fingerprint) -> None:
        """Note there what a release was made from; `digest`: its own there. Errors as for `publish`."""
        write_fingerprint(self._store, model, digest, basis)

    def _own(self, terms: Terms) -> Terms:
        return replace(terms, aliases=self._destination.aliases)


def _require_apart(folder: Path, apart: Sequence[Path]) -> None:
    around, inside = repository_around(folder), repositories_in(folder) if folder.is_dir() else []
    for other in (*apart, *([around] if around is not None else []), *inside):
        if folder.is_relative_to(other.resolve()) or other.resolve().is_relative_to(folder):
            raise RepositoryError(
                f"{folder} cannot take releases: it overlaps {other}, where compiles put theirs",
                remedy="name a folder beside it, for releases that others read",
            )
