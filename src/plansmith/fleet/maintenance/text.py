"""What was verified and what was collected, as rows and lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from plansmith.errors import in_one_line
from plansmith.fleet.maintenance.collect import Collected
from plansmith.fleet.maintenance.verify import Verified, VersionAnswer
from plansmith.formatting import format_bytes
from plansmith.stores.maintenance.damage import Damage, Verification

_NOTHING_YET = "nothing there yet"

VERIFIED_COLUMNS = ("place", "version", "looked at", "found")
COLLECTED_COLUMNS = ("place", "kind", "name", "why", "bytes", "state")

_OUTCOMES = {
    "right": "answers as its model did",
    "wrong": "wrong",
    "unasked": "not asked",
    "incomparable": "not compared",
}


_ANSWERS = {
    "right": "answered rightly",
    "wrong": "wrongly or not at all",
    "unasked": "could not be asked",
    "incomparable": "could not be compared",
}


def verified_counts(verified: Verified) -> str:
    """What was looked at and what was found: "2 places, 12 versions, 0 damaged; 5 asked, 1 wrong"."""
    versions = sum(place.versions for place in verified.places)
    damaged = {(place.place, one.model, one.version) for place in verified.places for one in place.damages}
    found = f"{_count(len(verified.places), 'place')}, {_count(versions, 'version')}, {len(damaged)} damaged"
    counts: Counter[str] = Counter(one.outcome for one in verified.answers)
    answers = [f"{counts[outcome]} {words}" for outcome, words in _ANSWERS.items() if counts[outcome]]
    faults = [f"{_count(len(verified.faults), 'place')} could not be looked at"] if verified.faults else []
    return "; ".join([found, *([", ".join(answers)] if answers else []), *faults, *_nothing_yet(verified.absent)])


def verified_rows(verified: Verified) -> list[dict[str, str]]:
    """What is wrong first, then every version that was asked, then the places, by `VERIFIED_COLUMNS`."""
    faults = [_row(one.place, "all", "place", in_one_line(one.message)) for one in verified.faults]
    damages = [_damage_row(place, one) for place in verified.places for one in place.damages]
    order = list(_ANSWERS)
    answers = sorted(verified.answers, key=lambda one: (one.outcome == "right", order.index(one.outcome)))
    return [*faults, *damages, *map(_answer_row, answers), *map(_place_row, verified.places)]


def describe_answer(one: VersionAnswer) -> str:
    """How a version answered, in one line."""
    if one.outcome == "right":
        return f"{_OUTCOMES['right']}: {_count(one.requests, 'request')}, {one.runtime}"
    return f"{_OUTCOMES[one.outcome]}: {in_one_line(one.problem)}"


def collected_counts(collected: Collected) -> str:
    """How many things went, and what that freed."""
    freed = f"{format_bytes(collected.freed_bytes)} freed"
    absent = _nothing_yet(collected.absent)
    if collected.dry_run:
        return "; ".join([f"{_count(len(collected.found), 'thing')} would be removed, {freed}", *absent])
    still = len(collected.found) - len(collected.gone)
    stays = f"; {still} of what was found stayed" if still else ""
    return "; ".join([f"{_count(len(collected.gone), 'thing')} removed, {freed}{stays}", *absent])


def collected_rows(collected: Collected) -> list[dict[str, str]]:
    """What was found and what became of it, what stays in stores, and faults, by `COLLECTED_COLUMNS`."""
    went = {(one.place, one.name) for one in collected.gone}

    def state(place: str, name: str) -> str:
        return "would go" if collected.dry_run else "gone" if (place, name) in went else "stayed"

    rows = [
        {
            "place": one.place,
            "kind": one.kind,
            "name": one.name,
            "why": one.why,
            "bytes": format_bytes(one.bytes),
            "state": state(one.place, one.name),
        }
        for one in collected.found
    ]
    nothing = {"bytes": "", "state": "stays"}
    rows += [
        {"place": one.place, "kind": "version", "name": f"{one.model}@{one.version}", "why": one.why, **nothing}
        for one in collected.kept
    ]
    failed = {"kind": "place", "name": "", "bytes": "", "state": "left alone"}
    rows += [{"place": one.place, "why": in_one_line(one.message), **failed} for one in collected.faults]
    absent = {"kind": "place", "name": "", "why": _NOTHING_YET, "bytes": "", "state": "left alone"}
    return rows + [{"place": place, **absent} for place in collected.absent]


def _nothing_yet(absent: Sequence[str]) -> list[str]:
    """What is said of places with nothing in them; nothing where there are none."""
    return [f"{_NOTHING_YET} at {', '.join(absent)}"] if absent else []


def _damage_row(place: Verification, one: Damage) -> dict[str, str]:
    version = one.model if one.version is None else f"{one.model}@{one.version}"
    return _row(place.place, version, one.path or "its records", one.problem)


def _answer_row(one: VersionAnswer) -> dict[str, str]:
    return _row(one.repository, f"{one.model}@{one.version}", "answers", describe_answer(one))


def _place_row(place: Verification) -> dict[str, str]:
    how = "sizes" if place.quick else "contents"
    read = f"{_count(place.versions, 'version')}, {_count(place.files, 'file')}, {format_bytes(place.bytes)}"
    return _row(place.place, "all", how, read + (", not all as published" if place.damages else ", as published"))


def _row(place: str, version: str, looked_at: str, found: str) -> dict[str, str]:
    return dict(zip(VERIFIED_COLUMNS, (place, version, looked_at, found), strict=True))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
