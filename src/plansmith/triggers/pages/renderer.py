"""Page renderer: HTML pages from templates, and the style sheet, that of the reports plus rules for these pages."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from plansmith import __version__
from plansmith.fleet.records import NEXT, in_table, names
from plansmith.fleet.status import ModelStatus
from plansmith.formatting import format_age, minute, short_path
from plansmith.report.templating import template_environment
from plansmith.stores.diff import describe_change, shorten_digests
from plansmith.system.digest import digest_of
from plansmith.triggers.inbox.entry import STATES, State, describe_write_back, shown_state
from plansmith.triggers.pages.query_results import FleetModel, HistoryResult

if TYPE_CHECKING:
    from jinja2 import Environment


FLEET_STATES = ("refused", "stale", "unknown", "fresh")
"""The most urgent first."""

ROWS_PER_PAGE = 200

_PACKAGE = "plansmith.triggers.pages"
_SHEETS = ("plansmith.report", "report.css"), (_PACKAGE, "pages.css")


@dataclass(frozen=True)
class Filter:
    """A filter link for one state of a list.

    Attributes:
        label: of the link.
        count: how many rows are in that state.
        href: the page with those rows alone.
        is_active: it is the page that is shown.
        icon: the state that the icon stands for; empty without an icon.
    """

    label: str
    count: int
    href: str
    is_active: bool
    icon: str = ""


@dataclass(frozen=True)
class PageLink:
    """A pagination link, with the numbers of its first and last row."""

    first: int
    last: int
    href: str
    is_active: bool


@dataclass(frozen=True)
class Reason:
    """Why a model is in its state and, if refused, the remedy."""

    text: str
    remedy: str = ""


@dataclass(frozen=True)
class FleetRow:
    """A row of the fleet table; `href` is empty if the model has no page."""

    name: str
    href: str
    reason: Reason
    model: FleetModel


@dataclass(frozen=True)
class VersionPair:
    """Two versions, with the URL of their diff page."""

    old: int
    new: int
    href: str


@dataclass(frozen=True)
class TargetSection:
    """Page section of a model for one of its targets.

    Attributes:
        title: its target, with the file or repository where several models share it.
        model: its status.
        history: its versions and compiles; None where they are not known yet.
        pairs: by version, that version and the one before it.
    """

    title: str
    model: FleetModel
    history: HistoryResult | None
    pairs: dict[int, VersionPair]

    @property
    def reason(self) -> Reason:
        """The reason for its state."""
        return reason_of(self.model.status)

    @property
    def newest_pair(self) -> VersionPair | None:
        """The newest version and its predecessor."""
        return next(iter(self.pairs.values()), None)


def fleet_rows(models: Sequence[FleetModel]) -> list[FleetRow]:
    """Return one row for each model, the most urgent first."""
    labels = names([model.status for model in models])
    rows = [
        FleetRow(label, page_url("models", model.status.model), reason_of(model.status), model)
        for label, model in zip(labels, models, strict=True)
    ]
    order = {state: number for number, state in enumerate(FLEET_STATES)}
    return sorted(rows, key=lambda row: (order[row.model.status.state], row.name, row.model.status.target))


def reason_of(status: ModelStatus) -> Reason:
    """Return why a model is in its state."""
    remedy = status.why.rpartition(NEXT)[2] if NEXT in status.why else ""
    return Reason(in_table(status.why), remedy)


def fleet_filters(rows: Sequence[FleetRow], active: str) -> list[Filter]:
    """Return the filters for the states of some rows, including the active one even if it has no rows."""
    counts: Counter[str] = Counter(row.model.status.state for row in rows)
    filters = [
        Filter(state, counts[state], f"/?state={state}", active == state, state)
        for state in FLEET_STATES
        if counts[state] or state == active
    ]
    return [Filter("all", len(rows), "/", not active), *filters]


def page_links(rows: int, page: int, state: str) -> list[PageLink]:
    """Return the pagination links of a table with more than one page; otherwise none.

    Args:
        rows: how many the table has.
        page: the number of the page that is shown, from 1.
        state: the active filter; empty for all.
    """
    if rows <= ROWS_PER_PAGE:
        return []
    return [
        PageLink(
            first=first + 1,
            last=min(first + ROWS_PER_PAGE, rows),
            href="/?" + urlencode(({"state": state} if state else {}) | {"page": number}),
            is_active=number == page,
        )
        for number, first in enumerate(range(0, rows, ROWS_PER_PAGE), 1)
    ]


def inbox_filters(counts: Mapping[State, int], active: str) -> list[Filter]:
    """Return filters for all states, including empty ones, to show for example that nothing is set aside."""
    filters = [
        Filter(state.replace("-", " "), counts[state], f"/inbox?state={state}", active == state, state)
        for state in STATES
    ]
    return [Filter("all", sum(counts.values()), "/inbox", not active), *filters]


def target_sections(models: Sequence[FleetModel], histories: Sequence[HistoryResult]) -> list[TargetSection]:
    """Return one section for each target of a model, with its history if known."""
    by_key = {history.key: history for history in histories}
    targets = Counter(model.status.target for model in models)
    return [
        TargetSection(
            title=_title(model, is_only=targets[model.status.target] == 1),
            model=model,
            history=by_key.get(model.key),
            pairs=_pairs(model, by_key.get(model.key)),
        )
        for model in models
    ]


def _title(model: FleetModel, *, is_only: bool) -> str:
    status = model.status
    return status.target if is_only else f"{status.target}, {relative_path(status.file or status.repository)}"


def relative_path(path: str) -> str:
    """Return a path relative to the service's directory, for display."""
    return short_path(os.path.normpath(path))


def _pairs(model: FleetModel, history: HistoryResult | None) -> dict[int, VersionPair]:
    numbers = [version.number for version in history.versions] if history else []
    return {new: VersionPair(old, new, differences_url(model, old, new)) for new, old in pairwise(numbers)}


def differences_url(model: FleetModel, old: int, new: int) -> str:
    """Return the URL of the diff page of two versions."""
    query = urlencode({"of": model.key, "old": old, "new": new})
    return f"{page_url('models', model.status.model)}/diff?{query}"


def page_url(*parts: str) -> str:
    """Return a page's path, each part percent-encoded; empty if any part is."""
    return "".join(f"/{quote(part, safe='', errors='replace')}" for part in parts) if all(parts) else ""


def web_url(text: str) -> str:
    """Return a URL if it is safe to link to (http or https), else an empty text."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return ""
    return text if parts.scheme in {"http", "https"} and parts.hostname else ""


def render(template: str, **values: Any) -> str:
    """Render a complete page."""
    return _environment().get_template(template).render(plansmith=__version__, style=style_version(), **values)


@cache
def style_sheet() -> str:
    """Return the style sheet."""
    return "\n".join(files(package).joinpath("templates", name).read_text("utf-8") for package, name in _SHEETS)


@cache
def style_version() -> str:
    """Return a digest of the style sheet, for its URL."""
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
    """Format a time to the minute; an unreadable value from a damaged record is kept as it is."""
    try:
        return minute(moment)
    except ValueError:
        return moment
