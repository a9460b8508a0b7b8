"""What the templates show: rows, filters and links made of the results of queries."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import quote, urlencode, urlsplit

from plansmith.fleet.records import NEXT
from plansmith.fleet.status import ModelStatus
from plansmith.fleet.text import from_here, in_table, names
from plansmith.triggers.inbox.entry import STATES, State
from plansmith.triggers.pages.query_results import FleetModel, HistoryResult

FLEET_STATES = ("refused", "stale", "unknown", "fresh")
"""The most urgent first."""

ROWS_PER_PAGE = 200


@dataclass(frozen=True)
class Filter:
    """A state that a list can be filtered by.

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
    """A page of a long table, by the numbers of its first and last row."""

    first: int
    last: int
    href: str
    is_active: bool


@dataclass(frozen=True)
class Reason:
    """Why a model is in its state, and for a refused one what to do next."""

    text: str
    remedy: str = ""


@dataclass(frozen=True)
class FleetRow:
    """A model of the fleet; `href` is empty where it has no page."""

    name: str
    href: str
    reason: Reason
    model: FleetModel


@dataclass(frozen=True)
class VersionPair:
    """Two versions, and the page with their differences."""

    old: int
    new: int
    href: str


@dataclass(frozen=True)
class TargetSection:
    """A model for one of its targets.

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
        """Why it is in its state."""
        return reason_of(self.model.status)

    @property
    def newest_pair(self) -> VersionPair | None:
        """The newest version and the one before it."""
        return next(iter(self.pairs.values()), None)


def fleet_rows(models: Sequence[FleetModel]) -> list[FleetRow]:
    """A row for each model, the most urgent first."""
    labels = names([model.status for model in models])
    rows = [
        FleetRow(label, page_url("models", model.status.model), reason_of(model.status), model)
        for label, model in zip(labels, models, strict=True)
    ]
    order = {state: number for number, state in enumerate(FLEET_STATES)}
    return sorted(rows, key=lambda row: (order[row.model.status.state], row.name, row.model.status.target))


def reason_of(status: ModelStatus) -> Reason:
    """Why a model is in its state."""
    remedy = status.why.rpartition(NEXT)[2] if NEXT in status.why else ""
    return Reason(in_table(status.why), remedy)


def fleet_filters(rows: Sequence[FleetRow], active: str) -> list[Filter]:
    """The states of some rows, and the active one though no row is in it."""
    counts: Counter[str] = Counter(row.model.status.state for row in rows)
    filters = [
        Filter(state, counts[state], f"/?state={state}", active == state, state)
        for state in FLEET_STATES
        if counts[state] or state == active
    ]
    return [Filter("all", len(rows), "/", not active), *filters]


def page_links(rows: int, page: int, state: str) -> list[PageLink]:
    """The pages of a table that is longer than one page; else none.

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
    """All states, those without an entry included: it is worth knowing that nothing is set aside."""
    filters = [
        Filter(state.replace("-", " "), counts[state], f"/inbox?state={state}", active == state, state)
        for state in STATES
    ]
    return [Filter("all", sum(counts.values()), "/inbox", not active), *filters]


def target_sections(models: Sequence[FleetModel], histories: Sequence[HistoryResult]) -> list[TargetSection]:
    """A section for each target of a model, with its history where that is known."""
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
    """A file or folder as a person would name it from the service's directory."""
    return from_here(os.path.normpath(path))


def _pairs(model: FleetModel, history: HistoryResult | None) -> dict[int, VersionPair]:
    numbers = [version.number for version in history.versions] if history else []
    return {new: VersionPair(old, new, differences_url(model, old, new)) for new, old in pairwise(numbers)}


def differences_url(model: FleetModel, old: int, new: int) -> str:
    """The page with the differences between two versions."""
    query = urlencode({"of": model.key, "old": old, "new": new})
    return f"{page_url('models', model.status.model)}/diff?{query}"


def page_url(*parts: str) -> str:
    """The path of a page, each part percent-encoded; empty where a part is."""
    return "".join(f"/{quote(part, safe='', errors='replace')}" for part in parts) if all(parts) else ""


def web_url(text: str) -> str:
    """A URL that is safe to link to, of http or https; else nothing."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return ""
    return text if parts.scheme in {"http", "https"} and parts.hostname else ""
