"""World: a virtual clock, a scheduler that lets one actor run at a time, and a store in memory.

Each actor is a thread that runs the product's code. It stops before every operation on the store and before every
sleep; the seed decides who goes on, who is suspended for how long, and who is killed, before or after an operation took
effect. Nothing else decides anything, so that a seed gives the same run again.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from plansmith.errors import RepositoryError
from plansmith.stores.backend.object_store import Abilities, Changed, KeyTaken, Moved, untold
from plansmith.system.aws.bucket import Document, ObjectMetadata

BEGIN = 1_800_000_000.0
DAY = 24 * 3600.0
_STEP_SECONDS = 0.05


class Killed(BaseException):
    """The actor was killed: nothing that it does from now on has an effect."""


class Broken(AssertionError):
    """A promise was broken; the message tells which, with the seed and the last lines of the log."""


@dataclass
class Actor:
    """An actor.

    Attributes:
        name: for the log.
        skew: by how many seconds its own clock is wrong.
        wake: when it goes on, in seconds of the world.
        longest_seconds: for which it may be suspended.
        is_killed: whether anything that it does still has an effect.
        problem: what ended it, if it was neither its end nor a kill.
    """

    name: str
    skew: float
    wake: float
    longest_seconds: float
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    is_over: bool = False
    is_killed: bool = False
    problem: BaseException | None = None


@dataclass(frozen=True)
class Dangers:
    """How often actors are killed or suspended at an operation."""

    kills: float = 0.004
    pauses: float = 0.04


class World:
    """The world; see the module.

    Args:
        seed: decides everything.
        dangers: what happens to actors.

    Attributes:
        observe: told of each change of the store: its key.
        dangers: what happens to actors.
        current: the actor that runs.
        ahead: by how many seconds all clocks were set forwards.
    """

    def __init__(self, seed: int, dangers: Dangers = Dangers()) -> None:
        self.random = random.Random(seed)
        self.now = BEGIN
        self.ahead = 0.0
        self.log: list[str] = []
        self.observe: Callable[[str], None] = lambda _: None
        self.dangers = dangers
        self._actors: list[Actor] = []
        self.current: Actor | None = None
        self._stopped = threading.Semaphore(0)

    def start(self, name: str, act: Callable[[Actor], None], after: float, longest_seconds: float) -> Actor:
        """Add an actor, which begins after some seconds and may be suspended for some."""
        actor = Actor(name, self.random.choice((0.0, 0.0, DAY, -DAY)), self.now + after, longest_seconds)

        def run() -> None:
            try:
                self._await_turn(actor)
                act(actor)
            except Killed:
                self.note("is gone")
            except BaseException as error:  # noqa: BLE001 - raised again in the main thread
                actor.problem = error
            actor.is_over = True
            self._stopped.release()

        threading.Thread(target=run, name=name, daemon=True).start()
        self._actors.append(actor)
        return actor

    def run(self) -> None:
        """Let all actors run to their ends.

        Raises:
            BaseException: what ended one of them, or what the observer found.
        """
        while self._actors:
            ready = [actor for actor in self._actors if actor.wake <= self.now]
            if not ready:
                self.now = min(actor.wake for actor in self._actors)
                continue
            self.current = self.random.choice(ready)
            self.current.turn.release()
            self._stopped.acquire()
            if self.current.problem is not None:
                raise self.current.problem
            if self.current.is_over:
                self._actors.remove(self.current)

    def run_to_end(self, end: Callable[[], None], broken: Callable[[str], Broken]) -> None:
        """Let all actors run to their ends, and judge what they left.

        Args:
            end: judges.
            broken: makes the error that tells of a broken promise; whatever else is raised is one, too.

        Raises:
            Broken: a promise does not hold.
        """
        try:
            self.run()
            end()
        except Broken:
            raise
        except Exception as error:
            raise broken(f"{type(error).__name__}: {error}") from error
        finally:
            self._close()

    def _close(self) -> None:
        """End the actors that are left."""
        for actor in (left for left in self._actors if not left.is_over):
            actor.is_killed = True
            actor.turn.release()
            self._stopped.acquire()
        self._actors.clear()

    def note(self, text: str) -> None:
        """Write a line about the actor that runs."""
        name = self.current.name if self.current is not None else "-"
        self.log.append(f"{(self.now - BEGIN) / DAY:10.5f} {name}: {text}")

    def step(self, text: str) -> Callable[[], None]:
        """Stop the actor that runs until its turn comes; return what is to be called after the operation."""
        actor = self._alive()
        self.now += self.random.uniform(0, _STEP_SECONDS)
        if self.random.random() < self.dangers.pauses:
            seconds = actor.longest_seconds * self.random.random() ** 4
            self.note(f"is suspended for {seconds:.0f} s before {text}")
            actor.wake = self.now + seconds
        self._wait(actor)
        if self.random.random() < self.dangers.kills:
            self._kill(actor, f"is killed before {text}")
        dies = self.random.random() < self.dangers.kills
        return lambda: self._kill(actor, f"is killed after {text}") if dies else None

    def sleep(self, seconds: float) -> None:
        """Let the actor that runs sleep."""
        actor = self._alive()
        actor.wake = self.now + max(seconds, 0.0)
        self._wait(actor)

    def clock(self) -> float:
        """Return the time of the actor that runs, by its own clock, in seconds since 1970."""
        return self.now + self.ahead + (self.current.skew if self.current is not None else 0.0)

    def _alive(self) -> Actor:
        assert self.current is not None
        if self.current.is_killed:
            raise Killed
        return self.current

    def _wait(self, actor: Actor) -> None:
        self._stopped.release()
        self._await_turn(actor)

    def _await_turn(self, actor: Actor) -> None:
        actor.turn.acquire()
        if actor.is_killed:
            raise Killed

    def _kill(self, actor: Actor, text: str) -> None:
        self.note(text)
        actor.is_killed = True
        raise Killed


class Memory:
    """What a store holds: contents with their changes by its clock."""

    def __init__(self) -> None:
        self.contents: dict[str, tuple[bytes, float]] = {}


class SimulatedObjects:
    """`Objects` of a store in a world's memory, with conditional writes or without."""

    def __init__(self, world: World, memory: Memory, *, conditional: bool) -> None:
        self.place = self.typed = "memory"
        can = {"create_once": conditional, "swap": conditional, "safe_in_race": conditional, "checksums": True}
        self.abilities = Abilities.model_validate({**can, "probed": "now"})
        self._world = world
        self._memory = memory
        self._conditional = conditional

    def find(self, key: str) -> ObjectMetadata | None:
        self._world.step(f"find {key}")
        return self._metadata(key)

    def below(self, prefix: str) -> Iterator[ObjectMetadata]:
        self._world.step(f"list {prefix}")
        found = [self._metadata(key) for key in sorted(self._memory.contents) if key.startswith(prefix)]
        return iter([item for item in found if item is not None])

    def read(self, key: str) -> Document | None:
        self._world.step(f"read {key}")
        return self._document(key)

    def create(self, key: str, content: bytes) -> str:
        done = self._world.step(f"create {key}")
        if key in self._memory.contents:
            raise KeyTaken(key)
        return self._write_checked(key, content, done)

    def swap(self, key: str, content: bytes, tag: str) -> str:
        done = self._world.step(f"swap {key}")
        document = self._document(key)
        if document is None or document.tag != tag:
            raise Changed(key)
        return self._write_checked(key, content, done)

    def put(self, key: str, content: bytes) -> None:
        done = self._world.step(f"put {key}")
        self._write(key, content)
        done()

    def send(self, path: Path, key: str, sha256: str, moved: Moved = untold) -> None:
        content = path.read_bytes()
        assert hashlib.sha256(content).hexdigest() == sha256
        self.put(key, content)
        moved(len(content))

    def fetch(self, key: str, path: Path, sha256: str, moved: Moved = untold) -> None:
        document = self.read(key)
        if document is None:
            raise RepositoryError(f"{key} is gone", remedy="")
        assert hashlib.sha256(document.content).hexdigest() == sha256
        path.write_bytes(document.content)
        moved(len(document.content))

    def sha256(self, key: str, moved: Moved = untold) -> str:
        del moved
        document = self.read(key)
        if document is None:
            raise RepositoryError(f"{key} is gone", remedy="")
        return hashlib.sha256(document.content).hexdigest()

    def copy(self, source: str, key: str) -> None:
        done = self._world.step(f"copy {source} to {key}")
        document = self._document(source)
        if document is None:
            raise RepositoryError(f"{source} is gone", remedy="")
        self._write(key, document.content)
        done()

    def remove(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            done = self._world.step(f"remove {key}")
            if self._memory.contents.pop(key, None) is not None:
                self._world.observe(key)
            done()

    def flush(self, keys: Iterable[str]) -> None:
        """There are no power cuts here."""

    def give_up(self, before: float) -> int:
        del before
        return 0

    def probed(self) -> Abilities:
        return self.abilities

    def now(self) -> float:
        return self._world.now

    def _metadata(self, key: str) -> ObjectMetadata | None:
        if key not in self._memory.contents:
            return None
        content, changed = self._memory.contents[key]
        return ObjectMetadata(key, len(content), changed, tag=_tag(content))

    def _document(self, key: str) -> Document | None:
        if key not in self._memory.contents:
            return None
        content, _ = self._memory.contents[key]
        return Document(content, _tag(content))

    def _write_checked(self, key: str, content: bytes, done: Callable[[], None]) -> str:
        """Write what was looked for: at once, or as a server does that lets others write in between."""
        if not self._conditional:
            done()
            done = self._world.step(f"write {key}")
        self._write(key, content)
        done()
        return _tag(content)

    def _write(self, key: str, content: bytes) -> None:
        self._memory.contents[key] = (content, self._world.now)
        self._world.observe(key)


def _tag(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
