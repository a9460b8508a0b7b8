"""One model of a mirror: brought to what its alias stands for, and kept served by the servers beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from plansmith.destinations import CURRENT
from plansmith.durable import storage_errors
from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, ServedCheckError, in_one_line
from plansmith.stores.documents import content_of, utc_now
from plansmith.stores.layout import live_key
from plansmith.stores.loaders import Loaders
from plansmith.stores.mirror import Mirror
from plansmith.stores.notes import read_note, write_note
from plansmith.stores.objects import Moved, untold
from plansmith.stores.pauses import Pause
from plansmith.stores.pulling import pull
from plansmith.stores.records import Catalogue, LiveReport, Pointer
from plansmith.stores.store import Store
from plansmith.triton.releases import policy_of
from plansmith.types import Record
from plansmith.units import bytes_in_words

REPORT_SECONDS = 120
"""How long a report stands in the store before it is written again, though nothing changed."""


class Refusal(Record):
    """A version that a server refused while an alias stood for it since `moved`, and why."""

    version: int
    moved: str
    reason: str


class Following(Record):
    """What is known of a model here: the last version that servers loaded, and what they refused since."""

    proven: int | None = None
    refusal: Refusal | None = None


@dataclass(frozen=True)
class Surroundings:
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
    loaders: Loaders
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

    def __init__(self, model: str, around: Surroundings) -> None:
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
            catalogue: the model's as it is now; None where it cannot be asked for.
        """
        faults = [*self._attempt("follow", lambda: self._follow(catalogue)), *self._attempt("keep", self._keep)]
        self._attempt("report", self._report)
        return faults

    def forget_refusal(self) -> None:
        """Try again what servers refused."""
        self._remember(self._known().model_copy(update={"refusal": None}))

    def _attempt(self, what: str, work: Callable[[], bool]) -> list[PlansmithError]:
        """Do a piece of work, which says whether there was any, and say what fails unless it failed so before."""
        try:
            is_done = work()
        except PlansmithError as error:
            line = in_one_line(error.message)
            if self._troubles.get(what) != line:
                self._say(line)
            self._troubles[what] = line
            return [error.located(model=self._model)]
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
            self._bring(catalogue, self._pointed(catalogue))
        except PlansmithError:
            self._failed = catalogue.token
            self._fetching.begin()
            raise
        self._followed, self._failed = catalogue.token, ""
        self._fetching.end()
        self._loading.end()
        return True

    def _pointed(self, catalogue: Catalogue) -> Pointer:
        alias, place = self._around.alias, self._around.store.place
        if alias not in catalogue.aliases:
            raise RepositoryError(
                f"{self._model} in {place} has no alias {alias!r}",
                remedy=f"plansmith promote {self._model}@VERSION {alias} --store {place}",
            )
        self._pointer = catalogue.aliases[alias]
        return self._pointer

    def _bring(self, catalogue: Catalogue, pointer: Pointer) -> None:
        refused = self._refused()
        if refused is not None:
            raise ServedCheckError(
                f"version {pointer.version} is not tried again: {refused}",
                remedy="have the alias stand for another version, or pass --retry",
            )
        known = self._known().model_copy(update={"refusal": None})
        self._remember(known)
        version, place = catalogue.version(pointer.version), self._around.store.place
        if version is None:
            raise RepositoryError(
                f"{self._around.alias} stands for version {pointer.version}, which {place} does not have",
                remedy=f"see what is damaged: plansmith verify {self._model} --store {place}",
            )
        spared = [known.proven] if known.proven is not None else []
        pulled = pull(
            self._around.store,
            self._mirror,
            catalogue,
            version,
            line=pointer.line,
            spared=spared,
            moved=self._around.moved,
        )
        if not pulled.unchanged:
            fetched, total = bytes_in_words(pulled.fetched_bytes), bytes_in_words(pulled.total_bytes)
            self._say(f"version {pulled.version} is here, {fetched} of {total} fetched")

    def _keep(self) -> bool:
        """Have the servers serve what is shown; go back where one does not."""
        known, shown = self._known(), self._mirror.shown(self._model)
        if shown is not None and known.refusal is not None and known.refusal.version == shown:
            self._show_proven()  # killed before it was
            shown = self._mirror.shown(self._model)
        if shown is None or not self._loading.is_over:
            return shown is None
        try:
            serving = self._load()
        except ServedCheckError as refused:
            if shown == known.proven:
                self._loading.begin()
                raise
            raise self._gone_back(shown, refused) from refused
        self._loading.end()
        if serving and self._serves != shown:
            self._serves = shown
            self._remember(self._known().model_copy(update={"proven": shown}))
            self._say(f"version {shown} {'serves' if len(self._around.loaders) else 'is shown'}")
        return True

    def _load(self) -> bool:
        """Have every server load what is shown; whether any serves it, or there is none to ask."""
        repository, shown = self._mirror.repository, self._views.shown()
        served = policy_of(repository.manifest(self._model, shown[-1])).served(shown)
        folder = repository.root / self._model
        serving = self._around.loaders.keep(folder, self._views.state(), max(served, default=None))
        return serving > 0 or not len(self._around.loaders)

    def _gone_back(self, version: int, refused: ServedCheckError) -> ServedCheckError:
        """Show what served before, tell the servers, and say what was done."""
        moved = self._pointer.moved if self._pointer is not None else ""
        reason = in_one_line(refused.message)
        refusal = Refusal(version=version, moved=moved, reason=reason)
        self._remember(self._known().model_copy(update={"refusal": refusal}))
        self._show_proven()
        shown = self._mirror.shown(self._model)
        after = f"version {shown} goes on" if shown is not None else "no version is shown"
        try:
            if shown is not None:
                self._load()
        except ServedCheckError as second:
            after = f"going back to version {shown} failed, too: {in_one_line(second.message)}"
        self._serves = shown
        return ServedCheckError(f"{reason}; {after}", remedy=refused.remedy, log=refused.log)

    def _show_proven(self) -> None:
        proven, repository = self._known().proven, self._mirror.repository
        with storage_errors(repository.root), repository.exclusive(self._model):
            if proven in repository.versions(self._model):
                self._mirror.show(self._model, proven, repository.versions(self._model))
            else:
                self._views.hide()

    def _report(self) -> bool:
        """Tell the store what serves."""
        if self._pointer is None:
            return False
        loaders = self._around.loaders
        troubles = [line for what, line in self._troubles.items() if what != "report"]
        report = LiveReport(
            loader=self._around.name,
            model=self._model,
            alias=self._around.alias,
            wanted=self._pointer.version,
            serves=tuple(loaders.ready(self._model) if len(loaders) else self._views.shown()),
            failed=self._refused() or "; ".join([*troubles, *loaders.away()]) or None,
            seen="",
        )
        is_news = report != self._reported
        if not is_news and time.monotonic() < self._report_until:
            return False
        self._reported, self._report_until = report, 0
        report = report.model_copy(update={"seen": utc_now()})
        if is_news:
            self._around.told(report)
        with suppress(EnvironmentFault):  # of a store that cannot be reached it was said
            self._around.store.objects.put(live_key(self._model, report.loader), content_of(report))
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
