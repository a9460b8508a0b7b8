"""Deliveries of MLflow: what becomes an event, what is ignored, and what is refused though it is signed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plansmith.config.service_triggers import MlflowRegistry
from plansmith.triggers.registries.delivery import Delivery, Event, Ignored, RequestRejected
from plansmith.triggers.registries.mlflow import HEADERS, read_delivery

from ...support.deliveries.recorded import ALIAS_SET, DELIVERIES, SECRET, TAG_SET, TEST, VERSION_CREATED, Sent, signed

CONFIG = MlflowRegistry(type="mlflow", tracking_uri="https://mlflow.example.com", secrets=("env:SECRET",))
ALIAS = {"name": "ranker", "alias": "champion", "version": "3"}


def _read(sent: Sent) -> Delivery | Ignored:
    return read_delivery(CONFIG, sent.headers, sent.body, registry="ours", secrets=[SECRET], now=sent.timestamp)


def _read_signed(entity: str, action: str, data: Any, **more: Any) -> Delivery | Ignored:
    return _read(signed(HEADERS, {"entity": entity, "action": action, "timestamp": "…", "data": data, **more}))


def _changed(sent: Sent, **data: Any) -> Sent:
    value = json.loads(sent.body)
    return signed(HEADERS, value | {"data": value["data"] | data})


def _of(sent: Sent) -> Event:
    delivery = _read(sent)
    assert isinstance(delivery, Delivery)
    (event,) = delivery.events
    return event


def test_recorded_deliveries_tell_changes() -> None:
    """Every recorded delivery is what was done."""
    results = [_read(item) for item in DELIVERIES]
    assert [item.events[0].label if isinstance(item, Delivery) else item.reason for item in results] == [
        "nothing that a build cares for",
        "demo-mlp, version 1 (created)",
        "demo-mlp, version 1 (tag compile=requested)",
        "demo-mlp, version 1 (alias champion)",
        "demo-mlp, version 1 (tag k1=v1)",
        "demo-mlp, version 2 (created)",
        "demo-mlp, version 3 (created)",
        "a test",
        "demo-mlp, version 1 (tag k2=v2)",
        "demo-mlp, version 1 (tag k2=v2)",
        "demo-mlp, version 1 (tag k2=v2)",
        "demo-mlp, version 1 (tag k2=v2)",
    ]


def test_alias_event_source_is_version() -> None:
    """An alias that was set names the version and not itself as the source."""
    assert _read(ALIAS_SET) == Delivery(
        id="633a1915-81ad-40d7-8598-12a97b550ccd",
        events=(
            Event(
                registry="ours",
                model="demo-mlp",
                version="1",
                change="alias",
                value="champion",
                source="mlflow:models:/demo-mlp/1",
            ),
        ),
        expires=True,
    )


def test_repeated_delivery_keeps_id() -> None:
    """A repeated delivery has the same ID, and another of the same content has not."""
    flaky, steady, again, once_more = (
        delivery.id for sent in DELIVERIES[8:] if isinstance(delivery := _read(sent), Delivery)
    )
    assert flaky == again == once_more != steady


def test_same_content_shares_content_key() -> None:
    """An alias, tag and version of one content have one content key."""
    assert len({_of(sent).content_key for sent in (VERSION_CREATED, TAG_SET, ALIAS_SET)}) == 1


def test_claimed_source_not_fetched() -> None:
    """Where a version says that it comes from is not where it is fetched."""
    assert _of(_changed(VERSION_CREATED, source="s3://theirs/bert")).source == "mlflow:models:/demo-mlp/1"


@pytest.mark.parametrize(
    ("entity", "action"),
    [
        ("model_version_alias", "deleted"),
        ("model_version_tag", "deleted"),
        ("registered_model", "created"),
        ("prompt", "created"),
        ("model_version_alias", "moved"),
    ],
)
def test_other_events_are_ignored(entity: str, action: str) -> None:
    assert _read_signed(entity, action, ALIAS) == Ignored(reason="nothing that a build cares for")


@pytest.mark.parametrize(
    ("entity", "action", "data"),
    [
        ("model_version", "created", {"name": "example_model", "version": "1", "run_id": None}),
        ("model_version", "created", {"name": "ranker", "version": "1", "run_id": "abcd1234abcd5678"}),
        ("model_version_alias", "created", {"name": "example_model", "version": "1", "alias": "example_alias"}),
        ("model_version_tag", "set", {"name": "example_model", "version": "1", "key": "k", "value": "v"}),
    ],
)
def test_a_test_never_builds(entity: str, action: str, data: dict[str, Any]) -> None:
    assert _read_signed(entity, action, data) == _read(TEST) == Ignored(reason="a test")


def test_other_workspace_model_not_ours() -> None:
    """A model of another workspace is not taken for ours."""
    arguments = ("model_version_alias", "created")
    assert _read_signed(*arguments, ALIAS | {"workspace": "other"}) == Ignored(reason="of another workspace")
    assert _read_signed(*arguments, ALIAS, workspace=["x"]) == Ignored(reason="of another workspace")
    assert isinstance(_read_signed(*arguments, ALIAS | {"workspace": "default"}), Delivery)


def test_written_back_tags_start_nothing() -> None:
    """Tags that are written back start nothing."""
    assert _read(_changed(TAG_SET, key="plansmith.verdict")) == Ignored(reason="a tag of our own")


@pytest.mark.parametrize("value", ["first line\nsecond", "x" * 513])
def test_text_tag_is_no_event(value: str) -> None:
    """A tag that holds a text is no mistake and no event."""
    assert _read(_changed(TAG_SET, value=value)) == Ignored(reason="a tag that holds a text")


def test_empty_tags_and_scripts_accepted() -> None:
    """A tag may be empty, and names may be of any script."""
    assert _of(_changed(TAG_SET, value="")).value == "compile="
    assert _of(_changed(ALIAS_SET, name="模型 é")).source == "mlflow:models:/模型 é/1"


WRONG: dict[str, dict[str, Any]] = {
    "no name": {"name": None},
    "an empty name": {"name": ""},
    "a name that is a list": {"name": ["ranker"]},
    "a name of thousands of letters": {"name": "x" * 5000},
    "a line break": {"name": "ranker\nfoo"},
    "a NUL": {"name": "ranker\0"},
    "an escape": {"name": "\x1b[2Jranker"},
    "half of a character": {"name": "\ud800"},
    "a text that runs backwards": {"name": "ranker\u202e"},
    "a name that is a path": {"name": "ranker/1"},
    "another scheme": {"name": "models:"},
    "no version": {"version": None},
    "a number": {"version": 3},
    "a path": {"version": "1/../2"},
    "digits of another script": {"version": "٣"},
    "a negative version": {"version": "-1"},
    "a version of many digits": {"version": "1" * 19},
    "no alias": {"alias": None},
    "an alias that is an object": {"alias": {"a": 1}},
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_signed_nonsense_malformed(data: dict[str, Any]) -> None:
    """What is signed and wrong is malformed."""
    with pytest.raises(RequestRejected, match="malformed"):
        _read(_changed(ALIAS_SET, **data))


@pytest.mark.parametrize("value", [{"key": None}, {"key": "a\nb"}, {"value": None}, {"value": 1}])
def test_odd_kind_tag_malformed(value: dict[str, Any]) -> None:
    """A tag of other kinds is malformed."""
    with pytest.raises(RequestRejected, match="malformed"):
        _read(_changed(TAG_SET, **value))


@pytest.mark.parametrize("data", [None, [], "ranker", 1])
def test_non_object_data_malformed(data: Any) -> None:
    """Data that are no object are malformed."""
    with pytest.raises(RequestRejected, match="malformed"):
        _read_signed("model_version_alias", "created", data)


def test_server_without_secrets_not_believed() -> None:
    """A server without secrets is not believed."""
    with pytest.raises(RequestRejected, match="signature"):
        read_delivery(CONFIG, ALIAS_SET.headers, ALIAS_SET.body, registry="ours", secrets=[], now=ALIAS_SET.timestamp)


def test_window_follows_registry() -> None:
    """The window is that of the registry."""
    wide = CONFIG.model_copy(update={"window_seconds": 1000})
    delivery = read_delivery(
        wide, ALIAS_SET.headers, ALIAS_SET.body, registry="ours", secrets=[SECRET], now=ALIAS_SET.timestamp + 999
    )
    assert isinstance(delivery, Delivery)
