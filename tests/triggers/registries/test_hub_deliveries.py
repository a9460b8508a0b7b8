"""Deliveries of the Hugging Face Hub: which pushes become events, and who may tell of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plansmith.config.service_triggers import HubRegistry
from plansmith.triggers.registries.delivery import Delivery, Event, Ignored, RequestRejected
from plansmith.triggers.registries.huggingface import read_delivery

CONFIG = HubRegistry(type="hub", secrets=("env:SECRET",))
SECRET = "told to the hub"
OLD, NEW, OTHER = "ce9a4674fa833a68d5a73ec355f0ea95eedd60b7", "575db8b7a51b6f85eb06eee540738584589f131c", "0" * 40
MAIN = {"ref": "refs/heads/main", "oldSha": OLD, "newSha": NEW}
TAG = {"ref": "refs/tags/v1", "oldSha": None, "newSha": NEW}
# As in the Hub's documentation of its webhooks, version 3.
REPO = {
    "type": "model",
    "name": "some-user/some-repo",
    "id": "6366c000a2abcdf2fd69a080",
    "private": False,
    "url": {
        "web": "https://huggingface.co/some-user/some-repo",
        "api": "https://huggingface.co/api/models/some-user/some-repo",
    },
    "headSha": "c379e821c9c95d613899e8c4343e4bfee2b0c600",
    "tags": ["license:other", "has_space"],
    "owner": {"id": "61d2000c3c2083e1c08af22d"},
}
PUSH: dict[str, Any] = {
    "event": {"action": "update", "scope": "repo.content"},
    "repo": REPO,
    "updatedRefs": [MAIN],
    "webhook": {"id": "6390e855e30d9209411de93b", "version": 3},
}


def _read(value: Any, secret: str | None = SECRET, secrets: tuple[str, ...] = (SECRET,)) -> Delivery | Ignored:
    headers = {} if secret is None else {"x-webhook-secret": secret}
    return read_delivery(CONFIG, headers, json.dumps(value).encode(), registry="hub", secrets=secrets, now=0)


def _delivery(*refs: Any, **more: Any) -> Delivery:
    delivery = _read(PUSH | {"updatedRefs": list(refs)} | more)
    assert isinstance(delivery, Delivery)
    return delivery


def _event(ref: str, commit: str = NEW) -> Event:
    return Event(
        registry="hub",
        model="some-user/some-repo",
        version=commit,
        change="branch",
        value=ref,
        source=f"hf:some-user/some-repo@{commit}",
    )


def test_push_names_exact_commit() -> None:
    """A push is of exactly the commit that was pushed."""
    assert _delivery(MAIN).events == (_event("refs/heads/main"),)


def test_push_of_refs_makes_events() -> None:
    """A push of several refs is an event for each."""
    delivery = _delivery(TAG, MAIN, MAIN)
    assert delivery.events == (_event("refs/heads/main"), _event("refs/tags/v1"))
    assert delivery == _delivery(MAIN, TAG), "their order says nothing"


def test_pulls_and_deletions_left_out() -> None:
    """Pull requests and what was deleted are left out."""
    deleted = {"ref": "refs/heads/old", "oldSha": OLD, "newSha": None}
    request = {"ref": "refs/pr/4", "oldSha": None, "newSha": OTHER}
    assert _delivery(request, MAIN, deleted) == _delivery(MAIN)
    assert _read(PUSH | {"updatedRefs": [request, deleted]}) == Ignored(reason="no branch and no tag moved")


def test_id_from_repository_ref_commit() -> None:
    """The ID is of repository, ref and commit, and comes again with them."""
    assert _delivery(MAIN).recurs
    ids = {
        _delivery(MAIN).id,
        _delivery(TAG).id,
        _delivery(MAIN, TAG).id,
        _delivery(MAIN | {"newSha": OTHER}).id,
        _delivery(MAIN, repo=REPO | {"id": "other"}).id,
    }
    assert len(ids) == 5
    assert _delivery(MAIN | {"oldSha": None}, webhook={"id": "another", "version": 4}).id in ids


@pytest.mark.parametrize(
    ("scope", "action", "is_push"),
    [
        ("repo.content", "update", True),
        ("repo.content", "delete", False),
        ("repo.content.lfs", "create", True),
        ("repo.contents", "update", False),
        ("repo", "update", False),
        ("repo.config", "update", False),
        ("discussion", "create", False),
        ("discussion.comment", "create", False),
    ],
)
def test_only_what_changes_contents_counts(scope: str, action: str, is_push: bool) -> None:
    result = _read(PUSH | {"event": {"action": action, "scope": scope}})
    assert result == (_read(PUSH) if is_push else Ignored(reason="nothing that a build cares for"))


@pytest.mark.parametrize("kind", ["dataset", "space", "bucket"])
def test_only_models_count(kind: str) -> None:
    assert _read(PUSH | {"repo": REPO | {"type": kind}}) == Ignored(reason="nothing that a build cares for")


@pytest.mark.parametrize("refs", [None, []])
def test_delivery_without_refs_tells_nothing(refs: Any) -> None:
    """A delivery without refs tells of nothing."""
    assert _read(PUSH | {"updatedRefs": refs}) == Ignored(reason="no branch and no tag moved")


@pytest.mark.parametrize("secret", [None, "", "guessed", SECRET[:-1], f"{SECRET} ", SECRET.upper(), "é", "\ud800"])
def test_sender_without_secret_not_believed(secret: str | None) -> None:
    """A sender that does not know the secret is not believed."""
    with pytest.raises(RequestRejected, match="signature"):
        _read(PUSH, secret)


@pytest.mark.parametrize("secrets", [(), ("",), ("other",)])
def test_nothing_believed_without_secret(secrets: tuple[str, ...]) -> None:
    """Nothing is believed where no secret is known."""
    for secret in (SECRET, ""):
        with pytest.raises(RequestRejected, match="signature"):
            _read(PUSH, secret, secrets)


def test_both_secrets_count_during_rotation() -> None:
    """Both secrets count while they are rotated."""
    assert _read(PUSH, "new", ("old", "new")) == _read(PUSH, "old", ("old", "new"))


WRONG: dict[str, dict[str, Any]] = {
    "no event": {"event": None},
    "a scope that is none": {"event": {"action": "update", "scope": 1}},
    "no action": {"event": {"scope": "repo.content"}},
    "no repository": {"repo": []},
    "no id": {"repo": REPO | {"id": None}},
    "a name with a way up": {"repo": REPO | {"name": "../x"}},
    "a name of three parts": {"repo": REPO | {"name": "a/b/c"}},
    "a name with a revision": {"repo": REPO | {"name": "a/b@main"}},
    "a long name": {"repo": REPO | {"name": "a" * 97}},
    "a name that ends in a line break": {"repo": REPO | {"name": "a/b\n"}},
    "refs that are an object": {"updatedRefs": MAIN},
    "refs that are a switch": {"updatedRefs": False},
    "a ref that is a text": {"updatedRefs": ["refs/heads/main"]},
    "a ref without a name": {"updatedRefs": [{"newSha": NEW}]},
    "a branch without a name": {"updatedRefs": [MAIN | {"ref": "refs/heads/"}]},
    "a ref with a line break": {"updatedRefs": [MAIN | {"ref": "refs/heads/a\nb"}]},
    "a long ref": {"updatedRefs": [MAIN | {"ref": "refs/heads/" + "x" * 3000}]},
    "a short commit": {"updatedRefs": [MAIN | {"newSha": NEW[:7]}]},
    "a branch for a commit": {"updatedRefs": [MAIN | {"newSha": "main"}]},
    "a commit with a line break": {"updatedRefs": [MAIN | {"newSha": f"{NEW}\n"}]},
    "a number for a commit": {"updatedRefs": [MAIN | {"newSha": 0}]},
}


@pytest.mark.parametrize("values", WRONG.values(), ids=WRONG.keys())
def test_unhublike_body_malformed(values: dict[str, Any]) -> None:
    """What the hub does not send is malformed."""
    with pytest.raises(RequestRejected, match="malformed"):
        _read(PUSH | values)
