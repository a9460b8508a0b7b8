"""What becomes of an entry: runs, another try after longer and longer pauses, or a person's decision."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from plansmith.errors import EnvironmentFault, UsageError
from plansmith.flows.triggers.builder import Builder
from plansmith.flows.triggers.workers import Worker
from plansmith.triggers.inbox.entry import InboxEntry
from plansmith.triggers.inbox.inbox import Inbox
from plansmith.triggers.registries.delivery import Event
from plansmith.triggers.worker_loop import LEASE_SECONDS, WorkerContext, pause_seconds

from ...support.triggers.inboxes import Clock, opened
from ...support.triggers.known_runs import KnownRuns, champion, service

SPEC = "specs/ranker.yaml"
RETRIES = 3
AWAY = EnvironmentFault("the Prefect API cannot be reached", remedy="start one", transient=True)


class Service:
    """An inbox, a worker of it, and the runs that it starts."""

    def __init__(self, inbox: Inbox, clock: Clock) -> None:
        self.inbox, self.clock, self.runs = inbox, clock, KnownRuns()
        self.deliveries = 0
        self.is_so: Callable[[Event], bool | None] = lambda _: True

    def worker(self, *targets: str, told: Collection[str] = ()) -> Worker:
        config = service({"spec": SPEC, "model": "ranker*", "targets": targets}, retries=RETRIES)
        builder = Builder(config, self.runs, self.confirm)
        return Worker(WorkerContext("w", self.inbox, RETRIES, self.clock, lambda: 0.0), builder, registries=told)

    def confirm(self, event: Event) -> bool | None:
        return self.is_so(event)

    def take(self, *models: str, version: str = "3") -> None:
        for model in models:
            self.deliveries += 1
            assert self.inbox.take("mlflow", f"d-{self.deliveries}", [champion(model, version)])

    def entry(self) -> InboxEntry:
        return self.inbox.entries()[0]


@pytest.fixture
def works(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.chdir(tmp_path)
    Path("specs").mkdir()
    Path(SPEC).write_text("source: hf:org/ranker\n")
    with opened(f"sqlite:///{tmp_path}/inbox.db", clock) as inbox:
        yield Service(inbox, clock)


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """The lines of JSON so far."""
    caplog.set_level("INFO", "plansmith.builds")
    return lambda: [json.loads(record.getMessage()) for record in caplog.records]


def test_started_entry_is_done(works: Service, log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """An entry is done when it has become a run."""
    works.take("ranker")
    worker = works.worker()
    assert worker.step()
    (run,) = works.runs.ids.values()
    entry = works.entry()
    assert (entry.state, [item.id for item in entry.runs]) == ("done", [str(run)])
    assert not worker.step(), "nothing is left"
    (line,) = log_lines()
    assert (line["outcome"], line["runs"], line["what"]) == ("built", [str(run)], "ranker, version 3 (alias champion)")


def test_unwanted_entry_is_done(works: Service) -> None:
    """An entry that no rule wants is done without a run."""
    works.take("other")
    assert works.worker().step()
    assert (works.entry().state, works.entry().runs, works.runs.requests) == ("done", (), [])


@pytest.mark.parametrize(("told", "numbers"), [((), set()), (("mlflow",), {1})])
def test_entries_with_runs_are_told(told: tuple[str, ...], numbers: set[int], works: Service) -> None:
    """Of a registry that is told, each entry with runs is to be told."""
    works.take("ranker", "other")
    worker = works.worker("local-cpu", "triton-26.03", told=told)
    assert [worker.step(), worker.step()] == [True, True]
    assert set(works.inbox.write_backs.of(1, 2)) == numbers
    first = works.inbox.entry(1)
    assert first is not None
    assert [run.label for run in first.runs] == ["ranker.local-cpu", "ranker.triton-26.03"]


def test_repeated_content_is_one_run(works: Service) -> None:
    """The same content told twice is one run."""
    works.take("ranker", "ranker")
    worker = works.worker()
    assert [worker.step() for _ in range(3)] == [True, True, False]
    assert len(works.runs.ids) == 1
    assert {entry.runs[0].id for entry in works.inbox.entries()} == {str(next(iter(works.runs.ids.values())))}


def test_absent_prefect_means_later(works: Service, log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """A Prefect that is away means later and not never."""
    works.take("ranker")
    works.runs.fails = [AWAY, AWAY]
    worker = works.worker()
    for seconds in (2, 4):
        assert worker.step()
        entry = works.entry()
        assert (entry.state, entry.reason) == ("waiting", "the Prefect API cannot be reached; start one")
        assert not worker.step(), "it is not due"
        assert entry.next_try_at == works.clock.go(seconds=seconds)
    assert worker.step()
    assert (works.entry().state, works.entry().reason) == ("done", "")
    assert [line["outcome"] for line in log_lines()] == ["put-off", "put-off", "built"]


def test_step_results_are_counted(works: Service) -> None:
    """What came of each step is counted."""
    counted: list[tuple[str, str]] = []
    works.take("ranker", "other")
    works.runs.fails = [AWAY, UsageError("no")]
    hand = WorkerContext("w", works.inbox, RETRIES, works.clock, lambda: 0.0, lambda *labels: counted.append(labels))
    builder = Builder(service({"spec": SPEC, "model": "ranker"}, retries=RETRIES), works.runs, works.confirm)
    for _ in range(3):
        assert Worker(hand, builder).step()
        works.clock.go(hours=1)
    assert works.inbox.retry(1)
    assert Worker(hand, builder).step()
    assert counted == [("build", outcome) for outcome in ("put-off", "set-aside", "unwanted", "built")]


def test_absent_service_waited_for(works: Service) -> None:
    """What is away is waited for, however long."""
    works.take("ranker")
    works.runs.fails = [AWAY] * 100
    worker = works.worker()
    for _ in range(100):
        works.clock.go(hours=1)
        assert worker.step()
        assert works.entry().state == "waiting"
    works.clock.go(hours=1)
    assert worker.step()
    assert works.entry().state == "done"


def test_lasting_bug_set_aside(works: Service) -> None:
    """A bug that stays is set aside after the retries with its reason."""
    works.take("ranker")
    works.runs.fails = [RuntimeError("odd")] * (RETRIES + 1)
    worker = works.worker()
    for _ in range(RETRIES + 1):
        works.clock.go(hours=1)
        assert worker.step()
    assert works.entry().state == "set-aside"
    assert works.entry().reason == "given up after 4 attempts: RuntimeError: odd"
    assert works.inbox.retry(works.entry().id)
    assert worker.step()
    assert works.entry().state == "done"


def test_prefect_refusal_set_aside(works: Service) -> None:
    """What Prefect refuses for good is set aside at once, in one line."""
    works.take("ranker")
    works.runs.fails = [UsageError("it does not take this spec:\n  a\n  b", remedy="mend these")]
    assert works.worker().step()
    assert (works.entry().state, works.entry().reason) == ("set-aside", "it does not take this spec: a b; mend these")


def test_unbuildable_package_set_aside(works: Service) -> None:
    """A package that nothing can be built of is set aside with what is wrong."""
    poison = champion(source="").model_copy(update={"wrong": "the artefact is not in S3"})
    assert works.inbox.take("mlflow", "poison", [poison])
    assert works.worker().step()
    assert (works.entry().state, works.runs.requests) == ("set-aside", [])
    assert works.entry().reason.startswith("ranker, version 3, cannot be built: the artefact is not in S3; register it")


def test_wrong_spec_sets_own_entry_aside(works: Service) -> None:
    """A spec that is wrong sets its entry aside and not those of others."""
    Path(SPEC).write_text("source: hf:org/ranker\nprecison: int8\n")
    works.take("ranker", "other")
    worker = works.worker()
    assert [worker.step(), worker.step()] == [True, True]
    later, first = works.inbox.entries()
    assert (later.state, first.state) == ("done", "set-aside")
    assert "precison" in first.reason


def test_bug_told_and_retried(works: Service, log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """A bug is told with its place and tried again."""
    works.take("ranker")
    works.runs.fails = [KeyError("odd")]
    assert works.worker().step()
    assert (works.entry().state, works.entry().reason) == ("waiting", "KeyError: 'odd'")
    assert "Traceback" in log_lines()[0]["traceback"]


def test_repeated_entry_names_wanting_runs(works: Service) -> None:
    """An entry that a person asks for again says which runs were found wanting."""
    works.take("ranker")
    worker = works.worker()
    assert worker.step()
    (run,) = works.entry().runs
    assert works.inbox.retry(works.entry().id)
    assert worker.step()
    assert [before for _, before in works.runs.requests] == [frozenset(), {run.id}]


def test_entry_waits_for_earlier_run(works: Service, log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """An entry waits for the run before it, however long, and that is no failure."""
    works.take("ranker")
    works.runs.goes_on = uuid4()
    worker = works.worker()
    for seconds in (5, 5, 5, 5):
        assert worker.step()
        entry = works.entry()
        assert (entry.state, entry.attempts) == ("waiting", 0)
        assert entry.reason == f"waits for the run before it: http://prefect/runs/{works.runs.goes_on}"
        assert not worker.step(), "it is not due"
        assert entry.next_try_at == works.clock.go(seconds=seconds)
    works.runs.goes_on = None
    assert worker.step()
    assert works.entry().state == "done"
    assert [line["outcome"] for line in log_lines()] == ["behind"] * 4 + ["built"]


TARGETS = ("local-cpu", "triton-26.03")


@pytest.mark.parametrize("why", ["behind", "away", "poison"])
def test_begun_runs_known_during_rest(why: str, works: Service) -> None:
    """What has begun of an entry is known while the rest is still to begin."""
    works.take("ranker")
    works.runs.goes_on, works.runs.free = uuid4(), frozenset(TARGETS[:1])
    if why != "behind":
        fault = AWAY if why == "away" else UsageError("it takes no such parameters")
        works.runs.meanwhile = lambda: works.runs.fails.extend([fault] if len(works.runs.requests) == 2 else [])
    worker = works.worker(*TARGETS)
    assert worker.step()
    (run,) = works.runs.ids.values()
    entry = works.entry()
    assert entry.state == ("set-aside" if why == "poison" else "waiting")
    assert [item.id for item in entry.known_runs] == [str(run)]
    works.runs.goes_on = None
    works.clock.go(hours=1)
    if why == "poison":
        assert works.inbox.retry(1)
    assert worker.step()
    assert (works.entry().state, len(works.entry().runs), works.entry().started) == ("done", 2, ())
    assert works.entry().runs[0].id == str(run)
    wanting = {str(run)} if why == "poison" else set()
    assert {before for _, before in works.runs.requests[2:]} == {frozenset(wanting)}


def test_begun_runs_stay_after_withdrawal(works: Service) -> None:
    """What has begun of an entry stays its own when the registry takes the rest back."""
    works.take("ranker")
    works.runs.goes_on, works.runs.free = uuid4(), frozenset(TARGETS[:1])
    worker = works.worker(*TARGETS, told=("mlflow",))
    assert worker.step()
    (run,) = works.runs.ids.values()
    works.is_so = lambda _: False
    works.runs.goes_on = None
    works.clock.go(hours=1)
    assert worker.step()
    assert (works.entry().state, [item.id for item in works.entry().runs]) == ("done", [str(run)])
    assert set(works.inbox.write_backs.of(1)) == {1}


def test_contradicted_entry_not_built(works: Service, log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """What a later entry contradicts is not built, and what is told again is."""
    for version in ("3", "4", "3", "5", "3"):
        works.take("ranker", version=version)
    works.take("ranker-other", version="9")
    works.is_so = lambda event: event.version in {"3", "9"}
    worker = works.worker(told=("mlflow",))
    assert [worker.step() for _ in range(7)] == [True] * 6 + [False]
    assert [line["outcome"] for line in log_lines()] == ["built", "outdated", "built", "outdated", "built", "built"]
    entries = works.inbox.entries()[::-1]
    assert [entry.reason for entry in entries] == [*("", "entry 5 tells of a later version") * 2, "", ""]
    assert [len(entry.runs) for entry in entries] == [1, 0, 1, 0, 1, 1]
    assert set(works.inbox.write_backs.of(1, 2, 3, 4)) == {1, 3}


@pytest.mark.parametrize("told", [("4", "3"), ("3", "4")])
def test_registry_decides_delivery_order(told: tuple[str, ...], works: Service) -> None:
    """Of deliveries that came in any order, what the registry says is built."""
    works.runs.fails = [AWAY]
    works.is_so = lambda event: event.version == "4"
    worker = works.worker()
    for version in told:
        works.take("ranker", version=version)
        worker.step()
    works.clock.go(hours=1)
    assert [worker.step(), worker.step()] == [True, True]
    built = [entry.event.version for entry in works.inbox.entries() if entry.runs]
    assert built == ["4"]
    assert {entry.state for entry in works.inbox.entries()} == {"done"}


def test_unasked_registry_takes_latest(works: Service) -> None:
    """What no registry can be asked about gives way to what came later."""
    works.is_so = lambda _: None
    works.take("ranker", version="3")
    works.take("ranker", version="4")
    worker = works.worker()
    assert [worker.step(), worker.step()] == [True, True]
    assert [len(entry.runs) for entry in works.inbox.entries()[::-1]] == [0, 1]


def test_set_aside_entry_outdates_nothing(works: Service) -> None:
    """An older version that a person asks for again is built though a later one waits for that person, too."""
    works.is_so = lambda _: None
    works.take("ranker", version="3")
    works.take("ranker", version="4")
    worker = works.worker()
    assert worker.step()
    works.runs.fails = [UsageError("the spec is wrong", remedy="mend it")]
    assert worker.step()
    assert works.inbox.states(1, 2) == {1: "done", 2: "set-aside"}
    assert works.inbox.retry(1) == (1,)
    assert worker.step()
    assert [len(entry.runs) for entry in works.inbox.entries()[::-1]] == [1, 0]


def test_unwanted_event_not_asked_for(works: Service) -> None:
    """An event that no rule wants is not asked about."""
    works.is_so = lambda event: pytest.fail(f"{event.label} is nobody's")
    works.take("other", version="3")
    works.take("other", version="4")
    worker = works.worker()
    assert [worker.step(), worker.step()] == [True, True]
    assert {entry.state for entry in works.inbox.entries()} == {"done"}


def test_entry_kept_while_registry_silent(works: Service) -> None:
    """An entry is not left while its registry cannot be asked."""

    def away(_: Event) -> bool:
        raise EnvironmentFault("the registry is away", transient=True)

    works.take("ranker", version="4")
    works.take("ranker", version="3")
    works.is_so = away
    worker = works.worker()
    assert worker.step()
    entry = works.inbox.entry(1)
    assert entry is not None
    assert (entry.state, entry.reason) == ("waiting", "the registry is away")


def test_tag_stays_beside_later_ones(works: Service) -> None:
    """A tag stays beside later ones."""
    config = service({"spec": SPEC, "when": "tag"}, retries=RETRIES)
    for number in ("3", "4"):
        tagged = champion(version=number).model_copy(update={"change": "tag", "value": "compile=requested"})
        assert works.inbox.take("mlflow", f"tag-{number}", [tagged])
    builder = Builder(config, works.runs, lambda _: pytest.fail("a tag is not asked for"))
    worker = Worker(WorkerContext("w", works.inbox, RETRIES, works.clock, lambda: 0.0), builder)
    assert [worker.step(), worker.step()] == [True, True]
    assert len(works.runs.ids) == 2


def test_rejected_package_not_built(works: Service) -> None:
    """A package that is rejected while it waits is not built."""
    config = service({"spec": SPEC, "when": "approved"}, retries=RETRIES)
    approved = champion().model_copy(update={"change": "approved", "value": ""})
    assert works.inbox.take("mlflow", "approved", [approved, approved.model_copy(update={"version": "4"})])
    works.runs.fails = [AWAY]
    works.is_so = lambda event: event.version == "4" or not works.runs.requests
    worker = Worker(
        WorkerContext("w", works.inbox, RETRIES, works.clock, lambda: 0.0), Builder(config, works.runs, works.confirm)
    )
    for _ in range(3):
        assert worker.step()
        works.clock.go(hours=1)
    second, first = works.inbox.entries()
    assert (first.state, first.reason, first.runs) == ("done", "the registry says otherwise", ())
    assert (second.state, len(second.runs)) == ("done", 1)


@pytest.mark.parametrize("later", [{"minutes": 10}, {"days": -1}], ids=["a while", "clock set back"])
def test_contradiction_waited_for(
    later: dict[str, float], works: Service, log_lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """What the registry contradicts is waited for a while, whatever the clock says then, and not built."""
    works.take("ranker")
    works.is_so = lambda _: False
    worker = works.worker(told=("mlflow",))
    assert worker.step()
    assert (works.entry().state, works.entry().attempts) == ("waiting", 0)
    assert works.entry().reason == "the registry does not say so yet, or no more"
    works.clock.go(**later)
    assert worker.step()
    assert (works.entry().state, works.entry().runs) == ("done", ())
    assert works.entry().reason == "the registry says otherwise"
    assert [line["outcome"] for line in log_lines()] == ["behind", "outdated"]
    assert works.inbox.write_backs.of(1) == {}


def test_outdated_retry_keeps_its_result(works: Service) -> None:
    """An entry that is outdated when it is retried keeps what it became."""
    works.take("ranker")
    worker = works.worker(told=("mlflow",))
    assert worker.step()
    (run,) = works.entry().runs
    works.is_so = lambda _: False
    works.clock.go(days=1)
    assert works.inbox.retry(1)
    assert worker.step()
    assert (works.entry().state, works.entry().runs) == ("done", (run,))
    assert set(works.inbox.write_backs.of(1)) == {1}


def test_worker_without_entry_starts_nothing(works: Service) -> None:
    """A worker that lost its entry to another one starts nothing more and changes nothing."""
    works.take("ranker")
    slow = works.worker("local-cpu", "triton-26.03")
    others: list[InboxEntry | None] = []

    def take_long() -> None:
        works.clock.go(seconds=LEASE_SECONDS)
        others.append(works.inbox.claim("other", works.clock.now, LEASE_SECONDS))

    works.runs.meanwhile = take_long
    assert slow.step()
    assert len(works.runs.requests) == 1
    assert works.entry().worker == "other"
    assert others[0] is not None
    assert works.inbox.finish(others[0], ())


def test_workers_end_cleanly(works: Service) -> None:
    """Workers end when told to and finish what they have."""
    works.take("ranker")
    begun, go_on, stop = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(60)

    works.runs.meanwhile = hold
    thread = threading.Thread(target=works.worker().work, args=(stop,))
    thread.start()
    assert begun.wait(60)
    stop.set()
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert works.entry().state == "done"


@pytest.mark.slow
def test_failing_inbox_ends_no_worker(
    works: Service, monkeypatch: pytest.MonkeyPatch, log_lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """An inbox that fails for a while ends no worker."""
    works.take("ranker")
    claim, stop = works.inbox.claim, threading.Event()
    failed: list[bool] = []

    def fail_once(*args: Any) -> Any:
        if not failed:
            failed.append(True)
            raise EnvironmentFault("the inbox has no space left", transient=True)
        if (result := claim(*args)) is None:
            stop.set()
        return result

    monkeypatch.setattr(works.inbox, "claim", fail_once)
    works.worker().work(stop)
    assert works.entry().state == "done"
    assert [line["event"] for line in log_lines()] == ["inbox", "build"]


def test_pauses_grow_to_five_minutes() -> None:
    """Pauses grow to five minutes and are shortened by chance."""
    assert [pause_seconds(attempts, 0.0) for attempts in (1, 2, 3, 11, 12, 1000)] == [2, 4, 8, 300, 300, 300]
    assert pause_seconds(1000, 1.0) == 150
