"""Folder poller: finds model folders that hold the ready file and have stopped changing.

What counts is what lies there, and not that somebody says it changed: that is so on network file systems, too, which
tell nothing of changes that other machines made.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from plansmith.config.service_triggers import FolderRegistry, Rule
from plansmith.errors import EnvironmentFault
from plansmith.sources.directory import CONFIG_FILE, GRAPH_SUFFIX, graphs_of, library_of
from plansmith.system.digest import Digester, digest_of, digest_of_files
from plansmith.triggers.pollers.poller import FaultNotices, Poller, Tell, is_wanted, polled
from plansmith.triggers.registries.delivery import Delivery, Event, is_showable

_LARGEST_CONFIG_BYTES = 1 << 20

_FileState = tuple[str, int, int, int]
"""A file's path in its folder, its size, and when it and what is known of it were last changed."""


class _Unfit(Exception):
    """The folder's content is not a readable model; the message gives the reason."""


class FolderPoller(Poller):
    """Folder poller: polls a folder of models.

    Args:
        name: of the registry.
        config: of it.
        folder: where the models are, from the root.
        rules: of the service; what none of them wants is not read.
        digester: tells what files hold.
        tell: says what is not understood, once.
    """

    most_polls = 2

    def __init__(
        self, name: str, config: FolderRegistry, folder: Path, rules: Sequence[Rule], *, digester: Digester, tell: Tell
    ) -> None:
        self.pause_seconds = config.poll_seconds
        self._name = name
        self._ready = config.ready
        self._folder = folder
        self._rules = rules
        self._digester = digester
        self._notices = FaultNotices(tell)
        self._states: dict[str, str] = {}
        self._deliveries: dict[str, tuple[str, Delivery]] = {}

    def poll(self, now: float) -> list[Delivery]:  # noqa: ARG002 - what counts is that nothing changes
        """Return the models that are complete and unchanged since the last poll.

        Raises:
            EnvironmentFault: the folder is not there, or cannot be read.
        """
        try:
            names = sorted(entry.name for entry in os.scandir(self._folder) if _is_folder(entry))
        except OSError as error:
            raise EnvironmentFault(
                f"the folder {self._folder} cannot be read: {error.strerror}",
                remedy="put it there and let it be read, or name another as its path",
                transient=True,
            ) from error
        self.has_more = False
        deliveries = [delivery for name in names if self._is_asked_for(name) for delivery in self._looked_at(name)]
        self._states = {name: state for name, state in self._states.items() if name in names}
        return deliveries

    def _is_asked_for(self, name: str) -> bool:
        event = Event(registry=self._name, model=name, version="", change="ready")
        return not name.startswith(".") and is_wanted(self._rules, event)

    def _looked_at(self, name: str) -> Iterator[Delivery]:
        model = self._folder / name
        try:
            if not (model / self._ready).is_file():
                self._states.pop(name, None)
                return
            delivery = self._settled(name, model)
        except _Unfit as unfit:
            self._notices.wrong(name, f"{model} is left out: {unfit}")
        except (OSError, RuntimeError) as error:  # Path.resolve has a RuntimeError for links that lead to each other
            reason = error.strerror if isinstance(error, OSError) else error
            self._notices.wrong(name, f"{model} is left out: it cannot be read: {reason}")
        else:
            self._notices.well(name)
            if delivery is None:
                self.has_more = True
            else:
                yield delivery

    def _settled(self, name: str, model: Path) -> Delivery | None:
        """The delivery of a model; None until its files are the same as at the last poll."""
        if not is_showable(name):
            raise _Unfit("its name cannot be shown")
        files = self._files(model)
        state = digest_of(files)
        if self._states.get(name) != state:
            self._states[name] = state
            return None
        previous, delivery = self._deliveries.get(name, ("", None))
        if previous == state:
            return delivery
        source = _source(model, [path for path, *_ in files])
        contents = [model / path for path, *_ in files if path != self._ready]
        version = digest_of_files(self._digester.entries(model, contents, foreign=True))
        if digest_of(self._files(model)) != state:  # it changed as it was read
            self._states.pop(name)
            return None
        event = Event(registry=self._name, model=name, version=version, change="ready", source=source)
        self._deliveries[name] = (state, polled(event))
        return self._deliveries[name][1]

    def _files(self, model: Path) -> list[_FileState]:
        """The state of all files of a model, sorted.

        Raises:
            _Unfit: there is something else than files and folders, or something leads out.
        """
        root = self._folder.resolve()
        if not model.resolve().is_relative_to(root):
            raise _Unfit("it is a link that leads out of the folder")
        return sorted(_state(model, path, root) for path in _below(model))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # links that lead to each other
        return False


def _below(model: Path) -> Iterator[Path]:
    """Yield all files of a folder, of any kind."""

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(model, onerror=fail):
        for inner in folders:
            if (path := Path(folder, inner)).is_symlink():
                raise _Unfit(f"{path.relative_to(model)} is a link to a folder")
        yield from (Path(folder, name) for name in names)


def _state(model: Path, path: Path, root: Path) -> _FileState:
    name = path.relative_to(model).as_posix()
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        raise _Unfit(f"{name} is a link that leads out of the folder")
    if not path.exists():
        raise _Unfit(f"{name} is a link that leads nowhere")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _Unfit(f"{name} is no file")
    return name, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _source(model: Path, names: Iterable[str]) -> str:
    """The spec's `source` for the content of a folder."""
    graphs = graphs_of(names)
    if graphs is None:
        return f"{_scheme(model / CONFIG_FILE)}:{model}"
    if len(graphs) == 1:
        return f"onnx:{model / graphs[0]}"
    raise _Unfit(
        "it holds several .onnx files" if graphs else f"it holds neither {CONFIG_FILE} nor an {GRAPH_SUFFIX} file"
    )


def _scheme(config: Path) -> str:
    """The source scheme that a configuration file belongs to."""
    if config.stat().st_size > _LARGEST_CONFIG_BYTES:
        raise _Unfit(f"{CONFIG_FILE} is too large to be one")
    try:
        document = json.loads(config.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise _Unfit(f"{CONFIG_FILE} is no JSON") from None
    return library_of(document) if isinstance(document, dict) else "hf"
