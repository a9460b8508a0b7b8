"""Model repository inside a store, for a Triton that reads the store itself (s3://bucket/prefix/repository).

Nothing but one object can be exchanged in one step there. So the configuration decides: it names the versions that
Triton serves (`version_policy: specific`), and no other folder is looked into. The folders of versions are copied
before it, by the server itself, and removed some time after it, as a Triton may be reading them. (It must never see
half a version: a model of the Python backend without its model.py was seen to load without end.)

A Triton whose youngest file is no younger than at its last load takes a model for unchanged (see `triton.views`): so
the configuration is written until its time is later than any before, of which S3 tells seconds.

What a configuration names beside itself, such as labels, is replaced a moment before it. A Triton with
--model-control-mode=explicit has to be told to load then; polling is not advised in production, says its documentation
(docs/user_guide/model_management.md).
"""

from __future__ import annotations

import time
from collections.abc import Collection

from plansmith.errors import RepositoryError
from plansmith.records.destination import CURRENT, Alias
from plansmith.records.model import Record
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Manifest, Member
from plansmith.stores.backend.documents import change, new_token, read_document
from plansmith.stores.layout import VIEW, object_key, view_key
from plansmith.stores.reader import read_file, read_stored_manifest
from plansmith.stores.records import Catalogue, Pointer, StoredRelease, StoredVersion
from plansmith.stores.signatures import require_signed
from plansmith.stores.store import Store
from plansmith.system.aws.bucket import ObjectMetadata
from plansmith.system.libraries import require_library
from plansmith.triton.config.model_config import parse_config, text_of
from plansmith.triton.repository.ensembles import names_of_parts, steps_of
from plansmith.triton.repository.release import misfit, policy_of

_GRACE_SECONDS = 600.0
"""How long a version that is not needed any more may still be read: Triton copies what it loads first."""

_CLOCK_STEP_SECONDS = 1.0  # of the times that S3 tells
_MOST_WRITES = 20  # a pause between each two


class FollowedView(Record):
    """Record that a store shows a model in its repository, and by which alias."""

    model: str
    alias: Alias
    token: str


def keep_view(store: Store, model: str, alias: str = CURRENT) -> tuple[int, ...]:
    """Show an alias's version in the store's repository from now on; return the versions shown.

    Raises:
        RepositoryError: there is no such model or alias, or a file of its version is lost.
        EnvironmentFault: the store cannot be reached.
    """

    def changed(old: FollowedView | None) -> FollowedView:
        is_same = old is not None and old.alias == alias
        return old if old is not None and is_same else FollowedView(model=model, alias=alias, token=new_token())

    if alias not in store.catalogue(model).aliases:
        raise RepositoryError(
            f"{model} in {store.place} has no alias {alias!r}",
            remedy=f"plansmith promote {model}@VERSION {alias} --store {store.typed}",
        )
    change(store.objects, view_key(model), FollowedView, changed)
    return refresh_view(store, model)


def refresh_view(store: Store, model: str) -> tuple[int, ...]:
    """Update the store's repository to the alias's current version; return the versions shown, none without a view.

    Errors as for `keep_view`.
    """
    followed = read_document(store.objects, view_key(model), FollowedView)
    while followed is not None:
        catalogue = store.catalogue(model)
        pointer = catalogue.aliases.get(followed.alias)
        if pointer is None:
            return ()
        shown = _Exchange(store, catalogue, pointer).run()
        # Another process may have shown something else meanwhile: the last one to look sees what is right.
        if store.catalogue(model).aliases.get(followed.alias) == pointer:
            return shown
    return ()


