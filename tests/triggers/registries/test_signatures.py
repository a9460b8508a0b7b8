"""A signature proves who sent a delivery, when, and every bit of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from plansmith.triggers.registries.delivery import RequestRejected
from plansmith.triggers.registries.mlflow import HEADERS
from plansmith.triggers.registries.signature import proven_id, signature_of
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


def test_all_recorded_deliveries_of_mlflow_verify() -> None:
    assert len(DELIVERIES) == 12
    assert [_proven(one) for one in DELIVERIES] == [one.headers["x-mlflow-delivery-id"] for one in DELIVERIES]


@pytest.mark.parametrize("sent", DELIVERIES, ids=lambda sent: sent.headers["x-mlflow-delivery-id"][:8])
def test_a_single_bit_that_changed_is_seen_wherever_it_is(sent: Sent) -> None:
    changed = [
        Sent(sent.headers | {name: text}, sent.body)
        for name in (HEADERS.delivery, HEADERS.timestamp, HEADERS.signature)
        for text in _flipped_texts(sent.headers[name])
    ]
    changed += [Sent(sent.headers, body) for body in _flipped_bodies(sent.body)]
    assert len(changed) == 8 * (36 + 10 + 47 + len(sent.body))
    for one in changed:
        with pytest.raises(RequestRejected) as refused:
            proven_id(HEADERS, one.headers, one.body, secrets=[SECRET], window_seconds=300, now=sent.timestamp)
        assert refused.value.kind == "signature"


@pytest.mark.parametrize("late", [-301, 301, -1e12, 1e12])
def test_a_delivery_of_another_time_is_refused_before_and_after(late: float) -> None:
    with pytest.raises(RequestRejected, match="timestamp"):
        _proven(ALIAS_SET, late=late)


@pytest.mark.parametrize("late", [-300, 0, 300])
def test_a_delivery_within_the_window_is_taken(late: float) -> None:
    assert _proven(ALIAS_SET, late=late)


@pytest.mark.parametrize("secrets", [[SECRET, "new"], ["new", SECRET], ["", "old", SECRET]], ids=str)
def test_any_of_several_secrets_may_have_signed_while_they_are_rotated(secrets: list[str]) -> None:
    assert _proven(ALIAS_SET, secrets=secrets)


@pytest.mark.parametrize("secrets", [[], ["new"], [SECRET.upper()], [f"{SECRET} "]], ids=str)
def test_a_secret_that_is_none_of_ours_proves_nothing(secrets: list[str]) -> None:
    with pytest.raises(RequestRejected, match="signature"):
        _proven(ALIAS_SET, secrets=secrets)


def test_an_empty_secret_is_none() -> None:
    with pytest.raises(RequestRejected, match="signature"):
        _proven(signed(HEADERS, {}, secret=""), secrets=["", ""])


@pytest.mark.parametrize("missing", [HEADERS.signature, HEADERS.delivery, HEADERS.timestamp])
def test_a_header_that_is_missing_is_no_proof(missing: str) -> None:
    headers = {name: value for name, value in ALIAS_SET.headers.items() if name != missing}
    with pytest.raises(RequestRejected, match="signature"):
        proven_id(HEADERS, headers, ALIAS_SET.body, secrets=[SECRET], window_seconds=300, now=ALIAS_SET.timestamp)


def test_what_is_signed_cannot_be_cut_elsewhere() -> None:
    sent = signed(HEADERS, b'1.{"a": 1}')
    moved = sent.headers | {HEADERS.delivery: "d1.1795165608", HEADERS.timestamp: "1"}
    with pytest.raises(RequestRejected, match="malformed"):
        proven_id(HEADERS, moved, b'{"a": 1}', secrets=[SECRET], window_seconds=300, now=1)


@pytest.mark.parametrize("timestamp", ["", "now", "1795165608.0", "+1795165608", " 1795165608", "١٧", "9" * 13])
def test_a_signed_time_that_is_none_is_refused(timestamp: str) -> None:
    sent = signed(HEADERS, {}, timestamp=timestamp)
    with pytest.raises(RequestRejected, match="timestamp"):
        proven_id(HEADERS, sent.headers, sent.body, secrets=[SECRET], window_seconds=300, now=1795165608)


@pytest.mark.parametrize("delivery", ["", "a.b", "a b", "a\n", "é", "\ud800", "x" * 129])
def test_a_signed_id_that_is_none_is_refused(delivery: str) -> None:
    with pytest.raises(RequestRejected, match="malformed"):
        _proven(signed(HEADERS, {}, delivery=delivery))


def test_a_refusal_tells_nothing_of_the_request_nor_of_a_secret() -> None:
    with pytest.raises(RequestRejected) as refused:
        _proven(signed(HEADERS, {"name": "ranker"}, secret="guessed"))
    assert not {"guessed", SECRET, "ranker", "d1", "v1,"} & set(str(refused.value).split())


def test_a_hook_is_signed_by_the_command_that_its_documentation_shows() -> None:
    made_by_openssl = "v1,/u06qCT9eQOHW5nI7lMU81Fh/pefo4peaR5JWbjmoRg="
    body = b'{"model":"ranker","version":"7"}'
    assert signature_of("kept", "3f0c", "1795165608", body) == made_by_openssl
    assert HOOK.signature == "x-plansmith-signature"
