"""A mirror and the servers beside it, kept on what a store's aliases stand for."""

from __future__ import annotations

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, in_one_line
from plansmith.stores.followed import FollowedModel, Surroundings
from plansmith.stores.pauses import Pause
from plansmith.stores.records import Catalogue


class Sync:
    """Looks at a store time and again, and does what has changed.

    A store or server that cannot be reached is said once and asked again; what serves goes on.

    Args:
        around: the store, the mirror, which is held for it alone, and the servers.
        models: these alone; all of the store where there are none.
    """

    def __init__(self, around: Surroundings, models: tuple[str, ...] = ()) -> None:
        self._around = around
        self._named = models
        self._models = {model: FollowedModel(model, around) for model in models or around.mirror.repository.models()}
        self._asking = Pause(around.pause_seconds)
        self._said: dict[str, list[str]] = {}

    def look(self) -> list[PlansmithError]:
        """Do what has to be done now; what failed in this look."""
        self._around.loaders.ask_again()
        catalogues, faults = self._catalogues() if self._asking.is_over else ({}, [])
        for model in catalogues:
            self._models.setdefault(model, FollowedModel(model, self._around))
        for model, followed in sorted(self._models.items()):
            faults += followed.look(catalogues.get(model))
        self._say_news("server", self._around.loaders.away(), "it is loaded when it answers again")
        return faults

    def forget_refusals(self) -> None:
        """Try again what servers refused."""
        for followed in self._models.values():
            followed.forget_refusal()

    def _catalogues(self) -> tuple[dict[str, Catalogue], list[PlansmithError]]:
        """What the store says of each model that is followed, and what it cannot say; after a pause if nothing."""
        store = self._around.store
        found: dict[str, Catalogue] = {}
        faults: list[PlansmithError] = []
        try:
            for model in self._named or store.models():
                try:
                    found[model] = store.catalogue(model)
                except RepositoryError as error:
                    faults.append(error)
            self._asking.end()
        except (EnvironmentFault, RepositoryError) as fault:
            faults.append(fault)
            self._asking.begin()
        self._say_news("store", [in_one_line(fault.message) for fault in faults], "what serves goes on")
        return found, faults

    def _say_news(self, what: str, lines: list[str], comfort: str) -> None:
        """Say what was not so in the look before."""
        for line in lines:
            if line not in self._said.get(what, ()):
                self._around.say(f"{line}; {comfort}")
        self._said[what] = lines
