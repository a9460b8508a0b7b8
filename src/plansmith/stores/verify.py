"""Verification of published releases, complete and unchanged: in a store, or in a local model repository."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Literal

from plansmith.errors import RepositoryError
from plansmith.records.model import FileEntry, Record
from plansmith.records.release import MANIFEST_FILE, SIGNATURE_FILE
from plansmith.signing.policy import SignaturePolicy
from plansmith.signing.verification import SignatureStatus
from plansmith.stores.backend.object_store import Moved
from plansmith.stores.layout import OBJECTS, catalogue_key, object_key, release_key
from plansmith.stores.reader import in_parallel
from plansmith.stores.records import Catalogue, StoredRelease, StoredVersion
from plansmith.stores.signatures import stored_status
from plansmith.stores.store import Store
from plansmith.system.digest import Digester
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.repository.signature import release_status

Kind = Literal["repository", "store"]

_READERS = 4
Checked = Callable[[int, int], None]
"""Told how many bytes were read so far, and of how many."""

_Digest = Callable[[str, Moved], str | None]
"""The SHA-256 of a content by its key; None where it is not told."""


class Damage(Record):
    """Damage: something that differs from what was published.

    `version`: None for what is of all of a model's; `path`: of a file in the release, or in the view of it that Triton
    reads, empty for what is none of its files; `key`: the object's, or the file's whole path; `hidden`: of a version
    that Triton is not shown, and that a collection takes away for it; `remedy`: of a signature that a policy does not
    accept, which no repair of files mends.
    """

    model: str
    version: int | None
    path: str
    key: str
    problem: str
    hidden: bool = False
    remedy: str = ""


class Verification(Record):
    """Result of a verification: what was checked, and the damage found.

    `typed`: what a person types for the place; `kind`: of it; `quick`: no content was read; `files` and `bytes`: each
    once, however many releases share it; `others`: contents that no release has, with their bytes; 0 where only one
    model was looked at; `pulled_from`: the store that a repository's releases were pulled from, as a person types it.
    """

    place: str
    typed: str
    kind: Kind
    quick: bool
    models: int
    versions: int
    files: int
    bytes: int
    damages: tuple[Damage, ...]
    others: int = 0
    other_bytes: int = 0
    pulled_from: str = ""

    def remedy(self) -> str:
        """Return how to repair the damage; empty if there is none."""
        if not self.damages:
            return ""
        harmed = [damage for damage in self.damages if not damage.remedy]
        if not harmed:
            return self.damages[0].remedy
        first = harmed[0]
        broken = first.model if first.version is None else f"{first.model}@{first.version}"
        if self.kind == "store":
            again = f"plansmith publish {broken} {self.typed} --resend --no-alias"
            return f"publish it again from a repository that has it: {again}"
        hidden = f"plansmith gc --repository {self.typed} takes away damaged versions that Triton is not shown"
        shown = "compile the model again: a damaged release is replaced by a new version"
        if self.pulled_from:
            shown = f"fetch it again: plansmith pull {broken} --store {self.pulled_from} --into {self.typed}"
        if all(damage.hidden for damage in harmed):
            return hidden
        return f"{shown}; {hidden}" if any(damage.hidden for damage in harmed) else shown


def unwatched(_bytes: int, _of_bytes: int) -> None:
    """Ignore progress: a no-op callback."""


@dataclass(frozen=True)
class _Use:
    """A reference to a content: a file of a release."""

    model: str
    version: int
    file: FileEntry


@dataclass
class _Walk:
    """The result of walking all releases: which release uses which content, and the damage found on the way."""

    versions: int = 0
    damages: list[Damage] = field(default_factory=list)
    uses: dict[str, list[_Use]] = field(default_factory=dict)

    def add(self, model: str, version: int, files: Iterable[tuple[str, FileEntry]]) -> None:
        """Record the files of a release, by their keys."""
        self.versions += 1
        for key, file in files:
            self.uses.setdefault(key, []).append(_Use(model, version, file))

    def distrust(self, model: str, version: int, status: SignatureStatus) -> None:
        """Record a signature that a policy does not accept."""
        if status.state != "valid":
            problem = f"signature: {status.problem}"
            damage = Damage(
                model=model, version=version, path=SIGNATURE_FILE, key="", problem=problem, remedy=status.remedy
            )
            self.damages.append(damage)

    def blame(self, key: str, problem: str) -> None:
        """Record a problem with a content, for every file that uses it."""
        for use in self.uses[key]:
            self.damages.append(
                Damage(model=use.model, version=use.version, path=use.file.path, key=key, problem=problem)
            )


def verify_store(
    store: Store,
    model: str | None = None,
    *,
    quick: bool = False,
    policy: SignaturePolicy | None = None,
    checked: Checked = unwatched,
) -> Verification:
    """Verify every unpruned version: its catalogue entry, its file list and the contents.

    Args:
        store: where.
        model: only this one.
        quick: by sizes and by the digests that the store keeps beside the contents; otherwise every byte is read.
        policy: who must have signed each version, besides the store's own policy.
        checked: told of the bytes that were read.

    Raises:
        RepositoryError: there is no such model.
    """
    models = store.models() if model is None else [store.catalogue(model).model]
    walk = _Walk()
    for name in models:
        _walk_model(store, name, walk, [entry for entry in (store.signatures, policy) if entry is not None])
    sizes = {item.key: item.bytes for item in store.objects.below(OBJECTS)}
    _check(walk, sizes.get, partial(_kept_digest, store) if quick else store.objects.sha256, checked)
    walk.damages = [damage for damage in walk.damages if not _is_pruned(store, damage)]
    others = [size for key, size in sizes.items() if key not in walk.uses] if model is None else []
    return _verification(store.place, store.typed, "store", walk, len(models), quick=quick, others=others)


def verify_repository(
    repository: ModelRepository,
    model: str | None = None,
    *,
    quick: bool = False,
    policy: SignaturePolicy | None = None,
    checked: Checked = unwatched,
) -> Verification:
    """Verify every release of a model repository, including withdrawn ones, and what Triton is shown.

    Arguments as for `verify_store`; signatures are checked by reading every file, even with `quick`.

    Raises:
        RepositoryError: there is no such model.
    """
    models = repository.models() if model is None else [repository.find(model)[0]]
    walk = _Walk()
    for name in models:
        for number in repository.versions(name):
            folder = repository.release(name, number)
            try:
                files = repository.manifest(name, number).files
            except RepositoryError as error:
                key = str(folder / MANIFEST_FILE)
                walk.damages.append(Damage(model=name, version=number, path="", key=key, problem=error.message))
            else:
                walk.add(name, number, ((str(folder / file.path), file) for file in files))
                if policy is not None:
                    walk.distrust(name, number, release_status(repository, name, number, policy))
    digester = Digester(repository.store / "no-memo", read_only=True)  # reads what is linked to several times once

    def read(key: str, moved: Moved) -> str:
        sha256 = digester.file(Path(key))
        moved(walk.uses[key][0].file.bytes)
        return sha256

    _check(walk, _size, None if quick else read, checked)
    blamed = {(damage.model, damage.version) for damage in walk.damages}
    for name in models:
        walk.damages += _strays(repository, name, blamed, quick=quick)
    walk.damages = [_placed(repository, damage) for damage in walk.damages if _is_there(repository, damage)]
    place = str(repository.root)
    verified = _verification(place, shlex.quote(place), "repository", walk, len(models), quick=quick, others=[])
    marker = repository.marker()
    pulled_from = marker.typed or marker.mirrors if marker is not None else ""
    return verified.model_copy(update={"pulled_from": pulled_from})


def _is_there(repository: ModelRepository, damage: Damage) -> bool:
    """Whether a release still exists, as garbage collection may have deleted it since it was listed."""
    return damage.version is None or repository.release(damage.model, damage.version).exists()


def _placed(repository: ModelRepository, damage: Damage) -> Damage:
    """The same damage, marked with whether garbage collection deletes the release for it."""
    numbers = {*repository.versions(damage.model)[:-1]} - {*repository.views(damage.model).shown()}
    return damage.model_copy(update={"hidden": damage.version in numbers})


def _strays(
    repository: ModelRepository, model: str, blamed: Container[tuple[str, int | None]], *, quick: bool
) -> list[Damage]:
    """Files in a model's view that do not belong to its releases, where those are intact: a view may be a copy."""
    views = repository.views(model)
    manifests = [repository.readable(model, number) for number in views.shown() if (model, number) not in blamed]
    whole = [manifest for manifest in manifests if manifest is not None]
    if not whole or len(whole) < len(views.shown()):
        return []
    description = "what Triton is shown there is not what was published"
    return [
        Damage(model=model, version=whole[-1].version, path=name, key=str(place), problem=description)
        for name, place in repository.showing(model).strays(whole[-1], whole, quick=quick).items()
    ]


