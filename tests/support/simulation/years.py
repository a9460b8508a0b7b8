"""Years of a store: publishers, people who move aliases, pruners and readers, and the model that judges them."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from plansmith.errors import RepositoryError
from plansmith.stores import initialize, prune, publication, reader, records, transfer
from plansmith.stores import store as stores
from plansmith.stores.backend import documents, turns
from plansmith.stores.layout import catalogue_key, object_key, release_key
from plansmith.stores.prune import Pruner, Retention
from plansmith.stores.publication import Terms, publish_release
from plansmith.stores.records import Catalogue, StoredRelease
from plansmith.stores.store import Store
from plansmith.system.digest import Digester

from ..stores.releases import MODEL, PackagedRelease
from .world import DAY, Actor, Broken, Memory, SimulatedObjects, World

ALIASES = ("current", "canary")
GRACE = DAY
_ACTS = 30
_LONGEST_BETWEEN = 40 * DAY
# Nothing is promised to who is suspended for longer than the margin of a turn, or for most of a pruner's lease.
_LONGEST_IN_TURN = 120.0


@dataclass
class Years:
    """One simulation.

    Attributes:
        seed: decides everything.
        conditional: whether the store has conditional writes.
        history: the catalogues that there were, with the time of each.
        acknowledged: digests whose publication was answered, with their numbers.
    """

    seed: int
    releases: Sequence[PackagedRelease]
    folder: Path
    conditional: bool
    world: World = field(init=False)
    memory: Memory = field(default_factory=Memory)
    history: list[tuple[float, Catalogue]] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def run_years(self) -> None:
        """Simulate years of publications, moved aliases, prunings and readers in a random order.

        Raises:
            Broken: a promise does not hold.
        """
        acts = (self._publish, self._publish, self._publish, self._move, self._prune, self._prune, self._read)

        def start(world: World) -> None:
            after = 0.0
            for _ in range(_ACTS):
                self._start(world.random.choice(acts), after)
                after += world.random.choice((0.0, 0.0, 0.0, 1.0, 30.0, _LONGEST_BETWEEN)) * world.random.random()

        self._run(start)

    def run_return(self) -> None:
        """Simulate a release that is published again while it is pruned.

        Raises:
            Broken: a promise does not hold.
        """

        def start(world: World) -> None:
            for number in range(3):
                self._start(partial(self._publish_release, self.releases[number]), number * 10.0)
            later = 60 * DAY + world.random.random()
            for act in (self._prune, partial(self._publish_release, self.releases[0])):
                self._start(act, later)

        self._run(start)

    def _run(self, start: Callable[[World], None]) -> None:
        self.world = world = World(self.seed)
        world.observe = self._observe
        with simulated(world):
            start(world)
            world.run_to_end(self._end, self.broken)

    def _start(self, act: Callable[[Store], None], after: float) -> None:
        name = f"{getattr(act, '__name__', 'publish').strip('_')} {next(self._numbers)}"
        self.world.start(name, self._actor(act), after, self._longest_of(act))

    def _longest_of(self, act: Callable[[Store], None]) -> float:
        return _LONGEST_IN_TURN if act == self._prune or not self.conditional else 3 * DAY

    def _end(self) -> None:
        self._require_whole()

    def _actor(self, act: Callable[[Store], None]) -> Callable[[Actor], None]:
        def run(_: Actor) -> None:
            store = Store(SimulatedObjects(self.world, self.memory, conditional=self.conditional))
            try:
                act(store)
            except RepositoryError as refused:
                self.world.note(f"is refused: {refused.message}")
                if "is damaged" in refused.message or "has lost" in refused.message:
                    raise self.broken(refused.message) from refused

        return run

    def _publish(self, store: Store) -> None:
        self._publish_release(self.world.random.choice(self.releases), store)

    def _publish_release(self, release: PackagedRelease, store: Store) -> None:
        random_ = self.world.random
        terms = Terms(aliases=tuple(random_.sample(ALIASES, 1)), move_anyway=random_.random() < 0.3)
        digester = Digester(self.folder / "digests.sqlite")
        done = publish_release(store, release.folder, release.manifest, digester, terms=terms)
        self.world.note(f"published {release.folder.parent.parent.name} as {done.version}")
        if self.acknowledged.setdefault(done.digest, done.version) != done.version:
            pruned = {version.version for version in self.now_catalogue().versions if version.pruned is not None}
            if self.acknowledged[done.digest] not in pruned:
                raise self.broken(f"one release has the numbers {self.acknowledged[done.digest]} and {done.version}")
            self.acknowledged[done.digest] = done.version
        self._require_seen(lambda seen: any(entry.version == done.version for entry in seen.versions))

    def _move(self, store: Store) -> None:
        catalogue, random_ = store.catalogue(MODEL), self.world.random
        number, alias = random_.choice(catalogue.versions).version, random_.choice(ALIASES)
        kind = random_.choice(("promote", "promote", "roll back", "pin", "unpin"))
        begun = len(self.history)
        if kind == "promote":
            store.promote(MODEL, number, alias)
            self._require_seen(lambda seen: alias in seen.aliases and seen.aliases[alias].version == number, begun - 1)
        elif kind == "roll back":
            store.roll_back(MODEL, alias)
        elif kind == "pin":
            store.pin(MODEL, number, "simulated")
            self._require_seen(lambda seen: any(pin.version == number for pin in seen.pins), begun - 1)
        else:
            store.unpin(MODEL, number)
        self.world.note(f"{kind} {number} {alias}")

    def _prune(self, store: Store) -> None:
        Pruner(store, Retention(keep=1, seconds=10 * DAY), dry=False).prune()

    def _read(self, store: Store) -> None:
        begun = self.world.now
        catalogue, version = store.find(f"{MODEL}@{self.world.random.choice(ALIASES)}")
        problem = ""
        try:
            files = store.release(catalogue.model, version).files
            lost = [file.path for file in files if store.objects.read(object_key(file.sha256)) is None]
            problem = f"it has lost {', '.join(lost)}" if lost else ""
        except RepositoryError as error:
            problem = error.message
        if problem and self.world.now - begun < GRACE / 4:
            raise self.broken(f"a reader saw half of version {version.version}: {problem}")

    def _observe(self, key: str) -> None:
        """Hold a change of the store against what was there before."""
        if key != catalogue_key(MODEL):
            return
        before, after = self.now_catalogue(), Catalogue.model_validate_json(self.memory.contents[key][0])
        numbers = [version.version for version in after.versions]
        if numbers != sorted(set(numbers)):
            raise self.broken(f"numbers were given twice: {numbers}")
        kept = {version.version: version for version in after.versions}
        for version in before.versions:
            now = kept.get(version.version)
            if now is None or now.digest != version.digest or (version.pruned and not now.pruned):
                raise self.broken(f"version {version.version} is another or gone")
        held = {pin.version for pin in before.pins} | {pointer.version for pointer in before.aliases.values()}
        for version in after.versions:
            if version.pruned and version.version in held:
                raise self.broken(f"version {version.version} was pruned, and something held it")
        standing = {version.version for version in after.standing()}
        for alias, pointer in after.aliases.items():
            if pointer.version not in standing:
                raise self.broken(f"{alias} stands for version {pointer.version}, which was pruned")
        self.history.append((self.world.now, after))

    def now_catalogue(self) -> Catalogue:
        return self.history[-1][1] if self.history else Catalogue(model=MODEL, token="")

    def _require_seen(self, holds: Callable[[Catalogue], bool], since: int = 0) -> None:
        """Require that what was answered was so at some moment."""
        if not any(holds(seen) for _, seen in self.history[max(since, 0) :]):
            raise self.broken("what was answered was never so")

    def _require_whole(self) -> None:
        """Require in the end that every version that stands is whole, and that every answered one is known."""
        for version in self.now_catalogue().standing():
            key = release_key(MODEL, version.digest)
            if key not in self.memory.contents:
                raise self.broken(f"version {version.version} has lost its list")
            listed = StoredRelease.model_validate_json(self.memory.contents[key][0])
            lost = [file.path for file in listed.files if object_key(file.sha256) not in self.memory.contents]
            if lost:
                raise self.broken(f"version {version.version} has lost {', '.join(lost)}")
        known = {version.digest for version in self.now_catalogue().versions}
        if not known.issuperset(self.acknowledged):
            raise self.broken("a release that was answered is not known")

    def broken(self, problem: str) -> Broken:
        lines = "\n".join(self.world.log[-40:])
        return Broken(f"seed {self.seed}, {'with' if self.conditional else 'without'} conditions: {problem}\n{lines}")


class InTurn:
    """A pool of threads that does everything at once in the thread that asks."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> InTurn:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future

    def shutdown(self, **_: Any) -> None: ...


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Have the store's modules live in a world: its clock, its chance, and one thread each."""
    time = mock.Mock(
        sleep=world.sleep,
        monotonic=lambda: world.now,
        clock_gettime=lambda _: world.now,
        CLOCK_BOOTTIME=7,
    )

    def utc_now() -> str:
        return datetime.fromtimestamp(world.clock(), UTC).isoformat(timespec="milliseconds")

    chance = mock.Mock(uniform=world.random.uniform)
    tokens = random.Random(world.random.random())
    with mock.patch.multiple(secrets, token_hex=lambda size=32: tokens.randbytes(size).hex()):
        patches: list[Any] = [
            mock.patch.object(module, "time", time) for module in (documents, turns, prune, publication)
        ]
        patches += [mock.patch.object(module, "random", chance) for module in (documents, turns)]
        named = (documents, records, stores, publication, initialize)
        patches += [mock.patch.object(module, "utc_now", utc_now) for module in named]
        patches += [mock.patch.object(module, "ThreadPoolExecutor", InTurn) for module in (reader, transfer)]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()
