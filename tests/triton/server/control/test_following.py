"""What a follower does about a change, and when; the server notes only what it is told."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from plansmith.errors import EnvironmentFault, ServedCheckError
from plansmith.triton.server import follower
from plansmith.triton.server.follower import Follower, look_at
from plansmith.triton.server.live import RunningTriton

_SECONDS = 60


class Noted:
    """In place of a server: notes what it is told; a load of `slow` ends once it may."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.may_end = threading.Event()
        self.is_away = False

    def ready(self, model: str) -> list[int]:
        if self.is_away:
            raise EnvironmentFault("the server cannot be asked", remedy="wait")
        loads = self.calls.count(f"load {model}")
        return [loads] if loads else []

    def load(self, folder: Path) -> list[int]:
        self.calls.append(f"load {folder.name}")
        if folder.name == "slow":
            assert self.may_end.wait(2 * _SECONDS)
        if folder.name == "unreadable":
            raise PermissionError(13, "Permission denied", str(folder))
        if folder.name == "broken":
            raise ServedCheckError("it does not load", remedy="mend it")
        return self.ready(folder.name)

    def unload(self, folder: Path) -> None:
        self.calls.append(f"unload {folder.name}")


class Followed:
    """A repository, a follower of it, and what both did; the models are there when it begins."""

    def __init__(self, root: Path, *models: str) -> None:
        self.root = root / "repository"
        self.root.mkdir()
        self.server = Noted()
        self.lines: list[str] = []
        self._views = root / "views"
        self._count = 0
        for model in models:
            self.show(model)
        (root / "log").touch()
        self._follower = Follower(
            self.root,
            cast(RunningTriton, self.server),
            needs=lambda model: "it needs another server" if model == "unfit" else None,
            say=self.lines.append,
            log=root / "log",
        )

    def show(self, model: str) -> None:
        """Exchange a model's view."""
        self._count += 1
        view = self._views / str(self._count)
        (view / "1").mkdir(parents=True)
        (view / "link").symlink_to(view)
        (view / "link").rename(self.root / model)

    def quietly(self, times: int = 3) -> None:
        """Look some more times, at which the server is told nothing."""
        before = list(self.server.calls)
        for _ in range(times):
            time.sleep(0.02)
            self.look(*before)

    def look(self, *expected: str) -> None:
        """Look once, and wait until the server was told no more and no less than this since the start."""
        self._settle()
        self._follower.look()
        deadline = time.monotonic() + _SECONDS
        while sorted(self.server.calls) != sorted(expected) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._settle()
        assert sorted(self.server.calls) == sorted(expected)

    def _settle(self) -> None:
        """Wait until all is done that a look began, but for a load that may not end yet."""
        for model, work in [*self._follower._works.items()]:
            if model != "slow" or self.server.may_end.is_set():
                work.thread.join(_SECONDS)

    def line(self, expected: str) -> None:
        """Wait for a line."""
        deadline = time.monotonic() + _SECONDS
        while expected not in self.lines and time.monotonic() < deadline:
            time.sleep(0.01)
        assert expected in self.lines


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    """One that has loaded the model `old`."""
    followed = Followed(tmp_path, "old")
    followed.look("load old")
    followed.line("old: version 1 serves")
    yield followed
    followed.server.may_end.set()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is so at the next look."""
    monkeypatch.setattr(follower, "_PAUSE_SECONDS", 0)


def test_changes_told_once(followed: Followed) -> None:
    """What changes is told once, and what stays is left alone."""
    followed.quietly()
    followed.show("old")
    followed.show("fresh")
    followed.look("load old", "load old", "load fresh")
    followed.line("fresh: new, version 1 serves")
    followed.quietly()
    (followed.root / "fresh").unlink()
    followed.look("load old", "load old", "load fresh")
    followed.look("load old", "load old", "load fresh", "unload fresh")
    followed.line("fresh: not shown any more, unloaded")


def test_endless_first_load_blocks_nothing(tmp_path: Path) -> None:
    """At the start, a model whose load never ends holds up no other."""
    followed = Followed(tmp_path, "old", "slow", "third")
    followed.look("load old", "load slow", "load third")
    followed.line("old: version 1 serves")
    followed.line("third: version 1 serves")
    assert not any(line.startswith("slow") for line in followed.lines)
    followed.server.may_end.set()
    followed.line("slow: version 1 serves")


def test_slow_load_followed_by_latest(followed: Followed) -> None:
    """A load that takes long is followed by one of what came meanwhile."""
    followed.show("slow")
    followed.look("load old", "load slow")
    followed.show("slow")
    followed.show("old")
    followed.look("load old", "load slow", "load old")
    followed.server.may_end.set()
    followed.line("slow: new, version 1 serves")
    followed.look("load old", "load slow", "load old", "load slow")


def test_unloadable_version_retried_after_change(
    followed: Followed,
) -> None:
    """A version that does not load is told with its reason, and tried again only once it changed."""
    followed.show("broken")
    followed.look("load old", "load broken")
    followed.line("broken: it does not load; version 1 goes on")
    followed.quietly()
    followed.show("broken")
    followed.look("load old", "load broken", "load broken")


@pytest.mark.usefixtures("hasty")
def test_early_failure_retried_told_once(followed: Followed) -> None:
    """What fails before Triton judged it is tried again until it works, and told once."""
    followed.server.is_away = True
    followed.show("old")
    followed.quietly(5)
    assert followed.lines[1:] == ["old: the server cannot be asked; it is tried again"]
    followed.server.is_away = False
    followed.look("load old", "load old")
    followed.line("old: version 2 serves, and no longer version 1")


def test_retry_needs_pause(followed: Followed) -> None:
    """A model is tried again only after a pause."""
    followed.server.is_away = True
    followed.show("old")
    followed.quietly()
    followed.server.is_away = False
    followed.quietly()


@pytest.mark.usefixtures("hasty")
def test_unreadable_file_told_and_retried(followed: Followed) -> None:
    """A file that cannot be read is told and tried again."""
    followed.show("unreadable")
    followed.look("load old", "load unreadable")
    followed.line(f"unreadable: {followed.root}/unreadable: Permission denied; it is tried again")
    followed.look("load old", "load unreadable", "load unreadable")


def test_version_for_other_server_not_tried(followed: Followed) -> None:
    """What needs another server is not even tried."""
    followed.show("unfit")
    followed.look("load old")
    followed.line("unfit: it needs another server; no version serves")


def test_foreign_folder_loaded_once_written(followed: Followed) -> None:
    """A folder of somebody else is loaded once it is written."""
    theirs = followed.root / "theirs" / "1"
    theirs.mkdir(parents=True)
    followed.look("load old")
    (theirs / "model.onnx").write_text("half of")
    followed.look("load old")
    followed.look("load old", "load theirs")
    followed.quietly()
    (theirs / "model.onnx").write_text("another model")
    followed.look("load old", "load theirs")
    followed.look("load old", "load theirs", "load theirs")


def test_dangling_link_keeps_foreign_model(followed: Followed) -> None:
    """A link to nowhere inside a model of somebody else makes it no less of a model."""
    theirs = followed.root / "theirs" / "1"
    theirs.mkdir(parents=True)
    followed.look("load old")
    followed.look("load old", "load theirs")
    (theirs / ".#model.py").symlink_to("somebody@somewhere")
    followed.quietly(1)
    followed.look("load old", "load theirs", "load theirs")
    followed.quietly()


def test_unlistable_repository_unloads_nothing(followed: Followed, tmp_path: Path) -> None:
    """A repository that cannot be listed unloads nothing and says so once."""
    followed.root.rename(tmp_path / "elsewhere")
    followed.quietly(4)
    message = f"{followed.root}: cannot be looked at: {followed.root}: No such file or directory; what serves goes on"
    assert followed.lines[1:] == [message]
    (tmp_path / "elsewhere").rename(followed.root)
    followed.quietly()
    (followed.root / "old").unlink()
    followed.quietly(1)
    followed.look("load old", "unload old")


def test_broken_view_ends_nothing(followed: Followed, tmp_path: Path) -> None:
    """A view whose files are away serves on, and one that leads in a circle ends nothing."""
    (tmp_path / "views").rename(tmp_path / "unmounted")
    (followed.root / "circle").symlink_to("circle")
    followed.quietly(4)
    old, circle = followed.root / "old", followed.root / "circle"
    assert sorted(followed.lines[1:]) == [
        f"circle: cannot be looked at: {circle}: Too many levels of symbolic links; what serves goes on",
        f"old: cannot be looked at: {old}: No such file or directory; what serves goes on",
    ]
    (tmp_path / "unmounted").rename(tmp_path / "views")
    followed.quietly()
    old.unlink()
    followed.quietly(1)
    followed.look("load old", "unload old")


def test_unreadable_folder_is_no_change(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that may not be read is no change."""
    theirs = followed.root / "theirs" / "1"
    theirs.mkdir(parents=True)
    followed.look("load old")
    followed.look("load old", "load theirs")

    def refusing(folder: Path, *, onerror: Callable[[OSError], None]) -> Iterator[None]:
        onerror(PermissionError(13, "Permission denied", f"{folder}/1"))
        yield from ()

    with monkeypatch.context() as patch:
        patch.setattr(os, "walk", refusing)
        followed.quietly()
    followed.line(f"theirs: cannot be looked at: {theirs}: Permission denied; what serves goes on")
    followed.quietly()
    shutil.rmtree(theirs.parent)
    followed.quietly(1)
    followed.look("load old", "load theirs", "unload theirs")


def test_only_named_models_followed(tmp_path: Path) -> None:
    """Only the named models are followed, and neither a file nor a link to nowhere is a model."""
    followed = Followed(tmp_path, "one", "two")
    (followed.root / "astray").symlink_to(tmp_path / "nowhere")
    (followed.root / "readme").touch()
    assert list(look_at(followed.root).models) == ["one", "two"]
    assert list(look_at(followed.root).unknown) == ["astray"]
    assert list(look_at(followed.root, ["two", "three"]).models) == ["two"]
    assert look_at(tmp_path / "missing").models == {}
