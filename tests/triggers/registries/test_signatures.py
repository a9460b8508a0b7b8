"""A signature proves who sent a delivery, when, and every bit of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from plansmith.triggers.registries.delivery import RequestRejected, proven_id, signature_of
from plansmith.triggers.registries.mlflow import HEADERS
from plansmith.triggers.registries.webhook import HEADERS as HOOK

from ...support.deliveries.recorded import ALIAS_SET, DELIVERIES, SECRET, Sent, signed


def _proven(sent: Sent, *, secrets: Sequence[str] = (SECRET,), late: float = 0) -> str:
    return proven_id(HEADERS, sent.headers, sent.body, secrets=secrets, window_seconds=300, now=sent.timestamp + late)


def _flipped_texts(text: str) -> Iterator[str]:
    for place, letter in enumerate(text):
        for bit in range(8):
            yield f"{text[:place]}{chr(ord(letter) ^ 1 << bit)}{text[place + 1 :]}"


def _flipped_bodies(body: bytes) -> Iterator[bytes]:
    for bit in range(8 * len(body)):
        yield (int.from_bytes(body) ^ 1 << bit).to_bytes(len(body))


def test_recorded_mlflow_deliveries_verify() -> None:
    """All recorded deliveries of MLflow verify."""
    assert len(DELIVERIES) == 12
    assert [_proven(delivery) for delivery in DELIVERIES] == [
        delivery.headers["x-mlflow-delivery-id"] for delivery in DELIVERIES
    ]


@pytest.mark.parametrize("sent", DELIVERIES, ids=lambda sent: sent.headers["x-mlflow-delivery-id"][:8])
def test_changed_bit_seen_anywhere(sent: Sent) -> None:
    """A single bit that changed is seen wherever it is."""
    changed = [
        Sent(sent.headers | {name: text}, sent.body)
        for name in (HEADERS.delivery, HEADERS.timestamp, HEADERS.signature)
        for text in _flipped_texts(sent.headers[name])
    ]
    changed += [Sent(sent.headers, body) for body in _flipped_bodies(sent.body)]
    assert len(changed) == 8 * (36 + 10 + 47 + len(sent.body))
    for variant in changed:
        with pytest.raises(RequestRejected) as refused:
            proven_id(HEADERS, variant.headers, variant.body, secrets=[SECRET], window_seconds=300, now=sent.timestamp)
        assert refused.value.kind == "signature"


@pytest.mark.parametrize("late", [-301, 301, -1e12, 1e12])
def test_delivery_outside_window_refused(late: float) -> None:
    """A delivery of another time is refused, before as after."""
    with pytest.raises(RequestRejected, match="timestamp"):
        _proven(ALIAS_SET, late=late)


@pytest.mark.parametrize("late", [-300, 0, 300])
def test_delivery_within_window_accepted(late: float) -> None:
    """A delivery within the window is taken."""
    assert _proven(ALIAS_SET, late=late)


@pytest.mark.parametrize("secrets", [[SECRET, "new"], ["new", SECRET], ["", "old", SECRET]], ids=str)
def test_any_rotated_secret_may_sign(secrets: list[str]) -> None:
    """Any of several secrets may have signed while they are rotated."""
    assert _proven(ALIAS_SET, secrets=secrets)


@pytest.mark.parametrize("secrets", [[], ["new"], [SECRET.upper()], [f"{SECRET} "]], ids=str)
def test_foreign_secret_proves_nothing(secrets: list[str]) -> None:
    """A secret that is none of ours proves nothing."""
    with pytest.raises(RequestRejected, match="signature"):
        _proven(ALIAS_SET, secrets=secrets)


def test_an_empty_secret_is_none() -> None:
    with pytest.raises(RequestRejected, match="signature"):
        _proven(signed(HEADERS, {}, secret=""), secrets=["", ""])


@pytest.mark.parametrize("missing", [HEADERS.signature, HEADERS.delivery, HEADERS.timestamp])
def test_missing_header_is_no_proof(missing: str) -> None:
    """A header that is missing is no proof."""
    headers = {name: value for name, value in ALIAS_SET.headers.items() if name != missing}
    with pytest.raises(RequestRejected, match="signature"):
        proven_id(HEADERS, headers, ALIAS_SET.body, secrets=[SECRET], window_seconds=300, now=ALIAS_SET.timestamp)


def test_signed_text_cut_only_once() -> None:
    """What is signed cannot be cut elsewhere."""
    sent = signed(HEADERS, b'1.{"a": 1}')
    moved = sent.headers | {HEADERS.delivery: "d1.1795165608", HEADERS.timestamp: "1"}
    with pytest.raises(RequestRejected, match="malformed"):
        proven_id(HEADERS, moved, b'{"a": 1}', secrets=[SECRET], window_seconds=300, now=1)


@pytest.mark.parametrize("timestamp", ["", "now", "1795165608.0", "+1795165608", " 1795165608", "١٧", "9" * 13])
def test_invalid_signed_time_refused(timestamp: str) -> None:
    """A signed time that is no time is refused."""
    sent = signed(HEADERS, {}, timestamp=timestamp)
    with pytest.raises(RequestRejected, match="timestamp"):
        proven_id(HEADERS, sent.headers, sent.body, secrets=[SECRET], window_seconds=300, now=1795165608)


@pytest.mark.parametrize("delivery", ["", "a.b", "a b", "a\n", "é", "\ud800", "x" * 129])
def test_invalid_signed_id_refused(delivery: str) -> None:
    """A signed ID that is none is refused."""
    with pytest.raises(RequestRejected, match="malformed"):
        _proven(signed(HEADERS, {}, delivery=delivery))


def test_refusal_tells_nothing() -> None:
    """A refusal tells nothing of the request nor of a secret."""
    with pytest.raises(RequestRejected) as refused:
        _proven(signed(HEADERS, {"name": "ranker"}, secret="guessed"))
    assert not {"guessed", SECRET, "ranker", "d1", "v1,"} & set(str(refused.value).split())


def test_documented_command_signs_hook() -> None:
    """A hook is signed by the command that its documentation shows."""
    made_by_openssl = "v1,/u06qCT9eQOHW5nI7lMU81Fh/pefo4peaR5JWbjmoRg="
    body = b'{"model":"ranker","version":"7"}'
    assert signature_of("kept", "3f0c", "1795165608", body) == made_by_openssl
    assert HOOK.signature == "x-plansmith-signature"
