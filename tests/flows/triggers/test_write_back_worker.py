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
from plansmith.flows.runs.outcomes import Findings
from plansmith.flows.triggers.workers import WriteBackWorker
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

    def write_back(self, number: int) -> WriteBack:
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
def log_lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """The lines of JSON so far."""
    caplog.set_level("INFO", "plansmith.builds")
    return lambda: [json.loads(record.getMessage()) for record in caplog.records]


def test_version_told_after_all_runs(desk: Desk, log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """A version is told once all runs have ended."""
    number = desk.finish(ONE, OTHER)
    worker = desk.teller()
    assert worker.step()
    assert not worker.step(), "it is not due"
    assert (desk.write_back(number).state, desk.write_back(number).attempts) == ("waiting", 0)
    desk.endings.end(ONE)
    desk.clock.go(minutes=5)
    assert worker.step()
    assert desk.tags() == {}, "the other one goes on"
    desk.endings.end(OTHER, REFUSED)
    desk.clock.go(minutes=5)
    assert worker.step()
    assert desk.write_back(number).verdict == desk.tags()["plansmith.verdict"] == "refused"
    assert desk.tags()["plansmith.ranker.local-cpu.published"] == "/srv/repository version 4"
    assert desk.tags()["plansmith.ranker.local-cpu.run"] == ONE.address
    assert desk.tags()["plansmith.ranker.triton-26.03.reason"] == "failed at validate, exit code 5"
    assert desk.tags()["plansmith.ranker.triton-26.03.figures"] == '{"min_cosine": 0.5}'
    desk.clock.go(days=1)
    assert not worker.step(), "it is told"
    (line,) = log_lines()
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
def test_every_ending_is_told(case: str, desk: Desk) -> None:
    """However a run ended, its version is told."""
    how, verdict, reason = ENDINGS[case]
    desk.finish(ONE)
    desk.endings.end(ONE, how)
    assert desk.teller().step()
    tags = desk.tags()
    assert (tags["plansmith.verdict"], tags["plansmith.ranker.local-cpu.reason"]) == (verdict, reason)


def test_absence_means_later(desk: Desk, log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """A Prefect or a registry that is away means later."""
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    desk.endings.fails = [AWAY]
    desk.mlflow.away_after = 3
    worker = desk.teller()
    for seconds, why in ((2, "the Prefect API cannot be reached; start one"), (4, "HTTP 503")):
        assert worker.step()
        assert why in desk.write_back(number).reason
        assert not worker.step(), "it is not due"
        assert desk.write_back(number).next_try_at == desk.clock.go(seconds=seconds)
    assert desk.write_back(number).attempts == 2
    desk.mlflow.away_after = None
    assert worker.step()
    assert (desk.write_back(number).state, desk.write_back(number).reason) == ("written", "")
    assert [line["outcome"] for line in log_lines()] == ["put-off", "put-off", "written"]
    assert len(desk.mlflow.changes) == 7, "each tag was set once"


def test_absent_registry_waited_for(desk: Desk) -> None:
    """A registry that is away is waited for, however long."""
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    desk.mlflow.away_after = 0
    worker = desk.teller()
    for _ in range(3 * RETRIES):
        desk.clock.go(hours=1)
        assert worker.step()
        assert desk.write_back(number).state == "waiting"
    desk.clock.go(hours=1)
    desk.mlflow.away_after = None
    assert worker.step()
    assert desk.write_back(number).state == "written"


def test_lasting_bug_set_aside(desk: Desk) -> None:
    """A bug that stays is set aside after the retries until a person asks again."""
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    desk.endings.fails = [RuntimeError("odd")] * (RETRIES + 1)
    worker = desk.teller()
    for _ in range(RETRIES + 1):
        desk.clock.go(hours=1)
        assert worker.step()
    assert desk.write_back(number).state == "set-aside"
    assert desk.write_back(number).reason.startswith("given up after 4 attempts: ")
    assert not worker.step()
    assert desk.inbox.write_backs.again(number, 77) == (number,)
    assert worker.step()
    assert desk.write_back(number).state == "written"


def test_registry_refusal_set_aside(desk: Desk, log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """What the registry refuses is set aside at once."""
    number = desk.finish(ONE, version=9)
    desk.endings.end(ONE)
    assert desk.teller().step()
    assert desk.write_back(number).state == "set-aside"
    assert desk.write_back(number).reason.startswith("there is no version 9 of ranker at http://127.0.0.1")
    assert log_lines()[0]["outcome"] == "set-aside"


def test_bug_told_and_retried(desk: Desk, log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """A bug is told with its place and tried again."""
    number = desk.finish(ONE)
    desk.endings.fails = [KeyError("odd")]
    assert desk.teller().step()
    assert (desk.write_back(number).state, desk.write_back(number).reason) == ("waiting", "KeyError: 'odd'")
    assert "Traceback" in log_lines()[0]["traceback"]


def test_version_published_with_all_events(desk: Desk) -> None:
    """A version is published when all that its events became is published."""
    for runs in ((ONE,), (OTHER,)):
        desk.finish(*runs)
    worker = desk.teller(ALIAS)
    desk.endings.end(OTHER)
    assert [worker.step(), worker.step(), worker.step()] == [True, True, False]
    assert desk.tags()["plansmith.ranker.triton-26.03.verdict"] == "published"
    assert "plansmith.verdict" not in desk.tags(), "the other one goes on"
    assert desk.write_back(2).reason == "the verdict of the version waits for entry 1"
    desk.endings.end(ONE)
    desk.clock.go(minutes=5)
    assert [worker.step(), worker.step(), worker.step()] == [True, True, False]
    assert [desk.write_back(number).verdict for number in (1, 2)] == ["published", "published"]
    assert desk.tags()["plansmith.verdict"] == desk.tags()["plansmith.ranker.local-cpu.verdict"] == "published"
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "3"}
    assert len(desk.mlflow.changes) == 2 * 6 + 2, "each tag and the alias once"


@pytest.mark.parametrize("bad", [0, 1], ids=["older", "younger"])
def test_refused_run_shows_throughout(bad: int, desk: Desk) -> None:
    """One refused run of a version shows before and after the others end."""
    runs = (ONE, OTHER)
    for run in runs:
        desk.finish(run)
    worker = desk.teller(ALIAS)
    desk.endings.end(runs[bad], REFUSED)
    assert [worker.step(), worker.step()] == [True, True]
    assert desk.tags()["plansmith.verdict"] == "refused"
    desk.endings.end(runs[1 - bad])
    desk.clock.go(minutes=5)
    assert [worker.step(), worker.step(), worker.step()] == [True, True, False]
    assert desk.tags()["plansmith.verdict"] == desk.write_back(1).verdict == desk.write_back(2).verdict == "refused"
    assert desk.tags()[f"plansmith.{runs[1 - bad].label}.verdict"] == "published"
    assert desk.mlflow.aliases["ranker"] == {}


def test_youngest_run_counts(desk: Desk) -> None:
    """Each model and target counts by its youngest run alone."""
    older = desk.finish(ONE, OTHER)
    for run in (ONE, OTHER):
        desk.endings.end(run, REFUSED)
    worker = desk.teller(ALIAS)
    assert worker.step()
    desk.finish(run_of("again"))
    desk.endings.end(run_of("again"))
    assert worker.step()
    tags = desk.tags()
    assert tags["plansmith.ranker.local-cpu.verdict"] == "published"
    assert tags["plansmith.ranker.triton-26.03.verdict"] == tags["plansmith.verdict"] == "refused"
    desk.finish(run_of("once more", "triton-26.03"))
    desk.endings.end(run_of("once more", "triton-26.03"))
    assert worker.step()
    assert desk.tags()["plansmith.verdict"] == "published"
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "3"}
    assert desk.write_back(older).verdict == "refused", "as it was when it was told"


def test_waiting_event_is_waited_for(desk: Desk) -> None:
    """An event of a version that waits for its runs is waited for."""
    first = desk.finish(ONE)
    assert desk.inbox.take("mlflow", "late", [champion(version="3")])
    desk.endings.end(ONE)
    worker = desk.teller(ALIAS)
    assert worker.step()
    assert desk.write_back(first).reason == "the verdict of the version waits for entry 2"
    assert set(desk.tags()) == {f"plansmith.ranker.local-cpu.{name}" for name in TAGS}
    late = desk.inbox.claim("w", desk.clock.now, LEASE_SECONDS)
    assert late is not None
    assert desk.inbox.finish(late, (), tell=True), "no rule wants it"
    desk.clock.go(minutes=5)
    assert worker.step()
    assert desk.tags()["plansmith.verdict"] == desk.write_back(first).verdict == "published"


def test_retried_event_publishes_version(desk: Desk) -> None:
    """One of several events that a person retries makes the version published."""
    older = desk.finish(ONE)
    younger = desk.finish(OTHER)
    desk.endings.end(ONE, CRASHED)
    desk.endings.end(OTHER)
    worker = desk.teller(ALIAS)
    assert [worker.step(), worker.step()] == [True, True]
    assert desk.write_back(younger).verdict == desk.tags()["plansmith.verdict"] == "failed"
    assert desk.inbox.retry(older) == (older,)
    entry = desk.inbox.claim("w", desk.clock.now, LEASE_SECONDS)
    assert entry is not None
    assert desk.inbox.finish(entry, [run_of("retried")], tell=True)
    desk.endings.end(run_of("retried"))
    assert worker.step()
    assert desk.tags()["plansmith.verdict"] == "published"
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "3"}


def test_untaken_event_keeps_no_other_back(desk: Desk) -> None:
    """What a registry did not take of one event counts and keeps no other back."""
    refused = desk.finish(ONE)
    desk.endings.end(ONE, CRASHED)
    write_back = desk.inbox.write_backs.claim("t", desk.clock.now, LEASE_SECONDS)
    assert write_back is not None
    assert desk.inbox.write_backs.set_aside(write_back, "no room for its tags")
    desk.finish(OTHER)
    desk.endings.end(OTHER)
    assert desk.teller().step()
    assert desk.tags()["plansmith.verdict"] == "failed"
    assert "plansmith.ranker.local-cpu.verdict" not in desk.tags()
    assert desk.write_back(refused).state == "set-aside"


def test_repetitions_change_version_once(desk: Desk) -> None:
    """Repetitions with the same runs change the version once."""
    numbers = [desk.finish(ONE) for _ in range(3)]
    desk.endings.end(ONE)
    worker = desk.teller()
    assert [worker.step() for _ in range(4)] == [True, True, True, False]
    assert {desk.write_back(number).state for number in numbers} == {"written"}
    assert len(desk.mlflow.changes) == 7


def test_alias_stays_with_last_publication(desk: Desk) -> None:
    """The alias stays with what was published last, whatever is told last."""
    desk.finish(ONE, version=2)
    desk.finish(OTHER, version=3)
    desk.endings.end(OTHER)
    worker = desk.teller(ALIAS)
    assert [worker.step(), worker.step()] == [True, True]
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "3"}
    desk.endings.end(ONE, replace(PUBLISHED, is_last=False))
    desk.clock.go(minutes=5)
    assert worker.step()
    assert desk.tags(2)["plansmith.verdict"] == "published"
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "3"}
    desk.endings.end(ONE)
    desk.finish(ONE, version=2)
    assert worker.step()
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "2"}, "somebody went back to it"


