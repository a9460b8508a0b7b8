"""A mirror and the servers beside it, kept on what a store's aliases stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plansmith.errors import EnvironmentFault, PlansmithError, RepositoryError, in_one_line
from plansmith.stores.records import Catalogue
from plansmith.stores.store import Store
from plansmith.stores.sync.followed_model import FollowedModel, Pause, SyncContext, fault_of, in_words


class Sync:
    """Looks at a store time and again, and does what has changed.

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
        self._said: dict[str, list[str]] = {}

    def look(self) -> list[PlansmithError]:
        """Do what has to be done now; what failed in this look."""
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
        """Whether every model that failed in a look shows versions all the same, and whole.

        Args:
            faults: of the look; one that is of no model is of all.
        """
        failed = {fault.model for fault in faults}
        models = self._models.keys() if "" in failed else failed
        return bool(models) and all(self._around.mirror.is_whole(model) for model in models)

    def forget_refusals(self) -> None:
        """Try again what servers refused."""
        for followed in self._models.values():
            followed.forget_refusal()

    def _catalogues(self) -> tuple[dict[str, Catalogue] | None, list[PlansmithError]]:
        """What the store says of each model that is followed, and what it cannot say; None if it cannot be asked."""
        store = self._around.store
        found: dict[str, Catalogue] = {}
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
                    found[model] = catalogue
                else:
                    (faults if self._named else unfollowed).append(self._without_alias(model))
            if not (found or faults):
                faults.append(self._without_models(is_empty=not unfollowed))
        except (EnvironmentFault, RepositoryError, OSError) as error:
            self._asking.begin()
            faults.append(fault_of(error))
            self._say_news("store", faults, "what serves goes on")
            return None, faults
        self._asking.end()
        self._say_news("store", faults, "what serves goes on")
        self._say_news("alias", unfollowed, "it is not followed")
        return found, faults

    def _without_alias(self, model: str) -> PlansmithError:
        alias, store = self._around.alias, self._around.store
        return RepositoryError(
            f"{model} in {store.place} has no alias {alias!r}",
            remedy=f"plansmith promote {model}@VERSION {alias} --store {store.typed}",
            model=model,
        )

    def _without_models(self, *, is_empty: bool) -> PlansmithError:
        """Nothing is followed: a store that is empty, or an alias that was mistyped."""
        alias, store = self._around.alias, self._around.store
        if is_empty:
            return RepositoryError(
                f"{store.place} has no model yet", remedy=f"plansmith publish MODEL {store.typed} --alias {alias}"
            )
        return RepositoryError(
            f"no model in {store.place} has the alias {alias!r}",
            remedy=f"see which there are: plansmith versions --store {store.typed}",
        )

    def _say_news(self, what: str, faults: Sequence[PlansmithError], comfort: str) -> None:
        """Say what was not so in the look before."""
        said = self._said.get(what, ())
        self._said[what] = [in_one_line(fault.message) for fault in faults]
        for fault, line in zip(faults, self._said[what], strict=True):
            if line not in said:
                self._around.say(f"{in_words(fault)}; {comfort}")


def _require_there(store: Store) -> None:
    """See that there is a store, and not the bare mount point of a folder that another machine lends."""
    if store.marker() is None:
        raise EnvironmentFault(
            f"there is no store at {store.place}", remedy="see that it is mounted, and that --store is right"
        )
