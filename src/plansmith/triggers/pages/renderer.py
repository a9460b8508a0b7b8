"""Pages from their templates, and the style sheet: that of the reports, and what only pages have."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from plansmith import __version__
from plansmith.fleet.text import in_table
from plansmith.formatting import format_age, minute
from plansmith.report.templating import template_environment
from plansmith.stores.difference_text import describe_change, shorten_digests
from plansmith.system.digest import digest_of
from plansmith.triggers.entry_text import describe_write_back, shown_state
from plansmith.triggers.pages.view_models import page_url, relative_path, web_url

if TYPE_CHECKING:
    from jinja2 import Environment

_PACKAGE = "plansmith.triggers.pages"
_SHEETS = ("plansmith.report", "report.css"), (_PACKAGE, "pages.css")


def render(template: str, **values: Any) -> str:
    """A whole page."""
    return _environment().get_template(template).render(plansmith=__version__, style=style_version(), **values)


@cache
def style_sheet() -> str:
    """All styles."""
    return "\n".join(files(package).joinpath("templates", name).read_text("utf-8") for package, name in _SHEETS)


@cache
def style_version() -> str:
    """A digest of the style sheet, for its URL."""
    return digest_of(style_sheet())[:12]


@cache
def _environment() -> Environment:
    environment = template_environment(_PACKAGE)
    environment.filters |= {
        "age": format_age,
        "change": describe_change,
        "in_table": in_table,
        "minute": _minute,
        "page_url": lambda parts: page_url(*parts),
        "relative_path": relative_path,
        "short": shorten_digests,
        "shown_state": shown_state,
        "web_url": web_url,
        "write_back": describe_write_back,
    }
    return environment


def _minute(moment: str) -> str:
    """A time to the minute; what a damaged record holds in its place stays as it is."""
    try:
        return minute(moment)
    except ValueError:
        return moment
