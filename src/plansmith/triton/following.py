"""A server that is kept on what a repository shows: exchanged, new and removed models, one line for each event."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread

from plansmith.errors import PlansmithError, in_one_line
from plansmith.triton.live import RunningTriton
from plansmith.triton.server_log import unread_configuration

Needs = Callable[[str], str | None]
"""Why a server that is running cannot take up what is shown of a model; None where it may be tried."""


def shown_models(root: Path, models: Sequence[str] = ()) -> dict[str, str]:
    """What a repository shows now: for each model a text that is another one after every change.

    Args:
        root: the folder that Triton reads.
        models: look at these alone; at all where there are none.
    """
    found: dict[str, str] = {}
    for place in sorted(root.iterdir()) if root.is_dir() else ():
        if place.is_dir() and (not models or place.name in models):
            try:
                found[place.name] = _state(place)
            except FileNotFoundError:  # exchanged or removed at this moment: the next look sees what came of it
                continue
    return found


class Follower:
    """Compares what a repository shows with what a server was told, and tells it the difference.

    One model at a time is loaded by name, but different models at once: a load that takes long, or never ends, holds
    up no other.

    Args:
        root: the folder that Triton reads.
        triton: the server.
        told: what `shown_models` gave before the server began to read; without those that it refused.
        models: follow these alone; all where there are none.
        needs: asked before each load.
        say: given a line for every event.
        log: what the server prints, in which it says why a configuration cannot be read.
    """

    def __init__(
        self,
        root: Path,
        triton: RunningTriton,
        told: dict[str, str],
        *,
        models: Sequence[str] = (),
        needs: Needs = lambda _: None,
        say: Callable[[str], None],
        log: Path,
    ) -> None:
        self._root = root
        self._triton = triton
        self._told = dict(told)
        self._models = tuple(models)
        self._needs = needs
        self._say = say
        self._log = log
        self._before = dict(told)
        self._busy: dict[str, Thread] = {}

    def look(self) -> None:
        """Start what has to be done about changes since the last look; returns at once.

        A folder that is no view of ours is written piece by piece: it has to look the same twice before it is loaded.
        So has a model that is gone, which may be on its way to be replaced by hand.
        """
        now = shown_models(self._root, self._models)
        for model in sorted(now.keys() | self._told.keys()):
            busy = self._busy.get(model)
            settled = now.get(model) == self._before.get(model) or (self._root / model).is_symlink()
            if now.get(model) == self._told.get(model) or not settled or (busy is not None and busy.is_alive()):
                continue
            known = model in self._told
            if model in now:
                self._told[model] = now[model]
            else:
                del self._told[model]
            work = self._take_up if model in now else self._let_go
            # A daemon: a load that never ends must not keep this process from ending.
            self._busy[model] = Thread(target=self._in_words, args=(work, model, known), daemon=True)
            self._busy[model].start()
        self._before = now

    def _in_words(self, work: Callable[[str, bool], Iterator[str]], model: str, known: bool) -> None:
        try:
            for line in work(model, known):
                self._say(f"{model}: {line}")
        except PlansmithError as error:
            self._say(f"{model}: {in_one_line(error.message)}")

    def _take_up(self, model: str, known: bool) -> Iterator[str]:
        before = self._triton.ready(model)
        already = self._log.stat().st_size if self._log.exists() else 0
        why = self._needs(model)
        if why is None:
            try:
                after = self._triton.load(self._root / model)
            except PlansmithError as error:
                why = unread_configuration(self._log, model, already) or in_one_line(error.message)
        if why is not None:
            ready = self._triton.ready(model)
            yield f"{why}; {f'{_versions(ready)} goes on' if ready else 'no version serves'}"
            return
        new = "" if known else "new, "
        was = f", and no longer {_versions(before)}" if before and before != after else ""
        yield f"{new}{_versions(after)} serves{was}"

    def _let_go(self, model: str, known: bool) -> Iterator[str]:
        del known
        self._triton.unload(model)
        yield "not shown any more, unloaded"


def _versions(numbers: Sequence[int]) -> str:
    return f"version{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _state(place: Path) -> str:
    """A view of ours by its link, which is a new one for each view; the folder of somebody else by all its times."""
    if place.is_symlink():
        link = place.lstat()
        return f"{place.readlink()} {link.st_ino} {link.st_mtime_ns}"
    rows = []
    for folder, _, names in os.walk(place):
        for path in (folder, *(os.path.join(folder, name) for name in names)):  # noqa: PTH118 - of many files, often
            told = os.stat(path)  # noqa: PTH116
            rows.append(f"{path} {told.st_size} {told.st_mtime_ns}")
    return "\n".join(sorted(rows))