def test_version_dates_from_youngest_event(desk: Desk) -> None:
    """A version is as new as its youngest event, whichever of them ends last."""
    desk.finish(ONE, version=2)
    desk.finish(OTHER, version=3)
    desk.finish(run_of("back", "gpu"), version=2)
    for run in (OTHER, run_of("back", "gpu")):
        desk.endings.end(run)
    worker = desk.teller(ALIAS)
    assert [worker.step() for _ in range(4)] == [True, True, True, False]
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "3"}
    desk.endings.end(ONE)
    desk.clock.go(minutes=5)
    assert worker.step()
    assert desk.write_back(1).verdict == "published"
    assert desk.mlflow.aliases["ranker"] == {ALIAS: "2"}, "somebody went back to it"


def test_retried_entry_told_anew(desk: Desk) -> None:
    """An entry that a person retries is told anew."""
    number = desk.finish(ONE)
    desk.endings.end(ONE, CRASHED)
    worker = desk.teller()
    assert worker.step()
    assert desk.inbox.retry(number) == (number,)
    assert desk.inbox.write_backs.of(number) == {}
    assert not worker.step()
    entry = desk.inbox.claim("w", desk.clock.now, LEASE_SECONDS)
    assert entry is not None
    assert desk.inbox.finish(entry, [OTHER], tell=True)
    desk.endings.end(OTHER)
    assert worker.step()
    assert desk.tags()["plansmith.verdict"] == "published"


