"""Registries are told what came of builds: when all runs of an entry have ended, however they did, and never not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import EXIT_INTERRUPTED, EnvironmentFault
from plansmith.flows.runs.findings import Findings
from plansmith.flows.triggers.write_back_worker import WriteBackWorker
from plansmith.triggers.inbox.entry import StartedRun, WriteBack
from plansmith.triggers.inbox.inbox import Inbox
from plansmith.triggers.worker_loop import LEASE_SECONDS, WorkerContext, recheck_seconds

from ...support.triggers.inboxes import Clock, opened
from ...support.triggers.known_runs import champion
from ...support.triggers.mlflow_server import Mlflow, serving
from ...support.triggers.write_backs import (
    CRASHED,
    GONE,
    PUBLISHED,
    REFUSED,
    RETRIES,
    KnownEndings,
    ended,
    finish,
    run_of,
    teller,
)

ALIAS = "plansmith-ready"
TAGS = ("verdict", "reason", "published", "manifest", "figures", "run")
ONE, OTHER = run_of("one"), run_of("other", "triton-26.03")
AWAY = EnvironmentFault("the Prefect API cannot be reached", remedy="start one", transient=True)


@dataclass
class Desk:
    """An inbox, a registry with versions of one model, and how runs ended."""

    inbox: Inbox
    clock: Clock
    mlflow: Mlflow
    endings: KnownEndings = field(default_factory=KnownEndings)

    def teller(self, alias: str = "") -> WriteBackWorker:
        return teller(self.inbox, self.endings, self.mlflow, self.clock, alias)

    def finish(self, *runs: StartedRun, version: int = 3, tell: bool = True) -> int:
        return finish(self.inbox, self.clock.now, *runs, event=champion(version=str(version)), tell=tell)

    def told(self, number: int) -> WriteBack:
        return self.inbox.write_backs.of(number)[number]

    def tags(self, version: int = 3) -> dict[str, str]:
        return self.mlflow.tags("ranker", version)


@pytest.fixture
def desk(tmp_path: Path, clock: Clock) -> Iterator[Desk]:
    with opened(f"sqlite:///{tmp_path}/inbox.db", clock) as inbox, serving(Mlflow()) as mlflow:
        for number in range(1, 5):
            mlflow.add("ranker", number)
        yield Desk(inbox, clock, mlflow)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """The lines of JSON so far."""
    caplog.set_level("INFO", "plansmith.builds")
    return lambda: [json.loads(record.getMessage()) for record in caplog.records]


def test_a_version_is_told_once_all_runs_have_ended(desk: Desk, said: Callable[[], list[dict[str, Any]]]) -> None:
    number = desk.finish(ONE, OTHER)
    one = desk.teller()
    assert one.step()
    assert not one.step(), "it is not due"
    assert (desk.told(number).state, desk.told(number).attempts) == ("waiting", 0)
    desk.endings.end(ONE)
    desk.clock.go(minutes=5)
    assert one.step()
    assert desk.tags() == {}, "the other one goes on"
    desk.endings.end(OTHER, REFUSED)
    desk.clock.go(minutes=5)
    assert one.step()
    assert desk.told(number).verdict == desk.tags()["plansmith.verdict"] == "refused"
    assert desk.tags()["plansmith.ranker.local-cpu.published"] == "/srv/repository version 4"
    assert desk.tags()["plansmith.ranker.local-cpu.run"] == ONE.address
    assert desk.tags()["plansmith.ranker.triton-26.03.reason"] == "failed at validate, exit code 5"
    assert desk.tags()["plansmith.ranker.triton-26.03.figures"] == '{"min_cosine": 0.5}'
    desk.clock.go(days=1)
    assert not one.step(), "it is told"
    (line,) = said()
    assert (line["event"], line["outcome"], line["verdict"]) == ("write-back", "written", "refused")


ENDINGS = {
    "published": (PUBLISHED, "published", "none"),
    "without a record": (ended("COMPLETED", findings=Findings()), "published", "none"),
    "the gate": (REFUSED, "refused", "failed at validate, exit code 5"),
    "the served check": (
        ended("FAILED", exit_code=8, step="check_served"),
        "refused",
        "failed at check_served, exit code 8",
    ),
    "the export": (ended("FAILED", exit_code=4, step="export"), "failed", "failed at export, exit code 4"),
    "a bug": (ended("FAILED", exit_code=1), "failed", "failed, exit code 1"),
    "a crash": (CRASHED, "failed", "failed, exit code 9"),
    "an interrupted crash": (ended("CRASHED", exit_code=EXIT_INTERRUPTED), "failed", "failed, exit code 9"),
    "cancelled": (ended("CANCELLED"), "cancelled", "cancelled"),
    "deleted": (GONE, "failed", "failed, exit code 9"),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_however_a_run_ended_its_version_is_told(case: str, desk: Desk) -> None:
    how, verdict, reason = ENDINGS[case]
    desk.finish(ONE)
    desk.endings.end(ONE, how)
    assert desk.teller().step()
    tags = desk.tags()
    assert (tags["plansmith.verdict"], tags["plansmith.ranker.local-cpu.reason"]) == (verdict, reason)


def test_prefect_or_a_registry_that_is_away_means_later(desk: Desk, said: Callable[[], list[dict[str, Any]]]) -> None:
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    desk.endings.fails = [AWAY]
    desk.mlflow.away_after = 3
    one = desk.teller()
    for seconds, why in ((2, "the Prefect API cannot be reached; start one"), (4, "HTTP 503")):
        assert one.step()
        assert why in desk.told(number).reason
        assert not one.step(), "it is not due"
        assert desk.told(number).next_try_at == desk.clock.go(seconds=seconds)
    assert desk.told(number).attempts == 2
    desk.mlflow.away_after = None
    assert one.step()
    assert (desk.told(number).state, desk.told(number).reason) == ("written", "")
    assert [line["outcome"] for line in said()] == ["put-off", "put-off", "written"]
    assert len(desk.mlflow.changes) == 7, "each tag was set once"


def test_a_registry_that_is_away_is_waited_for_however_long(desk: Desk) -> None:
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    desk.mlflow.away_after = 0
    one = desk.teller()
    for _ in range(3 * RETRIES):
        desk.clock.go(hours=1)
        assert one.step()
        assert desk.told(number).state == "waiting"
    desk.clock.go(hours=1)
    desk.mlflow.away_after = None
    assert one.step()
    assert desk.told(number).state == "written"


def test_a_bug_that_stays_is_set_aside_after_the_retries_until_a_person_asks_again(desk: Desk) -> None:
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    desk.endings.fails = [RuntimeError("odd")] * (RETRIES + 1)
    one = desk.teller()
    for _ in range(RETRIES + 1):
        desk.clock.go(hours=1)
        assert one.step()
    assert desk.told(number).state == "set-aside"
    assert desk.told(number).reason.startswith("given up after 4 attempts: ")
    assert not one.step()
    assert desk.inbox.write_backs.again(number, 77) == (number,)
    assert one.step()
    assert desk.told(number).state == "written"


def test_what_the_registry_refuses_is_set_aside_at_once(desk: Desk, said: Callable[[], list[dict[str, Any]]]) -> None:
    number = desk.finish(ONE, version=9)
    desk.endings.end(ONE)
    assert desk.teller().step()
    assert desk.told(number).state == "set-aside"
    assert desk.told(number).reason.startswith("there is no version 9 of ranker at http://127.0.0.1")
    assert said()[0]["outcome"] == "set-aside"


def test_a_bug_is_told_with_its_place_and_tried_again(desk: Desk, said: Callable[[], list[dict[str, Any]]]) -> None:
    number = desk.finish(ONE)
    desk.endings.fails = [KeyError("odd")]
    assert desk.teller().step()
    assert (desk.told(number).state, desk.told(number).reason) == ("waiting", "KeyError: 'odd'")
    assert "Traceback" in said()[0]["traceback"]


def test_a_version_is_published_when_all_that_its_events_became_is(desk: Desk) -> None:
    for runs in ((ONE,), (OTHER,)):
        desk.finish(*runs)
    one = desk.teller(ALIAS)
    desk.endings.end(OTHER)
    assert [one.step(), one.step(), one.step()] == [True, True, False]
    assert desk.tags()["plansmith.ranker.triton-26.03.verdict"] == "published"
    assert "plansmith.verdict" not in desk.tags(), "the other one goes on"
    assert desk.told(2).reason == "the verdict of the version waits for entry 1"
    desk.endings.end(ONE)
    desk.clock.go(minutes=5)
    assert [one.step(), one.step(), one.step()] == [True, True, False]
    assert [desk.told(number).verdict for number in (1, 2)] == ["published", "published"]
    assert desk.tags()["plansmith.verdict"] == desk.tags()["plansmith.ranker.local-cpu.verdict"] == "published"
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "3"}
    assert len(desk.mlflow.changes) == 2 * 6 + 2, "each tag and the alias once"


@pytest.mark.parametrize("bad", [0, 1], ids=["older", "younger"])
def test_one_run_of_a_version_that_was_refused_shows_before_and_after_the_others_end(bad: int, desk: Desk) -> None:
    runs = (ONE, OTHER)
    for run in runs:
        desk.finish(run)
    one = desk.teller(ALIAS)
    desk.endings.end(runs[bad], REFUSED)
    assert [one.step(), one.step()] == [True, True]
    assert desk.tags()["plansmith.verdict"] == "refused"
    desk.endings.end(runs[1 - bad])
    desk.clock.go(minutes=5)
    assert [one.step(), one.step(), one.step()] == [True, True, False]
    assert desk.tags()["plansmith.verdict"] == desk.told(1).verdict == desk.told(2).verdict == "refused"
    assert desk.tags()[f"plansmith.{runs[1 - bad].label}.verdict"] == "published"
    assert desk.mlflow.aliases["ranker"] == {}


def test_each_model_and_target_counts_by_its_youngest_run_alone(desk: Desk) -> None:
    older = desk.finish(ONE, OTHER)
    for run in (ONE, OTHER):
        desk.endings.end(run, REFUSED)
    one = desk.teller(ALIAS)
    assert one.step()
    desk.finish(run_of("again"))
    desk.endings.end(run_of("again"))
    assert one.step()
    tags = desk.tags()
    assert tags["plansmith.ranker.local-cpu.verdict"] == "published"
    assert tags["plansmith.ranker.triton-26.03.verdict"] == tags["plansmith.verdict"] == "refused"
    desk.finish(run_of("once more", "triton-26.03"))
    desk.endings.end(run_of("once more", "triton-26.03"))
    assert one.step()
    assert desk.tags()["plansmith.verdict"] == "published"
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "3"}
    assert desk.told(older).verdict == "refused", "as it was when it was told"


def test_an_event_of_a_version_that_waits_for_its_runs_is_waited_for(desk: Desk) -> None:
    first = desk.finish(ONE)
    assert desk.inbox.take("mlflow", "late", [champion(version="3")])
    desk.endings.end(ONE)
    one = desk.teller(ALIAS)
    assert one.step()
    assert desk.told(first).reason == "the verdict of the version waits for entry 2"
    assert set(desk.tags()) == {f"plansmith.ranker.local-cpu.{name}" for name in TAGS}
    late = desk.inbox.claim("w", desk.clock.now, LEASE_SECONDS)
    assert late is not None
    assert desk.inbox.finish(late, (), tell=True), "no rule wants it"
    desk.clock.go(minutes=5)
    assert one.step()
    assert desk.tags()["plansmith.verdict"] == desk.told(first).verdict == "published"


def test_one_of_several_events_that_a_person_retries_makes_the_version_published(desk: Desk) -> None:
    older = desk.finish(ONE)
    younger = desk.finish(OTHER)
    desk.endings.end(ONE, CRASHED)
    desk.endings.end(OTHER)
    one = desk.teller(ALIAS)
    assert [one.step(), one.step()] == [True, True]
    assert desk.told(younger).verdict == desk.tags()["plansmith.verdict"] == "failed"
    assert desk.inbox.retry(older) == (older,)
    entry = desk.inbox.claim("w", desk.clock.now, LEASE_SECONDS)
    assert entry is not None
    assert desk.inbox.finish(entry, [run_of("retried")], tell=True)
    desk.endings.end(run_of("retried"))
    assert one.step()
    assert desk.tags()["plansmith.verdict"] == "published"
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "3"}


def test_what_a_registry_did_not_take_of_one_event_counts_and_keeps_no_other_back(desk: Desk) -> None:
    refused = desk.finish(ONE)
    desk.endings.end(ONE, CRASHED)
    held = desk.inbox.write_backs.claim("t", desk.clock.now, LEASE_SECONDS)
    assert held is not None
    assert desk.inbox.write_backs.set_aside(held, "no room for its tags")
    desk.finish(OTHER)
    desk.endings.end(OTHER)
    assert desk.teller().step()
    assert desk.tags()["plansmith.verdict"] == "failed"
    assert "plansmith.ranker.local-cpu.verdict" not in desk.tags()
    assert desk.told(refused).state == "set-aside"


def test_repetitions_with_the_same_runs_change_the_version_once(desk: Desk) -> None:
    numbers = [desk.finish(ONE) for _ in range(3)]
    desk.endings.end(ONE)
    one = desk.teller()
    assert [one.step() for _ in range(4)] == [True, True, True, False]
    assert {desk.told(number).state for number in numbers} == {"written"}
    assert len(desk.mlflow.changes) == 7


def test_the_alias_stays_with_what_was_published_last_whatever_is_told_last(desk: Desk) -> None:
    desk.finish(ONE, version=2)
    desk.finish(OTHER, version=3)
    desk.endings.end(OTHER)
    one = desk.teller(ALIAS)
    assert [one.step(), one.step()] == [True, True]
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "3"}
    desk.endings.end(ONE, replace(PUBLISHED, is_last=False))
    desk.clock.go(minutes=5)
    assert one.step()
    assert desk.tags(2)["plansmith.verdict"] == "published"
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "3"}
    desk.endings.end(ONE)
    desk.finish(ONE, version=2)
    assert one.step()
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "2"}, "somebody went back to it"


def test_a_version_is_as_new_as_its_youngest_event_whichever_of_them_ends_last(desk: Desk) -> None:
    desk.finish(ONE, version=2)
    desk.finish(OTHER, version=3)
    desk.finish(run_of("back", "gpu"), version=2)
    for run in (OTHER, run_of("back", "gpu")):
        desk.endings.end(run)
    one = desk.teller(ALIAS)
    assert [one.step() for _ in range(4)] == [True, True, True, False]
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "3"}
    desk.endings.end(ONE)
    desk.clock.go(minutes=5)
    assert one.step()
    assert desk.told(1).verdict == "published"
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "2"}, "somebody went back to it"


def test_an_entry_that_a_person_retries_is_told_anew(desk: Desk) -> None:
    number = desk.finish(ONE)
    desk.endings.end(ONE, CRASHED)
    one = desk.teller()
    assert one.step()
    assert desk.inbox.retry(number) == (number,)
    assert desk.inbox.write_backs.of(number) == {}
    assert not one.step()
    entry = desk.inbox.claim("w", desk.clock.now, LEASE_SECONDS)
    assert entry is not None
    assert desk.inbox.finish(entry, [OTHER], tell=True)
    desk.endings.end(OTHER)
    assert one.step()
    assert desk.tags()["plansmith.verdict"] == "published"


def test_an_entry_that_is_retried_while_it_is_told_is_not_noted_as_told(desk: Desk) -> None:
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    desk.endings.meanwhile = lambda: desk.inbox.retry(number)
    assert desk.teller().step()
    assert desk.tags() == {}
    assert desk.inbox.write_backs.of(number) == {}


def test_a_registry_that_is_not_told_any_more_is_left_in_peace(desk: Desk) -> None:
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    silent = WriteBackWorker(WorkerContext("t", desk.inbox, RETRIES, desk.clock), desk.endings, {}, ["mlflow"])
    assert [silent.step(), silent.step()] == [True, False]
    assert desk.inbox.write_backs.of(number) == {}
    assert desk.mlflow.asked == []


def test_what_is_to_be_told_to_a_registry_that_the_file_lacks_is_kept_until_it_is_there_again(desk: Desk) -> None:
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    lacking = WriteBackWorker(WorkerContext("t", desk.inbox, RETRIES, desk.clock), desk.endings, {}, ["hub", "s3"])
    assert [lacking.step(), lacking.step()] == [True, False]
    assert desk.told(number).state == "set-aside"
    assert desk.told(number).reason == (
        "the file of the service has no registry mlflow, but hub, s3;"
        f" add it, or give each service an inbox of its own; then: plansmith triggers inbox write-back {number}"
    )
    assert desk.inbox.write_backs.again(number) == (number,)
    assert desk.teller().step()
    assert desk.tags()["plansmith.verdict"] == desk.told(number).verdict == "published"


def test_an_entry_without_runs_or_of_a_registry_that_is_not_told_has_nothing_to_tell(desk: Desk) -> None:
    assert desk.inbox.write_backs.of(desk.finish(), desk.finish(ONE, tell=False)) == {}


def test_a_teller_that_lost_its_entry_to_another_one_changes_nothing_more(desk: Desk) -> None:
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    others: list[WriteBack | None] = []

    def take_long() -> None:
        desk.clock.go(seconds=LEASE_SECONDS)
        others.append(desk.inbox.write_backs.claim("other", desk.clock.now, LEASE_SECONDS))

    desk.endings.meanwhile = take_long
    assert desk.teller().step()
    assert desk.tags() == {}
    assert desk.told(number).worker == "other"
    assert others[0] is not None
    assert desk.inbox.write_backs.finish(others[0], "published")


def test_tellers_end_when_told_to_and_finish_what_they_have(desk: Desk) -> None:
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    begun, go_on, stop = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(60)

    desk.endings.meanwhile = hold
    thread = threading.Thread(target=desk.teller().work, args=(stop,))
    thread.start()
    assert begun.wait(60)
    stop.set()
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert desk.told(number).state == "written"


def test_runs_are_looked_at_after_a_tenth_of_what_they_have_taken() -> None:
    assert [recheck_seconds(took) for took in (0, 60, 600, 100_000)] == [5, 6, 60, 120]
