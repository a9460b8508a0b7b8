"""Which versions a prune gives up, and what it says of the others."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from plansmith.stores.aliases import line_before
from plansmith.stores.maintenance.retention import LIVE_SECONDS, Retention, fates, without
from plansmith.stores.reader import Seen
from plansmith.stores.records import Catalogue, LiveReport, Pin, Pointer, StoredVersion

DAY = 24 * 3600
NOW = datetime(2026, 6, 1, tzinfo=UTC).timestamp()
OLD = "2026-01-01T00:00:00+00:00"
NOTHING = Retention(keep=0, seconds=0)


def catalogue(
    count: int, *, aliases: dict[str, tuple[int, ...]] | None = None, pins: tuple[int, ...] = ()
) -> Catalogue:
    """Versions 1 to `count`, all old; aliases by what they stood for in turn."""
    return Catalogue(
        model="m",
        versions=tuple(StoredVersion(version=n, digest=f"{n}" * 64, published=OLD) for n in range(1, count + 1)),
        aliases={name: Pointer(line=line, moved=OLD) for name, line in (aliases or {}).items()},
        pins=tuple(Pin(version=n, reason="audit", pinned=OLD) for n in pins),
        token="t",
    )


def seen(wanted: int, *serves: int, seconds_ago: float = 60) -> Seen:
    report = LiveReport(loader="gpu-7", model="m", alias="current", wanted=wanted, serves=serves, seen=OLD)
    return Seen(report, seconds_ago)


def stays(of: Catalogue, retention: Retention = NOTHING, *reports: Seen) -> dict[int, str]:
    """The versions that stay, and why."""
    return {f.version.version: f.stays for f in fates(of, retention, reports, NOW) if f.stays is not None}


def test_what_nothing_holds_goes() -> None:
    assert stays(catalogue(3)) == {}


def test_the_newest_versions_stay_whatever_their_age() -> None:
    assert stays(catalogue(4), Retention(keep=2, seconds=0)) == {3: "one of the newest 2", 4: "one of the newest 2"}


def test_versions_that_are_young_by_the_stores_clock_stay() -> None:
    assert stays(catalogue(1), Retention(keep=0, seconds=NOW - datetime.fromisoformat(OLD).timestamp() + 1)) == {
        1: "young"
    }
    assert stays(catalogue(1), Retention(keep=0, seconds=NOW - datetime.fromisoformat(OLD).timestamp() - 1)) == {}


def test_what_an_alias_stands_for_stays_and_what_a_rollback_of_it_leads_to() -> None:
    assert stays(catalogue(5, aliases={"champion": (1, 2, 4)})) == {
        2: "a rollback of champion leads to it",
        4: "champion stands for it",
    }


def test_what_one_alias_stands_for_is_said_to_be_that_and_no_rollback_of_another() -> None:
    held = stays(catalogue(3, aliases={"canary": (2, 3), "champion": (1, 2)}))
    assert held[2] == "champion stands for it"


def test_a_rollback_goes_past_what_was_pruned_and_that_version_stays() -> None:
    gone = catalogue(4, aliases={"current": (1, 3, 4)})
    gone = gone.model_copy(
        update={"versions": tuple(v.model_copy(update={"pruned": OLD}) if v.version == 3 else v for v in gone.versions)}
    )
    assert stays(gone) == {1: "a rollback of current leads to it", 4: "current stands for it"}


def test_a_rollback_leads_to_another_version_and_never_to_the_one_that_stands() -> None:
    line = catalogue(4, aliases={"current": (4, 1, 2, 1)})
    gone = tuple(v.model_copy(update={"pruned": OLD}) if v.version == 2 else v for v in line.versions)
    pruned = line.model_copy(update={"versions": gone})
    assert line_before(line, "current") == (4, 1, 2)
    assert line_before(pruned, "current") == (4,)
    assert stays(pruned) == {1: "current stands for it", 4: "a rollback of current leads to it"}
    assert line_before(pruned, "none") == ()


def test_what_is_pinned_stays_for_its_reason() -> None:
    assert stays(catalogue(2, pins=(1,))) == {1: "pinned: audit"}


def test_what_a_loader_serves_or_is_about_to_stays_for_a_week_after_its_last_word() -> None:
    assert stays(catalogue(4), NOTHING, seen(3, 2)) == {2: "live at gpu-7", 3: "live at gpu-7"}
    assert stays(catalogue(4), NOTHING, seen(3, 2, seconds_ago=LIVE_SECONDS - 1)).keys() == {2, 3}
    assert stays(catalogue(4), NOTHING, seen(3, 2, seconds_ago=LIVE_SECONDS + 1)) == {}


def test_a_pruned_version_keeps_its_number_and_digest_and_is_not_pruned_again() -> None:
    before = catalogue(3, aliases={"current": (3,)})
    after = without(before, fates(before, NOTHING, (), NOW))
    assert [v.version for v in after.versions] == [1, 2, 3]
    assert [v.digest for v in after.versions] == [v.digest for v in before.versions]
    assert [v.version for v in after.standing()] == [3]
    assert without(after, fates(after, NOTHING, (), NOW)) is after


@pytest.mark.parametrize("keep", [1, 3, 9])
def test_keeping_counts_versions_that_stand_and_not_numbers(keep: int) -> None:
    some = catalogue(6)
    some = some.model_copy(
        update={"versions": tuple(v.model_copy(update={"pruned": OLD}) if v.version == 5 else v for v in some.versions)}
    )
    assert list(stays(some, Retention(keep=keep, seconds=0))) == [1, 2, 3, 4, 6][-keep:]
