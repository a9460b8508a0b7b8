"""What a follower does about a change, and when; the server notes only what it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from plansmith.errors import ServedCheckError
from plansmith.triton.following import Follower, shown_models
from plansmith.triton.live import RunningTriton


class Noted:
    """In place of a server: notes what it is told; a load of `slow` ends once it may."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.may_end = threading.Event()

    def ready(self, model: str) -> list[int]:
        loads = self.calls.count(f"load {model}")
        return [loads] if loads else []

    def load(self, folder: Path) -> list[int]:
        self.calls.append(f"load {folder.name}")
        if folder.name == "slow":
            assert self.may_end.wait(10)
        if folder.name == "broken":
            raise ServedCheckError("it does not load", remedy="mend it")
        return self.ready(folder.name)

    def unload(self, model: str) -> None:
        self.calls.append(f"unload {model}")


class Followed:
    """A repository, a follower of it, and what both did."""

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
            shown_models(self.root),
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

    def look(self, *expected: str) -> None:
        """Look once, and wait until the server was told no more and no less than this since the start."""
        self._follower.look()
        deadline = time.monotonic() + 5
        while sorted(self.server.calls) != sorted(expected) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sorted(self.server.calls) == sorted(expected)

    def line(self, wanted: str) -> None:
        """Wait for a line."""
        deadline = time.monotonic() + 5
        while wanted not in self.lines and time.monotonic() < deadline:
            time.sleep(0.01)
        assert wanted in self.lines


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    followed = Followed(tmp_path, "old", "slow")
    yield followed
    followed.server.may_end.set()


def test_what_was_there_before_is_left_alone_and_what_changes_is_told_once(followed: Followed) -> None:
    followed.look()
    followed.show("old")
    followed.show("fresh")
    followed.look("load old", "load fresh")
    followed.look("load old", "load fresh")
    followed.line("fresh: new, version 1 serves")
    (followed.root / "fresh").unlink()
    followed.look("load old", "load fresh")
    followed.look("load old", "load fresh", "unload fresh")
    followed.line("fresh: not shown any more, unloaded")


def test_a_load_that_takes_long_holds_up_no_other_model_and_is_followed_by_one_of_what_came_meanwhile(
    followed: Followed,
) -> None:
    followed.show("slow")
    followed.look("load slow")
    followed.show("slow")
    followed.show("old")
    followed.look("load slow", "load old")
    followed.server.may_end.set()
    followed.line("slow: version 1 serves")
    time.sleep(0.05)
    followed.look("load slow", "load old", "load slow")


def test_a_version_that_does_not_load_is_told_with_its_reason_and_tried_again_only_once_it_changed(
    followed: Followed,
) -> None:
    followed.show("broken")
    followed.look("load broken")
    followed.line("broken: it does not load; version 1 goes on")
    followed.look("load broken")
    followed.show("broken")
    followed.look("load broken", "load broken")


def test_what_needs_another_server_is_not_even_tried(followed: Followed) -> None:
    followed.show("unfit")
    followed.look()
    followed.line("unfit: it needs another server; no version serves")


def test_a_folder_of_somebody_else_is_loaded_once_it_is_written(followed: Followed) -> None:
    theirs = followed.root / "theirs" / "1"
    theirs.mkdir(parents=True)
    followed.look()
    (theirs / "model.onnx").write_text("half of")
    followed.look()
    followed.look("load theirs")
    followed.look("load theirs")
    (theirs / "model.onnx").write_text("another model")
    followed.look("load theirs")
    followed.look("load theirs", "load theirs")


def test_only_the_named_models_are_followed_and_a_link_that_leads_nowhere_is_no_model(tmp_path: Path) -> None:
    followed = Followed(tmp_path, "one", "two")
    (followed.root / "astray").symlink_to(tmp_path / "nowhere")
    assert list(shown_models(followed.root)) == ["one", "two"]
    assert list(shown_models(followed.root, ["two", "three"])) == ["two"]
    assert shown_models(tmp_path / "missing") == {}
