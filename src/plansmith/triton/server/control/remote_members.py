"""What a script asks, on a server whose repository is not seen from here: its own words are all that tells of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError
from plansmith.triton.repository.ensemble_members import names_of_parts
from plansmith.triton.repository.ensembles import members_of_script
from plansmith.triton.server.control.client import ModelControlClient

_UNLOAD_SECONDS = 30


@contextmanager
def unseen_members(server: ModelControlClient, model: str) -> Iterator[None]:
    """Have a server load what a model asks by its script, if it has one, around the load of that model itself.

    Where a script is served, the parts that lie there and nobody has loaded are loaded before: the next one may ask
    them, and requests will need them at once. Which these are, the server tells only after it.

    Raises:
        ServedCheckError: what the script asks does not load, though the script did.
        EnvironmentFault: the server cannot be asked.
    """
    came = _load_beside(server, model) if _members(server, model) else []
    try:
        yield
    except ServedCheckError:
        if not server.may_have_changed:
            _let_go(server, came)
        raise
    members = _members(server, model)
    try:
        for name in members or ():
            if name not in _ready(server):
                server.change("load", name)
        _let_go(server, [name for name in came if name not in members])
    finally:
        server.may_have_changed = True


def _load_beside(server: ModelControlClient, model: str) -> list[str]:
    looks, ready = names_of_parts(model), _ready(server)
    found = sorted({row["name"] for row in server.index() if looks.fullmatch(row["name"])} - ready)
    came = []
    for name in found:
        with suppress(PlansmithError):  # the next script may not need it; if it does, that is told after it
            server.change("load", name)
            came.append(name)
    return came


def _let_go(server: ModelControlClient, parts: list[str]) -> None:
    changed = server.may_have_changed
    for name in parts:
        with suppress(PlansmithError):  # it serves nobody
            server.change("unload", name, seconds=_UNLOAD_SECONDS)
    server.may_have_changed = changed


def _members(server: ModelControlClient, model: str) -> list[str]:
    """What the script asks by which a model is served now; none where the server does not say."""
    with suppress(EnvironmentFault):  # it may let its models be loaded, and its configurations not be seen
        return members_of_script(server.config(model))
    return []


def _ready(server: ModelControlClient) -> set[str]:
    return {row["name"] for row in server.index() if row.get("state") == "READY"}
