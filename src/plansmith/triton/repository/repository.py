"""Release repository and Triton's model repository: publishing, withdrawal, and recovery after a kill.

How it lies on the disk is told in `triton.holdings`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from plansmith.errors import PlansmithError, RepositoryError, ServedCheckError, in_one_line
from plansmith.formatting import seconds_of
from plansmith.records.release import MANIFEST_FILE, Fingerprint, Manifest, PublishedVersion
from plansmith.system.files import (
    HeldByAnother,
    Waiting,
    fsync_tree,
    locked,
    make_folder,
    move_into_place,
    not_waiting,
    remove_folder,
    staging_folder,
    storage_errors,
    sweep,
)
from plansmith.triton.repository.contents import Fingerprints, RepositoryContents, RepositoryMarker, write_marker
from plansmith.triton.repository.release import damaged_file, misfit, policy_of, read_manifest, require_same_interface

_INTERRUPTED = "its publication was interrupted before every server had loaded it"


class Servers(Protocol):
    """Running servers that must load what is published."""

    def take(self, folder: Path, version: int) -> None:
        """Have each server load a model's view and serve a version; raises PlansmithError if one does not."""
        ...

    def take_back(self, folder: Path) -> None:
        """Roll back the servers that loaded, or may have loaded, the version to what is shown now, possibly nothing."""
        ...


