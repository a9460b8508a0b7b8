"""What machines shared and nobody has used for long: found, listed, taken away, and then the contents that it had."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

from plansmith.stores.backend.leases import forget_leases
from plansmith.stores.layout import CACHE, GRACE_SECONDS, TIMING
from plansmith.stores.maintenance.prune import PrunedItem, Pruner
from plansmith.stores.maintenance.retention import Retention
from plansmith.stores.reader import in_parallel
from plansmith.stores.store import Store
from plansmith.system.aws.s3.objects import Held

_KINDS = {CACHE: "cache entry", TIMING: "timing cache"}
_EVERY_VERSION = Retention(keep=sys.maxsize, seconds=0)


@dataclass(frozen=True)
class Unused:
    """One thing that went, or would go: its key, and the bytes that it had."""

    kind: str
    key: str
    why: str
    bytes: int


def collect_shared(
    store: Store,
    older_than_seconds: float,
    *,
    dry: bool,
    only: Container[str] | None = None,
    went: Callable[[Unused], None] = lambda _: None,
) -> list[Unused]:
    """Take away what was not used for so long, and the contents that no other entry and no release needs.

    Contents younger than a day stay, as what needs them may be on its way; so do all versions of releases.

    Args:
        store: where machines share.
        older_than_seconds: by the store's clock.
        dry: only find it; nothing is written.
        only: keys of what may go; everything where it is None.
        went: given each thing when it is gone.

    Raises:
        RepositoryError: the store refuses.
        EnvironmentFault: the store cannot be reached.
    """
    objects = store.objects
    oldest = objects.now() - older_than_seconds
    found = [
        held
        for prefix in _KINDS
        for held in objects.below(prefix)
        if held.changed <= oldest and (only is None or held.key in only)
    ]
    if not dry:
        again = in_parallel(lambda held: objects.find(held.key), found)
        found = [held for held in again if held is not None and held.changed <= oldest]
        objects.remove(held.key for held in found)
        for one in _unused(found):
            went(one)
        forget_leases(objects, GRACE_SECONDS)
    pruner = Pruner(
        store,
        _EVERY_VERSION,
        dry=dry,
        ignoring={held.key for held in found},
        only=only,
        went=lambda one: went(_as_unused(one)),
    )
    return [*_unused(found), *map(_as_unused, pruner.prune().gone)]


def _as_unused(one: PrunedItem) -> Unused:
    return Unused(one.kind, one.name, one.why, one.bytes)


def _unused(found: list[Held]) -> Iterator[Unused]:
    for held in found:
        kind = next(kind for prefix, kind in _KINDS.items() if held.key.startswith(prefix))
        yield Unused(kind, held.key, "not used for so long", held.bytes)
