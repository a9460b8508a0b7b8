"""One model of a mirror: brought to what its alias stands for, and kept served by the servers beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, ServedCheckError, in_one_line
from plansmith.formatting import format_bytes
from plansmith.records.destination import CURRENT
from plansmith.records.model import Record
from plansmith.stores.backend.documents import content_of, utc_now
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.stores.layout import live_key
from plansmith.stores.records import Catalogue, LiveReport, Pointer
from plansmith.stores.store import Store
from plansmith.stores.sync.mirror import Mirror
from plansmith.stores.sync.pull import pull
from plansmith.stores.sync.servers import MirrorServers
from plansmith.stores.sync.state_file import read_note, write_note
from plansmith.system.files import storage_errors
from plansmith.triton.repository.release import policy_of

_LONGEST_SECONDS = 300.0


@dataclass
class Pause:
    """Until when something that failed is not tried again: `first` seconds, then longer and longer."""

    first: float
    seconds: float = 0
    until: float = 0

    def begin(self) -> None:
        """It failed."""
        self.seconds = min(max(self.first, 2 * self.seconds), _LONGEST_SECONDS)
        self.until = time.monotonic() + self.seconds

    def end(self) -> None:
        """It did not."""
        self.seconds = self.until = 0

    @property
    def is_over(self) -> bool:
        """Whether it may be tried."""
        return time.monotonic() >= self.until


def fault_of(error: PlansmithError | OSError) -> PlansmithError:
    """What failed: a disk, or a store that is mounted, may fail at any time, and be there again a minute later."""
    if isinstance(error, PlansmithError):
        return error
    why = os.strerror(error.errno) if error.errno else str(error)
    return EnvironmentFault(
        f"{error.filename or 'the file system'}: {why}",
        remedy="see that its file system is mounted, can be written to, and has space",
    )


def in_words(error: PlansmithError) -> str:
    """What failed, and what to type next."""
    remedy = in_one_line(error.remedy)
    return f"{in_one_line(error.message)} ({remedy})" if remedy else in_one_line(error.message)


REPORT_SECONDS = 120
"""How long a report stands in the store before it is written again, though nothing changed."""


class Refusal(Record):
    """A version that a server refused while an alias stood for it since `moved`, and why."""

    version: int
    moved: str
    reason: str


class Following(Record):
    """What is known of a model here.

    `proven`: the last version that a server loaded; `refusal`: of what the alias stands for; `refused`: all versions
    that a server refused and none loaded later: no other is to be refused for one of them beside it.
    """

    proven: int | None = None
    refusal: Refusal | None = None
    refused: tuple[int, ...] = ()


@dataclass(frozen=True)
class SyncContext:
    """What all models have in common.

    Args:
        store: what is followed.
        mirror: shows it.
        loaders: the servers that read the mirror.
        name: of whoever loads, in reports.
        alias: what it stands for is shown.
        pause_seconds: before what failed is tried again for the first time.
        say: given a line for every event.
        told: given every report that is news.
        moved: told of bytes on their way.
    """

    store: Store
    mirror: Mirror
    loaders: MirrorServers
    name: str
    alias: str = CURRENT
    pause_seconds: float = 10
    say: Callable[[str], None] = lambda _: None
    told: Callable[[LiveReport], None] = lambda _: None
    moved: Moved = untold


class FollowedModel:
    """A model in its surroundings: what fails leaves serving what served, and is said once.

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
        self._troubles: dict[str, str] = {}  # by what failed
        self._reported: LiveReport | None = None
        self._report_until = 0.0

    def look(self, catalogue: Catalogue | None) -> list[PlansmithError]:
        """Do what has to be done now; what failed.

        Args:
            catalogue: the model's as it is now, which has the alias; None where there is none, or no asking for it.
        """
        return [*self._attempt("follow", lambda: self._follow(catalogue)), *self._attempt("keep", self._keep)]

    def report(self, *, is_reached: bool) -> bool:
        """Tell what serves: a person if it is news, and the store if it is reached; whether it still is."""
        faults = self._attempt("report", lambda: self._report(is_reached=is_reached))
        return is_reached and not any(isinstance(fault, EnvironmentFault) for fault in faults)

    def forget_refusal(self) -> None:
        """Try again what servers refused."""
        self._remember(self._known().model_copy(update={"refusal": None, "refused": ()}))

    def _attempt(self, what: str, work: Callable[[], bool]) -> list[PlansmithError]:
        """Do a piece of work, which says whether there was any, and say what fails unless it failed so before."""
        try:
            is_done = work()
        except (PlansmithError, OSError) as error:
            fault = fault_of(error)
            line = in_one_line(fault.message)
            if self._troubles.get(what) != line:
                self._say(in_words(fault))
            self._troubles[what] = line
            return [fault.located(model=self._model)]
        if is_done:
            self._troubles.pop(what, None)
        return []

    def _follow(self, catalogue: Catalogue | None) -> bool:
        """Bring the version here that the alias stands for, and show it."""
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
        known = self._known().model_copy(update={"refusal": None})
        self._remember(known)
        version, store = catalogue.version(pointer.version), self._around.store
        if version is None:
            raise RepositoryError(
                f"{self._around.alias} stands for version {pointer.version}, which {store.place} does not have",
                remedy=f"see what is damaged: plansmith verify {self._model} --store {store.typed}",
            )
        spared = [known.proven] if known.proven is not None else []
        pulled = pull(
            self._around.store,
            self._mirror,
            catalogue,
            version,
            line=[number for number in pointer.line if number not in known.refused],
            spared=spared,
            moved=self._around.moved,
        )
        if not pulled.unchanged:
            fetched, total = format_bytes(pulled.fetched_bytes), format_bytes(pulled.total_bytes)
            self._say(f"version {pulled.version} is here, {fetched} of {total} fetched")

    def _keep(self) -> bool:
        """Have the servers serve what is shown; go back where one does not."""
        shown = self._mirror.shown(self._model)
        if shown is None or not self._loading.is_over:
            return shown is None
        try:
            serving = self._around.loaders.keep(*self._view())
        except ServedCheckError as refused:
            if shown == self._known().proven:
                self._loading.begin()
                raise
            raise self._gone_back(shown, refused) from refused
        self._loading.end()
        if self._serves != shown and (serving or not len(self._around.loaders)):
            if serving:
                known = self._known()
                refused_still = tuple(number for number in known.refused if number != shown)
                self._remember(known.model_copy(update={"proven": shown, "refused": refused_still}))
            self._serves = shown
            self._say(f"version {shown} {'serves' if serving else 'is shown'}")
        return True

    def _view(self) -> tuple[Path, str, int | None]:
        """What servers are shown: the model's folder, its state, and the version that has to answer requests."""
        repository, shown = self._mirror.repository, self._views.shown()
        served = policy_of(repository.manifest(self._model, shown[-1])).served(shown) if shown else ()
        return repository.root / self._model, self._views.state(), max(served, default=None)

    def _gone_back(self, version: int, refused: ServedCheckError) -> ServedCheckError:
        """Show what served before, tell the servers, note it, and say what was done."""
        moved = self._pointer.moved if self._pointer is not None else ""
        reason, known = in_one_line(refused.message), self._known()
        refusal = Refusal(version=version, moved=moved, reason=reason)
        numbers = tuple(sorted({*known.refused, version}))
        known = known.model_copy(update={"refusal": refusal, "refused": numbers})
        self._show_proven(known)
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
            self._remember(known)
        except OSError as error:
            after += f"; that cannot be noted: {fault_of(error).message}"
        return ServedCheckError(f"{reason}; {after}", remedy=refused.remedy, log=refused.log)

    def _show_proven(self, known: Following) -> None:
        proven, repository = known.proven, self._mirror.repository
        with storage_errors(repository.root), repository.exclusive(self._model):
            numbers = repository.versions(self._model)
            if proven in numbers:
                self._mirror.show(self._model, proven, set(numbers) - set(known.refused))
            else:
                repository.showing(self._model).hide()

    def _report(self, *, is_reached: bool) -> bool:
        if self._pointer is None:
            return False
        loaders = self._around.loaders
        serves = tuple(loaders.ready(self._model) if len(loaders) else self._views.shown())
        troubles = [line for what, line in self._troubles.items() if what != "report"]
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
        seen = report.model_copy(update={"seen": utc_now()})
        if report != self._reported:
            self._reported, self._report_until = report, 0
            self._around.told(seen)
        if not is_reached or time.monotonic() < self._report_until:
            return False
        self._around.store.objects.put(live_key(self._model, report.loader), content_of(seen))
        self._report_until = time.monotonic() + REPORT_SECONDS
        return True

    def _refused(self) -> str | None:
        """Why servers refused what the alias stands for now; None where they did not."""
        refusal, pointer = self._known().refusal, self._pointer
        if refusal is None or pointer is None:
            return None
        return refusal.reason if (refusal.version, refusal.moved) == (pointer.version, pointer.moved) else None

    def _known(self) -> Following:
        return read_note(self._note, Following) or Following()

    def _remember(self, known: Following) -> None:
        if known != self._known():
            write_note(self._note, known, self._mirror.repository.staging)

    def _say(self, line: str) -> None:
        self._around.say(f"{self._model}: {line}")
