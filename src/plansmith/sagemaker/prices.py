"""Prices of SageMaker instance types, and the resulting cost of serving.

The prices that plansmith knows are in configs/sagemaker/instances.yaml with their sources. A file of one's own wins:

    region: eu-central-1
    as_of: 2026-11-01
    source: our contract
    usd_per_hour:
      ml.g5.xlarge: 1.12
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from plansmith.config.spec import problems_of, refusal
from plansmith.config.yaml_source import read_text
from plansmith.errors import UsageError
from plansmith.records.fields import Number, matching
from plansmith.records.model import Record
from plansmith.sagemaker.endpoint.instances import instances, list_prices, nearest_instances

_SECONDS_PER_HOUR = 3600
_MILLION = 1_000_000
_TYPE = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9]+")
_ROUNDING = 1e-9
"""Keeps 3 times a third from needing a second instance."""

_TypeName = Annotated[str, matching(_TYPE, "must be an instance type such as ml.g5.xlarge")]


class PriceList(Record):
    """Price list from a file."""

    region: str = Field(default="", description="Region of the prices.")
    as_of: datetime.date | None = Field(default=None, description="Date of the prices.")
    source: str = Field(default="", description="Where they come from.")
    usd_per_hour: dict[_TypeName, Annotated[Number, Field(gt=0)]] = Field(
        min_length=1, description="US dollars per instance and hour, by instance type."
    )

    @property
    def label(self) -> str:
        """The source, region and date as text."""
        date = f"as of {self.as_of}" if self.as_of else ""
        return ", ".join(filter(None, [self.source or "the given price list", self.region, date]))


class Price(Record):
    """On-demand price of an instance type, without storage and data.

    Attributes:
        instance_type: such as ml.g5.xlarge; empty where only a price is known.
        usd_per_hour: of one instance.
        source: of the price, in words.
    """

    instance_type: str
    usd_per_hour: float
    source: str


class Cost(Record):
    """Cost of serving.

    Attributes:
        price: of an instance.
        rate_per_instance: samples per second that one instance answers.
        headroom: share of that rate that stays free.
        usd_per_million: samples, with all instances busy up to the headroom.
        target_rate: samples per second to serve; None where none is given.
        instances: that the target rate needs.
        usd_per_hour: of these instances.
        usd_per_million_at_target: samples, at the target rate.
    """

    price: Price
    rate_per_instance: float
    headroom: float
    usd_per_million: float
    target_rate: float | None = None
    instances: int | None = None
    usd_per_hour: float | None = None
    usd_per_million_at_target: float | None = None


def read_prices(path: Path) -> PriceList:
    """Read a price list.

    Raises:
        UsageError: the file cannot be read, or has problems, each named with its line.
    """
    text = read_text(path, form="a price list is a mapping with `usd_per_hour`", examples="docs/tuning.md")
    problems = list(text.problems)
    try:
        prices = PriceList.model_validate(text.values)
    except ValidationError as invalid:
        problems += map(text.placed, problems_of(invalid, text.values, PriceList))
    else:
        if not problems:
            return prices
    raise refusal(problems, subject="the prices")


def find_price(instance_type: str, prices: Path | None = None) -> Price:
    """Return the price of an instance type.

    Args:
        instance_type: such as ml.g5.xlarge.
        prices: a price list that wins over the known prices.

    Raises:
        UsageError: no price is known, with the nearest types; or the file is wrong.
    """
    own = read_prices(prices) if prices is not None else None
    if own is not None and instance_type in own.usd_per_hour:
        return Price(instance_type=instance_type, usd_per_hour=own.usd_per_hour[instance_type], source=own.label)
    instance = instances().get(instance_type)
    if instance is not None and instance.usd_per_hour is not None:
        listed = list_prices()
        source = f"SageMaker's list price in {listed.region}, as of {listed.as_of}"
        return Price(instance_type=instance_type, usd_per_hour=instance.usd_per_hour, source=source)
    raise _unknown(instance_type, own)


def make_price(usd_per_hour: float, instance_type: str = "") -> Price:
    """Build a price that the user gives.

    Raises:
        UsageError: it is not above 0.
    """
    if not (math.isfinite(usd_per_hour) and usd_per_hour > 0):
        raise UsageError(f"{usd_per_hour:g} is no price per hour", remedy="give one above 0")
    return Price(instance_type=instance_type, usd_per_hour=usd_per_hour, source="as given")


def needed_instances(target_rate: float, rate_per_instance: float, headroom: float = 0.0) -> int:
    """Return the number of instances for a rate: ceil(target / (rate of one · (1 - headroom))), at least one.

    Args:
        target_rate: samples per second, above 0.
        rate_per_instance: samples per second of one instance, above 0.
        headroom: share of it that stays free, from 0 to below 1.

    Raises:
        UsageError: one of them is out of its range.
    """
    _require_rate(target_rate, "the target rate")
    _require_rate(rate_per_instance, "the rate of an instance")
    _require_headroom(headroom)
    return max(1, math.ceil(target_rate / (rate_per_instance * (1 - headroom)) - _ROUNDING))


def cost_per_million(usd_per_hour: float, rate: float) -> float:
    """Return US dollars per million samples: price per hour / (rate · 3600 s) · 1,000,000.

    Args:
        usd_per_hour: of all instances that serve the rate.
        rate: samples per second, above 0.

    Raises:
        UsageError: the rate is not above 0.
    """
    _require_rate(rate, "the rate")
    return usd_per_hour / (rate * _SECONDS_PER_HOUR) * _MILLION


def cost_of(price: Price, rate_per_instance: float, *, target_rate: float | None, headroom: float = 0.0) -> Cost:
    """Return the cost of serving with instances that each answer a number of samples per second.

    Raises:
        UsageError: a rate is not above 0, or the headroom is not from 0 to below 1.
    """
    _require_headroom(headroom)
    per_million = cost_per_million(price.usd_per_hour, rate_per_instance * (1 - headroom))
    cost = Cost(price=price, rate_per_instance=rate_per_instance, headroom=headroom, usd_per_million=per_million)
    if target_rate is None:
        return cost
    count = needed_instances(target_rate, rate_per_instance, headroom)
    return cost.model_copy(
        update={
            "target_rate": target_rate,
            "instances": count,
            "usd_per_hour": count * price.usd_per_hour,
            "usd_per_million_at_target": cost_per_million(count * price.usd_per_hour, target_rate),
        }
    )


def _require_rate(value: float, name: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{name} is {value:g} per second, and has to be above 0", remedy="give one above 0")


def _require_headroom(value: float) -> None:
    if not 0 <= value < 1:
        raise UsageError(f"a headroom of {value:g} is no share from 0 to below 1", remedy="give one such as 0.2")


def _unknown(instance_type: str, own: PriceList | None) -> UsageError:
    priced = [name for name, instance in instances().items() if instance.usd_per_hour is not None]
    types = [*(own.usd_per_hour if own is not None else ()), *priced]
    is_type = instance_type in instances()
    reason = "plansmith has no price of it" if is_type else "no such type is known"
    near = [] if is_type else [name for name in nearest_instances(instance_type) if name in types]
    hint = f"did you mean {' or '.join(near)}? Otherwise " if near else ""
    return UsageError(
        f"the price of {instance_type} is unknown: {reason}",
        remedy=f"{hint}give --usd-per-hour USD, or a price list with --prices FILE; known are {_by_family(types)}",
    )


def _by_family(names: Iterable[str]) -> str:
    """Format instance families with their sizes, so that all fit on a screen: ml.g5.{xlarge, 2xlarge}."""
    families: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        family, _, size = name.rpartition(".")
        families.setdefault(family, []).append(size)
    return ", ".join(f"{family}.{{{', '.join(sizes)}}}" for family, sizes in families.items())
