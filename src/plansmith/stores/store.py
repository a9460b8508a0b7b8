"""A store of releases: what is there, and what its aliases stand for."""

from __future__ import annotations

from collections.abc import Callable

from plansmith.errors import RepositoryError
from plansmith.records.destination import CURRENT
from plansmith.stores.aliases import line_before, promoted, with_alias
from plansmith.stores.backend.documents import change, new_token, read_document, utc_now
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.layout import MARKER_KEY, MODELS, catalogue_key, name_in, object_key, release_key, require_inside
from plansmith.stores.records import Catalogue, Marker, Pin, Pointer, StoredRelease, StoredVersion
from plansmith.system.digest import digest_of_files


class Store:
    """The releases below one folder or prefix.

    Args:
        objects: what it is made of.
    """

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    @property
    def place(self) -> str:
        """Where it is, as a person may read it."""
        return self.objects.place

    @property
    def typed(self) -> str:
        """What a person types behind `--store` for it."""
        return self.objects.typed

    def marker(self) -> Marker | None:
        """What says that it is a store; None before the first publication."""
        found = read_document(self.objects, MARKER_KEY, Marker)
        return found and self.learn(found)

    def learn(self, marker: Marker) -> Marker:
        """Go by what was found out about the server."""
        if marker.abilities.probed:
            self.objects.abilities = marker.abilities
        return marker

    def models(self) -> list[str]:
        """The models, sorted."""
        return [name_in(held.key) for held in self.objects.below(MODELS)]

    def catalogue(self, model: str) -> Catalogue:
        """What is known of a model.

        Raises:
            RepositoryError: there is no such model.
        """
        found = self.known(model)
        if found is None:
            models = self.models()
            known = f"name one of its models: {', '.join(models)}" if models else "publish a model to it first"
            raise RepositoryError(f"{self.place} has no model {model!r}", remedy=known)
        return found

    def known(self, model: str) -> Catalogue | None:
        """What is known of a model; None where there is none of that name.

        Raises:
            RepositoryError: it is damaged.
        """
        found = read_document(self.objects, catalogue_key(model), Catalogue)
        return found and self._of_model(found, model)

    def find(self, text: str) -> tuple[Catalogue, StoredVersion]:
        """The model and version that MODEL[@VERSION or @ALIAS] names; that of the alias `current` where none is given.

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
        """The files of a version; their names are safe, and their list is what its digest says.

        Raises:
            RepositoryError: they were pruned, or the list is lost or damaged.
        """
        key = release_key(model, version.digest)
        found = read_document(self.objects, key, StoredRelease) if version.pruned is None else None
        if found is None:
            gone = f"was pruned on {version.pruned[:10]}" if version.pruned else f"has lost {key}"
            raise RepositoryError(
                f"version {version.version} of {model} in {self.place} {gone}",
                remedy=f"publish the release again, or name another: plansmith versions {model} --store {self.typed}",
            )
        if (found.model, {found.digest, digest_of_files(found.files)}) != (model, {version.digest}):
            raise RepositoryError(
                f"{key} in {self.place} is damaged: it lists other files than were published",
                remedy="publish the release again, or use another version",
            )
        for file in found.files:
            require_inside(file.path, self.place)
            object_key(file.sha256)
        return found

    def change(self, model: str, changed: Callable[[Catalogue], Catalogue]) -> Catalogue:
        """Swap what is known of a model, as often as it takes: `changed` makes the new from the old and has no effects.

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
        """Have an alias stand for a version.

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
        """Have an alias stand for nothing any more, and forget what it stood for.

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
            return old.model_copy(update={"aliases": {name: one for name, one in old.aliases.items() if name != alias}})

        return self.change(model, changed)

    def roll_back(self, model: str, alias: str = CURRENT) -> Catalogue:
        """Have an alias stand for what it stood for before.

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
        """Keep a version from being pruned.

        Raises:
            RepositoryError: there is no such version, or its files were pruned.
        """

        def changed(old: Catalogue) -> Catalogue:
            self._require_standing(old, number)
            pin = Pin(version=number, reason=reason, pinned=utc_now())
            others = [other for other in old.pins if other.version != number]
            return old.model_copy(update={"pins": (*others, pin)})

        return self.change(model, changed)

    def unpin(self, model: str, number: int) -> Catalogue:
        """Let a version be pruned again."""

        def changed(old: Catalogue) -> Catalogue:
            return old.model_copy(update={"pins": tuple(pin for pin in old.pins if pin.version != number)})

        return self.change(model, changed)

    def _of_model(self, found: Catalogue, model: str) -> Catalogue:
        """A catalogue that is the model's own: its name leads to lists and folders."""
        if found.model != model:
            raise RepositoryError(
                f"{catalogue_key(model)} in {self.place} is damaged: it is that of {found.model!r}",
                remedy=f"see what else is: plansmith verify --store {self.typed}",
            )
        return found

    def _require_known(self) -> None:
        """See that it is known how writers are kept apart here: all must do it the same way."""
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
            standing = ", ".join(str(one.version) for one in catalogue.standing()) or "none"
            raise RepositoryError(
                f"{catalogue.model} in {self.place} has no version {number}"
                + (f" any more: it was pruned on {version.pruned[:10]}" if version and version.pruned else ""),
                remedy=f"name one of its versions: {standing}",
            )
