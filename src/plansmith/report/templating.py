"""The Jinja environment of all HTML pages: values are escaped, and a missing value is an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from plansmith.formatting import format_bytes, format_seconds, minute

if TYPE_CHECKING:
    from jinja2 import Environment

_REPORT_PACKAGE = "plansmith.report"


def template_environment(package: str = _REPORT_PACKAGE) -> Environment:
    """The templates of a package, which may include those of the reports.

    Args:
        package: its dotted name; it has a folder `templates`.
    """
    import jinja2

    packages = dict.fromkeys((package, _REPORT_PACKAGE))
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name) for name in packages]),
        autoescape=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "breakable": breakable,
        "bytes": format_bytes,
        "minute": minute,
        "seconds": format_seconds,
    }
    return environment


def breakable(name: str) -> Iterator[str]:
    """The parts of a long name, between which a line may end: /encoder/layer.0/dense/MatMul."""
    start = 0
    for place, character in enumerate(name[:-1], 1):
        if character in "/._-":
            yield name[start:place]
            start = place
    yield name[start:]
