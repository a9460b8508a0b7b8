"""Deliveries of an MLflow server's webhooks: an alias or a tag was set on a model version, or one was made.

Checked with MLflow 3.17: it signs "<delivery id>.<timestamp>." and the raw body, sends the same id again on 429 and
5xx, and nothing again after some seconds: what was missed then, polls find.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from plansmith.config.service.triggers import Change, MlflowRegistry
from plansmith.triggers.registries.body import is_showable, name_of, object_of, read_object
from plansmith.triggers.registries.delivery import Delivery, Ignored, RequestRejected
from plansmith.triggers.registries.event import OWN_TAGS, Event
from plansmith.triggers.registries.signature import SignedHeaders, proven_id

HEADERS = SignedHeaders("x-mlflow-delivery-id", "x-mlflow-timestamp", "x-mlflow-signature")

_CHANGES: dict[tuple[str, str], Change] = {
    ("model_version_alias", "created"): "alias",
    ("model_version_tag", "set"): "tag",
    ("model_version", "created"): "created",
}
# What `Test webhook` sends, signed like everything else.
_TEST_MODEL = "example_model"
_TEST_RUN = "abcd1234abcd5678"
_WORKSPACE = "default"
_VERSION = re.compile(r"[1-9][0-9]{0,17}")


def read_delivery(
    config: MlflowRegistry,
    headers: Mapping[str, str],
    body: bytes,
    *,
    registry: str,
    secrets: Sequence[str],
    now: float,
) -> Delivery | Ignored:
    """What a request says.

    Args:
        config: of the registry.
        headers: with names in lower case.
        body: its bytes as they came.
        registry: the registry's name.
        secrets: any of them may have signed the request; without one, nothing is believed.
        now: our Unix time.

    Raises:
        Refused: it is not of this server, not of now, or not what MLflow sends.
    """
    found = proven_id(HEADERS, headers, body, secrets=secrets, window_seconds=config.window_seconds, now=now)
    values = read_object(body)
    change = _CHANGES.get((name_of(values, "entity"), name_of(values, "action")))
    if change is None:
        return Ignored(reason="nothing that a build cares for")
    data = object_of(values, "data")
    model = name_of(data, "name")
    if model == _TEST_MODEL or data.get("run_id") == _TEST_RUN:
        return Ignored(reason="a test")
    if any(one.get("workspace") not in (None, "", _WORKSPACE) for one in (values, data)):
        return Ignored(reason="of another workspace")
    version = name_of(data, "version")
    value = _value_of(config, change, data)
    if isinstance(value, Ignored):
        return value
    return Delivery(id=found, events=(event_of(registry, model, version, change, value),), expires=True)


def event_of(registry: str, model: str, version: str, change: Change, value: str) -> Event:
    """What happened to a version of a registered model.

    Raises:
        Refused: no model or version is called so.
    """
    if "/" in model or ":" in model:  # MLflow refuses them too: they would name another version in an address
        raise RequestRejected("malformed", "name has a / or :")
    if not _VERSION.fullmatch(version):
        raise RequestRejected("malformed", "version is no number")
    source = f"mlflow:models:/{model}/{version}"
    return Event(registry=registry, model=model, version=version, change=change, value=value, source=source)


def _value_of(config: MlflowRegistry, change: Change, data: Mapping[str, Any]) -> str | Ignored:
    """What was set; tags hold whole texts too, which are as MLflow sends them and which no rule names."""
    if change == "created":
        return ""
    if change == "alias":
        alias = name_of(data, "alias")
        return Ignored(reason="an alias of our own") if alias == config.write_back_alias else alias
    key, value = name_of(data, "key"), data.get("value")
    if key.startswith(OWN_TAGS):
        return Ignored(reason="a tag of our own")
    if not isinstance(value, str):
        raise RequestRejected("malformed", "value is no text")
    return f"{key}={value}" if is_showable(value) else Ignored(reason="a tag that holds a text")
