"""The receiver at a real socket: whose address counts, and how it ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from plansmith.errors import EnvironmentFault
from plansmith.triggers.receiver.server import ReceiverServer, address_of, bind

from ...support.deliveries.receiving import HOOK, Receiver, asked

DELIVERIES = "plansmith.deliveries"


@contextmanager
def _listening(receiver: Receiver) -> Iterator[str]:
    with bind("127.0.0.1", 0) as at, ReceiverServer(receiver.app, at) as listener:
        assert listener.is_running
        yield address_of(at)
    assert not listener.is_running


def _post(url: str, delivery: str, *forwarded: str) -> int:
    sent = asked(delivery=delivery)
    headers = [*sent.headers.items(), *(("X-Forwarded-For", one) for one in forwarded)]
    return httpx.post(f"{url}{HOOK}", content=sent.body, headers=headers, timeout=60).status_code


def _addresses(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [json.loads(one.getMessage())["address"] for one in caplog.records if one.name == DELIVERIES]


FORWARDED: dict[str, Sequence[Sequence[str]]] = {
    "as a proxy writes them": (["203.0.113.7"], ["203.0.113.8"]),
    "behind what a client made up": (["198.51.100.1, 203.0.113.7"], ["198.51.100.1, 203.0.113.8"]),
}


@pytest.mark.parametrize("forwarded", FORWARDED.values(), ids=FORWARDED.keys())
def test_the_clients_of_a_proxy_on_this_machine_have_a_limit_each(
    forwarded: Sequence[Sequence[str]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    caplog.set_level("INFO", DELIVERIES)
    one, other = forwarded
    with _listening(Receiver(per_minute=1)) as url:
        assert [_post(url, "a", *one), _post(url, "b", *one), _post(url, "c", *other)] == [202, 429, 202]
    assert _addresses(caplog) == ["203.0.113.7", "203.0.113.7", "203.0.113.8"]


def test_what_a_client_says_of_its_address_counts_for_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "192.0.2.1")  # there is the proxy
    caplog.set_level("INFO", DELIVERIES)
    with _listening(Receiver(per_minute=1)) as url:
        assert [_post(url, "a", "203.0.113.7"), _post(url, "b", "203.0.113.8")] == [202, 429]
    assert _addresses(caplog) == ["127.0.0.1", "127.0.0.1"]


def test_a_request_that_is_being_answered_when_it_ends_gets_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
    taken, go_on = threading.Event(), threading.Event()
    take, answers = receiver.inbox.take, list[int]()

    def take_long(*given: Any) -> bool:
        taken.set()
        assert go_on.wait(60)
        return take(*given)

    monkeypatch.setattr(receiver.inbox, "take", take_long)
    with bind("127.0.0.1", 0) as at, ReceiverServer(receiver.app, at) as listener:
        url = address_of(at)
        asks = threading.Thread(target=lambda: answers.append(_post(url, "a")))
        asks.start()
        assert taken.wait(60)
        listener.stop()
        go_on.set()
        asks.join(60)
    assert answers == [202]
    assert len(receiver.inbox.kept) == 1
    with pytest.raises(httpx.ConnectError):
        _post(url, "b")


def test_a_host_with_a_name_or_of_ipv6_has_an_address_too() -> None:
    with bind("localhost", 0) as at:
        assert address_of(at).startswith("http://")
    try:
        with bind("::1", 0) as at:
            assert address_of(at) == f"http://[::1]:{at.getsockname()[1]}"
    except EnvironmentFault as error:
        pytest.skip(error.message)  # no IPv6 on this machine
