"""Which versions of a model may be given up, and why the others stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from plansmith.formatting import seconds_of
from plansmith.stores.aliases import line_before
from plansmith.stores.backend.documents import utc_now
from plansmith.stores.reader import Seen
from plansmith.stores.records import Catalogue, StoredVersion

LIVE_SECONDS = 7 * 24 * 3600
"""What a loader said to be live counts as such for so long after its last report: it goes on serving while it cannot
reach the store."""


@dataclass(frozen=True)
class Retention:
    """What stays in any case: so many of the newest versions, and those published within so many seconds."""

    keep: int
    seconds: float


@dataclass(frozen=True)
class RetentionDecision:
    """Whether a version that stands is given up: `stays` says why not, None where it is."""

    version: StoredVersion
    stays: str | None


def fates(catalogue: Catalogue, retention: Retention, seen: Iterable[Seen], now: float) -> list[RetentionDecision]:
    """What becomes of the versions that stand, ascending.

    Args:
        catalogue: of the model.
        retention: what stays in any case.
        seen: what loaders reported.
        now: seconds since 1970 by the store's clock.
    """
    held = {number: f"pinned: {reason}" for number, reason in _pinned(catalogue).items()}
    held = _served(seen) | held | _aliased(catalogue)
    standing = catalogue.standing()
    newest = {version.version for version in standing[-retention.keep :]} if retention.keep else set()
    found = []
    for version in standing:
        stays = held.get(version.version)
        if stays is None and version.version in newest:
            stays = f"one of the newest {retention.keep}"
        if stays is None and seconds_of(version.published) > now - retention.seconds:
            stays = "young"
        found.append(RetentionDecision(version, stays))
    return found


def without(catalogue: Catalogue, found: Iterable[RetentionDecision]) -> Catalogue:
    """The catalogue in which those versions are pruned that are given up."""
    gone = {fate.version.version for fate in found if fate.stays is None}
    if not gone:
        return catalogue
    moment = utc_now()
    versions = tuple(
        version.model_copy(update={"pruned": moment}) if version.version in gone else version
        for version in catalogue.versions
    )
    return catalogue.model_copy(update={"versions": versions})


def _pinned(catalogue: Catalogue) -> Mapping[int, str]:
    return {pin.version: pin.reason for pin in catalogue.pins}


def _aliased(catalogue: Catalogue) -> dict[int, str]:
    """The versions that aliases stand for, and those that a rollback of each would lead to."""
    held: dict[int, str] = {}
    for alias in catalogue.aliases:
        for number in line_before(catalogue, alias)[-1:]:
            held.setdefault(number, f"a rollback of {alias} leads to it")
    return held | {pointer.version: f"{alias} stands for it" for alias, pointer in catalogue.aliases.items()}


def _served(seen: Iterable[Seen]) -> dict[int, str]:
    """The versions that loaders serve, or are about to."""
    return {
        number: f"live at {one.report.loader}"
        for one in seen
        if one.seconds_ago < LIVE_SECONDS
        for number in (one.report.wanted, *one.report.serves)
    }