def _walk_model(store: Store, model: str, walk: _Walk, policies: Sequence[SignaturePolicy]) -> None:
    """Check a model's catalogue, the versions its aliases refer to, their file lists and their signatures."""
    try:
        catalogue = store.catalogue(model)
    except RepositoryError as error:
        walk.damages.append(Damage(model=model, version=None, path="", key=catalogue_key(model), problem=error.message))
        return
    walk.damages += _lost_aliases(catalogue)
    standing = catalogue.standing()
    for version, result in zip(standing, in_parallel(partial(_release, store, model), standing), strict=True):
        if isinstance(result, Damage):
            walk.damages.append(result)
            continue
        walk.add(model, version.version, ((object_key(file.sha256), file) for file in result.files))
        with suppress(RepositoryError):  # a signature that is lost or damaged is found as any file is
            for policy in policies:
                walk.distrust(model, version.version, stored_status(store.objects, result, policy))


def _release(store: Store, model: str, version: StoredVersion) -> Damage | StoredRelease:
    """The files of a version, or the damage to their list."""
    try:
        return store.release(model, version)
    except RepositoryError as error:
        key = release_key(model, version.digest)
        return Damage(model=model, version=version.version, path="", key=key, problem=error.message)


def _is_pruned(store: Store, damage: Damage) -> bool:
    """Whether missing content was pruned since it was listed."""
    if not damage.path or damage.version is None:
        return False
    catalogue = store.find_catalogue(damage.model)
    version = catalogue.version(damage.version) if catalogue is not None else None
    return version is not None and version.pruned is not None


