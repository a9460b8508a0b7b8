"""Store initialization: creates a store and probes its server, once by the first user, and again on request."""

from __future__ import annotations

from plansmith.errors import RepositoryError
from plansmith.signing.policy import SignaturePolicy
from plansmith.stores.backend.documents import change, new_token, utc_now
from plansmith.stores.backend.turns import turn
from plansmith.stores.layout import MARKER_KEY, PROBE, TURNS
from plansmith.stores.records import Marker
from plansmith.stores.store import Store

_FOUNDING = "founding"

_FOUNDING_SECONDS = 90.0

_FOUNDING_MARGIN_SECONDS = 30.0


def make_store(store: Store, target: str) -> Marker:
    """Create a store for a target in an empty place, or return the one that another process created meanwhile.

    One at a time asks the server, and where that one dies the others wait for a short while only. That is safe, as no
    write hangs on it: several that ask at once do not disturb each other. The marker is written by conditional writes
    where the server was just seen to do them, and elsewhere in a turn of its own that lasts as long as any.

    Raises:
        RepositoryError: the place holds what is not plansmith's.
    """
    require_free(store)
    if store.objects.abilities.is_conditional:
        return _create_marker(store, target)
    with turn(store.objects, _FOUNDING, _FOUNDING_SECONDS, _FOUNDING_MARGIN_SECONDS):
        return store.marker() or _create_marker(store, target)


def _create_marker(store: Store, target: str) -> Marker:
    """Probe the server, and write the marker unless it exists by now."""
    store.objects.abilities = abilities = store.objects.probed()

    def new_marker(old: Marker | None) -> Marker:
        return old or Marker(target=target, created=utc_now(), abilities=abilities, token=new_token())

    return store.learn(change(store.objects, MARKER_KEY, Marker, new_marker))


def require_free(store: Store) -> None:
    """Require that a place that is no store yet is empty, except for S3 console folder objects.

    Raises:
        RepositoryError: it holds what is not plansmith's.
    """
    # Looked for first: what another process puts there from now on comes after its marker.
    keys = (item.key for item in store.objects.below("") if not item.key.startswith((TURNS, PROBE)))
    foreign = next((key for key in keys if not key.endswith("/") and key), None)
    if foreign is not None and store.marker() is None:
        raise RepositoryError(
            f"{store.place} holds something that is not plansmith's: {foreign}",
            remedy=f"name an empty folder or prefix, such as {store.place.rstrip('/')}/models",
        )


def probe_again(store: Store) -> Marker:
    """Probe the store's server again and save the result.

    Who uses the store meanwhile goes on as before: let no other publish while a server is asked that was exchanged.

    Raises:
        RepositoryError: there is no store.
    """

    def probed(old: Marker | None) -> Marker:
        if old is None:
            raise RepositoryError(f"{store.place} is no store yet", remedy="publish a model to it first")
        abilities = store.objects.probed()
        return old.model_copy(update={"abilities": abilities, "token": new_token()})

    return store.learn(change(store.objects, MARKER_KEY, Marker, probed))


def set_signature_policy(store: Store, policy: SignaturePolicy | None) -> Marker:
    """Set who must have signed what is published to a store and pulled from it; None takes the requirement away.

    Raises:
        RepositoryError: there is no store.
    """

    def changed(old: Marker | None) -> Marker:
        if old is None:
            raise RepositoryError(f"{store.place} is no store yet", remedy="publish a model to it first")
        return old.model_copy(update={"signatures": policy, "token": new_token()})

    return store.learn(change(store.objects, MARKER_KEY, Marker, changed))


def require_store(store: Store, target: str = "") -> Marker:
    """Return the marker of a store for a target; create it if the place is empty.

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
    """Return the marker of a store for a target; None if the place is empty. Writes nothing.

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
    """Set the target of a store that has none yet, unless another process sets one first."""

    def changed(old: Marker | None) -> Marker:
        now = old or marker
        return now if now.target else now.model_copy(update={"target": target, "token": new_token()})

    return change(store.objects, MARKER_KEY, Marker, changed)