def test_entry_retried_while_told(desk: Desk) -> None:
    """An entry that is retried while it is told is not noted as told."""
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    desk.endings.meanwhile = lambda: desk.inbox.retry(number)
    assert desk.teller().step()
    assert desk.tags() == {}
    assert desk.inbox.write_backs.of(number) == {}


def test_untold_registry_left_in_peace(desk: Desk) -> None:
    """A registry that is not told any more is left in peace."""
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    silent = WriteBackWorker(WorkerContext("t", desk.inbox, RETRIES, desk.clock), desk.endings, {}, ["mlflow"])
    assert [silent.step(), silent.step()] == [True, False]
    assert desk.inbox.write_backs.of(number) == {}
    assert desk.mlflow.requests == []


def test_entries_of_lacking_registry_kept(desk: Desk) -> None:
    """What is for a registry that the file lacks is kept until the registry is there again."""
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    lacking = WriteBackWorker(WorkerContext("t", desk.inbox, RETRIES, desk.clock), desk.endings, {}, ["hub", "s3"])
    assert [lacking.step(), lacking.step()] == [True, False]
    assert desk.write_back(number).state == "set-aside"
    assert desk.write_back(number).reason == (
        "the file of the service has no registry mlflow, but hub, s3;"
        f" add it, or give each service an inbox of its own; then: plansmith triggers inbox write-back {number}"
    )
    assert desk.inbox.write_backs.again(number) == (number,)
    assert desk.teller().step()
    assert desk.tags()["plansmith.verdict"] == desk.write_back(number).verdict == "published"