class ModelRepository(RepositoryContents):
    """The Triton model repository of one target.

    Args:
        root: the folder that Triton reads.
        digester: hashes the files of releases; one that remembers nothing when None.

    Raises:
        RepositoryError: the folder has no name, and so no place beside it.
    """

    def exclusive(self, model: str, waiting: Waiting = lambda _: None) -> AbstractContextManager[None]:
        """Lock a model for the block: no other process publishes or garbage-collects its versions."""
        return locked(self.store / "locks" / "models" / model, waiting)

    def store_fingerprint(self, model: str, basis: Fingerprint, waiting: Waiting = lambda _: None) -> None:
        """Save the fingerprint of the newest version, unless a newer one exists by now.

        Where the same version was published to before, it still is.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        with self.exclusive(model, waiting):
            if self.leading(model) != basis.version:
                return
            with suppress(RepositoryError):
                before = self.basis(model)
                if before is not None and before.version == basis.version:
                    places = tuple(dict.fromkeys((*before.destinations, *basis.destinations)))
                    stored = before.stored | basis.stored
                    basis = basis.model_copy(update={"destinations": places, "stored": stored})
            Fingerprints(self.store).write(model, basis)

    def remove(self, folder: Path) -> None:
        """Delete a release or view: move it away in one rename, then delete its files."""
        remove_folder(folder, self.staging)

    def publish(
        self,
        draft: Manifest,
        files: Mapping[str, Path],
        texts: Mapping[str, str],
        *,
        allow_interface_change: bool,
        force: bool,
        waiting: Waiting = lambda _: None,
        described: Callable[[Manifest], Mapping[str, str]] = lambda _: {},
        servers: Servers | None = None,
    ) -> PublishedVersion:
        """Create a release and add it to the view; it gets the next free number under a lock.

        Args:
            draft: the manifest, but for its number.
            files: the release's files by name; linked, not copied.
            texts: further files of the release by name and content.
            allow_interface_change: let a version with other inputs or outputs be the newest.
            force: publish even what is already the newest version.
            waiting: told when another process publishes the same model.
            described: gives further texts that tell of the release, and so of its number.
            servers: have to load the release; it is withdrawn where one does not.

        Raises:
            RepositoryError: another target's repository, a changed interface, a full or unwritable disk, a file that
                is no longer what was checked.
            ServedCheckError: a server did not load it; Triton is shown what it was shown before.
        """
        with ExitStack() as stack:
            with storage_errors(self.root):
                make_folder(self.root)
                stack.enter_context(self.exclusive(draft.name, waiting))
                self.claim(draft.target)
                self.showing(draft.name).require_ours(draft)
                sweep(self.staging)
                newest = self._newest_that_stays(draft, force=force)
            # What a server says is no fault of this disk, whatever words it uses: no storage errors around it.
            if newest is not None and not force and self.holds(newest, draft):
                self._have_taken(newest, servers)
                return self.published(newest, unchanged=True)
            with storage_errors(self.root):
                if newest is not None and not allow_interface_change:
                    require_same_interface(newest, draft)
                manifest = draft.model_copy(update={"version": self._next_number(draft.name)})
                with staging_folder(self.staging) as staged:
                    self._write(staged, manifest, files, {**texts, **described(manifest)})
                    final = self.release(manifest.name, manifest.version)
                    make_folder(final.parent)
                    if servers is not None:
                        self.withdrawals(manifest.name).begin_trial(manifest.version)
                    move_into_place(staged, final)
            self._have_taken(manifest, servers)
            return self.published(manifest, unchanged=False)

    def _newest_that_stays(self, draft: Manifest, *, force: bool) -> Manifest | None:
        """The newest release, after releases with an interrupted publication are withdrawn.

        The draft's own may stay.
        """
        newest = self.newest(draft.name)
        again = newest is not None and not force and self.holds(newest, draft)
        self._settle(draft.name, stays=newest.version if newest is not None and again else None)
        return self.newest(draft.name)

    def _next_number(self, model: str) -> int:
        """Return a version number that Triton was never shown, not even for a deleted release."""
        used_numbers = (*self.versions(model), *self.views(model).shown(), *self.withdrawals(model).numbers())
        return max(used_numbers, default=0) + 1

    def _write(self, staged: Path, manifest: Manifest, files: Mapping[str, Path], texts: Mapping[str, str]) -> None:
        """Package a release and verify it by reading it back: its data may have been corrupted since the checks."""
        for name, path in files.items():
            self._digester.link(path, staged / name)
        for name, text in texts.items():
            (staged / name).write_text(text, encoding="utf-8")
            (staged / name).chmod(0o755 if text.startswith("#!") else 0o644)
        (staged / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1))
        read_manifest(staged)  # what cannot be read back must not be published
        damaged = damaged_file(staged, manifest, self._digester, afresh=True)
        if damaged is not None:
            raise RepositoryError(
                f"{damaged} was damaged on the disk after it was checked; nothing was published",
                remedy="run the same command again: the damaged step is found and done again",
            )
        fsync_tree(staged)

    def require_own(self, model: str) -> None:
        """Require that this repository decides which version of a model Triton is shown.

        Raises:
            RepositoryError: the repository mirrors a store.
        """
        marker = self.marker()
        if marker is not None and marker.mirrors:
            raise RepositoryError(
                f"{self.root} shows what {marker.mirrors} says",
                remedy=f"go back there: plansmith rollback {model} --store {marker.typed or marker.mirrors}",
            )

    def withdraw(self, model: str, version: int, reason: str, waiting: Waiting = lambda _: None) -> None:
        """Withdraw a release for good, and show the newest one before it.

        Args:
            model: its name.
            version: the release's.
            reason: for whoever asks why it is not shown.
            waiting: told when another process publishes the same model.

        Raises:
            RepositoryError: there is no such release, or the repository mirrors a store.
        """
        self.find(f"{model}@{version}")
        self.require_own(model)
        with storage_errors(self.root), self.exclusive(model, waiting):
            self._withdraw(model, version, reason)

    def _withdraw(self, model: str, version: int, reason: str) -> None:
        self.withdrawals(model).withdraw(version, reason)
        self._exchange_view(model)

    def settle_all(self) -> None:
        """Recover from killed processes: hide withdrawn releases and end all trials.

        A model that another process publishes now is left alone: that process does the same for it.

        Raises:
            RepositoryError: a full or unwritable disk.
        """
        for model in self.model_names():
            with suppress(HeldByAnother), storage_errors(self.root), self.exclusive(model, not_waiting):
                self._settle(model)

    def settle(self, model: str) -> None:
        """Recover one model, as `settle_all`; the caller holds its lock."""
        with storage_errors(self.root):
            self._settle(model)

    def _settle(self, model: str, *, stays: int | None = None) -> None:
        """Withdraw releases left on trial by an ended publication, except one version, and hide all withdrawn ones."""
        withdrawals = self.withdrawals(model)
        released = self.versions(model)
        for number in withdrawals.on_trial():
            if number not in released:
                withdrawals.end_trial(number)  # killed before there was a release
            elif number != stays:
                withdrawals.withdraw(number, _INTERRUPTED)
        if not set(withdrawals.numbers()).isdisjoint(self.views(model).shown()):
            self._exchange_view(model)
        else:
            self.showing(model).tidy()

    def _have_taken(self, manifest: Manifest, servers: Servers | None) -> None:
        """Show a published release and have the servers load it; on failure, withdraw the one on trial."""
        withdrawals = self.withdrawals(manifest.name)
        try:
            with storage_errors(self.root):
                self._exchange_view(manifest.name)
            if servers is not None:
                servers.take(self.root / manifest.name, manifest.version)
            with storage_errors(self.root):
                withdrawals.end_trial(manifest.version)
        except BaseException as error:
            if servers is None or not withdrawals.is_on_trial(manifest.version):
                raise
            note = self._taken_back(manifest, error, servers)
            if not isinstance(error, PlansmithError):
                error.add_note(note)
                raise
            kind = RepositoryError if isinstance(error, RepositoryError) else ServedCheckError
            raise kind(f"{error.message}\n{note}", remedy=error.remedy, log=error.log) from error

    def _taken_back(self, manifest: Manifest, error: BaseException, servers: Servers) -> str:
        """Withdraw a release that was shown, notify the servers, and return a description of what was done."""
        model, version = manifest.name, manifest.version
        with storage_errors(self.root):
            self._withdraw(model, version, error.message if isinstance(error, PlansmithError) else _INTERRUPTED)
        shown = self.views(model).shown()
        after = f"Triton is shown version {shown[-1]} again" if shown else "Triton is shown no version of it"
        note = f"version {version} of {model} was withdrawn, and {after}"
        try:
            servers.take_back(self.root / model)
        except PlansmithError as second:
            note += f"; but {in_one_line(second.message)}"
        return note

    def claim(self, target: str, *, mirrors: str = "", typed: str = "") -> None:
        """Record the repository's owner, unless already recorded; arguments and errors as for `require_target`.

        `typed` is what a person types for the store that it mirrors.
        """
        with locked(self.store / "locks" / "repository"):
            self.require_target(target, mirrors=mirrors)
            if self.root.stat().st_dev != self.store.stat().st_dev:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            if self.marker() is None:
                write_marker(self.store, RepositoryMarker(target=target, mirrors=mirrors, typed=typed), self.staging)

    def _exchange_view(self, model: str) -> None:
        """Replace the view: show the newest release and the compatible versions, without withdrawn ones."""
        newest = self.newest(model)
        if newest is None:
            self.showing(model).hide()
            return
        every = [self.manifest(model, number) for number in self.standing(model)]
        fitting = [m for m in every if misfit(m, newest) is None and self.is_whole(m)]
        self.showing(model).show(newest, fitting)


def rollback_of(repository: ModelRepository, model: str) -> int | None:
    """Return the version to lead after withdrawing the leading one: the newest earlier one that is intact."""
    before = repository.standing(model)[:-1]
    return next((number for number in reversed(before) if repository.damage(model, number) is None), None)


def hidden_since(repository: ModelRepository, model: str, number: int) -> float:
    """Return the latest time since when a release is hidden, in seconds since 1970; 0 if unknown.

    Since it was withdrawn itself; or since a release came that it does not stand beside, and none that it does came
    after that, or such a one was withdrawn.
    """
    withdrawals = repository.withdrawals(model)
    own = withdrawals.moment(number)
    if own is not None:
        return seconds_of(own)
    moments = [withdrawals.moment(later_number) for later_number in withdrawals.numbers() if later_number > number]
    return max(
        (seconds_of(timestamp) for timestamp in (*moments, _unfit_since(repository, model, number)) if timestamp),
        default=0.0,
    )


def _unfit_since(repository: ModelRepository, model: str, number: int) -> str | None:
    """The creation time of the first of the newest releases incompatible with a release.

    None where the newest is compatible.
    """
    manifest, since = repository.readable(model, number), None
    for later_number in reversed(
        [later_number for later_number in repository.standing(model) if later_number > number]
    ):
        newer = repository.readable(model, later_number)
        if manifest is None or newer is None or misfit(manifest, newer) is None:
            break
        since = newer.created
    return since


@dataclass(frozen=True)
class Version:
    """One version of a model in a listing.

    `made` and `verdict` are None where the manifest is damaged; `hidden` says why Triton is not shown it.
    """

    number: int
    made: str | None
    verdict: str | None
    shown: bool
    serves: bool
    hidden: str | None

    def as_json(self) -> dict[str, Any]:
        """Return the version as JSON values."""
        fields = asdict(self)
        return {"version": fields.pop("number"), **fields}


def versions(repository: ModelRepository, model: str) -> list[Version]:
    """Return all versions of a model, ascending; Triton serves the newest shown, or as the newest's policy says."""
    shown = repository.views(model).shown()
    numbers = repository.versions(model)
    leading = repository.leading(model)
    newest = repository.readable(model, leading) if leading is not None else None
    served = policy_of(newest).served(shown)
    marker = repository.marker()
    otherwise = "its store says another" if marker is not None and marker.mirrors else "the view is older"
    entries = []
    for number in numbers:
        manifest = repository.readable(model, number)
        hidden = None
        if number not in shown:
            hidden = repository.why_hidden(model, number, newest) or otherwise
        entries.append(
            Version(
                number=number,
                made=manifest.created if manifest else None,
                verdict=manifest.validation.verdict if manifest else None,
                shown=number in shown,
                serves=number in served,
                hidden=hidden,
            )
        )
    return entries
