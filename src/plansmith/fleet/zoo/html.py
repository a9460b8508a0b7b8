"""Zoo results as one HTML page in the style of the reports, without scripts or network access."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from plansmith import __version__
from plansmith.fleet.zoo.records import AxisFinding, Part, Zoo, share
from plansmith.report.templating import template_environment

if TYPE_CHECKING:
    from jinja2 import Template

_TEMPLATE = "zoo.html"


def render(zoo: Zoo, title: str) -> str:
    """Render the HTML page; `title` is the name of the list."""
    return _template().render(zoo=zoo, title=title, plansmith=__version__)


@cache
def _template() -> Template:
    environment = template_environment("plansmith.fleet.zoo")
    environment.filters |= {"axis": _describe_axis, "right_share": _right_share, "moving_share": _moving_share}
    return environment.get_template(_TEMPLATE)


def _describe_axis(axis: AxisFinding) -> str:
    sizes = ", ".join(map(str, axis.sizes))
    return f"{axis.name} ({axis.base}; {sizes})" + ("" if axis.moves else f": {axis.problem}")


def _right_share(part: Part) -> str:
    return f"{share(part.right, part.entries):.1%}"


def _moving_share(part: Part) -> str:
    return f"{share(part.moving, part.axes):.1%}"
