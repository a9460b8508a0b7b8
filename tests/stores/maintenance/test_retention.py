"""Which versions a prune gives up, and what it says of the others."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from plansmith.stores.prune import LIVE_SECONDS, Retention, fates, without
from plansmith.stores.reader import AgedReport
from plansmith.stores.records import Catalogue, LiveReport, Pin, Pointer, StoredVersion, line_before

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


def aged_report(version: int, *serves: int, seconds_ago: float = 60) -> AgedReport:
    report = LiveReport(loader="gpu-7", model="m", alias="current", wanted=version, serves=serves, seen=OLD)
    return AgedReport(report, seconds_ago)


def stays(of: Catalogue, retention: Retention = NOTHING, *reports: AgedReport) -> dict[int, str]:
    """The versions that stay, and why."""
    return {f.version.version: f.stays for f in fates(of, retention, reports, NOW) if f.stays is not None}


def test_what_nothing_holds_goes() -> None:
    assert stays(catalogue(3)) == {}


def test_newest_versions_stay() -> None:
    """The newest versions stay whatever their age."""
    assert stays(catalogue(4), Retention(keep=2, seconds=0)) == {3: "one of the newest 2", 4: "one of the newest 2"}


def test_young_versions_stay() -> None:
    """Versions that are young by the store's clock stay."""
    assert stays(catalogue(1), Retention(keep=0, seconds=NOW - datetime.fromisoformat(OLD).timestamp() + 1)) == {
        1: "young"
    }
    assert stays(catalogue(1), Retention(keep=0, seconds=NOW - datetime.fromisoformat(OLD).timestamp() - 1)) == {}


def test_alias_and_rollback_versions_stay() -> None:
    """What an alias stands for stays, and so does what a rollback of it leads to."""
    assert stays(catalogue(5, aliases={"champion": (1, 2, 4)})) == {
        2: "a rollback of champion leads to it",
        4: "champion stands for it",
    }


def test_alias_version_is_no_other_rollback() -> None:
    """What one alias stands for is said to be that, and no rollback of another."""
    reasons = stays(catalogue(3, aliases={"canary": (2, 3), "champion": (1, 2)}))
    assert reasons[2] == "champion stands for it"


def test_rollback_passes_pruned_version() -> None:
    """A rollback goes past what was pruned, and that version stays."""
    line = catalogue(4, aliases={"current": (1, 3, 4)})
    line = line.model_copy(
        update={"versions": tuple(v.model_copy(update={"pruned": OLD}) if v.version == 3 else v for v in line.versions)}
    )
    assert stays(line) == {1: "a rollback of current leads to it", 4: "current stands for it"}


def test_rollback_never_leads_to_current() -> None:
    """A rollback leads to another version and never to the one that stands."""
    line = catalogue(4, aliases={"current": (4, 1, 2, 1)})
    entries = tuple(v.model_copy(update={"pruned": OLD}) if v.version == 2 else v for v in line.versions)
    pruned = line.model_copy(update={"versions": entries})
    assert line_before(line, "current") == (4, 1, 2)
    assert line_before(pruned, "current") == (4,)
    assert stays(pruned) == {1: "current stands for it", 4: "a rollback of current leads to it"}
    assert line_before(pruned, "none") == ()


def test_pinned_version_stays_for_reason() -> None:
    """What is pinned stays for its reason."""
    assert stays(catalogue(2, pins=(1,))) == {1: "pinned: audit"}


def test_loaded_version_stays_week() -> None:
    """What a loader serves or is about to serve stays for a week after its last word."""
    assert stays(catalogue(4), NOTHING, aged_report(3, 2)) == {2: "live at gpu-7", 3: "live at gpu-7"}
    assert stays(catalogue(4), NOTHING, aged_report(3, 2, seconds_ago=LIVE_SECONDS - 1)).keys() == {2, 3}
    assert stays(catalogue(4), NOTHING, aged_report(3, 2, seconds_ago=LIVE_SECONDS + 1)) == {}


def test_pruned_version_keeps_number() -> None:
    """A pruned version keeps its number and digest and is not pruned again."""
    before = catalogue(3, aliases={"current": (3,)})
    after = without(before, fates(before, NOTHING, (), NOW), lambda: NOW)
    assert [v.version for v in after.versions] == [1, 2, 3]
    assert [v.digest for v in after.versions] == [v.digest for v in before.versions]
    assert [v.version for v in after.standing()] == [3]
    assert {v.pruned for v in after.versions} == {None, "2026-06-01T00:00:00.000+00:00"}
    assert without(after, fates(after, NOTHING, (), NOW), lambda: NOW) is after


@pytest.mark.parametrize("keep", [1, 3, 9])
def test_keep_counts_standing_versions(keep: int) -> None:
    """Keeping counts versions that stand and not numbers."""
    some = catalogue(6)
    some = some.model_copy(
        update={"versions": tuple(v.model_copy(update={"pruned": OLD}) if v.version == 5 else v for v in some.versions)}
    )
    assert list(stays(some, Retention(keep=keep, seconds=0))) == [1, 2, 3, 4, 6][-keep:]
