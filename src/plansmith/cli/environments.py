"""The environments that a release brings with it, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plansmith.manifest import Package


def environment_lines(package: Package) -> Iterator[str]:
    """A line for each packed environment: whose it is, its Python, what it takes."""
    from plansmith.units import bytes_in_words

    brought = [(package.model, package.environment), *((one.model, one.environment) for one in package.members)]
    for model, environment in brought:
        if environment is not None:
            packages = len(environment.distributions)
            yield (
                f"{model} brings its environment for Python {environment.python}:"
                f" {packages} package{'s' * (packages != 1)}, {bytes_in_words(environment.bytes)},"
                f" unpacked {bytes_in_words(environment.unpacked_bytes)}"
            )
