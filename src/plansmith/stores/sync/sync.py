"""Sync of a mirror and its servers with the aliases of a store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plansmith.errors import (
    EnvironmentFault,
    PlansmithError,
    RepositoryError,
    ServedCheckError,
    SignatureError,
    in_one_line,
)
from plansmith.formatting import format_bytes
from plansmith.records.destination import CURRENT
from plansmith.records.model import Record
from plansmith.stores.backend.documents import content_of, utc_now
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.stores.layout import live_key
from plansmith.stores.records import Catalogue, LiveReport, Pointer
from plansmith.stores.store import Store
from plansmith.stores.sync.mirror import Mirror, pull, read_note, write_note
from plansmith.stores.sync.servers import MirrorServers
from plansmith.system.files import storage_errors
from plansmith.triton.repository.release import policy_of
from plansmith.triton.repository.signature import require_shown_signed

_LONGEST_SECONDS = 300.0

REPORT_SECONDS = 120
"""How long a report stands in the store before it is written again, though nothing changed."""


@dataclass
class Pause:
    """Retry backoff: how long a failed operation is not retried; `first` seconds, then increasing."""

    first: float
    seconds: float = 0
    until: float = 0

    def begin(self) -> None:
        """Record a failure."""
        self.seconds = min(max(self.first, 2 * self.seconds), _LONGEST_SECONDS)
        self.until = time.monotonic() + self.seconds

    def end(self) -> None:
        """Record a success."""
        self.seconds = self.until = 0

    @property
    def is_over(self) -> bool:
        """Whether the operation may be retried."""
        return time.monotonic() >= self.until


def fault_of(error: PlansmithError | OSError) -> PlansmithError:
    """Convert an error to a `PlansmithError`.

    A disk or mounted store may fail at any time and recover a minute later.
    """
    if isinstance(error, PlansmithError):
        return error
    why = os.strerror(error.errno) if error.errno else str(error)
    return EnvironmentFault(
        f"{error.filename or 'the file system'}: {why}",
        remedy="see that its file system is mounted, can be written to, and has space",
    )


def in_words(error: PlansmithError) -> str:
    """Format an error and its remedy in one line."""
    remedy = in_one_line(error.remedy)
    return f"{in_one_line(error.message)} ({remedy})" if remedy else in_one_line(error.message)


class Refusal(Record):
    """A version that a server refused while an alias, moved at `moved`, pointed to it, and why."""

    version: int
    moved: str
    reason: str


class Following(Record):
    """Local state of a followed model.

    `proven`: the last version that a server loaded; `refusal`: of what the alias stands for; `refused`: all versions
    that a server refused and none loaded later: no other is to be refused for one of them beside it.
    """

    proven: int | None = None
    refusal: Refusal | None = None
    refused: tuple[int, ...] = ()


@dataclass(frozen=True)
class SyncContext:
    """Sync context shared by all models.

    Args:
        store: what is followed.
        mirror: shows it.
        loaders: the servers that read the mirror.
        name: of whoever loads, in reports.
        alias: what it stands for is shown.
        pause_seconds: before what failed is tried again for the first time.
        say: given a line for every event.
        report: given every report that is news.
        moved: told of bytes on their way.
    """

    store: Store
    mirror: Mirror
    loaders: MirrorServers
    name: str
    alias: str = CURRENT
    pause_seconds: float = 10
    say: Callable[[str], None] = lambda _: None
    report: Callable[[LiveReport], None] = lambda _: None
    moved: Moved = untold


class FollowedModel:
    """A followed model: on a failure the current version keeps serving, and the error is reported once.

    What a server refuses is not shown any more, and not tried again until the alias is moved: the version before it
    that was loaded is shown in its place.

    Args:
        model: its name.
        around: what it shares with others.
    """

    def __init__(self, model: str, around: SyncContext) -> None:
        self._model = model
        self._around = around
        self._mirror = around.mirror
        self._views = around.mirror.repository.views(model)
        self._note = around.mirror.repository.store / "following" / f"{model}.json"
        self._fetching, self._loading = Pause(around.pause_seconds), Pause(around.pause_seconds)
        self._pointer: Pointer | None = None
        self._followed = self._failed = ""  # tokens of catalogues
        self._serves: int | None = None
        self._accepted = ""  # state of the view that the signature policy accepts
        self._troubles: dict[str, str] = {}  # by what failed
        self._reported: LiveReport | None = None
        self._report_until = 0.0

    def look(self, catalogue: Catalogue | None) -> list[PlansmithError]:
        """Do what is due now, and return the errors.

        Args:
            catalogue: the model's as it is now, which has the alias; None where there is none, or no asking for it.
        """
        return [*self._attempt("follow", lambda: self._follow(catalogue)), *self._attempt("keep", self._keep)]

    def report(self, *, is_reached: bool) -> bool:
        """Report the served versions: to the user if they changed, to the store if reachable.

        Return whether it still is.
        """
        faults = self._attempt("report", lambda: self._report(is_reached=is_reached))
        return is_reached and not any(isinstance(fault, EnvironmentFault) for fault in faults)

    def forget_refusal(self) -> None:
        """Retry what servers refused."""
        self._remember(self._read_state().model_copy(update={"refusal": None, "refused": ()}))

    def _attempt(self, task: str, work: Callable[[], bool]) -> list[PlansmithError]:
        """Run a task that returns whether it did work; report an error unless it is the same as before."""
        try:
            is_done = work()
        except (PlansmithError, OSError) as error:
            fault = fault_of(error)
            line = in_one_line(fault.message)
            if self._troubles.get(task) != line:
                self._say(in_words(fault))
            self._troubles[task] = line
            return [fault.located(model=self._model)]
        if is_done:
            self._troubles.pop(task, None)
        return []

    def _follow(self, catalogue: Catalogue | None) -> bool:
        """Fetch the version that the alias points to, and show it to the servers."""
        if catalogue is None or (catalogue.token == self._failed and not self._fetching.is_over):
            return False
        if catalogue.token == self._followed:
            return True
        try:
            self._pointer = catalogue.aliases[self._around.alias]
            self._bring(catalogue, self._pointer)
        except (PlansmithError, OSError):
            self._failed = catalogue.token
            self._fetching.begin()
            raise
        self._followed, self._failed = catalogue.token, ""
        self._fetching.end()
        self._loading.end()
        return True

    def _bring(self, catalogue: Catalogue, pointer: Pointer) -> None:
        refused = self._refused()
        if refused is not None:
            raise ServedCheckError(
                f"version {pointer.version} is not tried again: {refused}",
                remedy="have the alias stand for another version, or pass --retry",
            )
        state = self._read_state().model_copy(update={"refusal": None})
        self._remember(state)
        version, store = catalogue.version(pointer.version), self._around.store
        if version is None:
            raise RepositoryError(
                f"{self._around.alias} stands for version {pointer.version}, which {store.place} does not have",
                remedy=f"see what is damaged: plansmith verify {self._model} --store {store.typed}",
            )
        spared = [state.proven] if state.proven is not None else []
        pulled = pull(
            self._around.store,
            self._mirror,
            catalogue,
            version,
            line=[number for number in pointer.line if number not in state.refused],
            spared=spared,
            moved=self._around.moved,
        )
        if not pulled.unchanged:
            fetched, total = format_bytes(pulled.fetched_bytes), format_bytes(pulled.total_bytes)
            self._say(f"version {pulled.version} is here, {fetched} of {total} fetched")

    def _keep(self) -> bool:
        """Keep the servers on the shown version; roll back if one fails to serve it."""
        shown = self._mirror.shown(self._model)
        if shown is None or not self._loading.is_over:
            return shown is None
        self._require_signed()
        try:
            serving = self._around.loaders.keep(*self._view())
        except ServedCheckError as refused:
            if shown == self._read_state().proven:
                self._loading.begin()
                raise
            raise self._gone_back(shown, refused) from refused
        self._loading.end()
        if self._serves != shown and (serving or not len(self._around.loaders)):
            if serving:
                state = self._read_state()
                refused_still = tuple(number for number in state.refused if number != shown)
                self._remember(state.model_copy(update={"proven": shown, "refused": refused_still}))
            self._serves = shown
            self._say(f"version {shown} {'serves' if serving else 'is shown'}")
        return True

    def _require_signed(self) -> None:
        """Require that this machine's policy accepts what is shown, before a server is told to load it."""
        policy, state = self._mirror.signatures, self._views.state()
        if policy is None or state == self._accepted:
            return
        try:
            require_shown_signed(self._mirror.repository, self._model, policy)
        except SignatureError:
            self._loading.begin()  # all files were read for it
            raise
        self._accepted = state

    def _view(self) -> tuple[Path, str, int | None]:
        """Return the view of the servers: model folder, state, and the version that must answer requests."""
        repository, shown = self._mirror.repository, self._views.shown()
        served = policy_of(repository.manifest(self._model, shown[-1])).served(shown) if shown else ()
        return repository.root / self._model, self._views.state(), max(served, default=None)

    def _gone_back(self, version: int, refused: ServedCheckError) -> ServedCheckError:
        """Roll back to the previously served view; notify the servers, record it and report it."""
        moved = self._pointer.moved if self._pointer is not None else ""
        reason, state = in_one_line(refused.message), self._read_state()
        refusal = Refusal(version=version, moved=moved, reason=reason)
        numbers = tuple(sorted({*state.refused, version}))
        state = state.model_copy(update={"refusal": refusal, "refused": numbers})
        self._show_proven(state)
        shown = self._mirror.shown(self._model)
        after = f"version {shown} goes on" if shown is not None else "no version is shown"
        try:
            self._around.loaders.take_back(*self._view())
        except ServedCheckError as second:
            after = (
                f"going back to {f'version {shown}' if shown else 'none'} failed, too: {in_one_line(second.message)}"
            )
        self._serves = shown
        try:
            self._remember(state)
        except OSError as error:
            after += f"; that cannot be noted: {fault_of(error).message}"
        return ServedCheckError(f"{reason}; {after}", remedy=refused.remedy, log=refused.log)

    def _show_proven(self, state: Following) -> None:
        proven, repository = state.proven, self._mirror.repository
        with storage_errors(repository.root), repository.exclusive(self._model):
            numbers = repository.versions(self._model)
            if proven in numbers:
                self._mirror.show(self._model, proven, set(numbers) - set(state.refused))
            else:
                repository.showing(self._model).hide()

    def _report(self, *, is_reached: bool) -> bool:
        if self._pointer is None:
            return False
        loaders = self._around.loaders
        serves = tuple(loaders.ready(self._model) if len(loaders) else self._views.shown())
        troubles = [line for task, line in self._troubles.items() if task != "report"]
        away = [in_one_line(fault.message) for fault in loaders.away()]
        report = LiveReport(
            loader=self._around.name,
            model=self._model,
            alias=self._around.alias,
            wanted=self._pointer.version,
            serves=serves,
            failed=self._refused() or "; ".join([*troubles, *away]) or None,
            seen="",
        )
        current = report.model_copy(update={"seen": utc_now()})
        if report != self._reported:
            self._reported, self._report_until = report, 0
            self._around.report(current)
        if not is_reached or time.monotonic() < self._report_until:
            return False
        self._around.store.objects.put(live_key(self._model, report.loader), content_of(current))
        self._report_until = time.monotonic() + REPORT_SECONDS
        return True

    def _refused(self) -> str | None:
        """Return why servers refused the alias's current version; None if they did not."""
        refusal, pointer = self._read_state().refusal, self._pointer
        if refusal is None or pointer is None:
            return None
        return refusal.reason if (refusal.version, refusal.moved) == (pointer.version, pointer.moved) else None

    def _read_state(self) -> Following:
        return read_note(self._note, Following) or Following()

    def _remember(self, state: Following) -> None:
        if state != self._read_state():
            write_note(self._note, state, self._mirror.repository.staging)

    def _say(self, line: str) -> None:
        self._around.say(f"{self._model}: {line}")


