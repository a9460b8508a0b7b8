"""How often an address may come, on a clock of our own."""

from __future__ import annotations

import pytest

from plansmith.triggers.receiver.application import Rates

NOW = 1795165608.0


@pytest.mark.parametrize("per_minute", [1, 7, 60, 600, 100_000])
def test_minute_taken_at_once_then_singly(per_minute: int) -> None:
    """A minute's worth is taken at once, and then one at a time."""
    rates = Rates(per_minute)
    assert not any(rates.wait_seconds("a", NOW) for _ in range(per_minute))
    wait = rates.wait_seconds("a", NOW)
    assert wait == pytest.approx(60 / per_minute, rel=0.01)
    assert rates.wait_seconds("a", NOW + wait) == 0
    assert rates.wait_seconds("a", NOW + wait) > 0


def test_insistent_address_waits_no_longer() -> None:
    """An address that goes on asking waits no longer for that."""
    rates = Rates(2)
    waits = [rates.wait_seconds("a", NOW + second) for second in (0, 0, 0, 10, 20, 29, 30)]
    assert waits == pytest.approx([0, 0, 30, 20, 10, 1, 0])


def test_twice_rate_is_minute_maximum() -> None:
    """No more than twice as many pass in any minute."""
    rates = Rates(60)
    passed = [second for second in range(6000) if rates.wait_seconds("a", NOW + second / 100) == 0]
    assert passed[:60] == list(range(60))
    assert 60 + 59 <= len(passed) <= 120


def test_clock_set_back_locks_nobody_out() -> None:
    """A clock that is set back locks nobody out for longer."""
    rates = Rates(2)
    assert [rates.wait_seconds("a", NOW) for _ in range(2)] == [0, 0]
    assert rates.wait_seconds("a", NOW - 3600) == pytest.approx(30)
    assert rates.wait_seconds("a", NOW - 3570) == 0


def test_ipv6_network_is_one_client() -> None:
    """A network of IPv6 is one client, and two are two."""
    rates = Rates(1)
    assert rates.wait_seconds("2001:db8::1", NOW) == 0
    assert rates.wait_seconds("2001:db8::ffff:1", NOW) > 0
    assert rates.wait_seconds("2001:db8:0:1::1", NOW) == 0
    assert rates.wait_seconds("::ffff:192.0.2.1", NOW) == 0
    assert rates.wait_seconds("192.0.2.1", NOW) > 0
    assert rates.wait_seconds("fe80::1%eth0", NOW) == 0
    assert rates.wait_seconds("no:address", NOW) == 0


def test_remembered_addresses_bounded() -> None:
    """So many addresses are remembered, and the silent ones are forgotten first."""
    rates = Rates(1, addresses=100)
    for number in range(5000):
        rates.wait_seconds(f"10.0.{number // 256}.{number % 256}", NOW)
        assert rates.wait_seconds("the busy one", NOW) > 0 or number == 0
    assert len(rates) == 100
