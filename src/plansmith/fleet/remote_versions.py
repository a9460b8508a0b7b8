"""What stores have of the models of a fleet, for a plan that takes their word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from plansmith.errors import PlansmithError
from plansmith.fleet.members import Member
from plansmith.records.destination import Destination
from plansmith.records.fingerprint import Fingerprint
from plansmith.steps.provenance.fingerprint import describe_destination
from plansmith.stores.fingerprints import read_fingerprint
from plansmith.stores.open import open_store
from plansmith.stores.store import Store

R = TypeVar("R")


class Stores:
    """Asks the stores of a fleet; one that cannot be asked is told, and not asked again.

    Args:
        notice: told of those, in a line.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._open: dict[tuple[Destination, Path], Store] = {}
        self._silent: set[str] = set()

    def basis(self, member: Member) -> Fingerprint | None:
        """What the release of a model was made from that any of its stores has; None where none says.

        Whether it is in all of them, its destinations tell.
        """
        for destination in member.spec.publish:
            found = self._asked(member, destination, lambda store: read_fingerprint(store, member.name))
            if found is not None:
                return found
        return None

    def lost(self, member: Member, noted: Fingerprint) -> Iterator[str]:
        """The destinations, in words, that a release was published to and that know nothing of it any more.

        A version that was pruned is known: somebody gave it up.

        Args:
            member: the model.
            noted: what its newest version was made from, and where it went.
        """
        for destination in member.spec.publish:
            words = describe_destination(destination, member.file.parent)
            known = self._asked(member, destination, lambda store: _digests(store, member.name))
            digest = noted.stored.get(words)
            if known is not None and words in noted.destinations and (digest not in known if digest else not known):
                yield words

    def _asked(self, member: Member, destination: Destination, ask: Callable[[Store], R]) -> R | None:
        """The answer of a store; None where it cannot be asked."""
        base = member.file.parent
        place = describe_destination(destination, base)
        if place in self._silent:
            return None
        try:
            if (destination, base) not in self._open:
                self._open[destination, base] = open_store(destination, base)
            return ask(self._open[destination, base])
        except (PlansmithError, OSError) as error:
            self._silent.add(place)
            said = error.message if isinstance(error, PlansmithError) else str(error)
            self._notice(f"{place} was not asked what it has: {said}; what is noted here stands")
            return None


def _digests(store: Store, model: str) -> set[str]:
    """Those of all versions that a store has or had."""
    catalogue = store.known(model)
    return {version.digest for version in catalogue.versions} if catalogue is not None else set()
