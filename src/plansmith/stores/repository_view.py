"""A model repository inside a store, for a Triton that reads the store itself (s3://bucket/prefix/repository).

Nothing can be exchanged in one step there, so that what is read at any moment has to be harmless:

- A version's folder comes first, each file by a copy that the server makes whole, and the file that the configuration
  names last: half a folder is one that does not load. A load that fails leaves serving what served.
- The configuration comes last, and with it a new time: a Triton whose youngest file is no younger than at its last
  load takes a model for unchanged (see `triton.views`), also where a version was taken away.
- Versions above the one that the alias stands for go before that, as Triton serves the highest; so do those that do not
  fit the new configuration. Earlier ones that fit stay for a while: a Triton may be reading them.

A Triton with --model-control-mode=explicit has to be told to load then. Polling is not advised in production, says its
documentation, and several files are not read at one moment (docs/user_guide/model_management.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from plansmith.destinations import CURRENT, Alias
from plansmith.errors import RepositoryError
from plansmith.manifest import Manifest
from plansmith.stores.documents import change, new_token, read_document
from plansmith.stores.layout import VIEW, object_key, view_key
from plansmith.stores.objects import Held
from plansmith.stores.reading import read_stored_manifest
from plansmith.stores.records import Catalogue, Pointer, StoredRelease
from plansmith.stores.store import Store
from plansmith.triton.model_config import CONFIG_FILE
from plansmith.triton.releases import MODEL_FOLDER, misfit, policy_of
from plansmith.types import Record

_GRACE_SECONDS = 600.0
"""How long a version that is not needed any more may still be read: Triton copies what it loads first."""

_CLOCK_STEP_SECONDS = 1.0  # of the times that S3 tells


class FollowedView(Record):
    """Says that a store keeps a model in its repository, and which alias it shows there."""

    model: str
    alias: Alias
    token: str


def keep_view(store: Store, model: str, alias: str = CURRENT) -> tuple[int, ...]:
    """Show in the store's repository what an alias stands for, from now on; the versions that are shown.

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
            remedy=f"plansmith promote {model}@VERSION {alias} --store {store.place}",
        )
    change(store.objects, view_key(model), FollowedView, changed)
    return refresh_view(store, model)


def refresh_view(store: Store, model: str) -> tuple[int, ...]:
    """Show in the store's repository what the alias stands for now; the versions that are shown, none without a view.

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
    """One exchange of what is shown of a model."""

    def __init__(self, store: Store, catalogue: Catalogue, pointer: Pointer) -> None:
        self._store = store
        self._objects = store.objects
        self._root = f"{VIEW}{catalogue.model}/"
        self._catalogue = catalogue
        self._pointer = pointer

    def run(self) -> tuple[int, ...]:
        """Do it; the versions that are shown."""
        releases = self._releases()
        newest = max(releases)
        release, manifest = releases[newest]
        there = {held.key: held for held in self._objects.below(self._root)}
        is_news = False
        for number, (one, its) in releases.items():
            is_news |= self._copy(one, dict(_version_files(number, its)), there)
        stale = [number for number in _numbers(self._root, there) if number not in releases]
        for number in stale:
            if number > newest or not self._fits(number, manifest) or self._is_old(newest, manifest, there):
                self._remove(number, there)
                is_news |= number > newest
        is_news |= self._copy(release, {name: name for name in manifest.package.support_files}, there, shared=True)
        config = {CONFIG_FILE: CONFIG_FILE}
        if self._copy(release, config, there, shared=True) or is_news:
            self._make_younger(there)
        return tuple(releases)

    def _releases(self) -> dict[int, tuple[StoredRelease, Manifest]]:
        """The version that is wanted, and those before it that its policy has Triton serve and that fit, ascending."""
        standing = {version.version: version for version in self._catalogue.standing()}
        newest = self._pointer.version
        if newest not in standing:
            raise RepositoryError(
                f"version {newest} of {self._catalogue.model} in {self._store.place} was pruned",
                remedy=f"have the alias stand for another: plansmith versions --store {self._store.place}",
            )
        line = {number for number in self._pointer.line if number <= newest} & standing.keys()
        release = self._store.release(self._catalogue.model, standing[newest])
        manifest = read_stored_manifest(self._objects, release)
        found = {}
        for number in sorted(policy_of(manifest).served(sorted(line)) - {newest}):
            other = self._store.release(self._catalogue.model, standing[number])
            its = read_stored_manifest(self._objects, other)
            if misfit(its, manifest) is None:
                found[number] = other, its
        return {**found, newest: (release, manifest)}

    def _copy(
        self, release: StoredRelease, names: dict[str, str], there: dict[str, Held], *, shared: bool = False
    ) -> bool:
        """Copy files of a release to their places, in this order, but for those that are there; whether any was copied.

        Args:
            release: whose they are.
            names: their paths in the release, by their places in the view.
            there: what the view holds.
            shared: their places belong to no version, so that another release's may be there.
        """
        files = {file.path: file for file in release.files}
        copied = False
        for place, path in names.items():
            key, file = f"{self._root}{place}", files[path]
            held = there.get(key)
            if held is None or held.bytes != file.bytes or (shared and self._objects.sha256(key) != file.sha256):
                self._objects.copy(object_key(file.sha256), key)
                copied = True
        return copied

    def _fits(self, number: int, manifest: Manifest) -> bool:
        version = self._catalogue.version(number)
        if version is None or version.pruned is not None:
            return False
        release = self._store.release(self._catalogue.model, version)
        return misfit(read_stored_manifest(self._objects, release), manifest) is None

    def _is_old(self, number: int, manifest: Manifest, there: dict[str, Held]) -> bool:
        """Whether a version has been shown for so long that nobody reads an earlier one."""
        named = there.get(f"{self._root}{[*_version_files(number, manifest)][-1][0]}")
        return named is not None and named.changed < self._objects.now() - _GRACE_SECONDS

    def _remove(self, number: int, there: dict[str, Held]) -> None:
        """Take a version away: the file that a configuration names first, which lies in no folder of its own."""
        keys = [key for key in there if key.startswith(f"{self._root}{number}/")]
        self._objects.remove(sorted(keys, key=lambda key: key.count("/")))

    def _make_younger(self, there: dict[str, Held]) -> None:
        """Give the configuration a later time than any file had before."""
        key = f"{self._root}{CONFIG_FILE}"
        before = max((held.changed for held in there.values()), default=0.0)
        while True:
            self._objects.copy(key, key)
            held = self._objects.find(key)
            if held is None or held.changed >= before + _CLOCK_STEP_SECONDS:
                return
            time.sleep(_CLOCK_STEP_SECONDS / 4)


def _version_files(number: int, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Where a version's files go in the view, and their paths in the release; that which a configuration names last."""
    named, *others = manifest.package.model_files
    for name in (*others, named):
        yield f"{number}/{name}", f"{MODEL_FOLDER}/{name}"


def _numbers(root: str, there: dict[str, Held]) -> list[int]:
    """The versions of which there is a folder."""
    folders = {key.removeprefix(root).partition("/")[0] for key in there if "/" in key.removeprefix(root)}
    return sorted(int(folder) for folder in folders if folder.isdecimal())