class _Exchange:
    """Update of the repository view of one model."""

    def __init__(self, store: Store, catalogue: Catalogue, pointer: Pointer) -> None:
        self._store = store
        self._objects = store.objects
        self._root = f"{VIEW}{catalogue.model}/"
        self._config = f"{self._root}{CONFIG_FILE}"
        self._catalogue = catalogue
        self._pointer = pointer

    def run(self) -> tuple[int, ...]:
        """Perform the update; return the versions that Triton sees."""
        releases = self._releases()
        # Read before it is listed: so what is listed is not younger than what it is taken for.
        before = self._objects.read(self._config)
        existing = {item.key: item for item in self._objects.below(self._root)}
        for number, (release, manifest) in releases.items():
            names = {f"{number}/{name}": f"{MODEL_FOLDER}/{name}" for name in manifest.package.model_files}
            self._copy(release, names, existing)
        release, manifest = releases[max(releases)]
        for member in manifest.package.members:
            self._copy_part(release, member)
        self._copy(release, {name: name for name in manifest.package.support_files}, existing, replace=True)
        content = _naming(read_file(self._objects, release, CONFIG_FILE).decode(), sorted(releases)).encode()
        if before is None or before.content != content:
            self._configure(content, existing)
        if before is not None:
            self._tidy({*_named(before.content), *releases}, existing)
            self._tidy_parts({*_parts(before.content), *_parts(content)}, existing)
        return tuple(releases)

    def _releases(self) -> dict[int, tuple[StoredRelease, Manifest]]:
        """Return the selected version and earlier ones that its version policy serves and that fit, ascending."""
        standing = {version.version: version for version in self._catalogue.standing()}
        newest = self._pointer.version
        if newest not in standing:
            raise RepositoryError(
                f"version {newest} of {self._catalogue.model} in {self._store.place} was pruned",
                remedy=f"have the alias stand for another: plansmith versions --store {self._store.typed}",
            )
        line = {number for number in self._pointer.line if number <= newest} & standing.keys()
        release, manifest = self._read(standing[newest])
        served = policy_of(manifest).served(sorted(line)) - {newest}
        others = {number: self._read(standing[number]) for number in sorted(served)}
        fitting = {number: entry for number, entry in others.items() if misfit(entry[1], manifest) is None}
        return {**fitting, newest: (release, manifest)}

    def _read(self, version: StoredVersion) -> tuple[StoredRelease, Manifest]:
        release = self._store.release(self._catalogue.model, version)
        require_signed(self._store, release, version.version)
        return release, read_stored_manifest(self._objects, release)

    def _copy(
        self,
        release: StoredRelease,
        names: dict[str, str],
        existing: dict[str, ObjectMetadata],
        *,
        root: str = "",
        replace: bool = False,
    ) -> None:
        """Copy files of a release to their paths, except existing ones.

        Args:
            release: whose they are.
            names: their paths in the release, by their places in the view.
            existing: what the view holds.
            root: the view's, where it is not the model's own.
            replace: their places belong to no version, so that another release's may be there.
        """
        files = {file.path: file for file in release.files}
        for place, path in names.items():
            key, file = f"{root or self._root}{place}", files[path]
            item = existing.get(key)
            if item is None or item.bytes != file.bytes or (replace and self._objects.sha256(key) != file.sha256):
                self._objects.copy(object_key(file.sha256), key)

    def _copy_part(self, release: StoredRelease, member: Member) -> None:
        """Copy an ensemble member next to the ensemble, where it never changes; its configuration comes last."""
        root = f"{VIEW}{member.model}/"
        existing = {item.key: item for item in self._objects.below(root)}
        files = member.shown
        configuration = {CONFIG_FILE: files.pop(CONFIG_FILE)}
        self._copy(release, files, existing, root=root)
        self._copy(release, configuration, existing, root=root)

    def _configure(self, content: bytes, existing: dict[str, ObjectMetadata]) -> None:
        """Write the configuration until its modification time is later than any before."""
        now = self._objects.now()
        for key in [key for key, item in existing.items() if item.changed > now + _CLOCK_STEP_SECONDS]:
            self._objects.copy(key, key)  # a time to come, which the configuration's could not be later than
        before = min(max((item.changed for item in existing.values()), default=0.0), now)
        for _ in range(_MOST_WRITES):
            self._objects.put(self._config, content)
            item = self._objects.find(self._config)
            if item is None or item.changed >= before + _CLOCK_STEP_SECONDS:
                return
            time.sleep(_CLOCK_STEP_SECONDS / 4)
        raise RepositoryError(
            f"the clock of {self._store.place} does not go on: a Triton may take {self._root} for unchanged",
            remedy="set the clock of the server right, and run the same command again",
        )

    def _tidy(self, needed: Collection[int], existing: dict[str, ObjectMetadata]) -> None:
        """Remove versions that neither the previous nor the current configuration refers to.

        Only where that of before stood for a while: so nobody reads any more what was shown before it. What is younger
        than that is left, too: another process may be about to show it.
        """
        limit = self._limit(existing)
        if limit is None:
            return
        old = [key.removeprefix(self._root) for key, item in existing.items() if item.changed < limit]
        folders = {name: name.partition("/")[0] for name in old}
        stale = [name for name, folder in folders.items() if folder.isdecimal() and int(folder) not in needed]
        self._objects.remove(f"{self._root}{name}" for name in stale)

    def _tidy_parts(self, needed: Collection[str], existing: dict[str, ObjectMetadata]) -> None:
        """Remove ensemble members that neither configuration refers to, under the same conditions as versions.

        Args:
            needed: those that one names.
            existing: what the model's own view held.
        """
        limit = self._limit(existing)
        if limit is None:
            return
        looks = names_of_parts(self._catalogue.model)
        beside = self._objects.below(f"{VIEW}{self._catalogue.model}.")
        old = [item.key for item in beside if item.changed < limit]
        folders = {key: key.removeprefix(VIEW).partition("/")[0] for key in old}
        self._objects.remove(key for key, name in folders.items() if name not in needed and looks.fullmatch(name))

    def _limit(self, existing: dict[str, ObjectMetadata]) -> float | None:
        """Return the age limit for removals; None if nothing may be removed.

        Args:
            existing: what the model's own view held.
        """
        limit = self._objects.now() - _GRACE_SECONDS
        config = existing.get(self._config)  # another process may just have written the first one
        return None if config is None or config.changed >= limit else limit


def _parts(config: bytes) -> set[str]:
    """Return the models that an ensemble's or script's configuration names; none of another model's."""
    return steps_of(parse_config(config.decode()))


def _named(config: bytes) -> list[int]:
    """Return the versions that one of plansmith's configurations names."""
    return list(parse_config(config.decode()).version_policy.specific.versions)


def _naming(text: str, numbers: list[int]) -> str:
    """Return a configuration with a version policy for exactly these versions."""
    require_library("tritonclient", "client", purpose="Triton's configurations are written with it")
    config = parse_config(text)
    config.version_policy.specific.versions[:] = numbers
    return text_of(config)