def test_entry_without_runs_tells_nothing(desk: Desk) -> None:
    """An entry without runs or of a registry that is not told has nothing to tell."""
    assert desk.inbox.write_backs.of(desk.finish(), desk.finish(ONE, tell=False)) == {}


def test_teller_without_entry_changes_nothing(desk: Desk) -> None:
    """A teller that lost its entry to another one changes nothing more."""
    number = desk.finish(ONE)
    desk.endings.end(ONE)
    others: list[WriteBack | None] = []

    def take_long() -> None:
        desk.clock.go(seconds=LEASE_SECONDS)
        others.append(desk.inbox.write_backs.claim("other", desk.clock.now, LEASE_SECONDS))

    desk.endings.meanwhile = take_long
    assert desk.teller().step()
    assert desk.tags() == {}
    assert desk.write_back(number).worker == "other"
    assert others[0] is not None
    assert desk.inbox.write_backs.finish(others[0], "published")


def test_tellers_end_cleanly(desk: Desk) -> None:
    """Tellers end when told to and finish what they have."""
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
    assert desk.write_back(number).state == "written"


def test_runs_polled_after_a_tenth() -> None:
    """Runs are looked at after a tenth of what they have taken."""
    assert [recheck_seconds(took) for took in (0, 60, 600, 100_000)] == [5, 6, 60, 120]
