"""Store documents, each a small JSON object. Times are ISO 8601 in UTC.

What several writers may write bears a token, so that no two of them write the same bytes and each can tell what it
wrote itself.
"""

from __future__ import annotations

import operator

from pydantic import Field

from plansmith.records.destination import Alias
from plansmith.records.model import SCHEMA_VERSION, FileEntry, Record
from plansmith.signing.policy import SignaturePolicy
from plansmith.stores.backend.documents import utc_now
from plansmith.stores.backend.object_store import Abilities

_LONGEST_LINE = 50


class Marker(Record):
    """Store marker: marks a folder or prefix as a store, with the target of its releases and the server's abilities.

    `target` is empty until there is a release, where machines share their work; `signatures`: who must have signed its
    releases, written only where somebody set it.
    """

    schema_version: int = SCHEMA_VERSION
    target: str
    created: str
    abilities: Abilities
    token: str
    signatures: SignaturePolicy | None = Field(default=None, exclude_if=operator.not_)


class StoredRelease(Record):
    """The files of a release: `digest` covers their names and contents, and identifies the release.

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
    """A version number of a model, assigned once and never reused, with the digest of its release.

    `pruned`: when its files were given up; None while they stand. `before_signing`: the digests that it had with no
    signature or others; written only where there are any.
    """

    version: int
    digest: str
    published: str
    pruned: str | None = None
    before_signing: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)

    @property
    def digests(self) -> tuple[str, ...]:
        """All digests that it has or had."""
        return (self.digest, *self.before_signing)


class Pointer(Record):
    """Alias pointer: the versions that an alias has pointed to.

    `line`: the versions that it stood for, in turn, the one that it stands for now last; a rollback goes back along it.
    `share`: what part of the requests the version should get, from 0 to 1, as a hint for whoever routes them.
    """

    line: tuple[int, ...] = Field(min_length=1)
    share: float | None = None
    moved: str

    @property
    def version(self) -> int:
        """The version that it points to."""
        return self.line[-1]


class Pin(Record):
    """Pin: protects a version from pruning."""

    version: int
    reason: str
    pinned: str


class Catalogue(Record):
    """Catalogue of one model: its versions, ascending, its aliases and its pins.

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
        """Return the version with a number; None if there is none."""
        return next((version for version in self.versions if version.version == number), None)

    def standing(self) -> list[StoredVersion]:
        """Return the versions that are not pruned, ascending."""
        return [version for version in self.versions if version.pruned is None]


class LiveReport(Record):
    """Loader report: the last state of a model that the loader of a Triton observed.

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


def promoted(catalogue: Catalogue, number: int, alias: str, share: float | None = None) -> Catalogue:
    """Return the catalogue with an alias moved to an unpruned version; the same one if it already points there.

    Args:
        catalogue: as it is.
        number: the version.
        alias: the name.
        share: what part of the requests it should get, as a hint.
    """
    before = catalogue.aliases.get(alias)
    if before is not None and (before.version, before.share) == (number, share):
        return catalogue
    line = before.line if before is not None else ()
    line = line if line[-1:] == (number,) else (*line, number)
    return with_alias(catalogue, alias, Pointer(line=line[-_LONGEST_LINE:], share=share, moved=utc_now()))


def line_before(catalogue: Catalogue, alias: str) -> tuple[int, ...]:
    """Return an alias's history as a rollback leaves it; it ends with another unpruned version, or is empty."""
    line = catalogue.aliases[alias].line if alias in catalogue.aliases else ()
    others = {version.version for version in catalogue.standing()} - set(line[-1:])
    while line and line[-1] not in others:
        line = line[:-1]
    return line


def with_alias(catalogue: Catalogue, alias: str, pointer: Pointer) -> Catalogue:
    """Return a catalogue with another alias pointer; its aliases stay sorted."""
    return catalogue.model_copy(update={"aliases": dict(sorted({**catalogue.aliases, alias: pointer}.items()))})