def _lost_aliases(catalogue: Catalogue) -> list[Damage]:
    """Aliases that refer to a missing version: no plansmith command leads to one."""
    standing = {version.version for version in catalogue.standing()}
    return [
        Damage(
            model=catalogue.model,
            version=pointer.version,
            path="",
            key=catalogue_key(catalogue.model),
            problem=f"alias {alias} stands for it, and it is not there",
        )
        for alias, pointer in catalogue.aliases.items()
        if pointer.version not in standing
    ]


def _check(walk: _Walk, size_of: Callable[[str], int | None], sha256_of: _Digest | None, checked: Checked) -> None:
    """Compare contents with what was published: their sizes, and their digests where they are known."""
    whole = []
    for key, uses in walk.uses.items():
        size, published = size_of(key), uses[0].file.bytes
        if size is None:
            walk.blame(key, "missing")
        elif size != published:
            walk.blame(key, f"has {size:,} bytes instead of {published:,}")
        else:
            whole.append(key)
    if sha256_of is None:
        return
    reading = _Reading(sum(walk.uses[key][0].file.bytes for key in whole), checked)
    with ThreadPoolExecutor(_READERS) as pool:
        futures = {pool.submit(sha256_of, key, reading.moved): key for key in whole}
        try:
            for future in as_completed(futures):
                problem = _problem(future, walk.uses[futures[future]][0].file.sha256)
                if problem is not None:
                    walk.blame(futures[future], problem)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _problem(future: Future[str | None], sha256: str) -> str | None:
    """The problem with a content that was read; None where none can be determined."""
    try:
        return None if future.result() in {None, sha256} else "its content is not what was published"
    except FileNotFoundError:
        return "missing"
    except RepositoryError as error:
        return error.message


class _Reading:
    """Progress of reading: the bytes read so far by all threads.

    Args:
        total: how many there are.
        checked: told of them.
    """

    def __init__(self, total: int, checked: Checked) -> None:
        self._total = total
        self._checked = checked
        self._read = 0
        self._lock = Lock()

    def moved(self, count: int) -> None:
        """Add to the number of bytes read."""
        with self._lock:
            self._read += count
            self._checked(self._read, self._total)


def _kept_digest(store: Store, key: str, _moved: Moved) -> str | None:
    item = store.objects.find(key)
    return item.sha256 or None if item is not None else None


def _size(path: str) -> int | None:
    try:
        return Path(path).stat().st_size if Path(path).is_file() else None
    except FileNotFoundError:  # it went between the two
        return None


def _verification(
    place: str, typed: str, kind: Kind, walk: _Walk, models: int, *, quick: bool, others: list[int]
) -> Verification:
    return Verification(
        place=place,
        typed=typed,
        kind=kind,
        quick=quick,
        models=models,
        versions=walk.versions,
        files=len(walk.uses),
        bytes=sum(uses[0].file.bytes for uses in walk.uses.values()),
        damages=tuple(sorted(walk.damages, key=lambda damage: (damage.model, damage.version or 0, damage.path))),
        others=len(others),
        other_bytes=sum(others),
    )