class Sync:
    """Sync loop: polls a store and applies changes.

    A store or server that cannot be reached is said once and asked again; what serves goes on.

    Args:
        around: the store, the mirror, which is held for it alone, and the servers.
        models: these alone; all of the store that have the alias where there are none.
    """

    def __init__(self, around: SyncContext, models: tuple[str, ...] = ()) -> None:
        self._around = around
        self._named = models
        self._models = {model: FollowedModel(model, around) for model in models or around.mirror.repository.models()}
        self._asking = Pause(around.pause_seconds)
        self._messages: dict[str, list[str]] = {}

    def look(self) -> list[PlansmithError]:
        """Do what is due now, and return the errors of this pass."""
        self._around.loaders.ask_again()
        catalogues, faults = self._catalogues() if self._asking.is_over else (None, [])
        for model in catalogues or ():
            self._models.setdefault(model, FollowedModel(model, self._around))
        for model, followed in sorted(self._models.items()):
            faults += followed.look(catalogues.get(model) if catalogues is not None else None)
        # A report may wait for a store that does not answer, and no server is to wait for that.
        is_reached = catalogues is not None
        for followed in self._models.values():
            is_reached = followed.report(is_reached=is_reached)
        self._say_news("server", self._around.loaders.away(), "it is loaded when it answers again")
        return faults

    def shows_older(self, faults: Iterable[PlansmithError]) -> bool:
        """Whether every model that failed in a pass still shows complete versions.

        Args:
            faults: of the look; one that is of no model is of all.
        """
        failed = {fault.model for fault in faults}
        models = self._models.keys() if "" in failed else failed
        return bool(models) and all(self._around.mirror.is_whole(model) for model in models)

    def forget_refusals(self) -> None:
        """Retry what servers refused."""
        for followed in self._models.values():
            followed.forget_refusal()

    def _catalogues(self) -> tuple[dict[str, Catalogue] | None, list[PlansmithError]]:
        """Return the store's catalogue of each followed model, and the errors; None if it is unreachable."""
        store = self._around.store
        catalogues: dict[str, Catalogue] = {}
        faults: list[PlansmithError] = []
        unfollowed: list[PlansmithError] = []
        try:
            _require_there(store)
            for model in self._named or store.models():
                try:
                    catalogue = store.catalogue(model)
                except RepositoryError as error:
                    faults.append(error.located(model=model))
                    continue
                if self._around.alias in catalogue.aliases:
                    catalogues[model] = catalogue
                else:
                    (faults if self._named else unfollowed).append(self._without_alias(model))
            if not (catalogues or faults):
                faults.append(self._without_models(is_empty=not unfollowed))
        except (EnvironmentFault, RepositoryError, OSError) as error:
            self._asking.begin()
            faults.append(fault_of(error))
            self._say_news("store", faults, "what serves goes on")
            return None, faults
        self._asking.end()
        self._say_news("store", faults, "what serves goes on")
        self._say_news("alias", unfollowed, "it is not followed")
        return catalogues, faults

    def _without_alias(self, model: str) -> PlansmithError:
        alias, store = self._around.alias, self._around.store
        return RepositoryError(
            f"{model} in {store.place} has no alias {alias!r}",
            remedy=f"plansmith promote {model}@VERSION {alias} --store {store.typed}",
            model=model,
        )

    def _without_models(self, *, is_empty: bool) -> PlansmithError:
        """Return the error for following no model: an empty store, or a mistyped alias."""
        alias, store = self._around.alias, self._around.store
        if is_empty:
            return RepositoryError(
                f"{store.place} has no model yet", remedy=f"plansmith publish MODEL {store.typed} --alias {alias}"
            )
        return RepositoryError(
            f"no model in {store.place} has the alias {alias!r}",
            remedy=f"see which there are: plansmith versions --store {store.typed}",
        )

    def _say_news(self, topic: str, faults: Sequence[PlansmithError], comfort: str) -> None:
        """Log the faults that the previous poll did not report."""
        previous = self._messages.get(topic, ())
        self._messages[topic] = [in_one_line(fault.message) for fault in faults]
        for fault, line in zip(faults, self._messages[topic], strict=True):
            if line not in previous:
                self._around.say(f"{in_words(fault)}; {comfort}")


def _require_there(store: Store) -> None:
    """Check that the store exists, and that its path is not just the bare mount point of a remote folder."""
    if store.marker() is None:
        raise EnvironmentFault(
            f"there is no store at {store.place}", remedy="see that it is mounted, and that --store is right"
        )
