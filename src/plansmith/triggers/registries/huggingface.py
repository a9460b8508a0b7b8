"""Hugging Face Hub webhooks: changes of branches and Git tags of a model repository.

The Hub sends the secret itself with every request, in the header X-Webhook-Secret: no signature, no time, no id. So it
has to come over TLS, what it tells counts by its content alone, and the secret never stands in the address, whose
query lands in logs. A branch that is set back and forth sends the same again: whether that is a repetition, only what
was told last can say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plansmith.config.service_triggers import HubRegistry
from plansmith.system.digest import digest_of
from plansmith.triggers.registries.delivery import (
    Delivery,
    Event,
    Ignored,
    RequestRejected,
    is_any,
    name_of,
    object_of,
    read_object,
)

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
    """Parse a webhook request: one event for each branch and tag that moved.

    Args:
        config: of the registry.
        headers: with names in lower case.
        body: its bytes as they came.
        registry: the registry's name.
        secrets: the request holds one of them; without one, nothing is believed.
        now: our Unix time.

    Raises:
        RequestRejected: it is not of the Hub, or not what the Hub sends.
    """
    if not (token := headers.get(HEADER, "")):
        raise RequestRejected("signature", "there is no secret")
    if not is_any(token, [secret for secret in secrets if secret]):
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
    """Whether an event is a push.

    An update of the content scope, or any action of a sub-scope (as the Hub documents).
    """
    return (scope == _SCOPE and action == "update") or scope.startswith(f"{_SCOPE}.")


def _moved(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the branches and tags with their new commits, without deleted ones and pull requests."""
    refs = values.get("updatedRefs")
    if refs is None:
        return
    if not isinstance(refs, list):
        raise RequestRejected("malformed", "updatedRefs is no list")
    for entry in refs:
        if not isinstance(entry, dict):
            raise RequestRejected("malformed", "updatedRefs holds what is no object")
        ref = name_of(entry, "ref")
        if not ref.startswith(_FOLLOWED) or entry.get("newSha") is None:
            continue
        if ref in _FOLLOWED or not _COMMIT.fullmatch(commit := name_of(entry, "newSha")):
            raise RequestRejected("malformed", "updatedRefs holds what is no commit of a branch or tag")
        yield ref, commit
