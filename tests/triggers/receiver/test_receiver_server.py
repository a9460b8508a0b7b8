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

from ...support.deliveries.receiving import HOOK, Receiver, signed_request

DELIVERIES = "plansmith.deliveries"


@contextmanager
def _listening(receiver: Receiver) -> Iterator[str]:
    with bind("127.0.0.1", 0) as at, ReceiverServer(receiver.app, at) as listener:
        assert listener.is_running
        yield address_of(at)
    assert not listener.is_running


def _post(url: str, delivery: str, *forwarded: str) -> int:
    sent = signed_request(delivery=delivery)
    headers = [*sent.headers.items(), *(("X-Forwarded-For", address) for address in forwarded)]
    return httpx.post(f"{url}{HOOK}", content=sent.body, headers=headers, timeout=60).status_code


def _addresses(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [json.loads(record.getMessage())["address"] for record in caplog.records if record.name == DELIVERIES]


FORWARDED: dict[str, Sequence[Sequence[str]]] = {
    "as a proxy writes them": (["203.0.113.7"], ["203.0.113.8"]),
    "behind what a client made up": (["198.51.100.1, 203.0.113.7"], ["198.51.100.1, 203.0.113.8"]),
}


@pytest.mark.parametrize("forwarded", FORWARDED.values(), ids=FORWARDED.keys())
def test_proxied_clients_limited_each(
    forwarded: Sequence[Sequence[str]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients of a proxy on this machine have a limit each."""
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    caplog.set_level("INFO", DELIVERIES)
    first, second = forwarded
    with _listening(Receiver(per_minute=1)) as url:
        assert [_post(url, "a", *first), _post(url, "b", *first), _post(url, "c", *second)] == [202, 429, 202]
    assert _addresses(caplog) == ["203.0.113.7", "203.0.113.7", "203.0.113.8"]


def test_claimed_address_counts_nothing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client says of its address counts for nothing."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "192.0.2.1")  # there is the proxy
    caplog.set_level("INFO", DELIVERIES)
    with _listening(Receiver(per_minute=1)) as url:
        assert [_post(url, "a", "203.0.113.7"), _post(url, "b", "203.0.113.8")] == [202, 429]
    assert _addresses(caplog) == ["127.0.0.1", "127.0.0.1"]


def test_request_in_progress_gets_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is being answered when it ends gets its answer."""
    receiver = Receiver()
    arrival, go_on = threading.Event(), threading.Event()
    take, answers = receiver.inbox.take, list[int]()

    def take_long(*args: Any) -> bool:
        arrival.set()
        assert go_on.wait(60)
        return take(*args)

    monkeypatch.setattr(receiver.inbox, "take", take_long)
    with bind("127.0.0.1", 0) as at, ReceiverServer(receiver.app, at) as listener:
        url = address_of(at)
        asks = threading.Thread(target=lambda: answers.append(_post(url, "a")))
        asks.start()
        assert arrival.wait(60)
        listener.stop()
        go_on.set()
        asks.join(60)
    assert answers == [202]
    assert len(receiver.inbox.deliveries) == 1
    with pytest.raises(httpx.ConnectError):
        _post(url, "b")


def test_named_and_ipv6_hosts_have_address() -> None:
    """A host with a name, or of IPv6, has an address too."""
    with bind("localhost", 0) as at:
        assert address_of(at).startswith("http://")
    try:
        with bind("::1", 0) as at:
            assert address_of(at) == f"http://[::1]:{at.getsockname()[1]}"
    except EnvironmentFault as error:
        pytest.skip(error.message)  # no IPv6 on this machine
