"""Requests of anything that can sign one."""

from __future__ import annotations

from typing import Any

import pytest

from plansmith.config.service.triggers import HookRegistry
from plansmith.triggers.registries.delivery import Delivery, Ignored, RequestRejected
from plansmith.triggers.registries.event import Event
from plansmith.triggers.registries.webhook import HEADERS, read_delivery

from ...support.deliveries.recorded import SECRET, Sent, signed

CONFIG = HookRegistry(type="hook", secrets=("env:SECRET",), sources=("hf:org/*", "onnx:x*"))
NOW = 1795165608
ASKED = {"model": "ranker", "version": "2026-11-20", "source": "hf:org/ranker@main"}


def _read(sent: Sent, now: float = NOW, config: HookRegistry = CONFIG) -> Delivery | Ignored:
    return read_delivery(config, sent.headers, sent.body, registry="ci", secrets=[SECRET], now=now)


def test_a_signed_request_asks_for_a_build() -> None:
    event = Event(
        registry="ci", model="ranker", version="2026-11-20", change="asked", value="", source="hf:org/ranker@main"
    )
    assert _read(signed(HEADERS, ASKED, delivery="run-7_1")) == Delivery(id="run-7_1", events=(event,), expires=True)


def test_the_source_may_stay_that_of_the_spec() -> None:
    found = _read(signed(HEADERS, {"model": "ranker", "version": "7"}))
    assert isinstance(found, Delivery)
    assert found.events[0].source == ""


def test_a_source_may_be_longer_than_a_name() -> None:
    found = _read(signed(HEADERS, ASKED | {"source": "onnx:" + "x" * 2000}))
    assert isinstance(found, Delivery)
    assert len(found.events[0].source) == 2005


@pytest.mark.parametrize(
    "source", ["hf:other/ranker", "hf:org", "HF:org/ranker", "hf:org/../other/ranker", "onnx:../x", "/etc", "hf:org/.."]
)
def test_a_source_that_the_file_does_not_name_is_refused(source: str) -> None:
    with pytest.raises(RequestRejected, match="malformed: source is none of those that are allowed"):
        _read(signed(HEADERS, ASKED | {"source": source}))


def test_no_source_is_taken_where_none_is_allowed() -> None:
    closed = CONFIG.model_copy(update={"sources": ()})
    with pytest.raises(RequestRejected, match="source is none of those"):
        _read(signed(HEADERS, ASKED), config=closed)
    assert isinstance(_read(signed(HEADERS, {"model": "ranker", "version": "7"}), config=closed), Delivery)


WRONG: dict[str, Any] = {
    "a list": [ASKED],
    "a key that is not known": ASKED | {"targets": ["a"]},
    "no model": {"version": "7"},
    "no version": {"model": "ranker"},
    "an empty version": ASKED | {"version": ""},
    "a number": ASKED | {"version": 7},
    "an empty source": ASKED | {"source": ""},
    "null": ASKED | {"source": None},
    "a control character": ASKED | {"version": "7\x07"},
    "a long source": ASKED | {"source": "x" * 2049},
    "a long model": ASKED | {"model": "x" * 513},
}


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG.keys())
def test_what_says_anything_else_is_malformed(value: Any) -> None:
    with pytest.raises(RequestRejected, match="malformed"):
        _read(signed(HEADERS, value))


@pytest.mark.parametrize("late", [-301, 301])
def test_an_old_request_is_not_taken_again(late: float) -> None:
    with pytest.raises(RequestRejected, match="timestamp"):
        _read(signed(HEADERS, ASKED), NOW + late)


def test_a_request_that_another_secret_signed_is_refused() -> None:
    with pytest.raises(RequestRejected, match="signature"):
        _read(signed(HEADERS, ASKED, secret="guessed"))
