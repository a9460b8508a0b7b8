"""Whose a folder or prefix is: a store of ours, for one target; or not, and then nothing is written there."""

from __future__ import annotations

from plansmith.errors import RepositoryError
from plansmith.stores.documents import change, new_token
from plansmith.stores.founding import make_store, require_free
from plansmith.stores.layout import MARKER_KEY
from plansmith.stores.records import Marker
from plansmith.stores.store import Store


def require_store(store: Store, target: str = "") -> Marker:
    """The marker of a store for a target; made where there is nothing yet.

    Args:
        store: where.
        target: that of the releases; empty for what releases of any target have in common. A store that was made so
            takes the target of its first release.

    Raises:
        RepositoryError: the store is another target's, or holds what is not plansmith's.
    """
    marker = store.marker() or make_store(store, target)
    if target and not marker.target:
        marker = _with_target(store, marker, target)
    _require_target(store, marker, target)
    return marker


def require_ours(store: Store, target: str = "") -> Marker | None:
    """The marker of a store for a target; None where there is nothing yet. Nothing is written.

    Raises:
        RepositoryError: as for `require_store`.
    """
    marker = store.marker()
    if marker is None:
        require_free(store)
        return None
    _require_target(store, marker, target)
    return marker


def _require_target(store: Store, marker: Marker, target: str) -> None:
    if target and marker.target and target != marker.target:
        raise RepositoryError(
            f"{store.place} belongs to target {marker.target}, not {target}",
            remedy=f"publish releases for {target} to a folder or prefix of their own",
        )


def _with_target(store: Store, marker: Marker, target: str) -> Marker:
    """Give a store that has no target yet this one, unless another process gives it one first."""

    def changed(old: Marker | None) -> Marker:
        now = old or marker
        return now if now.target else now.model_copy(update={"target": target, "token": new_token()})

    return change(store.objects, MARKER_KEY, Marker, changed)
