"""A folder of models tells of each that is complete, once it stays as it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from plansmith.config.service_triggers import FolderRegistry, Rule
from plansmith.errors import EnvironmentFault
from plansmith.system.digest import Digester
from plansmith.triggers.pollers.folder import FolderPoller
from plansmith.triggers.registries.delivery import Event

NOW = 1795165608.0


class Watched:
    """A folder of models, what looks at it, and what was said."""

    def __init__(self, root: Path, model: str = "*") -> None:
        self.folder = root / "models"
        self.folder.mkdir()
        self.messages: list[str] = []
        self.digester = Digester(root / "digests.sqlite")
        self.poller = FolderPoller(
            "shelf",
            FolderRegistry(type="folder", path="models"),
            self.folder,
            (Rule(registry="shelf", model=model, when="ready", spec="ranker.yaml"),),
            digester=self.digester,
            tell=self.messages.append,
        )

    def put(self, model: str, files: Mapping[str, str] = MappingProxyType({}), *, ready: bool = True) -> Path:
        """Put a model there, as files with their texts."""
        folder = self.folder / model
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            folder.joinpath(name).write_text(text)
        if ready:
            folder.joinpath("_READY").touch()
        return folder

    def poll(self) -> list[Event]:
        return [event for delivery in self.poller.poll(NOW) for event in delivery.events]

    def ids(self) -> list[str]:
        return [delivery.id for delivery in self.poller.poll(NOW)]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_model_counts_after_two_looks(watched: Watched) -> None:
    """A model counts when it was the same in two looks."""
    folder = watched.put("ranker", {"config.json": "{}", "model.safetensors": "weights"})
    assert (watched.poll(), watched.poller.has_more) == ([], True)
    (event,) = watched.poll()
    assert watched.poller.has_more is False
    assert (event.registry, event.model, event.change) == ("shelf", "ranker", "ready")
    assert event.source == f"hf:{folder}"
    assert len(event.version) == 64


def test_unfinished_model_waits_for_files(watched: Watched) -> None:
    """A model that is still written waits for its ready file and for its files."""
    folder = watched.put("ranker", {"config.json": "{}"}, ready=False)
    assert watched.poll() == watched.poll() == []
    folder.joinpath("_READY").touch()
    assert watched.poll() == []
    folder.joinpath("model.safetensors").write_text("half")
    assert watched.poll() == []
    assert len(watched.poll()) == 1


def test_content_decides_id(watched: Watched, tmp_path: Path) -> None:
    """Each content has an ID of its own, and the same content the same."""
    folder = watched.put("ranker", {"model.onnx": "one"})
    watched.poll()
    first = watched.ids()
    assert watched.ids() == first
    folder.joinpath("model.onnx").write_text("two")
    assert watched.ids() == []
    second = watched.ids()
    assert second != first
    shutil.rmtree(folder)
    assert watched.ids() == []
    watched.put("ranker", {"model.onnx": "one"})
    folder.joinpath("_READY").write_text("again, by another run")
    watched.poll()
    assert watched.ids() == first
    os.utime(folder / "model.onnx")
    watched.poll()
    assert watched.ids() == first
    (tmp_path / "other").mkdir()
    anew = Watched(tmp_path / "other")
    anew.put("ranker", {"model.onnx": "one"})
    anew.poll()
    assert [event.version for event in anew.poll()] == [event.version for event in watched.poll()]


def test_content_read_once_if_wanted(tmp_path: Path) -> None:
    """Content is read once, and not at all where no rule wants it."""
    watched = Watched(tmp_path, "rank*")
    watched.put("ranker", {"model.onnx": "one"})
    watched.put("other", {"model.onnx": "one"})
    watched.poll()
    assert [event.model for event in watched.poll()] == ["ranker"]
    assert [event.model for event in watched.poll()] == ["ranker"]
    assert watched.digester.hashed == 1


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"config.json": "{}", "model.safetensors": "w"}, "hf:{}"),
        ({"config.json": json.dumps({"architecture": "resnet18"}), "model.safetensors": "w"}, "timm:{}"),
        ({"model.onnx": "graph"}, "onnx:{}/model.onnx"),
        ({"config.json": "{}", "ranker.onnx": "graph", "ranker.data": "w"}, "onnx:{}/ranker.onnx"),
        ({"config.json": "{}", "model.safetensors": "w", "a.onnx": "", "b.onnx": ""}, "hf:{}"),
    ],
)
def test_source_is_what_lies_there(watched: Watched, files: dict[str, str], source: str) -> None:
    """The source is what lies there."""
    folder = watched.put("ranker", files)
    watched.poll()
    assert [event.source for event in watched.poll()] == [source.format(folder)]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"notes.txt": "?"}, "it holds neither config.json nor an .onnx file"),
        ({}, "it holds neither config.json nor an .onnx file"),
        ({"a.onnx": "", "b.onnx": ""}, "it holds several .onnx files"),
        ({"config.json": "{"}, "config.json is no JSON"),
        ({"config.json": "[" * 100_000}, "config.json is no JSON"),
        ({"config.json": " " * (1 << 21)}, "config.json is too large to be one"),
    ],
)
def test_non_model_told_once(watched: Watched, files: dict[str, str], words: str) -> None:
    """What is no model is said once and holds up no other."""
    folder = watched.put("odd", files)
    watched.put("ranker", {"model.onnx": "graph"})
    for _ in range(4):
        events = watched.poll()
    assert [event.model for event in events] == ["ranker"]
    assert watched.messages == [f"{folder} is left out: {words}"]
    for path in folder.iterdir():
        path.unlink()
    watched.put("odd", {"model.onnx": "graph"})
    watched.poll()
    assert [event.model for event in watched.poll()] == ["odd", "ranker"]
    assert len(watched.messages) == 1


def test_escaping_links_refused(watched: Watched, tmp_path: Path) -> None:
    """Links that lead out are refused, and those that stay are followed."""
    (tmp_path / "secret").write_text("of the machine")
    (tmp_path / "elsewhere").mkdir()
    ranker = watched.put("ranker", {"model.onnx": "graph"})
    watched.put("file").joinpath("model.onnx").symlink_to(tmp_path / "secret")
    watched.put("folder", {"model.onnx": "graph"}).joinpath("inner").symlink_to(tmp_path / "elsewhere")
    watched.put("nowhere", {"model.onnx": "graph"}).joinpath("gone").symlink_to("missing")
    os.mkfifo(watched.put("pipe", {"model.onnx": "graph"}) / "pipe")
    outside = tmp_path / "elsewhere"
    outside.joinpath("model.onnx").write_text("graph")
    outside.joinpath("_READY").touch()
    watched.folder.joinpath("whole").symlink_to(outside)
    watched.put("linked").joinpath("model.onnx").symlink_to(ranker / "model.onnx")
    watched.folder.joinpath("current").symlink_to(ranker)
    watched.poll()
    assert [event.model for event in watched.poll()] == ["current", "linked", "ranker"]
    assert [line.partition(" is left out: ")[2] for line in watched.messages] == [
        "model.onnx is a link that leads out of the folder",
        "inner is a link to a folder",
        "gone is a link that leads nowhere",
        "pipe is no file",
        "it is a link that leads out of the folder",
    ]


def test_content_changed_meanwhile_read_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes as it is read is read again."""
    folder = watched.put("ranker", {"model.onnx": "one"})
    entries = watched.digester.entries

    def written_meanwhile(*args: object, **keywords: object) -> object:
        monkeypatch.undo()
        result = entries(*args, **keywords)  # type: ignore[arg-type]
        folder.joinpath("model.onnx").write_text("three")
        return result

    watched.poll()
    monkeypatch.setattr(watched.digester, "entries", written_meanwhile)
    assert watched.poll() == []
    assert watched.poller.has_more
    assert watched.poll() == []
    assert len(watched.poll()) == 1


