"""Followers in a store's years: `sync` into folders on the disk, each with a Triton that outlives a killed sync."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest import mock

from plansmith.errors import EnvironmentFault, PlansmithError
from plansmith.records.destination import CURRENT
from plansmith.records.release import MODEL_FOLDER
from plansmith.stores.layout import LIVE, RELEASES
from plansmith.stores.prune import LIVE_SECONDS
from plansmith.stores.records import Catalogue, LiveReport, StoredRelease
from plansmith.stores.store import Store
from plansmith.stores.sync import mirror, servers, sync
from plansmith.stores.sync.mirror import Mirror, read_note
from plansmith.stores.sync.servers import MirrorServers
from plansmith.stores.sync.sync import Following, Sync, SyncContext
from plansmith.system import files
from plansmith.system.aws.bucket import Document
from plansmith.triton.repository import contents, view

from ..stores.releases import MODEL
from ..stores.scripted import ScriptedTriton
from .world import DAY, Dangers, SimulatedObjects, World
from .years import InTurn, Years

_FOLLOWERS = 2
_ACTS = 24
_LONGEST_BETWEEN = 20 * DAY
_LONGEST_TURNS = 8
_LONGEST_SUSPENDED = 12 * DAY
_FAULTS = 0.03
"""How often a request of a follower finds no store, and how often a Triton is restarted, goes away or refuses."""


class _DistantObjects(SimulatedObjects):
    """A store that a follower cannot always reach.

    Attributes:
        is_away: tells at each request whether it is away.
    """

    is_away: Callable[[], bool]

    def read(self, key: str) -> Document | None:
        self._be_away()
        return super().read(key)

    def put(self, key: str, content: bytes) -> None:
        self._be_away()
        super().put(key, content)
        self._be_away()

    def _be_away(self) -> None:
        if self.is_away():
            raise EnvironmentFault("the store cannot be reached", remedy="plug it in")


class _Triton(ScriptedTriton):
    """A Triton that looks at each load whether it is given a whole version."""

    def __init__(self, url: str, world: World, judge: Callable[[Path, list[int]], None]) -> None:
        super().__init__(url)
        self._world = world
        self._judge = judge

    def load(self, folder: Path, *, version: int | None = None) -> list[int]:
        self.may_have_changed = False
        self._world.step(f"load {self.url}")
        versions = super().load(folder, version=version)
        self._judge(folder, versions)
        done = self._world.step(f"answer of {self.url}")
        done()
        return versions

    def suffer(self) -> None:
        """Come back, and perhaps be restarted, go away over the next load, or refuse some versions."""
        random, self.is_away, self.dies = self._world.random, False, False
        if random.random() < 3 * _FAULTS:
            self.served.clear()
        self.is_away, self.dies = random.random() < _FAULTS, random.random() < _FAULTS
        if random.random() < 3 * _FAULTS:
            self.refused = set(random.sample(range(1, 6), 2)) if not self.refused else set()


@dataclass
class _Follower:
    """A folder and its Triton."""

    name: str
    root: Path
    triton: _Triton


@dataclass
class FollowedYears(Years):
    """As `Years`, with followers of the alias `current`."""

    followers: list[_Follower] = field(default_factory=list)
    lists: dict[str, StoredRelease] = field(default_factory=dict)
    reports: list[tuple[float, LiveReport]] = field(default_factory=list)
    begun: dict[str, float] = field(default_factory=dict)
    is_quiet: bool = False

    def run_followed(self) -> None:
        """Simulate followers that are killed, suspended and started again while versions come, move and go.

        Raises:
            Broken: a promise does not hold.
        """
        shutil.rmtree(self.folder / "followers", ignore_errors=True)
        acts = (self._publish, self._publish, self._move, self._prune, self._prune, *[self._follow] * 5)

        def start(world: World) -> None:
            for number in range(_FOLLOWERS):
                root = self.folder / "followers" / str(number)
                self.followers.append(_Follower(f"f{number}", root, _Triton(f"grpc://{number}", world, self._judge)))
            after = 0.0
            for number in range(_ACTS):
                self._start(self._publish if number < 2 else world.random.choice(acts), after)
                after += world.random.choice((0.0, 0.0, 0.0, 1.0, 300.0, _LONGEST_BETWEEN)) * world.random.random()

        with self._followed():
            self._run(start)

    def _end(self) -> None:
        """After all that happened, a turn of each follower in quiet."""
        self.world.dangers = Dangers(kills=0, pauses=0)
        for follower in self.followers:
            self.world.start(f"last turn of {follower.name}", self._actor(partial(self._settle, follower)), 0, 0)
            self.world.run()
        super()._end()

    def _longest_of(self, act: Callable[[Store], None]) -> float:
        return _LONGEST_SUSPENDED if act == self._follow else super()._longest_of(act)

    @contextmanager
    def _followed(self) -> Iterator[None]:
        """Have what syncs live in the world, and stop before each file that is put into its place."""
        move, time = files.move_into_place, mock.Mock(monotonic=lambda: self.world.now)

        def step_and_move(staged: Path, final: Path) -> None:
            done = self.world.step(f"move {final.name[:20]}")
            move(staged, final)
            done()

        def triton(url: str, **_: float) -> _Triton:
            return next(follower.triton for follower in self.followers if follower.triton.url == url)

        with ExitStack() as patches:
            for module in (mirror, contents, view):
                patches.enter_context(mock.patch.object(module, "move_into_place", step_and_move))
            patches.enter_context(mock.patch.object(mirror, "ThreadPoolExecutor", InTurn))
            patches.enter_context(mock.patch.multiple(sync, time=time, utc_now=lambda: "2026-11-20T12:00:00+00:00"))
            patches.enter_context(mock.patch.object(servers, "RunningTriton", triton))
            patches.enter_context(mock.patch.object(os, "fsync"))
            yield

    def _follow(self, _: Store) -> None:
        random = self.world.random
        follower = random.choice(self.followers)
        with suppress(EnvironmentFault), self._syncing(follower) as running:
            self._look(follower, running, random.randint(1, _LONGEST_TURNS))

    def _look(self, follower: _Follower, running: Sync, turns: int) -> None:
        for _ in range(turns):
            follower.triton.suffer()
            for fault in running.look():
                self.world.note(f"{follower.name}: {fault.message}")
            self._require_gone_back(follower)
            self.world.note(f"{follower.name} serves {follower.triton.served.get(MODEL)}")
            self.world.sleep(self.world.random.choice((10.0, 130.0, DAY)))

    def _settle(self, follower: _Follower, _: Store) -> None:
        """Require that a sync ends with what the alias says, or with what was there before what was refused."""
        catalogue, triton = self.now_catalogue(), follower.triton
        if CURRENT not in catalogue.aliases:
            return
        wanted = catalogue.aliases[CURRENT].version
        try:
            self.is_quiet = True
            with self._syncing(follower) as running:
                self.is_quiet = False
                self._look(follower, running, self.world.random.randint(0, 3))
                self.is_quiet, triton.is_away, triton.dies, triton.refused = True, False, False, set()
                self.world.sleep(DAY)
                faults = running.look()
            if faults or triton.served.get(MODEL) != [wanted]:
                self._require_refused(follower, wanted, faults)
                with self._syncing(follower) as running:
                    running.forget_refusals()
                    faults = running.look()
        except PlansmithError as error:
            faults = [error]
        if faults or triton.served.get(MODEL) != [wanted]:
            raise self.broken(f"{follower.name} serves {triton.served.get(MODEL)}, and not version {wanted}: {faults}")
        self.is_quiet = False

    def _require_gone_back(self, follower: _Follower) -> None:
        """Require that what a Triton refuses is not shown, unless it had loaded it before."""
        shown = Mirror(follower.root).shown(MODEL)
        is_refused = not follower.triton.is_away and shown in follower.triton.refused
        if is_refused and shown != self._state(follower).proven:
            raise self.broken(f"{follower.name} is shown version {shown}, which it refuses")

    def _state(self, follower: _Follower) -> Following:
        note = Mirror(follower.root).repository.store / "following" / f"{MODEL}.json"
        return read_note(note, Following) or Following()

    def _require_refused(self, follower: _Follower, wanted: int, faults: list[PlansmithError]) -> None:
        """Require that a Triton had refused a version, and serves what it had before."""
        state, served = self._state(follower), follower.triton.served.get(MODEL, [])
        if state.refusal is None or state.refusal.version != wanted:
            raise self.broken(f"{follower.name} serves {served}, and not version {wanted}: {faults}")
        if served not in ([], [state.proven]):
            raise self.broken(f"{follower.name} serves {served}, and not {state.proven}")

    @contextmanager
    def _syncing(self, follower: _Follower) -> Iterator[Sync]:
        objects = _DistantObjects(self.world, self.memory, conditional=self.conditional)
        objects.is_away = lambda: not self.is_quiet and self.world.random.random() < _FAULTS
        store, own = Store(objects), Mirror(follower.root)
        with own.lock(store, alone=True):
            servers_of = MirrorServers([follower.triton.url])
            yield Sync(SyncContext(store=store, mirror=own, loaders=servers_of, name=follower.name))

    def _prune(self, store: Store) -> None:
        assert self.world.current is not None
        self.begun[self.world.current.name] = self.world.now
        super()._prune(store)

    def _observe(self, key: str) -> None:
        content = self.memory.contents.get(key)
        if content is not None and key.startswith(RELEASES):
            release = StoredRelease.model_validate_json(content[0])
            self.lists[release.digest] = release
        if content is not None and key.startswith(LIVE):
            self.reports.append((self.world.now, LiveReport.model_validate_json(content[0])))
        before = self.now_catalogue()
        super()._observe(key)
        if (after := self.now_catalogue()) is not before:
            self._require_served_stays(before, after)

    def _require_served_stays(self, before: Catalogue, after: Catalogue) -> None:
        """Require that nothing was pruned that a follower reported before the pruner began, and ever since."""
        pruned = {version.version for version in before.standing()} - {version.version for version in after.standing()}
        assert self.world.current is not None
        began = self.begun.get(self.world.current.name, self.world.now)
        for follower in self.followers:
            own = [(at, report) for at, report in self.reports if report.loader == follower.name]
            last = [entry for entry in own if entry[0] <= began][-1:]
            since = [entry for entry in own if entry[0] > began]
            if last and self.world.now - last[0][0] < LIVE_SECONDS:
                live = [{report.wanted, *report.serves} for _, report in (*last, *since)]
                for number in pruned & live[0].intersection(*live):
                    raise self.broken(f"version {number} was pruned, and {follower.name} serves it")

    def _judge(self, folder: Path, versions: list[int]) -> None:
        """Require that what a Triton was given is whole, and was aliased once."""
        known = {version.version: version.digest for version in self.now_catalogue().versions}
        aliased = {seen.aliases[CURRENT].version for _, seen in self.history if CURRENT in seen.aliases}
        for number in versions:
            if number not in aliased:
                raise self.broken(f"{folder} shows version {number}, which no alias stood for")
            for file in self.lists[known[number]].files:
                place, _, rest = file.path.partition("/")
                if place == MODEL_FOLDER:
                    content = (folder / str(number) / rest).read_bytes()
                    if hashlib.sha256(content).hexdigest() != file.sha256:
                        raise self.broken(f"{folder} shows half of version {number}: {rest}")
