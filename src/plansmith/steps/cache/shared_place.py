"""A store that machines share their work through, and that each of them can do without."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from plansmith.config.messages import validation_message
from plansmith.errors import PlansmithError, UsageError
from plansmith.records.destination import Location
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.initialize import require_store
from plansmith.stores.open import open_store
from plansmith.system.aws.s3.objects import Held

R = TypeVar("R")

PLACE_VARIABLE = "PLANSMITH_SHARED_CACHE"
"""Names the place where a spec names none: which machines share their work is a matter of the machines."""

_LEFT_ALONE_SECONDS = 300.0
_SECONDS_PER_DAY = 86400.0


class SharedPlace:
    """What a compile asks of a store: tried, and where it fails left alone for a while, which is told once.

    Args:
        place: the store; made when something is first brought there.
        relative_to: the folder that relative paths start from.
        notice: told in one line why it cannot be used.
        only_looks: nothing is written, not even that it is a store.
    """

    def __init__(
        self, place: Location, relative_to: Path, notice: Callable[[str], None], *, only_looks: bool = False
    ) -> None:
        self.notice = notice
        self.only_looks = only_looks
        self._place = place
        self._relative_to = relative_to
        self._objects: Objects | None = None
        self._told = False
        self._left_alone_until = 0.0

    @property
    def words(self) -> str:
        """Where it is, as a person may read it."""
        return self._objects.place if self._objects is not None else self._place.to

    def attempt(self, work: Callable[[Objects], R], otherwise: R) -> R:
        """What becomes of some work with the objects of the store; `otherwise` where the store fails.

        Work that failed is not done later: whoever asks for it next decides anew.
        """
        if time.monotonic() < self._left_alone_until:
            return otherwise
        try:
            return work(self._opened())
        except (PlansmithError, OSError) as error:  # OSError: of a folder that another machine lends
            self._left_alone_until = time.monotonic() + _LEFT_ALONE_SECONDS
            if not self._told:
                self._told = True
                said = error.message if isinstance(error, PlansmithError) else error
                self.notice(f"the shared cache {self.words} cannot be used, and is left alone: {said}")
            return otherwise

    def _opened(self) -> Objects:
        if self._objects is None:
            store = open_store(self._place, self._relative_to)
            if not self.only_looks:
                require_store(store)
            self._objects = store.objects
        return self._objects


def keep_young(objects: Objects, held: Held) -> None:
    """Note that something was used, which is not taken away for its age then; once a day is enough."""
    if objects.now() - held.changed > _SECONDS_PER_DAY:
        objects.copy(held.key, held.key)


def find_shared_place(
    given: Location | None, relative_to: Path, notice: Callable[[str], None], *, only_looks: bool = False
) -> SharedPlace | None:
    """The place that a spec names, or else the environment; None where neither does.

    Args:
        given: the spec's.
        relative_to: the folder that relative paths in the spec start from.
        notice: told when the store cannot be used.
        only_looks: nothing may be written there.

    Raises:
        UsageError: what the environment names is no place.
    """
    named = os.environ.get(PLACE_VARIABLE, "")
    if given is None and not named:
        return None
    if given is not None:
        return SharedPlace(given, relative_to, notice, only_looks=only_looks)
    try:
        return SharedPlace(Location(to=named), Path.cwd(), notice, only_looks=only_looks)
    except ValidationError as invalid:
        said = "; ".join(validation_message(error) for error in invalid.errors())
        raise UsageError(
            f"{PLACE_VARIABLE}: {said}", remedy=f"export {PLACE_VARIABLE}=s3://bucket/prefix, or a folder"
        ) from None