def test_dot_folders_and_files_ignored(watched: Watched) -> None:
    """Folders that begin with a dot, and files, are no models."""
    watched.put(".staging", {"model.onnx": "graph"})
    watched.folder.joinpath("README").touch()
    watched.put("li\nne", {"model.onnx": "graph"})
    assert watched.poll() == watched.poll() == []
    assert [line.partition(" is left out: ")[2] for line in watched.messages] == ["its name cannot be shown"]


def test_absent_folder_is_passing_fault(watched: Watched) -> None:
    """A folder that is away is a fault that may pass."""
    watched.put("ranker", {"model.onnx": "graph"})
    watched.poll()
    watched.folder.rename(watched.folder.with_name("moved"))
    with pytest.raises(EnvironmentFault, match="cannot be read: No such file") as caught:
        watched.poll()
    assert caught.value.transient
    assert caught.value.remedy
    watched.folder.with_name("moved").rename(watched.folder)
    assert [event.model for event in watched.poll()] == ["ranker"]


def test_circular_links_left_out(watched: Watched) -> None:
    """Links that lead to each other are left out and hold nothing up."""
    for _ in range(2):
        watched.put("good", {"model.onnx": "x"})
    (watched.folder / "loop").symlink_to("loop")
    watched.put("bad", {"model.onnx": "x"})
    (watched.folder / "bad" / "inner").symlink_to("inner")
    watched.poll()
    assert [event.model for event in watched.poll()] == ["good"]
    assert [line for line in watched.messages if "bad is left out" in line]
