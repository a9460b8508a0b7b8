"""Requests of anything that can sign one."""

from __future__ import annotations

from typing import Any

import pytest

from plansmith.config.service_triggers import HookRegistry
from plansmith.triggers.registries.delivery import Delivery, Event, Ignored, RequestRejected
from plansmith.triggers.registries.webhook import HEADERS, read_delivery

from ...support.deliveries.recorded import SECRET, Sent, signed

CONFIG = HookRegistry(type="hook", secrets=("env:SECRET",), sources=("hf:org/*", "onnx:x*"))
NOW = 1795165608
ASKED = {"model": "ranker", "version": "2026-11-20", "source": "hf:org/ranker@main"}


def _read(sent: Sent, now: float = NOW, config: HookRegistry = CONFIG) -> Delivery | Ignored:
    return read_delivery(config, sent.headers, sent.body, registry="ci", secrets=[SECRET], now=now)


def test_signed_request_asks_for_build() -> None:
    """A signed request asks for a build."""
    event = Event(
        registry="ci", model="ranker", version="2026-11-20", change="asked", value="", source="hf:org/ranker@main"
    )
    assert _read(signed(HEADERS, ASKED, delivery="run-7_1")) == Delivery(id="run-7_1", events=(event,), expires=True)


def test_source_may_stay_spec() -> None:
    """The source may stay that of the spec."""
    delivery = _read(signed(HEADERS, {"model": "ranker", "version": "7"}))
    assert isinstance(delivery, Delivery)
    assert delivery.events[0].source == ""


def test_source_may_exceed_name_length() -> None:
    """A source may be longer than a name."""
    delivery = _read(signed(HEADERS, ASKED | {"source": "onnx:" + "x" * 2000}))
    assert isinstance(delivery, Delivery)
    assert len(delivery.events[0].source) == 2005


@pytest.mark.parametrize(
    "source", ["hf:other/ranker", "hf:org", "HF:org/ranker", "hf:org/../other/ranker", "onnx:../x", "/etc", "hf:org/.."]
)
def test_unlisted_source_refused(source: str) -> None:
    """A source that the file does not name is refused."""
    with pytest.raises(RequestRejected, match="malformed: source is none of those that are allowed"):
        _read(signed(HEADERS, ASKED | {"source": source}))


def test_source_refused_where_none_allowed() -> None:
    """No source is taken where none is allowed."""
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
def test_other_fields_malformed(value: Any) -> None:
    """What says anything else is malformed."""
    with pytest.raises(RequestRejected, match="malformed"):
        _read(signed(HEADERS, value))


@pytest.mark.parametrize("late", [-301, 301])
def test_old_request_not_taken_again(late: float) -> None:
    """An old request is not taken again."""
    with pytest.raises(RequestRejected, match="timestamp"):
        _read(signed(HEADERS, ASKED), NOW + late)


def test_other_secret_refused() -> None:
    """A request that another secret signed is refused."""
    with pytest.raises(RequestRejected, match="signature"):
        _read(signed(HEADERS, ASKED, secret="guessed"))
