"""Options about the price of an instance, and the price that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import complete_file
from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.sagemaker.prices import Price

PRICE_OPTIONS = (
    click.option(
        "--instance-type", metavar="TYPE", default="", help="For the cost: SageMaker's list price of this type."
    ),
    click.option(
        "--prices",
        metavar="FILE",
        type=click.Path(path_type=Path),
        shell_complete=complete_file,
        help="Your own prices as YAML: usd_per_hour, by instance type.",
    ),
    click.option("--usd-per-hour", metavar="USD", type=float, help="For the cost: the price of an hour."),
)


def read_price(instance_type: str, prices: Path | None, usd_per_hour: float | None) -> Price | None:
    """The price that the options name; None where they name none.

    Raises:
        UsageError: they name two, a type without a known price, or a file with problems.
    """
    from plansmith.sagemaker.prices import find_price, make_price, read_prices

    if usd_per_hour is not None:
        if prices is not None:
            raise UsageError("--prices and --usd-per-hour are two prices", remedy="give one of them")
        return make_price(usd_per_hour, instance_type)
    if instance_type:
        return find_price(instance_type, prices)
    if prices is not None:
        read_prices(prices)
        raise UsageError("--prices is a list, and no instance type is named", remedy="add --instance-type TYPE")
    return None
