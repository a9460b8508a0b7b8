"""Release store: its releases, and the versions that its aliases refer to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from plansmith.errors import RepositoryError
from plansmith.formatting import suggest_names
from plansmith.records.destination import CURRENT, Location
from plansmith.signing.policy import SignaturePolicy
from plansmith.stores.backend.documents import change, new_token, read_document, utc_now
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.backend.s3 import S3Objects
from plansmith.stores.layout import MARKER_KEY, MODELS, catalogue_key, name_in, object_key, release_key, require_inside
from plansmith.stores.records import (
    Catalogue,
    Marker,
    Pin,
    Pointer,
    StoredRelease,
    StoredVersion,
    line_before,
    promoted,
    with_alias,
)
from plansmith.system.digest import digest_of_files


class Store:
    """Store: the releases below one folder or prefix.

    Args:
        objects: what it is made of.

    Attributes:
        signatures: the policy for its releases, as the marker was last read; None if they need not be signed.
    """

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.signatures: SignaturePolicy | None = None

    @property
    def place(self) -> str:
        """The location, for display."""
        return self.objects.place

    @property
    def typed(self) -> str:
        """The value for `--store`, as typed on the command line."""
        return self.objects.typed

    def marker(self) -> Marker | None:
        """Return the store's marker; None before the first publication."""
        document = read_document(self.objects, MARKER_KEY, Marker)
        return document and self.learn(document)

    def learn(self, marker: Marker) -> Marker:
        """Apply the probed abilities of the server, and the signature policy."""
        self.signatures = marker.signatures
        if marker.abilities.probed:
            self.objects.abilities = marker.abilities
        return marker

    def models(self) -> list[str]:
        """Return the models, sorted."""
        return [name_in(item.key) for item in self.objects.below(MODELS)]

    def catalogue(self, model: str) -> Catalogue:
        """Return the catalogue of a model.

        Raises:
            RepositoryError: there is no such model.
        """
        document = self.find_catalogue(model)
        if document is None:
            raise RepositoryError(
                f"{self.place} has no model {model!r}",
                remedy=suggest_names([model], self.models(), otherwise="publish a model to it first"),
            )
        return document

    def find_catalogue(self, model: str) -> Catalogue | None:
        """Return the catalogue of a model; None if there is no such model.

        Raises:
            RepositoryError: it is damaged.
        """
        document = read_document(self.objects, catalogue_key(model), Catalogue)
        return document and self._of_model(document, model)

    def find(self, text: str) -> tuple[Catalogue, StoredVersion]:
        """Resolve MODEL[@VERSION or @ALIAS] to a model and version; the default is the alias `current`.

        Raises:
            RepositoryError: there is no such model, version or alias.
        """
        model, _, word = text.partition("@")
        word = word or CURRENT
        catalogue = self.catalogue(model)
        pointer = catalogue.aliases.get(word)
        number = int(word) if word.isdecimal() else pointer.version if pointer is not None else None
        version = catalogue.version(number) if number is not None else None
        if version is not None:
            return catalogue, version
        numbers = ", ".join(str(version.version) for version in catalogue.versions)
        raise RepositoryError(
            f"{model} in {self.place} has no {f'version {word}' if word.isdecimal() else f'alias {word!r}'}",
            remedy=f"name one of its versions, {numbers}, or aliases: {', '.join(catalogue.aliases) or 'none'}",
        )

    def release(self, model: str, version: StoredVersion) -> StoredRelease:
        """Return the files of a version; their names are checked for safety, and the list against its digest.

        Raises:
            RepositoryError: they were pruned, or the list is lost or damaged.
        """
        key = release_key(model, version.digest)
        document = read_document(self.objects, key, StoredRelease) if version.pruned is None else None
        if document is None:
            reason = f"was pruned on {version.pruned[:10]}" if version.pruned else f"has lost {key}"
            raise RepositoryError(
                f"version {version.version} of {model} in {self.place} {reason}",
                remedy=f"publish the release again, or name another: plansmith versions {model} --store {self.typed}",
            )
        if (document.model, {document.digest, digest_of_files(document.files)}) != (model, {version.digest}):
            raise RepositoryError(
                f"{key} in {self.place} is damaged: it lists other files than were published",
                remedy="publish the release again, or use another version",
            )
        for file in document.files:
            require_inside(file.path, self.place)
            object_key(file.sha256)
        return document

    def change(self, model: str, changed: Callable[[Catalogue], Catalogue]) -> Catalogue:
        """Optimistic update of a model's catalogue, with retries: `changed` makes the new one and has no side effects.

        Raises:
            RepositoryError: it is damaged, others change it all the time, the store's server was never asked what it
                does, or whatever `changed` raises.
        """
        self._require_known()

        def tokened(old: Catalogue | None) -> Catalogue:
            before = self._of_model(old, model) if old is not None else Catalogue(model=model, token="")
            after = changed(before)
            return before if after == before else after.model_copy(update={"token": new_token()})

        return change(self.objects, catalogue_key(model), Catalogue, tokened)

    def promote(self, model: str, number: int, alias: str, share: float | None = None) -> Catalogue:
        """Promote a version: point an alias to it.

        Args:
            model: its name.
            number: a version whose files stand.
            alias: the name.
            share: what part of the requests it should get, as a hint.

        Raises:
            RepositoryError: there is no such version, or its files were pruned.
        """
        return self.change(model, lambda old: self._promoted(old, number, alias, share))

    def take_alias_away(self, model: str, alias: str) -> Catalogue:
        """Remove an alias with its history.

        Raises:
            RepositoryError: there is no such model or alias.
        """
        self.catalogue(model)

        def changed(old: Catalogue) -> Catalogue:
            if alias not in old.aliases:
                raise RepositoryError(
                    f"{model} in {self.place} has no alias {alias!r}",
                    remedy=f"name one of its aliases: {', '.join(old.aliases) or 'none'}",
                )
            return old.model_copy(
                update={"aliases": {name: pointer for name, pointer in old.aliases.items() if name != alias}}
            )

        return self.change(model, changed)

    def roll_back(self, model: str, alias: str = CURRENT) -> Catalogue:
        """Roll back an alias to its previous version.

        Raises:
            RepositoryError: it never stood for another version whose files stand.
        """

        def changed(old: Catalogue) -> Catalogue:
            line = line_before(old, alias)
            if not line:
                raise RepositoryError(
                    f"{alias} of {model} in {self.place} never stood for another version",
                    remedy=f"name the version: plansmith promote {model}@VERSION {alias} --store {self.typed}",
                )
            return with_alias(old, alias, Pointer(line=line, moved=utc_now()))

        return self.change(model, changed)

    def pin(self, model: str, number: int, reason: str) -> Catalogue:
        """Protect a version from pruning.

        Raises:
            RepositoryError: there is no such version, or its files were pruned.
        """

        def changed(old: Catalogue) -> Catalogue:
            self._require_standing(old, number)
            pin = Pin(version=number, reason=reason, pinned=utc_now())
            others = [entry for entry in old.pins if entry.version != number]
            return old.model_copy(update={"pins": (*others, pin)})

        return self.change(model, changed)

    def unpin(self, model: str, number: int) -> Catalogue:
        """Allow a version to be pruned again."""

        def changed(old: Catalogue) -> Catalogue:
            return old.model_copy(update={"pins": tuple(pin for pin in old.pins if pin.version != number)})

        return self.change(model, changed)

    def _of_model(self, document: Catalogue, model: str) -> Catalogue:
        """Check that a catalogue belongs to the model: its name determines lists and folders."""
        if document.model != model:
            raise RepositoryError(
                f"{catalogue_key(model)} in {self.place} is damaged: it is that of {document.model!r}",
                remedy=f"see what else is: plansmith verify --store {self.typed}",
            )
        return document

    def _require_known(self) -> None:
        """Check that the store's method of isolating writers is known: all writers must use the same one."""
        if not self.objects.abilities.is_known and self.marker() and not self.objects.abilities.is_known:
            raise RepositoryError(
                f"{self.place} was copied from a folder, and its server was never asked what it does",
                remedy=f"have it asked: plansmith store --probe --store {self.typed}",
            )

    def _promoted(self, old: Catalogue, number: int, alias: str, share: float | None) -> Catalogue:
        self._require_standing(old, number)
        return promoted(old, number, alias, share)

    def _require_standing(self, catalogue: Catalogue, number: int) -> None:
        version = catalogue.version(number)
        if version is None or version.pruned is not None:
            standing = ", ".join(str(entry.version) for entry in catalogue.standing()) or "none"
            raise RepositoryError(
                f"{catalogue.model} in {self.place} has no version {number}"
                + (f" any more: it was pruned on {version.pruned[:10]}" if version and version.pruned else ""),
                remedy=f"name one of its versions: {standing}",
            )


def open_objects(place: Location, relative_to: Path) -> Objects:
    """Open the objects of a folder or prefix; makes no request yet.

    Args:
        place: where.
        relative_to: the folder that relative paths start from.
    """
    return S3Objects(place, relative_to) if place.is_s3 else FolderObjects(relative_to / place.to)


def open_store(place: Location, relative_to: Path) -> Store:
    """Open the store at a place; it need not exist yet. Arguments as for `open_objects`."""
    return Store(open_objects(place, relative_to))


def open_existing(place: Location, relative_to: Path) -> Store:
    """Open an existing store. Arguments as for `open_objects`.

    Raises:
        RepositoryError: there is none.
        EnvironmentFault: it cannot be asked.
    """
    store = open_store(place, relative_to)
    if store.marker() is None:
        raise RepositoryError(
            f"{store.place} is no store", remedy=f"publish a model there first: plansmith publish MODEL {place.typed}"
        )
    return store
