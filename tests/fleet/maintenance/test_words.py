"""What was verified and collected, in words."""

from __future__ import annotations

from plansmith.fleet.maintenance.collect import (
    COLLECTED_COLUMNS,
    VERIFIED_COLUMNS,
    Collected,
    RetainedVersion,
    collected_counts,
    collected_rows,
    verified_counts,
    verified_rows,
)
from plansmith.fleet.maintenance.garbage import RemovedItem
from plansmith.fleet.maintenance.locations import Fault
from plansmith.fleet.maintenance.verify import Verified, VersionAnswer
from plansmith.stores.verify import Damage, Verification

FAULT = Fault(place="s3://a", error="EnvironmentFault", message="it cannot\nbe reached", remedy="look")
PLACE = Verification(
    place="/r",
    typed="/r",
    kind="repository",
    quick=False,
    models=2,
    versions=3,
    files=9,
    bytes=2048,
    damages=(
        Damage(model="m", version=1, path="a", key="/r/a", problem="missing"),
        Damage(model="m", version=1, path="b", key="/r/b", problem="missing"),
        Damage(model="n", version=None, path="", key="k", problem="it is damaged"),
    ),
)
ANSWERS = (
    VersionAnswer(repository="/r", model="o", version=2, outcome="right", requests=6, runtime="ONNX Runtime 1"),
    VersionAnswer(repository="/r", model="p", version=1, outcome="unasked", problem="no GPU"),
    VersionAnswer(repository="/r", model="q", version=1, outcome="wrong", problem="Triton does not load it: no"),
)
GONE = tuple(RemovedItem(place="/r", kind="log", name=name, why="old", bytes=1024) for name in ("/r/1", "/r/2"))
KEPT = (RetainedVersion(place="/s", model="m", version=3, why="current stands for it"),)


def test_mistakes_come_first() -> None:
    """What is wrong stands before what is right."""
    verified = Verified(places=(PLACE,), answers=ANSWERS, faults=(FAULT,))
    assert verified_counts(verified) == (
        "1 place, 3 versions, 2 damaged; 1 answered rightly, 1 wrongly or not at all, 1 could not be asked;"
        " 1 place could not be looked at"
    )
    rows = verified_rows(verified)
    assert all(tuple(row) == VERIFIED_COLUMNS for row in rows)
    assert [(row["version"], row["looked at"], row["found"]) for row in rows] == [
        ("all", "place", "it cannot"),
        ("m@1", "a", "missing"),
        ("m@1", "b", "missing"),
        ("n", "its records", "it is damaged"),
        ("q@1", "answers", "wrong: Triton does not load it: no"),
        ("p@1", "answers", "not asked: no GPU"),
        ("o@2", "answers", "answers as its model did: 6 requests, ONNX Runtime 1"),
        ("all", "contents", "3 versions, 9 files, 2.0 KiB, not all as published"),
    ]


def test_look_and_collection_say_removals() -> None:
    """A look says what would go and a collection what went and what stayed."""
    look = Collected(dry_run=True, found=GONE, gone=(), kept=KEPT, faults=())
    assert collected_counts(look) == "2 things would be removed, 2.0 KiB freed"
    assert [(row["name"], row["state"]) for row in collected_rows(look)] == [
        ("/r/1", "would go"),
        ("/r/2", "would go"),
        ("m@3", "stays"),
    ]
    done = Collected(dry_run=False, found=GONE, gone=GONE[:1], kept=(), faults=(FAULT,))
    assert collected_counts(done) == "1 thing removed, 1.0 KiB freed; 1 of what was found stayed"
    rows = collected_rows(done)
    assert all(set(row) == set(COLLECTED_COLUMNS) for row in rows)
    assert [(row["name"], row["state"]) for row in rows] == [("/r/1", "gone"), ("/r/2", "stayed"), ("", "left alone")]
