"""Repository follower: keeps a server in sync with new, replaced and removed models; logs a line per event."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from plansmith.errors import PlansmithError, ServedCheckError, in_one_line
from plansmith.triton.repository.ensembles import is_part
from plansmith.triton.server.live import RunningTriton
from plansmith.triton.server.process import unread_configuration

Needs = Callable[[str], str | None]
"""Why a server that is running cannot take up what is shown of a model; None where it may be tried."""

_PAUSE_SECONDS = 5


@dataclass(frozen=True)
class Shown:
    """State of a model in the repository.

    Attributes:
        state: another text after every change.
        at_once: it is exchanged in one step, as a link is; what is no link may be half written.
    """

    state: str
    at_once: bool


@dataclass
class Look:
    """Snapshot of what a repository shows.

    Attributes:
        models: by name.
        unknown: what could not be looked at, the repository itself as "", and why: it may be there unharmed.
    """

    models: dict[str, Shown] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    def lacks(self, model: str) -> bool:
        """Whether the model is certainly absent."""
        return model not in self.models and model not in self.unknown and "" not in self.unknown


def look_at(root: Path, models: Sequence[str] = ()) -> Look:
    """Return what a repository shows now.

    Args:
        root: the folder that Triton reads.
        models: look at these alone; at all where there are none.
    """
    look = Look()
    try:
        names = sorted(os.listdir(root))  # noqa: PTH208 - names are what is wanted
    except OSError as error:
        look.unknown[""] = _reason(error)
        return look
    for name in names:
        if not models or name in models:
            try:
                shown = _shown(root / name)
            except OSError as error:
                look.unknown[name] = _reason(error)
            else:
                if shown is not None:
                    look.models[name] = shown
    return look


@dataclass
class _Work:
    """Pending work on a model: its thread, the state the server had before, and whether to retry."""

    thread: Thread
    before: Shown | None
    failed_in_passing: bool = False


class Follower:
    """Repository follower: compares what a repository shows with what a server has loaded, and applies changes.

    One model at a time is loaded by name, but different models at once: a load that takes long, or never ends, holds
    up no other. What Triton refuses is tried once; what fails before Triton judged it is tried again after a pause.
    A disk that cannot be read says nothing about models: what serves goes on.

    Args:
        root: the folder that Triton reads.
        triton: the server, which has loaded nothing yet.
        models: follow these alone; all where there are none.
        needs: asked before each load.
        say: given a line for every event.
        log: what the server prints, in which it says why a configuration cannot be read.
    """

    def __init__(
        self,
        root: Path,
        triton: RunningTriton,
        *,
        models: Sequence[str] = (),
        needs: Needs = lambda _: None,
        say: Callable[[str], None],
        log: Path,
    ) -> None:
        self._root = root
        self._triton = triton
        self._models = tuple(models)
        self._needs = needs
        self._say = say
        self._log = log
        self._reports: dict[str, Shown] = {}
        self._before = look_at(root, self._models)
        self._model_names = set(self._before.models)
        self._works: dict[str, _Work] = {}
        self._not_until: dict[str, float] = {}
        self._lines: dict[str, str] = {}

    def look(self) -> None:
        """Start applying changes since the last poll; returns at once.

        A folder that is no view of ours is written piece by piece: it has to look the same twice before it is loaded.
        So has a model that is gone, which may be on its way to be replaced by hand.
        """
        now = look_at(self._root, self._models)
        self._say_what_is_unknown(now)
        self._collect()
        for model in sorted(now.models.keys() | self._reports.keys()):
            shown, previous = now.models.get(model), self._reports.get(model)
            if shown == previous or model in self._works or time.monotonic() < self._not_until.get(model, 0):
                continue
            if self._is_settled(model, now):
                if shown is None:
                    del self._reports[model]
                else:
                    self._reports[model] = shown
                self._begin(model, self._let_go if shown is None else self._take_up, previous)
        self._before = now

    def _is_settled(self, model: str, now: Look) -> bool:
        shown = now.models.get(model)
        if shown is None:
            return now.lacks(model) and self._before.lacks(model)
        return shown.at_once or shown == self._before.models.get(model)

    def _begin(self, model: str, work: Callable[[str], Iterator[str]], before: Shown | None) -> None:
        # A daemon: a load that never ends must not keep this process from ending.
        thread = Thread(target=self._in_words, args=(work, model), daemon=True)
        self._works[model] = _Work(thread, before)
        thread.start()

    def _collect(self) -> None:
        """Collect finished work, and note what has to be retried."""
        for model, work in [*self._works.items()]:
            if work.thread.is_alive():
                continue
            del self._works[model]
            if work.failed_in_passing:
                self._not_until[model] = time.monotonic() + _PAUSE_SECONDS
                self._reports.pop(model, None)
                if work.before is not None:
                    self._reports[model] = work.before

    def _in_words(self, work: Callable[[str], Iterator[str]], model: str) -> None:
        try:
            for line in work(model):
                self._say_once(model, line)
        except ServedCheckError as error:
            self._say_once(model, in_one_line(error.message))
        except (PlansmithError, OSError) as error:
            why = in_one_line(error.message) if isinstance(error, PlansmithError) else _reason(error)
            self._say_once(model, f"{why}; it is tried again", again=False)
            self._works[model].failed_in_passing = True

    def _say_once(self, model: str, line: str, *, again: bool = True) -> None:
        """Log an event of a model; a recurring one only the first time."""
        if again or self._lines.get(model) != line:
            self._say(f"{model}: {line}")
        self._lines[model] = line

    def _say_what_is_unknown(self, now: Look) -> None:
        """Log unreadable models once two polls agree: a manual exchange makes one unreadable for a moment."""
        for name, why in now.unknown.items():
            if self._before.unknown.get(name) == why:
                line = f"cannot be looked at: {why}; what serves goes on"
                self._say_once(name or str(self._root), line, again=False)
        for name in self._before.unknown.keys() - now.unknown.keys():
            self._lines.pop(name or str(self._root), None)

    def _take_up(self, model: str) -> Iterator[str]:
        before = self._triton.ready(model)
        already = self._log.stat().st_size if self._log.exists() else 0
        why = self._needs(model)
        if why is None:
            try:
                after = self._triton.load(self._root / model)
            except ServedCheckError as error:
                why = unread_configuration(self._log, model, already) or in_one_line(error.message)
        if why is not None:
            ready = self._triton.ready(model)
            yield f"{why}; {f'{_versions(ready)} goes on' if ready else 'no version serves'}"
            return
        new = "" if model in self._model_names else "new, "
        self._model_names.add(model)
        was = f", and no longer {_versions(before)}" if before and before != after else ""
        yield f"{new}{_versions(after)} serves{was}"

    def _let_go(self, model: str) -> Iterator[str]:
        self._triton.unload(self._root / model)
        self._model_names.discard(model)
        yield "not shown any more, unloaded"


def _versions(numbers: Sequence[int]) -> str:
    return f"version{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def _shown(place: Path) -> Shown | None:
    """The state of a model folder: for a plansmith view its link, which is new for each view; else all file times.

    Returns:
        None of what is no folder, and of the parts of ensembles, which come and go with them.

    Raises:
        OSError: it cannot be looked at now, or its link leads nowhere.
    """
    if not stat.S_ISDIR(place.stat().st_mode) or is_part(place):
        return None
    if place.is_symlink():
        link = place.lstat()
        return Shown(f"{place.readlink()} {link.st_ino} {link.st_mtime_ns}", at_once=True)
    rows = []
    for folder, _, names in os.walk(place, onerror=_raise):
        paths = (folder, *(os.path.join(folder, name) for name in names))  # noqa: PTH118 - of many files, often
        rows += [f"{path} {_times(path)}" for path in paths]
    return Shown("\n".join(sorted(rows)), at_once=False)


def _times(path: str) -> str:
    """The modification time, size and link target of a file; a dangling link harms no model."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        status = os.lstat(path)
    return f"{status.st_size} {status.st_mtime_ns}"


def _raise(error: OSError) -> None:
    raise error
