"""The documents of a store, each a small JSON object. Times are ISO 8601 in UTC.

What several writers may write bears a token, so that no two of them write the same bytes and each can tell what it
wrote itself.
"""

from __future__ import annotations

from pydantic import Field

from plansmith.records.destination import Alias
from plansmith.records.model import SCHEMA_VERSION, FileEntry, Record
from plansmith.stores.backend.object_store import Abilities


class Marker(Record):
    """Says that a folder or prefix is a store, what its releases are for, and what can be relied on there.

    `target` is empty until there is a release, where machines share their work.
    """

    schema_version: int = SCHEMA_VERSION
    target: str
    created: str
    abilities: Abilities
    token: str


class StoredRelease(Record):
    """The files of a release: `digest` is that of their names and contents, and names the release.

    `model_version` and `created` are those that it had in the repository that it came from.
    """

    schema_version: int = SCHEMA_VERSION
    model: str
    digest: str
    model_version: int
    created: str
    plansmith: str
    files: tuple[FileEntry, ...]


class StoredVersion(Record):
    """A number of a model, given once and never again, and the digest of its release.

    `pruned`: when its files were given up; None while they stand.
    """

    version: int
    digest: str
    published: str
    pruned: str | None = None


class Pointer(Record):
    """What an alias stands for.

    `line`: the versions that it stood for, in turn, the one that it stands for now last; a rollback goes back along it.
    `share`: what part of the requests the version should get, from 0 to 1, as a hint for whoever routes them.
    """

    line: tuple[int, ...] = Field(min_length=1)
    share: float | None = None
    moved: str

    @property
    def version(self) -> int:
        """The version that it stands for."""
        return self.line[-1]


class Pin(Record):
    """Keeps a version from being pruned."""

    version: int
    reason: str
    pinned: str


class Catalogue(Record):
    """All that is known of one model: its versions, ascending, what its aliases stand for, and what is pinned.

    One document, swapped as a whole: so a version is visible, or pruned, and an alias moved in one write, and none of
    it can go against what another process does at the same moment.
    """

    schema_version: int = SCHEMA_VERSION
    model: str
    versions: tuple[StoredVersion, ...] = ()
    aliases: dict[Alias, Pointer] = Field(default_factory=dict)
    pins: tuple[Pin, ...] = ()
    token: str

    def version(self, number: int) -> StoredVersion | None:
        """One version."""
        return next((version for version in self.versions if version.version == number), None)

    def standing(self) -> list[StoredVersion]:
        """The versions that were not pruned, ascending."""
        return [version for version in self.versions if version.pruned is None]


class LiveReport(Record):
    """What a loader beside a Triton last saw of a model.

    `loader`: names the loader; `wanted`: the version that its alias stands for; `serves`: the versions that answer;
    `failed`: why the wanted one does not, if so.
    """

    loader: str
    model: str
    alias: str
    wanted: int
    serves: tuple[int, ...]
    failed: str | None = None
    seen: str
