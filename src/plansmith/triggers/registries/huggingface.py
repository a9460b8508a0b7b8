"""Deliveries of the Hugging Face Hub's webhooks: branches and Git tags of a model repository moved.

The Hub sends the secret itself with every request, in the header X-Webhook-Secret: no signature, no time, no id. So it
has to come over TLS, what it tells counts by its content alone, and the secret never stands in the address, whose
query lands in logs. A branch that is set back and forth sends the same again: whether that is a repetition, only what
was told last can say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plansmith.config.service.triggers import HubRegistry
from plansmith.system.digest import digest_of
from plansmith.triggers.registries.body import name_of, object_of, read_object
from plansmith.triggers.registries.delivery import Delivery, Ignored, RequestRejected
from plansmith.triggers.registries.event import Event
from plansmith.triggers.registries.signature import is_any

HEADER = "x-webhook-secret"

_FOLLOWED = ("refs/heads/", "refs/tags/")
_SCOPE = "repo.content"
_REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def read_delivery(
    config: HubRegistry,  # noqa: ARG001 - deliveries of all registries are read like this
    headers: Mapping[str, str],
    body: bytes,
    *,
    registry: str,
    secrets: Sequence[str],
    now: float,  # noqa: ARG001 - the Hub signs no time
) -> Delivery | Ignored:
    """What a request says: an event for each branch and tag that moved.

    Args:
        config: of the registry.
        headers: with names in lower case.
        body: its bytes as they came.
        registry: the registry's name.
        secrets: the request holds one of them; without one, nothing is believed.
        now: our Unix time.

    Raises:
        Refused: it is not of the Hub, or not what the Hub sends.
    """
    if not (given := headers.get(HEADER, "")):
        raise RequestRejected("signature", "there is no secret")
    if not is_any(given, [secret for secret in secrets if secret]):
        raise RequestRejected("signature", "the secret is none that is known here")
    values = read_object(body)
    event, repo = object_of(values, "event"), object_of(values, "repo")
    if not _is_push(name_of(event, "scope"), name_of(event, "action")) or name_of(repo, "type") != "model":
        return Ignored(reason="nothing that a build cares for")
    model, number = name_of(repo, "name"), name_of(repo, "id")
    if not _REPOSITORY.fullmatch(model) or ".." in model:
        raise RequestRejected("malformed", "name is of no repository")
    moved = sorted(set(_moved(values)))
    if not moved:
        return Ignored(reason="no branch and no tag moved")
    events = tuple(
        Event(registry=registry, model=model, version=commit, change="branch", value=ref, source=f"hf:{model}@{commit}")
        for ref, commit in moved
    )
    return Delivery(id=digest_of([number, moved]), events=events, recurs=True)


def _is_push(scope: str, action: str) -> bool:
    """Scopes below that of contents may come, says the Hub, and are updates of it whatever their action."""
    return (scope == _SCOPE and action == "update") or scope.startswith(f"{_SCOPE}.")


def _moved(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Branches and tags with their new commits; neither what was deleted nor pull requests."""
    refs = values.get("updatedRefs")
    if refs is None:
        return
    if not isinstance(refs, list):
        raise RequestRejected("malformed", "updatedRefs is no list")
    for one in refs:
        if not isinstance(one, dict):
            raise RequestRejected("malformed", "updatedRefs holds what is no object")
        ref = name_of(one, "ref")
        if not ref.startswith(_FOLLOWED) or one.get("newSha") is None:
            continue
        if ref in _FOLLOWED or not _COMMIT.fullmatch(commit := name_of(one, "newSha")):
            raise RequestRejected("malformed", "updatedRefs holds what is no commit of a branch or tag")
        yield ref, commit
