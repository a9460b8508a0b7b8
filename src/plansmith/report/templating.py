"""Jinja environment of all HTML pages: escapes values, and treats a missing value as an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from plansmith.formatting import format_bytes, format_seconds, minute
from plansmith.system.libraries import require_library

if TYPE_CHECKING:
    from jinja2 import Environment

_REPORT_PACKAGE = "plansmith.report"


def template_environment(package: str = _REPORT_PACKAGE) -> Environment:
    """Return the template environment of a package, which may include the templates of the reports.

    Args:
        package: its dotted name; it has a folder `templates`.

    Raises:
        EnvironmentFault: Jinja2 is not installed.
    """
    require_library("jinja2", "report", purpose="HTML pages are rendered with it")
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
    """Split a long name at allowed line breaks: /encoder/layer.0/dense/MatMul."""
    start = 0
    for place, character in enumerate(name[:-1], 1):
        if character in "/._-":
            yield name[start:place]
            start = place
    yield name[start:]
