"""Years of an inbox: a registry, receivers, watches, workers and runs, and the model that judges them.

Each actor is a process of its own with one inbox in SQLite; it stops before each transaction and each request, and may
be killed before and after. All are on one machine, whose clock is set forwards and back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import UUID

from plansmith.config.spec import ModelSpec
from plansmith.errors import EnvironmentFault, PlansmithError
from plansmith.flows.runs.submitting import RunGroup, SubmittedRun, WantedCompile
from plansmith.flows.triggers import builder, workers
from plansmith.flows.triggers import service as services
from plansmith.flows.triggers.builder import Builder, TriggeredRuns
from plansmith.flows.triggers.service import LocalRuns
from plansmith.flows.triggers.workers import Worker
from plansmith.steps.runner import Listener
from plansmith.triggers.inbox import database
from plansmith.triggers.inbox.database import Database
from plansmith.triggers.inbox.entry import Delivery
from plansmith.triggers.inbox.inbox import Inbox, open_inbox
from plansmith.triggers.pollers.poller import Poller, polled
from plansmith.triggers.registries import delivery as deliveries
from plansmith.triggers.registries.delivery import Event
from plansmith.triggers.watch import Watch, WatchLog
from plansmith.triggers.worker_loop import LEASE_SECONDS, WorkerContext

from ..triggers.known_runs import champion, service
from .world import DAY, Actor, Broken, Dangers, World

MODELS = ("ranker", "tagger")
REGISTRY = "mlflow"
_VERSIONS = ("1", "2", "3")
_DEPLOYMENT = UUID(int=1)
_ACTS = 30
_LONGEST_BETWEEN = 6 * 3600.0
_LONGEST_SUSPENDED = 25.0
"""Nothing is promised to a worker that is suspended for longer than its lease, but that nothing is lost by it."""

_QUIET_SECONDS = 2.5 * 3600
"""After which all that was accepted is built, wherever the clock was set."""

_FAULTS = 0.03
_FAILURES = 0.15


@dataclass
class _State:
    """Of a run, as Prefect has it."""

    name: str

    def is_final(self) -> bool:
        return self.name != "RUNNING"

    def is_completed(self) -> bool:
        return self.name == "COMPLETED"


@dataclass
class _Run:
    """A run of compile-model."""

    id: UUID
    model: str
    version: str
    idempotency_key: str
    ends: float
    succeeds: bool
    end_time: float | None = None
    state: _State = field(default_factory=lambda: _State("RUNNING"))


@dataclass
class InboxYears:
    """One simulation.

    Attributes:
        seed: decides everything; whether there is a Prefect, and whether workers are suspended for days.
        folder: of the service, which is the working directory.
        current: the versions that were the champions of each model, the last one now.
        accepted: ids of deliveries that were acknowledged.
        runs: of Prefect, in the order in which they came.
        published: what a service without Prefect published, by model.
        overtaken: by model, the runs of what was champion no more, as somebody was suspended after asking the registry.
            After each, what is champion is built once more.
        is_strict: no lease ended while its holder lived: nobody was suspended for longer, nor was the clock set then.
    """

    seed: int
    folder: Path
    world: World = field(init=False)
    current: dict[str, list[str]] = field(default_factory=lambda: {model: [] for model in MODELS})
    accepted: set[str] = field(default_factory=set)
    runs: list[_Run] = field(default_factory=list)
    published: dict[str, list[str]] = field(default_factory=lambda: {model: [] for model in MODELS})
    compiling: dict[str, tuple[str, Actor]] = field(default_factory=dict)
    renewals: dict[str, tuple[Callable[[], object], float]] = field(default_factory=dict)
    retried: Counter[tuple[str, str]] = field(default_factory=Counter)
    overtaken: Counter[str] = field(default_factory=Counter)
    clock_set: float = 0.0
    is_strict: bool = True
    is_quiet: bool = False
    problem: Broken | None = None
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def is_local(self) -> bool:
        """Whether the service compiles models itself."""
        return self.seed % 2 == 1

    def run(self) -> None:
        """Simulate events in a registry that are told late, twice or never while services are killed.

        Raises:
            Broken: a promise does not hold.
        """
        self.world = world = World(self.seed, Dangers(kills=0.01, pauses=0.03))
        self.is_strict = self.seed % 4 < 2
        self._url = f"sqlite:///{self.folder}/inbox-{self.seed}.db"
        acts = (*[self._assign] * 4, *[self._watch] * 2, *[self._work] * 5, self._set_clock)
        with self._simulated():
            after = 0.0
            for _ in range(_ACTS):
                self._start(world.random.choice(acts), after)
                after += world.random.choice((0.0, 0.0, 1.0, 60.0, 600.0, _LONGEST_BETWEEN)) * world.random.random()
            world.run_to_end(self._end, self.broken)
        if self.problem is not None:  # which the product took for a bug of its own
            raise self.problem

    def broken(self, problem: str) -> Broken:
        """The error that tells of a broken promise."""
        lines = "\n".join(self.world.log[-60:])
        self.problem = self.problem or Broken(
            f"seed {self.seed}, {'without' if self.is_local else 'with'} Prefect: {problem}\n{lines}"
        )
        return self.problem

    def _end(self) -> None:
        """Let everything come to rest, and hold it against what was promised."""
        self.is_quiet, self.world.dangers = True, Dangers(kills=0, pauses=0)
        for act in (self._come_to_rest, self._retry_failures, self._come_to_rest, self._judge):
            self._start(act, 0)
            self.world.run()

    def _start(self, act: Callable[[Inbox], None], after: float) -> None:
        def run(_: Actor) -> None:
            inbox = None
            try:
                inbox = open_inbox(self._url, clock=self._clock)
                act(inbox)
            except PlansmithError as error:
                self.world.note(f"ends with {error.message}")
                if self.is_quiet:
                    raise
            finally:
                if inbox is not None:
                    inbox.close()

        longest = _LONGEST_SUSPENDED if self.is_strict else 2 * DAY
        actor = self.world.start(f"{act.__name__.strip('_')} {next(self._numbers)}", run, after, longest)
        actor.skew = 0.0  # all are on one machine

    # What happens.

    def _assign(self, inbox: Inbox) -> None:
        """Make a version the champion, and tell of it once, several times, late, or never."""
        random = self.world.random
        model = random.choice(MODELS)
        self.current[model].append(random.choice([v for v in _VERSIONS if v not in self.current[model][-1:]]))
        event, name = champion(model, self.current[model][-1]), f"d{next(self._numbers)}"
        self.world.note(f"{model} {event.version} is the champion")
        for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
            self.world.sleep(random.choice((0.0, 1.0, 1000.0)) * random.random())
            inbox.take_all([Delivery(REGISTRY, name, (event,), expires=True)])
            self.accepted.add(name)
            self.world.note(f"{name} is accepted")

    def _watch(self, inbox: Inbox) -> None:
        watch = Watch({REGISTRY: _Looking(self)}, inbox, WatchLog(self.world.clock))
        for _ in range(self.world.random.randint(1, 4)):
            watch.poll(REGISTRY)
            self.world.sleep(300)

    def _work(self, inbox: Inbox) -> None:
        self._work_off(inbox, self.world.random.randint(5, 40))

    def _work_off(self, inbox: Inbox, steps: int) -> None:
        assert self.world.current is not None
        runs = LocalRuns() if self.is_local else TriggeredRuns("http://prefect")
        context = WorkerContext(self.world.current.name, inbox, 3, self._clock, self.world.random.random)
        worker = Worker(context, Builder(self._config, runs, self._confirm))
        for _ in range(steps):
            if not worker.step():
                self.world.sleep(300 if self.is_quiet else self.world.random.choice((1.0, 5.0, 120.0)))

    def _set_clock(self, _: Inbox) -> None:
        """Set the clock of the machine."""
        random = self.world.random
        self.world.ahead += random.choice((1, -1)) * random.choice((60.0, 3600.0, DAY, 300 * DAY))
        self.clock_set = self.world.now
        self.world.note(f"the clock is {self.world.ahead:.0f} s ahead")

    def _come_to_rest(self, inbox: Inbox) -> None:
        watch = Watch({REGISTRY: _Looking(self)}, inbox, WatchLog(self.world.clock))
        ends = self.world.now + _QUIET_SECONDS
        while self.world.now < ends:
            watch.poll(REGISTRY)
            self._work_off(inbox, 10)

    def _retry_failures(self, inbox: Inbox) -> None:
        """Ask again for what failed, as a person does."""
        failed = {str(run.id): run for run in self._finished_runs() if not run.state.is_completed()}
        for entry in inbox.entries(limit=1000):
            model = entry.event.model
            if entry.event.version == self.current[model][-1] and failed.keys() & {run.id for run in entry.runs}:
                self.retried[model, entry.event.version] += 1
                inbox.retry(entry.id)

    # What is in the place of the registry, of Prefect and of a compile.

    def _confirm(self, event: Event) -> bool:
        self._ask("the registry")
        is_so = self.current[event.model][-1:] == [event.version]
        self._ask("the registry")
        return is_so

    def _ask(self, who: str) -> None:
        self.world.step(f"ask {who}")()
        if not self.is_quiet and self.world.random.random() < _FAULTS:
            raise EnvironmentFault(f"{who} does not answer", remedy="wait", transient=True)

    def _finished_runs(self) -> list[_Run]:
        for run in self.runs:
            if run.end_time is None and run.ends <= self.world.now:
                run.end_time, run.state = run.ends, _State("COMPLETED" if run.succeeds else "FAILED")
        return [run for run in self.runs if run.end_time is not None]

    def _read_keyed(self, _: object, keys: list[str]) -> list[_Run]:
        self._ask("Prefect")
        self._finished_runs()
        return [run for run in self.runs if run.idempotency_key in keys]

    def _read_unfinished(self, _: object, kin: RunGroup) -> list[_Run]:
        self._ask("Prefect")
        self._finished_runs()
        return [run for run in self.runs if run.end_time is None and f"model:{run.model}" in kin.tags]

    def _read_later(self, _: object, than: _Run, kin: RunGroup) -> list[_Run]:
        self._ask("Prefect")
        if than.end_time is None:
            return []
        ended = [run for run in self._finished_runs() if f"model:{run.model}" in kin.tags and run is not than]
        return [run for run in ended if run.state.is_completed() and run.ends > than.ends]

    def _submit(self, _: object, compilation: WantedCompile, __: object, key: str) -> SubmittedRun:
        self._ask("Prefect")
        known = [run for run in self.runs if run.idempotency_key == key]
        if not known:
            model, version = _version_of(compilation.spec)
            if going_on := self._read_going_on(model):
                raise self.broken(f"{model} {version} is built while {going_on[0].version} is")
            random = self.world.random
            ends = self.world.now + random.choice((10.0, 300.0, 4000.0)) * random.random()
            succeeds = self.is_quiet or random.random() > _FAILURES
            known = [_Run(UUID(int=len(self.runs) + 10), model, version, key, ends, succeeds)]
            self.runs += known
            if version != self.current[model][-1]:  # who was suspended after asking the registry starts it too late
                self.overtaken[model] += 1
            self.world.note(f"run of {model} {version}: {key[-10:]}")
        self._ask("Prefect")
        return _submitted(known[0])

    def _read_going_on(self, model: str) -> list[_Run]:
        finished = self._finished_runs()
        return [run for run in self.runs if run.model == model and run not in finished] if self.is_strict else []

    def _compile(self, model: str, version: str) -> str:
        """Compile and publish a version in this process; return what came of it."""
        actor = self.world.current
        assert actor is not None
        self.world.note(f"compiles {model} {version}")
        by = self.compiling.get(model)
        if by is not None and not (by[1].is_killed or by[1].is_over):
            renewed = self.renewals[by[1].name][1]
            # A lease that was taken before ends with it, and not with its worker.
            self.is_strict &= self.clock_set < renewed - LEASE_SECONDS
            if self.is_strict and self.world.now - renewed < LEASE_SECONDS:
                raise self.broken(f"{model} {version} is built while {by[0]} is")
        self.compiling[model] = version, actor
        try:
            return self._publish(model, version, actor)
        finally:
            if self.compiling.get(model) == (version, actor):
                del self.compiling[model]

    def _publish(self, model: str, version: str, actor: Actor) -> str:
        left = self.world.random.choice((5.0, 60.0, 1000.0)) * self.world.random.random()
        while left > 0:
            self.world.sleep(min(left, LEASE_SECONDS / 3))
            left -= LEASE_SECONDS / 3
            renew, _ = self.renewals[actor.name]
            with suppress(PlansmithError):
                if renew():
                    self.renewals[actor.name] = renew, self.world.now
        self.world.step("end of a step")()
        if not self.is_quiet and self.world.random.random() < _FAULTS:
            raise EnvironmentFault("the disk is full", remedy="free some space", transient=True)
        outcome = "unchanged" if self.published[model][-1:] == [version] else "published"
        if outcome == "published":
            self.published[model].append(version)
        self.world.note(f"{model} {version} is {outcome}")
        self.world.step("end of a compile")()
        return outcome

    @contextmanager
    def _renewed(self, renew: Callable[[], object]) -> Iterator[None]:
        assert self.world.current is not None
        self.renewals[self.world.current.name] = renew, self.world.now
        yield

    # What must be so.

    def _judge(self, inbox: Inbox) -> None:
        """Require that nothing accepted is lost, each is built once, and the champions are what was built last."""
        entries = inbox.entries(limit=10_000)
        if lost := self.accepted - {entry.delivery for entry in entries}:
            raise self.broken(f"deliveries were lost: {sorted(lost)}")
        if open_entries := [entry for entry in entries if entry.state != "done"]:
            raise self.broken(f"{open_entries[0].event.label} is {open_entries[0].state}: {open_entries[0].reason}")
        delivered = Counter(entry.delivery for entry in entries)
        if twice := [name for name, number in delivered.items() if number > 1]:
            raise self.broken(f"deliveries are there twice: {twice}")
        builds = Counter((run.model, run.version) for run in self._finished_runs())
        for (model, version), number in builds.items():
            wanted = self.current[model].count(version) + self.retried[model, version] + self.overtaken[model]
            if number > wanted:
                raise self.broken(f"{model} {version} was built {number} times, and wanted {wanted} times")
        if self.is_strict:
            for model in MODELS:
                self._judge_newest(model)

    def _judge_newest(self, model: str) -> None:
        completed = [run for run in self._finished_runs() if run.model == model and run.state.is_completed()]
        in_order = [run.version for run in sorted(completed, key=lambda run: run.ends)]
        built = self.published[model] if self.is_local else in_order
        if built[-1:] != self.current[model][-1:]:
            raise self.broken(f"of {model}, {built} was built, and the champions were {self.current[model]}")

    def _clock(self) -> datetime:
        return datetime.fromtimestamp(self.world.clock(), UTC)

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        """Have what builds live in the world."""
        rules = [{"spec": f"specs/{model}.yaml", "model": model} for model in MODELS]
        self._config = service(*rules)
        world = self.world

        def stepping(transaction: Callable[..., Any]) -> Callable[..., Any]:
            @contextmanager
            def step(instance: Database) -> Iterator[Any]:
                done = world.step(transaction.__name__)
                with transaction(instance) as opened:
                    yield opened
                done()

            return step

        @contextmanager
        def asking(_: TriggeredRuns) -> Iterator[None]:
            yield

        settings = tuple(line.replace("FULL", "OFF") for line in database._SQLITE_SETTINGS)
        prefect: dict[str, Any] = {
            "read_keyed": self._read_keyed,
            "read_unfinished": self._read_unfinished,
            "read_later": self._read_later,
            "submit": self._submit,
            "submitted_run": _submitted,
            "check_parameters": lambda *_: None,
            "_deployment": lambda *_: SimpleNamespace(id=_DEPLOYMENT, tags=[]),
            "whole_toolchain": dict,
        }
        with ExitStack() as patches:
            for name in ("writing", "adding", "reading"):
                patches.enter_context(mock.patch.object(Database, name, stepping(getattr(Database, name))))
            patches.enter_context(mock.patch.object(database, "_SQLITE_SETTINGS", settings))
            patches.enter_context(mock.patch.multiple(builder, **prefect))
            patches.enter_context(mock.patch.object(TriggeredRuns, "_asking", asking))
            patches.enter_context(mock.patch.object(workers, "renewed", self._renewed))
            patches.enter_context(mock.patch.object(services, "Compilation", self._compilation))
            yield

    @contextmanager
    def _compilation(self, spec: ModelSpec, *, relative_to: Path, listener: Listener) -> Iterator[Any]:
        del relative_to, listener

        def run() -> tuple[Any, None]:
            outcome = self._compile(*_version_of(spec))
            return SimpleNamespace(unchanged=outcome == "unchanged", version=1, repository="repository"), None

        yield SimpleNamespace(run=run)


class _Looking(Poller):
    """Looks at what the registry says now."""

    def __init__(self, years: InboxYears) -> None:
        self._years = years

    def poll(self, now: float) -> list[deliveries.Delivery]:
        del now
        self._years._ask("the registry")
        found = [polled(champion(model, all_of[-1])) for model, all_of in self._years.current.items() if all_of]
        self._years._ask("the registry")
        return found


def _version_of(spec: ModelSpec) -> tuple[str, str]:
    _, model, version = spec.source.rsplit("/", 2)
    return model, version


def _submitted(run: _Run) -> SubmittedRun:
    return SubmittedRun(run.id, run.model, f"http://prefect/runs/{run.id}")
