"""Prices of instance types, and the cost of serving."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.errors import UsageError
from plansmith.sagemaker.prices import cost_of, find_price, make_price, needed_instances


def test_list_price_has_its_source() -> None:
    """A known price names region and date."""
    price = find_price("ml.g5.xlarge")
    assert price.usd_per_hour == pytest.approx(1.408)
    assert "us-east-1, as of 2026-" in price.source


@pytest.mark.parametrize(
    ("name", "words"),
    [("ml.g5.xlarg", "did you mean ml.g5.xlarge"), ("ml.nothing", "known are"), ("ml.g4dn.8xlarg", "ml.g4dn.8xlarge")],
)
def test_unknown_type_names_the_nearest(name: str, words: str) -> None:
    """The error of an unknown type proposes the nearest known ones, and how to give a price."""
    with pytest.raises(UsageError, match="is unknown: no such type") as refused:
        find_price(name)
    assert words in refused.value.remedy
    assert "--usd-per-hour" in refused.value.remedy


def test_price_list_wins(tmp_path: Path) -> None:
    """A price of one's own replaces the list price; problems of the file are named with their lines."""
    file = tmp_path / "prices.yaml"
    file.write_text("source: our contract\nas_of: 2026-11-01\nusd_per_hour:\n  ml.g5.xlarge: 1.12\n")
    assert find_price("ml.g5.xlarge", file).usd_per_hour == pytest.approx(1.12)
    assert find_price("ml.g5.xlarge", file).source == "our contract, as of 2026-11-01"
    assert find_price("ml.g5.2xlarge", file).usd_per_hour == pytest.approx(1.515)
    file.write_text("usd_per_hour:\n  g5: 1.12\n  ml.g5.xlarge: 0\nas_off: 2026-11-01\n")
    with pytest.raises(UsageError, match=r"3 problems in the prices") as refused:
        find_price("ml.g5.xlarge", file)
    assert "prices.yaml:3" in refused.value.message
    assert "prices.yaml:4 'as_off' (did you mean as_of?)" in refused.value.message


def test_cost_at_a_target_rate() -> None:
    """A target rate needs whole instances; a third of a rate three times is not two of them."""
    cost = cost_of(make_price(0.36), 50, target_rate=101, headroom=0.0)
    assert cost.usd_per_million == pytest.approx(2.0)
    assert cost.instances == 3
    assert cost.usd_per_hour == pytest.approx(1.08)
    assert needed_instances(1.0, 1 / 3) == 3
    with pytest.raises(UsageError, match="no price per hour"):
        make_price(0)
